"""The engines that read one source: one for each event loop, and one for reads that need none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from fsspec.asyn import get_loop, sync

from refshard_fs.core.forks import fork_safe, in_child
from refshard_fs.core.model import Facts, Steps
from refshard_fs.core.stats import Stats
from refshard_fs.errors import told_cause
from refshard_fs.reading.cache import Cache, IndexCache, default_directory
from refshard_fs.reading.dispatch import SharedBudget, SharedMemory
from refshard_fs.reading.engine import Engine
from refshard_fs.reading.failures import blame
from refshard_fs.reading.fetch import Fetcher
from refshard_fs.reading.immediate import Found, Immediate
from refshard_fs.reading.loading import Keep
from refshard_fs.session.options import SessionOptions
from refshard_fs.targets import Given, Pool, Versions

T = TypeVar("T")
Loop = asyncio.AbstractEventLoop

INDEXES = Cache(1 << 30)  # bytes of manifests and shard indexes that the process remembers, decoded


class Engines:
    """Runs look-ups on any event loop. Thread-safe; an engine is made at the first use of a loop, and ends with it."""

    def __init__(self, options: SessionOptions, indexes: Cache = INDEXES) -> None:
        """``indexes`` remembers what is read to look keys up; by default the process does."""
        self.options = options
        self._indexes = indexes
        self.stats = Stats()
        self._versions = Versions()
        self._engines: weakref.WeakKeyDictionary[Loop, Engine] = weakref.WeakKeyDictionary()
        self._budget = SharedBudget(options.budget)  # of all of them
        self._lock = fork_safe(threading.Lock())
        self._pool_options = options.pool
        self._immediate: Immediate | None = None
        self._home: weakref.ref[Loop] | None = None  # the loop that read last
        self._blocks = Cache(options.block_cache) if options.block_cache else None
        self._keep = _keep(options.index_cache)
        _all.add(self)

    def engine(self) -> Engine:
        """Return the running loop's engine."""
        loop = asyncio.get_running_loop()
        self._home = weakref.ref(loop)
        engine = self._engines.get(loop)
        if engine is None:  # nobody but this loop's own thread makes one for it
            with self._lock:
                for ended in [known for known in self._engines if known.is_closed()]:
                    del self._engines[ended]
                engine = self._engines[loop] = self._made(loop)
        return engine

    @property
    def selections(self) -> SharedMemory:
        """The memory of all selections that are read, on whatever loop."""
        return self._budget.selections

    def _made(self, loop: Loop) -> Engine:
        options = self.options
        fetcher = Fetcher(self._pool(loop), options.limits, self._budget, self.stats, self._blocks)
        near = self._at_once_reader().reaches
        longest = options.open.max_manifest_bytes
        engine = Engine(fetcher, self._indexes, self.stats, options.token, options.readahead, near, longest)
        engine.keep = self._keep
        engine.keeper = _close_with_loop(engine, weakref.ref(self))
        with contextlib.suppress(StopIteration):
            engine.keeper.__anext__().send(None)
        return engine

    # ------------------------------------------------------------------ look-ups

    async def look(self, key: str, steps: Steps[T]) -> T:
        """Return what ``steps`` return; an error names ``key`` and is never taken for a missing one."""
        return await self.engine().run_for(key, steps)

    def look_now(self, key: str, steps: Steps[Any]) -> Found | None:
        """Return what ``steps`` return if no event loop is needed for it; for callers that may block."""
        try:
            return self._at_once_reader().run(steps)
        except Exception as e:  # noqa: BLE001  # `blame` tells which
            raise blame(key, e) from told_cause(e.__cause__ or e)

    def run(self, key: str, steps: Callable[[], Steps[T]]) -> T:
        """Return what ``steps()`` return, for callers outside of event loops; an error names ``key``."""
        found = self.look_now(key, steps())
        result: T = self.wait(self.look, key, steps()) if found is None else found.value
        return result

    def wait(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Return what a coroutine function returns, for callers outside of event loops."""
        result: T = sync(get_loop(), function, *args)
        return result

    def _at_once_reader(self) -> Immediate:
        immediate = self._immediate
        if immediate is None:
            token, longest = self.options.token, self.options.open.max_manifest_bytes
            immediate = self._immediate = Immediate(self._pool(None), self._indexes, self.stats, token, longest)
        return immediate

    # ------------------------------------------------------------------ other event loops

    def home(self) -> Loop | None:
        """Return a running loop that has read, other than the caller's, at best the last one; None if there is none."""
        here = running_loop()
        with self._lock:
            known = [None if self._home is None else self._home(), *self._engines]
        return next((loop for loop in known if loop is not None and loop is not here and loop.is_running()), None)

    # ------------------------------------------------------------------ targets

    def adopt(self, urls: Iterable[str | None]) -> str:
        """Return what the user is to know who makes a set of ``urls``; TargetNotAllowed where one is refused."""
        rule = self._pool_options.admission
        return "" if rule.admits_all else rule.adopt(urls)

    @property
    def is_own(self) -> bool:
        """Whether the set is the user's own, or one that ``allow=`` names."""
        return self._pool_options.admission.trusts_source

    def given(self, url: str) -> Given:
        """Return the filesystem instance, or the options for one, that ``url`` is opened with."""
        return self._pool_options.given(url)

    def seen(self, url: str) -> Facts | None:
        """Return which version of an object was read; None if none was."""
        seen = self._versions.seen(url)
        return None if seen is None else Facts(seen.size, seen.etag, seen.modified)

    def _pool(self, loop: Loop | None) -> Pool:
        return Pool(self._pool_options, loop, self._versions, self.stats)

    def _drop_engines(self) -> None:
        """Forget the engines and what they hold; ``_lock`` is held."""
        if self._blocks is not None:
            self._blocks.clear()
        self._engines.clear()
        self._budget = SharedBudget(self.options.budget)  # who still reads by a forgotten engine is in nobody's way
        self._immediate = None

    def _after_fork(self) -> None:
        _orphans.append(list(self._engines.items()))
        self._engines = weakref.WeakKeyDictionary()
        self._budget = SharedBudget(self.options.budget)


def running_loop() -> Loop | None:
    """Return the event loop that runs in this thread; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _keep(index_cache: bool | str | None) -> Keep | None:
    if index_cache is False:
        return None
    directory = os.path.expanduser(index_cache) if isinstance(index_cache, str) else default_directory()
    return None if directory is None else Keep(IndexCache(directory), everything=index_cache is not None)


async def _close_with_loop(engine: Engine, owner: weakref.ref[Engines]) -> AsyncGenerator[None, None]:
    """Close ``engine`` when its loop shuts down (a loop then closes the generators begun on it) or nobody holds it."""
    loop = asyncio.get_running_loop()
    try:
        yield
    finally:
        engines = owner()
        if engines is not None and engines._engines.get(loop) is engine:
            with engines._lock:
                engines._engines.pop(loop, None)
        await engine.close()


_all: weakref.WeakSet[Engines] = weakref.WeakSet()

# A forked child shares the parent's sockets and selectors: closing one there would take it
# from the parent. So what was open at the fork is never collected in the child.
_orphans: list[object] = []


def _after_fork() -> None:
    for engines in list(_all):
        engines._after_fork()


in_child(_after_fork)
