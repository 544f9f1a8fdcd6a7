"""The one reader: look-ups advance in rounds, ranges are coalesced, every answer is checked.

One engine serves one event loop. Reads of the same tick become one batch: their look-ups
advance in lock-step, so that N keys cost one coalesced round of reads per level of
indirection; the windows that result are coalesced across keys and fetched concurrently,
together with what will probably be read next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Packed, Span, Stat
from refshard_fs.core.stats import Stats
from refshard_fs.core.zarrmeta import METADATA_NAMES
from refshard_fs.reading.dispatch import Reader
from refshard_fs.reading.failures import NoSuchKey, blame, cause_of, fail
from refshard_fs.reading.fetch import Fetcher
from refshard_fs.reading.loading import Answers, Found
from refshard_fs.reading.lookups import Lookups, part_of
from refshard_fs.reading.plan import KIB
from refshard_fs.reading.prefetch import Ahead, Asked

DOCUMENTS = tuple(sorted(METADATA_NAMES))
SMALL = 16 * KIB  # bytes that are decoded faster than a thread takes them over


class Request(msgspec.Struct, frozen=True, gc=False):
    """Bytes ``[start:end]`` of ``key``, as slicing would take them."""

    key: str
    start: int | None = None
    end: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all bytes of the key are asked for."""
        return self.start is None and self.end is None


class _Read(NamedTuple):
    """A request under way. ``entry`` is None if not known yet; ``guess``: it may tell what will be read next."""

    keyspace: KeySpace
    request: Request
    entry: Entry | None
    future: asyncio.Future[Any]
    guess: bool
    make: bool


class Unmade(NamedTuple):
    """The bytes of a packed entry before they are decoded."""

    key: str
    entry: Packed
    parts: Sequence[bytes | None]

    def make(self) -> bytes:
        """Return the bytes of the key; an error names it."""
        try:
            data = self.entry.finish(self.parts)
            if data is None:
                raise NoSuchKey
        except Exception as e:  # noqa: BLE001  # whatever it is, its reader is told
            raise fail(self.key, self.entry, e) from cause_of(e)
        return data

    async def made(self) -> bytes:
        """Return the bytes of the key, made in a thread where that takes long."""
        if max(sum(len(part or b"") for part in self.parts), self.entry.made or 0) < SMALL:
            return self.make()
        return await asyncio.to_thread(self.make)


def _stop_with_readers(task: asyncio.Task[None], futures: Sequence[asyncio.Future[bytes]]) -> None:
    """Cancel ``task``, which works for ``futures``, once all of these are cancelled; and these once it is."""
    left = len(futures)

    def ended(future: asyncio.Future[bytes]) -> None:
        nonlocal left
        left -= future.cancelled()
        if not left:
            task.cancel()

    def stopped(task: asyncio.Task[None]) -> None:  # perhaps before it began: then nothing in it can tell them
        if task.cancelled():
            for future in futures:
                future.cancel()

    task.add_done_callback(stopped)
    for future in futures:
        future.add_done_callback(ended)


def _pass_on(begun: asyncio.Future[Any], future: asyncio.Future[Any]) -> None:
    """Have ``future`` end as ``begun`` does, and end that if it is cancelled."""

    def ended(begun: asyncio.Future[Any]) -> None:
        if begun.cancelled():
            future.cancel()
        elif (error := begun.exception()) is not None and not future.done():
            future.set_exception(error)
        elif not future.done():
            future.set_result(begun.result())

    begun.add_done_callback(ended)
    future.add_done_callback(lambda future: begun.cancel() if future.cancelled() else None)


def _give_up(readers: Iterable[Reader]) -> None:
    """Wait no longer for what ``readers`` read."""
    for reader in readers:
        if not reader.future.cancel() and not reader.future.cancelled():
            reader.future.exception()  # asyncio logs errors that nobody asks for


def _fail(batch: Sequence[_Read], error: Exception) -> None:
    for read in batch:
        if not read.future.done():
            read.future.set_exception(blame(read.request.key, error))


class Engine(Lookups):
    """Reads keys of key spaces on one event loop; to be used from that loop only."""

    def __init__(
        self,
        fetcher: Fetcher,
        answers: Answers,
        stats: Stats,
        readahead: int,
        near: Callable[[Span], bool],
    ) -> None:
        """``readahead`` bounds what is guessed, in bytes; what is ``near`` is never fetched ahead."""
        super().__init__(fetcher, answers, stats)
        most = min(readahead, fetcher.requests.budget.ahead // 2)
        self.ahead = Ahead(self, most, near)
        fetcher.on_cancel = self.ahead.give_up
        self._batch: list[_Read] = []
        self.keeper: AsyncGenerator[None, None] | None = None  # lives as long as this engine, and closes it

    # ------------------------------------------------------------------ reading keys

    def read(self, keyspace: KeySpace, request: Request, entry: Entry | None = None) -> asyncio.Future[bytes]:
        """Return a future of the bytes of ``request``, as `read_many` does. What follows it may be guessed."""
        (future,) = self.read_many(keyspace, (request,), (entry,), guess=True)
        return future

    def read_many(
        self,
        keyspace: KeySpace,
        requests: Sequence[Request],
        entries: Sequence[Entry | None],
        *,
        guess: bool = False,
        make: bool = True,
    ) -> list[asyncio.Future[Any]]:
        """Return a future of the bytes of each of ``requests``, read with whatever else is asked for in this tick.

        ``entries`` are where they lie; None is looked up. ``guess``: the requests may tell what is asked for next. A
        future's exception is FileNotFoundError for a key that does not exist, and for no other reason. With ``make``
        false, a result may be an `Unmade` in place of bytes: the caller makes it, in a thread.

        No more than the budget's memory is under way at once. Results that nobody has taken do not count: a caller
        who cannot have all of them in memory asks for fewer at a time.
        """
        loop = asyncio.get_running_loop()
        if not self._batch and requests:
            loop.call_soon(self._depart)
        futures: list[asyncio.Future[Any]] = []
        for request, entry in zip(requests, entries, strict=True):
            future: asyncio.Future[Any] = loop.create_future()
            futures.append(future)
            self._batch.append(_Read(keyspace, request, entry, future, guess, make))
        return futures

    async def read_chunks(
        self, keyspace: KeySpace, keys: Sequence[str], found: Sequence[Found | None]
    ) -> list[bytes | Unmade | None]:
        """Return the bytes of whole chunks, read together; None of those that do not exist.

        What follows them may be guessed. ``found`` are where they lie, as far as that is known. What has to be made of
        several ranges, or decoded, is left to the caller.
        """
        entries: list[Entry | Exception | None] = [None if each is None else each.value for each in found]
        unknown = [place for place, each in enumerate(found) if each is None]
        some = [keys[place] for place in unknown]
        begun = {unknown[place]: reader for place, reader in self._begin(keyspace, some).items()}
        try:
            for place, entry in zip(
                unknown,
                await self.find_all(keyspace, some, reads=not self.fetcher.has_disk) if some else (),
                strict=True,
            ):
                entries[place] = entry
                if isinstance(entry, Exception):
                    raise blame(keys[place], entry)
        except BaseException:
            _give_up(begun.values())
            raise
        known = [entry for entry in entries if entry is not None and not isinstance(entry, Exception)]
        if some:
            self.ahead.open_parts(keyspace, some, [entries[place] for place in unknown])
        announced = sum(self.ahead.was_announced(key) for key in keys)
        if not announced:
            self.ahead.note_selection(keyspace, keys, [span for entry in known for span in entry.spans])
        loop = asyncio.get_running_loop()
        futures: list[list[asyncio.Future[bytes]]] = []
        readers: list[Reader] = []
        for place, (key, entry) in enumerate(zip(keys, entries, strict=True)):
            if place in begun and begun[place].span == entry:
                futures.append([begun.pop(place).future])
                continue
            spans = () if entry is None or isinstance(entry, Exception) else entry.spans
            futures.append([loop.create_future() for _ in spans])
            name = key if isinstance(entry, Span) else None
            readers += [Reader(name, span, future) for span, future in zip(spans, futures[-1], strict=True)]
        self.fetcher.read(readers)
        out: list[bytes | Unmade | None] = []
        try:
            for key, entry, parts in zip(keys, entries, futures, strict=True):
                match entry:
                    case Packed():
                        out.append(Unmade(key, entry, await self._arrived(key, entry, parts)))
                    case Span():
                        try:
                            out.append(await parts[0])
                        except FileNotFoundError:
                            out.append(None)
                    case Inline(data):
                        out.append(data)
                    case _:
                        out.append(None)
        finally:
            _give_up(begun.values())
            for future in chain(*futures):
                if not future.cancel() and not future.cancelled():
                    future.exception()  # asyncio logs errors that nobody asks for
        return out

    async def _arrived(self, key: str, entry: Packed, parts: Sequence[asyncio.Future[bytes]]) -> Sequence[bytes | None]:
        """Return the ranges of a packed entry once they are there."""
        self.stats.add(keys=1)
        try:
            return [await part_of(span, future) for span, future in zip(entry.spans, parts, strict=True)]
        except Exception as e:  # noqa: BLE001  # raised again, with its key
            raise fail(key, entry, e) from cause_of(e)

    def _depart(self) -> None:
        batch, self._batch = self._batch, []
        unknown: dict[KeySpace, list[_Read]] = {}
        for read in batch:
            if read.entry is None:
                unknown.setdefault(read.keyspace, []).append(read)
        try:
            self._serve([(read, read.entry) for read in batch if read.entry is not None])
            for keyspace, reads in unknown.items():
                task = self.start(self._look_up(keyspace, reads))
                _stop_with_readers(task, [read.future for read in reads])
        except Exception as e:  # a bug must not leave readers waiting
            _fail(batch, e)
            raise

    async def _look_up(self, keyspace: KeySpace, reads: Sequence[_Read]) -> None:
        """Look the keys of ``reads`` up, all in the same rounds, and fetch their bytes.

        Where only a read can tell whether a key is what it seems to be, its bytes come in the same round.
        """
        keys = [read.request.key for read in reads]
        begun: dict[asyncio.Future[Any], Reader] = {}
        try:
            if all(read.request.is_whole and not read.future.done() for read in reads):
                begun = {reads[place].future: reader for place, reader in self._begin(keyspace, keys).items()}
            async with self.ahead.full_shards(keyspace, keys):
                found = await self.find_all(keyspace, keys, reads=not self.fetcher.has_disk)
                self.ahead.open_parts(keyspace, keys, found)
                self._serve(zip(reads, found, strict=True), begun)
        except Exception as e:  # a bug must not leave readers waiting
            _fail(reads, e)
            raise
        finally:
            _give_up(begun.values())

    def _begin(self, keyspace: KeySpace, keys: Sequence[str]) -> dict[int, Reader]:
        """Fetch those of ``keys`` of which it is known where they probably lie, by their places."""
        loop = asyncio.get_running_loop()
        likely = keyspace.likely(keys)
        begun = {place: Reader(keys[place], span, loop.create_future()) for place, span in likely.items()}
        if begun:
            self.fetcher.read(begun.values())
        return begun

    def _serve(
        self,
        found: Iterable[tuple[_Read, Entry | Exception | None]],
        begun: dict[asyncio.Future[Any], Reader] | None = None,
    ) -> None:
        """Fetch the entries that were found, and tell the readers of the others.

        Those of ``begun`` are being fetched for some futures, and are left in it if they are not what was found.
        """
        readers: list[Reader] = []
        asked: list[Asked] = []
        for read, entry in found:
            request, future = read.request, read.future
            key = request.key
            if request.is_whole and not self.ahead.was_announced(key) and read.guess:
                spans = () if entry is None or isinstance(entry, Exception) else entry.spans
                asked.append(Asked(read.keyspace, (key,), spans))
            if future.done():
                continue
            match entry:
                case Span() if entry.size is not None or request.is_whole:
                    window = entry if request.is_whole else entry.window(request.start, request.end)
                    if begun and future in begun and begun[future].span == window:
                        _pass_on(begun.pop(future).future, future)
                    elif isinstance(window, Span):
                        most = self._answers.longest if key.endswith(DOCUMENTS) else None
                        readers.append(Reader(key, window, future, most))
                    else:
                        future.set_result(b"")
                case Inline():
                    future.set_result(entry.window(request.start, request.end).data)
                case None:
                    future.set_exception(FileNotFoundError(key))
                case Exception():
                    future.set_exception(blame(key, entry))
                case Span() | Packed():
                    _stop_with_readers(self.start(self._serve_slowly(entry, read)), [future])
        if asked:
            self.ahead.note(asked)
        if readers:
            self.fetcher.read(readers)

    async def _serve_slowly(self, entry: Span | Packed, read: _Read) -> None:
        """Serve what one range of known size cannot: windows of objects of unknown size, and packed entries."""
        key, start, end, future = read.request.key, read.request.start, read.request.end, read.future
        try:
            window = await self._window(entry, start, end)
            data: Any
            if isinstance(window, Packed):
                data = Unmade(key, window, await self._parts(window))
            else:
                data = await self._bytes(window)
        except Exception as e:  # noqa: BLE001  # the reader is told, whatever it is
            if not future.done():
                future.set_exception(fail(key, entry, e))
            return
        try:
            if isinstance(data, Unmade) and read.make:
                data = await data.made()
        except Exception as e:  # noqa: BLE001  # it names the key
            if not future.done():
                future.set_exception(e)
        else:
            self.stats.add(keys=1)
            if not future.done():
                future.set_result(data)

    async def _window(self, entry: Entry, start: int | None, end: int | None) -> Entry:
        """Return bytes ``[start:end]`` of ``entry``; the server is asked how many it has, if that is needed."""
        try:
            return entry.window(start, end)
        except ValueError:
            if not isinstance(entry, Span):
                raise
        facts = await self.need(Stat(entry.url, origin=entry.origin))
        if facts is None:
            raise FileNotFoundError(entry.url)
        if facts.size is None:  # the server does not tell
            return Inline(await self._bytes(entry)).window(start, end)
        return entry.resized(facts.size).window(start, end)
