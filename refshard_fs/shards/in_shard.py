"""Where an inner chunk lies among the shards of its array: in which, and where in that. By arithmetic alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from refshard_fs.keys import join
from refshard_fs.shards.layout import Cut, ShardLayout

__all__ = ["InShard", "coords_of", "in_shard", "place", "split"]

Coords: TypeAlias = tuple[int, ...]


class InShard(NamedTuple):
    """Where a chunk lies: the key and number of its shard, how many chunks that has room for, and the chunk's place."""

    shard: str
    coords: tuple[int, ...]
    lengths: tuple[int, ...]
    place: tuple[int, ...]


def coords_of(layout: ShardLayout, path: str, key: str) -> tuple[int, ...] | None:
    """Return the coordinates of the chunk ``key`` of the array at ``path``; None if it is no key of a chunk."""
    grid = layout.grid
    return grid.encoding.decode(key[len(path) + 1 :] if path else key, len(grid.counts))


def split(layout: ShardLayout, coords: Sequence[int]) -> tuple[Coords, Coords, Coords]:
    """Return the coordinates of the shard that holds the chunk at ``coords``, its lengths, and the chunk's place in it.

    Raises IndexError beyond the last of shards that have sizes of their own.
    """
    if not coords:
        return (), (), ()
    if layout.grid.shards:
        return _split_equally(layout.grid.shards, coords)
    shard, places, lengths = zip(*map(_cut, layout.cuts, coords), strict=True)
    return shard, lengths, places


def _split_equally(lengths: Coords, coords: Sequence[int]) -> tuple[Coords, Coords, Coords]:
    shard: list[int] = []
    places: list[int] = []
    for coord, length in zip(coords, lengths):  # noqa: B905  # as many as the grid has, at half the cost
        number, place = divmod(coord, length)
        shard.append(number)
        places.append(place)
    return tuple(shard), lengths, tuple(places)


def place(layout: ShardLayout, path: str, coords: Sequence[int]) -> InShard:
    """Return where the chunk at ``coords`` lies; IndexError as `split`."""
    shard, lengths, places = split(layout, coords)
    return InShard(join(path, layout.grid.encoding.encode(shard)), shard, lengths, places)


def _cut(cut: Cut, coord: int) -> tuple[int, int, int]:
    return cut.shard(coord)


def in_shard(layout: ShardLayout, path: str, key: str) -> InShard | None:
    """Return where the chunk ``key`` of the array at ``path`` lies; None if it is no key of a chunk."""
    coords = coords_of(layout, path, key)
    if coords is None:
        return None
    try:
        return place(layout, path, coords)
    except IndexError:
        return None
