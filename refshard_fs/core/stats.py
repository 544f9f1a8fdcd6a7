"""Counters of what a filesystem asked for and what it cost."""

from __future__ import annotations

import threading
from html import escape
from typing import Any

from refshard_fs.core.formatting import bytes_text

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
    """Counters since a session began (or `clear`), shared by its event loops."""

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
        """Count one key that was read by one request of ``size`` bytes."""
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

    def after_fork(self) -> None:
        """Be usable in a child, whichever thread held the lock."""
        self._lock = threading.Lock()


# ----------------------------------------------------------------------------------------------------
# Counters as people see them: a mapping that prints as a small table, in a notebook as one of HTML. No I/O here.


class Counters(dict[str, int]):
    """Counters by name, as `refshard_fs.core.stats` explains them; a dict in all but its looks.

    >>> Counters(keys=1200, bytes_fetched=3 << 20)
    keys           1,200
    bytes_fetched  3,145,728  (3.0 MiB)

    ``note`` is a sentence that is printed after them.
    """

    note: str | None = None

    def __repr__(self) -> str:
        wide = max(map(len, self), default=0)
        lines = [f"{name:<{wide}}  {_text(name, value)}" for name, value in self.items()]
        return "\n".join([*lines, self.note] if self.note else lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:left">{escape(name)}</td>'
            f'<td style="text-align:right">{escape(_text(name, value))}</td></tr>'
            for name, value in self.items()
        )
        return f"<table>{rows}</table>" + (f"<p>{escape(self.note)}</p>" if self.note else "")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, int):
        return str(value)
    is_bytes = "bytes" in name or name == "ahead_wasted"
    return f"{value:,}  ({bytes_text(value)})" if is_bytes and value > 999 else f"{value:,}"
