"""The commit of a zarr hierarchy: each object is put whole, chunks first, metadata after them, removals at the end.

A shard of which all chunks were written is put without being read. Of another one the old object is read once, and the
chunks that did not change are copied as they are stored. Objects are replaced on condition that they are the version
that was read here, where the store can tell versions apart.

A commit of many objects is not atomic: one that fails has put some of them. All edits are kept, and the next commit
puts them all again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from refshard_fs.core.edits import Edits
from refshard_fs.core.hierarchy import Hierarchy, check_name
from refshard_fs.core.keys import is_within, parent, splits
from refshard_fs.core.model import Facts, Span
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import ConflictError, TargetChanged
from refshard_fs.reading.cache import Cache
from refshard_fs.session.overlay import Base
from refshard_fs.session.recognition import beneath
from refshard_fs.session.session import forget_indexes
from refshard_fs.sharding.index import Buffer
from refshard_fs.targets.objects import ABSENT, Condition, Objects, is_version, sum_of
from refshard_fs.writing.shards import Plan, ShardPlan, pack_shard, plan_commit
from refshard_fs.writing.writer import Writer

WORKERS: Final = 8  # objects under way at a time
UNIT: Final = 1 << 20  # bytes; an object counts as one for each of these, and a shard of `WORKERS` units goes alone
LISTED_FROM: Final = 256  # objects; more are found by listing their array than by asking for each
REMEMBERED: Final = 1 << 14  # versions that this process wrote

_SINCE: Final = "was read, and somebody else has written it since"
_KEPT: Final = "What you have written is kept: "
_MERGE: Final = "commit() puts your chunks into the shards that are there now, discard() drops them"
_DISCARD: Final = "discard() drops it and goes on with what is there now, save() writes it elsewhere"


# The versions of objects that this process put last, by URL; None for those that it removed. They are in no conflict
# with edits that were made on an earlier version.
written_versions: Final = Cache(REMEMBERED)


class HierarchyCommit:
    """One commit to the hierarchy that is the source, or to a new one."""

    def __init__(self, writer: Writer, base: Base, edits: Edits) -> None:
        found = beneath(base.keyspace)
        url = found.url if isinstance(found, Hierarchy) else str(writer.source)
        self._run = writer.session.run
        self._base = base
        self._edits = edits
        self._objects = Objects(url, writer.session.given(url))
        self._overlay = writer.overlay
        self._put: dict[str, None] = {}  # names of the objects that were put
        self._touched: dict[str, None] = {}  # names of those that were put or removed, or may have been
        self._conflicting_shards: dict[str, None] = {}
        self._empty_shards: dict[str, Condition] = {}  # shards without chunks, which are removed

    def run(self) -> None:
        """Put and remove all objects of the commit.

        Raises ConflictError if another process replaced an object that was read here. Every error has a note of what
        was put before it.
        """
        try:
            with self._objects.lock():
                self._commit(self._planned())
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
        """Open the source again, so that the next try reads conflicting shards; note on ``error`` what was put."""
        if self._touched or self._conflicting_shards:
            self._overlay.reopen({self._objects.url_of(name) for name in self._conflicting_shards})
        if self._put:
            first, *others = self._put
            what = self._objects.url_of(first) + (f" and {len(others)} more objects" if others else "")
            error.add_note(f"{what} were put before that. All edits are kept: commit() makes all of them again")

    def _planned(self) -> Plan:
        steps = partial(plan_commit, self._base.keyspace, self._edits, self._overlay.spool, loads_all=True)
        try:
            plan: Plan = self._run("", steps)
        except TargetChanged as e:
            raise ConflictError(f"{e.target} {_SINCE}") from e
        return plan

    def _commit(self, plan: Plan) -> None:
        for name in plan.names():
            check_name(name, self._objects.url_of(name))
        removed = self._to_remove(plan)
        self._objects.check_places([*plan.names(), *removed, *self._empty_shards])
        conditions = self._checked(plan, removed)
        self._objects.sweep(plan.names())
        blocking = _blocking(removed, plan.names())
        self._remove(blocking)
        self._objects.tidy(blocking, with_root=False)
        self._put_data(plan, conditions)
        self._remove_leftovers(plan)
        for name, data in plan.documents:
            self._put_object(name, (data,), conditions.get(name))
        self._remove(name for name in removed if name not in blocking)
        for name, condition in self._empty_shards.items():
            with self._shard(name):
                self._remove_object(name, condition)
        self._objects.tidy(self._touched.keys() - self._put.keys())

    # ------------------------------------------------------------------ conflicts

    def _checked(self, plan: Plan, removed: Mapping[str, Facts | None]) -> dict[str, Condition]:
        """Return the versions that documents, and local objects, must have when they are replaced.

        Raises ConflictError if another process replaced one that was read here. Shards and chunks on servers are not
        compared: they are put on condition.
        """
        names = [name for name, _ in plan.documents]
        if self._objects.is_immediate:
            for shard in plan.shards:
                with self._shard(shard.key):
                    self._compare(shard.key, self._objects.facts(shard.key))
            names += plan.data
            removed = {name: self._objects.facts(name) for name in removed}
        for name, found in removed.items():
            if found is not None:
                self._compare(name, found)
        conditions: dict[str, Condition] = {}
        with ThreadPoolExecutor(WORKERS) as pool:
            for name, found in zip(names, pool.map(self._objects.facts, names), strict=True):
                self._compare(name, found)
                conditions[name] = ABSENT if found is None else found
        return conditions

    @contextlib.contextmanager
    def _shard(self, name: str) -> Iterator[None]:
        """Remember a conflict about a shard: the next try puts the chunks into the new shard."""
        try:
            yield
        except ConflictError:
            self._conflicting_shards[name] = None
            raise

    def _compare(self, name: str, found: Facts | None) -> None:
        """Raise ConflictError if the object, which is now ``found``, was replaced by others since it was read."""
        url = self._objects.url_of(name)
        seen = self._overlay.seen(url)
        if seen is None:
            return
        if found is None:
            if written_versions.get(url, ABSENT) is None:
                return
        elif any(is_version(found, known) for known in (seen, written_versions.get(url)) if known is not None):
            return
        if not self._was_put_without_answer(name):
            raise ConflictError(f"{url} {_SINCE}")

    def _was_put_without_answer(self, name: str) -> bool:
        """Whether the object is what an earlier try put, and heard no answer to."""
        fetched = self._objects.fetch(name) if self._overlay.sent else None
        if fetched is None or sum_of([fetched.data]) not in self._overlay.sent:
            return False
        written_versions.put(self._objects.url_of(name), fetched.facts, 1)
        return True

    def _unread(self, name: str) -> Condition:
        """Return the version to replace of an object that is not read for it; None where any will do."""
        url = self._objects.url_of(name)
        seen = self._overlay.seen(url)
        own = written_versions.get(url, seen)
        if seen is None or (own is not None and is_version(seen, own)):
            return seen
        found = self._objects.facts(name)
        self._compare(name, found)  # either of the two may be there
        return ABSENT if found is None else found

    # ------------------------------------------------------------------ putting and removing

    def _put_data(self, plan: Plan, conditions: Mapping[str, Condition]) -> None:
        jobs = [(_weight(shard), partial(self._put_shard, shard)) for shard in plan.shards]
        for key, edit in plan.data.items():
            assert not isinstance(edit, Span), "references were loaded"
            condition = conditions[key] if key in conditions else self._unread(key)
            jobs.append((edit.size, partial(self._put_object, key, [edit.data], condition)))
        free, acquiring = threading.Semaphore(WORKERS), threading.Lock()

        def run(size: int, job: Callable[[], None]) -> None:
            units = min(max(-(-size // UNIT), 1), WORKERS)
            with acquiring:  # one object at a time: two that have a part of their units would wait for each other
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
                # Not by this thread: the pool loses count of threads whose start Ctrl-C interrupts.
                for job in pool.submit(submit_all).result():
                    job.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # leaving the block waits for those under way
                raise

    def _put_shard(self, shard: ShardPlan) -> None:
        with self._shard(shard.key):
            old: Buffer | None = None
            condition: Condition = self._unread(shard.key)
            if shard.old:
                fetched = self._objects.fetch(shard.key)
                self._compare(shard.key, None if fetched is None else fetched.facts)
                old, condition = (None, ABSENT) if fetched is None else fetched
            parts = pack_shard(shard, old, self._objects.url_of(shard.key))
            if parts is not None:
                self._put_object(shard.key, parts, condition)
                self._overlay.costs.put(shard.key, shard.array, len(shard.changes), read=old is not None)
            elif condition is not ABSENT:
                self._empty_shards[shard.key] = condition

    def _put_object(self, name: str, parts: Sequence[Buffer], condition: Condition) -> None:
        self._touched[name] = None
        try:
            found = self._objects.put(name, parts, condition)
        except OSError:
            self._overlay.sent.add(sum_of(parts))
            raise
        self._put[name] = None
        if found is not None:
            written_versions.put(self._objects.url_of(name), found, 1)

    def _remove(self, names: Iterable[str]) -> None:
        """Remove objects: what describes a node before what it holds, outer nodes first."""
        for name in sorted(names, key=lambda name: (not is_metadata(name), parent(name)[0].count("/"))):
            self._remove_object(name, None)

    def _remove_object(self, name: str, condition: Condition) -> None:
        self._touched[name] = None
        self._objects.remove(name, condition)
        written_versions.put(self._objects.url_of(name), None, 1)

    def _remove_leftovers(self, plan: Plan) -> None:
        """Remove what is stored where arrays are to grow, and was not put: a commit that was cut short left it."""
        for grown in plan.grown:
            few = grown.added <= LISTED_FROM
            found = grown.names() if few else filter(grown.has, self._objects.find(grown.path))
            with ThreadPoolExecutor(WORKERS) as pool:
                list(pool.map(self._objects.remove, [name for name in found if name not in self._put]))

    def _to_remove(self, plan: Plan) -> dict[str, Facts | None]:
        """Return the objects that the commit removes, and their versions as far as listings tell."""
        found: dict[str, Facts | None] = dict.fromkeys(plan.removed)
        for prefix in plan.prefixes:
            found |= {name: facts for name, facts in self._objects.find(prefix).items() if is_within(name, prefix)}
        for path in plan.replaced:
            found |= {name: facts for name, facts in self._objects.find(path).items() if not is_metadata(name)}
        put = {*plan.names()}
        return {name: facts for name, facts in found.items() if name not in put}


def _blocking(removed: Iterable[str], put: Iterable[str]) -> set[str]:
    """Return what is removed before ``put`` can be written: local files in place of directories, and the reverse."""
    removed = set(removed)
    put = set(put) if removed else set()
    in_the_way = {above for name in put for above, _ in splits(name) if above in removed}
    return in_the_way | {name for name in removed if any(above in put for above, _ in splits(name))}


def _weight(shard: ShardPlan) -> int:
    return sum(edit.size for edit in shard.changes.values() if edit is not None)
