"""Where inner chunks lie among the shards of an array, and what directories of them hold: by arithmetic alone.

Shards have keys like those of chunks, by their own coordinates. No I/O here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from refshard_fs.core.keys import is_number, join, relative
from refshard_fs.core.model import Entry, Listed
from refshard_fs.sharding.layout import Level, ShardLayout, Table

Coords: TypeAlias = tuple[int, ...]
Shard: TypeAlias = tuple[Coords, Iterator[tuple[str, Coords]]]


class ChunkInShard(NamedTuple):
    """The key and coordinates of the shard a chunk lies in, the chunks that has room for, and the chunk's place."""

    shard: str
    coords: Coords
    lengths: Coords
    place: Coords


def chunk_coords(layout: ShardLayout, path: str, key: str) -> Coords | None:
    """Return the coordinates of the chunk ``key`` of the array at ``path``; None if it is no key of a chunk."""
    grid = layout.grid
    return grid.encoding.decode(relative(key, path), len(grid.counts))


def split(layout: ShardLayout, coords: Sequence[int]) -> tuple[Coords, Coords, Coords]:
    """Return the coordinates of the shard that holds the chunk at ``coords``, its lengths, and the chunk's place in it.

    Raises IndexError beyond the last of shards that have sizes of their own.
    """
    if not layout.grid.shards:
        parts = [cut.shard(coord) for cut, coord in zip(layout.cuts, coords, strict=True)]
        return tuple(p[0] for p in parts), tuple(p[2] for p in parts), tuple(p[1] for p in parts)
    shard: list[int] = []
    places: list[int] = []
    for coord, length in zip(coords, layout.grid.shards):  # noqa: B905  # as many as the grid has, at half the cost
        number, place = divmod(coord, length)
        shard.append(number)
        places.append(place)
    return tuple(shard), layout.grid.shards, tuple(places)


def in_shard(layout: ShardLayout, path: str, key: str) -> ChunkInShard | None:
    """Return where the chunk ``key`` of the array at ``path`` lies; None if it is no key of a chunk."""
    coords = chunk_coords(layout, path, key)
    if coords is None:
        return None
    try:
        shard, lengths, places = split(layout, coords)
    except IndexError:
        return None
    return ChunkInShard(join(path, layout.grid.encoding.encode(shard)), shard, lengths, places)


def inside(layout: ShardLayout, shard: Coords) -> Coords:
    """Return how many chunks along each dimension of ``shard`` are of the array; the rest of an edge shard is not."""
    return tuple(len(chunks) for chunks in _chunks(layout, shard))


def _chunks(layout: ShardLayout, shard: Sequence[int]) -> list[range]:
    """Return the chunks of the array that lie in ``shard``, along each dimension."""
    rooms = [cut.chunks(number) for cut, number in zip(layout.cuts, shard, strict=True)]
    return [range(room.start, min(room.stop, n)) for room, n in zip(rooms, layout.grid.counts, strict=True)]


# ----------------------------------------------------------------------------------------------------
# Listings: what lies in a directory of inner chunks, from what lies in the directory of their shards.


def shard_directory(layout: ShardLayout, leading: Sequence[int]) -> str | None:
    """Return the directory, relative to the array, of the shards of chunks that begin so; None outside of the grid."""
    if not all(coord < count for coord, count in zip(leading, layout.grid.counts, strict=False)):
        return None
    return layout.grid.directory_of([cut.shard(coord)[0] for coord, cut in zip(leading, layout.cuts, strict=False)])


def expand(layout: ShardLayout, leading: Coords, names: Sequence[Listed]) -> tuple[list[str], list[Shard]]:
    """Return the directories of inner chunks, and the shards with the chunks to look for, in a directory.

    All chunks in it begin with ``leading``, and ``names`` lie in the directory of their shards. A chunk comes as its
    name in the directory and its coordinates.
    """
    grid, cuts = layout.grid, layout.cuts
    if not grid.is_nested:
        found = (grid.encoding.decode(listed.name, len(grid.counts)) for listed in names if not listed.is_directory)
        return [], [(shard, _named_chunks(layout, shard)) for shard in found if shard is not None]
    depth = len(leading)
    is_last = depth == len(grid.counts) - 1
    numbers = [int(n.name) for n in names if n.is_directory != is_last and is_number(n.name)]
    chunks = {number: [i for i in cuts[depth].chunks(number) if i < grid.counts[depth]] for number in numbers}
    if not is_last:
        return [str(i) for some in chunks.values() for i in some], []
    outer = tuple(cut.shard(coord)[0] for cut, coord in zip(cuts, leading, strict=False))
    return [], [((*outer, n), ((str(i), (*leading, i)) for i in some)) for n, some in chunks.items()]


def _named_chunks(layout: ShardLayout, shard: Sequence[int]) -> Iterator[tuple[str, Coords]]:
    for coords in product(*_chunks(layout, shard)):
        yield layout.grid.encoding.encode(coords), coords


# ----------------------------------------------------------------------------------------------------
# All chunks of a shard as columns, for whoever wants to know of every chunk: look-ups of a million take minutes.


class Room(NamedTuple):
    """Where a shard lies in the grid of inner chunks, how many it has room for, and the index that it has."""

    origin: Coords
    lengths: Coords
    level: Level


class ShardRows(NamedTuple):
    """The chunks of one shard, in no order; ``starts`` and ``lengths`` are bytes within the shard, ``entry``."""

    entry: Entry
    numbers: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]


class ArrayRows(NamedTuple):
    """All of a sharded array: its shards' chunks, and what else lies below it: keys with sizes, and directories."""

    shards: list[ShardRows]
    others: list[tuple[str, int | None]]
    directories: list[str]


def room_of(layout: ShardLayout, shard: Sequence[int]) -> Room | None:
    """Return the room of the shard with coordinates ``shard``; None where its chunks lie in shards of their own."""
    ranges = [cut.chunks(number) for cut, number in zip(layout.cuts, shard, strict=True)]
    lengths = tuple(map(len, ranges))
    if not all(lengths):
        return None
    steps = layout.steps([0] * len(lengths), lengths)
    return Room(tuple(r.start for r in ranges), lengths, steps[0].level) if len(steps) == 1 else None


def places_of(layout: ShardLayout, lengths: Coords) -> npt.NDArray[np.int64]:
    """Return, for each slot of a shard of ``lengths`` chunks, the place in C order of the chunk in it; -1 for none."""
    places = np.ndindex(*lengths)
    slots = np.fromiter((layout.steps(place, lengths)[0].slot for place in places), np.int64, math.prod(lengths))
    found = np.full(int(slots.max(initial=-1)) + 1, -1, np.int64)
    found[slots] = np.arange(len(slots))
    return found


def rows_of(layout: ShardLayout, room: Room, places: npt.NDArray[np.int64], entry: Entry, table: Table) -> ShardRows:
    """Return the chunks that the index ``table`` of a shard has; ``places`` are those of its slots."""
    slots = np.array(table.present(), np.int64)
    slots = slots[slots < len(places)]
    slots = slots[places[slots] >= 0]
    coords = np.unravel_index(places[slots], room.lengths) if room.lengths else ()
    inside = np.ones(len(slots), bool)
    number = np.zeros(len(slots), np.int64)
    for at, first, count in zip(coords, room.origin, layout.grid.counts, strict=True):
        inside &= at + first < count
        number = number * count + at + first
    found = [located for slot in slots[inside].tolist() if (located := table.locate(slot)) is not None]
    pairs = np.array(found, np.uint64).reshape(-1, 2)
    return ShardRows(entry, number[inside].astype(np.uint64), pairs[:, 0], pairs[:, 1])
