"""A reference set with edits in it: the columns of arrays that are not touched are shared. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from refshard_fs.core.columns import ABSENT, ChunkTable, Part, Row, Texts, UInt64s
from refshard_fs.core.edits import Edit, Edits
from refshard_fs.core.keys import ChunkGrid, is_within, join, parent, relative
from refshard_fs.core.keyspace import place
from refshard_fs.core.model import Inline, Pin, Span
from refshard_fs.core.swar import Booleans
from refshard_fs.core.zarrmeta import is_array_document
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA, grid_of


def with_edits(refs: ReferenceSet, edits: Edits, where: str) -> ReferenceSet:
    """Return what ``refs`` become with ``edits``; ManifestError, which names ``where``, for metadata that is none."""
    editing = _Editing(refs, where)
    for prefix in edits.prefixes():
        editing.remove_below(prefix)
    changes = {key: change.edit for key, change in edits.changes().items()}
    for key in filter(is_array_document, changes):
        editing.put(key, changes[key])
        editing.regrid(parent(key)[0])
    editing.put_others({key: edit for key, edit in changes.items() if not is_array_document(key)})
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
        self._old = refs.urls
        self._pins = refs.pins
        self._new_pins: dict[str, Pin] = {}
        self._new: dict[str, int] = {}  # URLs, and their numbers

    def remove_below(self, prefix: str) -> None:
        for key in [key for key in self._side if is_within(key, prefix)]:
            del self._side[key]
        for path, table in list(self._tables.items()):
            if is_within(path, prefix):
                del self._tables[path]
            elif is_within(prefix, path):
                below = relative(prefix, path)
                numbers = table.present()
                number, directory = table.grid.number(below), table.grid.directory(below)
                if number is not None:
                    self._tables[path] = _of_chunks(table, numbers != number)
                elif directory is not None:
                    start, stop = directory.numbers.start, directory.numbers.stop
                    self._tables[path] = _of_chunks(table, (numbers < start) | (numbers >= stop))

    def put(self, key: str, edit: Edit) -> Row | None:
        """Let ``key`` hold ``edit``, by key; return the reference that it is, if it is one."""
        self._side.pop(key, None)
        match edit:
            case Inline(data):
                self._side[key] = data
            case Span(url, start, stop, pin=pin):
                if pin is not None and pin.exact:
                    self._new_pins[url] = pin
                number = self._new.setdefault(url, len(self._old) + len(self._new))
                row = self._side[key] = Row(number, start, None if stop is None else stop - start)
                return row
        return None

    def put_others(self, changes: Mapping[str, Edit]) -> None:
        """Let keys that say nothing of arrays hold edits; references to chunks are put into the tables of arrays."""
        grids = {path: table.grid for path, table in self._tables.items()}
        rows: dict[str, list[tuple[int, Row]]] = {}
        for key, edit in changes.items():
            row = self.put(key, edit)
            at = place(grids, key)
            if at is not None:
                rows.setdefault(at.array, []).append((at.number, row or Row(ABSENT, 0, 0)))
                if row is not None:
                    del self._side[key]
        for path, found in rows.items():
            table = self._tables[path]
            self._tables[path] = ChunkTable.from_parts(table.grid, [table.part(), Part.from_rows(found)])

    def regrid(self, path: str) -> None:
        """Let the table of the array ``path`` be that of its metadata, which changed."""
        grid = None
        for name in sorted(METADATA):  # that of version 2 first
            value = self._side.get(join(path, name))
            if value is not None and not isinstance(value, Row):
                grid = grid or grid_of(join(path, name), value, self._where)
        table = self._tables.pop(path, None)
        parts: list[Part] = []
        if table is not None and grid is not None and grid == table.grid:
            self._tables[path] = table
            return
        if table is not None:
            outside = table.present()
            if grid is not None and grid.encoding == table.grid.encoding and len(grid.counts) == len(table.grid.counts):
                part, outside = _moved(table, grid)
                parts.append(part)
            rows = ((number, table.row(number)) for number in outside.tolist())
            self._side |= {join(path, table.grid.tail(number)): row for number, row in rows if row is not None}
        if grid is None:
            return
        found: list[tuple[int, Row]] = []
        for key, value in list(self._side.items()):
            at = place({path: grid}, key) if isinstance(value, Row) and is_within(key, path) else None
            if at is not None and isinstance(value, Row):
                del self._side[key]
                found.append((at.number, value))
        self._tables[path] = ChunkTable.from_parts(grid, [*parts, Part.from_rows(found)])

    def finish(self) -> ReferenceSet:
        new = self._new
        urls = Texts.joined([self._old, Texts.of(new)]) if new else self._old
        mine = Pins.of(self._new_pins.get(url) for url in new) if self._new_pins else None
        pins = Pins.joined([(self._pins, len(self._old)), (mine, len(new))])
        return ReferenceSet(urls, self._tables, self._side, pins=pins)


def _of_chunks(table: ChunkTable, chosen: Booleans) -> ChunkTable:
    """Return ``table`` with some of its chunks."""
    return ChunkTable.from_parts(table.grid, [table.part(table.present()[chosen])])


def _moved(table: ChunkTable, grid: ChunkGrid) -> tuple[Part, UInt64s]:
    """Return the rows of ``table`` as those of ``grid``, and the numbers, in the old one, of chunks outside of it."""
    numbers = table.present()
    if not grid.counts:
        return table.part(numbers), numbers[:0]
    coords = np.unravel_index(numbers.astype(np.int64), table.grid.counts) if len(numbers) else ()
    inside = np.ones(len(numbers), np.bool_)
    new = np.zeros(len(numbers), np.uint64)
    for column, count in zip(coords, grid.counts, strict=bool(len(numbers))):
        inside &= column < count
        new = new * np.uint64(count) + column.astype(np.uint64)
    part = table.part(numbers[inside])._replace(numbers=new[inside])
    return part, numbers[~inside]
