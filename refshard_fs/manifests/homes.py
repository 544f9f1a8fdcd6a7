"""Chunks of many small arrays found by the directories that their keys lie in, most of which many keys share.

One look-up a directory, and arithmetic for the names in it. No I/O here.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np

from refshard_fs.columns import UInt32s, UInt64s
from refshard_fs.keys import ChunkGrid, parent
from refshard_fs.manifests.chunk_keys import name_starts, tail_numbers
from refshard_fs.manifests.json_fast import Records
from refshard_fs.manifests.words import Positions, runs, stands

__all__ = ["Found", "at_home"]


class Found(NamedTuple):
    """Chunks: their places among the records, the numbers of their arrays, and their own in these; and what is left."""

    rows: Positions
    arrays: UInt32s
    chunks: UInt64s
    left: Positions


class _Spelling(NamedTuple):
    """How the names in a directory spell chunks."""

    head: bytes
    separator: str
    dimensions: int


class _Shapes:
    """How chunks are spelled in the directories of arrays, and how many there are along each dimension: each once."""

    def __init__(self, largest: int) -> None:
        self._largest = largest  # chunks of a grid
        self.known: list[tuple[_Spelling | None, tuple[int, ...]]] = [(None, ())]
        self.of: dict[int, int] = {}  # of a grid, by its id: arrays that are spelled alike share one

    def number(self, grid: ChunkGrid) -> int:
        """Return the shape of the chunks that lie in an array's own directory; 0 if none can."""
        number = self.of.get(id(grid))
        if number is None:
            counts, encoding = grid.counts, grid.encoding
            is_default = encoding.name == "default"
            shape: tuple[_Spelling | None, tuple[int, ...]] = (None, ())
            if grid.size > self._largest:
                pass
            elif not counts:
                if not is_default:
                    shape = (_BARE, (1,))
            elif encoding.separator != "/" or not (is_default or len(counts) > 1):
                head = b"c" + encoding.separator.encode() if is_default else b""
                shape = (_Spelling(head, encoding.separator, len(counts)), counts)
            number = self.of[id(grid)] = self.add(*shape)
        return number

    def add(self, spelling: _Spelling | None, counts: tuple[int, ...]) -> int:
        if spelling is None:
            return 0
        self.known.append((spelling, counts))
        return len(self.known) - 1


_BARE: Final = _Spelling(b"", ".", 1)
_NOWHERE: Final = (0, 0, 0)


def at_home(
    records: Records, among: Positions, grids: Mapping[str, ChunkGrid], numbers: Mapping[str, int], largest: int
) -> Found:
    """Return which records are chunks of arrays that have up to ``largest``; arrays have ``numbers`` by path."""
    if not len(among):
        return Found(among, among.astype(np.uint32), among.view(np.uint64), among)
    text, stops = records.text, records.key_stops[among]
    starts = records.key_starts[among]
    names = name_starts(text, starts, stops)
    ends = np.maximum(names - 1, starts)
    begun = runs(text, starts, ends)
    shapes = _Shapes(largest)
    directories = records.pieces(starts[begun], ends[begun])
    near = list(map(grids.get, directories))
    ids = list(map(id, near))
    by_id = dict(zip(ids, near, strict=True))
    shape_by_id = {key: 0 if grid is None else shapes.number(grid) for key, grid in by_id.items()}
    homes = np.zeros((3, len(near)), np.int64)  # the array, the number of the first chunk there, and their shape
    homes[0] = np.fromiter(map(numbers.get, directories, repeat(0)), np.int64, len(near))
    homes[2] = np.fromiter(map(shape_by_id.__getitem__, ids), np.int64, len(ids))
    known: dict[str, tuple[int, int, int]] = {}
    for place in [i for i, grid in enumerate(near) if grid is None] if None in by_id.values() else ():
        directory = directories[place]
        home = known.get(directory)
        if home is None:
            home = known[directory] = _below(directory, grids, numbers, largest, shapes)
        homes[:, place] = home
    arrays, firsts, shape = homes.repeat(np.diff(begun, append=len(among)), axis=1)
    valid = np.zeros(len(among), bool)
    chunks = np.zeros(len(among), np.uint64)
    spellings = [spelling for spelling, _ in shapes.known]
    for spelling in {spelling: None for spelling in spellings if spelling is not None}:
        rows = np.flatnonzero(np.array([known == spelling for known in spellings])[shape])
        none = (0,) * spelling.dimensions
        table = np.array([counts if own == spelling else none for own, counts in shapes.known], np.uint64)
        begins = names[rows]
        found, fits = tail_numbers(
            text, begins + len(spelling.head), stops[rows], spelling.separator, list(table[shape[rows]].T)
        )
        if spelling.head:
            fits &= stands(text, begins, spelling.head)
        valid[rows], chunks[rows] = fits, found
    chunks += firsts.view(np.uint64)
    return Found(among[valid], arrays[valid].astype(np.uint32), chunks[valid], among[~valid])


def _below(
    directory: str, grids: Mapping[str, ChunkGrid], numbers: Mapping[str, int], largest: int, shapes: _Shapes
) -> tuple[int, int, int]:
    """Return the home of the chunks in a directory below an array; nowhere, too, where it takes a closer look."""
    path, parts = directory, list[str]()
    grid = None
    while grid is None and path:
        path, name = parent(path)
        parts.insert(0, name)
        grid = grids.get(path)
    if grid is None or grid.size > largest or grid.encoding.separator != "/":
        return _NOWHERE
    first = grid.number("/".join([*parts, "0"]))
    if first is None:
        return _NOWHERE
    return numbers[path], first, shapes.add(_BARE, grid.counts[-1:])
