"""Requests in their turn: those that readers wait for first, so many at once to a host, so many bytes at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Protocol

import msgspec

from refshard_fs.core.stats import Stats
from refshard_fs.errors import redacted
from refshard_fs.reading import plan
from refshard_fs.reading.blocks import Block, Host, Job
from refshard_fs.targets import Answer, Pool, check

__all__ = ["Budget", "Dispatch", "Paces", "SHARED", "Taker"]

# ----------------------------------------------------------------------------------------------------
# How long servers take to answer: what one filesystem has seen of a server, the next one in the process knows.
#
# An answer may come late for many reasons, but early for none: of the last few times the shortest counts.


REMEMBERED: Final = 256  # servers
FEW_PACES: Final = 4  # times


class Paces:
    """Seconds by server; thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._known: OrderedDict[str, deque[float]] = OrderedDict()

    def of(self, server: str) -> float | None:
        """Return the seconds that an answer of ``server`` took of late; None if that is not known."""
        with self.lock:
            known = self._known.get(server)
            return None if known is None else min(known)

    def note(self, server: str, seconds: float) -> None:
        """Take note that an answer of ``server`` takes ``seconds``."""
        with self.lock:
            self._known.setdefault(server, deque(maxlen=FEW_PACES)).append(seconds)
            self._known.move_to_end(server)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def clear(self) -> None:
        """Know nothing."""
        with self.lock:
            self._known.clear()


SHARED: Final = Paces()


def _after_fork() -> None:
    SHARED.lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


logger = logging.getLogger("refshard_fs")

FEW = 10  # requests that are begun to a host of which it is not known that answers take time: what zarr asks at once
SPREAD = 16  # requests under way to a host that is waited for, up to which there are rather more than large ones
PATIENCE = 0.003  # seconds
SAMPLE = 64  # answers, of which the pace of one is remembered
UNSIZED_AT_ONCE = 8  # whole objects under way at once, until answers of their host have told how large such are


class Budget(msgspec.Struct, frozen=True):
    """``requests`` under way at once to one host, and ``memory`` bytes under way or held ahead."""

    requests: int = 128
    memory: int = 256 * plan.MIB

    @property
    def ahead(self) -> int:
        """Bytes that may be under way or held when more is fetched ahead: some stay free for readers."""
        return self.memory * 3 // 4


class Taker(Protocol):
    """What becomes of requests."""

    def arrived(self, job: Job, answer: Answer) -> None:
        """Take the bytes that were asked for."""

    def failed(self, block: Block, error: Exception) -> None:
        """Take note that a part of ``block`` cannot be had."""

    def abandoned(self) -> None:
        """Take note that the loop is ending."""

    def make_room(self) -> bool:
        """Let go of something that is held; False if there is nothing."""

    @property
    def holds(self) -> bool:
        """Whether there is something to let go of."""


class Dispatch:
    """Begins jobs on one event loop; ``used`` counts the bytes under way, and those that the taker holds."""

    def __init__(self, pool: Pool, budget: Budget, stats: Stats, taker: Taker) -> None:
        self.pool = pool
        self.budget = budget
        self.used = 0  # bytes of the budget
        self.active = 0  # requests under way
        self._stats = stats
        self._taker = taker
        self._hosts: dict[str, Host] = {}
        self._paces = SHARED
        self._times: deque[float] = deque(maxlen=8)
        self._waits: deque[float] = deque(maxlen=8)  # for the first bytes, where that is known
        self._changed: asyncio.Future[None] | None = None
        self._pumping = self._again = False

    def latency(self, url: str) -> float | None:
        """Return the seconds that the fastest of the last requests took; before the first, those that the host of
        ``url`` is known for, if it is slow.
        """
        return min(self._times) if self._times else self._slowness(_host_of(url))

    def spare(self, url: str) -> int:
        """Return how many more requests to the host of ``url`` bring bytes sooner than few: where answers are known to
        take time, a connection may be slow, too.
        """
        host = self.host(url)
        return SPREAD - host.active if self._slowness(host.name) is not None else 0

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

    def host(self, url: str) -> Host:
        """Return the host of ``url``."""
        name = _host_of(url)
        host = self._hosts.get(name)
        if host is None:
            most = self.budget.requests
            host = self._hosts[name] = Host(name, min(FEW, most) if self._slowness(name) is None else most)
        return host

    def _slowness(self, name: str) -> float | None:
        """Return the seconds that answers of the host are known to take, if that is long."""
        known = self._paces.of(name)
        return known if known is not None and known > 2 * PATIENCE else None

    def queue(self, jobs: Iterable[Job], *, urgent: bool) -> None:
        """Have ``jobs`` begun, when it is their turn, by `pump`; those that are ``urgent`` before all others."""
        for job in jobs:
            (job.host.urgent if urgent else job.host.later).append(job)

    def free(self, size: int) -> None:
        """Count ``size`` bytes as no longer under way or held."""
        self.used -= size

    def pump(self) -> None:
        """Begin as many requests as host and budget allow."""
        self.changed()
        self._again = True
        if self._pumping:  # a request has ended as soon as it was begun
            return
        self._pumping = True
        try:
            while self._again:
                self._again = False
                self._begin_some()
        finally:
            self._pumping = False

    def _begin_some(self) -> None:
        for host in list(self._hosts.values()):
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
        self.pump()

    def _next(self, host: Host) -> Job | None:
        for queue, most in ((host.urgent, self.budget.memory), (host.later, self.budget.ahead)):
            while queue and queue[0].state:
                queue.popleft()
            if not queue:
                continue
            size = queue[0].size = self._size(queue[0])
            while queue is host.urgent and self.used + size > most and self._taker.make_room():
                pass
            if self.used + size > most and (self.active or self._taker.holds):
                return None
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
        job.state = 1
        job.active = True
        job.host.active += 1
        job.block.reserved += job.size
        self.used += job.size
        self.active += 1
        task = _started(self._request(job))
        if not task.done():
            job.task = task

    def stop(self, job: Job) -> None:
        """Have ``job``, if it is under way, end soon, and nobody told."""
        if job.task is not None and job.state == 1:
            job.task.cancel()
            job.task.add_done_callback(lambda _: self._ended(job))  # of what has not run yet, nothing runs
        job.state = 2

    def _ended(self, job: Job) -> None:
        job.task = None
        if job.active:
            job.active = False
            job.host.active -= 1
            self.active -= 1
            self.pump()

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
                self._taker.abandoned()
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, no reader may wait for ever
            if logger.isEnabledFor(logging.DEBUG):
                failure = redacted(repr(error))
                logger.debug("%s [%s:%s] failed: %s", redacted(span.url), job.start, job.stop, failure)
            if job.state == 1:
                self._taker.failed(job.block, error)
        else:
            job.host.answered += 1
            if job.stop is None and most is None:  # documents are small, and tell nothing of chunks
                job.host.sizes.append(len(answer.data))
            took = loop.time() - began
            self._times.append(took)
            self._waits.append(took if answer.waited is None else answer.waited)
            if job.host.answered % SAMPLE == SAMPLE // 8:  # the first answers wait for connections
                self._paces.note(job.host.name, min(self._waits))
            if logger.isEnabledFor(logging.DEBUG):
                place_text, size = redacted(span.url), len(answer.data)
                logger.debug("%s [%s:%s] %d bytes, %.1f ms", place_text, job.start, job.stop, size, took * 1e3)
            if job.state == 1:
                self._taker.arrived(job, answer)
        finally:
            job.state = 2
            self._ended(job)


def _started(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Return a task of ``coroutine`` that has begun: a request is sent before whatever else this loop has to do."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(coroutine, loop=loop, eager_start=True)
    return loop.create_task(coroutine)


def _host_of(url: str) -> str:
    return url[: url.find("/", url.find("://") + 3)] if "://" in url else ""
