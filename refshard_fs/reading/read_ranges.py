"""Keep the bytes of objects that were read when a set was made, so that readers of the set need not request them.

Metadata of a file may lie between its chunks: then the kept ranges contain chunks, too.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Final

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Facts, Origin

MOST: Final = 1 << 20  # bytes: longer ranges are not kept


class _Object:
    """The ranges of one version of an object, in order and without overlaps: their starts and their bytes.

    ``facts`` are None if there was no object.
    """

    def __init__(self, facts: Facts | None) -> None:
        self.facts = facts
        self.starts: list[int] = []
        self.parts: list[bytes] = []
        self.size = 0  # bytes in all ranges

    def add(self, start: int, data: bytes) -> None:
        """Add those bytes of ``data`` that are in no range."""
        first, stop = start, start + len(data)
        while start < stop:
            at = bisect_right(self.starts, start)
            start = max(start, self.starts[at - 1] + len(self.parts[at - 1])) if at else start
            end = min(stop, self.starts[at]) if at < len(self.starts) else stop
            if start < end:
                self.starts.insert(at, start)
                self.parts.insert(at, data[start - first : end - first])
                self.size += end - start
            start = max(start, end)

    def find(self, start: int, stop: int) -> bytes | None:
        """Return the bytes from ``start`` to a greater ``stop``; None if not all are kept."""
        found: list[bytes] = []
        for at in range(max(bisect_right(self.starts, start) - 1, 0), len(self.starts)):
            begin, data = self.starts[at], self.parts[at]
            if not begin <= start < begin + len(data):
                return None
            found.append(data[start - begin : stop - begin])
            start = begin + len(data)
            if start >= stop:
                return b"".join(found)
        return None


class ReadRanges:
    """Ranges of objects, at most ``capacity`` bytes in all; the least recently used objects are dropped first.

    Documents that did not exist are kept, too.

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
            kept = known if known is not None and known.facts == facts else _Object(facts)
            kept.add(start, data)
            self._objects.put((url, origin), kept, kept.size)

    def put_absence(self, url: str, origin: Origin) -> None:
        """Note that no object exists at ``url``; forget its ranges."""
        with self._lock:
            self._objects.put((url, origin), _Object(None), len(url))

    def is_absent(self, url: str, origin: Origin) -> bool:
        """Return whether `put_absence` noted that no object exists at ``url``."""
        with self._lock:
            known = self._objects.get((url, origin))
            return known is not None and known.facts is None

    def find(self, url: str, origin: Origin, start: int, stop: int) -> tuple[Facts, bytes] | None:
        """Return the version of an object, and its bytes from ``start`` to ``stop``; None if not all are kept.

        If the object ends before ``stop``, its bytes up to its end are returned.
        """
        with self._lock:
            known = self._objects.get((url, origin))
            if known is None or known.facts is None:
                return None
            size = known.facts.size
            stop = stop if size is None else min(stop, size)
            found = known.find(start, stop) if 0 <= start < stop else None
            return None if found is None else (known.facts, found)

    def clear(self) -> None:
        """Forget everything."""
        self._objects.clear()
