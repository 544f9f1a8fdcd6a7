"""The queue of requests: those that readers wait for go first, within bounds of number (a host) and of memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.stats import Stats
from refshard_fs.errors import told
from refshard_fs.reading.plan import MIB
from refshard_fs.targets import Answer, Pool, check

if TYPE_CHECKING:
    from refshard_fs.reading.fetch import Block, Fetcher


logger = logging.getLogger("refshard_fs")

FEW = 10  # requests under way to a host, until it is seen that answers take time: connections cost more than they bring
PATIENCE = 0.003  # seconds without an answer that show it
SLOW = 0.006  # seconds that all of the last answers took, which shows it, too
UNSIZED_AT_ONCE = 8  # whole objects under way at once, until answers of their host have told how large such are
QUEUED, UNDER_WAY, OVER = range(3)  # states of a job


class Budget(msgspec.Struct, frozen=True):
    """``requests`` under way at once to one host, and ``memory`` bytes under way or held ahead."""

    requests: int = 128
    memory: int = 256 * MIB

    @property
    def ahead(self) -> int:
        """Bytes that may be under way or held when more is fetched ahead: some stay free for readers."""
        return self.memory * 3 // 4


class Holder:
    """Who holds bytes of a `SharedMemory`, on the running event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.used = 0  # bytes


class SharedMemory:
    """``memory`` bytes for several holders, which may be on several event loops. Thread-safe.

    Each asks before it holds more. One that has nothing is never refused: so none waits for one that stopped while it
    had bytes in its hands. A holder counts until its loop is closed, or nobody knows it any more.
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self._lock = fork_safe(threading.RLock())  # the collector may end a dropped read, which gives back, within it
        self._holders: list[weakref.ref[Any]] = []  # a WeakSet would take three times as long

    def join(self, holder: Holder) -> None:
        """Count what ``holder`` holds from now on."""
        with self._lock:
            self._holders = [weakref.ref(each) for each in (*self._alive(self._holders), holder)]

    def lacks(self, size: int, most: int) -> bool:
        """Whether ``size`` bytes more would be over ``most``."""
        with self._lock:
            return self._used() + size > most

    def take(self, holder: Holder, sizes: Iterable[int], most: int) -> int:
        """Count as many of ``sizes`` as there is room for below ``most``, the first ones, and return how many."""
        taken = 0
        with self._lock:
            used = self._used()
            for size in sizes:
                if holder.used and used + size > most:
                    break
                holder.used += size
                used += size
                taken += 1
        return taken

    def give_back(self, holder: Holder, size: int) -> None:
        """Count ``size`` bytes no longer."""
        with self._lock:
            holder.used -= size

    def _used(self) -> int:
        return sum(each.used for each in self._alive(self._holders))

    def _alive(self, among: Iterable[weakref.ref[Any]]) -> list[Any]:
        known = [ref() for ref in among]
        return [each for each in known if each is not None and not each.loop.is_closed()]


class SharedBudget(SharedMemory):
    """One `Budget` for all event loops that read a source.

    A loop asks before it begins a request. One that found no room is woken when another loop gives some back.
    """

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget.memory)
        self.budget = budget
        self.selections = SharedMemory(budget.memory)  # chunks asked for, and not yet decoded
        self._refused: set[weakref.ref[Dispatch]] = set()

    def begin(self, dispatch: Dispatch, host: Host, size: int, most: int | None) -> bool:
        """Count a request of ``size`` bytes to ``host``; False, and nothing counted, if it has to wait.

        It waits where memory would be over ``most``, unless that is None, or where the host has enough requests.
        """
        with self._lock:
            alive = self._alive(self._holders)
            used = sum(each.used for each in alive)
            active = sum(each.active_at(host.name) for each in alive)
            is_over = most is not None and dispatch.used and used + size > most
            if is_over or (host.active and active >= self.budget.requests):
                self._refused.add(weakref.ref(dispatch))
                return False
            dispatch.used += size
            host.active += 1
        return True

    def give_back(self, holder: Holder, size: int = 0, host: Host | None = None) -> None:
        """Count ``size`` bytes no longer, nor one of the requests to ``host``."""
        with self._lock:
            holder.used -= size
            if host is not None:
                host.active -= 1
            refused, self._refused = self._refused, set()
        waiting = [each for each in self._alive(refused) if each is not holder] if refused else ()
        for each in waiting:
            with contextlib.suppress(RuntimeError):  # its loop was closed
                each.loop.call_soon_threadsafe(each.pump)


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

    __slots__ = ("active", "answered", "later", "limit", "name", "patience", "sizes", "urgent", "waits")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.active = 0
        self.answered = 0
        self.limit = limit
        self.patience: asyncio.TimerHandle | None = None
        self.waits: deque[float] = deque(maxlen=8)  # seconds until the last answers began, or came
        self.sizes: deque[int] = deque(maxlen=8)  # bytes of the last objects that were read whole
        self.urgent: deque[Job] = deque()
        self.later: deque[Job] = deque()


class Dispatch(Holder):
    """Begins jobs on the running event loop; ``used`` counts the bytes under way, and those that are held for later."""

    def __init__(self, pool: Pool, shared: SharedBudget, stats: Stats, fetcher: Fetcher) -> None:
        super().__init__()
        self.pool = pool
        self.shared = shared
        self.active = 0  # requests under way
        self._stats = stats
        self._fetcher = fetcher
        self._hosts: dict[str, Host] = {}
        self._changed: asyncio.Future[None] | None = None
        shared.join(self)

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
        return any(job.state == QUEUED for host in self._hosts.values() for job in host.later)

    async def change(self) -> None:
        """Wait until a request has ended, or something is held no longer."""
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
            host = self._hosts[name] = Host(name, min(FEW, self.budget.requests))
        return host

    def active_at(self, name: str) -> int:
        """Return how many requests are under way to the host called ``name``."""
        host = self._hosts.get(name)
        return 0 if host is None else host.active

    def queue(self, jobs: Iterable[Job], *, urgent: bool) -> None:
        """Have ``jobs`` begun, when it is their turn, by `pump`; those that are ``urgent`` before all others."""
        for job in jobs:
            (job.host.urgent if urgent else job.host.later).append(job)

    def free(self, size: int) -> None:
        """Count ``size`` bytes as no longer under way or held."""
        self.shared.give_back(self, size)

    # ------------------------------------------------------------------ beginning

    def pump(self) -> None:
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
                    due = self.loop.time() + PATIENCE
                    host.patience = self.loop.call_at(due, self._widen, host, host.answered, due)

    def _widen(self, host: Host, answered: int, due: float) -> None:
        """Let more requests to ``host`` be under way, if none was answered while this loop had nothing else to do."""
        host.patience = None
        is_busy = self.loop.time() > due + PATIENCE / 3  # then answers may be waiting for us
        if host.answered == answered and host.active and not is_busy:
            host.limit = self.budget.requests
        self.pump()

    def _next(self, host: Host) -> Job | None:
        """Return the job whose turn it is, counted as one under way; None if there is none, or no room for it."""
        for queue, most in ((host.urgent, self.budget.memory), (host.later, self.budget.ahead)):
            while queue and queue[0].state != QUEUED:
                queue.popleft()
            if not queue:
                continue
            size = queue[0].size = self._size(queue[0])
            bound: int | None = most
            while not self.shared.begin(self, host, size, bound):
                if queue is not host.urgent or not self.shared.lacks(size, most):
                    return None
                if not self._fetcher.make_room():
                    if self.active:
                        return None
                    bound = None  # all memory is parts of what is to be held: no answer will come that makes room
            return queue.popleft()
        return None

    def _size(self, job: Job) -> int:
        """Return the bytes to set aside for ``job``: as many as the last objects had where its end is not known."""
        if job.stop is not None:
            return job.size
        if job.start < 0:
            return -job.start
        seen = self.pool.versions.seen(job.block.span.url)
        if seen is not None and seen.size is not None:
            return max(seen.size - job.start, 0)
        sizes = job.host.sizes
        return sum(sizes) // len(sizes) if sizes else self.budget.memory // UNSIZED_AT_ONCE

    def _begin(self, job: Job) -> None:
        job.state = UNDER_WAY
        job.block.reserved += job.size
        self.active += 1
        job.task = self.loop.create_task(self._request(job))
        job.task.add_done_callback(lambda _: self._ended(job))  # also where it was stopped before it ran

    def stop(self, job: Job) -> None:
        """Cancel ``job``, queued or under way, without telling anybody."""
        if job.task is not None and job.state == UNDER_WAY:
            job.task.cancel()
        job.state = OVER

    def _ended(self, job: Job) -> None:
        if job.task is None:
            return
        job.task = None
        self.shared.give_back(self, host=job.host)
        self.active -= 1
        self.pump()

    # ------------------------------------------------------------------ asking

    async def _request(self, job: Job) -> None:
        try:
            answer = await self._answer(job)
        except asyncio.CancelledError:
            if job.state == UNDER_WAY:  # not by us: the loop is ending
                self._fetcher.abandoned()
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, no reader may wait for ever
            if logger.isEnabledFor(logging.DEBUG):
                place, failure = told(job.block.span.url), told(repr(error))
                logger.debug("%s [%s:%s] failed: %s", place, job.start, job.stop, failure)
            if job.state == UNDER_WAY:
                job.state = OVER
                self._fetcher.failed(job.block, error)
        else:
            if job.state == UNDER_WAY:
                job.state = OVER
                self._fetcher.arrived(job, answer)
        finally:
            self._ended(job)

    async def _answer(self, job: Job) -> Answer:
        span, host = job.block.span, job.host
        began = self.loop.time()
        place = self.pool.place(span.url, span.origin)
        if place is None:
            raise RuntimeError(f"{span.url} cannot be opened on this event loop")
        target, path = place
        readers = job.block.readers
        most = readers[0].most if job.stop is None and readers else None  # such a block has one reader
        answer = await target.read(path, job.start, job.stop, span.pin, most)
        self._stats.add(requests=1, bytes_fetched=len(answer.data))
        check(answer, job.start, job.stop, exact=span.exact)
        took = self.loop.time() - began
        host.answered += 1
        host.waits.append(took if answer.waited is None else answer.waited)
        if host.answered >= FEW and min(host.waits) > SLOW:  # the first answers wait for connections
            host.limit = self.budget.requests
        if job.stop is None and most is None:  # documents are small, and tell nothing of chunks
            host.sizes.append(len(answer.data))
        if logger.isEnabledFor(logging.DEBUG):
            where, size = told(span.url), len(answer.data)
            logger.debug("%s [%s:%s] %d bytes, %.1f ms", where, job.start, job.stop, size, took * 1e3)
        return answer
