"""Readers, the blocks of bytes that serve them, and the requests that fetch the blocks. No I/O here."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from io import BytesIO
from typing import NamedTuple

from refshard_fs.core.model import Span
from refshard_fs.reading.failures import fail

__all__ = ["OVER", "QUEUED", "UNDER_WAY", "Block", "BlockIndex", "Host", "Job", "Reader"]

NEAREST = 4  # of the blocks that begin before a range, those that are looked at for one that covers it
QUEUED, UNDER_WAY, OVER = range(3)  # states of a job


class Reader(NamedTuple):
    """Somebody who waits for ``span``; errors name ``key``, or are set as they are where it is None.

    Of an object whose length is not known they take ``most`` bytes, if that is given: more is an error.
    """

    key: str | None
    span: Span
    future: asyncio.Future[bytes]
    most: int | None = None

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error if self.key is None else fail(self.key, self.span, error))


class Block:
    """One run of bytes of one target: who waits for it, and what of it was fetched ahead (range → bytes unread)."""

    __slots__ = ("begun", "buffer", "data", "held", "jobs", "missing", "readers", "reserved", "shared", "span")

    def __init__(self, span: Span, shared: bool) -> None:
        self.span = span
        self.shared = shared  # other readers may join it
        self.readers: list[Reader] = []
        self.held: dict[tuple[int, int], int] = {}
        self.begun = 0  # for so many who do not know yet what of it they will read
        self.jobs: list[Job] = []
        self.missing = 0  # jobs that have not arrived
        self.reserved = 0  # bytes of the budget
        self.buffer: BytesIO | None = None
        self.data: bytes | memoryview | None = None

    def expect(self, span: Span) -> None:
        """Hold ``span`` until it is read; each call counts as one read to come."""
        piece = span.start, span.stop or 0
        self.held[piece] = self.held.get(piece, 0) + piece[1] - piece[0]

    def claim(self, start: int, stop: int) -> None:
        """Note that bytes ``[start, stop)`` were read."""
        held = self.held
        if (start, stop) in held:
            reads = [((start, stop), stop - start)]
        else:
            reads = [(piece, min(stop, piece[1]) - max(start, piece[0])) for piece in held]
        for piece, read in reads:
            if read > 0:
                held[piece] -= read
                if held[piece] <= 0:
                    del held[piece]

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for it, or will read of it."""
        return bool(self.readers or self.held or self.begun)


class Job:
    """One request for a block or a part of it."""

    __slots__ = ("block", "host", "size", "start", "state", "stop", "task")

    def __init__(self, block: Block, host: Host, start: int, stop: int | None) -> None:
        self.block, self.host, self.start, self.stop = block, host, start, stop
        self.size = 0 if stop is None else stop - start
        self.state = QUEUED
        self.task: asyncio.Task[None] | None = None  # while it counts as one of its host's


class Host:
    """The requests to one host: those that readers wait for go first.

    Few are begun at once, since connections cost more than they bring where answers come
    at once: `limit` grows where they do not.
    """

    __slots__ = ("active", "answered", "later", "limit", "patience", "sizes", "urgent", "waits")

    def __init__(self, limit: int) -> None:
        self.active = 0
        self.answered = 0
        self.limit = limit
        self.patience: asyncio.TimerHandle | None = None
        self.waits: deque[float] = deque(maxlen=8)  # seconds until the last answers began, or came
        self.sizes: deque[int] = deque(maxlen=8)  # bytes of the last objects that were read whole
        self.urgent: deque[Job] = deque()
        self.later: deque[Job] = deque()


class BlockIndex:
    """The blocks that readers may join, found by what they cover."""

    def __init__(self) -> None:
        self._starts: dict[str, list[int]] = {}  # ascending, of the blocks of each target
        self._blocks: dict[str, list[Block]] = {}

    def __iter__(self) -> Iterator[Block]:
        for blocks in self._blocks.values():
            yield from blocks

    def put(self, block: Block) -> None:
        url, start = block.span.url, block.span.start
        starts = self._starts.setdefault(url, [])
        at = bisect_right(starts, start)
        starts.insert(at, start)
        self._blocks.setdefault(url, []).insert(at, block)

    def take(self, block: Block) -> None:
        url = block.span.url
        blocks = self._blocks[url]
        at = blocks.index(block, max(bisect_left(self._starts[url], block.span.start), 0))
        del blocks[at], self._starts[url][at]
        if not blocks:
            del self._blocks[url], self._starts[url]

    def covering(self, span: Span) -> Block | None:
        """Return a block that holds all of ``span``; of those that overlap each other, only the nearest are tried."""
        starts = self._starts.get(span.url)
        if not starts or span.stop is None:
            return None
        i = bisect_right(starts, span.start)
        for block in reversed(self._blocks[span.url][max(i - NEAREST, 0) : i]):
            if span.stop <= (block.span.stop or 0) and block.span.pin == span.pin:
                return block
        return None
