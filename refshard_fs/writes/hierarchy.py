"""The commit of a zarr hierarchy: each object put whole, chunks first, metadata after them, removals at the end.

A shard of which all chunks were written is put without being read; of another, the old one is read once, and what did
not change is copied as it lies. It is put on condition that it is the one that was read, where the store can tell.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from refshard_fs.catalog import beneath
from refshard_fs.edits import Edit, Edits
from refshard_fs.errors import ConflictError, ReadOnlyError, TargetChanged
from refshard_fs.formats import Raw
from refshard_fs.keys import is_within, parent
from refshard_fs.keyspace import KeySpace
from refshard_fs.manifests.hierarchy import Hierarchy
from refshard_fs.model import Facts, Inline, Load, Span, Steps
from refshard_fs.overlay import Overlay
from refshard_fs.shards.layout import Buffer
from refshard_fs.spool import Spooled, buffers, views
from refshard_fs.targets.objects import ABSENT, Condition, Objects, is_version
from refshard_fs.writes.assembly import assembly_of
from refshard_fs.writes.committing import Committing
from refshard_fs.writes.costs import costs_of
from refshard_fs.writes.options import takes_objects
from refshard_fs.writes.planning import Plan, ShardPlan, packed, planned
from refshard_fs.zarrmeta import is_metadata

__all__ = ["HierarchyCommit", "commit_hierarchy"]

WORKERS: Final = 8  # objects under way at a time
TOGETHER: Final = 8 << 20  # bytes of shards that are put together or under way at a time; a larger one goes alone
FEW: Final = 256  # objects that are removed unseen sooner than all of an array are listed
REMEMBERED: Final = 1 << 14  # versions that this process wrote

_SINCE: Final = "was read, and somebody else has written it since"
_KEPT: Final = "What you have written is kept: "
_MERGE: Final = "commit() puts your chunks into the shards that are there now, discard() drops them"
_DISCARD: Final = "discard() drops it and goes on with what is there now, save() writes it elsewhere"

Run = Callable[[str, Callable[[], Steps[Any]]], Any]


def commit_hierarchy(committing: Committing) -> None:
    """Put the edits into the hierarchy that is the source, or into a new one."""
    match beneath(committing.base.keyspace):
        case Hierarchy(url=url):
            pass
        case _:
            url = str(committing.source)
    if not takes_objects(url):
        raise ReadOnlyError(f"{url} takes no objects: fs.save(url) writes references, and what you have written")
    objects = Objects(url, committing.given(url))
    HierarchyCommit(committing.base.keyspace, committing.edits, objects, committing.run, committing.overlay).make()


class HierarchyCommit:
    """One commit of ``edits`` of the keys of ``keyspace`` to ``objects``.

    ``run`` meets what look-ups need; ``overlay`` knows which version of an object was read here before, if one was.
    """

    def __init__(
        self,
        keyspace: KeySpace,
        edits: Edits,
        objects: Objects,
        run: Run,
        overlay: Overlay,
    ) -> None:
        self._keyspace = keyspace
        self._edits = edits
        self._objects = objects
        self._run = run
        self._overlay = overlay
        self._seen = overlay.seen
        self._assembly = assembly_of(overlay)
        self._costs = costs_of(overlay)
        self._put: dict[str, None] = {}  # names of the objects that were put
        self._gone: dict[str, None] = {}  # and of those that were removed
        self._torn: dict[str, None] = {}  # shards that somebody else replaced
        self._read: list[tuple[ShardPlan, bool]] = []

    def make(self) -> None:
        """Put and remove what there is to be.

        Raises ConflictError if somebody else replaced what was read here and is to be replaced.
        """
        try:
            plan: Plan = self._run("", partial(planned, self._keyspace, self._edits.resolved(self._at_hand)))
        except TargetChanged as e:
            raise ConflictError(f"{e.target} {_SINCE}. {_KEPT}{_DISCARD}") from e
        try:
            with self._objects.lock():
                conditions = self._precheck(plan)
                self._objects.sweep([*(shard.key for shard in plan.shards), *plan.data, *conditions])
                self._put_data(plan)
                self._remove_leftovers(plan)
                for name, data in plan.documents:
                    self._put_object(name, (data,), conditions.get(name))
                self._remove(plan)
        except ConflictError as e:
            if self._torn:
                self._overlay.reopen()  # another try begins with what is there now
            done = f" ({len(self._put)} other objects of this commit have been put)" if self._put else ""
            raise ConflictError(f"{e}{done}. {_KEPT}{_MERGE if self._torn else _DISCARD}") from e
        finally:
            self._overlay.replaced({self._objects.url_of(name) for name in (*self._put, *self._gone)})
        for shard, read in self._read:
            self._costs.put(shard.key, shard.array, len(shard.changes), read=read)

    def _at_hand(self, _: str, edit: Edit) -> Edit:
        """Return the bytes of what lies elsewhere: objects of this hierarchy may not be there when they are needed."""
        match edit:
            case Span():
                data: bytes = self._run("", partial(_read, edit))
                return self._overlay.spool.keep(data)
        return edit

    def _precheck(self, plan: Plan) -> dict[str, Condition]:
        """See, before anything is put, that nobody replaced what was read here; of documents, what is to be replaced.

        Of chunks and shards only where that takes no requests: they are put on condition.
        """
        names = [name for name, _ in plan.documents]
        if self._objects.is_at_hand:
            for shard in plan.shards:
                with self._in(shard):
                    self._compare(shard.key, self._objects.facts(shard.key))
            names += plan.data
        conditions: dict[str, Condition] = {}
        with ThreadPoolExecutor(WORKERS) as pool:
            for name, found in zip(names, pool.map(self._objects.facts, names), strict=True):
                self._compare(name, found)
                conditions[name] = ABSENT if found is None else found
        return conditions

    @contextlib.contextmanager
    def _in(self, shard: ShardPlan) -> Iterator[None]:
        """Take note of conflicts about a shard: putting the chunks into what is there now resolves them."""
        try:
            yield
        except ConflictError:
            self._torn[shard.key] = None
            raise

    def _compare(self, name: str, found: Facts | None) -> None:
        """Raise ConflictError if the object, which is now ``found``, was read here, and replaced by somebody else."""
        url = self._objects.url_of(name)
        seen, ours = self._seen(url), _ours.get(url)
        if seen is None or (found is not None and any(is_version(found, one) for one in (seen, ours) if one)):
            return
        raise ConflictError(f"{url} {_SINCE}")

    def _unread(self, name: str) -> Facts | None:
        """Return the version to replace of an object that is not read for it; None where any will do."""
        url = self._objects.url_of(name)
        seen, ours = self._seen(url), _ours.get(url)
        return seen if seen is None or ours is None or is_version(seen, ours) else None

    def _put_data(self, plan: Plan) -> None:
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="refshard-commit") as pool:
            room = _Room(TOGETHER)
            jobs = [pool.submit(room.within, _weight(shard), partial(self._put_shard, shard)) for shard in plan.shards]
            for key, edit in plan.data.items():
                assert not isinstance(edit, Span), "what lies elsewhere is at hand"
                jobs.append(pool.submit(room.within, edit.size, partial(self._put_chunk, key, edit)))
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                for job in jobs:
                    job.cancel()
                raise

    def _put_chunk(self, name: str, edit: Inline | Spooled) -> None:
        self._put_object(name, buffers([edit]), self._unread(name))

    def _put_object(self, name: str, parts: Sequence[Buffer], condition: Condition) -> None:
        found = self._objects.put(name, parts, condition)
        if found is not None:
            _ours.put(self._objects.url_of(name), found)
        self._put[name] = None

    def _put_shard(self, shard: ShardPlan) -> None:
        with _turn(self._objects.url_of(shard.key)), self._in(shard):
            old: Buffer | None = None
            condition: Condition
            if shard.old:
                fetched = self._objects.fetch(shard.key)
                self._compare(shard.key, None if fetched is None else fetched.facts)
                old, condition = (None, ABSENT) if fetched is None else fetched
            else:
                condition = self._unread(shard.key)
            self._read.append((shard, old is not None))
            whole = None if shard.old else self._assembly.whole(shard)
            parts = views([whole]) if whole is not None else packed(shard, old, self._objects.url_of(shard.key))
            if parts is not None:
                self._put_object(shard.key, parts, condition)
            elif condition is not ABSENT:
                self._objects.remove(shard.key, condition)
                self._gone[shard.key] = None

    def _remove_leftovers(self, plan: Plan) -> None:
        """Remove what lies where arrays are to grow, and was not put: a commit that was cut short has left it there."""
        for grown in plan.grown:
            few = grown.added <= FEW
            found = grown.names() if few else filter(grown.has, self._objects.names(grown.path))
            with ThreadPoolExecutor(WORKERS) as pool:
                list(pool.map(self._objects.remove, [name for name in found if name not in self._put]))

    def _remove(self, plan: Plan) -> None:
        names = list(plan.removed)
        for prefix in plan.prefixes:
            names += (name for name in self._objects.names(prefix) if is_within(name, prefix))
        for path in plan.replaced:
            names += (name for name in self._objects.names(path) if not is_metadata(name))
        gone = dict.fromkeys(name for name in names if name not in self._put)
        # What describes nodes goes before what they hold, the outer ones first.
        for name in sorted(gone, key=lambda name: (not is_metadata(name), parent(name)[0].count("/"))):
            self._objects.remove(name)
            self._gone[name] = None
        self._objects.tidy(self._gone)


def _read(span: Span) -> Steps[bytes]:
    found: bytes = yield Load(span, Raw())
    return found


def _weight(shard: ShardPlan) -> int:
    return sum(edit.size for edit in shard.changes.values() if edit is not None)


class _Room:
    """Lets in what weighs together no more than ``capacity``, and anything heavier alone."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._taken = 0
        self._changed = threading.Condition()

    def within(self, weight: int, job: Callable[[], None]) -> None:
        weight = min(weight, self._capacity)
        with self._changed:
            self._changed.wait_for(lambda: self._taken + weight <= self._capacity)
            self._taken += weight
        try:
            job()
        finally:
            with self._changed:
                self._taken -= weight
                self._changed.notify_all()


# ------------------------------------------------------------------ one writer of a shard at a time


class _Ours:
    """The versions of objects that this process put last: who has read an earlier one is in no conflict with these."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Facts] = OrderedDict()

    def put(self, url: str, facts: Facts) -> None:
        with self._lock:
            self._known[url] = facts
            self._known.move_to_end(url)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def get(self, url: str) -> Facts | None:
        return self._known.get(url)


_ours = _Ours()
_turns: weakref.WeakValueDictionary[str, _Turn] = weakref.WeakValueDictionary()
_turns_lock = threading.Lock()


class _Turn:
    def __init__(self) -> None:
        self.lock = threading.Lock()


@contextlib.contextmanager
def _turn(url: str) -> Iterator[None]:
    """Wait until nobody else in this process writes the object at ``url``."""
    with _turns_lock:
        turn = _turns.get(url)
        if turn is None:
            turn = _turns[url] = _Turn()
    with turn.lock:
        yield


def _after_fork() -> None:
    global _ours, _turns_lock
    _ours, _turns_lock = _Ours(), threading.Lock()
    _turns.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
