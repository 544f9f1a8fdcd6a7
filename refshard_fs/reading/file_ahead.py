"""Predict which bytes of a file will be read next from the places of its last requests. No I/O here.

The policy is for readers that go through a file piece by piece, such as `Dataset.load`, which reads an index and some
chunks of each variable: several requests follow each other at small distances. `ReadAhead` sees only one array.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from refshard_fs.reading.plan import KIB

# Requests are extended once the requests near earlier ones outnumber the others by SURE. `ReadAhead` predicts reads of
# an array sooner, and better.
SURE: Final = 6
NEAR: Final = 256 * KIB  # requests are near each other if at most this many bytes lie between them
RECENT: Final = 8  # last ranges that are compared: indexes and chunks may lie in different parts of the file
# The limit for bytes that were fetched ahead and not read: 1/SHARE of the bytes that were read, but at least FREE
# (20 ms at 100 Mbit/s, as long as another request), and at most MOST.
FREE: Final = 256 * KIB
SHARE: Final = 4
MOST: Final = 4096 * KIB


class FileAhead:
    """Decide for one version of one file how far requests are extended."""

    def __init__(self) -> None:
        self.read = 0  # bytes that readers asked for
        self.requests = 0  # requests for chunks that had not been fetched ahead
        self.wasted = 0  # bytes that were fetched ahead and dropped
        self._near = 0  # rises with a read or request that begins shortly after an earlier one, and falls with others
        self.last: deque[tuple[int, int]] = deque(maxlen=RECENT)  # the last ranges of reads and requests

    def extend(self, start: int, stop: int, size: int, unread: int, most: int = MOST) -> int:
        """Note a request for ``[start, stop)`` of a file of ``size`` bytes; return the end to which to extend it.

        ``unread`` bytes have been fetched ahead, and may still be read. With the extension, they are at most ``most``.
        """
        self.note(start, stop)
        if self._near >= SURE:
            room = min(min(max(FREE, self.read // SHARE), MOST) - self.wasted, most) - unread
            if room >= FREE // 4:  # else too few bytes to save a request
                stop = max(min(stop + room, size), stop)
        self.last[-1] = start, stop
        return stop

    def note(self, start: int, stop: int) -> None:
        """Note a read of ``[start, stop)``."""
        is_near = any(0 <= start - before <= NEAR for _, before in self.last)
        self._near = self._near + 1 if is_near else max(self._near - 1, 0)
        self.last.append((start, stop))
