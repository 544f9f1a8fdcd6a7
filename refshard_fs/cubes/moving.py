"""Convert chunk numbers of one grid to chunk numbers of another grid, as columns. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from refshard_fs.core.chunks import Numbers
from refshard_fs.core.columns import UInt64s
from refshard_fs.core.keys import ChunkGrid

Move = Callable[[Any], Any]  # returns the new coordinates of chunks along an axis, given the old ones


def move_numbers(
    numbers: UInt64s, old: ChunkGrid, new: ChunkGrid, along: Mapping[int, Move]
) -> tuple[UInt64s, npt.NDArray[np.bool_]]:
    """Convert the ``numbers`` of chunks in the ``old`` grid to numbers in the ``new`` grid.

    Return the new numbers, and a mask of the chunks that lie inside of the new grid. ``along`` has the move along each
    axis; along other axes, both grids are the same.
    """
    last = max(along, default=-1)
    stride = math.prod(new.counts[last + 1 :])
    left, found = np.divmod(numbers.astype(np.int64), stride)
    is_inside = np.ones(len(numbers), np.bool_)
    for axis in range(last, -1, -1):
        left, coords = np.divmod(left, old.counts[axis]) if axis else (left, left)
        now = along[axis](coords) if axis in along else coords
        found += now * stride
        stride *= new.counts[axis]
        is_inside &= (now >= 0) & (now < new.counts[axis])
    return found.astype(np.uint64), is_inside


def shift_by(offset: int, factor: int = 1) -> Move:
    """Return the move of chunks to coordinates ``factor`` times as large, plus ``offset``."""
    return lambda coords: coords * factor + offset


def find_range(numbers: UInt64s) -> Numbers:
    """Return ``numbers`` as a range, which key spaces read faster, if they are consecutive."""
    if not len(numbers) or (np.diff(numbers) != 1).any():
        return numbers
    return range(int(numbers[0]), int(numbers[-1]) + 1)
