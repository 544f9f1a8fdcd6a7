"""A whole selection of chunks read at once: each is handed on as its bytes come, within bounds of memory.

All keys are given to the engine together, so that they are looked up in rounds and fetched in few requests. What needs
no event loop (local files, memory, inline data) is read in threads. The caller decodes: on the event loop, where that
is Python's own work, or in threads beside the receiving, where a codec lets go of the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Final, NamedTuple

from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry
from refshard_fs.reading.dispatch import Holder, SharedMemory
from refshard_fs.reading.engine import Engine, Request
from refshard_fs.reading.immediate import Immediate
from refshard_fs.reading.plan import MIB

# Called with a chunk's place in the selection and its bytes; None for a key that does not exist.
Take = Callable[[int, bytes | None], object]

WORKERS: Final = os.cpu_count() or 1  # threads that decode at a time
KEYS: Final = 4096  # look-ups in memory between two turns of the event loop: some ten milliseconds
ANSWER: Final = 2 * MIB  # an answer is in memory twice while it is joined of its parts, and cut into its chunks
SHARE: Final = 4  # a quarter of the memory has to be free before more is asked for, so that requests stay large


class _Chunk(NamedTuple):
    """A key that is read, its place in the selection, and the bytes that it takes in memory until it is decoded."""

    number: int
    request: Request
    entry: Entry | None
    weight: int


class Share(Holder):
    """What one selection holds of the memory that all selections of a session share: at least one chunk, if need be.

    ``spare`` bytes are left to others, but never more than half of the memory.
    """

    def __init__(self, memory: SharedMemory[Holder], spare: int = 0) -> None:
        super().__init__()
        self.most = max(memory.memory - spare, memory.memory // 2)
        self._memory = memory
        memory.join(self)

    def take(self, sizes: Iterable[int]) -> int:
        """Hold as many of ``sizes`` as there is room for, the first ones, and return how many."""
        return self._memory.take(self, sizes, self.most)

    def give_back(self, size: int) -> None:
        """Hold ``size`` bytes no longer."""
        self._memory.give_back(self, size)

    @property
    def has_room(self) -> bool:
        """Whether enough is free for large requests, or nothing is held that would make room in a while."""
        return not self.used or not self._memory.lacks(self.most // SHARE, self.most)


class Together:
    """Selections that are read together: as many at a time as have room for all of their chunks, at least one.

    Else each of them would have a chunk in memory, however little there is. On one event loop.
    """

    def __init__(self) -> None:
        self._used: dict[SharedMemory[Holder], int] = {}  # bytes
        self._waiting: list[asyncio.Future[None]] = []

    @contextlib.asynccontextmanager
    async def room(self, memory: SharedMemory[Holder], size: int) -> AsyncGenerator[None, None]:
        """Wait until there is room for ``size`` bytes in ``memory``, and have it."""
        size = min(size, memory.memory)
        while (used := self._used.get(memory, 0)) and used + size > memory.memory:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        self._used[memory] = used + size
        try:
            yield
        finally:
            self._used[memory] -= size
            while self._waiting:
                waiter = self._waiting.pop()
                if not waiter.done():  # as those are that were cancelled
                    waiter.set_result(None)


TOGETHER: ContextVar[Together | None] = ContextVar("TOGETHER", default=None)  # of the selections that a task reads


async def read_selection(
    keyspace: KeySpace,
    keys: Sequence[str],
    take: Take,
    *,
    engine: Callable[[], Engine],
    immediate: Immediate,
    chunk_size: int,
    memory: SharedMemory[Holder],
    threads: bool,
) -> None:
    """Call ``take(number, data)`` once for each of ``keys``, in the order of their arrival.

    ``chunk_size`` is what a chunk is taken to need where its size is not known, in bytes. What is under way, or waits
    to be decoded, is within the ``memory`` of all selections; one chunk may always be. With ``threads``, ``take`` is
    called in threads, for several chunks at a time.

    The first error ends the read, and what is under way for it; it names its key.
    """
    work = _Work(keys, take)
    near: list[_Chunk] = []
    far: deque[_Chunk] = deque()
    for number, key in enumerate(keys):
        if number % KEYS == KEYS - 1:
            await asyncio.sleep(0)
        try:
            entry = immediate.find(keyspace, key)
        except FileNotFoundError:
            near.append(_Chunk(number, Request(key), None, 0))
            continue
        size = None if entry is None else entry.size
        chunk = _Chunk(number, Request(key), entry, chunk_size if size is None else size)
        if entry is not None and immediate.has(entry):
            near.append(chunk)
        else:
            far.append(chunk)
    spare = max(ANSWER, chunk_size) + (WORKERS * chunk_size if threads else 0)  # values that threads have made
    share = Share(memory, spare)
    try:
        here = deque(near)
        work.start(lambda: work.read_here(here, immediate), min(WORKERS, len(near)))
        if far:
            await _read_far(far, keyspace, work, engine(), share, threads)
        await work.finish()
        work.check()
        if work.left:
            await _read_far(deque(work.left), keyspace, work, engine(), share, threads)
    finally:
        try:
            await work.end()
        finally:
            share.give_back(share.used)
    work.check()


def decode(take: Take, key: str, number: int, data: bytes | None) -> None:
    """Hand on one chunk; what goes wrong with it names its key."""
    try:
        take(number, data)
    except Exception as e:
        e.add_note(f"while {key!r} was decoded")
        raise


class _Work:
    """What is done in threads: a few jobs at a time, each of several chunks."""

    def __init__(self, keys: Sequence[str], take: Take) -> None:
        self._keys = keys
        self._take = take
        self._jobs: set[asyncio.Future[None]] = set()
        self._error: BaseException | None = None
        self.is_over = False  # no job takes another chunk
        self.left: list[_Chunk] = []  # which took an event loop after all
        self.on_end: Callable[[], object] = lambda: None

    def decode(self, number: int, data: bytes | None) -> None:
        decode(self._take, self._keys[number], number, data)

    def read_here(self, chunks: deque[_Chunk], immediate: Immediate) -> None:
        while not self.is_over:
            try:
                chunk = chunks.popleft()
            except IndexError:
                return
            data = None
            if chunk.entry is not None:
                try:
                    data = immediate.take(chunk.request, chunk.entry)
                except FileNotFoundError:  # the object would be the key, and is not there
                    pass
                else:
                    if data is None:
                        self.left.append(chunk)
                        continue
            self.decode(chunk.number, data)

    def start(self, job: Callable[[], None], workers: int) -> None:
        """Run ``job`` in threads, so that there are so many that do."""
        loop = asyncio.get_running_loop()
        while len(self._jobs) < workers:
            future = loop.run_in_executor(None, job)
            self._jobs.add(future)
            future.add_done_callback(self._ended)

    def _ended(self, future: asyncio.Future[None]) -> None:
        self._jobs.discard(future)
        if not future.cancelled():
            error = future.exception()  # asked of each: asyncio logs those that nobody asks for
            self._error = self._error or error
            self.is_over = self.is_over or error is not None
        self.on_end()

    @property
    def running(self) -> int:
        return len(self._jobs)

    def check(self) -> None:
        """Raise the first error of what has ended."""
        if self._error is not None:
            raise self._error

    async def finish(self) -> None:
        """Wait for all jobs."""
        while self._jobs:
            await asyncio.wait(self._jobs)

    async def end(self) -> None:
        """Have the jobs end, and wait for them, also if cancelled meanwhile: they write into the caller's memory."""
        self.is_over = True
        try:
            await self.finish()
        except asyncio.CancelledError:
            await self.end()
            raise


async def _read_far(
    waiting: deque[_Chunk],
    keyspace: KeySpace,
    work: _Work,
    engine: Engine,
    share: Share,
    threads: bool,
) -> None:
    woken = asyncio.Event()
    work.on_end = woken.set
    pending: dict[asyncio.Future[bytes], _Chunk] = {}
    arrived: deque[asyncio.Future[bytes]] = deque()
    decoded: list[int] = []  # weights of what threads have decoded

    def came(future: asyncio.Future[bytes]) -> None:
        arrived.append(future)
        woken.set()

    def ask() -> None:
        """Ask for as many chunks as there is memory for."""
        some = [waiting.popleft() for _ in range(share.take(chunk.weight for chunk in waiting))]
        futures = engine.read_many(keyspace, [chunk.request for chunk in some], [chunk.entry for chunk in some])
        pending.update(zip(futures, some, strict=True))
        for future in futures:
            future.add_done_callback(came)

    ready: deque[tuple[_Chunk, bytes | None]] = deque()

    def sort_out(future: asyncio.Future[bytes]) -> None:
        chunk = pending.pop(future)
        try:
            ready.append((chunk, future.result()))
        except FileNotFoundError:
            ready.append((chunk, None))

    def decode_some() -> None:
        """Decode what is ready, in a thread, until nothing is or it is time to make room for more."""
        done = 0
        while done <= share.most // SHARE and not work.is_over:
            try:
                chunk, data = ready.popleft()
            except IndexError:
                break
            work.decode(chunk.number, data)
            done += chunk.weight
        decoded.append(done)

    try:
        ask()
        while pending or ready or work.running or waiting:
            await woken.wait()
            woken.clear()
            work.check()
            while arrived:
                sort_out(arrived.popleft())
            if threads:
                work.start(decode_some, min(WORKERS, work.running + len(ready)))
            else:
                while ready:
                    decode_some()
            while decoded:
                share.give_back(decoded.pop())
            if waiting and share.has_room:
                ask()
    finally:
        for future in pending:
            future.remove_done_callback(came)
            if future.done() and not future.cancelled():
                future.exception()  # one error is raised, and asyncio would log the others
            future.cancel()
