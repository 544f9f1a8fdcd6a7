"""A reference set with edits in it: the columns of arrays that are not touched are shared. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from refshard_fs.core.columns import ABSENT, ChunkTable, Part, Row, UInt64s
from refshard_fs.core.edits import Edit, Edits
from refshard_fs.core.keys import ChunkGrid, is_within, join, parent
from refshard_fs.core.keyspace import place
from refshard_fs.core.model import Inline, Pin, Span
from refshard_fs.core.strings import Texts
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA, grid_of


def with_edits(refs: ReferenceSet, edits: Edits, where: str) -> ReferenceSet:
    """Return what ``refs`` become with ``edits``; ManifestError, which names ``where``, for metadata that is none."""
    editing = _Editing(refs, where)
    for prefix in edits.prefixes():
        editing.remove_below(prefix)
    changes = {key: change.edit for key, change in edits.changes().items()}
    for key, edit in changes.items():
        if key.endswith(METADATA) and parent(key)[1] in METADATA:
            editing.put(key, edit)
            editing.regrid(parent(key)[0])
    for key, edit in changes.items():
        if not (key.endswith(METADATA) and parent(key)[1] in METADATA):
            editing.put(key, edit)
    return editing.finish()


def within(edits: Edits, array: str) -> Edits:
    """Return the edits that concern an array."""
    found = Edits()
    for prefix in edits.prefixes():
        if is_within(prefix, array) or is_within(array, prefix):
            found.remove_below(prefix)
    for key, (edit, _) in edits.changes().items():
        if is_within(key, array):
            found.put(key, edit)
    return found


class _Editing:
    def __init__(self, refs: ReferenceSet, where: str) -> None:
        self._where = where
        self._side = dict(refs.side.items())
        self._tables = dict(refs.tables)
        self._grids = {path: table.grid for path, table in self._tables.items()}
        self._old = refs.urls
        self._pins = refs.pins
        self._new_pins: dict[str, Pin] = {}
        self._new: dict[str, int] = {}
        self._rows: dict[str, dict[int, Row | None]] = {}  # by array and chunk number; None: no such chunk

    def remove_below(self, prefix: str) -> None:
        for key in [key for key in self._side if is_within(key, prefix)]:
            del self._side[key]
        for path in list(self._tables):
            if is_within(path, prefix):
                del self._tables[path], self._grids[path]
            elif is_within(prefix, path):
                self._remove_chunks(path, prefix[len(path) + 1 :] if path else prefix)

    def _remove_chunks(self, path: str, below: str) -> None:
        table = self._tables[path]
        numbers = table.present()
        number = table.grid.number(below)
        if number is not None:
            self._keep_chunks(path, numbers[numbers != number])
            return
        directory = table.grid.directory(below)
        if directory is not None:
            inside = (numbers >= directory.numbers.start) & (numbers < directory.numbers.stop)
            self._keep_chunks(path, numbers[~inside])

    def _keep_chunks(self, path: str, numbers: UInt64s) -> None:
        table = self._tables[path]
        self._tables[path] = ChunkTable.from_parts(table.grid, [table.part(numbers)])

    def put(self, key: str, edit: Edit) -> None:
        at = place(self._grids, key)
        match edit:
            case Inline(data):
                self._side[key] = data
            case _:
                self._side.pop(key, None)
        row: Row | None = None
        match edit:
            case Span(url, start, stop, pin=pin):
                if pin is not None and pin.exact:
                    self._new_pins[url] = pin
                row = Row(self._code(url), start, None if stop is None else stop - start)
        if at is not None:
            self._rows.setdefault(at.array, {})[at.number] = row
        elif row is not None:
            self._side[key] = row

    def _code(self, url: str) -> int:
        return self._new.setdefault(url, len(self._old) + len(self._new))

    def regrid(self, path: str) -> None:
        """Let the table of the array ``path`` be that of its metadata, which changed."""
        grid = None
        for name in sorted(METADATA):  # that of version 2 first
            value = self._side.get(join(path, name))
            if value is not None and not isinstance(value, Row):
                grid = grid or grid_of(join(path, name), value, self._where)
        table = self._tables.get(path)
        if table is not None and grid == table.grid:
            return
        self._tables.pop(path, None)
        self._grids.pop(path, None)
        rows: dict[str, Row] = {}
        parts: list[Part] = []
        if table is not None:
            if grid is not None and grid.encoding == table.grid.encoding and len(grid.counts) == len(table.grid.counts):
                part, outside = _moved(table, grid)
                parts.append(part)
            else:
                outside = table.present().tolist()
            rows = {join(path, table.grid.tail(n)): row for n in outside if (row := table.row(n)) is not None}
        if grid is None:
            self._side |= rows
            return
        found: list[tuple[int, Row]] = []
        known = {path: grid}
        for key, row in [*rows.items(), *self._rows_in_side(path)]:
            at = place(known, key)
            if at is None:
                self._side[key] = row
            else:
                self._side.pop(key, None)
                found.append((at.number, row))
        self._grids[path] = grid
        self._tables[path] = ChunkTable.from_parts(grid, [*parts, Part.from_rows(found)])

    def _rows_in_side(self, path: str) -> Iterator[tuple[str, Row]]:
        for key, value in list(self._side.items()):
            if isinstance(value, Row) and is_within(key, path):
                yield key, value

    def finish(self) -> ReferenceSet:
        for path, rows in self._rows.items():
            table = self._tables.get(path)
            if table is None:
                continue
            there = [(number, row or Row(ABSENT, 0, 0)) for number, row in rows.items()]
            old = table.part()
            self._tables[path] = ChunkTable.from_parts(table.grid, [old, Part.from_rows(there)])
        new = self._new
        urls = Texts.joined([self._old, Texts.of(new)]) if new else self._old
        mine = Pins.of(self._new_pins.get(url) for url in self._new) if self._new_pins else None
        pins = Pins.joined([(self._pins, len(self._old)), (mine, len(new))])
        return ReferenceSet(urls, self._tables, self._side, pins=pins)


def _moved(table: ChunkTable, grid: ChunkGrid) -> tuple[Part, list[int]]:
    """Return the rows of ``table`` as those of ``grid``, and the numbers, in the old one, of chunks outside of it."""
    numbers = table.present()
    if not grid.counts:
        return table.part(numbers), []
    coords = np.unravel_index(numbers.astype(np.int64), table.grid.counts) if len(numbers) else ()
    inside = np.ones(len(numbers), np.bool_)
    new = np.zeros(len(numbers), np.uint64)
    for column, count in zip(coords, grid.counts, strict=bool(len(numbers))):
        inside &= column < count
        new = new * np.uint64(count) + column.astype(np.uint64)
    part = table.part(numbers[inside])._replace(numbers=new[inside])
    return part, [int(number) for number in numbers[~inside]]
