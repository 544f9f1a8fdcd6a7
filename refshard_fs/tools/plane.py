"""Fold a chunk grid of any number of dimensions into the cells of a plane. No I/O here.

The first dimensions become rows, and the last ones columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import UInt64s
from refshard_fs.tools.survey import Positions

NO_CHUNK: Final = -1  # a cell without existing chunks
MOST_DIMENSIONS: Final = 64  # numpy's limit of dimensions
MOST_ROWS: Final = 56  # of cells
MOST_COLUMNS: Final = 72  # of cells


class Plane(msgspec.Struct, frozen=True, eq=False):
    """Cells of ``shape`` (rows, columns), each a box of ``step`` (rows, columns) chunks; a row has ``width`` chunks.

    The first ``split`` dimensions make the rows; None if one line of chunks is folded into several rows. Each cell has
    ``room`` for some chunks, of which ``present`` exist and ``selected`` are selected. ``first`` is the first one that
    exists, as an index into all existing chunks, or `NO_CHUNK`.
    """

    width: int
    split: int | None
    shape: tuple[int, int]
    step: tuple[int, int]
    room: Positions
    present: Positions
    selected: Positions
    first: Positions


def _choose_layout(counts: Sequence[int]) -> tuple[int, int, int | None]:
    """Return rows, columns and split of a grid of ``counts`` chunks, as near as possible to the shape of a page."""
    size = math.prod(counts)
    if sum(count > 1 for count in counts) <= 1:  # the grid is one line of chunks
        if size <= MOST_COLUMNS:
            return min(size, 1), size, 0 if size else None
        width = min(size, math.ceil(math.sqrt(size * MOST_COLUMNS / MOST_ROWS)))
        return -(-size // width), width, None
    if not size:
        return 0, 0, None
    forms = [(math.prod(counts[:split]), math.prod(counts[split:]), split) for split in range(len(counts) + 1)]
    return min(forms, key=lambda form: abs(math.log(form[1] / form[0] * MOST_ROWS / MOST_COLUMNS)))


def fold_grid(counts: Sequence[int], numbers: UInt64s, selected: Positions | None) -> Plane:
    """Return the plane of a grid in which chunks ``numbers`` exist, and ``selected`` are selected."""
    rows, width, split = _choose_layout(counts)
    step = (-(-rows // MOST_ROWS) or 1, -(-width // MOST_COLUMNS) or 1)
    shape = (-(-rows // step[0]), -(-width // step[1]))
    count = shape[0] * shape[1]

    def find_cells(of: npt.NDArray[np.integer[Any]]) -> Positions:
        row, column = np.divmod(of.astype(np.int64), max(width, 1))
        found: Positions = row // step[0] * shape[1] + column // step[1]
        return found

    at = find_cells(numbers)
    chosen = np.zeros(count, np.int64) if selected is None else np.bincount(find_cells(selected), minlength=count)
    first = np.full(count, NO_CHUNK, np.int64)
    first[at[::-1]] = np.arange(len(at))[::-1]  # in reverse order, so that the first position is kept
    heights = np.minimum(step[0], rows - np.arange(shape[0]) * step[0])
    begins = np.arange(shape[1]) * step[1]
    ends = np.minimum(begins + step[1], width)
    room = np.outer(heights, ends - begins).ravel()
    if count:  # the last row of a folded line may be shorter
        last = math.prod(counts) - (rows - 1) * width
        room[-shape[1] :] -= np.maximum(ends - np.maximum(begins, last), 0)
    present = np.bincount(at, minlength=count)
    return Plane(width, split, shape, step, *(column.reshape(shape) for column in (room, present, chosen, first)))


def find_shards(counts: tuple[int, ...], shards: tuple[int, ...], plane: Plane) -> Positions | None:
    """Return the shard of the first chunk of each cell; None if shards are not larger than cells."""
    if not shards or plane.split is None or not plane.first.size:
        return None
    rows, columns = np.indices(plane.shape)
    numbers = rows * plane.step[0] * plane.width + columns * plane.step[1]
    coords = np.unravel_index(numbers, counts)
    shard_of = np.ravel_multi_index([coord // length for coord, length in zip(coords, shards, strict=True)], counts)
    return shard_of.astype(np.int64) if 2 * len(np.unique(shard_of)) <= shard_of.size else None
