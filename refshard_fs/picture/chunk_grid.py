"""A chunk grid of any number of dimensions as cells of a plane: what lies where, as much of it as can be seen. Pure.

Leading dimensions become rows and trailing ones columns; a long line is folded. Where there are more chunks than can be
seen, a cell stands for a box of rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["NOTHING", "Plane", "Fold", "fold", "plane_of"]

Integers = npt.NDArray[np.int64]

NOTHING: Final = -2  # where no chunk exists
MOST_ROWS: Final = 56
MOST_COLUMNS: Final = 72


class Fold(NamedTuple):
    """How chunk numbers (in C order) become rows and columns: a row has ``width`` chunks.

    ``split`` dimensions lead and make the rows; None where a single line is folded to fit.
    """

    rows: int
    width: int
    split: int | None


class Plane(msgspec.Struct, frozen=True, eq=False):
    """Cells of ``shape`` (rows, columns), each a box of ``step`` (rows, columns) chunks.

    ``room`` is how many chunks a cell has room for, ``present`` how many exist, ``asked`` how many are selected;
    ``target`` is the one that has most of them, or `NOTHING`.
    """

    fold: Fold
    shape: tuple[int, int]
    step: tuple[int, int]
    room: Integers
    present: Integers
    asked: Integers
    target: Integers


def fold(counts: Sequence[int]) -> Fold:
    """Return how a grid of ``counts`` chunks along each dimension is laid out, as near to a page as it can be."""
    size = math.prod(counts)
    if size == 0:
        return Fold(0, 0, None)
    long = [count for count in counts if count > 1]
    if len(long) <= 1 and size > MOST_COLUMNS:  # one line
        width = min(size, math.ceil(math.sqrt(size * MOST_COLUMNS / MOST_ROWS)))
        return Fold(-(-size // width), width, None)
    if len(long) <= 1:
        return Fold(1, size, 0)
    splits = range(len(counts) + 1)

    def oddness(split: int) -> float:
        rows, columns = math.prod(counts[:split]), math.prod(counts[split:])
        return abs(math.log(columns / rows * MOST_ROWS / MOST_COLUMNS))

    split = min(splits, key=oddness)
    return Fold(math.prod(counts[:split]), math.prod(counts[split:]), split)


def plane_of(
    counts: Sequence[int],
    numbers: npt.NDArray[np.uint64],
    targets: Integers,
    asked: npt.NDArray[np.integer] | None,
) -> Plane:
    """Return the plane of a grid in which chunks ``numbers`` exist, and ``asked`` are selected."""
    folded = fold(counts)
    size = math.prod(counts)
    step = (-(-folded.rows // MOST_ROWS) or 1, -(-folded.width // MOST_COLUMNS) or 1)
    shape = (-(-folded.rows // step[0]), -(-folded.width // step[1]))
    count = shape[0] * shape[1]
    at = _cells(numbers.astype(np.int64), folded, shape, step)
    chosen = np.zeros(count, np.int64)
    if asked is not None:
        chosen = np.bincount(_cells(asked.astype(np.int64), folded, shape, step), minlength=count)
    target = np.full(count, NOTHING, np.int64)
    if len(at):
        low = int(targets.min())
        span = int(targets.max()) - low + 1
        pairs = np.sort(at * span + (targets - low))
        first = np.flatnonzero(np.concatenate(([True], pairs[1:] != pairs[:-1])))
        uses = np.diff(np.append(first, len(pairs)))
        order = np.argsort(uses, kind="stable")  # of a cell, the one that is used most is written last
        target[pairs[first[order]] // span] = pairs[first[order]] % span + low
    present = np.bincount(at, minlength=count)
    return Plane(
        folded,
        shape,
        step,
        _room(size, folded, shape, step).reshape(shape),
        present.reshape(shape),
        chosen.reshape(shape),
        target.reshape(shape),
    )


def _cells(numbers: Integers, folded: Fold, shape: tuple[int, int], step: tuple[int, int]) -> Integers:
    rows, columns = np.divmod(numbers, max(folded.width, 1))
    cells: Integers = rows // step[0] * shape[1] + columns // step[1]
    return cells


def _room(size: int, folded: Fold, shape: tuple[int, int], step: tuple[int, int]) -> Integers:
    heights = np.minimum(step[0], folded.rows - np.arange(shape[0]) * step[0])
    widths = np.minimum(step[1], folded.width - np.arange(shape[1]) * step[1])
    room = np.outer(heights, widths)
    missing = folded.rows * folded.width - size  # of a folded line, at the end of its last row
    if missing:
        last = np.arange(folded.width - missing, folded.width) // step[1]
        room[-1] -= np.bincount(last, minlength=shape[1])
    return room.astype(np.int64)
