"""The value that a reference set is: each URL once, chunks of large arrays in columns, all else by key. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ABSENT, ChunkTable, Part, Row, Texts, renumbered
from refshard_fs.core.edits import Edit, Edits
from refshard_fs.core.keys import ChunkGrid, is_within, join, parent, relative
from refshard_fs.core.keyspace import Grids, chunk_names, place
from refshard_fs.core.model import Inline, Origin, Pin, Span
from refshard_fs.core.zarrmeta import is_array_document
from refshard_fs.errors import ManifestError
from refshard_fs.references.chunk_keys import place_chunks
from refshard_fs.references.key_table import KeyTable, Value
from refshard_fs.references.pieces import Booleans
from refshard_fs.references.pins import Pins
from refshard_fs.references.values import METADATA, GridReader, grid_of, spelled
from refshard_fs.security.admission import Admission
from refshard_fs.security.origins import MEMBER, NOTHING, Adoption, Origins

KNOWN: Final = 4096  # arrays of which the grid is remembered


class ReferenceSet(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The content of a reference set, as written: URLs are not resolved, inline data not decoded.

    ``urls[row.target]`` is a reference's URL; None stands for the default target. Each key lies in one place:
    references to chunks of large arrays in ``chunks``, all else among ``members``, also the chunks of small arrays.
    These are a `KeyTable`, or as they were made, with the chunks of all arrays in ``chunks``.
    ``version`` is the version of the document that it was read from. ``pins[row.target]`` is the pin of a target.
    ``origins`` say which of its URLs, made absolute, sets of others named. ``where`` names the set in errors.
    """

    urls: Texts
    chunks: Mapping[str, ChunkTable]
    members: Mapping[str, Value]
    version: int | None = None
    pins: Pins | None = None
    where: str = "the references"
    origins: Origins = NOTHING

    @cached_property
    def keys(self) -> KeyTable:
        """The members that are not in ``chunks``."""
        members = self.members
        return members if isinstance(members, KeyTable) else KeyTable.of_mapping(members)

    def __len__(self) -> int:
        """Number of keys."""
        return len(self.keys) + sum(map(len, self.chunks.values()))

    def describe_targets(self, urls: Iterable[str | None]) -> dict[str, Any]:
        """Return the member of JSON documents that tells of targets, whose ``urls`` are spelled so there."""
        pins = {} if self.pins is None else {"pins": self.pins.to_json(urls)}
        return pins | ({MEMBER: self.origins.to_json()} if self.origins else {})

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, roughly."""
        pins = 0 if self.pins is None else self.pins.nbytes
        return self.keys.nbytes + pins + self.urls.nbytes + sum(table.nbytes for table in self.chunks.values())

    def value(self, key: str) -> Value | None:
        """Return the value of ``key`` as written, or None if there is no such key."""
        chunks = self.chunks
        end = len(key) if chunks else -1
        while end >= 0:
            end = key.rfind("/", 0, end)
            table = chunks.get(key[:end] if end >= 0 else "")
            if table is not None:
                number = table.grid.number(key[end + 1 :])
                row = None if number is None else table.row(number)
                if row is not None:
                    return row
        return self.keys.get(key)

    def __iter__(self) -> Iterator[str]:
        """Yield every key."""
        yield from self.keys
        for path, table in self.chunks.items():
            yield from chunk_names(table.grid, table.present(), path + "/" if path else "")[0]

    # ------------------------------------------------------------------ arrays

    @cached_property
    def grids(self) -> Mapping[str, ChunkGrid]:
        """The chunk grids of all arrays whose metadata is inline, by path; read when they are asked for."""
        return _Grids(self)

    @property
    def tables(self) -> Mapping[str, ChunkTable]:
        """The references to chunks of all arrays, in columns: what ``keys`` has of them is looked for once."""
        return self._all_tables[0]

    @property
    def side(self) -> Mapping[str, Value]:
        """The members that are in none of the `tables`."""
        return self._all_tables[1]

    @cached_property
    def _all_tables(self) -> tuple[Mapping[str, ChunkTable], Mapping[str, Value]]:
        keys = self.members
        if not isinstance(keys, KeyTable):
            return self.chunks, keys
        small = {path: grid for path, grid in _grids_in(keys, self.where).items() if path not in self.chunks}
        if not small:
            return self.chunks, keys
        parts: dict[str, list[Part]] = {}
        spelled = keys.keys_in_rows
        rows = np.flatnonzero((keys.ranges.targets != ABSENT) & spelled.may_be_chunks())
        ranges, placed = keys.ranges.take(rows), [rows[:0]]
        for path, among, numbers in place_chunks(spelled.take(rows), small):
            placed.append(rows[among])
            parts[path] = [Part(numbers, ranges.take(among))]
        tables = {path: ChunkTable.from_parts(grid, parts.get(path, ())) for path, grid in small.items()}
        return {**self.chunks, **tables}, keys.without_rows(np.concatenate(placed))


def _grids_in(keys: KeyTable, where: str) -> dict[str, ChunkGrid]:
    """Return the grids that metadata among ``keys`` give to arrays."""
    read = GridReader(where).grid
    documents = keys.keys_in_rows.named(METADATA)
    found = {}
    for key, row in zip(keys.keys_at(documents).names(), documents.tolist(), strict=True):
        grid = read(key, keys.value(row))
        if grid is not None:
            found[key.rpartition("/")[0]] = grid
    return found


class _Grids(Grids):
    """The grids of arrays, of which none is known before it is asked for."""

    def __init__(self, refs: ReferenceSet) -> None:
        super().__init__(self._grid, lambda: refs.tables)
        self._refs = refs
        self._known: dict[str, ChunkGrid | None] = {}
        self._read = GridReader(refs.where).grid

    def _grid(self, path: str) -> ChunkGrid | None:
        table = self._refs.chunks.get(path)
        if table is not None:
            return table.grid
        if path not in self._known:
            if len(self._known) >= KNOWN:
                self._known.clear()
                self._read = GridReader(self._refs.where).grid
            self._known[path] = self._find(path)
        return self._known[path]

    def _find(self, path: str) -> ChunkGrid | None:
        keys = self._refs.keys
        for row in sorted(keys.rows_of([join(path, name) for name in METADATA]), reverse=True):
            grid = self._read(keys.key(row), keys.value(row))
            if grid is not None:
                return grid
        return None

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs.tables)

    def __len__(self) -> int:
        return len(self._refs.tables)


def adopt(refs: ReferenceSet, rule: Admission) -> ReferenceSet:
    """Return ``refs``, URLs absolute, as a part of a set of the user's, with the origins that this takes.

    ``rule`` is that for their targets: TargetNotAllowed where it forbids one.
    """
    adoption = Adoption(rule)
    for url in refs.urls if not rule.admits_all else ():
        adoption.add(url)
    return msgspec.structs.replace(refs, origins=adoption.origins(refs.origins))


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

    def copy(self) -> dict[str, Any]:
        """Return them as a plain dict, which may be changed."""
        return dict(self)

    def to_json(self) -> bytes:
        """Return the set as a document; bytes that are not text become base64.

        It is of version 0, or of 1 where something is said of targets: their pins, or their origins.
        """
        members = {key: spelled(value) if isinstance(value, bytes) else value for key, value in self.items()}
        said = self._refs.describe_targets(self._refs.urls)
        if not said:
            return zarrmeta.dumps(members)
        if any("{{" in (url or "") for url in self._refs.urls):
            raise ManifestError(
                "a set with pins or origins has URLs with {{, which JSON of version 1 cannot hold: pickle it"
            )
        return zarrmeta.dumps({"version": 1, "refs": members, "refshard": said})

    def __repr__(self) -> str:
        return f"<References: {len(self)} keys, {len(self._refs.urls)} targets>"


# ----------------------------------------------------------------------------------------------------
# A reference set with edits in it: the columns of arrays that are not touched are shared.


def with_edits(refs: ReferenceSet, edits: Edits, where: str) -> ReferenceSet:
    """Apply ``edits`` to ``refs``; ManifestError, which names ``where``, for malformed metadata."""
    editing = _Editing(refs, where)
    for prefix in edits.prefixes():
        editing.remove_below(prefix)
    changes = edits.changes()
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
    for key, edit in edits.changes().items():
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
        self._origins = refs.origins
        self._named: dict[str, Origin] = {}  # by the sets that named new URLs
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
                    self._tables[path] = _take_chunks(table, numbers != number)
                elif directory is not None:
                    start, stop = directory.numbers.start, directory.numbers.stop
                    self._tables[path] = _take_chunks(table, (numbers < start) | (numbers >= stop))

    def put(self, key: str, edit: Edit) -> Row | None:
        """Let ``key`` hold ``edit``, by key; return the reference that it is, if it is one."""
        self._side.pop(key, None)
        match edit:
            case Inline(data):
                self._side[key] = data
            case Span(url, start, stop, pin=pin, origin=origin):
                if pin is not None and pin.exact:
                    self._new_pins[url] = pin
                self._named[url] = self._named.get(url, origin) and origin
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
        for name in sorted(METADATA):  # version 2 first
            value = self._side.get(join(path, name))
            if value is not None:
                grid = grid or grid_of(join(path, name), value, self._where)
        table = self._tables.pop(path, None)
        parts: list[Part] = []
        if table is not None and grid is not None and grid == table.grid:
            self._tables[path] = table
            return
        if table is not None:
            outside = table.present()
            if grid is not None and grid.encoding == table.grid.encoding and len(grid.counts) == len(table.grid.counts):
                numbers, is_inside = renumbered(outside, table.grid, grid)
                parts.append(table.part(outside[is_inside])._replace(numbers=numbers[is_inside]))
                outside = outside[~is_inside]
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
        pins = Pins.join([(self._pins, len(self._old)), (mine, len(new))])
        origins = self._origins.with_urls(self._named.items())
        return ReferenceSet(urls, self._tables, self._side, pins=pins, origins=origins)


def _take_chunks(table: ChunkTable, chosen: Booleans) -> ChunkTable:
    """Return ``table`` with some of its chunks."""
    return ChunkTable.from_parts(table.grid, [table.part(table.present()[chosen])])
