"""Where an inner chunk lies among the shards of its array: in which, and where in that. By arithmetic alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refshard_fs.keys import join
from refshard_fs.shards.layout import ShardLayout

__all__ = ["InShard", "coords_of", "in_shard", "place"]


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


def place(layout: ShardLayout, path: str, coords: Sequence[int]) -> InShard:
    """Return where the chunk at ``coords`` lies; IndexError beyond the last of shards that have sizes of their own."""
    shard, places, lengths = [], [], []
    for cut, coord in zip(layout.cuts, coords, strict=True):
        number, at, length = cut.shard(coord)
        shard.append(number)
        places.append(at)
        lengths.append(length)
    return InShard(join(path, layout.grid.encoding.encode(shard)), tuple(shard), tuple(lengths), tuple(places))


def in_shard(layout: ShardLayout, path: str, key: str) -> InShard | None:
    """Return where the chunk ``key`` of the array at ``path`` lies; None if it is no key of a chunk."""
    coords = coords_of(layout, path, key)
    if coords is None:
        return None
    try:
        return place(layout, path, coords)
    except IndexError:
        return None
