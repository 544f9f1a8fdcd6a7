"""Counters of a filesystem's reads, requests and bytes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from refshard_fs.core.forks import fork_safe

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_bytes(count: int) -> str:
    """Format ``count`` bytes with a unit.

    >>> format_bytes(999), format_bytes(1536), format_bytes(123_456_789)
    ('999 B', '1.5 KiB', '118 MiB')
    """
    amount, unit = float(count), 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count:,} B" if unit == 0 else f"{amount:.{1 if amount < 9.95 else 0}f} {_UNITS[unit]}"


def format_count(count: int, singular: str, plural: str = "") -> str:
    """Format a count with its noun in singular or plural.

    >>> format_count(1, "chunk"), format_count(1234, "chunk"), format_count(2, "key", "keys in all")
    ('1 chunk', '1,234 chunks', '2 keys in all')
    """
    return f"1 {singular}" if count == 1 else f"{count:,} {plural or singular + 's'}"


def format_shape(shape: Sequence[int], dimensions: Sequence[str] = ()) -> str:
    """Format a shape, with the names of its dimensions if there are any; "scalar" for no dimensions.

    >>> format_shape((2920, 25)), format_shape((2920, 25), ("time", ""))
    ('2920 × 25', 'time 2920 × 25')
    """
    named = zip(dimensions or [""] * len(shape), shape, strict=True)
    return " × ".join(f"{name} {length}".strip() for name, length in named) or "scalar"


NAMES = (
    "keys",
    "requests",  # for bytes of objects
    "listings",  # listings of directories, and of all objects below a prefix
    "bytes_wanted",  # the bytes that readers requested
    "bytes_fetched",  # including bytes that were not requested, from servers that send whole objects
    "cache_hits",  # reads and look-ups that memory answered
    "disk_hits",  # ranges that were read from cache_dir=
    "disk_bytes",  # the bytes of these ranges
    "retries",
    "ahead_hits",  # reads of data that were already fetched ahead, or under way
    "ahead_wasted",  # bytes that were fetched (or planned) ahead, and dropped before any read
)

UNASKED: Final = 8 << 20  # bytes: a warning is due when one server has sent this many that were not requested


class Stats:
    """Counters since the source was opened, or since `clear`, shared by its event loops. Thread-safe."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._counts = dict.fromkeys(NAMES, 0)
        self._unasked: dict[str, int] = {}

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def count(self, name: str, count: int) -> None:
        """Add to one counter, at a third of the cost of `add`."""
        with self._lock:
            self._counts[name] += count

    def add_read(self, size: int) -> None:
        """Count one key, read by one request of ``size`` bytes."""
        with self._lock:
            counts = self._counts
            counts["keys"] += 1
            counts["requests"] += 1
            counts["bytes_wanted"] += size
            counts["bytes_fetched"] += size

    def add_unasked(self, server: str, size: int) -> bool:
        """Count bytes that a server sent without request; return True once, when a warning is due."""
        with self._lock:
            self._counts["bytes_fetched"] += size
            before = self._unasked.get(server, 0)
            self._unasked[server] = before + size
        return before < UNASKED <= before + size

    def ignores_ranges(self, server: str) -> bool:
        """Return whether ``server`` has answered requests for ranges with more than these ranges."""
        return server in self._unasked

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def clear(self) -> None:
        with self._lock:
            self._counts = dict.fromkeys(NAMES, 0)
