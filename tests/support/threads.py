"""Wait for threads that the package starts without waiting for them."""

from __future__ import annotations

import threading


def wait_for_writes() -> None:
    """Wait until all writes to index caches and chunk caches have ended."""
    for thread in threading.enumerate():
        if thread.name in ("refshard-index-cache", "refshard-chunk-cache"):
            thread.join()
