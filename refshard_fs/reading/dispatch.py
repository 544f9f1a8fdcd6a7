"""Queue requests, first those for which readers wait, and limit the requests to each host and the bytes in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from io import BytesIO
from typing import Protocol

import msgspec

from refshard_fs.core.model import Facts, Span
from refshard_fs.core.stats import Stats
from refshard_fs.reading.failures import make_read_error
from refshard_fs.reading.memory import Budget, Share, SharedBudget
from refshard_fs.reading.plan import KIB
from refshard_fs.targets import Answer, Pool, check

UNSIZED_AT_ONCE = 8  # the most objects of unknown size that are requested at a time before the first has arrived
MEASURABLE = 64 * KIB  # bytes: shorter answers arrive in a few packets, and do not show the bandwidth
GAP = 16 * KIB  # bytes: if reads of a block leave out at most so many between them, these count as passed over
QUEUED, UNDER_WAY, OVER = range(3)  # the states of a request


class Reader(msgspec.Struct, eq=False):
    """A caller that needs the bytes of ``span``, and gets them, or an error, by its ``future``.

    Errors name ``key``; if it is None, they are unchanged. If the size of the object is unknown, more than ``most``
    bytes are an error.
    """

    key: str | None
    span: Span
    future: asyncio.Future[bytes]
    most: int | None = None
    keep: bool = True  # whether to write the bytes to the cache on disk
    is_paid: bool = False  # whether the caller has reserved the memory for the bytes
    blocks: list[Block] = []
    facts: Facts | None = None  # facts of the version of all bytes so far, if the server reports them
    missing: int = 0  # bytes that have not arrived, if the size is known
    buffer: BytesIO | None = None  # collects bytes that arrive in several blocks

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error if self.key is None else make_read_error(self.key, self.span, error))


class Block:
    """A request for a range of one target, and its bytes once they have arrived.

    A block is kept while ``readers`` wait for it, while reads of its ranges are ``expected`` (range → number of unread
    bytes), and while look-ups choose what to read of it; ``begun`` counts these look-ups. A ``spare`` block is no
    longer expected, and is kept while there is room. A block of a whole object is shared only if it was fetched ahead.
    """

    __slots__ = (
        "absence", "arrived", "begun", "data", "expected", "facts", "host", "passed", "read_to", "readers", "reserved",
        "shared", "span", "spare", "state", "task",
    )  # fmt: skip

    def __init__(self, span: Span, host: Host, shared: bool) -> None:
        self.span = span
        self.host = host
        self.shared = shared  # whether other readers may join it
        self.state = QUEUED
        self.reserved = 0  # bytes of memory that are reserved for it
        self.readers: list[tuple[Reader, int, int]] = []  # each reader, and its range
        self.expected: dict[tuple[int, int], int] = {}
        self.begun = 0
        self.read_to = span.start  # the end of the last bytes that were read
        self.passed = 0  # bytes in short gaps that readers passed over
        self.spare = False
        self.task: asyncio.Task[None] | None = None  # the task of its request, while this counts at the host
        self.data: bytes | memoryview | None = None
        self.facts: Facts | None = None  # facts that identify the version of its bytes
        self.absence: Exception | None = None  # the error if it was fetched ahead, and the object does not exist
        self.arrived = 0.0  # the time of the loop when the answer came

    @property
    def is_wanted(self) -> bool:
        """Whether readers or look-ups need the block now, or reads of it are expected."""
        return bool(self.readers or self.expected or self.begun)

    @property
    def is_passed(self) -> bool:
        """Whether readers have read all expected bytes, or passed over them."""
        return bool(self.expected) and sum(self.expected.values()) <= self.passed

    def expect(self, start: int, stop: int) -> None:
        """Expect one more read of ``[start, stop)``, unless a longer range that contains it is expected."""
        if any(first <= start and stop <= last and (first, last) != (start, stop) for first, last in self.expected):
            return
        self.expected[start, stop] = self.expected.get((start, stop), 0) + stop - start

    def expect_less(self, start: int, stop: int) -> int:
        """Expect one read less of ``[start, stop)``; return the number of its unread bytes."""
        unread = self.expected.pop((start, stop), 0)
        if unread > stop - start:
            self.expected[start, stop] = unread - (stop - start)
        return min(unread, stop - start)

    def note_read(self, start: int, stop: int) -> None:
        """Note that bytes ``[start, stop)`` were read."""
        if start < self.read_to:
            self.passed = max(self.passed - (stop - start), 0)
        elif start - self.read_to <= GAP:
            self.passed += start - self.read_to
        self.read_to = max(self.read_to, stop)
        pieces = [(start, stop)] if (start, stop) in self.expected else list(self.expected)
        for first, last in pieces:
            unread = self.expected[first, last] - max(min(stop, last) - max(start, first), 0)
            if unread > 0:
                self.expected[first, last] = unread
            else:
                del self.expected[first, last]


class Host:
    """The requests to one host; requests in ``urgent`` begin before requests in ``later``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.active = 0  # requests under way on this loop
        self.waits: deque[float] = deque(maxlen=8)  # seconds until recent answers began, or arrived
        # Bytes of recent answers of `MEASURABLE` bytes or more, and the seconds in which they arrived: from the first
        # byte, or from the end of the answer before it, if that is later.
        self.received: deque[tuple[int, float]] = deque(maxlen=8)
        self.arrived = 0.0  # the time of the loop when the last of them had arrived
        self.sizes: deque[int] = deque(maxlen=8)  # bytes of recent objects that were read whole
        self.urgent: deque[Block] = deque()
        self.later: deque[Block] = deque()


class Receiver(Protocol):
    """The owner of the blocks, which takes their answers, and makes room for them."""

    def make_room(self) -> bool: ...
    def on_arrival(self, block: Block, answer: Answer) -> None: ...
    def on_failure(self, block: Block, error: Exception) -> None: ...
    def abandon(self) -> None: ...


class Dispatch(Share):
    """Begin requests on the running event loop; ``used`` counts the bytes of requests under way and of kept blocks."""

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
        """The limits for all event loops together."""
        return self.shared.budget

    def find_latency(self, url: str) -> float | None:
        """Return the shortest recent wait for an answer of the host of ``url``, in seconds; None before its first."""
        return min(self.find_host(url).waits, default=None)

    def measure_round(self, url: str) -> int:
        """Return the bytes that arrive from the host of ``url`` in the time of a round; 0 if that is not known."""
        host = self.find_host(url)
        sizes, seconds = map(sum, zip(*host.received, strict=True)) if host.received else (0, 0.0)
        return int(min(host.waits) * sizes / seconds) if seconds else 0

    @property
    def has_queued(self) -> bool:
        """Whether a request for data ahead waits in a queue."""
        return any(block.state == QUEUED for host in self._hosts.values() for block in host.later)

    async def wait_for_change(self) -> None:
        """Wait for the next `notify`: a request has begun or ended, or a block was dropped. Callers check again."""
        if self._changed is None:
            self._changed = self.loop.create_future()
        await asyncio.shield(self._changed)

    def notify(self) -> None:
        """Wake all callers of `wait_for_change`."""
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    def find_host(self, url: str) -> Host:
        """Return the host of ``url``."""
        name = url[: url.find("/", url.find("://") + 3)] if "://" in url else ""
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(name)
        return host

    def count_active(self, host: str) -> int:
        known = self._hosts.get(host)
        return 0 if known is None else known.active

    def count_request(self, host: str) -> None:
        self._hosts[host].active += 1

    def pump(self) -> None:
        """Begin as many requests as the limits of hosts and of memory allow."""
        if self.loop.is_closed():  # the garbage collector may end a dropped request at any time, also inside a lock
            return
        self.notify()
        for host in self._hosts.values():
            while host.active < self.budget.requests and (block := self._take_next(host)) is not None:
                self._begin(block)

    def _take_next(self, host: Host) -> Block | None:
        """Take the next block from the queues of a host, and reserve its memory; None if no request may begin now."""
        for queue, most in ((host.urgent, self.budget.memory), (host.later, self.budget.ahead)):
            while queue and queue[0].state != QUEUED:
                queue.popleft()
            if not queue:
                continue
            size = self._count_unpaid(queue[0])
            while not self.shared.begin(self, host.name, size, most):
                # Evict prefetched blocks to make room for a block that a reader is waiting for.
                if queue is host.later or not self.lacks(size, most):
                    return None
                if not (self.shared.empty_caches() or self._receiver.make_room()):
                    return None
            queue[0].reserved = size
            return queue.popleft()
        return None

    def _count_unpaid(self, block: Block) -> int:
        """Return the bytes to reserve for ``block``, without the bytes that its readers have reserved."""
        paid = [(start, stop) for reader, start, stop in block.readers if reader.is_paid]
        if not paid:
            return self._estimate_size(block)
        if block.span.stop is None:
            return 0
        return max(self._estimate_size(block) - sum(stop - start for start, stop in paid), 0)

    def _estimate_size(self, block: Block) -> int:
        """Return the bytes to reserve for ``block``; if its size is unknown, estimate it from recent objects.

        An object for a reader counts as many bytes as the mean of recent objects. An object that is fetched ahead must
        not need more bytes than were reserved, so it counts twice the bytes of the largest recent object.
        """
        start, stop = block.span.start, block.span.stop
        if stop is not None:
            return stop - start
        if start < 0:
            return -start
        seen = self.pool.versions.find_known_facts(block.span.url)
        if seen is not None and seen.size is not None:
            return max(seen.size - start, 0)
        sizes = block.host.sizes
        if sizes and not block.readers:
            return 2 * max(sizes)
        return sum(sizes) // len(sizes) if sizes else self.budget.memory // UNSIZED_AT_ONCE

    def _begin(self, block: Block) -> None:
        block.state = UNDER_WAY
        self.active += 1
        block.task = self.loop.create_task(self._request(block))
        # The callback is called even if the task is cancelled before it runs.
        block.task.add_done_callback(lambda _: self._on_end(block))

    def stop(self, block: Block) -> None:
        """Cancel the request for ``block``, queued or under way, and release its memory."""
        if block.task is not None and block.state == UNDER_WAY:
            block.task.cancel()
        block.state = OVER
        self.keep(block, 0)

    def keep(self, block: Block, size: int) -> None:
        """Release the memory of ``block``, except ``size`` bytes."""
        if block.reserved > size:
            self.give_back(block.reserved - size)
            block.reserved = size

    def _on_end(self, block: Block) -> None:
        if block.task is None:
            return
        block.task = None
        block.host.active -= 1
        self.active -= 1
        self.shared.wake(self)
        self.pump()

    async def _request(self, block: Block) -> None:
        try:
            answer = await self._answer(block)
            if block.state == UNDER_WAY:
                block.state = OVER
                self._receiver.on_arrival(block, answer)
        except asyncio.CancelledError:
            if block.state == UNDER_WAY:  # not cancelled by `stop`: the loop is ending
                self._receiver.abandon()
            raise
        except Exception as error:  # noqa: BLE001  # readers must not wait forever after any error
            self._receiver.on_failure(block, error)
        finally:
            self._on_end(block)

    async def _answer(self, block: Block) -> Answer:
        span, host = block.span, block.host
        began = self.loop.time()
        place = self.pool.place(span.url, span.origin)
        if place is None:
            raise RuntimeError(f"expected an event loop to open {span.url}, found none")
        target, path = place
        most = None
        if span.stop is None:
            most = block.readers[0][0].most if block.readers else block.reserved
        is_document = most is not None and bool(block.readers)
        before = target.facts
        answer = await target.read(path, span.start, span.stop, span.pin, most)
        block.facts = target.facts_of(answer, before) if target.is_remote else None
        self._stats.add(requests=1, bytes_fetched=len(answer.data))
        check(answer, span.start, span.stop, exact=span.exact)
        took = self.loop.time() - began
        host.waits.append(took if answer.waited is None else answer.waited)
        if answer.waited is not None and len(answer.data) >= MEASURABLE:
            now = self.loop.time()
            host.received.append((len(answer.data), now - max(began + answer.waited, host.arrived)))
            host.arrived = now
        if span.stop is None and not is_document:  # sizes of documents say nothing about those of chunks
            host.sizes.append(len(answer.data))
        return answer
