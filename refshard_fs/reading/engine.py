"""The one reader: look-ups advance in rounds, ranges are coalesced, every answer is checked.

One engine serves one event loop. Reads of the same tick become one batch: their look-ups
advance in lock-step, so that N keys cost one coalesced round of reads per level of
indirection; the windows that result are coalesced across keys and fetched concurrently,
together with what will probably be read next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.keyspace import KeySpace
from refshard_fs.model import Entry, Facts, Index, Inline, Listed, Load, Names, Need, Packed, Span, Stat, Steps
from refshard_fs.reading.blocks import Block
from refshard_fs.reading.cache import Cache
from refshard_fs.reading.failures import ABSENT, blame, describe, fail, note, too_large
from refshard_fs.reading.fetch import Fetcher, Reader
from refshard_fs.reading.loading import Keep, load
from refshard_fs.reading.prefetch import Ahead, Chunk
from refshard_fs.reading.recall import bound, recalled
from refshard_fs.reading.sizes import sized
from refshard_fs.stats import Stats
from refshard_fs.targets import Pool, TooLarge, hold
from refshard_fs.targets.opened import Opened
from refshard_fs.zarrmeta import METADATA_NAMES

__all__ = ["DOCUMENTS", "Engine", "Request"]

T = TypeVar("T")

ASKED = 32  # questions for facts and names under way at once
DOCUMENTS = tuple(sorted(METADATA_NAMES))


class Request(NamedTuple):
    """Bytes ``[start:end]`` of ``key``, as slicing would take them."""

    key: str
    start: int | None = None
    end: int | None = None


class _Read(NamedTuple):
    """A request on its way, and whom it is for: None of one that is over."""

    keyspace: KeySpace
    request: Request
    future: asyncio.Future[bytes] | None
    guess: bool
    entry: Entry | None


class _Loading:
    """An answer that is being found, and how many wait for it."""

    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.waiting = 0


def _stop_with_readers(task: asyncio.Task[None], futures: Sequence[asyncio.Future[bytes]]) -> None:
    """Have ``task`` stopped once all of ``futures``, for which it works, were cancelled."""
    left = len(futures)

    def ended(future: asyncio.Future[bytes]) -> None:
        nonlocal left
        left -= future.cancelled()
        if not left:
            task.cancel()

    for future in futures:
        future.add_done_callback(ended)


class Engine:
    """Reads keys of key spaces on one event loop; to be used from that loop only."""

    def __init__(
        self,
        fetcher: Fetcher,
        cache: Cache,
        stats: Stats,
        token: object,
        readahead: int,
        near: Callable[[str], bool] = lambda url: False,
        longest: int | None = None,
    ) -> None:
        """Take what is read with; of a document or an index that has more than ``longest`` bytes, no more is read."""
        self.stats = stats
        self.fetcher = fetcher
        most = min(readahead, fetcher.requests.budget.ahead // 2)
        self.ahead = Ahead(fetcher, self.run_all, self._advance, self._start, most, near)
        fetcher.on_cancel = self.ahead.give_up
        self._cache = cache
        self._longest = longest
        self._token = token  # tells this filesystem's targets from others' in the shared cache
        self._asking = asyncio.Semaphore(ASKED)
        self._batch: list[_Read] = []
        self._soon: list[Reader] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self.keep: Keep | None = None  # where decoded indexes are kept from one process to the next
        self._loading: dict[Need, _Loading] = {}
        self.keeper: AsyncGenerator[None, None] | None = None  # lives as long as this engine, and closes it

    @property
    def pool(self) -> Pool:
        """The targets that are read."""
        return self.fetcher.requests.pool

    @pool.setter
    def pool(self, pool: Pool) -> None:
        self.fetcher.requests.pool = pool

    # ------------------------------------------------------------------ reading keys

    def read(
        self, keyspace: KeySpace, request: Request, entry: Entry | None = None, *, guess: bool = True
    ) -> asyncio.Future[bytes]:
        """Return a future of the bytes of ``request``, read with whatever else is asked in this tick.

        ``entry`` tells where they are, if that is known; ``guess`` whether it may tell what will be asked next.

        Its exception is FileNotFoundError for a key that does not exist, and that alone.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        if not self._batch:
            loop.call_soon(self._depart)
        self._batch.append(_Read(keyspace, request, future, guess, entry))
        return future

    def held(self, keyspace: KeySpace, request: Request, entry: Entry) -> bytes | None:
        """Return the bytes of ``request``, which are at ``entry``, if they have arrived before they were asked for."""
        if not isinstance(entry, Span) or request.start is not None or request.end is not None:
            return None
        data = self.fetcher.take(entry)
        if data is not None:  # what to fetch next is guessed from all that is read in this tick
            if not self._batch:
                asyncio.get_running_loop().call_soon(self._depart)
            self._batch.append(_Read(keyspace, request, None, True, entry))
        return data

    def _depart(self) -> None:
        batch, self._batch = self._batch, []
        results: list[Any] = [read.entry for read in batch]
        waiting: list[tuple[int, Any]] = []
        many: dict[int, Steps[Entry | None]] = {}
        for i, (keyspace, request, _, _, entry) in enumerate(batch):
            if entry is None:
                many[i] = keyspace.lookup(request.key)
                self._advance(results, waiting, i, many[i], None)
        if not waiting:
            self._serve(batch, results)
            return
        # Those that are found wait for nobody.
        late = {i for i, _ in waiting}
        found = [i for i in range(len(batch)) if i not in late]
        self._serve([batch[i] for i in found], [results[i] for i in found])
        self.ahead.scout((batch[i].keyspace, batch[i].request.key) for i, _ in waiting if batch[i].guess)
        reads = [batch[i] for i, _ in waiting]
        task = self._start(self._serve_late(reads, [many[i] for i, _ in waiting], waiting))
        _stop_with_readers(task, [read.future for read in reads if read.future is not None])

    async def _serve_late(
        self, batch: list[_Read], many: list[Steps[Entry | None]], waiting: list[tuple[int, Any]]
    ) -> None:
        begun: list[Block] = []
        try:
            results: list[Any] = [None] * len(batch)
            keyspace = batch[0].keyspace
            keys = [read.request.key for read in batch if read.keyspace is keyspace]
            begun = await self.ahead.begin(keyspace, keys)
            await self._drive(results, [(i, need) for i, (_, need) in enumerate(waiting)], many)
            self._serve(batch, results)
        except asyncio.CancelledError:
            for read in batch:
                if read.future is not None:
                    read.future.cancel()
            raise
        except Exception as e:  # a bug must not leave readers waiting
            for _, request, future, _, _ in batch:
                if future is not None and not future.done():
                    future.set_exception(blame(request.key, e))
            raise
        finally:
            self.fetcher.release(begun)

    def _serve(self, batch: Sequence[_Read], found: Sequence[Entry | Exception | None]) -> None:
        """Fetch the entries that were found, and tell the readers of the others."""
        readers: list[Reader] = []
        chunks: list[Chunk] = []
        for (keyspace, request, future, guess, _), entry in zip(batch, found, strict=True):
            key, start, end = request
            if future is None:
                chunks.append(Chunk(keyspace, key, entry if isinstance(entry, Span) else None, guess))
                continue
            if future.done():
                continue
            match entry:
                case Span() if entry.size is not None or (start is None and end is None):
                    window = entry if start is None and end is None else entry.window(start, end)
                    if window is entry:
                        chunks.append(Chunk(keyspace, key, entry, guess))
                    if isinstance(window, Span):
                        most = self._longest if key.endswith(DOCUMENTS) else None
                        readers.append(Reader(key, window, future, most))
                    else:
                        future.set_result(b"")
                case Inline():
                    future.set_result(entry.window(start, end).data)
                case None:
                    chunks.append(Chunk(keyspace, key, None, guess))
                    future.set_exception(FileNotFoundError(key))
                case Exception():
                    future.set_exception(blame(key, entry))
                case Span() | Packed():
                    _stop_with_readers(self._start(self._serve_slowly(entry, request, future)), [future])
        ahead = self.ahead.note(chunks)
        if readers or ahead:
            self.fetcher.read(readers, ahead)

    async def _serve_slowly(self, entry: Span | Packed, request: Request, future: asyncio.Future[bytes]) -> None:
        """Serve what one range of known size cannot: windows of objects of unknown size, and packed entries."""
        key, start, end = request
        try:
            window = await self._window(entry, start, end)
            data = await self._bytes(window)
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as e:  # noqa: BLE001  # the reader is told, whatever it is
            if not future.done():
                future.set_exception(fail(key, entry, e))
        else:
            self.stats.add(keys=1)
            if not future.done():
                future.set_result(data)

    async def _window(self, entry: Entry, start: int | None, end: int | None) -> Entry:
        try:
            return entry.window(start, end)
        except ValueError:
            if not isinstance(entry, Span):
                raise
            facts = await self.need(Stat(entry.url))
            if facts is None or facts.size is None:
                raise FileNotFoundError(entry.url) from None
            return entry.resized(facts.size).window(start, end)

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------------ driving look-ups

    async def run(self, steps: Steps[T]) -> T:
        """Return what ``steps`` return, meeting every need on the way."""
        (result,) = await self.run_all([steps])
        if isinstance(result, Exception):
            raise result
        return result

    async def run_for(self, key: str, steps: Steps[T]) -> T:
        """Return what ``steps`` return; an error names ``key`` and is never taken for a missing one."""
        (result,) = await self.run_all([steps])
        if isinstance(result, Exception):
            raise blame(key, result) from result
        return result

    async def need_for(self, key: str, need: Need) -> Any:
        """Return the answer to ``need``; an error names ``key``."""
        try:
            return await self.need(need)
        except Exception as e:  # raised again, with the key it is about
            raise blame(key, e) from e

    async def run_all(self, many: Sequence[Steps[T]]) -> list[T | Exception]:
        """Drive ``many`` look-ups in lock-step: the needs of one round are met together."""
        results: list[Any] = [None] * len(many)
        waiting: list[tuple[int, Need | tuple[Need, ...]]] = []
        for i, steps in enumerate(many):
            self._advance(results, waiting, i, steps, None)
        await self._drive(results, waiting, many)
        return results

    async def _drive(
        self, results: list[Any], waiting: list[tuple[int, Need | tuple[Need, ...]]], many: Sequence[Steps[Any]]
    ) -> None:
        while waiting:
            answers = await self._meet([need for _, need in waiting])
            asked, waiting = waiting, []
            for (i, _), answer in zip(asked, answers, strict=True):
                self._advance(results, waiting, i, many[i], answer)

    def _advance(
        self, results: list[Any], waiting: list[tuple[int, Any]], i: int, steps: Steps[Any], answer: Any
    ) -> None:
        """Send ``answer`` to look-up ``i``, and whatever else it needs that is remembered."""
        try:
            need = steps.throw(answer) if isinstance(answer, BaseException) else steps.send(answer)
            while not isinstance(need, tuple) and (known := self._known(need)) is not None:
                self.stats.add(cache_hits=1)
                need = steps.send(known)
        except StopIteration as stop:
            results[i] = stop.value
        except Exception as e:  # noqa: BLE001  # handed to the one look-up that failed; the others go on
            results[i] = e
        else:
            waiting.append((i, need))

    def _known(self, need: Need) -> Any:
        if isinstance(need, Stat) and need.fresh:
            return None
        return recalled(self._cache.get((self._token, need)), self.pool)

    async def need(self, need: Need) -> Any:
        """Return the answer to one need; asked by several at once, it is met once."""
        known = self._known(need)
        if known is not None:
            self.stats.add(cache_hits=1)
            return known
        loading = self._loading.get(need)
        if loading is None:
            loading = self._loading[need] = _Loading(self._start(self._answer(need)))
            loading.task.add_done_callback(lambda task: self._loaded(need, task))
        loading.waiting += 1
        try:
            return await asyncio.shield(loading.task)
        finally:
            loading.waiting -= 1
            if not loading.waiting and not loading.task.done():  # all who waited were cancelled
                self._loaded(need, loading.task)
                loading.task.cancel()

    def _loaded(self, need: Need, task: asyncio.Task[Any]) -> None:
        loading = self._loading.get(need)
        if loading is not None and loading.task is task:
            del self._loading[need]

    async def _meet(self, needs: Sequence[Need | tuple[Need, ...]]) -> list[Any]:
        distinct = list(dict.fromkeys(n for need in needs for n in (need if isinstance(need, tuple) else (need,))))
        answers = await asyncio.gather(*map(self.need, distinct), return_exceptions=True)
        flat: dict[Need, Any] = dict(zip(distinct, answers, strict=True))
        out: list[Any] = []
        for need in needs:
            if isinstance(need, tuple):
                some = tuple(flat[n] for n in need)
                failed = next((a for a in some if isinstance(a, BaseException)), None)
                out.append(failed if failed is not None else some)
            else:
                out.append(flat[need])
        return out

    async def _answer(self, need: Need) -> Any:
        try:
            return await self._met(need)
        except Exception as e:
            note(e, need)
            raise

    async def _met(self, need: Need) -> Any:
        quota = None
        match need:
            case Load(entry, index):
                try:
                    value, weight = await load(self._token, need, self._document, self._cache, self.keep, self._sized)
                except TooLarge as e:
                    raise ManifestError(too_large(describe(entry), e.most)) from e
                except ABSENT:
                    if isinstance(entry, Span) and entry.optional:
                        return None
                    raise
                except RefShardError:
                    raise
                except ValueError as e:
                    raise DamagedIndex("", describe(entry), str(e)) from e
                quota = getattr(index, "quota", None)
            case Stat(url):
                value, weight = await self._facts(url), 256
            case Names(url):
                return await self._names(url)
        if value is not None:
            self._cache.put((self._token, need), bound(need, value, self.pool), weight, quota)
        return value

    async def _document(self, entry: Entry) -> bytes:
        """Return the bytes of what is decoded here: they have a bound, whoever says how many they are."""
        source = entry.source if isinstance(entry, Packed) else entry
        hold(source.size, self._longest)
        return await self._bytes(entry, self._longest)

    async def _bytes(self, entry: Entry, most: int | None = None) -> bytes:
        match entry:
            case Inline(data):
                return data
            case Span():
                return await self._fetched(entry, most)
            case Packed():
                parts = await asyncio.gather(*[self._fetched(span, most) for span in entry.spans])
                return entry.finish(parts[0] if len(parts) == 1 else b"".join(parts))

    def _sized(self, need: Load) -> Index:
        return sized(need, self.pool)

    def _fetched(self, span: Span, most: int | None) -> asyncio.Future[bytes]:
        """Return a future of the bytes of ``span``, merged with whatever else is fetched in this tick."""
        loop = asyncio.get_running_loop()
        if not self._soon:
            loop.call_soon(self._fetch_soon)
        reader = Reader(None, span, loop.create_future(), most)
        self._soon.append(reader)
        return reader.future

    def _fetch_soon(self) -> None:
        readers, self._soon = self._soon, []
        self.fetcher.read(readers)

    async def _facts(self, url: str) -> Facts | None:
        target, path = self._place(url)
        try:
            async with self._asking:
                return await target.facts(path)
        except ABSENT:
            return None

    async def _names(self, url: str) -> tuple[Listed, ...] | None:
        target, path = self._place(url)
        try:
            async with self._asking:
                return await target.names(path)
        except ABSENT:
            return None

    def _place(self, url: str) -> tuple[Opened, str]:
        place = self.pool.place(url)
        if place is None:
            raise RuntimeError(f"{url} cannot be opened on this event loop")
        return place

    async def close(self) -> None:
        """Stop what is under way and let go of connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.fetcher.close()
        await self.pool.close()
