"""What metadata among the members of a reference set tell: the chunk grids of its arrays. No I/O here.

Most metadata are spelled alike: each text of it is read once, and each grid there once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import Row, UInt64s
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.swar import (
    LEAST,
    ONES,
    Booleans,
    Positions,
    bytes_after_last,
    digits,
    marks,
    stands,
    u64,
    words_at,
)
from refshard_fs.references.builder_state import Loose, Taken
from refshard_fs.references.json_scan import BlockTexts, Records
from refshard_fs.references.key_table import Run, SideTable, Value
from refshard_fs.references.values import METADATA, grid_of

__all__ = ["Learning", "chunk_numbers", "documents_among", "name_starts", "tail_numbers"]

_ENDS: Final = tuple(name.encode()[-8:] for name in METADATA)
_IS_LAST: Final = np.array([byte in {end[-1] for end in _ENDS} for byte in range(256)])


def documents_among(records: Records, texts: BlockTexts) -> Positions:
    """Return the places among ``texts`` of what seems to be metadata by its key: all that is, and little else."""
    chosen = np.flatnonzero(_IS_LAST[records.last_bytes()[texts.rows]])
    stops = records.key_stops[texts.rows[chosen]]
    found = np.zeros(len(chosen), np.bool_)
    for end in _ENDS:
        found |= stands(records.text, stops - len(end), end)
    return chosen[found]


class Learning:
    """Takes note of arrays in ``taken``; ``where`` names the set in errors."""

    def __init__(self, where: str, taken: Taken) -> None:
        self._where = where
        self._taken = taken
        self._said: dict[str, ChunkGrid | None] = {}  # by each text of metadata
        self._grids: dict[ChunkGrid, ChunkGrid] = {}

    def learn(self, key: str, value: Value) -> None:
        """Take note of an array, if ``key`` is its metadata."""
        path, _, name = key.rpartition("/")
        if name in METADATA:
            grid = self._grid(key, name, value)
            if grid is not None:
                self._taken.learn(path, grid)

    def learn_all(self, records: Records, texts: BlockTexts, documents: Positions) -> None:
        """Take note of the arrays that some of ``texts`` tell of."""
        paths, grids = list[str](), list[ChunkGrid]()
        for place, key in zip(documents.tolist(), records.keys(texts.rows[documents]), strict=True):
            path, _, name = key.rpartition("/")
            grid = self._grid(key, name, texts.text(place)) if name in METADATA else None
            if grid is not None:
                paths.append(path)
                grids.append(grid)
        self._taken.learn_all(paths, grids)

    def learn_late(self) -> None:
        """Take note of the arrays that what lies aside tells of."""
        for item in self._taken.in_order():
            table = SideTable.of([item.run if isinstance(item, Loose) else Run.of(item.members)])
            self.learn_table(table)

    def learn_table(self, table: SideTable) -> None:
        """Take note of the arrays that members of ``table`` tell of."""
        documents = table.named(METADATA)
        for row, key in zip(documents.tolist(), table.keys_of(documents), strict=True):
            value = table.value(row)
            if type(value) is not Row:
                self.learn(key, value)

    def _grid(self, key: str, name: str, value: Value) -> ChunkGrid | None:
        """Return the grid that metadata says."""
        if type(value) is not str:
            return grid_of(key, value, self._where)
        if value in self._said:
            return self._said[value]
        grid = zarrmeta.plain_grid(value) if name == METADATA[0] else None
        grid = grid or grid_of(key, value, self._where)
        if grid is not None:
            grid = self._grids.setdefault(grid, grid)
        self._said[value] = grid
        return grid


# ----------------------------------------------------------------------------------------------------
# Chunk keys among the keys of a text read as numbers in their grids, all at once. No I/O here.


_SLASHES: Final = u64(ord("/") * ONES)
_8, _64 = u64(8), u64(64)


def chunk_numbers(
    records: Records, among: Positions | None, prefix: bytes, grid: ChunkGrid
) -> tuple[UInt64s, Booleans]:
    """Return the numbers in ``grid`` of keys, and which of them are valid: the others are no chunks of it.

    ``prefix`` is what keys of the array begin with ("c" included), and ``among`` the records to look at (None: all).
    """
    starts, stops = records.key_starts, records.key_stops
    if among is not None:
        starts, stops = starts[among], stops[among]
    valid = stops - starts > len(prefix)
    for i in range(0, len(prefix), 8):
        valid &= stands(records.text, starts + i, prefix[i : i + 8])
    numbers, fit = tail_numbers(records.text, starts + len(prefix), stops, grid.encoding.separator, grid.counts)
    fit &= valid
    return numbers, fit


def tail_numbers(
    text: bytes, starts: Positions, stops: Positions, separator: str, counts: Sequence[Any]
) -> tuple[UInt64s, Booleans]:
    """Return the numbers of chunks in C order by coordinates with ``separator`` between them, and which are valid.

    ``counts`` are the chunks along each dimension: one number, or one for each of the keys.
    """
    remaining = stops - starts
    valid = remaining > 0
    width = min(4, -(-int(remaining.max(initial=1)) // 8)) if counts else 1
    valid &= remaining <= 8 * width
    # The tail's last bytes, at hand as the high end of the last word.
    words = list(words_at(text, stops - 8 * width, width).T)
    numbers = np.zeros(len(starts), np.uint64)
    left = remaining.astype(np.uint64)
    between = u64(ord(separator) * ONES)
    stride: Any = np.uint64(1)
    for dimension in reversed(range(len(counts))):
        if dimension:
            size = bytes_after_last(marks(words[-1], between))
            fits = (size < left) & (size < _8)
        else:
            size = left
            fits = size <= _8
        fits &= size > np.uint64(0)
        if not fits.all():
            valid &= fits
            size = np.where(fits, size, np.uint64(1))
        count = np.asarray(counts[dimension], np.uint64)
        coords, wrong = digits(words[-1], size)
        fits = coords >= LEAST[size.view(np.int64)]
        fits &= coords < count
        fits &= wrong == 0
        valid &= fits
        coords *= stride
        numbers += coords
        stride = stride * count
        if dimension:
            taken = size + np.uint64(1)
            left -= taken
            taken <<= np.uint64(3)
            back = _64 - taken
            for i in range(width - 1, 0, -1):
                words[i] = (words[i] << taken) | (words[i - 1] >> back)
            words[0] = words[0] << taken
    if not counts:
        valid[:] = False
    return numbers, valid


def name_starts(text: bytes, starts: Positions, stops: Positions) -> Positions:
    """Return where the last name of each key begins; where that is too far from its end, the key's own beginning."""
    found = starts.copy()
    left = np.arange(len(starts))
    for i in range(1, 5):
        last = words_at(text, stops[left] - 8 * i, 1)[:, 0]
        after = bytes_after_last(marks(last, _SLASHES)).view(np.int64)
        begins = stops[left] - 8 * (i - 1) - after
        here = (after < 8) & (begins > starts[left])
        found[left[here]] = begins[here]
        left = left[~here]
        left = left[stops[left] - 8 * i > starts[left]]
        if not len(left):
            break
    return found
