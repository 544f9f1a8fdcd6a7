"""Keep the bytes of objects that were read when a set was made, so that readers of the set need not request them.

Metadata of a file may lie between its chunks: then the kept ranges contain chunks, too.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Facts, Origin

MOST: Final = 1 << 20  # bytes: longer ranges are not kept


class _Object(NamedTuple):
    """The ranges of one version of an object: starts and bytes, in order, without overlaps."""

    facts: Facts
    parts: tuple[tuple[int, bytes], ...]


class ReadRanges:
    """Ranges of objects, at most ``capacity`` bytes in all; the least recently used objects are dropped first.

    >>> ranges = ReadRanges(100)
    >>> ranges.put("https://host/a", (), Facts(9, "v1"), 0, b"abcd")
    >>> ranges.put("https://host/a", (), Facts(9, "v1"), 4, b"ef")
    >>> ranges.find("https://host/a", (), 3, 5)
    (Facts(size=9, etag='v1', last_modified=None), b'de')
    """

    def __init__(self, capacity: int) -> None:
        self._objects: LRU[tuple[str, Origin], _Object] = LRU(capacity)
        self._lock = fork_safe(threading.Lock())

    def put(self, url: str, origin: Origin, facts: Facts, start: int, data: bytes) -> None:
        """Keep ``data``, which lie at ``start`` of the version ``facts``. Forget the ranges of another version."""
        if not 0 < len(data) <= MOST:
            return
        with self._lock:
            known = self._objects.peek((url, origin))
            parts = list(known.parts) if known is not None and known.facts == facts else []
            parts = sorted([*parts, (start, data)], key=lambda part: part[0])
            kept: list[tuple[int, bytes]] = []
            stop = 0
            for at, part in parts:
                known_bytes = max(stop - at, 0)
                if known_bytes < len(part):
                    kept.append((at + known_bytes, part[known_bytes:]))
                    stop = at + len(part)
            self._objects.put((url, origin), _Object(facts, tuple(kept)), sum(len(part) for _, part in kept))

    def find(self, url: str, origin: Origin, start: int, stop: int) -> tuple[Facts, bytes] | None:
        """Return the version of an object, and its bytes from ``start`` to ``stop``; None if not all are kept.

        If the object ends before ``stop``, its bytes up to its end are returned.
        """
        known = self._objects.get((url, origin))
        if known is None:
            return None
        facts, parts = known
        if start < 0:
            return None
        stop = stop if facts.size is None else min(stop, facts.size)
        found: list[bytes] = []
        for at, data in parts:
            if at <= start < at + len(data):
                found.append(data[start - at : max(stop - at, 0)])
                start = at + len(data)
                if start >= stop:
                    return (facts, b"".join(found)) if found[0] else None
        return None

    def clear(self) -> None:
        """Forget everything."""
        self._objects.clear()
