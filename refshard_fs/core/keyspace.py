"""What a source looks like from above: keys that resolve to entries, and listings. No I/O here.

`KeySpace` is the one interface between formats and the engine. Formats compose by
wrapping one another: a sharded view asks its base for the shard's entry, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import Entry, Listed, Steps

__all__ = ["KeySpace", "LookUp", "Place", "alone", "default_is_directory", "is_empty", "lookups", "place"]


class Place(NamedTuple):
    """A chunk key's place: the array's path (empty for the root) and the chunk's number in its grid."""

    array: str
    number: int


class LookUp(NamedTuple):
    """One look-up of several keys: their places in what was asked, and the steps that return their entries."""

    places: Sequence[int]
    steps: Steps[Sequence[Entry | None]]


class KeySpace(Protocol):
    """An immutable view of keys; shared by threads and event loops. Keys are normal (`keys.normalise`)."""

    @property
    def grids(self) -> Mapping[str, ChunkGrid]:
        """The chunk grids of the arrays that are known without further reads, by array path."""

    def lookup(self, key: str) -> Steps[Entry | None]:
        """Return the entry of ``key``, or None if there is no such key; directories are no keys."""

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        """Return what lies directly below ``prefix``, sorted by name, or None if it is no directory.

        Names are relative to ``prefix``. Sizes are those of the bytes a read would return.
        """

    def is_directory(self, prefix: str) -> Steps[bool]:
        """Return whether ``prefix`` is a directory; the root always is."""


def place(grids: Mapping[str, ChunkGrid], key: str) -> Place | None:
    """Return the place of ``key`` among ``grids``, or None if it is no chunk key of theirs."""
    end = len(key)
    while True:
        end = key.rfind("/", 0, end)
        path = key[:end] if end >= 0 else ""
        grid = grids.get(path)
        if grid is not None:
            number = grid.number(key[end + 1 :])
            if number is not None:
                return Place(path, number)
        if end < 0:
            return None


def lookups(keyspace: KeySpace, keys: Sequence[str]) -> list[LookUp]:
    """Return look-ups that find all of ``keys``; an error is that of all keys of one of them.

    Key spaces that find several keys by the same index do so together, by a method ``lookups``.
    """
    asked = getattr(keyspace, "lookups", None)
    if asked is None:
        return [alone(keyspace, place, key) for place, key in enumerate(keys)]
    found: list[LookUp] = asked(keys)
    return found


def alone(keyspace: KeySpace, place: int, key: str) -> LookUp:
    """Return the look-up of one key."""
    return LookUp((place,), _alone(keyspace.lookup(key)))


def _alone(steps: Steps[Entry | None]) -> Steps[Sequence[Entry | None]]:
    return ((yield from steps),)


def default_is_directory(keyspace: KeySpace, prefix: str) -> Steps[bool]:
    """`KeySpace.is_directory` by way of the listing, for key spaces that know no shorter one."""
    return not prefix or (yield from keyspace.children(prefix)) is not None


def is_empty(keyspace: KeySpace, key: str) -> Steps[bool]:
    """Return whether ``keyspace`` says of ``key``, which has no entry, that it is empty on purpose.

    Chunk manifests can; a key space that cannot has no method ``is_empty``.
    """
    asked = getattr(keyspace, "is_empty", None)
    return asked is not None and (yield from asked(key))
