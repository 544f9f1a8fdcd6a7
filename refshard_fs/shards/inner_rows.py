"""All chunks of one shard as columns: their numbers in the array's grid, and where in the shard they lie. Pure.

This is for whoever wants to know of every chunk there is: looked up one by one, a million would take minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.model import Entry
from refshard_fs.shards.layout import Level, ShardLayout, Table

__all__ = ["ArrayRows", "Room", "ShardRows", "places_of", "room_of", "rows_of"]


class Room(NamedTuple):
    """Where a shard lies in the grid of inner chunks, how many it has room for, and the index that it has."""

    origin: tuple[int, ...]
    lengths: tuple[int, ...]
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


def places_of(layout: ShardLayout, lengths: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return, for each slot of a shard of ``lengths`` chunks, the place in C order of the chunk in it; -1 for none."""
    places = np.ndindex(*lengths)
    slots = np.fromiter((layout.steps(place, lengths)[0].slot for place in places), np.int64, math.prod(lengths))
    found = np.full(int(slots.max(initial=-1)) + 1, -1, np.int64)
    found[slots] = np.arange(len(slots))
    return found


def rows_of(layout: ShardLayout, room: Room, places: npt.NDArray[np.int64], entry: Entry, table: Table) -> ShardRows:
    """Return the chunks that the index ``table`` of a shard has; ``places`` are those of its slots."""
    counts = layout.grid.counts
    taken = np.array(table.taken(), np.int64)
    taken = taken[taken < len(places)]
    taken = taken[places[taken] >= 0]
    coords = np.unravel_index(places[taken], room.lengths) if room.lengths else ()
    inside = np.ones(len(taken), bool)
    number = np.zeros(len(taken), np.int64)
    for at, first, count in zip(coords, room.origin, counts, strict=True):
        inside &= at + first < count
        number = number * count + at + first
    found = [located for slot in taken[inside].tolist() if (located := table.locate(slot)) is not None]
    pairs = np.array(found, np.uint64).reshape(-1, 2)
    return ShardRows(entry, number[inside].astype(np.uint64), pairs[:, 0], pairs[:, 1])
