"""Chunks among many records, put into the columns of their arrays: those of few large arrays, or of many small ones.

No I/O here.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.columns import Part, UInt32s, UInt64s
from refshard_fs.keys import ChunkGrid, parent
from refshard_fs.keyspace import place
from refshard_fs.manifests import placing
from refshard_fs.manifests.chunk_keys import chunk_numbers
from refshard_fs.manifests.homes import at_home
from refshard_fs.manifests.json_fast import Records
from refshard_fs.manifests.taken import Common, Taken
from refshard_fs.manifests.words import Booleans, Positions

__all__ = ["ENDS", "Placed", "placed"]

SAMPLES: Final = 16  # records that are looked at, to tell how to take a block
FEW: Final = 64  # arrays that are looked for in one block, one after the other

ENDS: Final = np.array([placing.may_be_chunk(chr(byte)) for byte in range(256)])  # by the last byte of a key


class Placed(NamedTuple):
    """Rows of large arrays, by path, and of small ones; and the records that are left."""

    parts: list[tuple[str, Part]]
    common: list[Common]
    left: Positions


def placed(records: Records, may_be: Booleans, sequence: int, taken: Taken) -> Placed:
    """Return where those that ``may_be`` chunks of known arrays belong; what is left may be one all the same."""
    among = np.flatnonzero(may_be)
    if not taken.grids:
        return Placed([], [], among)
    if _mostly_small(records, taken):
        found = at_home(records, among, taken.grids, taken.numbers, placing.SMALL)
        if not len(found.rows):
            return Placed([], [], found.left)
        return Placed([], [Common(sequence, found.arrays, _chosen(records, found.chunks, found.rows))], found.left)
    parts, left = _by_array(records, among, taken)
    return Placed(parts, [], left)


def _by_array(records: Records, unplaced: Positions, taken: Taken) -> tuple[list[tuple[str, Part]], Positions]:
    """Return the chunks that belong to few arrays, one array after the other, and what is left."""
    grids = taken.grids
    found: list[tuple[str, Part]] = []
    strays: list[int] = []
    count = len(unplaced)
    for attempt in range(FEW):
        # Where arrays are many and small, it is better to take what is left one by one.
        if not len(unplaced) or attempt * count > FEW * (count - len(unplaced)) + 4 * count:
            break
        first = int(unplaced[0])
        at = place(grids, records.key(first))
        if at is None:
            strays.append(first)
            unplaced = unplaced[1:]
            continue
        grid = grids[at.array]
        among = None if len(unplaced) == len(records) else unplaced
        numbers, valid = chunk_numbers(records, among, _prefix(at.array, grid), grid)
        if valid.all():
            chosen, unplaced = unplaced, unplaced[:0]
        else:
            chosen, unplaced, numbers = unplaced[valid], unplaced[~valid], numbers[valid]
        if len(numbers):
            smaller = numbers.astype(np.uint32) if grid.size < 2**32 else numbers
            found.append((at.array, _chosen(records, smaller, chosen)))
        if not valid[0]:  # a chunk, and spelled in a way that is not for columns
            strays.append(first)
            unplaced = unplaced[1:]
    return found, np.sort(np.concatenate((np.array(strays, np.int64), unplaced)))


def _mostly_small(records: Records, taken: Taken) -> bool:
    """Whether samples say that records are chunks of many small arrays."""
    grids = taken.grids
    sample = [grids.get(parent(records.key(i))[0]) for i in range(0, len(records), len(records) // SAMPLES + 1)]
    return sum(1 for grid in sample if grid is not None and grid.size <= placing.SMALL) * 4 > 3 * len(sample)


def _chosen(records: Records, numbers: UInt64s | UInt32s, chosen: Positions) -> Part:
    columns: Any = records.targets, records.offsets, records.lengths
    if len(chosen) < len(records):
        columns = (column[chosen] for column in columns)
    return Part(numbers, *columns)


def _prefix(path: str, grid: ChunkGrid) -> bytes:
    head = "c" + grid.encoding.separator if grid.encoding.name == "default" else ""
    return (path + "/" + head if path else head).encode("utf-8", "surrogatepass")
