"""The commit of a zarr hierarchy: each object put whole, chunks first, metadata after them, removals at the end.

A shard of which all chunks were written is put without being read; of another, the old one is read once, and what did
not change is copied as it lies. It is put on condition that it is the one that was read, where the store can tell. What
several requests would make visible one after the other is kept as it was before (`undo`), until the last of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from posixpath import commonpath
from typing import Any, Final

from refshard_fs.core.edits import Edit, Edits, Spooled, buffers, views
from refshard_fs.core.keys import is_within, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Facts, Inline, Load, Raw, Span, Steps
from refshard_fs.core.overlay import Overlay
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import ConflictError, ManifestError, ReadOnlyError, TargetChanged
from refshard_fs.formats.zarr_hierarchy.commit_record import NAME, CommitRecord, is_reserved
from refshard_fs.formats.zarr_hierarchy.source import Hierarchy
from refshard_fs.session.recognition import beneath
from refshard_fs.sharding.layout import Buffer
from refshard_fs.targets.objects import ABSENT, Condition, Objects, is_version
from refshard_fs.targets.store import sum_of
from refshard_fs.writing.assembly import assembly_of
from refshard_fs.writing.committer import Committing
from refshard_fs.writing.costs import costs_of
from refshard_fs.writing.interrupts import Stop
from refshard_fs.writing.options import takes_objects
from refshard_fs.writing.planning import Plan, ShardPlan, packed, planned
from refshard_fs.writing.recovery import give_way, recover, see_to_lasting
from refshard_fs.writing.undo import WORKERS, Undo

__all__ = ["HierarchyCommit", "Ours", "Room", "commit_hierarchy", "ours", "turn"]

# ----------------------------------------------------------------------------------------------------
# Writers of one process: how much is under way at a time, who writes which object, and which versions it put.


REMEMBERED: Final = 1 << 14  # versions that this process wrote


class Room:
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


class Ours:
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

    def clear(self) -> None:
        """Know of none, whichever thread held the lock."""
        self._lock = threading.Lock()
        self._known.clear()

    def update(self, made: Mapping[str, Facts | None]) -> None:
        """Take note of what was put, by URL, as far as it is known."""
        for url, facts in made.items():
            if facts is not None:
                self.put(url, facts)

    def get(self, url: str) -> Facts | None:
        return self._known.get(url)


ours = Ours()
_turns: weakref.WeakValueDictionary[str, _Turn] = weakref.WeakValueDictionary()
_turns_lock = threading.Lock()


class _Turn:
    def __init__(self) -> None:
        self.lock = threading.Lock()


@contextlib.contextmanager
def turn(url: str) -> Iterator[None]:
    """Wait until nobody else in this process writes the object at ``url``."""
    with _turns_lock:
        found = _turns.get(url)
        if found is None:
            found = _turns[url] = _Turn()
    with found.lock:
        yield


def _after_fork() -> None:
    global _turns_lock
    _turns_lock = threading.Lock()
    ours.clear()
    _turns.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


TOGETHER: Final = 8 << 20  # bytes of shards that are put together or under way at a time; a larger one goes alone
FEW: Final = 256  # objects that are asked for, or removed unseen, sooner than all of an array are listed

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
    keyspace, run, overlay = committing.base.keyspace, committing.run, committing.overlay
    HierarchyCommit(keyspace, committing.edits, objects, run, overlay, committing.stop).make()


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
        stop: Stop,
    ) -> None:
        self._keyspace = keyspace
        self._edits = edits
        self._objects = objects
        self._run = run
        self._overlay = overlay
        self._stop = stop
        self._seen = overlay.seen
        self._assembly = assembly_of(overlay)
        self._costs = costs_of(overlay)
        self._undo: Undo | None = None
        self._put: dict[str, Facts | None] = {}  # the objects that were put, and what is known of their versions
        self._touched: dict[str, None] = {}  # names of those that were put or removed, or may have been
        self._torn: dict[str, None] = {}  # shards that somebody else replaced
        self._read: list[tuple[ShardPlan, bool]] = []

    def make(self) -> None:
        """Put and remove what there is to be, all of it or nothing.

        Raises ConflictError if somebody else replaced what was read here and is to be replaced, or is at a commit.
        """
        for key in filter(is_reserved, self._edits.changes()):
            raise ManifestError(f"{key!r} lies where commits keep what they replace: nothing else can be written there")
        try:
            with self._objects.lock():
                if self._objects.excludes:  # who has left a record is dead, and what it did is not to be read
                    self._know(recover(self._objects))
                self._commit(self._planned())
                self._objects.tidy(self._touched.keys() - self._put.keys())
        except ConflictError as e:
            if self._torn:
                self._begin_anew(self._torn)
            raise ConflictError(f"{e}. {_KEPT}{_MERGE if self._torn else _DISCARD}") from e
        finally:
            self._overlay.replaced({self._objects.url_of(name) for name in self._touched})
        for shard, read in self._read:
            self._costs.put(shard.key, shard.array, len(shard.changes), read=read)

    def _begin_anew(self, but: Iterable[str]) -> None:
        """Let another try begin with what is there now, whatever that is ``but`` only of these objects."""
        self._overlay.reopen({self._objects.url_of(name) for name in but})

    def _planned(self) -> Plan:
        try:
            plan: Plan = self._run("", partial(planned, self._keyspace, self._edits.resolved(self._at_hand)))
        except TargetChanged as e:
            raise ConflictError(f"{e.target} {_SINCE}") from e
        return plan

    def _commit(self, plan: Plan) -> None:
        """Make ``plan``: so that it can be undone, unless one request makes all of it visible."""
        gone = self._goes(plan)
        seen = [*plan.visible(), *gone]
        shards = sorted(shard.key for shard in plan.shards)
        with contextlib.ExitStack() as turns:
            for name in [NAME, *shards] if len(seen) > 1 else shards:
                turns.enter_context(turn(self._objects.url_of(name)))
            self._objects.sweep([*plan.names(), NAME])
            if len(seen) > 1:
                self._make_undoably(plan, gone, seen)
            else:
                if not self._objects.excludes:
                    self._know(give_way(self._objects, [*plan.names(), *gone]))
                self._write_at_once(plan, gone)
            ours.update({self._objects.url_of(name): found for name, found in self._put.items()})
            if len(seen) == 1 and not self._objects.excludes:
                see_to_lasting(self._objects, seen)

    def _write_at_once(self, plan: Plan, gone: Mapping[str, Facts | None]) -> None:
        conditions = self._precheck(plan)
        try:
            self._write(plan, gone, conditions)
        except BaseException:
            if self._touched:  # nobody knows whether the last one was put: another try finds out
                self._begin_anew(self._touched.keys() & gone.keys())
            raise

    def _make_undoably(self, plan: Plan, gone: Mapping[str, Facts | None], seen: Sequence[str]) -> None:
        undo = self._undo = self._begin()
        with undo.lease():
            try:
                before = self._before(plan, gone, seen)
                undo.keep(dict.fromkeys(plan.names()) | before)
                self._write(plan, gone, {name: ABSENT if found is None else found for name, found in before.items()})
                self._stop.check()
                undo.finish()
            except BaseException as e:
                back = undo.roll_back(self._touched, e)
                if back is None and isinstance(e, OSError):  # all that failed is to hear that it is made
                    return
                made = self._put if back is None or not undo.is_done else back
                ours.update({self._objects.url_of(name): found for name, found in made.items()})
                if made is self._put:
                    self._begin_anew(self._touched.keys() - self._put.keys())
                if back is None:
                    e.add_note(f"The commit to {self._objects.url} is made all the same.")
                raise

    def _begin(self) -> Undo:
        with contextlib.suppress(ConflictError):
            return Undo.begin(self._objects)
        self._know(recover(self._objects))
        return Undo.begin(self._objects)

    def _know(self, undone: CommitRecord | None) -> None:
        """Take note that somebody's commit was undone: what is remembered of its objects is of no use."""
        if undone is not None:
            self._overlay.replaced({self._objects.url_of(name) for name in undone.concerns})

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
        for name, found in self._asked(names).items():
            self._compare(name, found)
            conditions[name] = ABSENT if found is None else found
        return conditions

    def _before(self, plan: Plan, gone: Mapping[str, Facts | None], seen: Sequence[str]) -> dict[str, Facts | None]:
        """Return what there is of the objects ``seen``; ConflictError if somebody replaced one that was read here."""
        at_hand = self._objects.is_at_hand
        listed = {name: found for name, found in gone.items() if found is not None and not at_hand}
        there = listed | self._asked([name for name, _ in plan.documents])
        folders: dict[str, bool] = {}  # of documents: whether there are none yet
        for name, _ in plan.documents:
            path = parent(name)[0]
            folders[path] = folders.get(path, True) and there[name] is None
        homes, groups = plan.homes(), dict[str, list[str]]()
        for name in seen:
            if name not in there:
                groups.setdefault(homes.get(name, parent(name)[0]), []).append(name)
        for array, names in groups.items():
            if not at_hand and (len(names) > FEW or folders.get(array)):
                listed = self._objects.found(commonpath([parent(name)[0] for name in names]))
                there |= {name: listed.get(name) for name in names}
            else:
                there |= self._asked(names)
        for shard in plan.shards:
            if shard.key in there:
                with self._in(shard):
                    self._compare(shard.key, there[shard.key])
        for name in seen:
            self._compare(name, there[name])
        return {name: there[name] for name in seen}

    def _asked(self, names: Iterable[str]) -> dict[str, Facts | None]:
        names = list(names)
        with ThreadPoolExecutor(WORKERS) as pool:
            return dict(zip(names, pool.map(self._objects.facts, names), strict=True))

    @contextlib.contextmanager
    def _in(self, shard: ShardPlan) -> Iterator[None]:
        """Take note of conflicts about a shard: putting the chunks into what is there now resolves them."""
        try:
            yield
        except ConflictError:
            self._torn[shard.key] = None
            raise

    def _compare(self, name: str, found: Facts | None, before: Condition = None) -> None:
        """Raise ConflictError if the object, which is now ``found``, was replaced by somebody else: since it was read
        here, or since it was the one ``before`` this commit.
        """
        url = self._objects.url_of(name)
        read = self._seen(url), ours.get(url)
        if isinstance(before, Facts):
            read = before, None
        if read[0] is None or (found is not None and any(is_version(found, one) for one in read if one)):
            return
        if self._has_put(name):
            return
        raise ConflictError(f"{url} {_SINCE}")

    def _has_put(self, name: str) -> bool:
        """Whether the object is what a commit of the same writes has put, and heard no answer to."""
        fetched = self._objects.fetch(name) if self._overlay.sent else None
        if fetched is None or sum_of([fetched.data]) not in self._overlay.sent:
            return False
        ours.put(self._objects.url_of(name), fetched.facts)
        return True

    def _unread(self, name: str) -> Facts | None:
        """Return the version to replace of an object that is not read for it; None where any will do."""
        url = self._objects.url_of(name)
        seen, own = self._seen(url), ours.get(url)
        return seen if seen is None or own is None or is_version(seen, own) else None

    # ------------------------------------------------------------------ putting and removing

    def _write(self, plan: Plan, gone: Iterable[str], conditions: Mapping[str, Condition]) -> None:
        self._put_data(plan, conditions)
        self._remove_leftovers(plan)
        for name, data in plan.documents:
            self._put_object(name, (data,), conditions.get(name))
        # What describes nodes goes before what they hold, the outer ones first.
        for name in sorted(gone, key=lambda name: (not is_metadata(name), parent(name)[0].count("/"))):
            self._remove_object(name, None)

    def _put_data(self, plan: Plan, conditions: Mapping[str, Condition]) -> None:
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="refshard-commit") as pool:
            room = Room(TOGETHER)
            jobs = [
                pool.submit(room.within, _weight(shard), partial(self._put_shard, shard, conditions))
                for shard in plan.shards
            ]
            for key, edit in plan.data.items():
                assert not isinstance(edit, Span), "what lies elsewhere is at hand"
                condition = conditions[key] if key in conditions else self._unread(key)
                put = partial(self._put_chunk, key, edit, condition)
                jobs.append(pool.submit(room.within, edit.size, put))
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                for job in jobs:
                    job.cancel()
                raise

    def _put_chunk(self, name: str, edit: Inline | Spooled, condition: Condition) -> None:
        self._put_object(name, buffers([edit]), condition)

    def _put_shard(self, shard: ShardPlan, conditions: Mapping[str, Condition]) -> None:
        with self._in(shard):
            old: Buffer | None = None
            condition = conditions[shard.key] if shard.key in conditions else self._unread(shard.key)
            if shard.old and condition is not ABSENT:
                fetched = self._objects.fetch(shard.key)
                self._compare(shard.key, None if fetched is None else fetched.facts, conditions.get(shard.key))
                old, condition = (None, ABSENT) if fetched is None else fetched
            self._read.append((shard, old is not None))
            whole = None if shard.old else self._assembly.whole(shard)
            parts = views([whole]) if whole is not None else packed(shard, old, self._objects.url_of(shard.key))
            if parts is not None:
                self._put_object(shard.key, parts, condition)
            elif condition is not ABSENT:
                self._remove_object(shard.key, condition)

    def _put_object(self, name: str, parts: Sequence[Buffer], condition: Condition) -> None:
        with self._touching(name):
            try:
                self._put[name] = self._objects.put(name, parts, condition)
            except OSError:
                self._overlay.sent.add(sum_of(parts))
                raise

    def _remove_object(self, name: str, condition: Condition) -> None:
        with self._touching(name):
            self._objects.remove(name, condition)

    @contextlib.contextmanager
    def _touching(self, name: str) -> Iterator[None]:
        """Take note that the object is another one from now on, unless there is a conflict about it."""
        self._stop.check()
        if self._undo is not None:
            self._undo.check()
        self._touched[name] = None
        try:
            yield
        except ConflictError:
            del self._touched[name]
            raise

    def _remove_leftovers(self, plan: Plan) -> None:
        """Remove what lies where arrays are to grow, and was not put: a commit that was cut short has left it there."""
        for grown in plan.grown:
            few = grown.added <= FEW
            found = grown.names() if few else filter(grown.has, self._objects.names(grown.path))
            with ThreadPoolExecutor(WORKERS) as pool:
                list(pool.map(self._objects.remove, [name for name in found if name not in self._put]))

    def _goes(self, plan: Plan) -> dict[str, Facts | None]:
        """Return the objects that are to be removed, and what listings tell of them."""
        found: dict[str, Facts | None] = dict.fromkeys(plan.removed)
        for prefix in plan.prefixes:
            found |= {name: facts for name, facts in self._objects.found(prefix).items() if is_within(name, prefix)}
        for path in plan.replaced:
            found |= {name: facts for name, facts in self._objects.found(path).items() if not is_metadata(name)}
        put = {*plan.names()}
        return {name: facts for name, facts in found.items() if name not in put}


def _read(span: Span) -> Steps[bytes]:
    found: bytes = yield Load(span, Raw())
    return found


def _weight(shard: ShardPlan) -> int:
    return sum(edit.size for edit in shard.changes.values() if edit is not None)
