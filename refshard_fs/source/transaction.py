"""Hold the uncommitted writes to one source, its *overlay*, in a transaction.

Several filesystems of this process may share a transaction: a commit, or a discard, then applies to all of them.
`find_transaction` decides which filesystems share one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import uuid
import warnings
import weakref
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from refshard_fs.core.edits import REMOVED, Edit, Edits, Spool
from refshard_fs.core.forks import call_in_child, fork_safe
from refshard_fs.core.keys import is_within
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import ABSENT, Facts, Inline, Span, Version
from refshard_fs.errors import CostlyPattern, sanitize


class OpenSource(Protocol):
    """The methods of a `Source` that a transaction calls."""

    def find_latest(self, url: str) -> Version | None: ...
    def forget(self, below: str | None = None) -> None: ...


class OverlayCopy(msgspec.Struct, frozen=True):
    """The overlay ``id`` after ``number`` changes and ``commits`` commits, for another process.

    The edits are packed once, because dask pickles a filesystem several times for each graph. If a worker process
    made the copy, ``own`` is the number of its own changes, which the overlay does not have yet.
    """

    id: str
    number: int
    commits: int
    packed: bytes
    own: int = 0

    @classmethod
    def of(cls, overlay: Transaction) -> OverlayCopy:
        edits = overlay.edits.load_all()
        changes = [(key, _make_portable(edit)) for key, edit in edits.list_changes().items()]
        packed = zlib.compress(msgspec.msgpack.encode((list(edits.list_prefixes()), changes)), 1)
        worker = overlay.worker
        if worker is not None:
            return cls(overlay.id, worker.seen, worker.commits, packed, edits.number)
        return cls(overlay.id, edits.number, overlay.commits, packed)

    def read_edits(self) -> Edits:
        prefixes, changes = msgspec.msgpack.decode(zlib.decompress(self.packed), type=_Packed)
        edits = Edits()
        values = {key: Inline(edit) if isinstance(edit, bytes) else edit or REMOVED for key, edit in changes}
        edits.add(prefixes, values)
        return edits

    def __repr__(self) -> str:  # fsspec compares instances by this text
        return f"<overlay {self.id}>"

    __str__ = __repr__


# The content of `OverlayCopy.packed`: removed prefixes, and edits by key; None for a removed key.
_Packed = tuple[list[str], list[tuple[str, bytes | Span | None]]]


def _make_portable(edit: Edit) -> Any:
    return None if edit is REMOVED else edit.data if isinstance(edit, Inline) else edit


class Worker:
    """The state of an overlay in a process that does not commit it: the name of the process, and its staged objects.

    In a fork, the name begins with the name of the fork.
    """

    def __init__(self, seen: int, commits: int, fork: str = "") -> None:
        self.name = fork + uuid.uuid4().hex
        self.seen = seen
        self.commits = commits
        self.own = 0  # the number of changes that came with the copy and are not in the overlay
        self.begun = seen  # the number of the last change that this process received
        self.staged: list[tuple[int, str]] = []  # URLs of staged objects, each after the number of the edit before it
        self.numbers = itertools.count(1)  # numbers of writes


class Base(NamedTuple):
    """The opened source, without edits. All filesystems that share the overlay read it."""

    keyspace: KeySpace
    urls: Iterable[str | None]
    facts: Facts | None  # the version of the document that a commit replaces; None if there is none yet
    url: str = ""  # the URL of that document


_FORK: Final = re.compile(r"~([0-9a-f]{32})\Z")  # the name of a fork, at the end of the id of its overlay


def _warn_of_lost_writes(source: str, uncommitted: list[int], pid: int) -> None:
    if uncommitted[0] and pid == os.getpid():
        warnings.warn(
            f"{uncommitted[0]} writes to {sanitize(source)} were never committed, and are lost: "
            "call commit(), or discard(), or write within `with fs.transaction:`",
            RuntimeWarning,  # shown by default: data is lost
            stacklevel=2,
        )


MAX_VERSIONS: Final = 1 << 16  # the most versions that an overlay remembers, of objects that commits put

COSTLY_REWRITES: Final = 3  # commits that rewrite one shard: from here on, the pattern is costly


class CostlyWrites:
    """Count how often shards are rewritten, to warn of costly patterns: once for each array and kind."""

    def __init__(self) -> None:
        self._rewritten: dict[str, int] = {}
        self._texts: dict[tuple[str, str], str] = {}  # texts of warnings by array and kind; empty after the warning

    def count_write(self, shard: str, array: str, chunks: int, *, read: bool) -> None:
        """Count a write of ``chunks`` chunks to a shard, and whether it was ``read`` first."""
        times = self._rewritten[shard] = self._rewritten.get(shard, 0) + 1
        if times >= COSTLY_REWRITES:
            remedy = "write all its chunks within one `with fs.transaction:`"
            text = f"shard {shard!r} was written {times} times, once for each commit: {remedy}"
            self._texts.setdefault((array, "often"), text)
        if read:
            remedy = "writing whole shards in one commit takes no reads"
            text = f"{chunks} chunks of shard {shard!r} were written, and the rest had to be read: {remedy}"
            self._texts.setdefault((array, "read"), text)

    def warn(self) -> None:
        """Warn of costly patterns. Call this after the commit, so that it is complete even if warnings are errors."""
        for about, text in list(self._texts.items()):
            self._texts[about] = ""
            if text:
                warnings.warn(sanitize(f"array {about[0]!r}: {text}"), CostlyPattern, stacklevel=4)


class Transaction:
    """The edits of one source. Any thread may use it; a commit holds ``lock``."""

    def __init__(self, identity: str, source: str, *, is_durable: bool = True) -> None:
        self.id = identity
        is_fork = _FORK.search(identity)
        self.origin = identity[: is_fork.start()] if is_fork else identity  # the id of the overlay without the fork
        self.fork = is_fork.group(1) if is_fork else ""  # the name of the fork; empty if this transaction is not a fork
        self.edits = Edits()
        self.worker: Worker | None = None  # None in the process that commits
        self.is_shared = False  # whether another process may have a copy
        self.commits = 0
        self.merged: set[str] = set()  # names of staged objects that are among the edits
        self.taken: dict[str, tuple[str, Edit]] = {}  # merged edits and their writers, by key
        self.sent: set[bytes] = set()  # checksums of objects that failed commits put without an answer
        self.names: set[str] = set()  # names of known objects, if names are digests of the content
        self.lock = fork_safe(threading.RLock())
        self.base: Base | None = None
        self.spool = Spool()  # values that wait for the commit
        self.whole: frozenset[str] = frozenset()  # arrays that were written with shards
        self.begun = False  # whether mode "w" has added the removal of all keys to the edits
        self.openings = 0  # times that the source had to be opened again
        self.mirror: MutableMapping[str, Any] | None = (
            None  # the fsspec mapping that is the source; edits change it, too
        )
        self.costs = CostlyWrites()
        self._copy: OverlayCopy | None = None  # the latest copy for other processes
        self._edited_base: Base | None = None  # the base of the edits, if the source was opened again since
        self._settled = 0  # number of the last edit that was committed or dropped
        self.written: LRU[str, Version] = LRU(MAX_VERSIONS)  # the last versions that commits of these edits put, by URL
        self._versions: dict[str, Version] = {}  # the versions that the edits are based on, by URL
        self._objects: dict[str, None] = {}  # URLs of the objects that were put for the edits
        self._sources: weakref.WeakSet[OpenSource] = weakref.WeakSet()
        self._joining = fork_safe(threading.Lock())  # a WeakSet cannot be listed while another thread adds to it
        self._guard = fork_safe(threading.Lock())
        self._uncommitted = [0]  # the number of uncommitted writes, which the finalizer shares
        if is_durable:  # a source in memory is lost with its edits
            weakref.finalize(self, _warn_of_lost_writes, source, self._uncommitted, os.getpid())

    def put(self, key: str, edit: Edit, new_url: str | None = None) -> None:
        """Set or remove ``key``; ``new_url`` is the URL of an object that was put for it."""
        with self._guard:
            if new_url is not None:  # together with the edit: a commit in between would remove the object as unused
                self._objects[new_url] = None
            self._remember_version(key)
            self.edits.put(key, edit)
            self._uncommitted[0] += self.worker is None
            if self.mirror is not None:
                _apply_to(self.mirror, key, edit)

    def remove_below(self, prefix: str) -> None:
        """Remove all keys at and below ``prefix``."""
        with self._guard:
            self.edits.remove_below(prefix)
            self._uncommitted[0] += self.worker is None
            for key in [key for key in self.mirror or () if is_within(key, prefix)]:
                _apply_to(self.mirror, key, REMOVED)

    def remember_object(self, url: str) -> None:
        """Remember an object that was put for an edit."""
        with self._guard:
            self._objects[url] = None

    def keep_objects(self) -> None:
        """Forget all objects that were put for edits, so that none is ever removed: other sets may refer to them."""
        with self._guard:
            self._objects.clear()

    def list_objects(self) -> list[str]:
        """Return the URLs of the objects that were put for edits."""
        with self._guard:
            return list(self._objects)

    def share(self, base: Base, opening: int, adopt: Callable[[Base, Edits], None]) -> None:
        """Make ``base`` the base of all sources, unless they have one; call ``adopt`` with their base and the edits.

        ``opening`` is the value of `openings` before ``base`` was opened. If it has changed since, do nothing: the
        source has to be opened again.
        """
        with self._guard:
            if opening == self.openings:
                if self.base is None:
                    before = self._edited_base
                    self.base = base if before is None else base._replace(facts=before.facts)
                adopt(self.base, self.edits)

    def join(self, source: OpenSource) -> None:
        """Register ``source``: its `forget` is called when the source changes."""
        with self._joining:
            self._sources.add(source)

    def _list_sources(self) -> list[OpenSource]:
        with self._joining:
            return list(self._sources)

    def reopen(self, but: Collection[str] = (), below: str | None = None) -> None:
        """Make all sources open again, and keep the edits; with ``below``, only objects below that URL have changed.

        A commit still compares the objects that it replaces with the versions read before, except the objects at the
        URLs ``but``.
        """
        with self._lock_for_change(below):
            self._keep_versions(self.edits, but)
            if self._edited_base is None and len(self.edits):
                self._edited_base = self.base
            self.base = None

    def find_expected_version(self, url: str) -> Version | None:
        """Return the version of the object at ``url`` that the edits are based on; None if it was not read."""
        known = self._versions.get(url)
        return self._find_latest(url) if known is None else known

    def expect_new(self, urls: Iterable[str]) -> None:
        """Expect that no objects exist at ``urls``, unless a version of them is known."""
        with self._guard:
            for url in urls:
                self._versions.setdefault(url, ABSENT)

    def _find_latest(self, url: str) -> Version | None:
        versions = (source.find_latest(url) for source in self._list_sources())
        return next((version for version in versions if version is not None), None)

    def _find_object(self, key: str) -> str | None:
        """Return the URL of the object of ``key``; None if keys have no objects, or the source is not open."""
        keyspace = None if self.base is None else self.base.keyspace
        return None if keyspace is None or keyspace.url_of is None else keyspace.url_of(keyspace.find_object_key(key))

    def _remember_version(self, key: str) -> None:
        """At the first edit of ``key``, remember the version of its object."""
        url = self._find_object(key)
        if url is not None and url not in self._versions:
            latest = self._find_latest(url)
            if latest is not None:
                self._versions[url] = latest

    def _keep_versions(self, edits: Edits, but: Collection[str] = ()) -> None:
        """Forget the versions of objects that ``edits`` do not concern, and of objects at the URLs ``but``."""
        if not len(edits):
            self._versions.clear()
            return
        edited = {self._find_object(key) for key in edits.list_changes()}
        may_be_any = None in edited  # the object of a key is not known
        self._versions = {
            url: version for url, version in self._versions.items() if url not in but and (url in edited or may_be_any)
        }

    @contextlib.contextmanager
    def _lock_for_change(self, below: str | None = None) -> Iterator[None]:
        """Hold the lock while the caller replaces the edits or the base; then make all sources open again."""
        with self._guard:
            yield
            self.openings += 1
        for source in self._list_sources():
            source.forget(below)

    def copy(self) -> OverlayCopy:
        """Return a copy of the overlay for another process, which may write to the copy."""
        self.is_shared = True
        known, worker = self._copy, self.worker
        now = (self.edits.number, self.commits, 0)
        if worker is not None:
            now = (worker.seen, worker.commits, self.edits.number)
        if known is None or (known.number, known.commits, known.own) != now:
            known = self._copy = OverlayCopy.of(self)
        return known

    def make_fork(self) -> OverlayCopy:
        """Return a fork: an overlay that begins with these edits, and is merged only when a user merges it."""
        return msgspec.structs.replace(self.copy(), id=f"{self.id}~{uuid.uuid4().hex}")

    def receive(self, given: OverlayCopy) -> None:
        """Use the edits in a copy from another process, unless a newer copy came before; keep edits of this process."""
        worker = self.worker
        if worker is not None and (given.commits, given.number, given.own) <= (
            worker.commits,
            worker.seen,
            worker.own,
        ):
            return
        with self._lock_for_change():
            edits = given.read_edits()
            edits.number = begun = max(given.number, edits.number, given.own)
            if worker is None:
                worker = self.worker = Worker(given.number, given.commits, self.fork)
            elif given.commits == worker.commits:
                own = self.edits.select_since(worker.begun)
                edits.add(own.list_prefixes(), own.list_changes())
            worker.seen, worker.commits, worker.own, worker.begun = given.number, given.commits, given.own, begun
            self.edits = edits
            self._uncommitted[0] = 0
            self.base = None

    def after_fork(self) -> None:
        """Become a worker's overlay: the parent process commits the edits."""
        seen, commits, before = self.edits.number, self.commits, self.worker
        if before is not None:
            seen, commits = before.seen, before.commits
        self.worker = Worker(seen, commits, self.fork)
        if before is not None:
            self.worker.own, self.worker.begun = before.own, before.begun

    def begin(self) -> Edits:
        """Return a savepoint, and count one change.

        Later copies for other processes then have a higher number than the savepoint, so that their edits can be
        distinguished from the edits in the savepoint.
        """
        with self._guard:
            self.edits.number += 1
            return self.edits.copy()

    def make_savepoint(self) -> Edits:
        """Return a copy of the edits, for `roll_back`."""
        return self.edits.copy()

    def roll_back(self, edits: Edits) -> list[str]:
        """Restore ``edits``, a savepoint; return the URLs of objects that are not needed any more.

        Edits that were committed or dropped since the savepoint do not come back.
        """
        with self._lock_for_change():
            restored = edits.select_since(self._settled)
            self._keep_versions(restored)
            left = self._replace(restored)
            if self.worker is not None:
                left += [url for before, url in self.worker.staged if before >= edits.number]
                self.worker.staged = [known for known in self.worker.staged if known[0] < edits.number]
        return left

    def drop(self) -> list[str]:
        """Drop all edits; return the URLs of objects that are not needed any more."""
        with self._lock_for_change():
            self._settled = self.edits.number
            left = self._replace(Edits())
            self._versions.clear()
            self.base = self._edited_base = None
        return left

    def settle(self, committed: Edits, stored: Edits) -> list[str]:
        """Drop the edits in ``committed``, a savepoint that was committed; ``stored`` has these edits as they were put.

        Return the URLs of objects that are not needed any more.
        """
        with self._lock_for_change():
            needed = {span.url for span in stored.iterate_spans()}
            self._objects = {url: None for url in self._objects if url not in needed}
            self._settled = committed.number
            left = self._replace(self.edits.select_since(committed.number))
            self._keep_versions(self.edits)
            self.sent.clear()
            self.commits += 1
            self.base = self._edited_base = None
        return left

    def _replace(self, edits: Edits) -> list[str]:
        """Replace the edits; forget objects that no edit refers to, and return their URLs."""
        edits.number = self.edits.number  # numbers are never used again: other processes know them
        self.edits = edits
        self._copy = None
        self._uncommitted[0] = len(edits)
        self.taken.clear()
        if not len(edits):
            self.spool.clear()
            self.written.clear()
        needed = {span.url for span in edits.iterate_spans()}
        left = [url for url in self._objects if url not in needed]
        for url in left:
            del self._objects[url]
        return left


def _apply_to(mirror: Any, key: str, edit: Edit) -> None:
    """Set or remove ``key`` in ``mirror``, fsspec's mapping of references."""
    match edit:
        case Inline(data):
            mirror[key] = data
        case Span(url, 0, None):
            mirror[key] = [url]
        case Span(url, start, int(stop)):
            mirror[key] = [url, start, stop - start]
        case _ if key in mirror:
            del mirror[key]


# A copy of a filesystem has the same overlay, and so has a filesystem that is made with the same ``overlay=``.
#
# For another event loop, zarr makes a new filesystem from the same arguments, which contain the id of the overlay.


# Arguments of fsspec's base classes.
_LISTINGS = ("use_listings_cache", "listings_expiry_time", "max_paths")
FSSPEC_ARGUMENTS: Final = frozenset([*_LISTINGS, "asynchronous", "batch_size", "loop", "skip_instance_cache"])
WORKERS: Final = 16  # overlays of other processes that stay in memory, so that a worker has the same name in each task

_known: weakref.WeakValueDictionary[str, Transaction] = weakref.WeakValueDictionary()
_workers: LRU[str, Transaction] = LRU(WORKERS)
_registry = fork_safe(threading.Lock())


def find_transaction(identity: str | OverlayCopy | None, source: str, *, is_durable: bool = True) -> Transaction:
    """Return the transaction of an overlay, given its id or a copy; make it if this process does not have it.

    ``is_durable`` says whether the edits can be committed.
    """
    name = identity.id if isinstance(identity, OverlayCopy) else identity
    with _registry:
        known = None if name is None else _known.get(name)
        is_new = known is None
        if known is None:
            known = Transaction(name or uuid.uuid4().hex, source, is_durable=is_durable)
            _known[known.id] = known
        if isinstance(identity, OverlayCopy) and (is_new or known.worker is not None):
            known.receive(identity)
            _workers.put(known.id, known)
        return known


def _before_fork() -> None:
    for overlay in list(_known.values()):
        overlay.is_shared = True


def _after_fork() -> None:
    for overlay in list(_known.values()):
        overlay.after_fork()
        _workers.put(overlay.id, overlay)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
call_in_child(_after_fork)
