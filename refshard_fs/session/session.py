"""Reads of one source, by key: at once where that can be, else by the engine of the loop; and what will be read."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from fsspec.asyn import get_loop, sync

from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Packed, Span, Steps
from refshard_fs.core.selection import Mode
from refshard_fs.errors import RefShardError
from refshard_fs.reading.engine import Engine, Request
from refshard_fs.reading.failures import blame
from refshard_fs.reading.immediate import SMALL, Together
from refshard_fs.reading.plan import MIB, Limits, Planned, requests_for
from refshard_fs.reading.selection import Take, read_selection
from refshard_fs.session.arrays import Arrays
from refshard_fs.session.engines import running_loop
from refshard_fs.session.opening import Opening
from refshard_fs.session.options import SessionOptions
from refshard_fs.session.recognition import beneath, references_of

__all__ = ["Session", "SessionOptions"]

T = TypeVar("T")

PIECE = 8 * MIB  # of a large key, where it is read in order
PIECES = 4  # in memory at a time
PATIENCE = 0.1  # seconds in which another loop begins to read


class Session(Opening):
    """Reads of one source. Thread-safe."""

    def __init__(self, options: SessionOptions) -> None:
        super().__init__(options)
        self._arrays = Arrays(self.read, self.read_now)
        self._references: tuple[KeySpace, Mapping[str, Any]] | None = None
        if options.overlay is not None:
            options.overlay.join(self)

    async def read(self, request: Request) -> bytes:
        """Return the bytes of ``request``; FileNotFoundError means that there is no such key."""
        loop = asyncio.get_running_loop()
        self._home = weakref.ref(loop)  # also by metadata that are at hand: chunks will be read there
        keyspace = self._keyspace or self.opened() or await self.keyspace()
        engine = self._engines.get(loop)
        entry: Entry | None = None if engine is None else engine.ahead.place(keyspace, request.key)
        if entry is None:
            at_once = self._immediate or self._at_once_reader()
            entry = at_once.find(keyspace, request.key)
            data = None if entry is None else await at_once.take_soon(request, entry)
            if data is not None:
                return data
        engine = engine or self.engine()
        if len(self._engines) > 1:
            elsewhere = self._expecting(request.key)
            if elsewhere is not None:
                data = await self._read_there(*elsewhere, keyspace, request)
                if data is not None:
                    return data
        held = None if entry is None else engine.held(keyspace, request, entry)
        return await engine.read(keyspace, request, entry) if held is None else held

    async def _read_there(
        self, engine: Engine, loop: asyncio.AbstractEventLoop, keyspace: KeySpace, request: Request
    ) -> bytes | None:
        """Return what the engine of another loop reads; None where that does not get to it: it may be waiting for us.

        So is the loop of a notebook, while a cell reads.
        """
        begun = threading.Event()
        reading = _reading(engine, keyspace, request, begun)
        try:
            future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(reading, loop))
        except RuntimeError:  # it has been closed
            reading.close()
            return None
        try:
            while True:
                await asyncio.wait({future}, timeout=PATIENCE)
                if future.done():
                    return None if future.cancelled() else future.result()
                if not (begun.is_set() and loop.is_running()):
                    break
            self._deaf.add(loop)
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._deaf.discard, loop)
            return None
        finally:
            future.cancel()

    async def read_all(self, requests: list[Request], tell: Callable[[int], object] | None = None) -> list[Any]:
        """Return the bytes, or the error, of each request; ``tell(1)`` is called as each one ends."""
        keyspace = await self.keyspace()
        at_once = self._at_once_reader()
        out: list[Any] = [None] * len(requests)
        entries: dict[int, Entry | None] = {}
        for number, request in enumerate(requests):
            try:
                entries[number] = at_once.find(keyspace, request.key)
            except Exception as e:  # noqa: BLE001  # of this one alone
                out[number] = e
        size = 0
        slow_groups: list[Together] = []
        for group in at_once.together(_small(requests, entries)):
            if at_once.blocks(group.span):
                slow_groups.append(group)
                continue
            for number, part in at_once.take_together(group).items():
                out[number] = part
                size += len(part)
            size = await _yielding(size)
        for parts in await asyncio.gather(*[asyncio.to_thread(at_once.take_together, g) for g in slow_groups]):
            for number, part in parts.items():
                out[number] = part
        late: list[tuple[int, Request, Entry | None]] = []
        slow: list[tuple[int, Request, Entry]] = []
        for number, request in enumerate(requests):
            if out[number] is None:
                entry = entries[number]
                if entry is not None and at_once.blocks(entry):
                    slow.append((number, request, entry))
                    continue
                try:
                    data = None if entry is None else at_once.take(request, entry)
                except Exception as e:  # noqa: BLE001  # of this one alone
                    out[number] = e
                else:
                    if data is None:
                        late.append((number, request, entry))
                        continue
                    out[number] = data
                    size = await _yielding(size + len(data))
            if tell is not None:
                tell(1)
        taking = [asyncio.to_thread(at_once.take, request, entry) for _, request, entry in slow]
        for read, value in zip(slow, await asyncio.gather(*taking, return_exceptions=True), strict=True):
            out[read[0]] = value
            if value is None:
                late.append(read)
            elif tell is not None:
                tell(1)
        if not late:
            return out
        engine = self.engine()
        alone = len(requests) == 1  # several at once are all that the caller wants
        futures = [engine.read(keyspace, request, entry, guess=alone) for _, request, entry in late]
        if tell is not None:
            for future in futures:
                future.add_done_callback(lambda _: tell(1))
        for (number, _, _), value in zip(late, await asyncio.gather(*futures, return_exceptions=True), strict=True):
            out[number] = value
        return out

    async def read_selection(self, keys: Sequence[str], take: Take, *, chunk_size: int, threads: bool) -> None:
        """Read the chunks of one selection, each handed on as it comes: see `reading.selection`."""
        keyspace = await self.keyspace()
        await read_selection(
            keyspace,
            keys,
            take,
            engine=self.engine,
            immediate=self._at_once_reader(),
            elsewhere=self._read_elsewhere,
            chunk_size=chunk_size,
            max_memory=self.options.budget.memory,
            threads=threads,
        )

    def _read_elsewhere(self, request: Request) -> asyncio.Future[bytes] | None:
        """Return a future of what another event loop was told to fetch ahead; None where none was."""
        if len(self._engines) < 2 or self._expecting(request.key) is None:
            return None
        return asyncio.ensure_future(self.read(request))

    async def pieces(self, key: str, tell_size: Callable[[int], object]) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of ``key`` in order, in pieces of which few are in memory at a time."""
        entry = await self.find(key)
        size = entry.size
        if size is None or size <= PIECE or not isinstance(entry, Span):
            data = await self.read(Request(key))
            tell_size(len(data))
            yield data
            return
        tell_size(size)
        loop = asyncio.get_running_loop()
        coming: deque[asyncio.Task[bytes]] = deque()
        try:
            for start in range(0, size, PIECE):
                coming.append(loop.create_task(self.read(Request(key, start, min(start + PIECE, size)))))
                if len(coming) == PIECES:
                    yield await coming.popleft()
            while coming:
                yield await coming.popleft()
        finally:
            for task in coming:
                task.cancel()

    def open(self) -> KeySpace:
        """Return the opened source, for callers outside of event loops."""
        keyspace = self.opened_now()
        return self._wait(self.keyspace) if keyspace is None else keyspace

    def run(self, key: str, steps: Callable[[], Steps[T]]) -> T:
        """Return what ``steps()`` return, for callers outside of event loops; an error names ``key``."""
        found = self.look_now(key, steps())
        result: T = self._wait(self.look, key, steps()) if found is None else found.value
        return result

    def _wait(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        result: T = sync(get_loop(), function, *args)
        return result

    def references(self) -> Mapping[str, Any]:
        """Return the references of the source, without what was written since, as the mapping that their JSON is."""
        keyspace = beneath(self.open())
        if self._references is None or self._references[0] is not keyspace:
            self._references = keyspace, references_of(keyspace, self.run)
        return self._references[1]

    def read_now(self, request: Request) -> bytes | None:
        """Return the bytes of ``request`` if no event loop is needed for them; for callers that may block."""
        keyspace = self._keyspace or self.opened_now()
        return (
            None
            if keyspace is None
            else (self._immediate or self._at_once_reader()).read(keyspace, request, may_load=True)
        )

    async def find(self, key: str) -> Entry:
        """Return where the bytes of ``key`` are; FileNotFoundError if there is no such key."""
        keyspace = await self.keyspace()
        entry = await self.engine().run_for(key, keyspace.lookup(key))
        if entry is None:
            raise FileNotFoundError(key)
        return entry

    def find_now(self, key: str) -> Entry | None:
        """Return where the bytes of ``key`` are, if that takes no event loop; any thread may call this."""
        keyspace = self._keyspace or self.opened()
        return None if keyspace is None else self._at_once_reader().find(keyspace, key)

    async def plan(self, keys: Sequence[str]) -> list[Planned]:
        """Return the requests that reading ``keys`` would make; FileNotFoundError if one does not exist."""
        keyspace = await self.keyspace()
        spans: dict[tuple[str, Limits], list[tuple[str, int, int | None]]] = {}
        found = await self.engine().find_all(keyspace, keys)
        for key, entry in zip(keys, found, strict=True):
            match entry:
                case None:
                    raise FileNotFoundError(key)
                case Exception():
                    raise blame(key, entry) from entry
                case Span() | Packed():
                    for span in entry.spans:
                        limits = self.options.limits.dense if span.dense else self.options.limits
                        if span.apart:
                            limits = limits.apart
                        spans.setdefault((span.url, limits), []).append((key, span.start, span.stop))
        return [p for (url, limits), wanted in spans.items() for p in requests_for(url, wanted, limits)]

    async def prefetch(self, keys: Sequence[str], *, wait: bool) -> None:
        """Fetch ``keys``, which will be read, and hold them until they are; ``wait`` until all that fits is there.

        What fails is not reported: whoever reads the key will hear of it.
        """
        keyspace = await self.keyspace()
        ahead = self.engine().ahead
        announced = ahead.tell(keyspace, keys)
        if wait:
            await ahead.arrived(announced)

    async def keys_of(self, array: str, selection: Any, mode: Mode) -> list[str]:
        """Return the keys of the chunks of ``array`` that ``selection`` touches; ValueError if that is not known."""
        return await self._arrays.keys_of(array, selection, mode)

    def announce(self, array: str, selection: Any, mode: Mode, loop: asyncio.AbstractEventLoop | None) -> None:
        """Have ``loop``, which will read, fetch what ``selection`` touches, where that helps; from any thread."""
        keyspace = self._keyspace
        if loop is None or keyspace is None:
            return
        try:
            keys = self._arrays.keys_now(array, selection, mode)
            if len(keys) < 2 or self._is_near(keys[0]):
                return
        except (IndexError, ValueError, RefShardError):
            return  # the read will say what is wrong
        if loop is running_loop():
            self.engine().ahead.tell(keyspace, keys)
            return
        with contextlib.suppress(RuntimeError):  # it has been closed
            # zarr's own reads come to the loop the same way, and later
            loop.call_soon_threadsafe(lambda: self.engine().ahead.tell(keyspace, keys))

    def _is_near(self, key: str) -> bool:
        """Whether the bytes of ``key`` need no event loop, and so no fetching ahead."""
        with contextlib.suppress(FileNotFoundError):
            match self.find_now(key):
                case Inline():
                    return True
                case Span(url) | Packed(Span(url)):
                    return self._at_once_reader().reaches(url)
        return False


def _small(requests: Sequence[Request], entries: Mapping[int, Entry | None]) -> dict[int, Span]:
    """Return those of ``entries`` that are asked for as a whole, and small."""
    return {
        number: entry
        for number, entry in entries.items()
        if type(entry) is Span
        and entry.exact
        and entry.stop is not None
        and entry.stop - entry.start <= SMALL
        and requests[number].start is requests[number].end is None
    }


async def _yielding(size: int) -> int:
    """Return ``size``, or let whatever else there is to do on this loop go first, and return 0, where it is large."""
    if size <= PIECE:
        return size
    await asyncio.sleep(0)
    return 0


async def _reading(engine: Engine, keyspace: KeySpace, request: Request, begun: threading.Event) -> bytes:
    begun.set()
    return await engine.read(keyspace, request)
