"""Read keys on an event loop: look-ups advance in rounds, ranges are merged, and every answer is checked.

One engine serves one event loop. Reads of the same turn of the loop become one batch: their look-ups advance together,
so that N keys cost one round of merged reads for each level of indirection. The resulting ranges are merged across keys
and fetched concurrently, together with ranges that will probably be read next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Packed, Span, Stat
from refshard_fs.core.stats import Stats
from refshard_fs.reading.dispatch import Reader
from refshard_fs.reading.failures import make_read_error, name_key
from refshard_fs.reading.fetch import Fetcher
from refshard_fs.reading.immediate import Immediate
from refshard_fs.reading.loading import Answers, Outcome
from refshard_fs.reading.lookups import Lookups
from refshard_fs.reading.plan import ReadPlan, Request, UnmadeBytes, plan_read
from refshard_fs.reading.prefetch import KeysRead, Prefetcher


class _Read(NamedTuple):
    """A request for a key, and the future of its bytes; ``entry`` is None if the key was not looked up.

    The other fields are as in `Engine.read_many`.
    """

    keyspace: KeySpace
    request: Request
    entry: Entry | None
    future: asyncio.Future[Any]
    guess: bool
    make: bool
    is_paid: bool = False


def _stop_with_readers(task: asyncio.Task[None], futures: Sequence[asyncio.Future[bytes]]) -> None:
    """Cancel ``task`` when all ``futures`` that it sets are cancelled, and the futures when the task is cancelled."""
    waiting = len(futures)

    def on_future_done(future: asyncio.Future[bytes]) -> None:
        nonlocal waiting
        waiting -= future.cancelled()
        if not waiting:
            task.cancel()

    def on_task_done(task: asyncio.Task[None]) -> None:  # a task that never began cannot cancel its futures itself
        if task.cancelled():
            for future in futures:
                future.cancel()

    task.add_done_callback(on_task_done)
    for future in futures:
        future.add_done_callback(on_future_done)


def _copy_result(begun: asyncio.Future[Any], future: asyncio.Future[Any]) -> None:
    """Set ``future`` to the later result or error of ``begun``; cancel ``begun`` if ``future`` is cancelled."""

    def on_done(begun: asyncio.Future[Any]) -> None:
        if begun.cancelled():
            future.cancel()
        elif (error := begun.exception()) is not None and not future.done():
            future.set_exception(error)
        elif not future.done():
            future.set_result(begun.result())

    begun.add_done_callback(on_done)
    future.add_done_callback(lambda future: begun.cancel() if future.cancelled() else None)


def _cancel_all(readers: Iterable[Reader | _Read]) -> None:
    """Cancel the futures of ``readers``."""
    for reader in readers:
        if not reader.future.cancel() and not reader.future.cancelled():
            reader.future.exception()  # asyncio logs errors that are never retrieved


def _fail(batch: Sequence[_Read], error: Exception) -> None:
    for read in batch:
        if not read.future.done():
            read.future.set_exception(name_key(read.request.key, error))


class Engine(Lookups):
    """Read keys of key spaces on one event loop; use it only from this loop."""

    def __init__(
        self,
        fetcher: Fetcher,
        answers: Answers,
        stats: Stats,
        readahead: int,
        immediate: Immediate,
    ) -> None:
        """Limit predicted reads to ``readahead`` bytes; ranges that ``immediate`` can read are never fetched ahead."""
        super().__init__(fetcher, answers, stats)
        most = min(readahead, fetcher.requests.budget.ahead // 2)
        self.ahead = Prefetcher(self, most, immediate)
        fetcher.most_ahead = most
        self._batch: list[_Read] = []
        self._closing = self._close_with_loop()
        with contextlib.suppress(StopIteration):
            self._closing.__anext__().send(None)

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """Close this engine when its loop shuts down, since asyncio then closes all running generators."""
        try:
            yield
        finally:
            await self.close()

    def read(self, keyspace: KeySpace, request: Request, entry: Entry | None = None) -> asyncio.Future[bytes]:
        """Return a future of the bytes of ``request``, as `read_many` does; later reads may be predicted from it."""
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
        is_paid: bool = False,
    ) -> list[asyncio.Future[Any]]:
        """Return futures of the bytes of ``requests``; all requests of one turn of the loop are read together.

        ``entries`` are the entries of the keys; None is looked up. ``guess``: later reads may be predicted from these.
        A future's exception is FileNotFoundError for a key that does not exist, and never for another reason. With
        ``make`` false, a result may be an `UnmadeBytes` in place of bytes: the caller makes the bytes, in a thread.

        Requests under way take at most the budget's memory. With ``is_paid``, the caller has reserved memory for the
        results. Otherwise the memory of results is not counted: the caller must request only as many as it can hold.
        """
        loop = asyncio.get_running_loop()
        if not self._batch and requests:
            loop.call_soon(self._serve_batch)
        futures: list[asyncio.Future[Any]] = []
        for request, entry in zip(requests, entries, strict=True):
            future: asyncio.Future[Any] = loop.create_future()
            if guess:
                future.add_done_callback(self._on_read_end)
            futures.append(future)
            self._batch.append(_Read(keyspace, request, entry, future, guess, make, is_paid))
        return futures

    def _on_read_end(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():  # the reader has stopped: no reads will follow
            self.ahead.give_up()

    async def read_chunks(
        self, keyspace: KeySpace, keys: Sequence[str], found: Sequence[Outcome | None], *, guess: bool
    ) -> list[bytes | UnmadeBytes | None]:
        """Return the bytes of chunks, read together; None for chunks that do not exist.

        ``found`` are the entries that are known. Chunks that have to be decoded, or joined from several ranges, are
        returned as `UnmadeBytes`. ``guess``: later reads may be predicted from these.
        """
        loop = asyncio.get_running_loop()
        reads = [_Read(keyspace, Request(key), None, loop.create_future(), guess=False, make=False) for key in keys]
        entries: list[Entry | Exception | None] = [None if known is None else known.value for known in found]
        unknown = [place for place, known in enumerate(found) if known is None]
        unknown_keys = [keys[place] for place in unknown]
        begun = {reads[unknown[place]].future: reader for place, reader in self._begin(keyspace, unknown_keys).items()}
        try:
            if unknown_keys:
                self.ahead.begin_look_up(keyspace, unknown_keys)
                looked_up = await self.find_all(keyspace, unknown_keys, reads=not self.fetcher.has_disk)
                for place, entry in zip(unknown, looked_up, strict=True):
                    entries[place] = entry
                self.ahead.end_look_up(keyspace, unknown_keys, looked_up)
            if not sum(self.ahead.was_announced(key) for key in keys) and guess:
                existing = [entry for entry in entries if entry is not None and not isinstance(entry, Exception)]
                self.ahead.note_selection(keyspace, keys, [span for entry in existing for span in entry.spans])
            self._serve(zip(reads, entries, strict=True), begun)
            out: list[bytes | UnmadeBytes | None] = []
            for read in reads:
                try:
                    out.append(await read.future)
                except FileNotFoundError:
                    out.append(None)
            return out
        except asyncio.CancelledError:
            self.ahead.give_up()
            raise
        finally:
            _cancel_all(chain(begun.values(), reads))

    def _serve_batch(self) -> None:
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
        """Look up the keys of ``reads`` in the same rounds, and fetch their bytes.

        If only a read can confirm where a key lies, the bytes at its probable place are fetched in the same round.
        """
        keys = [read.request.key for read in reads]
        begun: dict[asyncio.Future[Any], Reader] = {}
        try:
            if all(read.request.is_whole and not read.future.done() for read in reads):
                begun = {reads[place].future: reader for place, reader in self._begin(keyspace, keys).items()}
            async with self.ahead.fetch_full_shards(keyspace, keys):
                self.ahead.begin_look_up(keyspace, keys)
                found = await self.find_all(keyspace, keys, reads=not self.fetcher.has_disk)
                self.ahead.end_look_up(keyspace, keys, found)
                self._serve(zip(reads, found, strict=True), begun)
        except Exception as e:  # a bug must not leave readers waiting
            _fail(reads, e)
            raise
        finally:
            _cancel_all(begun.values())

    def _begin(self, keyspace: KeySpace, keys: Sequence[str]) -> dict[int, Reader]:
        """Begin to fetch the ``keys`` with a probable place; return their readers by position."""
        loop = asyncio.get_running_loop()
        likely = keyspace.find_likely_spans(keys)
        begun = {place: Reader(keys[place], span, loop.create_future()) for place, span in likely.items()}
        if begun:
            self.fetcher.read(begun.values())
        return begun

    def _serve(
        self,
        found: Iterable[tuple[_Read, Entry | Exception | None]],
        begun: dict[asyncio.Future[Any], Reader] | None = None,
    ) -> None:
        """Fetch the bytes of reads by their entries; a read without an entry gets its error.

        ``begun`` has the readers of probable places, by the future of the read. A reader whose place was right is
        removed from ``begun``.
        """
        readers: list[Reader] = []
        whole_reads: list[KeysRead] = []
        for read, entry in found:
            request, future = read.request, read.future
            key = request.key
            if request.is_whole and read.guess and not self.ahead.was_announced(key):
                spans = () if entry is None or isinstance(entry, Exception) else entry.spans
                whole_reads.append(KeysRead(read.keyspace, (key,), spans))
            if future.done():
                continue
            if entry is None or isinstance(entry, Exception):
                future.set_exception(FileNotFoundError(key) if entry is None else name_key(key, entry))
                continue
            try:
                plan = plan_read(request, entry, self._answers.longest)
            except Exception as e:  # noqa: BLE001  # the future gets any error
                future.set_exception(e)
                continue
            window = None if plan is None else plan.window
            if plan is None:
                _stop_with_readers(self.start(self._read_sized(entry, read)), [future])
            elif isinstance(window, Inline):
                future.set_result(window.data)
            elif isinstance(window, Packed):
                readers += self._begin_parts(plan, read)
            elif begun and future in begun and begun[future].span == window:
                _copy_result(begun.pop(future).future, future)
            elif isinstance(window, Span):
                readers.append(Reader(key, window, future, plan.most, is_paid=read.is_paid))
        if whole_reads:
            self.ahead.note(whole_reads)
        if readers:
            self.fetcher.read(readers)

    def _begin_parts(self, plan: ReadPlan, read: _Read) -> list[Reader]:
        """Return readers of the ranges of ``plan``; when all ranges have arrived, they are assembled for ``read``."""
        loop, paid = asyncio.get_running_loop(), read.is_paid
        spans = plan.window.spans
        readers = [Reader(None, span, loop.create_future(), plan.most, is_paid=paid) for span in spans]
        left = len(readers)

        def on_arrival(_: asyncio.Future[bytes]) -> None:
            nonlocal left
            left -= 1
            future = read.future
            if left or future.done():
                return
            if any(reader.future.cancelled() for reader in readers):
                future.cancel()
                return
            unmade = UnmadeBytes(plan, [reader.future.exception() or reader.future.result() for reader in readers])
            self.stats.add(keys=1)
            if not read.make:
                future.set_result(unmade)
            elif unmade.is_small:
                _set_result_of(future, unmade.make)
            else:
                task = self.start(asyncio.to_thread(unmade.make))
                _copy_result(task, future)

        def on_end(future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                _cancel_all(readers)

        for reader in readers:
            reader.future.add_done_callback(on_arrival)
        read.future.add_done_callback(on_end)
        return readers

    async def _read_sized(self, span: Entry, read: _Read) -> None:
        """Serve a slice of an object whose size has to be requested first."""
        key, start, end, future = read.request.key, read.request.start, read.request.end, read.future
        assert isinstance(span, Span), "the sizes of all other entries are in the plan"
        try:
            facts = await self.need(Stat(span.url, origin=span.origin))
            if facts is None:
                raise FileNotFoundError(span.url)
            if facts.size is None:  # the server does not report it
                plan = ReadPlan(None, span, cut=slice(start, end))
            else:
                plan = ReadPlan(None, span.resolve_end(facts.size).take_window(start, end))
            data = await self._read(plan)
        except Exception as e:  # noqa: BLE001  # the future gets any error
            if not future.done():
                future.set_exception(make_read_error(key, span, e))
        else:
            self.stats.add(keys=1)
            if not future.done():
                future.set_result(data)


def _set_result_of(future: asyncio.Future[bytes], make: Callable[[], bytes]) -> None:
    """Set ``future`` to the result or the error of ``make``."""
    try:
        future.set_result(make())
    except Exception as e:  # noqa: BLE001  # the future gets any error
        future.set_exception(e)
