"""Requests to targets: merged, shared, bounded in number and in bytes. What is fetched ahead is held until it is read.

A `Fetcher` belongs to one event loop. It is told which ranges readers wait for and which
ones will be wanted; a range that lies in a block under way, or held, is served from that.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from typing import NamedTuple

import msgspec

from refshard_fs.core.model import Pin, Span
from refshard_fs.core.stats import Stats
from refshard_fs.reading import plan
from refshard_fs.reading.cache import Cache
from refshard_fs.reading.dispatch import QUEUED, Dispatch, Job, SharedBudget
from refshard_fs.reading.failures import fail
from refshard_fs.targets import Answer, Pool, Unfit

FIRST = 8 * plan.MIB  # bytes of an object that are fetched before it is known what of it will be read
LARGE = 1 << 30  # bytes for which room is made before they are asked for: there may be none
# Bytes that were fetched ahead and are not expected any more, kept as long as nothing needs the room: dask reads chunks
# in the order of their names (0, 1, 10, 100, 101, ...), and comes back to what a run went past.
SPARE = 16 * plan.MIB
NEAREST = 4  # of the blocks that begin before a range, those that are looked at for one that covers it


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

    __slots__ = ("begun", "buffer", "data", "held", "jobs", "missing", "readers", "reserved", "shared", "span", "spare")

    def __init__(self, span: Span, shared: bool) -> None:
        self.span = span
        self.shared = shared  # other readers may join it
        self.readers: list[Reader] = []
        self.held: dict[tuple[int, int], int] = {}
        self.spare: set[tuple[int, int]] = set()  # what was fetched ahead, and is not expected any more
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
        self.spare.discard((start, stop))
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


class Fetcher:
    """Reads ranges of targets on one event loop; to be used from that loop only."""

    def __init__(
        self, pool: Pool, limits: plan.Limits, budget: SharedBudget, stats: Stats, kept: Cache | None = None
    ) -> None:
        self.limits = limits
        self.requests = Dispatch(pool, budget, stats, self)
        self._stats = stats
        self._kept = kept  # what was read, by span
        self._known = BlockIndex()
        self._waiting: dict[asyncio.Future[bytes], Block] = {}
        self._idle: dict[Block, None] = {}  # held and complete, oldest first
        self._spare: dict[Block, int] = {}  # those of them that are spare, oldest first, and their bytes
        self.progress = 0  # so many requests were answered, and so much was read of what was held
        self.on_cancel: Callable[[], None] = lambda: None  # called when a reader gives up

    # ------------------------------------------------------------------ asking

    def read(self, readers: Iterable[Reader], ahead: Iterable[Span] = ()) -> None:
        """Have each reader's future set, and fetch the (exact) spans ``ahead`` to hold them until they are read."""
        fresh: dict[tuple[str, Pin | None, str | None], list[tuple[Span, Reader | None]]] = {}
        keys = 0
        for reader in readers:
            span = reader.span
            if reader.future.done():
                continue
            keys += reader.key is not None
            if self._kept is not None and (data := self._kept.get(span)) is not None:
                self._stats.add(cache_hits=1)
                reader.future.set_result(data)
                continue
            if span.size is None:
                self._open(span, [(span, reader)], shared=False)
                continue
            block = self._known.covering(span)
            if block is None:
                fresh.setdefault((span.url, span.pin, span.origin), []).append((span, reader))
            else:
                self._join(block, reader)
        self._stats.count("keys", keys)
        for span in ahead:
            block = self._known.covering(span)
            if block is None:
                fresh.setdefault((span.url, span.pin, span.origin), []).append((span, None))
            else:
                block.expect(span)
        for (url, pin, origin), members in fresh.items():
            dense = all(span.dense for span, _ in members)
            limits = self.limits.dense if dense else self.limits
            if any(span.apart for span, _ in members):
                limits = limits.apart
            for start, stop, places in plan.coalesce([(s.start, s.stop or 0) for s, _ in members], limits):
                some = [members[i] for i in places]
                self._open(Span(url, start, stop, pin=pin, dense=dense, origin=origin), some, shared=True)
        self.requests.pump()

    def begin(self, spans: Iterable[Span]) -> list[Block]:
        """Fetch the first bytes of ``spans`` before it is known what will be read, and hold them until `release`."""
        begun = []
        for span in spans:
            stop = span.start + FIRST if span.size is None else min(span.stop or 0, span.start + FIRST)
            start = Span(span.url, span.start, stop, exact=False, pin=span.pin, dense=True, origin=span.origin)
            if span.start < 0:
                continue
            block = self._known.covering(msgspec.structs.replace(start, stop=start.start + 1))
            if block is None:
                block = self._open(start, (), shared=True)
            elif not block.begun:
                continue
            block.begun += 1
            begun.append(block)
        self.requests.pump()
        return begun

    def release(self, begun: list[Block]) -> None:
        """Hold the blocks that `begin` returned only for their readers from now on, and empty the list."""
        while begun:
            block = begun.pop()
            block.begun -= 1
            if not block.is_wanted:
                self._forget(block)
        self.requests.pump()

    def awaits(self, span: Span) -> bool:
        """Whether ``span`` is fetched, and has not arrived."""
        block = self._known.covering(span)
        return block is not None and block.data is None

    def drop(self, spans: Iterable[Span], *, stop: bool = False) -> None:
        """Hold ``spans`` no longer, and do not begin to fetch them; with ``stop``, break off what is under way.

        Else that runs to its end, for nobody: a request that is broken off costs its connection.
        """
        for span in spans:
            block = self._known.covering(span)
            if block is None:
                continue
            piece = span.start, span.stop or 0
            unread = min(block.held.get(piece, 0), span.size or 0)
            self._stats.add(ahead_wasted=unread)
            if block.held.get(piece, 0) > unread:
                block.held[piece] -= unread  # it was announced more than once
                continue
            block.held.pop(piece, None)
            is_begun = block.data is not None or any(job.state != QUEUED for job in block.jobs)
            if is_begun and not stop:
                block.spare.add(piece)
            if block.is_wanted:
                continue
            if stop or not is_begun:
                self._forget(block)
            elif block.data is not None:
                self._settle(block)
        self.requests.pump()

    def drop_unread(self) -> None:
        """Let go of everything that nobody waits for, fetched or not."""
        for block in [block for block in self._known if not block.begun]:
            self._stats.add(ahead_wasted=sum(block.held.values()))
            block.held.clear()
            if not block.readers:
                self._forget(block)
        self.requests.pump()

    async def close(self) -> None:
        """Stop everything that is under way."""
        await asyncio.gather(*self._abandon(), return_exceptions=True)

    def _abandon(self) -> list[asyncio.Task[None]]:
        blocks = {*self._known, *self._waiting.values()}
        tasks = [job.task for block in blocks for job in block.jobs if job.task is not None]
        for block in blocks:
            self._forget(block)
            for reader in block.readers:
                reader.future.cancel()
        return tasks

    # ------------------------------------------------------------------ blocks

    def _open(self, span: Span, members: Sequence[tuple[Span, Reader | None]], *, shared: bool) -> Block:
        """Make a block for ``members`` and put its requests into the queue."""
        block = Block(span, shared)
        for member, reader in members:
            if reader is None:
                block.expect(member)
            else:
                self._wait(block, reader)
        host = self.requests.host(span.url)
        whole = span.stop is None or not span.exact  # where it ends is not known, so neither are its parts
        limits = self.limits.dense if span.dense else self.limits
        cuts = [(span.start, span.stop)] if whole else plan.parts(span.start, span.stop or 0, limits)
        block.jobs = [Job(block, host, start, stop) for start, stop in cuts]
        block.missing = len(block.jobs)
        if shared:
            self._known.put(block)
        self.requests.queue(block.jobs, urgent=bool(block.readers))
        if not whole and (span.size or 0) > LARGE:
            try:
                block.buffer = BytesIO(bytes(span.size or 0))  # which takes addresses, and memory as the bytes arrive
            except (MemoryError, OverflowError):
                self.failed(block, MemoryError(f"there is no memory for {span.size} bytes"))
        return block

    def _forget(self, block: Block) -> None:
        """Remove ``block`` from everywhere, and cancel its requests."""
        for job in block.jobs:
            self.requests.stop(job)
        if block.shared:
            block.shared = False
            self._known.take(block)
        self._idle.pop(block, None)
        self._spare.pop(block, None)
        self.requests.free(block.reserved)
        block.reserved = 0
        block.data = block.buffer = None  # a block and its jobs know each other, so its bytes would live on

    def _wait(self, block: Block, reader: Reader) -> None:
        block.readers.append(reader)
        self._waiting[reader.future] = block
        reader.future.add_done_callback(self._done)

    def _done(self, future: asyncio.Future[bytes]) -> None:
        block = self._waiting.pop(future, None)
        if block is None or not future.cancelled():
            return
        block.readers = [reader for reader in block.readers if reader.future is not future]
        if not block.is_wanted:
            self._forget(block)
        self.on_cancel()
        self.requests.pump()

    def _join(self, block: Block, reader: Reader) -> None:
        if (reader.span.start, reader.span.stop) in block.held:
            self._stats.count("ahead_hits", 1)
        if block.data is not None:
            self._serve(block, reader)
            self._settle(block)
            return
        if not block.readers:  # what was for later is urgent now
            self.requests.queue([job for job in block.jobs if job.state == QUEUED], urgent=True)
        self._wait(block, reader)

    def _serve(self, block: Block, reader: Reader) -> None:
        """Give ``reader`` its bytes of an arrived block."""
        self._waiting.pop(reader.future, None)
        try:
            data = self._part(block, reader.span)
        except MemoryError as error:
            reader.fail(error)
            return
        self._stats.count("bytes_wanted", len(data))
        if not reader.future.done():
            reader.future.set_result(data)

    def _part(self, block: Block, span: Span) -> bytes:
        """Return the bytes of ``span`` of an arrived block, and note that they were read."""
        assert block.data is not None
        size = span.size
        if size is None or size == len(block.data):
            data = bytes(block.data)  # no copy of what is bytes
        else:
            first = span.start - block.span.start
            data = bytes(memoryview(block.data)[first : first + size])
        if self._kept is not None:
            self._kept.put(span, data, len(data))
        if (block.held or block.spare) and span.stop is not None:
            self.progress += 1
            block.claim(span.start, span.stop)
        return data

    def _settle(self, block: Block) -> None:
        """Keep an arrived block while something of it is unread. The caller pumps."""
        if block.held or block.begun:
            self._idle.setdefault(block)
            self._spare.pop(block, None)
        elif block.spare and block.shared:
            self._idle.setdefault(block)
            self._spare.setdefault(block, len(block.data or b""))
            # Room for what is fetched ahead has to remain, however little memory there is.
            most = min(SPARE, self.requests.budget.memory // 8)
            while sum(self._spare.values()) > most:
                self._forget(next(iter(self._spare)))
        else:
            self._forget(block)

    # ------------------------------------------------------------------ what becomes of requests

    @property
    def holds(self) -> bool:
        return bool(self._idle)

    def make_room(self) -> bool:
        block = next(iter(self._idle), None)
        if block is None:
            return False
        self._stats.add(ahead_wasted=sum(block.held.values()))
        block.held.clear()
        self._forget(block)
        return True

    def abandoned(self) -> None:
        self._abandon()

    def arrived(self, job: Job, answer: Answer) -> None:
        self.progress += 1
        block = job.block
        block.missing -= 1
        if len(block.jobs) == 1:
            block.data = answer.data
            if block.shared and not block.span.exact:
                self._measure(block, len(answer.data))
        else:
            if block.buffer is None:
                block.buffer = BytesIO(bytes(block.span.size or 0))
            with block.buffer.getbuffer() as view:
                view[job.start - block.span.start : (job.stop or 0) - block.span.start] = answer.data
            if not block.held:  # from here on it is the readers'
                block.reserved -= job.size
                self.requests.free(job.size)
            if block.missing:
                return
            block.data = block.buffer.getvalue()
            block.buffer = None
        readers, block.readers = block.readers, []
        for reader in readers:
            self._serve(block, reader)
        self._settle(block)

    def _measure(self, block: Block, size: int) -> None:
        """Set the end of ``block``, which was not known; who reads beyond it gets a request of his own."""
        span = block.span
        stop = span.start + size
        block.span = Span(span.url, span.start, stop, pin=span.pin, dense=True, origin=span.origin)
        beyond = [reader for reader in block.readers if (reader.span.stop or 0) > stop]
        if beyond:
            block.readers = [reader for reader in block.readers if reader not in beyond]
            self._reopen(beyond)
        for piece in [piece for piece in block.held if piece[1] > stop]:
            del block.held[piece]

    def _reopen(self, readers: Iterable[Reader]) -> None:
        alone: dict[Span, list[tuple[Span, Reader | None]]] = {}
        for reader in readers:
            if not reader.future.done():
                alone.setdefault(reader.span, []).append((reader.span, reader))
        for span, members in alone.items():
            self._open(span, members, shared=True)

    def failed(self, block: Block, error: Exception) -> None:
        held, readers, tentative = block.held, block.readers, block.shared
        block.readers, block.held = [], {}
        for reader in readers:
            self._waiting.pop(reader.future, None)
        self._forget(block)
        ranges = {(r.span.start, r.span.stop) for r in readers} | set(held)
        # It may be the fault of one range only, or of what nobody has asked for.
        if (isinstance(error, Unfit) and len(ranges) > 1) or (tentative and not block.span.exact):
            self._reopen(readers)
            return
        for reader in readers:
            reader.fail(error)


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
            if span.stop <= (block.span.stop or 0) and (block.span.pin, block.span.origin) == (span.pin, span.origin):
                return block
        return None
