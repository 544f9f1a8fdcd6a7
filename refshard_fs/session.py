"""One source, opened once, and its engines: one for each event loop that reads it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from refshard_fs import catalog
from refshard_fs.arrays import Arrays
from refshard_fs.edited import edited
from refshard_fs.edits import Edits
from refshard_fs.errors import NoSuchSource, RefShardError, SourceNotReachable, TargetChanged, redacted
from refshard_fs.formats import OpenOptions
from refshard_fs.held import Held
from refshard_fs.keyspace import KeySpace
from refshard_fs.manifests.reference_set import ReferenceSet
from refshard_fs.model import Entry, Facts, Inline, Load, Packed, Span, Stat, Steps
from refshard_fs.overlay import Base, Overlay
from refshard_fs.policy import LOCAL, protocol_of
from refshard_fs.reading.advice import said
from refshard_fs.reading.cache import Cache
from refshard_fs.reading.engine import Engine, Request
from refshard_fs.reading.failures import blame
from refshard_fs.reading.fetch import Budget, Fetcher
from refshard_fs.reading.immediate import Found, Immediate
from refshard_fs.reading.index_cache import IndexCache, default_directory
from refshard_fs.reading.loading import Keep
from refshard_fs.reading.plan import MIB, Limits, Planned, requests_for
from refshard_fs.reading.repeats import Repeats
from refshard_fs.selection import Mode
from refshard_fs.stats import Stats
from refshard_fs.targets import Given, Pool, PoolOptions, Versions

__all__ = ["Session", "SessionOptions"]

T = TypeVar("T")

PIECE = 8 * MIB  # of a large key, where it is read in order
PIECES = 4  # in memory at a time
INDEXES = Cache(1 << 30)  # what the process remembers of manifests and shard indexes, in bytes


class SessionOptions(msgspec.Struct, frozen=True, eq=False):
    """Everything that decides what a source shows and how its targets are read."""

    source: str | Held
    open: OpenOptions
    format: str | None
    pool: PoolOptions
    fallback: dict[str, Any]  # remote_options given without a protocol
    limits: Limits
    budget: Budget
    readahead: int
    block_cache: int
    token: str
    index_cache: bool | str | None = None
    overlay: Overlay | None = None  # of what is written; without one, nothing is


class Session:
    """Reads of one source. Thread-safe; engines are made for a loop at its first use."""

    def __init__(self, options: SessionOptions) -> None:
        self.options = options
        self.stats = Stats()
        self.format = "references"  # those at hand; what another source is recognised as, once it is opened
        self._versions = Versions()
        self._engines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Engine] = weakref.WeakKeyDictionary()
        self._opening: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[KeySpace]]
        self._opening = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._keyspace: KeySpace | None = None
        self._pool_options = options.pool
        self._immediate: Immediate | None = None
        self._home: weakref.ref[asyncio.AbstractEventLoop] | None = None  # the loop that read last
        self._arrays = Arrays(self.read, self.read_now)
        self._blocks = Cache(options.block_cache) if options.block_cache else None
        self._repeats = Repeats()
        self._keep = _keep(options.index_cache)
        if options.overlay is not None:
            options.overlay.join(self)
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
        if self._keyspace is not None:
            return self._keyspace
        overlay = self.options.overlay
        opening = 0 if overlay is None else overlay.openings
        base = None if overlay is None else overlay.base
        if base is not None:
            self._adopt(base, opening)
        elif isinstance(self.options.source, Held):
            content = self.options.source.content
            if isinstance(content, ReferenceSet):
                found = self.look_now("", catalog.open_references(content, self._how()))
                if found is not None:
                    self._adopt(Base(found.value, getattr(found.value, "urls", ()), None), opening)
        return self._keyspace

    def opened_now(self) -> KeySpace | None:
        """Return the key space as `opened`, or open it if no event loop is needed for that; for callers that block."""
        keyspace = self.opened()
        options, source = self.options, self.options.source
        if keyspace is not None or not isinstance(source, str) or options.fallback or options.overlay is not None:
            return keyspace
        if protocol_of(source) not in (None, *LOCAL):
            return None
        INDEXES.discard((options.token, Stat(source)))
        steps = catalog.open_source(source, options.open, options.format, self._recognised)
        try:
            found = self._at_once_reader().run(steps)
        except RefShardError:  # the event loop finds out again, and says what is wrong
            return None
        if found is not None:
            self._adopt(Base(found.value, (), None), 0)
        return self._keyspace

    def engine(self) -> Engine:
        """Return the running loop's engine."""
        loop = asyncio.get_running_loop()
        self._home = weakref.ref(loop)
        engine = self._engines.get(loop)
        if engine is None:
            with self._lock:
                engine = self._engines.get(loop)
                if engine is None:
                    pool = self._pool(loop)
                    options = self.options
                    kept = self._repeats if self._blocks is None else self._blocks
                    fetcher = Fetcher(pool, options.limits, options.budget, self.stats, kept)
                    near = self._at_once_reader().reaches
                    longest = options.open.max_manifest_bytes
                    engine = Engine(fetcher, INDEXES, self.stats, options.token, options.readahead, near, longest)
                    engine.keep = self._keep
                    engine.keeper = _close_with_loop(engine)
                    with contextlib.suppress(StopIteration):
                        engine.keeper.__anext__().send(None)
                    self._engines[loop] = engine
        return engine

    async def read(self, request: Request) -> bytes:
        """Return the bytes of ``request``; FileNotFoundError means that there is no such key."""
        self._home = weakref.ref(asyncio.get_running_loop())
        keyspace = self._keyspace or self.opened() or await self.keyspace()
        at_once = self._immediate or self._at_once_reader()
        entry = at_once.find(keyspace, request.key)
        if entry is not None:
            data = at_once.take(request, entry)
            if data is not None:
                return data
        engine = self.engine()
        if len(self._engines) > 1:
            elsewhere = self._expecting(request.key)
            if elsewhere is not None:
                there, loop = elsewhere
                return await asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(_reading(there, keyspace, request), loop)
                )
        return await engine.read(keyspace, request, entry)

    async def read_all(self, requests: list[Request], tell: Callable[[int], object] | None = None) -> list[Any]:
        """Return the bytes, or the error, of each request; ``tell(1)`` is called as each one ends."""
        keyspace = await self.keyspace()
        engine = self.engine()
        alone = len(requests) == 1  # several at once are all that the caller wants
        futures = [engine.read(keyspace, request, guess=alone) for request in requests]
        if tell is not None:
            for future in futures:
                future.add_done_callback(lambda _: tell(1))
        return await asyncio.gather(*futures, return_exceptions=True)

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

    def read_now(self, request: Request) -> bytes | None:
        """Return the bytes of ``request`` if no event loop is needed for them; for callers that may block."""
        keyspace = self._keyspace or self.opened_now()
        return None if keyspace is None else self._at_once_reader().read(keyspace, request, may_load=True)

    def look_now(self, key: str, steps: Steps[Any]) -> Found | None:
        """Return what ``steps`` return if no event loop is needed for it; for callers that may block."""
        try:
            return self._at_once_reader().look(steps, may_load=True)
        except Exception as e:  # noqa: BLE001  # `blame` tells which
            raise blame(key, e) from (e.__cause__ or e)

    async def look(self, key: str, steps: Steps[T]) -> T:
        """Return what ``steps`` return; an error names ``key`` and is never taken for a missing one."""
        return await self.engine().run_for(key, steps)

    # ------------------------------------------------------------------ what will be read

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
        found = await self.engine().run_all([keyspace.lookup(key) for key in keys])
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

    def announce(self, array: str, selection: Any, mode: Mode) -> None:
        """Have the loop that reads fetch what ``selection`` touches, where that helps; any thread may call this."""
        loop, keyspace = self.home(), self._keyspace
        if loop is None or keyspace is None:
            return
        try:
            keys = self._arrays.keys_now(array, selection, mode)
            if len(keys) < 2 or self._is_near(keys[0]):
                return
        except (IndexError, ValueError, RefShardError):
            return  # the read will say what is wrong
        here = _running_loop()
        if here is not None:
            self.engine().ahead.tell(keyspace, keys)
        else:  # zarr's own reads come to the loop the same way, and later
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

    def home(self) -> asyncio.AbstractEventLoop | None:
        """Return the running loop that read last, other than the caller's; None if there is none."""
        loop = self._home() if self._home is not None else None
        return loop if loop is not None and loop.is_running() else None

    def _expecting(self, key: str) -> tuple[Engine, asyncio.AbstractEventLoop] | None:
        """Return the engine of another loop that was told that ``key`` will be read."""
        with self._lock:
            engines = list(self._engines.items())
        here = asyncio.get_running_loop()
        for loop, engine in engines:
            if loop is not here and engine.ahead.expects(key) and loop.is_running():
                return engine, loop
        return None

    def _at_once_reader(self) -> Immediate:
        immediate = self._immediate
        if immediate is None:
            token, longest = self.options.token, self.options.open.max_manifest_bytes
            immediate = self._immediate = Immediate(self._pool(None), INDEXES, self.stats, token, longest)
        return immediate

    async def _open(self) -> KeySpace:
        overlay = self.options.overlay
        while True:
            opening = 0 if overlay is None else overlay.openings
            keyspace = self.opened()
            if keyspace is not None:
                return keyspace
            self._adopt(await self._open_source(), opening)

    async def _open_source(self) -> Base:
        options = self.options
        match options.source:
            case str(url):
                if protocol_of(url) in (None, *LOCAL):  # a file is cheap to look at, and may be a new one
                    INDEXES.discard((options.token, Stat(url)))
                steps = catalog.open_source(url, self._how(), options.format, self._recognised)
            case Held(bytes(data)):
                steps = catalog.open_bytes(data, self._how(), options.format, self._recognised)
            case Held(ReferenceSet() as refs):
                steps = catalog.open_references(refs, self._how())
            case held:
                raise TypeError(f"{held!r} is no source")
        try:
            keyspace = await self.engine().run(steps)
            return Base(keyspace, await self._some_urls(keyspace), *await self._document(keyspace))
        except TargetChanged:
            if options.overlay is None:
                raise
            INDEXES.clear()  # what the process remembered of it is of another time
            self.forget()
            return await self._open_source()
        except NoSuchSource:
            if options.overlay is None or not isinstance(options.source, str):
                raise
            return Base(catalog.empty(options.source, self._how()), (), None, options.source)
        except RefShardError:
            raise
        except Exception as e:  # raised again: a FileNotFoundError would make every key look missing
            reason = said(e, of_source=True)
            raise SourceNotReachable(redacted(f"{options.source} cannot be opened: {reason}")) from e

    async def _document(self, keyspace: KeySpace) -> tuple[Facts | None, str]:
        """Return what a target says of the document that a commit replaces (it is as it was opened), and its URL."""
        url = catalog.document_of(keyspace) if isinstance(self.options.source, str) else None
        if url is None or self.options.overlay is None:
            return None, ""
        facts: Facts | None = await self.engine().need(Stat(url, fresh=True))
        return facts, url

    def _how(self) -> OpenOptions:
        """Return how the source is to be opened: arrays that were written here as sharded ones stay what they were."""
        overlay, options = self.options.overlay, self.options.open
        return msgspec.structs.replace(options, whole=overlay.whole) if overlay is not None else options

    def _recognised(self, format: str) -> None:
        self.format = format

    async def _some_urls(self, keyspace: KeySpace) -> Iterable[str | None]:
        """Return URLs that the references name, if they are of use; a set that is read lazily has to look for some."""
        if not self.options.fallback:
            return ()
        return await self.engine().run(catalog.some_urls(keyspace))

    def _adopt(self, base: Base, opening: int) -> None:
        """Take the source as opened, unless there is another one by now; who shares an overlay shares the source."""
        overlay = self.options.overlay
        if overlay is None:
            self._take(base, None)
        else:
            overlay.share(base, opening, self._take)

    def _take(self, base: Base, edits: Edits | None) -> None:
        """Read ``base``, edited. Options without a protocol go to the first that its references name."""
        if self.options.fallback:
            protocol = next(filter(None, map(protocol_of, filter(None, base.urls))), None)
            if protocol is not None and protocol not in self._pool_options.by_protocol:
                known = {**self._pool_options.by_protocol, protocol: self.options.fallback}
                admission = self._pool_options.admission.naming(protocol)
                self._pool_options = msgspec.structs.replace(self._pool_options, by_protocol=known, admission=admission)
                for engine in self._engines.values():
                    engine.pool = self._pool(engine.pool.loop)
        self._keyspace = base.keyspace if edits is None else edited(base.keyspace, edits)

    def invalidate(self) -> None:
        """Forget every index, the opened source, and which versions were read; the next read opens it again."""
        if self.options.overlay is not None:
            self.options.overlay.reopen()
        self.forget()
        INDEXES.clear()

    def admit(self, urls: Iterable[str]) -> None:
        """Raise TargetNotAllowed if the source may not point to one of ``urls``."""
        rule = self._pool_options.admission
        if not rule.admits_all:
            for url in urls:
                rule.admit(url)

    def given(self, url: str) -> Given:
        """Return the filesystem instance, or the options for one, that ``url`` is opened with."""
        return self._pool_options.given(url)

    def seen(self, url: str) -> Facts | None:
        """Return which version of an object was read; None if none was."""
        seen = self._versions.of(url).seen
        return None if seen is None else Facts(seen.size, seen.etag, seen.modified)

    def replaced(self, urls: Collection[str]) -> None:
        """Take note that these objects are others now: what is remembered of their content is of no use."""
        INDEXES.discard_where(lambda key: _url_of(key) in urls)

    def wrote(self, key: str) -> None:
        """Take note that metadata is not what it was."""
        self._arrays.clear()

    def forget(self) -> None:
        """Forget the opened source, and which versions were read; indexes are used if they are of the same version."""
        with self._lock:
            self._keyspace = None
            self._arrays.clear()
            if self._blocks is not None:
                self._blocks.clear()
            self._opening.clear()
            self._engines.clear()
            self._immediate = None
            self._versions.clear()

    def _pool(self, loop: asyncio.AbstractEventLoop | None) -> Pool:
        return Pool(self._pool_options, loop, self._versions, self.stats)

    def _after_fork(self) -> None:
        self._versions.after_fork()
        self._immediate = None  # another thread of the parent may have held its lock
        self._lock = threading.Lock()
        _orphans.append(list(self._engines.items()))
        self._engines = weakref.WeakKeyDictionary()
        self._opening = weakref.WeakKeyDictionary()


def _url_of(key: object) -> str | None:
    """Return the URL of the object that what is remembered under ``key`` was made from."""
    match key:
        case (_, Load(Span(url) | Packed(Span(url))) | Stat(url)):
            return url
    return None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _reading(engine: Engine, keyspace: KeySpace, request: Request) -> bytes:
    return await engine.read(keyspace, request)


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
