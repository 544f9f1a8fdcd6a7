"""Open a source once, and read its keys; open it again after it has changed.

`Engines` makes an engine for each event loop, and one reader that needs no loop. `Source` adds the opened key space of
a source, and the uncommitted writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Mapping, MutableMapping, Sequence
from pathlib import PurePath
from typing import Any, Final, TypeVar

import msgspec
from fsspec.asyn import get_loop, sync
from fsspec.spec import AbstractFileSystem

from refshard_fs.core import zarrmeta
from refshard_fs.core.edits import EditedKeySpace, Edits
from refshard_fs.core.forks import call_in_child, fork_safe
from refshard_fs.core.format import OpenOptions, start_finding_plugins
from refshard_fs.core.keys import is_key, join, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import (
    ChunkPart,
    Entry,
    Facts,
    Inline,
    Load,
    Need,
    Packed,
    Pin,
    Span,
    Stat,
    Steps,
    Version,
    drive,
)
from refshard_fs.core.selection import Mode, select_chunk_numbers
from refshard_fs.core.stats import Stats
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.cubes.merging import open_selected
from refshard_fs.errors import ManifestError, NoSuchSource, RefShardError, TargetChanged, sanitize_cause
from refshard_fs.reading.chunk_cache import ChunkCache
from refshard_fs.reading.engine import Engine
from refshard_fs.reading.failures import make_source_error, name_key, note_decoding
from refshard_fs.reading.fetch import Fetcher
from refshard_fs.reading.immediate import Immediate
from refshard_fs.reading.index_cache import IndexCache, find_default_directory
from refshard_fs.reading.loading import Answers, Outcome
from refshard_fs.reading.memory import SharedBudget, SharedMemory
from refshard_fs.reading.plan import MIB, Limits, PlannedRequest, Request, UnmadeBytes, plan_requests
from refshard_fs.reading.read_ranges import ReadRanges
from refshard_fs.reading.selection import GUARD, WORKERS, SelectionRead, Take
from refshard_fs.references.lazy_references import LazyReferences
from refshard_fs.references.reference_set import References, ReferenceSet
from refshard_fs.security.admission import Admission
from refshard_fs.security.policy import LOCAL, protocol_of
from refshard_fs.source import recognition
from refshard_fs.source.in_memory_source import InMemorySource, get_content
from refshard_fs.source.options import CachingOptions, Directory, Options
from refshard_fs.source.settings import Settings, begin_transaction
from refshard_fs.source.transaction import Base, Transaction, find_transaction
from refshard_fs.stores.stores import Stores
from refshard_fs.targets import Pool, Versions
from refshard_fs.targets.pool import Grants, make_instance

T = TypeVar("T")
Loop = asyncio.AbstractEventLoop
Chunks = Sequence[bytes | UnmadeBytes | None]

ATTEMPTS: Final = 3  # how often a source is opened that writers replace meanwhile
FIRST_KEYS = 8  # the number of keys that are looked up to see whether looking up all of them needs reads
DECODED = 32 * MIB  # the most bytes of decoded chunks that a source holds in memory
INDEXES: LRU[Any, Any] = LRU(1 << 30)  # decoded manifests and shard indexes of the process, at most 1 GiB


class Engines:
    """Run look-ups on any event loop. Thread-safe. Each loop gets its own engine, which is closed with the loop."""

    def __init__(
        self,
        options: Settings,
        indexes: LRU[Any, Any] = INDEXES,
        ranges: ReadRanges | None = None,
        *,
        is_writable: bool = False,
    ) -> None:
        """Take a cache of decoded ``indexes``, by default the one of the whole process. ``ranges``: see `Answers`."""
        self.options = options
        self.stats = Stats()
        self._versions = Versions()
        self._engines: weakref.WeakKeyDictionary[Loop, Engine] = weakref.WeakKeyDictionary()
        self._lock = fork_safe(threading.Lock())
        self._pool_options = options.pool
        self._grants: Grants = {}
        self._stores = Stores(options.pool)
        self._immediate: Immediate | None = None
        self._home: weakref.ref[Loop] | None = None  # the loop that read last
        self._is_writable = is_writable
        caching = options.caching
        self._blocks: LRU[Span, bytes] | None = LRU(caching.block_cache) if caching.block_cache else None
        # Decoded chunks. A loop over steps reads a chunk part by part. A user who plots a step of a remote source then
        # computes with it, or runs a cell again: so chunks of remote sources are kept also if they were read whole.
        self.decoded: LRU[Any, Any] = LRU(0 if is_writable else min(DECODED, options.budget.memory // 8))
        # Bytes in which values of several arrays lie, such as records of NetCDF-3: the next array is in them, too.
        self._mixed: LRU[Span, bytes] = LRU(0 if is_writable else options.budget.memory // 2)
        self._budget = self._make_budget()
        self._on_disk = _open_chunk_cache(caching)
        index_cache, longest = _open_index_cache(caching), options.open.max_manifest_bytes
        self._answers = Answers(indexes, options.token, longest, index_cache, ranges)
        _all.add(self)

    def engine(self) -> Engine:
        """Return the running loop's engine."""
        loop = asyncio.get_running_loop()
        self._home = weakref.ref(loop)
        engine = self._engines.get(loop)
        if engine is None or engine.is_closed:  # no race: only the loop's own thread makes its engine
            with self._lock:
                for ended in [known for known in self._engines if known.is_closed()]:
                    del self._engines[ended]
                engine = self._engines[loop] = self._make_engine(loop)
        return engine

    @property
    def memory(self) -> int:
        """The most bytes of memory that reading may take."""
        return self._budget.memory

    @property
    def selections(self) -> SharedMemory:
        """The memory that selections of all event loops share."""
        return self._budget

    def _make_budget(self) -> SharedBudget:
        """Return a new budget of all engines, in which the caches that readers may empty count, too."""
        return SharedBudget(self.options.budget, [self.decoded, self._mixed])

    @property
    def _where(self) -> str:
        """The source's URL, for errors that name no other place."""
        return self.options.source if isinstance(self.options.source, str) else "the source in memory"

    def _make_engine(self, loop: Loop) -> Engine:
        options = self.options
        caches = self._blocks, self._on_disk, self._answers, self._mixed
        fetcher = Fetcher(self._make_pool(loop), options.limits, self._budget, self.stats, *caches)
        return Engine(fetcher, self._answers, self.stats, options.readahead, self._get_immediate())

    async def look_up(self, key: str, steps: Steps[T]) -> T:
        """Run ``steps``, and return their result. An error names ``key``, and is never a FileNotFoundError."""
        return await self.engine().run_for(key, steps, self._where)

    def look_up_now(self, key: str, steps: Steps[Any]) -> Outcome | None:
        """Return the outcome of ``steps``, or None if they need an event loop. For callers that may block."""
        try:
            return self._get_immediate().run(steps)
        except Exception as e:  # noqa: BLE001  # `name_key` returns the error to raise
            raise name_key(key, e, self._where) from sanitize_cause(e.__cause__ or e)

    def run(self, key: str, steps: Callable[[], Steps[T]]) -> T:
        """Run ``steps()``, and return their result, for callers outside of event loops; an error names ``key``."""
        found = self.look_up_now(key, steps())
        result: T = self.wait(self.look_up, key, steps()) if found is None else found.value
        return result

    def wait(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine function, and return its result, for callers outside of event loops."""
        return wait(function, *args)

    def _get_immediate(self) -> Immediate:
        immediate = self._immediate
        if immediate is None:
            immediate = self._immediate = Immediate(
                self._make_pool(None),
                self._answers,
                self.stats,
                self._on_disk,
                self._mixed,
                is_writable=self._is_writable,
            )
        return immediate

    def find_last_loop(self) -> Loop | None:
        """Return another running loop that has read the source, preferably the last that did; None if there is none."""
        here = find_running_loop()
        with self._lock:
            known = [None if self._home is None else self._home(), *self._engines]
        return next((loop for loop in known if loop is not None and loop is not here and loop.is_running()), None)

    @property
    def admission(self) -> Admission:
        """The rule for the targets of the source."""
        return self._pool_options.admission

    @property
    def stores(self) -> Stores:
        """The stores for writing objects, with the same options and rules as reading."""
        if self._stores.options is not self._pool_options:
            self._stores = Stores(self._pool_options)
        return self._stores

    def find_latest(self, url: str) -> Version | None:
        """Return the version in the last answer about an object; None if there was no request for it."""
        return self._versions.find_latest(url)

    def _make_pool(self, loop: Loop | None) -> Pool:
        return Pool(
            self._pool_options, loop, self._versions, self.stats, is_writable=self._is_writable, grants=self._grants
        )

    def _drop_engines(self) -> None:
        """Forget the engines and their memory; the caller holds ``_lock``."""
        self._mixed.clear()
        if self._blocks is not None:
            self._blocks.clear()
        self.decoded.clear()
        self._engines.clear()
        # The budget is new, too: reads that continue with a forgotten engine do not count in it.
        self._budget = self._make_budget()
        self._immediate = None
        self._grants = {}

    def _after_fork(self) -> None:
        _orphans.append(list(self._engines.items()))
        self._engines = weakref.WeakKeyDictionary()
        self._home = None  # its loop runs in the parent
        self._budget = self._make_budget()


def wait(function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run a coroutine function where connections are open: on zarr's event loop, or on fsspec's; return its result."""
    result: T = sync(_find_loop_of_zarr() or get_loop(), function, *args)
    return result


def _find_loop_of_zarr() -> Loop | None:
    """Return zarr's event loop, so that its connections are used; None without zarr 3, or if it runs this thread."""
    known = sys.modules.get("zarr.core.sync")
    make = getattr(known, "_get_loop", None)  # if a later version lacks it, zarr opens connections of its own
    loop: Loop | None = None if make is None else make()
    return None if loop is find_running_loop() else loop


def find_running_loop() -> Loop | None:
    """Return the event loop that runs in this thread; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _open_index_cache(caching: CachingOptions) -> IndexCache | None:
    option = caching.index_cache
    directory = None if option is False else _choose_directory(option)
    return None if directory is None else IndexCache(directory, everything=option is not None)


def _open_chunk_cache(caching: CachingOptions) -> ChunkCache | None:
    directory = _choose_directory(caching.cache_dir) if caching.cache_dir else None
    return None if directory is None else ChunkCache(directory, caching.cache_bytes)


def _choose_directory(option: Directory | None) -> str | PurePath | None:
    """Return the directory in ``option``, or else this platform's directory of caches; None if it has none."""
    return find_default_directory() if option is None or isinstance(option, bool) else os.path.expanduser(option)


_all: weakref.WeakSet[Engines] = weakref.WeakSet()

# A forked child shares the parent's sockets and selectors, and must not close them: this list keeps them referenced.
_orphans: list[object] = []


def _after_fork() -> None:
    for engines in list(_all):
        engines._after_fork()


call_in_child(_after_fork)


STREAM_PART = 8 * MIB  # bytes of a large key that `Source.stream` reads by one request
STREAM_PARTS = 4  # the most parts in memory at a time
_named: weakref.WeakValueDictionary[str, Source] = weakref.WeakValueDictionary()
_naming = fork_safe(threading.Lock())


class Source(Engines):
    """The opened source of a filesystem, ``fs.source``. Thread-safe; copies of a filesystem in one process share one.

    Callers outside of event loops use `open`, which returns the key space, `run`, which runs the steps of a look-up,
    and `wait`, which runs a coroutine. Callers on an event loop use `keyspace`, `look_up` and `engine`. `read`,
    `read_all`, `find` and `plan` take keys. `admission` is the rule for the targets, `stores` writes objects, and
    `transaction` holds uncommitted writes.
    """

    def __init__(self, options: Settings, transaction: Transaction | None = None) -> None:
        """Take the ``transaction`` that holds the writes; without one, the source is read only."""
        ranges = options.source.read_ranges() if isinstance(options.source, InMemorySource) else None
        super().__init__(options, ranges=ranges, is_writable=transaction is not None)
        self.transaction = transaction
        self.mapper: MutableMapping[str, Any] | None = (
            None  # the fsspec mapping that is the source; edits change it, too
        )
        self._arguments: object = None  # the arguments of the filesystems that share this
        self._opening: weakref.WeakKeyDictionary[Loop, asyncio.Task[KeySpace]] = weakref.WeakKeyDictionary()
        self._keyspace: KeySpace | None = None
        self._awaited: list[str] = []  # keys that are read as soon as the source is open
        self._opening_now = fork_safe(threading.Lock())
        self._references: tuple[KeySpace, Mapping[str, Any]] | None = None
        # Metadata of arrays, by path, each with the number of the last edit when they were read.
        self._arrays: dict[str, tuple[int, ArrayMeta]] = {}
        self._forgotten = 0  # times that the opened source was forgotten
        self.reads_small_files_whole = True  # False if only metadata and coordinates will be read, of many files
        if transaction is not None:
            transaction.join(self)

    @classmethod
    def of(cls, options: Options) -> Source:
        """Return the source of a filesystem with these ``options``; it is not open yet."""
        return cls(Settings.of(options), begin_transaction(options))

    @classmethod
    def share(cls, options: Options, name: str, arguments: object) -> Source:
        """Return the source of all filesystems with this ``name`` and equal ``arguments``.

        Filesystems with other arguments, or with other uncommitted writes, get a source of their own.
        """
        transaction = begin_transaction(options)
        known = _named.get(name)
        if known is None:
            made = cls(Settings.of(options), transaction)
            made._arguments = arguments
            with _naming:
                known = _named.setdefault(name, made)
        is_same = known._arguments == arguments and known.transaction is transaction
        return known if is_same else cls(Settings.of(options), transaction)

    async def keyspace(self, keys: Iterable[str] = ()) -> KeySpace:
        """Return the opened source; concurrent callers open it once. ``keys`` are read next."""
        if self._keyspace is not None:
            return self._keyspace
        self._awaited.extend(keys)
        loop = asyncio.get_running_loop()
        task = self._opening.get(loop)
        if task is None or task.done():
            task = self._opening[loop] = loop.create_task(self._open())
            task.add_done_callback(self._end_opening)
        return await asyncio.shield(task)

    def _end_opening(self, task: asyncio.Task[KeySpace]) -> None:
        loop = asyncio.get_running_loop()
        if self._opening.get(loop) is task:
            del self._opening[loop]  # a task in the table would keep its loop alive

    def open_now(self) -> KeySpace | None:
        """Return the key space if it is open, or can be opened without I/O; otherwise None."""
        if self._keyspace is not None:
            return self._keyspace
        transaction = self.transaction
        opening = self._openings
        base = None if transaction is None else transaction.base
        if base is not None:
            self._adopt(base, opening)
        elif isinstance(content := get_content(self.options.source), ReferenceSet):
            with self._opening_now:  # one thread opens it, and the others wait
                if self._keyspace is None:
                    steps = self._select(recognition.open_references(content, self._open_options()))
                    found = self.look_up_now("", steps)
                    if found is not None:
                        self._adopt(Base(found.value, found.value.urls, None), opening)
        return self._keyspace

    def open(self) -> KeySpace:
        """Return the opened source, for callers outside of event loops."""
        keyspace = self.open_now() or self._open_local_file()
        return self.wait(self.keyspace) if keyspace is None else keyspace

    def _open_local_file(self) -> KeySpace | None:
        """Open a local file in this thread; return None if this needs an event loop, or fails: it fails there, too."""
        options, opening = self.options, self._openings
        if not self.is_local or self.transaction is not None or options.fallback:
            return None
        with self._opening_now, contextlib.suppress(Exception):  # one thread opens it, and the others wait
            if self._keyspace is None:
                INDEXES.discard((options.token, Stat(str(options.source))))
                steps = self._select(recognition.open_source(str(options.source), self._open_options(), options.format))
                found = self._get_immediate().run(steps)
                if found is not None:
                    self._adopt(Base(found.value, (), None), opening)
        return self._keyspace

    async def _open(self) -> KeySpace:
        left = ATTEMPTS
        while True:
            opening = self._openings
            keyspace = self.open_now()
            if keyspace is not None:
                return keyspace
            try:
                base = await self._open_source()
            except TargetChanged:  # a writer has replaced the source while it was opened
                left -= 1
                if left == 0 and self.transaction is None:
                    raise
                self._forget_indexes()  # they describe an earlier version of the source
                self.forget()
            else:
                self._adopt(base, opening)

    async def _open_source(self) -> Base:
        options = self.options
        match options.source:
            case str(url):
                if protocol_of(url) in (None, *LOCAL):  # checking a local file is cheap, and it may have been replaced
                    INDEXES.discard((options.token, Stat(url)))
                else:
                    start_finding_plugins()
                    self._versions.of(url).is_kept = self.reads_small_files_whole and self.transaction is None
                steps = recognition.open_source(url, self._open_options(), options.format)
            case InMemorySource(bytes(data)):
                steps = recognition.open_bytes(data, self._open_options(), options.format)
            case InMemorySource(ReferenceSet() as refs):
                steps = recognition.open_references(refs, self._open_options())
            case other:
                raise TypeError(f"expected a URL or a source in memory, got {other!r}")
        try:
            steps = self._select(steps)
            keyspace = await self.engine().run(self._use_fallback(steps) if options.fallback else steps)
            # Options without a protocol are for the first protocol in the references.
            urls = await self.engine().run(keyspace.find_some_urls()) if options.fallback else ()
            return Base(keyspace, urls, *await self._stat_document(keyspace))
        except NoSuchSource:
            if self.transaction is None or not isinstance(options.source, str):
                raise
            return Base(recognition.make_empty_source(options.source, self._open_options()), (), None, options.source)
        except RefShardError:
            raise
        except Exception as e:  # noqa: BLE001  # a FileNotFoundError would make every key look missing
            raise make_source_error(options.source, e) from sanitize_cause(e)

    def _select(self, steps: Steps[KeySpace]) -> Steps[KeySpace]:
        """Open a source by ``steps``, and apply the selections in the options."""
        return (yield from open_selected(steps, self.options.select) if self.options.select else steps)

    async def _stat_document(self, keyspace: KeySpace) -> tuple[Facts | None, str]:
        """Return the version of the document that a commit replaces, and its URL."""
        url = keyspace.document_url if isinstance(self.options.source, str) else None
        if url is None or self.transaction is None:
            return None, ""
        facts: Facts | None = await self.engine().need(Stat(url, fresh=True))
        return facts, url

    def _open_options(self) -> OpenOptions:
        """Return the options for opening the source; arrays that the transaction wrote with shards show the shards."""
        transaction, options = self.transaction, self.options.open
        if transaction is not None:
            return msgspec.structs.replace(options, whole=transaction.whole, recalls=False)
        awaited, self._awaited = tuple(dict.fromkeys(self._awaited)), []
        are_documents = all(is_key(key) and zarrmeta.is_metadata(key) and "::" not in key for key in awaited)
        if self.options.select or not are_documents or len({parent(key)[0] for key in awaited}) != 1:
            return options
        return msgspec.structs.replace(options, awaited=awaited)

    @property
    def _openings(self) -> int:
        """The number of times that the source had to be opened again."""
        transaction = self.transaction
        return self._forgotten if transaction is None else transaction.openings

    def _adopt(self, base: Base, opening: int) -> None:
        """Use ``base``, unless the source was forgotten since: then `_openings` is no longer ``opening``.

        Sources that share an overlay share a base.
        """
        transaction = self.transaction
        if transaction is not None:
            transaction.share(base, opening, self._take)
            return
        with self._lock:
            if opening == self._forgotten:
                self._take(base, None)

    def _take(self, base: Base, edits: Edits | None) -> None:
        """Use ``base``, with ``edits``. Options without a protocol are for the first protocol in its references.

        For a set from elsewhere, these options go only to the set's own server, and only if it has that protocol.
        """
        if self.options.fallback:
            self._give_fallback(next(filter(None, map(protocol_of, filter(None, base.urls))), None))
        self._keyspace = base.keyspace if edits is None else EditedKeySpace(base.keyspace, edits)

    def _use_fallback(self, steps: Steps[KeySpace]) -> Steps[KeySpace]:
        """Run ``steps``, which open the source; use the options without a protocol for the first other object.

        The document of a cube opens a set that it names, before its references are known.
        """
        source = self.options.source.rstrip("/") if isinstance(self.options.source, str) else None

        def meet(need: Need | tuple[Need, ...]) -> Steps[Any]:
            for one in need if isinstance(need, tuple) else (need,):
                url = _find_needed_url(one)
                is_first = self._pool_options is self.options.pool
                if is_first and url is not None and (source is None or not url.startswith(source)):
                    self._give_fallback(protocol_of(url))
            return (yield need)

        return (yield from drive(steps, meet))

    def _give_fallback(self, protocol: str | None) -> None:
        """Use the options without a protocol for ``protocol``, if the source may choose that."""
        source, pool = self.options.source, self._pool_options
        if protocol is None:
            return
        known = pool.with_fallback(self.options.fallback, protocol, source if isinstance(source, str) else None)
        if known is not pool:
            self._pool_options = known
            self._grants = {}
            for engine in self._engines.values():
                engine.fetcher.requests.pool = self._make_pool(engine.pool.loop)

    def ensure_transaction(self) -> Transaction:
        """Return the transaction; a source in memory gets one here, at the first write."""
        transaction = self.transaction
        if transaction is not None:
            return transaction
        with self._lock:
            transaction = self.transaction
            if transaction is None:
                transaction = self.transaction = find_transaction(None, str(self.options.source), is_durable=False)
                transaction.mirror = self.mapper
                self.decoded.capacity = 0  # writes may replace chunks
                self.decoded.clear()
                transaction.join(self)
                if self._keyspace is not None:
                    transaction.share(Base(self._keyspace, (), None), transaction.openings, self._take)
        return transaction

    def list_filesystems(self) -> dict[str | None, AbstractFileSystem]:
        """Return a filesystem for each protocol: the user's, or a new one with the user's options.

        Without options for any protocol, return a filesystem for the first protocol in the references. This filesystem
        also reads URLs without a protocol, as in fsspec's ``reference``.
        """
        given: dict[str | None, Any] = {**self._pool_options.by_protocol}
        bare = self.options.open.protocol
        if not given:
            urls = self.run("", self.open().find_some_urls)
            bare = next(filter(None, map(protocol_of, filter(None, urls))), None)
            given = {} if bare is None else {bare: self.options.fallback}
        if None not in given:
            given[None] = given.get(bare, {})
        return {
            name: make_instance(name or (bare if bare in given else None) or "file", fs) for name, fs in given.items()
        }

    @property
    def is_own(self) -> bool:
        """Whether the source, and each set in it, is known to be the user's own, or is allowed by ``allow=``."""
        pool, keyspace = self._pool_options, self._keyspace or self.open_now()
        if keyspace is None or not pool.admission.trusts_source:
            return False
        rule_of, strangers = pool.rule_of, keyspace.strangers
        return not strangers or (rule_of is not None and all(rule_of(server).trusts_source for server in strangers))

    def invalidate(self, path: str = "") -> None:
        """Forget the opened source, and the versions and indexes of its objects: the next use opens it again.

        With ``path``, in a hierarchy, forget only objects at and below it.
        """
        keyspace = self._keyspace
        below = None if not path or keyspace is None or keyspace.url_of is None else keyspace.url_of(path)
        self._forget_indexes(below)
        if self.transaction is not None:
            self.transaction.reopen(below=below)  # all sources that share the transaction forget
        else:
            self.forget(below)

    def forget(self, below: str | None = None) -> None:
        """Forget the opened source, and the versions of its objects (with ``below``, of objects below that URL).

        Indexes stay, and are used if the versions of their objects are the same.
        """
        with self._lock:
            self._forgotten += 1
            self._keyspace = None
            self._arrays.clear()
            self._opening.clear()
            self._versions.clear(below)
            self._answers.forget_ranges()
            self._drop_engines()

    def _forget_indexes(self, below: str | None = None) -> None:
        """Make the process forget the indexes of the source, and of the objects that it read."""
        source = below or self.options.source

        def is_of_ours(key: Any) -> bool:
            url = _find_url(key)
            if url is None or key[0] != self.options.token:
                return False
            is_of_source = isinstance(source, str) and (url == source or url.startswith(source.rstrip("/") + "/"))
            return is_of_source or self._versions.has_opened(url, below)

        INDEXES.discard_where(is_of_ours)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._opening = weakref.WeakKeyDictionary()

    async def read(self, request: Request) -> bytes:
        """Return the bytes of ``request``; FileNotFoundError means that the key does not exist."""
        loop = asyncio.get_running_loop()
        self._home = weakref.ref(loop)  # even if the data is inline: chunks will be read on the same loop
        keyspace = self._keyspace or self.open_now() or await self.keyspace([request.key])
        if self._is_part_of_metadata(request):
            await self.read(Request(request.key))
        at_once = self._immediate or self._get_immediate()
        entry = at_once.find(keyspace, request.key)
        data = None if entry is None else await at_once.take_async(request, entry)
        if data is None:
            data = await self.engine().read(keyspace, request, entry)
        self._check_harmless(request, data)
        return data

    async def read_all(self, requests: list[Request], on_progress: Callable[[int], object] | None = None) -> list[Any]:
        """Return the bytes or the error of each request; ``on_progress(n)`` is called when n more have ended."""
        out = await self._read_all(requests, on_progress)
        for number, request in enumerate(requests):
            try:
                if self._is_part_of_metadata(request):
                    await self.read(Request(request.key))
                self._check_harmless(request, out[number])
            except ManifestError as e:
                out[number] = e
        return out

    async def _read_all(self, requests: list[Request], on_progress: Callable[[int], object] | None) -> list[Any]:
        keys = [request.key for request in requests]
        keyspace = await self.keyspace(keys[:FIRST_KEYS])
        reader = self._get_immediate()
        # If the first few keys are not found, an index has to be read, probably for all keys. A key that is found is
        # not looked up again: a hierarchy gives the documents that it read at its opening only once.
        found = reader.find_all(keyspace, keys[:FIRST_KEYS])
        if any(place is not None for place in found):
            found += reader.find_all(keyspace, keys[FIRST_KEYS:])
        elif self.is_local:
            found = await asyncio.to_thread(reader.find_all, keyspace, keys, may_load=True)
        else:
            found = [None] * len(keys)
        entries: dict[int, Entry] = {number: place.value for number, place in enumerate(found) if place and place.value}
        out: list[Any] = [
            FileNotFoundError(key) if place is not None and place.value is None else None
            for key, place in zip(keys, found, strict=True)
        ]
        at_once = [number for number, entry in entries.items() if reader.has(entry)]
        jobs = [(requests[number], entries[number]) for number in at_once]
        groups = reader.group_jobs(jobs)

        def take(groups: Sequence[Sequence[int]]) -> None:
            for group in groups:
                for place, value in zip(group, reader.take_together([jobs[place] for place in group]), strict=True):
                    out[at_once[place]] = value

        if all(isinstance(entry, Inline) for _, entry in jobs):
            take(groups)
            groups = []
        threads = min(WORKERS, len(groups))
        await asyncio.gather(*(asyncio.to_thread(take, groups[first::threads]) for first in range(threads)))
        late = [number for number, value in enumerate(out) if value is None]
        if on_progress is not None:
            on_progress(len(requests) - len(late))
        if not late:
            return out
        engine = self.engine()
        guess = len(requests) == 1  # a caller with several requests has stated what it needs: do not read ahead
        late_requests, late_entries = [requests[number] for number in late], [entries.get(number) for number in late]
        futures = engine.read_many(keyspace, late_requests, late_entries, guess=guess)
        if on_progress is not None:
            for future in futures:
                future.add_done_callback(lambda _: on_progress(1))
        for number, value in zip(late, await asyncio.gather(*futures, return_exceptions=True), strict=True):
            out[number] = value
        return out

    @property
    def is_local(self) -> bool:
        """Whether the source is a file or a directory on this machine."""
        source = self.options.source
        return isinstance(source, str) and protocol_of(source) in (None, *LOCAL)

    async def read_entries(self, entries: Mapping[str, Entry]) -> list[bytes]:
        """Return the bytes of each entry, in the order of ``entries``, which has them by key."""
        requests = [Request(key) for key in entries]
        keyspace = await self.keyspace()
        read: list[bytes] = await asyncio.gather(*self.engine().read_many(keyspace, requests, [*entries.values()]))
        return read

    async def read_selection(
        self,
        keys: Sequence[str],
        take: Take,
        *,
        chunk_size: int,
        threads: bool,
        memory: SharedMemory | None = None,
    ) -> None:
        """Read the chunks of one selection, and call ``take(number, data)`` as each arrives: see `reading.selection`.

        A selection of one chunk is often a step of a loop, or a task of dask. So it is read with `read`, which may read
        ahead. ``memory``, if given, bounds this read instead of the memory that all selections share: for callers that
        have reserved the bytes themselves.
        """
        if len(keys) == 1:
            data: bytes | None = None
            with contextlib.suppress(FileNotFoundError):
                data = await self.read(Request(keys[0]))
            try:
                if threads:
                    await asyncio.get_running_loop().run_in_executor(None, take, 0, data)
                else:
                    take(0, data)
            except Exception as e:
                await self.note_decoding(e, keys[0])
                raise
            return
        guard = GUARD.get()

        def check_and_take(number: int, data: bytes | None) -> None:
            if guard is not None and data is not None:
                guard(keys[number], data)
            take(number, data)

        read = SelectionRead(
            await self.keyspace(),
            take if guard is None else check_and_take,
            self.engine,
            self._get_immediate(),
            chunk_size=chunk_size,
            memory=memory or self.selections,
            threads=threads,
        )
        try:
            await read.run(keys)
        except Exception as e:
            if read.undecoded is not None:
                await self.note_decoding(e, read.undecoded)
            raise

    async def note_decoding(self, error: Exception, key: str) -> None:
        """Add a note to ``error``: it says that the chunk ``key`` could not be decoded, and where its bytes are."""
        if isinstance(error, RefShardError):  # its text already says where the bytes are
            return
        entry = None
        with contextlib.suppress(Exception):  # the user has to see the first error
            entry = await self.find(key)
        note_decoding(error, key, entry)

    async def stream(self, key: str, on_size: Callable[[int], object]) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of ``key`` in order, in parts; at most `STREAM_PARTS` parts are in memory at a time.

        Bytes that have to be decoded, and an object of unknown size, are one part. ``on_size(n)`` is called first, with
        the size of the whole key.
        """
        entry = await self.find(key)
        size = entry.size
        if size is None or size <= STREAM_PART or not isinstance(entry, Span):
            data = await self.read(Request(key))
            on_size(len(data))
            yield data
            return
        on_size(size)
        loop = asyncio.get_running_loop()
        coming: deque[asyncio.Task[bytes]] = deque()
        try:
            for start in range(0, size, STREAM_PART):
                coming.append(loop.create_task(self.read(Request(key, start, min(start + STREAM_PART, size)))))
                if len(coming) == STREAM_PARTS:
                    yield await coming.popleft()
            while coming:
                yield await coming.popleft()
        finally:
            for task in coming:
                task.cancel()

    def references(self) -> Mapping[str, Any]:
        """Return the references of the source, without uncommitted writes, as a mapping like their JSON."""
        shown = self.open()
        if self._references is None or self._references[0] is not shown:
            keyspace = shown.source
            if not keyspace.is_reference_set:
                raise NotImplementedError(
                    "only a set of references has references: fs.save(url) writes this source as a set of references"
                )
            refs: ReferenceSet | None = keyspace.references
            self._references = shown, LazyReferences(keyspace, self.run) if refs is None else References(refs)
        return self._references[1]

    def read_now(self, request: Request) -> bytes | None:
        """Return the bytes of ``request``; None if that needs an event loop. For callers that may block."""
        keyspace = self._keyspace or self.open_now()
        is_metadata = zarrmeta.is_metadata(request.key)
        if keyspace is None or (is_metadata and self._is_part_of_metadata(request)):
            return None
        data = (self._immediate or self._get_immediate()).read(keyspace, request, may_load=True)
        if is_metadata or GUARD.get() is not None:
            self._check_harmless(request, data)
        return data

    def _is_part_of_metadata(self, request: Request) -> bool:
        """Return whether ``request`` reads a part of metadata of a set from elsewhere: see `_check_harmless`."""
        return not request.is_whole and zarrmeta.is_metadata(request.key) and not self.is_own

    def _check_harmless(self, request: Request, data: Any) -> None:
        """Raise ManifestError if decoding ``data``, the bytes of a key, may do harm; ignore values that are not bytes.

        Metadata of a set from elsewhere must not name a codec that runs code, even if some version of zarr permits it.
        This check needs the whole document. While xarray opens a set, `GUARD` checks its chunks.
        """
        if zarrmeta.is_metadata(request.key) and isinstance(data, bytes | bytearray | memoryview):
            self._check_document(request.key, bytes(data))
        guard = GUARD.get()
        if guard is not None and isinstance(data, bytes) and request.is_whole:
            guard(request.key, data)

    def _check_document(self, key: str, document: bytes) -> None:
        if zarrmeta.is_nested_deeply(document):
            raise ManifestError(f"{key!r} is nested too deeply: zarr cannot parse such metadata")
        if key.endswith(".zattrs"):  # it names no codecs
            return
        if zarrmeta.may_use_pickle(document) and not self.is_own and zarrmeta.uses_pickle(document):
            raise ManifestError(
                f"{key!r}, metadata of a set from elsewhere: expected chunks without pickles, which may run code, "
                "found a codec of pickles. If you trust the set, add its URL to allow=; if it was made of other sets, "
                "pass allow='any'"
            )

    def find_parts(self, keys: Sequence[str], choose: Callable[[str, bool], ChunkPart | None]) -> dict[str, Entry]:
        """Return, by key, the ranges of parts of chunks that are stored uncompressed, and found without reads.

        ``choose(key, is_here)`` returns the part of a chunk that suffices; ``is_here`` says whether the chunk is on
        this machine. A cache on disk keeps whole chunks: with such a cache, the result is empty.
        """
        keyspace = self._keyspace or self.open_now()
        if not keys or keyspace is None or self._on_disk is not None:
            return {}
        reader = self._get_immediate()
        stored: dict[str, Entry] = {}
        for key, outcome in zip(keys, reader.find_all(keyspace, keys, keeps=True), strict=True):
            if outcome is not None and outcome.value is not None:
                part = choose(key, reader.is_here(outcome.value))
                entry = None if part is None else part.find_stored(outcome.value)
                if entry is not None:
                    stored[key] = entry
        return stored

    def find_here(self, keys: Sequence[str]) -> dict[str, Entry | None] | None:
        """Return the entries of chunks by key, if all are found without reads and have their bytes on this machine."""
        keyspace = self._keyspace or self.open_now()
        if keyspace is None:
            return None
        reader = self._get_immediate()
        entries: dict[str, Entry | None] = {}
        for some in (keys[:1], keys[1:]):  # the first chunk decides for most arrays
            found = reader.find_all(keyspace, some, may_load=self.is_local, keeps=True)
            for key, place in zip(some, found, strict=True):
                if place is None or not (place.value is None or reader.is_here(place.value)):
                    return None
                entries[key] = place.value
        return entries

    def read_into(self, part: ChunkPart, entry: Entry | None, buffer: memoryview) -> bool:
        """Read a run of bytes of a chunk into ``buffer``; False unless the chunk is uncompressed, and local."""
        span = None if entry is None else part.find_stored(entry)
        return isinstance(span, Span) and self._get_immediate().read_into(span, buffer)

    def read_chunks(
        self, keys: Sequence[str], parts: Mapping[str, Entry], entries: Mapping[str, Entry | None] | None = None
    ) -> Chunks:
        """Read chunks together; None stands for a missing chunk. For callers that may block.

        The caller assembles each `UnmadeBytes` chunk. Of the chunks in ``parts``, only these ranges are read.
        ``entries``: the entries of all chunks, if they are known.
        """
        keyspace = self._keyspace or self.open_now()
        if keyspace is None:
            return self.wait(self._read_chunks, keys, None)
        reader = self._immediate or self._get_immediate()
        if entries is not None:
            found: list[Outcome | None] = [Outcome(parts.get(key, entries[key])) for key in keys]
        elif parts:
            others = [key for key in keys if key not in parts]
            whole = iter(reader.find_all(keyspace, others, may_load=self.is_local))
            found = [Outcome(parts[key]) if key in parts else next(whole) for key in keys]
        else:
            found = reader.find_all(keyspace, keys, may_load=self.is_local)
        if any(outcome is None or (outcome.value is not None and not reader.has(outcome.value)) for outcome in found):
            return self.wait(self._read_chunks, keys, found, not parts)
        out: list[UnmadeBytes | None] = [None] * len(keys)
        jobs = {number: (Request(keys[number]), outcome.value) for number, outcome in enumerate(found) if outcome}
        jobs = {number: job for number, job in jobs.items() if job[1] is not None}
        read = reader.take_chunks([*jobs.values()])
        if read is None:  # some chunks cannot be read here without an event loop
            return self.wait(self._read_chunks, keys, found, not parts)
        for number, data in zip(jobs, read, strict=True):
            out[number] = data
        return out

    async def _read_chunks(
        self, keys: Sequence[str], found: Sequence[Outcome | None] | None, guess: bool = True
    ) -> Chunks:
        keyspace = await self.keyspace()
        return await self.engine().read_chunks(keyspace, keys, found or [None] * len(keys), guess=guess)

    async def find(self, key: str) -> Entry:
        """Return the entry of ``key``; FileNotFoundError if the key does not exist."""
        keyspace = await self.keyspace()
        entry = await self.look_up(key, keyspace.lookup(key))
        if entry is None:
            raise FileNotFoundError(key)
        return entry

    async def plan(self, keys: Sequence[str]) -> list[PlannedRequest]:
        """Return the requests for reading ``keys``, without sending them; FileNotFoundError if a key does not exist."""
        keyspace = await self.keyspace()
        spans: dict[tuple[str, Pin | None, Limits], list[tuple[str, int, int | None]]] = {}
        found = await self.engine().find_all(keyspace, keys)
        for key, entry in zip(keys, found, strict=True):
            match entry:
                case None:
                    raise FileNotFoundError(key)
                case Exception():
                    raise name_key(key, entry, self._where) from entry
                case Span() | Packed():
                    for span in entry.spans:
                        limits = self.options.limits.dense if span.dense else self.options.limits
                        if span.apart:
                            limits = limits.apart
                        spans.setdefault((span.url, span.pin, limits), []).append((key, span.start, span.stop))
        return [p for (url, _, limits), wanted in spans.items() for p in plan_requests(url, wanted, limits)]

    async def prefetch(self, keys: Sequence[str], *, wait: bool, on_progress: Callable[[int], object]) -> None:
        """Fetch ``keys``, and hold their bytes until they are read.

        With ``wait``, return when all keys have arrived, or as many as fit into ``max_memory``. If fetching a key
        fails, reading it raises the error. ``on_progress(n)`` is called when n more requests were answered.
        """
        keyspace = await self.keyspace()
        await self.engine().ahead.announce(keyspace, keys, wait=wait, on_progress=on_progress)

    async def find_keys(self, array: str, selection: Any, mode: Mode) -> list[str]:
        """Return the keys of the chunks of ``array`` that ``selection`` touches.

        Raises FileNotFoundError if there is no such array, ValueError if its chunks do not form a regular grid,
        IndexError if the selection does not fit.
        """
        number = 0 if self.transaction is None else self.transaction.edits.number
        known = self._arrays.get(array)
        meta = known[1] if known is not None and known[0] == number else None
        for name in zarrmeta.ARRAY_DOCUMENTS:
            if meta is None:
                with contextlib.suppress(FileNotFoundError):
                    data = await self.read(Request(join(array, name)))
                    meta = zarrmeta.array_meta(zarrmeta.loads(data), join(array, name))
        if meta is None:
            raise FileNotFoundError(f"there is no array {array!r}: 'refshard tree SOURCE' lists all arrays")
        self._arrays[array] = number, meta
        if meta.chunks is None or meta.grid is None:
            raise ValueError(
                f"the chunks of {array!r} do not form a regular grid: expected chunks of one size for a selection. "
                "Pass the keys of chunks instead"
            )
        numbers = select_chunk_numbers(selection, meta.shape, meta.chunks, mode)
        return [join(array, meta.grid.tail(n)) for n in numbers.tolist()]


def forget_indexes(urls: Collection[str]) -> None:
    """Make the process forget the indexes of objects that were replaced."""
    INDEXES.discard_where(lambda key: _find_url(key) in urls)


def _find_url(key: object) -> str | None:
    """Return the URL of the object of the index that is cached under ``key``; None if it has no object."""
    match key:
        case (_, Load(Span(url) | Packed(Span(url))) | Stat(url)):
            return url
    return None


def _find_needed_url(need: Need) -> str | None:
    """Return the URL of the object that a need asks for; None for bytes in memory."""
    entry = need.entry if isinstance(need, Load) else need
    url: str | None = getattr(entry.source if isinstance(entry, Packed) else entry, "url", None)
    return url
