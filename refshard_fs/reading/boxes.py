"""Divide a grid of chunks into equal boxes: tasks read the chunks of a box together. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from refshard_fs.core.keys import ChunkGrid


class Boxes:
    """A grid of chunks that is divided into boxes of ``extents`` chunks; boxes at the ends may be smaller.

    The number of a box is its position in C order. If boxes have one chunk each, a box has the number of its chunk.
    """

    def __init__(self, grid: ChunkGrid, extents: tuple[int, ...]) -> None:
        self.grid = grid
        self.extents = extents
        self.has_single_chunks = math.prod(extents) == 1
        self._boxes = ChunkGrid.regular(grid.counts, extents, grid.encoding)
        self.counts = self._boxes.counts

    @classmethod
    def divide(cls, grid: ChunkGrid, numbers: Sequence[int]) -> Boxes | None:
        """Divide ``grid`` so that one of the boxes has exactly the chunks ``numbers``; None if this is not possible."""
        low, high = _find_bounds(grid, numbers)
        extents = tuple(last - first + 1 for first, last in zip(low, high, strict=True))
        is_aligned = all(first % extent == 0 for first, extent in zip(low, extents, strict=True))
        return cls(grid, extents) if is_aligned and math.prod(extents) == len(numbers) else None

    def number_of(self, numbers: Sequence[int]) -> int | None:
        """Return the number of the box that has exactly the chunks ``numbers``; None if there is none."""
        if self.has_single_chunks:
            return numbers[0] if len(numbers) == 1 else None
        low, high = _find_bounds(self.grid, numbers)
        size = 1
        for first, last, extent, count in zip(low, high, self.extents, self.grid.counts, strict=True):
            if first % extent or last != min(first + extent, count) - 1:
                return None
            size *= last - first + 1
        at = [first // extent for first, extent in zip(low, self.extents, strict=True)]
        return self._boxes.number_of(at) if size == len(numbers) else None

    def chunks(self, number: int) -> Iterator[int]:
        """Yield the numbers of the chunks in a box, ascending."""
        if self.has_single_chunks:
            yield number
            return
        ranges = [
            range(at * extent, min((at + 1) * extent, count))
            for at, extent, count in zip(self._boxes.coords(number), self.extents, self.grid.counts, strict=True)
        ]
        for coords in product(*ranges):
            chunk = self.grid.number_of(coords)
            assert chunk is not None, "boxes lie within the grid"
            yield chunk


def _find_bounds(grid: ChunkGrid, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the smallest and the largest coordinate of chunks along each dimension."""
    coords = list(zip(*map(grid.coords, numbers), strict=True))
    return [min(along) for along in coords], [max(along) for along in coords]
