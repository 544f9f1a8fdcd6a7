"""Threads that the package starts, and does not wait for."""

from __future__ import annotations

import threading


def settle() -> None:
    """Wait until what is being written to index caches, and to caches of chunks, has been written."""
    for thread in threading.enumerate():
        if thread.name in ("refshard-index-cache", "refshard-chunk-cache"):
            thread.join()
