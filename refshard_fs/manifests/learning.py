"""What metadata among the members of a reference set tell: the chunk grids of its arrays. No I/O here.

Most metadata are spelled alike: each text of it is read once, and each grid there once.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from refshard_fs import zarrmeta
from refshard_fs.columns import Row
from refshard_fs.keys import ChunkGrid
from refshard_fs.manifests.block_texts import BlockTexts
from refshard_fs.manifests.json_fast import Records
from refshard_fs.manifests.side_table import Run, SideTable, Value
from refshard_fs.manifests.taken import Loose, Taken
from refshard_fs.manifests.values import METADATA, grid_of
from refshard_fs.manifests.words import Positions, stands

__all__ = ["Learning", "documents_among"]

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
