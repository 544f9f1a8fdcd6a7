"""Requests to targets: merged, shared, bounded in number and in bytes. What is fetched ahead is held until it is read.

A `Fetcher` belongs to one event loop. It is told which ranges readers wait for and which
ones will be wanted; a range that lies in a block under way, or held, is served from that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO

import msgspec

from refshard_fs.errors import redacted
from refshard_fs.model import Span
from refshard_fs.reading import paces, plan
from refshard_fs.reading.blocks import Block, Host, Job, Reader, Shelf
from refshard_fs.reading.cache import Cache
from refshard_fs.reading.repeats import Repeats
from refshard_fs.stats import Stats
from refshard_fs.targets import Answer, Pool, Unfit, check

__all__ = ["Budget", "Fetcher", "Reader"]

SPARE = 16 * plan.MIB  # bytes fetched in vain, or between dense ranges, that are held in case they are wanted yet

logger = logging.getLogger("refshard_fs")

FIRST = 8 * plan.MIB  # bytes of an object that are fetched before it is known what of it will be read
LARGE = 1 << 30  # bytes for which room is made before they are asked for: there may be none
UNKNOWN = (-1, -1)  # the range that is held meanwhile

FEW = 10  # requests that are begun to a host of which it is not known that answers take time: what zarr asks at once
PATIENCE = 0.003  # seconds
SAMPLE = 64  # answers, of which the pace of one is remembered


class Budget(msgspec.Struct, frozen=True):
    """``requests`` under way at once to one host, and ``memory`` bytes under way or held ahead."""

    requests: int = 64
    memory: int = 256 * plan.MIB

    @property
    def ahead(self) -> int:
        """Bytes that may be under way or held when more is fetched ahead: some stay free for readers."""
        return self.memory * 3 // 4


class Fetcher:
    """Reads ranges of targets on one event loop; to be used from that loop only."""

    def __init__(
        self, pool: Pool, limits: plan.Limits, budget: Budget, stats: Stats, kept: Cache | Repeats | None = None
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.budget = budget
        self._stats = stats
        self._kept = kept  # what was read, by span
        self._hosts: dict[str, Host] = {}
        self._shelf = Shelf()
        self._waiting: dict[asyncio.Future[bytes], Block] = {}
        self._idle: dict[Block, None] = {}  # held and complete, oldest first
        self._spare: dict[Block, None] = {}  # those of them that nobody is known to want, oldest first
        self._used = 0  # bytes of the budget
        self._paces = paces.SHARED
        self._active = 0
        self._times: deque[float] = deque(maxlen=8)
        self._changed: asyncio.Future[None] | None = None
        self.on_cancel: Callable[[], None] = lambda: None  # called when a reader gives up

    @property
    def used(self) -> int:
        """Bytes under way or held."""
        return self._used

    @property
    def latency(self) -> float | None:
        """Seconds that the fastest of the last requests took; None before the first."""
        return min(self._times, default=None)

    @property
    def active(self) -> int:
        """Requests under way."""
        return self._active

    @property
    def queued(self) -> bool:
        """Whether something to be fetched ahead waits for its turn."""
        return any(job.state == 0 for host in self._hosts.values() for job in host.later)

    async def change(self) -> None:
        """Wait until a request has ended, or something is held no longer."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def changed(self) -> None:
        """Wake those who wait for `change`."""
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    # ------------------------------------------------------------------ asking

    def read(self, readers: Iterable[Reader], ahead: Iterable[Span] = ()) -> None:
        """Have each reader's future set, and fetch the (exact) spans ``ahead`` to hold them until they are read."""
        fresh: dict[str, list[tuple[Span, Reader | None]]] = {}
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
            block = self._shelf.covering(span)
            if block is None:
                fresh.setdefault(span.url, []).append((span, reader))
            else:
                self._join(block, reader)
        self._stats.count("keys", keys)
        for span in ahead:
            block = self._shelf.covering(span)
            if block is None:
                fresh.setdefault(span.url, []).append((span, None))
            else:
                block.expect(span)
        for url, members in fresh.items():
            dense = all(span.dense for span, _ in members)
            limits = self.limits.dense if dense else self.limits
            if any(span.apart for span, _ in members):
                limits = limits.apart
            for start, stop, places in plan.coalesce([(s.start, s.stop or 0) for s, _ in members], limits):
                some = [members[i] for i in places]
                self._open(Span(url, start, stop, pin=some[0][0].pin, dense=dense), some, shared=True)
        self._pump()

    def take(self, span: Span) -> bytes | None:
        """Return the bytes of ``span``, which is read for a key, if they have arrived before they were asked for."""
        block = self._shelf.covering(span)
        if block is None or block.data is None:
            return None
        is_ahead = (span.start, span.stop) in block.held
        try:
            data = self._part(block, span)
        except MemoryError:  # it is said where there is a key to name
            return None
        self._stats.count("keys", 1)
        self._stats.count("ahead_hits", is_ahead)
        self._settle(block)
        return data

    def begin(self, spans: Iterable[Span]) -> list[Block]:
        """Fetch ``spans``, or their first bytes, before it is known what of them will be read; `release` says it is."""
        begun = []
        for span in spans:
            stop = span.start + FIRST if span.size is None else min(span.stop or 0, span.start + FIRST)
            start = Span(span.url, span.start, stop, exact=False, pin=span.pin, dense=True)
            if span.start >= 0 and self._shelf.covering(Span(span.url, start.start, start.start + 1)) is None:
                begun.append(self._open(start, (), shared=True))
                begun[-1].held[UNKNOWN] = 0
        self._pump()
        return begun

    def release(self, begun: Iterable[Block]) -> None:
        """Hold what was begun no longer than for those who are known to read it."""
        for block in begun:
            if block.held.pop(UNKNOWN, None) is not None and not block.held and not block.readers:
                self._forget(block)
        self._pump()

    def covers(self, span: Span) -> bool:
        """Whether ``span`` is held or under way."""
        return self._shelf.covering(span) is not None

    def drop(self, spans: Iterable[Span], *, stop: bool = False) -> None:
        """Hold ``spans`` no longer than others need the room, and do not begin to fetch them; ``stop``: not at all, and
        stop requests under way for nobody.
        """
        for span in spans:
            block = self._shelf.covering(span)
            if block is None:
                continue
            piece = span.start, span.stop or 0
            unread = min(block.held.get(piece, 0), span.size or 0)
            self._stats.add(ahead_wasted=unread)
            if block.held.get(piece, 0) > unread:
                block.held[piece] -= unread  # it was announced more than once
                continue
            block.held.pop(piece, None)
            begun = block.data is not None or any(job.state == 1 for job in block.jobs)
            block.spare = block.spare or (begun and not stop)  # threads read in strange orders, and may yet come to it
            if block.held or block.readers:
                continue
            if stop or not begun:
                self._forget(block)
            elif block.data is not None:
                self._settle(block)
        self._pump()

    def drop_all(self) -> None:
        """Hold nothing, and stop all requests that no reader waits for."""
        for block in list(self._shelf):
            self._stats.add(ahead_wasted=sum(block.held.values()))
            block.held.clear()
            if not block.readers:
                self._forget(block)
        self._pump()

    async def close(self) -> None:
        """Stop everything that is under way."""
        await asyncio.gather(*self._abandon(), return_exceptions=True)

    def _abandon(self) -> list[asyncio.Task[None]]:
        blocks = {*self._shelf, *self._waiting.values()}
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
        host = self._host(span.url)
        whole = span.stop is None or not span.exact  # where it ends is not known, so neither are its parts
        limits = self.limits.dense if span.dense else self.limits
        cuts = [(span.start, span.stop)] if whole else plan.parts(span.start, span.stop or 0, limits)
        block.spare = span.dense and sum(member.size or 0 for member, _ in members) < (span.size or 0)
        block.jobs = [Job(block, host, start, stop) for start, stop in cuts]
        block.missing = len(block.jobs)
        if shared:
            self._shelf.put(block)
        (host.urgent if block.readers else host.later).extend(block.jobs)
        if not whole and (span.size or 0) > LARGE:
            try:
                block.buffer = BytesIO(bytes(span.size or 0))  # which takes addresses, and memory as the bytes arrive
            except (MemoryError, OverflowError):
                self._failed(block, MemoryError(f"there is no memory for {span.size} bytes"))
        return block

    def _forget(self, block: Block) -> None:
        """Take ``block`` out of everything; what is under way for it is stopped."""
        for job in block.jobs:
            if job.task is not None and job.state == 1:
                job.task.cancel()
            job.state = 2
        if block.shared:
            block.shared = False
            self._shelf.take(block)
        self._idle.pop(block, None)
        self._spare.pop(block, None)
        self._used -= block.reserved
        block.reserved = 0
        self.pool.buffers.give(block.data)
        block.data = block.buffer = None  # a block and its jobs know each other, so its bytes would live on

    def _wait(self, block: Block, reader: Reader) -> None:
        block.readers.append(reader)
        self._waiting[reader.future] = block
        reader.future.add_done_callback(self._done)

    def _done(self, future: asyncio.Future[bytes]) -> None:
        block = self._waiting.pop(future, None)
        if block is None or not future.cancelled():
            return
        if block.left(future):
            self._forget(block)
        self.on_cancel()
        self._pump()

    def _join(self, block: Block, reader: Reader) -> None:
        if (reader.span.start, reader.span.stop) in block.held:
            self._stats.count("ahead_hits", 1)
        if block.data is not None:
            self._serve(block, reader)
            self._settle(block)
            return
        if not block.readers:  # what was for later is urgent now
            for job in block.jobs:
                if job.state == 0:
                    job.host.urgent.append(job)
        self._wait(block, reader)

    def _serve(self, block: Block, reader: Reader) -> None:
        """Give ``reader`` its bytes of an arrived block."""
        self._waiting.pop(reader.future, None)
        try:
            data = self._part(block, reader.span)
        except MemoryError as error:
            reader.fail(error)
            return
        if not reader.future.done():
            reader.future.set_result(data)

    def _part(self, block: Block, span: Span) -> bytes:
        """Return the bytes of ``span`` of an arrived block, and note that they were read."""
        assert block.data is not None
        first = block.span.start
        if span.size is None or span.size == len(block.data):
            data = bytes(block.data)  # no copy of what is bytes
        else:
            data = bytes(memoryview(block.data)[span.start - first : span.start - first + span.size])
        self._stats.count("bytes_wanted", len(data))
        if self._kept is not None:
            self._kept.put(span, data, len(data))
        if block.held and span.stop is not None:
            block.claim(span.start, span.stop)
        return data

    def _settle(self, block: Block) -> None:
        """Keep an arrived block while something of it is unread."""
        if block.held:
            self._idle.setdefault(block)
            return
        if block.spare and block.shared:
            self._spare.setdefault(block)
            self._idle.setdefault(block)
            while sum(len(b.data or b"") for b in self._spare) > SPARE:
                self._forget(next(iter(self._spare)))
        else:
            self._forget(block)
        self._pump()

    # ------------------------------------------------------------------ requests

    def _host(self, url: str) -> Host:
        name = url[: url.find("/", url.find("://") + 3)] if "://" in url else ""
        host = self._hosts.get(name)
        if host is None:
            is_slow = (self._paces.of(name) or 0.0) > 2 * PATIENCE
            host = self._hosts[name] = Host(name, self.budget.requests if is_slow else min(FEW, self.budget.requests))
        return host

    def _pump(self) -> None:
        """Begin as many requests as host and budget allow."""
        self.changed()
        for host in self._hosts.values():
            while host.active < host.limit:
                job = self._next(host)
                if job is None:
                    break
                self._begin(job)
            else:
                if host.limit < self.budget.requests and host.patience is None:
                    due = asyncio.get_running_loop().time() + PATIENCE
                    host.patience = asyncio.get_running_loop().call_at(due, self._widen, host, host.answered, due)

    def _widen(self, host: Host, answered: int, due: float) -> None:
        host.patience = None
        busy = asyncio.get_running_loop().time() > due + PATIENCE / 3  # then answers may be waiting for us
        if host.answered == answered and host.active and not busy:
            host.limit = self.budget.requests
        self._pump()

    def _next(self, host: Host) -> Job | None:
        for queue, most in ((host.urgent, self.budget.memory), (host.later, self.budget.ahead)):
            while queue and queue[0].state:
                queue.popleft()
            if not queue:
                continue
            size = queue[0].size
            while queue is host.urgent and self._used + size > most and self._idle:
                self._evict()
            if self._used + size > most and (self._active or self._idle):
                return None
            return queue.popleft()
        return None

    def _evict(self) -> None:
        block = next(iter(self._idle))
        self._stats.add(ahead_wasted=sum(block.held.values()))
        block.held.clear()
        self._forget(block)

    def _begin(self, job: Job) -> None:
        job.state = 1
        job.host.active += 1
        job.block.reserved += job.size
        self._used += job.size
        self._active += 1
        job.task = asyncio.get_running_loop().create_task(self._request(job))

    async def _request(self, job: Job) -> None:
        span = job.block.span
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            place = self.pool.place(span.url)
            if place is None:
                raise RuntimeError(f"{span.url} cannot be opened on this event loop")
            target, path = place
            readers = job.block.readers
            most = readers[0].most if job.stop is None and readers else None  # such a block has one reader
            answer = await target.read(path, job.start, job.stop, span.pin, most)
            self._stats.add(requests=1, bytes_fetched=len(answer.data))
            check(answer, job.start, job.stop, exact=span.exact)
        except asyncio.CancelledError:
            if job.state == 1:  # not by us: the loop is ending
                self._abandon()
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, no reader may wait for ever
            if logger.isEnabledFor(logging.DEBUG):
                failure = redacted(repr(error))
                logger.debug("%s [%s:%s] failed: %s", redacted(span.url), job.start, job.stop, failure)
            if job.state == 1:
                self._failed(job.block, error)
        else:
            job.host.answered += 1
            took = loop.time() - began
            self._times.append(took)
            if job.host.answered % SAMPLE == SAMPLE // 8:  # the first answers wait for connections
                self._paces.note(job.host.name, min(self._times))
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug(
                    "%s [%s:%s] %d bytes, %.1f ms",
                    redacted(span.url),
                    job.start,
                    job.stop,
                    len(answer.data),
                    took * 1e3,
                )
            if job.state == 1:
                self._arrived(job, answer)
        finally:
            job.state = 2
            job.task = None
            job.host.active -= 1
            self._active -= 1
            self._pump()

    def _arrived(self, job: Job, answer: Answer) -> None:
        job.state = 2
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
                self._used -= job.size
            if block.missing:
                return
            block.data = block.buffer.getvalue()
            block.buffer = None
        readers, block.readers = block.readers, []
        for reader in readers:
            self._serve(block, reader)
        self._settle(block)

    def _measure(self, block: Block, size: int) -> None:
        """Let ``block``, which had been begun with an unknown end, be as long as it is, and serve no one beyond."""
        span = block.span
        stop = span.start + size
        block.span = Span(span.url, span.start, stop, pin=span.pin, dense=True)
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

    def _failed(self, block: Block, error: Exception) -> None:
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
