"""Find the box of a chunk, among boxes in the grid of an array. No I/O here."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import UInt64s

_COMPARED: Final = 1 << 20  # pairs of a chunk and a box that are compared at once


def strides_of(counts: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return, for each dimension of a grid of ``counts``, the difference between the numbers of neighbouring chunks."""
    return np.array([math.prod(counts[axis + 1 :]) for axis in range(len(counts))], np.int64)


def cut_to_boxes(counts: tuple[int, ...], start: int, stop: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Cut chunks ``[start, stop)`` of a grid of ``counts`` into boxes; return the first index and the shape of each.

    The chunks of a box have consecutive numbers, and the boxes are in the order of these numbers.
    """
    if not counts:
        return [((), ())] * (stop - start)
    inner = math.prod(counts[1:])  # chunks in a row
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    while start < stop:
        row = start // inner
        rows = stop // inner - row
        if start % inner == 0 and rows > 0:
            boxes.append(((row, *[0] * len(counts[1:])), (rows, *counts[1:])))
            start += rows * inner
        else:  # a part of a row
            end = min(stop, (row + 1) * inner)
            parts = cut_to_boxes(counts[1:], start % inner, end - row * inner)
            boxes += [((row, *first), (1, *shape)) for first, shape in parts]
            start = end
    return boxes


class ChunkBoxes:
    """Boxes in a grid of ``counts`` chunks: ``bounds`` has their first and last (exclusive) indexes of chunks.

    The shape of ``bounds`` is (boxes, dimensions, 2). Indexes beyond the grid are ignored.
    """

    def __init__(self, counts: tuple[int, ...], bounds: npt.NDArray[np.uint32]) -> None:
        self._counts = np.array(counts, np.int64)
        self._strides = strides_of(counts)
        self._firsts = bounds[..., 0].astype(np.int64)
        self._lasts = np.minimum(bounds[..., 1], self._counts)
        self._is_whole = len(bounds) == 1 and bool((self._lasts - self._firsts == self._counts).all())
        # The numbers of a box's chunks lie in this range, which may also contain chunks of other boxes.
        starts, stops = self._firsts @ self._strides, (self._lasts - 1) @ self._strides + 1
        is_empty = (self._firsts >= self._lasts).any(axis=1)
        self._starts, self._stops = np.where(is_empty, 0, starts), np.where(is_empty, 0, stops)

    def find(self, numbers: UInt64s) -> npt.NDArray[np.int64]:
        """Return, for each chunk in ``numbers``, the position of the first box that contains it; -1 if no box does."""
        if self._is_whole:
            return np.zeros(len(numbers), np.int64)
        found = np.full(len(numbers), -1)
        step = max(1, _COMPARED // max(1, len(self._firsts)))
        for start in range(0, len(numbers), step) if len(self._firsts) else ():
            coords = numbers[start : start + step].astype(np.int64)[:, None, None] // self._strides % self._counts
            inside = np.asarray(((coords >= self._firsts) & (coords < self._lasts)).all(axis=2))
            found[start : start + step] = np.where(inside.any(axis=1), inside.argmax(axis=1), -1)
        return found

    def find_boxes(self, start: int, stop: int) -> list[int]:
        """Return the positions of the boxes that may have chunks ``[start, stop)``."""
        boxes: list[int] = np.flatnonzero((self._starts < stop) & (self._stops > start)).tolist()
        return boxes

    def list_ranges(self) -> list[range]:
        """Return ascending ranges of numbers that contain the chunks of all boxes."""
        found: list[range] = []
        for start, stop in sorted(zip(self._starts.tolist(), self._stops.tolist(), strict=True)):
            if found and start <= found[-1].stop:
                found[-1] = range(found[-1].start, max(found[-1].stop, stop))
            elif start < stop:
                found.append(range(start, stop))
        return found
