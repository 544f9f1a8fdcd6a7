"""Commit edits to a zarr hierarchy: put each object whole, first chunks, then metadata, then remove objects.

If all chunks of a shard were written, the shard is put without being read. Otherwise the old shard is read once, and
its other chunks are copied as they are stored. If the store can compare versions, an object is replaced only if it
still has the version that was read here.

A commit of many objects is not atomic: if it fails, some objects may have been put. All edits are kept, and the next
commit puts all objects again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from refshard_fs.core.consolidated import find_consolidated, may_repeat, parse_json, reconsolidate
from refshard_fs.core.edits import Edits
from refshard_fs.core.hierarchy import check_name
from refshard_fs.core.keys import is_within, iterate_splits, join, parent
from refshard_fs.core.model import ABSENT, Span, Version
from refshard_fs.core.zarrmeta import NODE_DOCUMENTS, dumps, grid_of, is_array_document, is_metadata
from refshard_fs.errors import ConflictError, TargetChanged
from refshard_fs.sharding.index import Buffer
from refshard_fs.source.source import forget_indexes
from refshard_fs.source.transaction import Base
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.store import Condition, ObjectBytes, compute_checksum, is_same_version
from refshard_fs.writing.shards import Plan, ShardPlan, pack_shard, plan_commit
from refshard_fs.writing.writer import Writer

WORKERS: Final = 8  # objects under way at a time
UNIT: Final = 1 << 20  # bytes: an object takes a worker for each unit, so a shard of `WORKERS` units is put alone
TRIES: Final = 10  # how often consolidated metadata are put, if other writers put them at the same time
LISTED_FROM: Final = 256  # for more objects, listing their array is faster than a request for each

_SINCE: Final = "has changed since it was read: another writer wrote it"
_KEPT: Final = "Your writes are kept: "
_MERGE: Final = "commit() puts your chunks into the new shards, discard() drops your chunks"
_DISCARD: Final = (
    "discard() drops them and continues with the present objects, save() writes your version to another URL"
)


class HierarchyCommit:
    """A commit to an existing or a new zarr hierarchy."""

    def __init__(self, writer: Writer, base: Base, edits: Edits) -> None:
        url = base.keyspace.source.root_url
        self._run = writer.source.run
        self._base = base
        self._edits = edits
        self._objects = Objects(url or str(writer.fo), writer.source.stores)
        self._overlay = writer.overlay
        self._is_new = url is None
        self._put: dict[str, None] = {}  # names of the objects that were put
        self._touched: dict[str, None] = {}  # names of the objects that were, or may have been, put or removed
        self._conflicting_shards: dict[str, None] = {}
        self._empty_shards: dict[str, Condition] = {}  # shards without chunks, which are removed

    def run(self) -> None:
        """Put and remove all objects of the commit.

        Raise ConflictError if another process replaced an object that was read here. A note on the error lists the
        objects that were put before it.
        """
        try:
            with self._objects.lock():
                self._commit(self._plan_commit())
        except ConflictError as e:
            error = ConflictError(f"{e}. {_KEPT}{_MERGE if self._conflicting_shards else _DISCARD}")
            error.is_certain = e.is_certain
            self._give_up(error)
            raise error from e
        except BaseException as e:
            self._give_up(e)
            raise
        finally:
            forget_indexes({self._objects.url_of(name) for name in self._touched})

    def _give_up(self, error: BaseException) -> None:
        """Make the source open again, so that the next try reads conflicting shards; note the objects that were put."""
        if self._touched or self._conflicting_shards:
            self._overlay.reopen({self._objects.url_of(name) for name in self._conflicting_shards})
        if self._put:
            first, *others = self._put
            what = self._objects.url_of(first) + (f" and {len(others)} more objects" if others else "")
            error.add_note(f"{what} were put before that. All edits are kept: commit() puts all objects again")

    def _plan_commit(self) -> Plan:
        steps = partial(plan_commit, self._base.keyspace, self._edits, self._overlay.spool, loads_all=True)
        try:
            plan: Plan = self._run("", steps)
        except TargetChanged as e:
            raise ConflictError(f"{e.target} {_SINCE}") from e
        return plan

    def _commit(self, plan: Plan) -> None:
        for name in plan.list_names():
            check_name(name, self._objects.url_of(name))
        if self._is_new:
            self._overlay.expect_new(self._objects.url_of(name) for name, _ in plan.documents)
        removed = self._list_removed(plan)
        leftovers = self._find_leftovers(plan)
        self._objects.check_places([*plan.list_names(), *removed, *leftovers, *self._empty_shards])
        conditions = self._check_versions(plan, removed, leftovers)
        changes = dict.fromkeys(filter(is_metadata, plan.removed), None) | dict(plan.documents)
        outdated = self._find_outdated(changes, plan)
        self._objects.sweep(plan.list_names())
        blocking = _find_blocking(removed, plan.list_names())
        self._remove(blocking)
        self._objects.tidy(blocking, with_root=False)
        self._put_data(plan, conditions)
        self._remove(name for name, found in leftovers.items() if found is not ABSENT and name not in self._put)
        for name, data in plan.documents:
            self._put_object(name, (self._update_members(name, data, changes, plan),), conditions.get(name))
        for name, stored in outdated.items():
            self._reconsolidate(name, stored, changes, plan)
        self._remove(name for name in removed if name not in blocking)
        for name, condition in self._empty_shards.items():
            with self._note_conflict(name):
                self._remove_object(name, condition)
        self._objects.tidy(self._touched.keys() - self._put.keys())

    def _check_versions(
        self, plan: Plan, removed: Mapping[str, Version | None], leftovers: Mapping[str, Version]
    ) -> dict[str, Condition]:
        """Return the present versions of documents, of local objects, and of objects in new parts of arrays.

        Raise ConflictError if another writer has replaced, made or removed an object that was read here. Shards and
        chunks on servers are not compared here: the server does that when they are put.
        """
        documents = dict(plan.documents)
        names = [*documents, *self._find_rivals(documents)]
        unknown = [name for name, found in removed.items() if found is None and self._was_read(name)]
        if self._objects.is_immediate:
            unknown = list(removed)
            for shard in plan.shards:
                with self._note_conflict(shard.key):
                    self._compare(shard.key, self._objects.find_version(shard.key))
            names += plan.data
        with ThreadPoolExecutor(WORKERS) as pool:
            versions = dict(zip(names, pool.map(self._objects.find_version, names), strict=True))
            removed = {**removed, **dict(zip(unknown, pool.map(self._objects.find_version, unknown), strict=True))}
        for name, version in removed.items():
            if version is not None and version is not ABSENT:
                self._compare(name, version)
        for name, version in versions.items():
            self._compare(name, version, documents.get(name))
        return {**leftovers, **versions}

    def _find_rivals(self, documents: Iterable[str]) -> list[str]:
        """Return documents that must not appear, because they would change a node in ``documents`` to another kind."""
        nodes = {parent(name)[0] for name in documents if parent(name)[1] in NODE_DOCUMENTS}
        rivals = (join(path, name) for path in nodes for name in NODE_DOCUMENTS)
        return [name for name in rivals if self._overlay.find_expected_version(self._objects.url_of(name)) is ABSENT]

    def _was_read(self, name: str) -> bool:
        return self._overlay.find_expected_version(self._objects.url_of(name)) is not None

    @contextlib.contextmanager
    def _note_conflict(self, name: str) -> Iterator[None]:
        """Remember a conflict about the shard ``name``: the next try puts the chunks into the new shard."""
        try:
            yield
        except ConflictError:
            self._conflicting_shards[name] = None
            raise

    def _compare(self, name: str, found: Version, data: bytes | None = None) -> None:
        """Raise ConflictError if the object, which now has the version ``found``, was replaced since it was read.

        If another writer made a new group with the same document, ``data``, this is not a conflict. For an array it is
        a conflict, because both writers have chunks for it; and for an existing document, because both may have
        increased the same number.
        """
        url = self._objects.url_of(name)
        known = [
            version for version in (self._overlay.find_expected_version(url), self._overlay.written.get(url)) if version
        ]
        if not known or any(is_same_version(found, version) for version in known):
            return
        is_new_group = (
            data is not None and self._overlay.find_expected_version(url) is ABSENT and not _describes_array(name, data)
        )
        sums = self._overlay.sent | ({compute_checksum([data])} if data is not None and is_new_group else set())
        if not (found is not ABSENT and self._is_one_of(name, sums)):
            raise ConflictError(f"{url} {_SINCE}")

    def _is_one_of(self, name: str, sums: set[bytes]) -> bool:
        """Return whether the object has one of the checksums ``sums``, and remember its version if so."""
        fetched = self._objects.fetch(name) if sums else None
        if fetched is None or compute_checksum([fetched.data]) not in sums:
            return False
        self._remember(name, fetched.facts)
        return True

    def _remember(self, name: str, version: Version) -> None:
        self._overlay.written.put(self._objects.url_of(name), version, 1)

    def _find_condition(self, name: str) -> Condition:
        """Return the version that an object must have to be replaced; None for any version.

        ConflictError if another writer has replaced it.
        """
        url = self._objects.url_of(name)
        seen, own = self._overlay.find_expected_version(url), self._overlay.written.get(url)
        if seen is None or own is None or is_same_version(seen, own):
            return seen
        found = self._objects.find_version(name)
        self._compare(name, found)  # the object may have the version that was read, or the one that was written
        return found

    def _put_data(self, plan: Plan, conditions: Mapping[str, Condition]) -> None:
        jobs = [
            (_compute_size(shard), partial(self._put_shard, shard, conditions.get(shard.key))) for shard in plan.shards
        ]
        for key, edit in plan.data.items():
            assert not isinstance(edit, Span), "references were loaded"
            condition = conditions[key] if key in conditions else self._find_condition(key)
            jobs.append((edit.size, partial(self._put_object, key, [edit.data], condition)))
        free, acquiring = threading.Semaphore(WORKERS), threading.Lock()

        def run(size: int, job: Callable[[], None]) -> None:
            units = min(max(-(-size // UNIT), 1), WORKERS)
            with acquiring:  # one job at a time: two jobs with a part of their units would wait for each other for ever
                for _ in range(units):
                    free.acquire()
            try:
                job()
            finally:
                free.release(units)

        with ThreadPoolExecutor(WORKERS, thread_name_prefix="refshard-commit") as pool:

            def submit_all() -> list[Future[None]]:
                return [pool.submit(run, *job) for job in jobs]

            try:
                # A thread of the pool submits the jobs: Ctrl-C during the start of a thread would confuse the pool.
                for job in pool.submit(submit_all).result():
                    job.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # the end of the block waits for running jobs
                raise

    def _update_members(self, name: str, data: bytes, changes: Mapping[str, bytes | None], plan: Plan) -> bytes:
        """Return the document ``name`` with consolidated metadata that are equal to the other documents."""
        if not may_repeat(name, data):
            return data
        before = parse_json(data)
        after = reconsolidate(
            name, before, changes, lambda key: any(is_within(key, prefix) for prefix in plan.prefixes)
        )
        return data if after is before else dumps(after)

    def _find_outdated(self, changes: Mapping[str, bytes | None], plan: Plan) -> dict[str, ObjectBytes]:
        """Return the documents that have no edits of their own, but whose consolidated metadata change."""
        names = [name for name in find_consolidated([*changes, *plan.prefixes]) if name not in changes]
        with ThreadPoolExecutor(WORKERS) as pool:
            fetched = zip(names, pool.map(self._objects.fetch, names), strict=True)
            found = {name: stored for name, stored in fetched if stored is not None}
        return {
            name: stored
            for name, stored in found.items()
            if self._update_members(name, bytes(stored.data), changes, plan) != stored.data
        }

    def _reconsolidate(self, name: str, stored: ObjectBytes, changes: Mapping[str, bytes | None], plan: Plan) -> None:
        """Replace the ``stored`` document ``name``, with the consolidated metadata after the commit.

        Changes that another commit makes to it at the same time are kept.
        """
        for tries in range(TRIES, 0, -1):
            try:
                self._put_object(name, (self._update_members(name, bytes(stored.data), changes, plan),), stored.facts)
            except ConflictError:
                again = self._objects.fetch(name)
                if again is None or tries == 1:
                    raise
                stored = again
            else:
                return

    def _put_shard(self, shard: ShardPlan, expected: Condition) -> None:
        with self._note_conflict(shard.key):
            old: Buffer | None = None
            condition = self._find_condition(shard.key) if expected is None else expected
            if shard.old:
                fetched = self._objects.fetch(shard.key)
                old, condition = (None, ABSENT) if fetched is None else fetched
                self._compare(shard.key, condition)
                if expected is not None and not is_same_version(condition, expected):
                    raise ConflictError(f"{self._objects.url_of(shard.key)} {_SINCE}")
            parts = pack_shard(shard, old, self._objects.url_of(shard.key))
            if parts is not None:
                self._put_object(shard.key, parts, condition)
                self._overlay.costs.count_write(shard.key, shard.array, len(shard.changes), read=old is not None)
            elif condition is not ABSENT:
                self._empty_shards[shard.key] = condition

    def _put_object(self, name: str, parts: Sequence[Buffer], condition: Condition) -> None:
        self._touched[name] = None
        try:
            found = self._objects.put(name, parts, condition)
        except ConflictError:
            if not self._is_one_of(name, self._overlay.sent & {compute_checksum(parts)}):
                raise
            found = None  # an earlier try has put the object, but its answer was lost
        except BaseException:  # the object may have been put, also if Ctrl-C interrupts
            self._overlay.sent.add(compute_checksum(parts))
            raise
        self._put[name] = None
        if found is not None:
            self._remember(name, found)

    def _remove(self, names: Iterable[str]) -> None:
        """Remove objects: outer nodes first, and the document of a node before its chunks and members."""
        for name in sorted(names, key=lambda name: (not is_metadata(name), parent(name)[0].count("/"))):
            self._remove_object(name, None)

    def _remove_object(self, name: str, condition: Condition) -> None:
        self._touched[name] = None
        self._objects.remove(name, condition)
        self._remember(name, ABSENT)

    def _find_leftovers(self, plan: Plan) -> dict[str, Version]:
        """Return the objects, with versions, in the new parts of arrays: an interrupted commit may have left some."""
        found: dict[str, Version] = {}
        for grown in plan.grown:
            if grown.new_chunk_count > LISTED_FROM:
                put = dict.fromkeys(filter(grown.has, plan.list_names()), ABSENT)
                listed = self._objects.find(grown.path).items()
                found |= put | {name: facts for name, facts in listed if grown.has(name)}
            else:
                names = list(grown.list_names())
                with ThreadPoolExecutor(WORKERS) as pool:
                    found |= zip(names, pool.map(self._objects.find_version, names), strict=True)
        return found

    def _list_removed(self, plan: Plan) -> dict[str, Version | None]:
        """Return the objects that the commit removes, and their versions, if listings have them."""
        found: dict[str, Version | None] = dict.fromkeys(plan.removed)
        for prefix in plan.prefixes:
            found |= {name: facts for name, facts in self._objects.find(prefix).items() if is_within(name, prefix)}
        for path in plan.replaced:
            found |= {name: facts for name, facts in self._objects.find(path).items() if not is_metadata(name)}
        put = {*plan.list_names()}
        return {name: facts for name, facts in found.items() if name not in put}


def _find_blocking(removed: Iterable[str], put: Iterable[str]) -> set[str]:
    """Return the objects to remove before ``put``: local files where directories will be, and the reverse."""
    removed = set(removed)
    put = set(put) if removed else set()
    files = {above for name in put for above, _ in iterate_splits(name) if above in removed}
    return files | {name for name in removed if any(above in put for above, _ in iterate_splits(name))}


def _describes_array(name: str, data: bytes) -> bool:
    return is_array_document(name) and grid_of(data) is not None


def _compute_size(shard: ShardPlan) -> int:
    return sum(edit.size for edit in shard.changes.values() if edit is not None)
