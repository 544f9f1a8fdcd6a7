"""The queue of requests: those that readers wait for go first. Their number is bounded by host, their bytes in all."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from io import BytesIO
from typing import Protocol

import msgspec

from refshard_fs.core.model import Facts, Span
from refshard_fs.core.stats import Stats
from refshard_fs.errors import sanitize
from refshard_fs.reading.failures import fail
from refshard_fs.reading.memory import Budget, Share, SharedBudget
from refshard_fs.targets import Answer, Pool, check

logger = logging.getLogger("refshard_fs")

UNSIZED_AT_ONCE = 8  # whole objects of unknown size under way at once, until some of the host have arrived
QUEUED, UNDER_WAY, OVER = range(3)  # states of a request


class Reader(msgspec.Struct, eq=False):
    """A future of the bytes of ``span``. Errors name ``key``; if that is None, they are set as they are.

    If the object's length is not known, more than ``most`` bytes of it are an error.
    """

    key: str | None
    span: Span
    future: asyncio.Future[bytes]
    most: int | None = None
    keep: bool = True  # on disk
    is_paid: bool = False  # whoever asks has reserved the memory for its bytes
    blocks: list[Block] = []
    facts: Facts | None = None  # of the version that all bytes so far are of, if that is told
    missing: int = 0  # bytes, of a span of known size
    buffer: BytesIO | None = None  # of what comes in several blocks

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error if self.key is None else fail(self.key, self.span, error))


class Block:
    """A request for a range of one target, and its bytes once they have arrived.

    It is kept while ``readers`` wait for it, while reads of it are ``expected`` (range → bytes unread), and while
    somebody looks up what to read of it (``begun``). A ``spare`` one was expected before, and is kept if there is room.
    """

    __slots__ = (
        "begun", "data", "expected", "facts", "host", "readers", "reserved", "shared", "span", "spare", "state", "task",
    )  # fmt: skip

    def __init__(self, span: Span, host: Host, shared: bool) -> None:
        self.span = span
        self.host = host
        self.shared = shared  # other readers may join it
        self.state = QUEUED
        self.reserved = 0  # bytes of memory
        self.readers: list[tuple[Reader, int, int]] = []  # and the range that each takes
        self.expected: dict[tuple[int, int], int] = {}
        self.begun = 0
        self.spare = False
        self.task: asyncio.Task[None] | None = None  # while it counts as one of its host's
        self.data: bytes | memoryview | None = None
        self.facts: Facts | None = None  # what tells the version that its bytes are of

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for it, or will read of it."""
        return bool(self.readers or self.expected or self.begun)

    def expect(self, start: int, stop: int) -> None:
        """Keep ``[start, stop)`` until it is read; each call counts as one read to come."""
        self.expected[start, stop] = self.expected.get((start, stop), 0) + stop - start

    def expect_less(self, start: int, stop: int) -> int:
        """Expect one read less of ``[start, stop)``; return how many bytes of it are unread."""
        left = self.expected.pop((start, stop), 0)
        if left > stop - start:
            self.expected[start, stop] = left - (stop - start)
        return min(left, stop - start)

    def was_read(self, start: int, stop: int) -> None:
        """Note that bytes ``[start, stop)`` were read."""
        pieces = [(start, stop)] if (start, stop) in self.expected else list(self.expected)
        for first, last in pieces:
            left = self.expected[first, last] - max(min(stop, last) - max(start, first), 0)
            if left > 0:
                self.expected[first, last] = left
            else:
                del self.expected[first, last]


class Host:
    """The requests to one host; those that readers wait for go first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.active = 0  # requests under way on this loop
        self.waits: deque[float] = deque(maxlen=8)  # seconds until the last answers began, or came
        self.sizes: deque[int] = deque(maxlen=8)  # bytes of the last objects that were read whole
        self.urgent: deque[Block] = deque()
        self.later: deque[Block] = deque()


class Receiver(Protocol):
    """What takes answers, and makes room for them."""

    def make_room(self) -> bool: ...
    def arrived(self, block: Block, answer: Answer) -> None: ...
    def failed(self, block: Block, error: Exception) -> None: ...
    def abandon(self) -> None: ...


class Dispatch(Share):
    """Begins requests on the running event loop; ``used`` counts the bytes under way, and those kept for later."""

    def __init__(self, pool: Pool, shared: SharedBudget, stats: Stats, receiver: Receiver) -> None:
        super().__init__(shared)
        self.pool = pool
        self.shared = shared
        self.active = 0  # requests under way
        self._stats = stats
        self._receiver = receiver
        self._hosts: dict[str, Host] = {}
        self._changed: asyncio.Future[None] | None = None

    @property
    def budget(self) -> Budget:
        """What all event loops may have under way together."""
        return self.shared.budget

    def latency(self, url: str) -> float | None:
        """Return the seconds of the fastest of the last answers of the host of ``url``; None before the first."""
        return min(self.host(url).waits, default=None)

    @property
    def queued(self) -> bool:
        """Whether something to be fetched ahead waits for its turn."""
        return any(block.state == QUEUED for host in self._hosts.values() for block in host.later)

    async def change(self) -> None:
        """Wait until a request has ended, or something is kept no longer."""
        if self._changed is None:
            self._changed = self.loop.create_future()
        await asyncio.shield(self._changed)

    def changed(self) -> None:
        """Wake those who wait for `change`."""
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    def host(self, url: str) -> Host:
        """Return the host of ``url``."""
        name = url[: url.find("/", url.find("://") + 3)] if "://" in url else ""
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(name)
        return host

    def active_at(self, host: str) -> int:
        known = self._hosts.get(host)
        return 0 if known is None else known.active

    def count_request(self, host: str) -> None:
        self._hosts[host].active += 1

    # ------------------------------------------------------------------ beginning

    def pump(self) -> None:
        """Begin as many requests as host and budget allow."""
        if self.loop.is_closed():  # the collector ends a dropped request, wherever Python is: perhaps within a lock
            return
        self.changed()
        for host in self._hosts.values():
            while host.active < self.budget.requests and (block := self._next(host)) is not None:
                self._begin(block)

    def _next(self, host: Host) -> Block | None:
        """Return the block whose turn it is, counted as under way; None if there is none, or no room for it."""
        for queue, most in ((host.urgent, self.budget.memory), (host.later, self.budget.ahead)):
            while queue and queue[0].state != QUEUED:
                queue.popleft()
            if not queue:
                continue
            size = self._unpaid(queue[0])
            while not self.shared.begin(self, host.name, size, most):
                # Evict what is kept for later to make room for a block that a reader is waiting for.
                if queue is host.later or not self.lacks(size, most):
                    return None
                if not (self.shared.empty_caches() or self._receiver.make_room()):
                    return None
            queue[0].reserved = size
            return queue.popleft()
        return None

    def _unpaid(self, block: Block) -> int:
        """Return the bytes to reserve for ``block``, beside those that its readers have reserved."""
        paid = [(start, stop) for reader, start, stop in block.readers if reader.is_paid]
        if not paid:
            return self._size(block)
        return 0 if block.span.stop is None else max(self._size(block) - sum(stop - start for start, stop in paid), 0)

    def _size(self, block: Block) -> int:
        """Return the bytes to reserve for ``block``; where its end is not known, as many as the last objects had."""
        start, stop = block.span.start, block.span.stop
        if stop is not None:
            return stop - start
        if start < 0:
            return -start
        seen = self.pool.versions.seen(block.span.url)
        if seen is not None and seen.size is not None:
            return max(seen.size - start, 0)
        sizes = block.host.sizes
        return sum(sizes) // len(sizes) if sizes else self.budget.memory // UNSIZED_AT_ONCE

    def _begin(self, block: Block) -> None:
        block.state = UNDER_WAY
        self.active += 1
        block.task = self.loop.create_task(self._request(block))
        block.task.add_done_callback(lambda _: self._ended(block))  # also where it was stopped before it ran

    def stop(self, block: Block) -> None:
        """Cancel the request for ``block``, queued or under way, and count its bytes no longer."""
        if block.task is not None and block.state == UNDER_WAY:
            block.task.cancel()
        block.state = OVER
        if block.reserved:
            self.give_back(block.reserved)
            block.reserved = 0

    def _ended(self, block: Block) -> None:
        if block.task is None:
            return
        block.task = None
        block.host.active -= 1
        self.active -= 1
        self.shared.wake(self)
        self.pump()

    # ------------------------------------------------------------------ asking

    async def _request(self, block: Block) -> None:
        try:
            answer = await self._answer(block)
            if block.state == UNDER_WAY:
                block.state = OVER
                self._receiver.arrived(block, answer)
        except asyncio.CancelledError:
            if block.state == UNDER_WAY:  # not by us: the loop is ending
                self._receiver.abandon()
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, no reader may wait for ever
            if logger.isEnabledFor(logging.DEBUG):
                span = block.span
                logger.debug("%s [%s:%s] failed: %s", sanitize(span.url), span.start, span.stop, sanitize(repr(error)))
            self._receiver.failed(block, error)
        finally:
            self._ended(block)

    async def _answer(self, block: Block) -> Answer:
        span, host = block.span, block.host
        began = self.loop.time()
        place = self.pool.place(span.url, span.origin)
        if place is None:
            raise RuntimeError(f"{span.url} cannot be opened on this event loop")
        target, path = place
        most = block.readers[0][0].most if span.stop is None and block.readers else None  # such a block has one reader
        before = target.seen
        answer = await target.read(path, span.start, span.stop, span.pin, most)
        block.facts = target.facts_of(answer, before) if target.is_remote else None
        self._stats.add(requests=1, bytes_fetched=len(answer.data))
        check(answer, span.start, span.stop, exact=span.exact)
        took = self.loop.time() - began
        host.waits.append(took if answer.waited is None else answer.waited)
        if span.stop is None and most is None:  # documents are small, and tell nothing of chunks
            host.sizes.append(len(answer.data))
        if logger.isEnabledFor(logging.DEBUG):
            where, size = sanitize(span.url), len(answer.data)
            logger.debug("%s [%s:%s] %d bytes, %.1f ms", where, span.start, span.stop, size, took * 1e3)
        return answer
