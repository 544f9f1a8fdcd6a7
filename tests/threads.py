"""Threads that the package starts, and does not wait for."""

from __future__ import annotations

import threading


def settle() -> None:
    """Wait until what is being written to index caches has been written."""
    for thread in threading.enumerate():
        if thread.name == "refshard-index-cache":
            thread.join()
