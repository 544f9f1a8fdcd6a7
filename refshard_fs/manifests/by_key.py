"""Reference sets of so many small arrays that all is best kept by its key: opened without a look at any array.

Look-ups and listings need the keys alone. Whoever asks for the chunks of arrays as columns makes them all place what
they hold, once; that takes as long as to open the set, and memory as well. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, TypeAlias

from refshard_fs.columns import ChunkTable, Row
from refshard_fs.keys import ChunkGrid, join
from refshard_fs.manifests.side_table import SideTable, Value
from refshard_fs.manifests.values import METADATA, grid_of

__all__ = ["ByKey", "LateSide", "LateTables", "Place"]

KNOWN: Final = 1024  # grids that are remembered

# Makes tables of a set's members, and a mapping of those that are no chunks.
Place: TypeAlias = Callable[[SideTable, str], tuple[Mapping[str, ChunkTable], Mapping[str, Value]]]


class ByKey:
    """All members of a set that ``where`` names in errors, in one ``table``; ``place`` puts chunks into columns."""

    def __init__(self, table: SideTable, where: str, place: Place) -> None:
        self.table = table
        self.where = where
        self._place = place
        self._grids: dict[str, ChunkGrid | None] = {}

    @cached_property
    def placed(self) -> tuple[Mapping[str, ChunkTable], Mapping[str, Value]]:
        """The tables of all arrays, and what lies aside of them."""
        return self._place(self.table, self.where)

    def grid(self, path: str) -> ChunkGrid | None:
        """Return the grid of one array; None where there is no such array."""
        if path not in self._grids:
            if len(self._grids) >= KNOWN:
                self._grids.clear()
            self._grids[path] = self._read(path)
        return self._grids[path]

    def _read(self, path: str) -> ChunkGrid | None:
        for row in sorted(self.table.rows_of([join(path, name) for name in METADATA]), reverse=True):
            value = self.table.value(row)
            grid = None if type(value) is Row else grid_of(self.table.key(row), value, self.where)
            if grid is not None:
                return grid
        return None


class LateSide(Mapping[str, Value]):
    """What is no chunk in columns, once these are asked for."""

    def __init__(self, kept: ByKey) -> None:
        self.kept = kept

    def __getitem__(self, key: str) -> Value:
        return self.kept.placed[1][key]

    def __contains__(self, key: object) -> bool:
        return key in self.kept.placed[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept.placed[1])

    def __len__(self) -> int:
        return len(self.kept.placed[1])

    def items(self) -> Any:
        return self.kept.placed[1].items()


class LateTables(Mapping[str, ChunkTable]):
    """The tables of all arrays, once they are asked for; grids are known before."""

    def __init__(self, kept: ByKey) -> None:
        self.kept = kept

    def __getitem__(self, path: str) -> ChunkTable:
        return self.kept.placed[0][path]

    def __contains__(self, path: object) -> bool:
        return path in self.kept.placed[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept.placed[0])

    def __len__(self) -> int:
        return len(self.kept.placed[0])
