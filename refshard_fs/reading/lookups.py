"""Drives look-ups in rounds: what many of them need next is read together, and the same need only once.

Answers are remembered in the process's cache. Look-ups that need the same answer at the same time share one read, and
a read that nobody waits for any more is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Head, Load, Names, Need, Origin, Packed, Span, Stat, Steps, Tree
from refshard_fs.core.stats import Stats
from refshard_fs.errors import RefShardError
from refshard_fs.reading.dispatch import Reader
from refshard_fs.reading.failures import blame, note
from refshard_fs.reading.fetch import Fetcher
from refshard_fs.reading.loading import Answers, Found, Streamed, advance, load, naming, sized
from refshard_fs.reading.plan import ReadPlan
from refshard_fs.targets import Pool, check_size
from refshard_fs.targets.failures import ABSENT
from refshard_fs.targets.versioned import VersionedObject

T = TypeVar("T")

ASKED = 128  # questions for facts, names and first bytes under way at once: as many as requests, by default


class _Loading:
    """An answer that is being found, and how many wait for it."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.waiting = 0


class Lookups:
    """Answers the needs of key spaces on one event loop; to be used from that loop only."""

    def __init__(self, fetcher: Fetcher, answers: Answers, stats: Stats) -> None:
        self.stats = stats
        self.fetcher = fetcher
        self._answers = answers
        self._asking = asyncio.Semaphore(ASKED)
        self._soon: list[Reader] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loading: dict[Need, _Loading] = {}
        self.is_closed = False

    @property
    def pool(self) -> Pool:
        """The targets that are read."""
        return self.fetcher.requests.pool

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Return a task of ``coroutine``; it is stopped by `close`."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------------ driving look-ups

    async def run(self, steps: Steps[T]) -> T:
        """Return what ``steps`` return, answering every need on the way."""
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

    async def run_all(self, many: Sequence[Steps[T]]) -> list[T | Exception]:
        """Drive ``many`` look-ups in lock-step: the needs of one round are answered together."""
        results: list[Any] = [None] * len(many)
        answers: dict[int, Any] = dict.fromkeys(range(len(many)))
        while answers:
            needs: dict[int, Need | tuple[Need, ...]] = {}
            for i, answer in answers.items():
                try:
                    needs[i] = advance(many[i], answer, self._known)
                except StopIteration as stop:
                    results[i] = stop.value
                except Exception as e:  # noqa: BLE001  # of the one look-up that failed; the others go on
                    results[i] = e
            answers = dict(zip(needs, await self._meet(list(needs.values())), strict=True)) if needs else {}
        return results

    async def find_all(
        self, keyspace: KeySpace, keys: Sequence[str], *, reads: bool = False
    ) -> list[Entry | Exception | None]:
        """Return where each of ``keys`` lies, None where there is no such key, or the error that it meets.

        With ``reads``, they are read at once.
        """
        many = keyspace.reads(keys) if reads else keyspace.lookups(keys)
        out: list[Entry | Exception | None] = [None] * len(keys)
        for look_up, found in zip(many, await self.run_all([look_up.steps for look_up in many]), strict=True):
            for i, place in enumerate(look_up.places):
                out[place] = found if isinstance(found, Exception) else found[i]
        return out

    def _known(self, need: Need) -> Found | None:
        value = self._answers.get(need, self.pool)
        if value is None:
            return None
        self.stats.add(cache_hits=1)
        return Found(value)

    async def need(self, need: Need) -> Any:
        """Return the answer to one need; several who ask at once share one read."""
        known = self._known(need)
        if known is not None:
            return known.value
        loading = self._loading.get(need)
        if loading is None:
            loading = self._loading[need] = _Loading(self.start(self._answer(need)))
        loading.waiting += 1
        try:
            return await asyncio.shield(loading.task)
        finally:
            loading.waiting -= 1
            if not loading.waiting:
                del self._loading[need]
                loading.task.cancel()  # all who waited were cancelled, or it has ended

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
        match need:
            case Load(entry):
                asked = self._answers.doubtful(need, self.pool)
                if asked is not None:  # another session read it: is it still the same?
                    with contextlib.suppress(OSError, RefShardError):
                        await self._asked(*asked, VersionedObject.facts)
                        if (known := self._known(need)) is not None:
                            return known.value
                try:
                    with naming(entry):
                        size = partial(sized, pool=self.pool)
                        read = partial(self._document, keep=not isinstance(need.index, Streamed))
                        value, weight = await load(need, read, self.run, self._answers.keep, size)
                except ABSENT:
                    if isinstance(entry, Span) and entry.optional:
                        return None
                    raise
            case Stat(url, origin=origin):
                value, weight = await self._asked(url, origin, VersionedObject.facts), 256
            case Head(url, length, origin):
                head = await self._asked(url, origin, lambda found, path: found.head(path, length))
                if head is not None:
                    self.stats.add(requests=1, bytes_fetched=len(head[1]))
                    self._answers.put_head(need, head, self.pool)
                return head
            case Names(url, origin):
                return await self._asked(url, origin, VersionedObject.names)
            case Tree(url, origin):
                return await self._asked(url, origin, VersionedObject.tree)
        if value is not None:
            self._answers.put(need, value, weight, self.pool)
        return value

    async def _document(self, entry: Entry, *, keep: bool) -> bytes:
        """Return the bytes of an index or a document; more than the bound is an error.

        ``keep`` them on disk: of a document that is read in pieces, none holds URLs.
        """
        source = entry.source if isinstance(entry, Packed) else entry
        check_size(source.size, self._answers.longest)
        return await self._read(ReadPlan(None, entry, self._answers.longest), keep=keep)

    async def _read(self, plan: ReadPlan, *, keep: bool = True) -> bytes:
        """Return the bytes of ``plan``, whose ranges are merged with whatever else is fetched in this tick."""
        loop = asyncio.get_running_loop()
        if not self._soon:
            loop.call_soon(self._fetch_soon)
        readers = [Reader(None, span, loop.create_future(), plan.most, keep) for span in plan.window.spans]
        self._soon += readers
        return plan.assemble(await asyncio.gather(*[reader.future for reader in readers], return_exceptions=True))

    def _fetch_soon(self) -> None:
        readers, self._soon = self._soon, []
        self.fetcher.read(readers)

    async def _asked(self, url: str, origin: Origin, ask: Callable[[VersionedObject, str], Awaitable[T]]) -> T | None:
        """Return what an object's server answers to ``ask``; None if there is no such object."""
        place = self.pool.place(url, origin)
        if place is None:
            raise RuntimeError(f"{url} cannot be opened on this event loop")
        try:
            async with self._asking:
                return await ask(*place)
        except ABSENT:
            return None

    async def close(self) -> None:
        """Stop what is under way and let go of connections."""
        self.is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.fetcher.close()
        await self.pool.close()
