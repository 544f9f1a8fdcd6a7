"""A parsed kerchunk reference set: URLs once, chunks in columns, the rest in a small side table. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, TypeAlias

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Row, Tables
from refshard_fs.core.directories import chunk_names
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.strings import Texts
from refshard_fs.errors import ManifestError
from refshard_fs.references.key_table import SideTable
from refshard_fs.references.pins import Pins
from refshard_fs.references.values import METADATA, Value, grid_of, spelled

__all__ = ["ByKey", "LateSide", "LateTables", "Place", "ReferenceSet", "References"]

# ----------------------------------------------------------------------------------------------------
# Reference sets of so many small arrays that all is best kept by its key: opened without a look at any array.
#
# Look-ups and listings need the keys alone. Whoever asks for the chunks of arrays as columns makes them all place what
# they hold, once; that takes as long as to open the set, and memory as well. No I/O here.


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


class ReferenceSet(msgspec.Struct, frozen=True, eq=False):
    """The content of a reference set, as written: URLs are not resolved, inline data not decoded.

    ``urls[row.target]`` is a reference's URL; None stands for the default target. ``version``
    is that of the document it was read from, if it was one. ``pins[row.target]`` is what a
    target was.
    """

    urls: Texts
    tables: Mapping[str, ChunkTable]
    side: Mapping[str, Value]
    version: int | None = None
    pins: Pins | None = None

    @property
    def by_key(self) -> Mapping[str, Value]:
        """What is found by its key; it hides what `in_columns` has of that name. The two are all that there is."""
        side = self.side  # not by `match`, which takes a third of the time of a look-up: these are abstract mappings
        return side.kept.table if type(side) is LateSide else side

    @property
    def in_columns(self) -> Mapping[str, ChunkTable]:
        """The tables of arrays whose chunks are in columns as it stands: none, in a set of many small arrays."""
        tables = self.tables
        return {} if type(tables) is LateTables else tables

    @property
    def named(self) -> str | None:
        """What errors call the set, where nothing of it is in columns yet."""
        match self.side:
            case LateSide(kept=kept):
                return kept.where
            case _:
                return None

    def __len__(self) -> int:
        """Number of keys."""
        match self.in_columns:
            case Tables() as tables:
                return len(self.by_key) + tables.count()
            case own:
                return len(self.by_key) + sum(map(len, own.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the columns and inline data take, roughly."""
        match self.by_key:
            case SideTable() as side:
                inline = side.nbytes
            case side:
                inline = 64 * len(side) + sum(len(value) for value in side.values() if not isinstance(value, Row))
        pins = 0 if self.pins is None else self.pins.nbytes
        match self.in_columns:
            case Tables() as tables:
                columns = tables.nbytes
            case own:
                columns = sum(table.nbytes for table in own.values())
        return inline + pins + self.urls.nbytes + columns

    def value(self, key: str) -> Value | None:
        """Return the value of ``key`` as written, or None if there is no such key."""
        # Asked for every chunk, this does as `keyspace.place`, `by_key` and `in_columns` do without their detours.
        side, tables = self.side, self.tables
        value = side.kept.table.get(key) if type(side) is LateSide else side.get(key)
        if value is not None or type(tables) is LateTables:
            return value
        get = tables.own.get if type(tables) is Tables and not tables.shared.places else tables.get
        end = len(key)
        while end >= 0:
            end = key.rfind("/", 0, end)
            table = get(key[:end] if end >= 0 else "")
            if table is not None:
                number = table.grid.number(key[end + 1 :])
                if number is not None:
                    return table.row(number)
        return None

    @property
    def grids(self) -> Mapping[str, ChunkGrid]:
        match self.tables:
            case LateTables() as tables:
                return _LateGrids(tables)
            case tables:
                return _Grids(tables)

    def __iter__(self) -> Iterator[str]:
        """Yield every key."""
        aside = self.by_key
        yield from aside
        for path, table in self.in_columns.items():
            names, _ = chunk_names(table.grid, table.present())
            for name in names:
                key = join(path, name)
                if key not in aside:
                    yield key


class _Grids(Mapping[str, ChunkGrid]):
    """The grids of tables, without a copy of the dictionary."""

    __slots__ = ("tables",)

    def __init__(self, tables: Mapping[str, ChunkTable]) -> None:
        self.tables = tables

    def __getitem__(self, path: str) -> ChunkGrid:
        grid = self.get(path)
        if grid is None:
            raise KeyError(path)
        found: ChunkGrid = grid
        return found

    def get(self, path: str, default: Any = None) -> Any:
        match self.tables:
            case Tables() as tables:
                grid = tables.grid(path)
            case own:
                table = own.get(path)
                grid = None if table is None else table.grid
        return default if grid is None else grid

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)


class _LateGrids(Mapping[str, ChunkGrid]):
    """The grids of arrays of which none is known before it is asked for."""

    __slots__ = ("_tables",)

    def __init__(self, tables: LateTables) -> None:
        self._tables = tables

    def __getitem__(self, path: str) -> ChunkGrid:
        grid = self._tables.kept.grid(path)
        if grid is None:
            raise KeyError(path)
        return grid

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


class References(Mapping[str, Any]):
    """A reference set as the mapping that its expanded (version 0) JSON would be."""

    def __init__(self, refs: ReferenceSet) -> None:
        self._refs = refs

    def __getitem__(self, key: str) -> Any:
        value = self._refs.value(key)
        if value is None:
            raise KeyError(key)
        if not isinstance(value, Row):
            return value
        return value.spelled(self._refs.urls[value.target])

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def to_json(self) -> bytes:
        """Return the set as a document of version 0, or 1 where it has pins; bytes that are no text become base64."""
        members = {key: spelled(value) if isinstance(value, bytes) else value for key, value in self.items()}
        pins = self._refs.pins
        if pins is None:
            return zarrmeta.dumps(members)
        if any("{{" in (url or "") for url in self._refs.urls):
            raise ManifestError("a pinned set has URLs with {{, which JSON of version 1 cannot hold: pickle it")
        return zarrmeta.dumps({"version": 1, "refs": members, "refshard": {"pins": pins.spelled(self._refs.urls)}})

    def __repr__(self) -> str:
        return f"<References: {len(self)} keys, {len(self._refs.urls)} targets>"
