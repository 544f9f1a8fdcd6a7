"""Commits to hierarchies that were cut short: undone by who finds the record of a writer that is dead.

Who holds the lock of a local hierarchy knows that, and a process knows it of its own commits; elsewhere a writer that
gave no sign of life for `LEASE` seconds is taken for dead, and one that did is not disturbed. Recovery does the same
however often, and may be cut short itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import NamedTuple

from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Facts
from refshard_fs.errors import ConflictError, ReadOnlyError
from refshard_fs.formats.zarr_hierarchy.commit_record import NAME, CommitRecord, RecordIndex
from refshard_fs.formats.zarr_hierarchy.source import Hierarchy
from refshard_fs.session.recognition import beneath
from refshard_fs.targets import Given
from refshard_fs.targets.objects import Objects
from refshard_fs.writing.options import takes_objects
from refshard_fs.writing.undo import LEASE, Undo, is_abandoned

__all__ = ["give_way", "recover", "recover_at", "recover_opened", "see_to_lasting"]


class _Stored(NamedTuple):
    record: CommitRecord
    facts: Facts


def recover(objects: Objects, *, at_once: bool = False) -> CommitRecord | None:
    """Undo the commit whose record is there, and return that; None if there is none. The lock is held.

    Raises ConflictError if its writer may be alive, unless ``at_once``.
    """
    stored = _stored(objects)
    if stored is None:
        return None
    if not at_once:
        age = _age(objects, stored.record)
        if age is not None:
            raise _under_way(objects, stored.record, age)
    undo = Undo(objects, stored.record, stored.facts)
    undo.take_over()
    with undo.lease():
        undo.put_back()
        undo.finish()
    return stored.record


def give_way(objects: Objects, names: Collection[str]) -> CommitRecord | None:
    """See to it that no other commit is about ``names``: return one that was undone for that; None if there was none.

    Raises ConflictError if there is one that may go on.
    """
    if objects.facts(NAME) is None:
        return None
    stored = _stored(objects)
    if stored is None:
        return None
    age = _age(objects, stored.record)
    if age is None:
        return recover(objects)
    if not stored.record.concerns.isdisjoint(names):
        raise _under_way(objects, stored.record, age)
    return None


def see_to_lasting(objects: Objects, names: Collection[str]) -> None:
    """Raise ConflictError if another commit, cut short, may take what was just put as ``names`` for its own.

    It has kept what there was before, or may be about to say so.
    """
    stored = None if objects.facts(NAME) is None else _stored(objects)
    if stored is None or stored.record.state == "done":
        return
    if stored.record.state == "begun" or not stored.record.concerns.isdisjoint(names):
        raise ConflictError(
            f"What was put to {objects.url} may be undone: a commit by {stored.record.by} began meanwhile. Commit "
            "again when that is done"
        )


def recover_at(url: str, given: Given) -> bool:
    """Undo, at once, the commit to the hierarchy at ``url`` that was cut short; whether there was one."""
    if not takes_objects(url):
        raise ReadOnlyError(f"{url} takes no objects: recover the hierarchy at the address that it is written at")
    objects = Objects(url, given)
    if objects.facts(NAME) is None:
        return False
    with objects.lock():
        undone = recover(objects, at_once=True)
    return undone is not None and undone.state != "done"


def recover_opened(keyspace: KeySpace, given: Callable[[str], Given]) -> frozenset[str] | None:
    """Undo the commit that was under way when ``keyspace`` was opened; return what it was about: URLs, or None.

    Raises ConflictError if its writer may be alive, or if it has ended since: then what was read is of the past.
    """
    match beneath(keyspace):
        case Hierarchy(url=url, before=before) if before.record is not None and not before.is_nothing:
            objects = Objects(url, given(url))
            with objects.lock():
                now = recover(objects)
                if now is not None and (now.id, now.state) == (before.record.id, before.record.state):
                    return frozenset(map(objects.url_of, now.concerns))
            raise ConflictError(
                f"A commit to {url} by {before.record.by} was under way when it was opened, and has ended since. What "
                "you have written is kept: discard() drops it and goes on with what is there now, save() writes it "
                "elsewhere"
            )
    return None


def _stored(objects: Objects) -> _Stored | None:
    fetched = objects.fetch(NAME)
    if fetched is None:
        return None
    return _Stored(RecordIndex(objects.url_of(NAME)).record(bytes(fetched.data)), fetched.facts)


def _age(objects: Objects, record: CommitRecord) -> float | None:
    """Return how many seconds ago the writer gave a sign of life; None if it is dead, or done."""
    if record.state == "done" or objects.excludes or is_abandoned(record):
        return None
    try:
        age = objects.age(NAME)
    except FileNotFoundError:  # it has just ended
        return 0.0
    if age is None:
        age = time.time() - record.renewed
    return age if age < LEASE else None


def _under_way(objects: Objects, record: CommitRecord, age: float) -> ConflictError:
    begun = datetime.fromtimestamp(record.begun, UTC).isoformat(timespec="seconds")
    return ConflictError(
        f"A commit to {objects.url} by {record.by} is under way since {begun}, and was alive {max(age, 0):.0f} s ago. "
        f"Commit again when it is done. If that process is dead: after {LEASE / 60:.0f} minutes without a sign of life "
        f"the next commit undoes what it did, and `refshard recover {objects.url}` does so at once"
    )
