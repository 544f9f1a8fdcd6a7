"""What differs between two sources: arrays, metadata, and where chunks lie. No chunk is read.

Chunks are compared in columns, a million in a fraction of a second; of the keys that differ, some are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import UInt64s
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.tools.survey import AT_HAND, Extents, Place, Positions, Survey, Surveyed, contents, survey

__all__ = ["Changes", "Difference", "DocumentChange", "compare"]

NAMED: Final = 10  # keys of each kind that are named
TOGETHER: Final = 4096  # chunks at hand that are compared at a time
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


class Compared(Surveyed, Protocol):
    """What is needed of a filesystem: `RefShardFileSystem`."""


def compare(first: Compared, second: Compared) -> Difference:
    """Return what differs; URLs are compared as they are resolved, so that a set that was moved is another."""
    a, b = survey(first), survey(second)
    both = a.documents.keys() & b.documents.keys()
    documents = ((key, _fields(a.documents[key], b.documents[key])) for key in sorted(both))
    inline = _Inline(first, second)
    place = {url: number for number, url in enumerate(a.urls)}
    same = np.array([place.get(url, len(a.urls) + i) for i, url in enumerate(b.urls)], np.int64)
    changes = [_rest(a, b, same, inline)]
    unlisted = {e.path for found in (a, b) for e in found.arrays.values() if not e.listed}
    paths = sorted((a.arrays.keys() | b.arrays.keys()) - unlisted)
    changes += [_chunks(path, a.arrays.get(path), b.arrays.get(path), same, inline) for path in paths]
    return Difference(
        groups_added=_without(b.groups, a.groups),
        groups_removed=_without(a.groups, b.groups),
        arrays_added=_without(b.arrays, a.arrays),
        arrays_removed=_without(a.arrays, b.arrays),
        metadata_added=_without(b.documents, a.documents),
        metadata_removed=_without(a.documents, b.documents),
        metadata_changed=tuple(DocumentChange(key, fields) for key, fields in documents if fields),
        keys=tuple(c for c in changes if c.added or c.removed or c.changed),
        not_compared=tuple(sorted(unlisted & a.arrays.keys() & b.arrays.keys())),
    )


class _Inline:
    """Compares the bytes of keys that both sources hold themselves."""

    def __init__(self, first: Compared, second: Compared) -> None:
        self._first, self._second = first, second

    def differing(self, keys: list[str]) -> list[str]:
        """Return those of ``keys`` whose bytes differ."""
        found = []
        for start in range(0, len(keys), TOGETHER):
            some = keys[start : start + TOGETHER]
            a, b = contents(self._first, some), contents(self._second, some)
            found += [key for key in some if a[key] != b[key]]
        return found


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
        return () if _spelled(one) == _spelled(other) else ("(text)",)
    names = dict.fromkeys([*one, *other])
    return tuple(n for n in names if n not in one or n not in other or _spelled(one[n]) != _spelled(other[n]))


def _spelled(value: Any) -> bytes:
    """Return a value's JSON: NaN is not itself, and 1 is not true."""
    return zarrmeta.dumps(value)


def _rest(a: Survey, b: Survey, same: Positions, inline: _Inline) -> Changes:
    both = sorted(a.rest.keys() & b.rest.keys())
    changed = [key for key in both if a.rest[key] != _renumbered(b.rest[key], same)]
    moved = set(changed)
    changed += inline.differing([key for key in both if key not in moved and a.rest[key].target == AT_HAND])
    added, removed = _without(b.rest, a.rest), _without(a.rest, b.rest)
    return Changes(
        None,
        len(added),
        len(removed),
        len(changed),
        added[:NAMED],
        removed[:NAMED],
        tuple(sorted(changed)[:NAMED]),
    )


def _renumbered(place: Place, same: Positions) -> Place:
    return place if place.target == AT_HAND else place._replace(target=int(same[place.target]))


def _chunks(path: str, a: Extents | None, b: Extents | None, same: Positions, inline: _Inline) -> Changes:
    if a is None or b is None:
        only = a if b is None else b
        assert only is not None
        names = tuple(only.key(i) for i in range(min(NAMED, len(only))))
        if b is None:
            return Changes(path, 0, len(only), 0, (), names)
        return Changes(path, len(only), 0, 0, names)
    common = _common_numbers(a, b)
    if common is None:  # other keys altogether
        return Changes(
            path,
            len(b),
            len(a),
            0,
            tuple(b.key(i) for i in range(min(NAMED, len(b)))),
            tuple(a.key(i) for i in range(min(NAMED, len(a)))),
        )
    ours, theirs = common
    _, at_a, at_b = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    targets = b.targets[at_b]
    renumbered = np.where(targets == AT_HAND, AT_HAND, same[targets] if len(same) else targets)
    moved = (a.targets[at_a] != renumbered) | (a.starts[at_a] != b.starts[at_b]) | (a.stops[at_a] != b.stops[at_b])
    held = at_a[~moved & (renumbered == AT_HAND)]
    keys = {a.key(int(i)): int(i) for i in held}
    changed = np.sort(
        np.concatenate((at_a[moved], np.array([keys[k] for k in inline.differing(list(keys))], np.int64)))
    )
    added, removed = _others(len(b), at_b), _others(len(a), at_a)

    def named(extents: Extents, at: Positions) -> Keys:
        return tuple(extents.key(int(i)) for i in at[:NAMED])

    return Changes(path, len(added), len(removed), len(changed), named(b, added), named(a, removed), named(a, changed))


def _others(count: int, positions: Positions) -> Positions:
    """Return the positions below ``count`` that are not among ``positions``."""
    left = np.ones(count, bool)
    left[positions] = False
    return np.flatnonzero(left)


def _common_numbers(a: Extents, b: Extents) -> tuple[UInt64s, UInt64s] | None:
    """Return the chunks' numbers in a grid that has room for both; None where keys are spelled in other ways."""
    one, other = a.meta.grid, b.meta.grid
    if one is None and other is None:
        known = {name: number for number, name in enumerate(dict.fromkeys([*a.names, *b.names]))}
        numbers = np.array([known[name] for name in [*a.names, *b.names]], np.uint64)
        return numbers[: len(a)], numbers[len(a) :]
    if one is None or other is None or one.encoding != other.encoding or len(one.counts) != len(other.counts):
        return None
    counts = tuple(map(max, one.counts, other.counts))
    return _in_grid(a.numbers, one, counts), _in_grid(b.numbers, other, counts)


def _in_grid(numbers: UInt64s, grid: ChunkGrid, counts: tuple[int, ...]) -> UInt64s:
    if grid.counts[1:] == counts[1:] or not len(numbers):
        return numbers
    coords = np.unravel_index(numbers.astype(np.int64), grid.counts)
    return np.ravel_multi_index(coords, counts).astype(np.uint64)
