"""Chunk keys by the hundred thousand: spelled, ordered and listed from the columns of a table. No I/O here."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, Final, overload

import numpy as np

from refshard_fs.core.columns import ChunkTable, UInt64s
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.core.model import Listed

__all__ = [
    "Listing",
    "by_name",
    "chunk_names",
    "chunks_below",
    "has_chunks_below",
    "tails",
]

_BARE: Final = ChunkKeyEncoding("v2", ".")

by_name: Callable[[Listed], Any] = attrgetter("name")


class Listing(Sequence[Listed]):
    """The files of one directory by name, as two lists: a `Listed` is made of one when it is asked for.

    ``paths`` are names with ``stem`` before them, the path of the directory and a slash (empty for the root).
    """

    __slots__ = ("paths", "sizes", "stem")

    def __init__(self, stem: str, paths: list[str], sizes: list[int | None]) -> None:
        self.stem = stem
        self.paths = paths
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Listed: ...
    @overload
    def __getitem__(self, index: slice) -> list[Listed]: ...
    def __getitem__(self, index: int | slice) -> Listed | list[Listed]:
        if isinstance(index, slice):
            return list(map(self.__getitem__, range(len(self))[index]))
        return Listed(self.paths[index][len(self.stem) :], self.sizes[index])

    def insert(self, file: Listed) -> None:
        """Add ``file``, in the place of one of the same name."""
        path = self.stem + file.name
        at = bisect.bisect_left(self.paths, path)
        if at < len(self.paths) and self.paths[at] == path:
            self.sizes[at] = file.size
        else:
            self.paths.insert(at, path)
            self.sizes.insert(at, file.size)


def tails(grid: ChunkGrid, numbers: UInt64s) -> Iterable[str]:
    """Return the keys of chunks relative to their array: `ChunkGrid.tail`, of many at once."""
    if not grid.counts:
        return map(grid.tail, numbers.tolist())
    left, columns = numbers, list[Iterable[str]]()
    for count in reversed(grid.counts):
        left, coords = np.divmod(left, np.uint64(count))
        known = [*map(str, range(count))] if count <= len(numbers) else None
        columns.append(map(str if known is None else known.__getitem__, coords.tolist()))
    if grid.encoding.name == "default":
        columns.append(["c"] * len(numbers))
    return map(grid.encoding.separator.join, zip(*reversed(columns), strict=True))


def chunk_names(grid: ChunkGrid, numbers: UInt64s, stem: str = "") -> tuple[list[str], UInt64s]:
    """Return ``stem`` and the relative key of each of the chunks ``numbers``, in order, and the numbers in that order.

    Separators sort before digits, and so keys sort as the spellings of their coordinates do, one after the other: where
    most chunks exist, all keys are spelled in that order.
    """
    if grid.counts and grid.size <= 2 * len(numbers):
        head = "c" + grid.encoding.separator if grid.encoding.name == "default" else ""
        return _most_names(grid, numbers, stem + head)
    names = [stem + tail for tail in tails(grid, numbers)]
    order = sorted(range(len(names)), key=names.__getitem__)
    return [names[i] for i in order], numbers[order]


def _most_names(grid: ChunkGrid, numbers: UInt64s, stem: str) -> tuple[list[str], UInt64s]:
    """Return the same as `chunk_names`, by spelling all keys of the grid in order."""
    names, places = [stem], np.zeros(1, np.int64)
    for dimension, count in enumerate(grid.counts):
        labels = np.array([str(i) for i in range(count)])
        order = np.argsort(labels, kind="stable")
        separator = grid.encoding.separator if dimension < len(grid.counts) - 1 else ""
        spelled = [label + separator for label in labels[order].tolist()]
        names = [before + label for before in names for label in spelled]
        places = (places[:, None] * count + order).ravel()
    if len(numbers) < grid.size:
        there = np.zeros(grid.size, np.bool_)
        there[numbers] = True
        there = there[places]
        names, places = list(compress(names, there.tolist())), places[there]
    return names, places.view(np.uint64)


def chunks_below(table: ChunkTable, path: str, stem: str = "") -> Listing | list[Listed]:
    """Return what lies directly below the directory ``path`` (relative to the array) of a table's chunks, by name.

    ``stem`` is the directory's whole path and a slash, for a `Listing`.
    """
    directory = table.grid.directory(path)
    if directory is None:
        return []
    start, stop, step = directory.numbers.start, directory.numbers.stop, directory.numbers.step
    present = table.present(start, stop)
    if not directory.is_leaf:
        children = (present - np.uint64(start)) // np.uint64(step)  # ascending, as the numbers are
        firsts = present[np.flatnonzero(np.diff(children, prepend=children[:1] + np.uint64(1)))]
        return [Listed(name, None, True) for name in sorted(map(directory.child, firsts.tolist()))]
    if not table.grid.is_nested:
        paths, numbers = chunk_names(table.grid, present, stem)
        return Listing(stem, paths, table.sizes(numbers))
    paths, places = chunk_names(ChunkGrid((len(directory.numbers),), _BARE), present - np.uint64(start), stem)
    return Listing(stem, paths, table.sizes(places + np.uint64(start)))


def has_chunks_below(table: ChunkTable, path: str) -> bool:
    """Whether ``path`` is a directory of chunks that there are."""
    directory = table.grid.directory(path)
    return directory is not None and len(table.present(directory.numbers.start, directory.numbers.stop)) > 0
