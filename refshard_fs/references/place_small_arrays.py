"""Chunks of many small arrays, placed together: one look-up a key, and columns that all of these arrays share.

A small array's chunks have numbers in one common row, the arrays' grids one after the other. Rows come in any order,
the last of a chunk wins. No I/O here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Final

import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import ABSENT, DENSE, SPARSE, ChunkTable, Part, Shared, Tables, UInt64s
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding, join
from refshard_fs.core.keyspace import Place, place

__all__ = ["Placer", "SMALL", "may_be_chunk"]

SMALL: Final = 256  # chunks of an array that is placed together with others
_ENDS: Final = frozenset("0123456789c")  # what a chunk's key may end with
_NO_GRID: Final = ChunkGrid((), ChunkKeyEncoding("v2", "."))
_Tails = dict[str, int]


def may_be_chunk(key: str) -> bool:
    """Whether ``key`` may be that of a chunk, by its last character."""
    return key[-1] in _ENDS


class Placer:
    """Places chunks among ``grids``, which do not change any more."""

    def __init__(self, grids: Mapping[str, ChunkGrid]) -> None:
        self._grids = grids
        self._groups: dict[ChunkGrid, dict[str, _Tails]] = {}
        self._directories: dict[str, tuple[int, _Tails]] = {}
        paths = list(grids)
        ids = list(map(id, grids.values()))
        # Many arrays share one.
        size_by_id = {
            key: min(grid.size, SMALL + 1) for key, grid in dict(zip(ids, grids.values(), strict=True)).items()
        }
        sizes = np.fromiter(map(size_by_id.__getitem__, ids), np.int64, len(ids))
        small = sizes <= SMALL
        self._bounds = np.concatenate((np.zeros(1, np.int64), sizes[small].cumsum()))
        self._is_small = small
        # There are numbers enough.
        self._places: dict[str, int] = dict(zip(compress(paths, small.tolist()), range(len(paths))))  # noqa: B905
        self.large = list(compress(paths, (~small).tolist()))  # arrays that have columns of their own

    def is_small(self, path: str) -> bool:
        """Whether the array at ``path`` is one of those that are placed together."""
        return path in self._places

    def numbers(self, keys: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return the common number of each key; -1 for what is no chunk of a small array, or has to be looked for."""
        found = []
        last, start, tails = None, 0, self._no_tails
        for key in keys:
            directory, _, tail = key.rpartition("/")
            if directory != last:
                last = directory
                start, tails = self._directories.get(directory) or self._directory(directory)
            number = tails.get(tail)
            found.append(-1 if number is None else start + number)
        return np.array(found, np.int64)

    _no_tails: Final[_Tails] = {}

    def place(self, key: str) -> Place | None:
        """Return the place of one key, as `keyspace.place` does."""
        return place(self._grids, key) if may_be_chunk(key) else None

    def moved(self, path: str, part: Part) -> Part:
        """Return rows of a small array with common numbers."""
        return part._replace(numbers=part.numbers.astype(np.uint64) + np.uint64(self._start(path)))

    def starts(self, numbers: Mapping[str, int]) -> UInt64s:
        """Return what makes common numbers of those in small arrays, by the ``numbers`` of these."""
        of_all = np.fromiter(numbers.values(), np.int64, len(numbers))  # in the order of the grids
        starts = np.zeros(int(of_all.max(initial=0)) + 1, np.uint64)
        starts[of_all[self._is_small]] = self._bounds[:-1]
        return starts

    def _start(self, path: str) -> int:
        return int(self._bounds[self._places[path]])

    def _directory(self, directory: str) -> tuple[int, _Tails]:
        """Return the first number of the array that is nearest to ``directory``, and the names of its chunks there."""
        found = 0, self._no_tails
        end = len(directory)
        while end >= 0:
            path = directory[:end]
            grid = self._grids.get(path)
            if grid is not None:
                if path in self._places:
                    below = directory[end + 1 :] if path else directory
                    found = self._start(path), self._tails(grid).get(below, self._no_tails)
                break
            end = directory.rfind("/", 0, end) if end else -1
            if end < 0 and path:
                end = 0
        self._directories[directory] = found
        return found

    def _tails(self, grid: ChunkGrid) -> dict[str, _Tails]:
        """Return directory below the array → name → number."""
        groups = self._groups.get(grid)
        if groups is None:
            groups = self._groups[grid] = {}
            for number, tail in enumerate(grid.tails()):
                directory, _, name = tail.rpartition("/")
                groups.setdefault(directory, {})[name] = number
        return groups

    # ------------------------------------------------------------------ tables

    def tables(self, parts: Sequence[Part]) -> tuple[Tables, list[str]]:
        """Return the tables of all small arrays, and the keys of chunks of which a row was once ABSENT, and are there.

        ``parts`` have common numbers.
        """
        numbers, targets, offsets, lengths = map(np.concatenate, zip(*(Part.none(), *parts), strict=True))
        hidden = numbers[targets == ABSENT]
        if len(numbers) > 1 and not (numbers[1:] > numbers[:-1]).all():
            order = np.argsort(numbers, kind="stable")
            order = order[np.append(numbers[order[1:]] != numbers[order[:-1]], True)]
            numbers, targets, offsets, lengths = numbers[order], targets[order], offsets[order], lengths[order]
        if len(hidden):
            there = targets != ABSENT
            numbers, targets, offsets, lengths = numbers[there], targets[there], offsets[there], lengths[there]
        bounds = self._bounds
        firsts = numbers.searchsorted(bounds.astype(np.uint64))
        counts, sizes = np.diff(firsts), np.diff(bounds)
        dense = sizes * DENSE <= counts * SPARSE
        in_dense = dense.repeat(counts)
        local = numbers.astype(np.int64) - bounds[:-1].repeat(counts)
        # Rows of dense arrays at their places, those of all others in a row.
        dense_ends = np.cumsum(sizes * dense)
        sparse_ends = np.cumsum(counts * ~dense)
        total = int(dense_ends[-1]) if len(dense_ends) else 0
        spread = np.full(total, ABSENT, np.uint32), np.zeros(total, np.uint64), np.zeros(total, np.uint64)
        at = (local + (dense_ends - sizes * dense).repeat(counts))[in_dense]
        spread[0][at] = targets[in_dense]
        spread[1][at], spread[2][at] = offsets[in_dense], lengths[in_dense]
        others = ~in_dense
        packed = targets[others], offsets[others], lengths[others], local[others].astype(np.uint64)
        made = ChunkTable(_NO_GRID, *spread), ChunkTable(_NO_GRID, *packed)
        stops = np.where(dense, dense_ends, sparse_ends)
        starts = stops - np.where(dense, sizes, counts)
        shared = Shared(self._places, self._grids, made, dense, starts, stops)
        return Tables({}, shared), list(self._keys(np.intersect1d(hidden, numbers))) if len(hidden) else []

    def _keys(self, numbers: npt.NDArray[np.uint64]) -> Iterator[str]:
        arrays = self._bounds.searchsorted(numbers.astype(np.int64), "right") - 1
        small = list(self._places)
        for array, number in zip(arrays.tolist(), numbers.tolist(), strict=True):
            path = small[array]
            yield join(path, self._grids[path].tail(number - self._start(path)))
