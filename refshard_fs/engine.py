"""The one reader: look-ups advance in rounds, ranges are coalesced, every answer is checked.

One engine serves one event loop. Reads of the same tick become one batch: their look-ups
advance in lock-step, so that N keys cost one coalesced round of reads per level of
indirection; the windows that result are coalesced across keys and fetched concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from refshard_fs import plan
from refshard_fs.cache import Cache
from refshard_fs.errors import DamagedIndex, ReferenceNotReachable, RefShardError
from refshard_fs.keyspace import KeySpace
from refshard_fs.loading import Keep, load
from refshard_fs.model import Entry, Facts, Inline, Listed, Load, Names, Need, Packed, Span, Stat, Steps
from refshard_fs.stats import Stats
from refshard_fs.targets import Answer, Pool, check

__all__ = ["Engine", "Request", "blame", "fail"]

T = TypeVar("T")

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
REQUESTS = 32  # under way at once


class Request(NamedTuple):
    """Bytes ``[start:end]`` of ``key``, as slicing would take them."""

    key: str
    start: int | None = None
    end: int | None = None


def _set(future: asyncio.Future[bytes], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class _Flight:
    """A fetch under way that several readers wait for; it ends early when the last of them gives up."""

    __slots__ = ("future", "task", "waiting")

    def __init__(self, task: asyncio.Task[None], futures: Iterable[asyncio.Future[bytes]]) -> None:
        self.task = task
        self.waiting = 0
        for future in futures:
            self.waiting += 1
            future.add_done_callback(self._left)

    def _left(self, future: asyncio.Future[bytes]) -> None:
        self.waiting -= 1
        if self.waiting == 0 and future.cancelled():
            self.task.cancel()


class Engine:
    """Reads keys of key spaces on one event loop; to be used from that loop only."""

    def __init__(self, pool: Pool, cache: Cache, limits: plan.Limits, stats: Stats, token: object) -> None:
        self.pool = pool
        self.limits = limits
        self.stats = stats
        self._cache = cache
        self._token = token  # tells this filesystem's targets from others' in the shared cache
        self._slots = asyncio.Semaphore(REQUESTS)
        self._batch: list[tuple[KeySpace, Request, asyncio.Future[bytes]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.keeper: AsyncGenerator[None, None] | None = None  # lives as long as this engine, and closes it
        self.keep: Keep | None = None  # where decoded indexes are kept from one process to the next
        self._loading: dict[Need, asyncio.Task[Any]] = {}

    # ------------------------------------------------------------------ reading keys

    def read(self, keyspace: KeySpace, request: Request) -> asyncio.Future[bytes]:
        """Return a future of the bytes of ``request``, read with whatever else is asked in this tick.

        Its exception is FileNotFoundError for a key that does not exist, and that alone.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        if not self._batch:
            loop.call_soon(self._depart)
        self._batch.append((keyspace, request, future))
        return future

    def _depart(self) -> None:
        batch, self._batch = self._batch, []
        live = [item for item in batch if not item[2].done()]
        if live:
            self._start(self._serve(live))

    def _start(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, batch: list[tuple[KeySpace, Request, asyncio.Future[bytes]]]) -> None:
        try:
            found = await self.run_all([keyspace.lookup(r.key) for keyspace, r, _ in batch])
            wanted: list[tuple[str, Entry, asyncio.Future[bytes]]] = []
            for (_, request, future), entry in zip(batch, found, strict=True):
                if future.done():
                    continue
                if entry is None:
                    future.set_exception(FileNotFoundError(request.key))
                elif isinstance(entry, Exception):
                    future.set_exception(blame(request.key, entry))
                else:
                    try:
                        window = await self._window(entry, request.start, request.end)
                    except (RefShardError, OSError, ValueError) as e:
                        _set(future, fail(request.key, entry, e))
                    else:
                        wanted.append((request.key, window, future))
            self._fetch(wanted)
        except asyncio.CancelledError:
            for _, _, future in batch:
                future.cancel()
            raise
        except Exception as e:  # a bug must not leave readers waiting
            for _, request, future in batch:
                _set(future, blame(request.key, e))
            raise

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

    # ------------------------------------------------------------------ fetching entries

    def _fetch(self, wanted: Sequence[tuple[str, Entry, asyncio.Future[bytes]]]) -> None:
        """Start the reads of ``wanted`` entries; each future gets its bytes, or an error that names its key."""
        self.stats.add(keys=len(wanted))
        ranges: dict[str, list[tuple[str, Span, asyncio.Future[bytes]]]] = {}
        for key, entry, future in wanted:
            match entry:
                case Inline(data):
                    if not future.done():
                        future.set_result(data)
                case Packed():
                    self._start(self._unpack(key, entry, future))
                case Span(url=url, stop=stop, exact=exact) if stop is not None and exact:
                    ranges.setdefault(url, []).append((key, entry, future))
                case Span():
                    task = self._start(self._read_alone(key, entry, future))
                    _Flight(task, [future])
        for url, members in ranges.items():
            for block in plan.coalesce([(s.start, s.stop or 0) for _, s, _ in members], self.limits):
                some = [members[i] for i in block.members]
                task = self._start(self._read_block(url, block, some))
                _Flight(task, [future for _, _, future in some])

    async def _read_block(
        self, url: str, block: plan.Block, members: list[tuple[str, Span, asyncio.Future[bytes]]]
    ) -> None:
        try:
            answer = await self._request(Span(url, block.start, block.stop, pin=members[0][1].pin))
        except Exception as e:  # noqa: BLE001  # whatever it is, no reader may wait for ever
            for key, span, future in members:
                _set(future, fail(key, span, e))
            return
        view = memoryview(answer.data)
        wanted = 0
        for _, span, future in members:
            size = span.size or 0
            wanted += size
            if not future.done():
                first = span.start - block.start
                future.set_result(answer.data if size == len(view) else bytes(view[first : first + size]))
        self.stats.add(bytes_wanted=wanted)

    async def _read_alone(self, key: str, span: Span, future: asyncio.Future[bytes]) -> None:
        try:
            answer = await self._request(span)
        except Exception as e:  # noqa: BLE001  # as above
            _set(future, fail(key, span, e))
            return
        self.stats.add(bytes_wanted=len(answer.data))
        if not future.done():
            future.set_result(answer.data)

    async def _unpack(self, key: str, entry: Packed, future: asyncio.Future[bytes]) -> None:
        try:
            data = entry.finish((await self._request(entry.source)).data)
        except Exception as e:  # noqa: BLE001  # as above
            _set(future, fail(key, entry.source, e))
            return
        if not future.done():
            future.set_result(data)

    async def _request(self, span: Span) -> Answer:
        """Return the checked answer of one request; FileNotFoundError if there is no such object."""
        place = self.pool.place(span.url)
        if place is None:
            raise RuntimeError(f"{span.url} cannot be opened on this event loop")
        target, path = place
        async with self._slots:
            answer = await target.read(path, span.start, span.stop, span.pin)
        self.stats.add(requests=1, bytes_fetched=len(answer.data))
        check(answer, span.start, span.stop, exact=span.exact)
        return answer

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
        except Exception as e:
            raise blame(key, e) from e

    async def run_all(self, many: Sequence[Steps[T]]) -> list[T | Exception]:
        """Drive ``many`` look-ups in lock-step: the needs of one round are met together."""
        results: list[Any] = [None] * len(many)
        waiting: list[tuple[int, Need | tuple[Need, ...]]] = []
        for i, steps in enumerate(many):
            _advance(results, waiting, i, steps, None)
        while waiting:
            answers = await self._meet([need for _, need in waiting])
            asked, waiting = waiting, []
            for (i, _), answer in zip(asked, answers, strict=True):
                _advance(results, waiting, i, many[i], answer)
        return results

    def _known(self, need: Need) -> Any:
        return self._cache.get((self._token, need))

    async def need(self, need: Need) -> Any:
        """Return the answer to one need; asked by several at once, it is met once."""
        known = self._known(need)
        if known is not None:
            self.stats.add(cache_hits=1)
            return known
        task = self._loading.get(need)
        if task is None:
            task = self._loading[need] = asyncio.get_running_loop().create_task(self._answer(need))
            task.add_done_callback(lambda _: self._loading.pop(need, None))
        return await asyncio.shield(task)

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
        quota = None
        match need:
            case Load(entry, index):
                try:
                    value, weight = await load(self._token, need, self._bytes, self._cache, self.keep)
                except _ABSENT:
                    if isinstance(entry, Span) and entry.optional:
                        return None
                    raise
                except RefShardError:
                    raise
                except ValueError as e:
                    raise DamagedIndex("", _name(entry), str(e)) from e
                quota = getattr(index, "quota", None)
            case Stat(url):
                value, weight = await self._facts(url), 256
            case Names(url):
                return await self._names(url)
        if value is not None:
            self._cache.put((self._token, need), value, weight, quota)
        return value

    async def _bytes(self, entry: Entry) -> bytes:
        match entry:
            case Inline(data):
                return data
            case Span():
                return (await self._request(entry)).data
            case Packed():
                return entry.finish((await self._request(entry.source)).data)

    async def _facts(self, url: str) -> Facts | None:
        place = self.pool.place(url)
        if place is None:
            raise RuntimeError(f"{url} cannot be opened on this event loop")
        try:
            async with self._slots:
                return await place[0].facts(place[1])
        except _ABSENT:
            return None

    async def _names(self, url: str) -> tuple[Listed, ...] | None:
        place = self.pool.place(url)
        if place is None:
            raise RuntimeError(f"{url} cannot be opened on this event loop")
        try:
            async with self._slots:
                return await place[0].names(place[1])
        except _ABSENT:
            return None

    async def close(self) -> None:
        """Stop what is under way and let go of connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pool.close()


def _advance(results: list[Any], waiting: list[tuple[int, Any]], i: int, steps: Steps[Any], answer: Any) -> None:
    try:
        need = steps.throw(answer) if isinstance(answer, BaseException) else steps.send(answer)
    except StopIteration as stop:
        results[i] = stop.value
    except Exception as e:  # noqa: BLE001  # handed to the one look-up that failed; the others go on
        results[i] = e
    else:
        waiting.append((i, need))


def _name(entry: Entry) -> str:
    match entry:
        case Inline():
            return "the manifest itself"
        case Packed(source):
            return _name(source)
        case Span(url, start, stop):
            return url if start == 0 and stop is None else f"{url} [{start}:{'' if stop is None else stop}]"


def blame(key: str, error: Exception) -> Exception:
    """Return ``error`` as one that names ``key``, and is never taken for a missing key."""
    if isinstance(error, (DamagedIndex, ReferenceNotReachable)):
        named = type(error)(key, error.target, error.reason)
        named.__cause__ = error.__cause__ or error
        return named
    if isinstance(error, RefShardError) and not isinstance(error, OSError):
        return error
    return _unreachable(key, "where its index lies", error)


def _unreachable(key: str, where: str, error: Exception) -> ReferenceNotReachable:
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    named = ReferenceNotReachable(key, where, reason)
    named.__cause__ = error
    return named


def fail(key: str, entry: Entry, error: Exception) -> Exception:
    """Return what a failed read of ``entry`` means to the reader of ``key``."""
    if isinstance(error, _ABSENT) and isinstance(entry, Span) and entry.optional:
        return FileNotFoundError(key)
    if isinstance(error, ReferenceNotReachable):
        return blame(key, error)
    return _unreachable(key, _name(entry), error)
