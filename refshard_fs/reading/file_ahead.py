"""Predict which bytes of a file will be read next from the places of its last requests. No I/O here.

The policy is for readers that go through a file piece by piece, such as `Dataset.load`, which reads an index and some
chunks of each variable: several requests follow each other at small distances. `ReadAhead` sees only one array.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from refshard_fs.reading.plan import KIB

# Requests near others, one after the other, from which on more bytes are fetched: `ReadAhead`, which knows more, is
# sure of an array before that.
SURE: Final = 6
NEAR: Final = 256 * KIB  # bytes between a request and an earlier one that count as near
RECENT: Final = 8  # earlier requests that are compared: indexes and chunks may lie in different parts of the file
# Bytes that were fetched ahead and not read have at most FREE bytes (20 ms at 100 Mbit/s: as long as one request more),
# or 1/SHARE of the bytes that were read, or MOST.
FREE: Final = 256 * KIB
SHARE: Final = 4
MOST: Final = 4096 * KIB


class FileAhead:
    """The policy for one version of one file."""

    def __init__(self) -> None:
        self.read = 0  # bytes that readers asked for
        self.wasted = 0  # bytes that were fetched ahead and dropped
        self._near = 0
        self._stops: deque[int] = deque(maxlen=RECENT)

    def extend(self, start: int, stop: int, size: int, unread: int) -> int:
        """Note a request for ``[start, stop)`` of a file of ``size`` bytes; return where it should end instead.

        ``unread`` bytes have been fetched ahead, and may still be read.
        """
        is_near = any(0 <= start - before <= NEAR for before in self._stops)
        self._near = self._near + 1 if is_near else max(self._near - 1, 0)
        if self._near >= SURE:
            room = min(max(FREE, self.read // SHARE), MOST) - self.wasted - unread
            if room >= FREE // 4:  # else too few bytes to save a request
                stop = max(min(stop + room, size), stop)
        self._stops.append(stop)
        return stop
