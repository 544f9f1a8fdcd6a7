"""Counters of what a filesystem asked for and what it cost."""

from __future__ import annotations

import threading

__all__ = ["Stats"]

NAMES = (
    "keys",
    "requests",
    "bytes_wanted",
    "bytes_fetched",
    "cache_hits",
    "retries",
    "ahead_hits",  # reads served from what had been fetched (or was being fetched) ahead
    "ahead_wasted",  # bytes that were fetched (or planned) ahead, and dropped unread
)


class Stats:
    """Counters since the filesystem was made (or `clear`), shared by its event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(NAMES, 0)

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def count(self, name: str, count: int) -> None:
        """Add to one counter, at a third of the cost of `add`."""
        with self._lock:
            self._counts[name] += count

    def add_read(self, size: int) -> None:
        """Count one key read by one request of ``size`` bytes."""
        with self._lock:
            counts = self._counts
            counts["keys"] += 1
            counts["requests"] += 1
            counts["bytes_wanted"] += size
            counts["bytes_fetched"] += size

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def clear(self) -> None:
        with self._lock:
            self._counts = dict.fromkeys(NAMES, 0)
