"""Read all chunks of a selection together, within a limit of memory, and pass on each chunk as soon as it arrives.

The engine gets all keys together, so that they are looked up in rounds and fetched by few requests. Chunks that need no
event loop (local files, memory, inline data) are read in threads. The caller decodes chunks on the event loop, or, if a
codec releases the GIL, in threads, while other chunks arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextvars import ContextVar
from typing import Final, NamedTuple

from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Packed
from refshard_fs.reading.engine import Engine
from refshard_fs.reading.immediate import Immediate
from refshard_fs.reading.loading import Outcome
from refshard_fs.reading.memory import Share, SharedMemory
from refshard_fs.reading.plan import MIB, Request, UnmadeBytes

# Called with a chunk's position in the selection and its bytes; None for a key that does not exist.
Take = Callable[[int, bytes | None], object]

WORKERS: Final = os.cpu_count() or 1  # threads that decode at a time
KEYS: Final = 4096  # look-ups in memory between two turns of the event loop: some ten milliseconds
ANSWER: Final = 2 * MIB  # an answer is in memory twice while its parts are joined, or it is divided into chunks
SHARE: Final = 4  # further chunks are requested when 1/4 of the memory is free, so that requests are large


class SelectionLimit:
    """Limit how many selections one `load` reads at a time: their chunks have to fit into memory; one is always read.

    A selection may have one chunk in memory even if there is no room: without this limit, thirty selections could have
    thirty chunks. A limit belongs to one event loop.
    """

    def __init__(self) -> None:
        self._used: Counter[SharedMemory] = Counter()  # bytes
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def reserve(self, memory: SharedMemory, size: int) -> AsyncGenerator[None, None]:
        """Wait until there is room for ``size`` bytes in ``memory``, and reserve them during the ``with`` block."""
        size = min(size, memory.memory)
        while self._used[memory] + size > memory.memory:
            await self._changed.wait()
        self._used[memory] += size
        try:
            yield
        finally:  # with an await here, a second cancellation could leave other selections waiting
            self._used[memory] -= size
            self._changed.set()
            self._changed.clear()


TOGETHER: ContextVar[SelectionLimit | None] = ContextVar("TOGETHER", default=None)  # limits the selections of a task


# Called with key and bytes of each chunk that is read while a dataset is opened; raises if decoding takes much memory.
GUARD: ContextVar[Callable[[str, bytes], None] | None] = ContextVar("GUARD", default=None)


class _Chunk(NamedTuple):
    """A key to read, and its position in the selection."""

    number: int
    request: Request
    entry: Entry | None
    weight: int  # bytes of memory that are reserved until the chunk is decoded
    is_near: bool = False  # whether no event loop is needed: then the thread that decodes the chunk also reads it


class SelectionRead:
    """Read one selection: ``take(number, data)`` is called once for each key, in the order of arrival.

    A chunk of unknown size counts ``chunk_size`` bytes. Chunks that are under way, or wait to be decoded, have to fit
    into the ``memory`` of all selections, but one chunk is always read. With ``threads``, or if
    chunks are computed from other bytes, ``take`` is called in threads, for several chunks at a time. The first error
    ends the read and its requests. The error names its key; if ``take`` raised it, ``undecoded`` is the key.
    """

    def __init__(
        self,
        keyspace: KeySpace,
        take: Take,
        engine: Callable[[], Engine],
        immediate: Immediate,
        *,
        chunk_size: int,
        memory: SharedMemory,
        threads: bool,
    ) -> None:
        self._keyspace, self._take, self._engine, self._immediate = keyspace, take, engine, immediate
        self._chunk_size = chunk_size
        self._threads = threads
        spare = max(ANSWER, chunk_size) + (WORKERS * chunk_size if threads else 0)  # for values decoded by threads
        self._share = Share(memory, spare)
        self._loop = asyncio.get_running_loop()
        self._far: deque[_Chunk] = deque()  # chunks that are not requested yet
        self._asked: dict[asyncio.Future[bytes | UnmadeBytes], _Chunk] = {}  # chunks that are requested
        # Chunks that a thread may read or decode, and chunks whose bytes have arrived: `_ready`, if threads decode.
        self._ready: deque[tuple[_Chunk, bytes | UnmadeBytes | None]] = deque()
        self._arrived: deque[tuple[_Chunk, bytes | UnmadeBytes | None]] = deque()
        self._jobs: set[asyncio.Future[None]] = set()  # running threads
        self._decoded: list[int] = []  # weights of decoded chunks, to be given back
        self._error: BaseException | None = None  # the first error
        self.undecoded: str | None = None  # the key of a chunk that could not be decoded
        self._has_asked = False
        self._is_over = False  # whether threads must take no further chunks
        self._woken = asyncio.Event()

    async def run(self, keys: Sequence[str]) -> None:
        """Read and decode ``keys``."""
        for first in range(0, len(keys), KEYS):
            if first:
                await asyncio.sleep(0)
            batch = keys[first : first + KEYS]
            found = self._immediate.find_all(self._keyspace, batch)
            for i, key in enumerate(batch):
                self._add(first + i, key, found[i])
        self._threads = self._threads or any(isinstance(chunk.entry, Packed) for chunk in self._far)
        if self._threads:
            self._arrived = self._ready
        try:
            self._advance()
            while self._asked or self._ready or self._jobs:
                await self._woken.wait()
                self._woken.clear()
                self._advance()
        finally:
            self._is_over = True
            if self._asked:
                self._engine().ahead.give_up()
            for future in self._asked:
                future.cancel()
            try:
                await self._wait_for_threads()
            finally:
                self._share.give_back(self._share.used)

    def _add(self, number: int, key: str, found: Outcome | None) -> None:
        entry = None if found is None else found.value
        size = None if entry is None else entry.size
        chunk = _Chunk(number, Request(key), entry, self._chunk_size if size is None else size)
        if found is not None and entry is None:
            self._ready.append((chunk._replace(weight=0), None))
        elif entry is not None and self._immediate.has(entry):
            self._ready.append((chunk._replace(is_near=True), None))
        else:
            self._far.append(chunk)

    def _advance(self) -> None:
        """Decode arrived chunks, unless threads do; request as many chunks as fit into memory; and start threads."""
        if self._error is not None:
            raise self._error
        while self._arrived and not self._threads:
            self._decoded.append(self._finish(*self._arrived.popleft()))
        while self._decoded:
            self._share.give_back(self._decoded.pop())
        # Requests are large if a part of the memory is free when they are made.
        if self._far and not self._share.lacks(self._share.most // SHARE, self._share.most):
            chunks = [self._far.popleft() for _ in range(self._share.take(chunk.weight for chunk in self._far))]
            requests, entries = [chunk.request for chunk in chunks], [chunk.entry for chunk in chunks]
            if not self._far and not self._has_asked:  # the whole selection is requested at once
                spans = [span for entry in entries if entry is not None for span in entry.spans]
                self._engine().ahead.note_selection(self._keyspace, [request.key for request in requests], spans)
            self._has_asked = True
            futures = self._engine().read_many(self._keyspace, requests, entries, make=not self._threads, is_paid=True)
            for chunk, future in zip(chunks, futures, strict=True):
                self._asked[future] = chunk
                future.add_done_callback(self._on_answer)
        for _ in range(min(WORKERS - len(self._jobs), len(self._ready))):
            job = self._loop.run_in_executor(None, self._decode_ready_chunks)
            self._jobs.add(job)
            job.add_done_callback(self._on_job_end)

    def _on_answer(self, future: asyncio.Future[bytes | UnmadeBytes]) -> None:
        chunk = self._asked.pop(future)
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is None or isinstance(error, FileNotFoundError):
            self._arrived.append((chunk, None if error else future.result()))
        self._wake(None if isinstance(error, FileNotFoundError) else error)

    def _on_job_end(self, job: asyncio.Future[None]) -> None:
        self._jobs.discard(job)
        self._wake(None if job.cancelled() else job.exception())  # asyncio logs errors that are never retrieved

    def _wake(self, error: BaseException | None) -> None:
        """Let `run` continue; after an error, end it."""
        self._error = self._error or error
        self._is_over = self._is_over or error is not None
        self._woken.set()

    def _decode_ready_chunks(self) -> None:
        """Read near chunks and decode, in a thread, until no chunk is ready or enough memory can be given back."""
        done = 0
        while done <= self._share.most // SHARE and not self._is_over:
            try:
                chunk, data = self._ready.popleft()
            except IndexError:
                break
            done += self._finish(chunk, data)
        self._decoded.append(done)

    def _finish(self, chunk: _Chunk, data: bytes | UnmadeBytes | None) -> int:
        """Pass one chunk to ``take``; return the bytes of memory that were reserved for it."""
        if isinstance(data, UnmadeBytes):
            unmade, data = data, None
            with contextlib.suppress(FileNotFoundError):  # the key does not exist
                data = unmade.make()
        if chunk.is_near and chunk.entry is not None:
            with contextlib.suppress(FileNotFoundError):  # in a hierarchy: the key does not exist
                data = self._immediate.take(chunk.request, chunk.entry)
                if data is None:  # an event loop is needed after all
                    self._loop.call_soon_threadsafe(self._far.append, chunk._replace(is_near=False))
                    return 0
        try:
            self._take(chunk.number, data)
        except Exception:
            self.undecoded = chunk.request.key
            raise
        return 0 if chunk.is_near else chunk.weight

    async def _wait_for_threads(self) -> None:
        """Wait for all threads, even if cancelled, since they write into the caller's memory."""
        try:
            while self._jobs:
                await asyncio.wait(self._jobs)
        except asyncio.CancelledError:
            await self._wait_for_threads()
            raise
