"""Run look-ups in rounds: the next needs of all look-ups are read together, and equal needs only once.

Answers are kept in the process's cache. Look-ups with the same need share one read; a read is cancelled when no look-up
waits for it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from refshard_fs.core.keyspace import KeySpace, LookUp
from refshard_fs.core.model import Entry, Head, Load, Names, Need, Origin, Packed, Span, Stat, Steps, Tree
from refshard_fs.core.stats import Stats
from refshard_fs.errors import DamagedIndex, RefShardError
from refshard_fs.reading.dispatch import Reader
from refshard_fs.reading.failures import is_of_need, name_key, note
from refshard_fs.reading.fetch import Fetcher
from refshard_fs.reading.loading import (
    Answers,
    Outcome,
    advance,
    choose_index_for_size,
    is_streamed,
    load,
    name_location,
)
from refshard_fs.reading.plan import ReadPlan
from refshard_fs.targets import Pool, check_size
from refshard_fs.targets.failures import NOT_FOUND
from refshard_fs.targets.versioned import VersionedObject

T = TypeVar("T")

ASKED = 128  # the most requests for facts, names and first bytes at a time: the default of concurrency=


class _Loading:
    """An answer that is being read, and the number of look-ups that wait for it."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.waiting = 0


class Lookups:
    """Answer the needs of key spaces on one event loop; use it only from this loop."""

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
        """The pool of targets."""
        return self.fetcher.requests.pool

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task for ``coroutine``, which `close` cancels."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run(self, steps: Steps[T]) -> T:
        """Run ``steps``, answer all their needs, and return their result."""
        (result,) = await self.run_all([steps])
        if isinstance(result, Exception):
            raise result
        return result

    async def run_for(self, key: str, steps: Steps[T], source: str = "") -> T:
        """Run ``steps`` and return their result; errors name ``key``, and are never FileNotFoundError.

        An error that names no place gets the URL ``source``.
        """
        (result,) = await self.run_all([steps])
        if isinstance(result, Exception):
            raise name_key(key, result, source) from result
        return result

    async def run_all(self, many: Sequence[Steps[T]]) -> list[T | Exception]:
        """Run the steps of ``many`` look-ups in rounds, in which needs are read together; return results or errors."""
        results: list[Any] = [None] * len(many)
        answers: dict[int, Any] = dict.fromkeys(range(len(many)))
        while answers:
            needs: dict[int, Need | tuple[Need, ...]] = {}
            for i, answer in answers.items():
                trace = answer.__traceback__ if isinstance(answer, BaseException) else None
                try:
                    needs[i] = advance(many[i], answer, self._find_outcome)
                except StopIteration as stop:
                    results[i] = stop.value
                except Exception as e:  # noqa: BLE001  # any error ends this look-up, and not the others
                    results[i] = e.with_traceback(trace) if e is answer else e  # look-ups that share it add no frames
            answers = dict(zip(needs, await self._answer_all(list(needs.values())), strict=True)) if needs else {}
        return results

    async def find_all(
        self, keyspace: KeySpace, keys: Sequence[str], *, reads: bool = False
    ) -> list[Entry | Exception | None]:
        """Return the entry of each of ``keys``, None for a key that does not exist, or the error of its look-up.

        With ``reads``, the keys are read next (see `KeySpace.make_read_lookups`).
        """
        many = keyspace.make_read_lookups(keys) if reads else keyspace.make_lookups(keys)
        out: list[Entry | Exception | None] = [None] * len(keys)
        alone: list[LookUp] = []  # look-ups of the keys of a look-up that found damage: not all of them have to fail
        for look_up, found in zip(many, await self.run_all([look_up.steps for look_up in many]), strict=True):
            if isinstance(found, DamagedIndex) and not is_of_need(found) and len(look_up.places) > 1:
                alone += [keyspace.make_single_lookup(place, keys[place]) for place in look_up.places]
            for i, place in enumerate(look_up.places):
                out[place] = found if isinstance(found, Exception) else found[i]
        for look_up, found in zip(alone, await self.run_all([look_up.steps for look_up in alone]), strict=True):
            out[look_up.places[0]] = found if isinstance(found, Exception) else found[0]
        return out

    def _find_outcome(self, need: Need) -> Outcome | None:
        known = self._answers.find(need, self.pool)
        if known is not None:
            self.stats.add(cache_hits=1)
        return known

    async def need(self, need: Need) -> Any:
        """Return the answer to one need; concurrent callers share one read."""
        known = self._find_outcome(need)
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
                loading.task.cancel()  # all callers were cancelled, or the task has ended

    async def _answer_all(self, needs: Sequence[Need | tuple[Need, ...]]) -> list[Any]:
        distinct = list(dict.fromkeys(n for need in needs for n in (need if isinstance(need, tuple) else (need,))))
        answers = await asyncio.gather(*map(self.need, distinct), return_exceptions=True)
        flat: dict[Need, Any] = dict(zip(distinct, answers, strict=True))
        out: list[Any] = []
        for need in needs:
            if isinstance(need, tuple):
                parts = tuple(flat[part] for part in need)
                failed = next((part for part in parts if isinstance(part, BaseException)), None)
                out.append(failed if failed is not None else parts)
            else:
                out.append(flat[need])
        return out

    async def _answer(self, need: Need) -> Any:
        try:
            return await self._read_answer(need)
        except Exception as e:
            note(e, need)
            raise

    async def _read_answer(self, need: Need) -> Any:
        match need:
            case Load(entry):
                doubtful = self._answers.find_doubtful(need, self.pool)
                if doubtful is not None:  # an answer is cached, but only a request shows whether it is still right
                    with contextlib.suppress(OSError, RefShardError):
                        await self._ask(*doubtful, VersionedObject.get_facts)
                        if (known := self._find_outcome(need)) is not None:
                            return known.value
                try:
                    with name_location(entry):
                        choose = partial(choose_index_for_size, pool=self.pool)
                        read = partial(self._read_document, keep=not is_streamed(need.index))
                        value, weight = await load(need, read, self.run, self._answers.keep, choose)
                except NOT_FOUND:
                    if isinstance(entry, Span) and entry.optional:
                        return None
                    raise
            case Stat(url, origin=origin):
                value, weight = await self._ask(url, origin, VersionedObject.get_facts), 256
            case Head(url, length, origin):
                head = await self._ask(url, origin, lambda found, path: found.head(path, length))
                if head is None:
                    self._answers.keep_absence(url, origin)
                else:
                    self.stats.add(requests=1, bytes_fetched=len(head[1]))
                    self._answers.keep_range(url, origin, 0, head[1], self.pool)
                return head
            case Names(url, origin):
                return await self._ask(url, origin, VersionedObject.list_names)
            case Tree(url, origin):
                return await self._ask(url, origin, VersionedObject.list_tree)
        if value is not None:
            self._answers.put(need, value, weight, self.pool)
        return value

    async def _read_document(self, entry: Entry, *, keep: bool) -> bytes:
        """Read an index or a document; more bytes than the limit are an error.

        With ``keep``, ranges may be kept on disk. Pieces of streamed documents must not be kept on disk, since they may
        contain URLs.
        """
        source = entry.source if isinstance(entry, Packed) else entry
        check_size(source.size, self._answers.longest)
        data = await self._read(ReadPlan(None, entry, self._answers.longest), keep=keep)
        if keep and isinstance(entry, Span) and entry.stop is not None:
            self._answers.keep_range(entry.url, entry.origin, entry.start, data, self.pool)
        return data

    async def _read(self, plan: ReadPlan, *, keep: bool = True) -> bytes:
        """Return the bytes of ``plan``; its ranges are merged with all other ranges of this turn of the loop."""
        loop = asyncio.get_running_loop()
        if not self._soon:
            loop.call_soon(self._fetch_soon)
        readers = [Reader(None, span, loop.create_future(), plan.most, keep) for span in plan.window.spans]
        self._soon += readers
        return plan.assemble(await asyncio.gather(*[reader.future for reader in readers], return_exceptions=True))

    def _fetch_soon(self) -> None:
        readers, self._soon = self._soon, []
        self.fetcher.read(readers)

    async def _ask(self, url: str, origin: Origin, ask: Callable[[VersionedObject, str], Awaitable[T]]) -> T | None:
        """Call ``ask`` for an object, and return its result; None if the object does not exist."""
        place = self.pool.place(url, origin)
        if place is None:
            raise RuntimeError(f"expected an event loop to open {url}, found none")
        try:
            async with self._asking:
                return await ask(*place)
        except NOT_FOUND:
            return None

    async def close(self) -> None:
        """Cancel all tasks and close connections."""
        self.is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.fetcher.close()
        await self.pool.close()
