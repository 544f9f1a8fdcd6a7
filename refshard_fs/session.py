"""One source, opened once, and its engines: one for each event loop that reads it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from refshard_fs import catalog
from refshard_fs.cache import Cache
from refshard_fs.engine import Engine, Request
from refshard_fs.errors import RefShardError, SourceNotReachable
from refshard_fs.formats import OpenOptions
from refshard_fs.held import Held
from refshard_fs.immediate import Immediate
from refshard_fs.index_cache import IndexCache, default_directory
from refshard_fs.keyspace import KeySpace
from refshard_fs.loading import Keep
from refshard_fs.manifests.reference_set import ReferenceSet
from refshard_fs.model import Stat
from refshard_fs.plan import Limits
from refshard_fs.policy import LOCAL, protocol_of
from refshard_fs.stats import Stats
from refshard_fs.targets import Pool, PoolOptions, Versions

__all__ = ["Session", "SessionOptions"]

INDEXES = Cache(1 << 30)  # what the process remembers of manifests and shard indexes, in bytes


class SessionOptions(msgspec.Struct, frozen=True, eq=False):
    """Everything that decides what a source shows and how its targets are read."""

    source: str | Held
    open: OpenOptions
    format: str | None
    pool: PoolOptions
    fallback: dict[str, Any]  # remote_options given without a protocol
    limits: Limits
    token: str
    index_cache: bool | str | None = None


class Session:
    """Reads of one source. Thread-safe; engines are made for a loop at its first use."""

    def __init__(self, options: SessionOptions) -> None:
        self.options = options
        self.stats = Stats()
        self._versions = Versions()
        self._engines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Engine] = weakref.WeakKeyDictionary()
        self._opening: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[KeySpace]]
        self._opening = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._keyspace: KeySpace | None = None
        self._pool_options = options.pool
        self._immediate: Immediate | None = None
        self._keep = _keep(options.index_cache)
        _sessions.add(self)

    async def keyspace(self) -> KeySpace:
        """Return the opened source; concurrent callers open it once."""
        if self._keyspace is not None:
            return self._keyspace
        loop = asyncio.get_running_loop()
        task = self._opening.get(loop)
        if task is None or task.done():
            task = self._opening[loop] = loop.create_task(self._open())
        return await asyncio.shield(task)

    def opened(self) -> KeySpace | None:
        """Return the key space if it has been opened, or can be without I/O."""
        if self._keyspace is None and isinstance(self.options.source, Held):
            content = self.options.source.content
            if isinstance(content, ReferenceSet):
                self._adopt(catalog.open_references(content, self.options.open))
        return self._keyspace

    def engine(self) -> Engine:
        """Return the running loop's engine."""
        loop = asyncio.get_running_loop()
        engine = self._engines.get(loop)
        if engine is None:
            with self._lock:
                engine = self._engines.get(loop)
                if engine is None:
                    pool = self._pool(loop)
                    engine = Engine(pool, INDEXES, self.options.limits, self.stats, self.options.token)
                    engine.keep = self._keep
                    engine.keeper = _close_with_loop(engine)
                    with contextlib.suppress(StopIteration):
                        engine.keeper.__anext__().send(None)
                    self._engines[loop] = engine
        return engine

    async def read(self, request: Request) -> bytes:
        """Return the bytes of ``request``; FileNotFoundError means that there is no such key."""
        keyspace = self._keyspace or await self.keyspace()
        data = self._at_once(keyspace, request)
        if data is not None:
            return data
        return await self.engine().read(keyspace, request)

    async def read_all(self, requests: list[Request], tell: Callable[[int], object] | None = None) -> list[Any]:
        """Return the bytes, or the error, of each request; ``tell(1)`` is called as each one ends."""
        keyspace = await self.keyspace()
        engine = self.engine()
        futures = [engine.read(keyspace, request) for request in requests]
        if tell is not None:
            for future in futures:
                future.add_done_callback(lambda _: tell(1))
        return await asyncio.gather(*futures, return_exceptions=True)

    def read_now(self, request: Request) -> bytes | None:
        """Return the bytes of ``request`` if no event loop is needed for them; any thread may call this."""
        keyspace = self._keyspace or self.opened()
        return None if keyspace is None else self._at_once(keyspace, request)

    def _at_once(self, keyspace: KeySpace, request: Request) -> bytes | None:
        immediate = self._immediate
        if immediate is None:
            immediate = self._immediate = Immediate(self._pool(None), INDEXES, self.stats, self.options.token)
        return immediate.read(keyspace, request)

    async def _open(self) -> KeySpace:
        keyspace = self.opened()
        if keyspace is None:
            options = self.options
            match options.source:
                case str(url):
                    if protocol_of(url) in (None, *LOCAL):  # a file is cheap to look at, and may be a new one
                        INDEXES.discard((options.token, Stat(url)))
                    steps = catalog.open_source(url, options.open, options.format)
                case Held(bytes(data)):
                    steps = catalog.open_bytes(data, options.open, options.format)
                case held:
                    raise TypeError(f"{held!r} should have been open")
            try:
                keyspace = await self.engine().run(steps)
            except RefShardError:
                raise
            except Exception as e:
                reason = f"{type(e).__name__}: {e}"
                raise SourceNotReachable(f"{options.source} cannot be opened: {reason}") from e
            self._adopt(keyspace)
        return keyspace

    def _adopt(self, keyspace: KeySpace) -> None:
        """Take ``keyspace`` as opened. Options without a protocol go to the first that its references name."""
        if self.options.fallback:
            protocol = next(filter(None, map(protocol_of, filter(None, getattr(keyspace, "urls", ())))), None)
            if protocol is not None and protocol not in self._pool_options.by_protocol:
                known = {**self._pool_options.by_protocol, protocol: self.options.fallback}
                self._pool_options = msgspec.structs.replace(self._pool_options, by_protocol=known)
                for engine in self._engines.values():
                    engine.pool = self._pool(engine.pool.loop)
        self._keyspace = keyspace

    def invalidate(self) -> None:
        """Forget every index, the opened source, and which versions were read; the next read opens it again."""
        with self._lock:
            self._keyspace = None
            self._opening.clear()
            self._engines.clear()
            self._immediate = None
            self._versions.clear()
        INDEXES.clear()

    def _pool(self, loop: asyncio.AbstractEventLoop | None) -> Pool:
        return Pool(self._pool_options, loop, self._versions, self.stats)

    def _after_fork(self) -> None:
        self._versions.after_fork()
        self._lock = threading.Lock()
        _orphans.append(list(self._engines.items()))
        self._engines = weakref.WeakKeyDictionary()
        self._opening = weakref.WeakKeyDictionary()


def _keep(index_cache: bool | str | None) -> Keep | None:
    if index_cache is False:
        return None
    directory = os.path.expanduser(index_cache) if isinstance(index_cache, str) else default_directory()
    return None if directory is None else Keep(IndexCache(directory), everything=index_cache is not None)


async def _close_with_loop(engine: Engine) -> AsyncGenerator[None, None]:
    """Close ``engine`` when its loop shuts down (a loop then closes the generators begun on it) or nobody holds it."""
    try:
        yield
    finally:
        await engine.close()


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()

# A forked child shares the parent's sockets and selectors: closing one there would take it
# from the parent. So what was open at the fork is never collected in the child.
_orphans: list[object] = []


def _after_fork() -> None:
    for session in list(_sessions):
        session._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
