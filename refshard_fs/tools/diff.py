"""What differs between two sources: arrays, metadata, and where chunks lie. No chunk is read.

Chunks are compared in columns, a million in a fraction of a second; of the keys that differ, some are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import UInt64s, renumbered
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import batches
from refshard_fs.tools.survey import BATCH, INLINE, Chunks, Extents, Positions, Surveyed, contents, survey
from refshard_fs.tools.views import progress

NAMED: Final = 10  # keys of each kind that are named
Keys = tuple[str, ...]


class DocumentChange(msgspec.Struct, frozen=True):
    """A metadata document that both have, and the fields of it that differ."""

    key: str
    fields: tuple[str, ...]


class Changes(msgspec.Struct, frozen=True):
    """How many keys differ below ``path`` (of an array; None: keys that are no chunks), and the first of each kind."""

    path: str | None
    added: int
    removed: int
    changed: int
    some_added: Keys = ()
    some_removed: Keys = ()
    some_changed: Keys = ()


class Difference(msgspec.Struct, frozen=True):
    """What the second source has and the first has not (``added``), the other way round, and what changed.

    ``not_compared`` are arrays that both have and whose chunks one of them cannot list.
    """

    groups_added: Keys
    groups_removed: Keys
    arrays_added: Keys
    arrays_removed: Keys
    metadata_added: Keys
    metadata_removed: Keys
    metadata_changed: tuple[DocumentChange, ...]
    keys: tuple[Changes, ...]
    not_compared: Keys = ()

    @property
    def is_empty(self) -> bool:
        """Whether the two are known to be the same."""
        return not any(getattr(self, name) for name in self.__struct_fields__)


Compare = Callable[[Sequence[str]], list[str]]  # returns those of the keys whose bytes differ


def compare(first: Surveyed, second: Surveyed) -> Difference:
    """Return what differs. URLs are compared resolved: a copy whose relative URLs lead elsewhere differs."""
    a, b = survey(first), survey(second)
    both = sorted(a.documents.keys() & b.documents.keys())
    documents = ((key, _fields(a.documents[key], b.documents[key])) for key in both)
    number = {url: target for target, url in enumerate(a.urls)}
    targets = np.array([number.get(url, len(a.urls) + i) for i, url in enumerate(b.urls)] + [INLINE], np.int64)

    def differing(keys: Sequence[str]) -> list[str]:
        found = []
        with progress("diff") as shown:
            shown.set_size(len(keys))
            for some in batches(keys, BATCH):
                ours = contents(first, some)
                for key, one, other in zip(some, ours, contents(second, some, shown.relative_update), strict=True):
                    failed = [data for data in (one, other) if isinstance(data, Exception)]
                    if failed:
                        raise failed[0]
                    if one != other:
                        found.append(key)
        return found

    unlisted = {path for found in (a, b) for path, extents in found.arrays.items() if not extents.listed}
    changes = [_changes(None, a.rest, b.rest, targets, differing)]
    for path in sorted((a.arrays.keys() | b.arrays.keys()) - unlisted):
        one, other = a.arrays.get(path), b.arrays.get(path)
        one, other = _emptied(other) if one is None else one, _emptied(one) if other is None else other
        changes.append(_changes(path, one, other, targets, differing))
    return Difference(
        groups_added=_without(b.groups, a.groups),
        groups_removed=_without(a.groups, b.groups),
        arrays_added=_without(b.arrays, a.arrays),
        arrays_removed=_without(a.arrays, b.arrays),
        metadata_added=_without(b.documents, a.documents),
        metadata_removed=_without(a.documents, b.documents),
        metadata_changed=tuple(DocumentChange(key, fields) for key, fields in documents if fields),
        keys=tuple(change for change in changes if change.added or change.removed or change.changed),
        not_compared=tuple(sorted(unlisted & a.arrays.keys() & b.arrays.keys())),
    )


def _without(some: Iterable[str], others: Iterable[str]) -> Keys:
    return tuple(sorted(set(some).difference(others)))


def _fields(a: bytes, b: bytes) -> tuple[str, ...]:
    """Return the fields in which two documents differ; "(text)" where they are no JSON objects."""
    if a == b:
        return ()
    try:
        one, other = zarrmeta.loads(a), zarrmeta.loads(b)
    except ValueError:
        return ("(text)",)
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return () if zarrmeta.dumps(one) == zarrmeta.dumps(other) else ("(text)",)
    # Compared as text: NaN is not itself, and 1 is not true.
    texts = [{name: zarrmeta.dumps(value) for name, value in document.items()} for document in (one, other)]
    return tuple(name for name in dict.fromkeys([*one, *other]) if texts[0].get(name) != texts[1].get(name))


def _emptied(extents: Extents | None) -> Extents:
    """Return the array without its chunks: what the source has that lacks the array."""
    assert extents is not None
    return msgspec.structs.replace(extents, chunks=Chunks.of_places(()))


def _changes(path: str | None, a: Extents, b: Extents, targets: Positions, differing: Compare) -> Changes:
    common = _common_numbers(a, b)
    added, removed, changed = list(range(len(b))), list(range(len(a))), list[int]()
    if common is not None:
        _, at_a, at_b = np.intersect1d(*common, assume_unique=True, return_indices=True)
        ours, theirs = a.chunks.at(at_a), b.chunks.at(at_b)
        renumbered = targets[theirs.targets]
        moved = (ours.targets != renumbered) | (ours.starts != theirs.starts) | (ours.stops != theirs.stops)
        inline = {a.key(i): i for i in at_a[~moved & (renumbered == INLINE)].tolist()}
        changed = sorted([*at_a[moved].tolist(), *(inline[key] for key in differing(list(inline)))])
        added = np.delete(np.arange(len(b)), at_b).tolist()
        removed = np.delete(np.arange(len(a)), at_a).tolist()
    some = b.keys(added[:NAMED]), a.keys(removed[:NAMED]), a.keys(changed[:NAMED])
    return Changes(path, len(added), len(removed), len(changed), *some)


def _common_numbers(a: Extents, b: Extents) -> tuple[UInt64s, UInt64s] | None:
    """Return the numbers of both arrays' chunks in a grid that holds both; None if their chunk keys differ in form."""
    one, other = a.meta.grid, b.meta.grid
    if one is None and other is None:
        known = {name: number for number, name in enumerate(dict.fromkeys([*a.names, *b.names]))}
        numbers = np.array([known[name] for name in [*a.names, *b.names]], np.uint64)
        return numbers[: len(a)], numbers[len(a) :]
    if one is None or other is None or one.encoding != other.encoding or len(one.counts) != len(other.counts):
        return None
    both = ChunkGrid(tuple(map(max, one.counts, other.counts)), one.encoding)
    return renumbered(a.chunks.numbers, one, both)[0], renumbered(b.chunks.numbers, other, both)[0]
