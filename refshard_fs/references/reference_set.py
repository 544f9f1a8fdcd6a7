"""Keep a reference set in memory: each URL once, and chunks of large arrays in columns. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import NO_TARGET, ChunkTable, Part, Row, Texts, renumber
from refshard_fs.core.edits import Edit, Edits
from refshard_fs.core.keys import ChunkGrid, is_within, join, make_relative, parent
from refshard_fs.core.keyspace import Grids, find_chunk, sort_chunk_names
from refshard_fs.core.model import Inline, Origin, Pin, Span
from refshard_fs.core.zarrmeta import is_array_document
from refshard_fs.errors import ManifestError
from refshard_fs.references.chunk_keys import place_chunks
from refshard_fs.references.key_table import KeyTable, Value
from refshard_fs.references.pieces import Booleans
from refshard_fs.references.pins import Pins
from refshard_fs.references.values import METADATA, GridReader, encode, find_grid
from refshard_fs.security.admission import Admission
from refshard_fs.security.origins import MEMBER, NOTHING, Adoption, Origins

MAX_GRIDS: Final = 4096  # the most arrays whose parsed grids are kept


class ReferenceSet(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The content of a reference set as it is in the document: URLs are not resolved, and inline data are not decoded.

    ``urls[row.target]`` is a reference's URL; None means the default target. ``chunks`` has the references to chunks of
    large arrays, and ``members`` has all other keys, including chunks of small arrays. ``members`` is a `KeyTable`, or
    a plain mapping; with a plain mapping, ``chunks`` has the references to chunks of all arrays. ``version`` is the
    version of the document's format. ``pins`` has the pin of each target. ``origins`` says which absolute URLs other
    people's sets named. ``where`` names the set in errors.
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
        """The ``members`` as a `KeyTable`."""
        members = self.members
        return members if isinstance(members, KeyTable) else KeyTable.of_mapping(members)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self.keys) + sum(map(len, self.chunks.values()))

    def describe_targets(self, urls: Iterable[str | None]) -> dict[str, Any]:
        """Return pins and origins in JSON; ``urls`` are the URLs as they are written in the document."""
        pins = {} if self.pins is None else {"pins": self.pins.to_json(urls)}
        return pins | ({MEMBER: self.origins.to_json()} if self.origins else {})

    @property
    def nbytes(self) -> int:
        """The approximate size in memory, in bytes."""
        pins = 0 if self.pins is None else self.pins.nbytes
        return self.keys.nbytes + pins + self.urls.nbytes + sum(table.nbytes for table in self.chunks.values())

    def get_value(self, key: str) -> Value | None:
        """Return the value of ``key`` as it is in the document; None if the key does not exist."""
        chunks = self.chunks
        end = len(key) if chunks else -1
        while end >= 0:
            end = key.rfind("/", 0, end)
            table = chunks.get(key[:end] if end >= 0 else "")
            if table is not None:
                number = table.grid.number(key[end + 1 :])
                row = None if number is None else table.get_row(number)
                if row is not None:
                    return row
        return self.keys.get(key)

    def __iter__(self) -> Iterator[str]:
        """Yield every key."""
        yield from self.keys
        for path, table in self.chunks.items():
            yield from sort_chunk_names(table.grid, table.list_present(), path + "/" if path else "")[0]

    @cached_property
    def grids(self) -> Mapping[str, ChunkGrid]:
        """The chunk grids of all arrays with inline metadata, by path; each is parsed when it is first needed."""
        return _Grids(self)

    @property
    def tables(self) -> Mapping[str, ChunkTable]:
        """The references to chunks of all arrays, as columns. The first use makes the columns of small arrays."""
        return self._all_tables[0] if type(self.members) is KeyTable else self.chunks

    @property
    def side(self) -> Mapping[str, Value]:
        """All members but the references to chunks, which `tables` has."""
        return self._all_tables[1] if type(self.members) is KeyTable else self.members

    @cached_property
    def _all_tables(self) -> tuple[Mapping[str, ChunkTable], Mapping[str, Value]]:
        keys = self.keys
        small = {path: grid for path, grid in _find_grids(keys, self.where).items() if path not in self.chunks}
        if not small:
            return self.chunks, keys
        parts: dict[str, list[Part]] = {}
        names = keys.keys_in_rows
        rows = np.flatnonzero((keys.ranges.targets != NO_TARGET) & names.may_be_chunks())
        ranges, placed = keys.ranges.take(rows), [rows[:0]]
        for path, among, numbers in place_chunks(names.take(rows), small):
            placed.append(rows[among])
            parts[path] = [Part(numbers, ranges.take(among))]
        tables = {path: ChunkTable.from_parts(grid, parts.get(path, ())) for path, grid in small.items()}
        return {**self.chunks, **tables}, keys.drop_rows(np.concatenate(placed))


def _find_grids(keys: KeyTable, where: str) -> dict[str, ChunkGrid]:
    """Return the grids of arrays by path, from the metadata among ``keys``."""
    read = GridReader(where).read_grid
    documents = keys.keys_in_rows.find_named(METADATA)
    found = {}
    for key, row in zip(keys.get_keys(documents).list_names(), documents.tolist(), strict=True):
        grid = read(key, keys.get_value(row))
        if grid is not None:
            found[key.rpartition("/")[0]] = grid
    return found


class _Grids(Grids):
    """The grids of the arrays in ``refs``, by path; each is parsed when it is first needed."""

    def __init__(self, refs: ReferenceSet) -> None:
        super().__init__(self._find_grid, lambda: refs.tables)
        self._refs = refs
        self._known: dict[str, ChunkGrid | None] = {}
        self._read = GridReader(refs.where).read_grid

    def _find_grid(self, path: str) -> ChunkGrid | None:
        table = self._refs.chunks.get(path)
        if table is not None:
            return table.grid
        if path not in self._known:
            if len(self._known) >= MAX_GRIDS:
                self._known.clear()
                self._read = GridReader(self._refs.where).read_grid
            self._known[path] = self._parse_grid(path)
        return self._known[path]

    def _parse_grid(self, path: str) -> ChunkGrid | None:
        keys = self._refs.keys
        for row in sorted(keys.find_rows([join(path, name) for name in METADATA]), reverse=True):
            grid = self._read(keys.get_key(row), keys.get_value(row))
            if grid is not None:
                return grid
        return None

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs.tables)

    def __len__(self) -> int:
        return len(self._refs.tables)


def adopt(refs: ReferenceSet, rule: Admission) -> ReferenceSet:
    """Return ``refs``, whose URLs are absolute, with origins, so that another set can contain its references.

    ``rule`` says which targets the set may have; TargetNotAllowed if the rule forbids one of them.
    """
    adoption = Adoption(rule)
    for url in refs.urls if not rule.admits_all else ():
        adoption.add(url)
    return msgspec.structs.replace(refs, origins=adoption.combine_origins(refs.origins))


class References(Mapping[str, Any]):
    """A reference set as a mapping of keys to values as in JSON of version 0, with templates expanded."""

    def __init__(self, refs: ReferenceSet) -> None:
        self._refs = refs

    def __getitem__(self, key: str) -> Any:
        value = self._refs.get_value(key)
        if value is None:
            raise KeyError(key)
        if not isinstance(value, Row):
            return value
        return value.to_json(self._refs.urls[value.target])

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def copy(self) -> dict[str, Any]:
        """Return a plain dict, which may be changed."""
        return dict(self)

    def to_json(self) -> bytes:
        """Encode the set as a JSON document; bytes that are not text become base64.

        The document has version 1 if the set has pins or origins, otherwise version 0.
        """
        members = {key: encode(value) if isinstance(value, bytes) else value for key, value in self.items()}
        facts = self._refs.describe_targets(self._refs.urls)
        if not facts:
            return zarrmeta.dumps(members)
        braces = next((url for url in self._refs.urls if "{{" in (url or "")), None)
        if braces is not None:
            raise ManifestError(
                f"the set has pins or origins, so its JSON must have version 1, in which {{{{ in the URL {braces!r} "
                "would be a template: pickle the set"
            )
        return zarrmeta.dumps({"version": 1, "refs": members, "refshard": facts})

    def __repr__(self) -> str:
        return f"<References: {len(self)} keys, {len(self._refs.urls)} targets>"


def apply_edits(refs: ReferenceSet, edits: Edits, where: str) -> ReferenceSet:
    """Return ``refs`` with ``edits``; ManifestError, which names the set ``where``, for malformed metadata."""
    editing = _Editing(refs, where)
    for prefix in edits.list_prefixes():
        editing.remove_below(prefix)
    changes = edits.list_changes()
    for key in filter(is_array_document, changes):
        editing.put(key, changes[key])
        editing.rebuild_table(parent(key)[0])
    editing.put_others({key: edit for key, edit in changes.items() if not is_array_document(key)})
    return editing.finish()


def select_edits(edits: Edits, array: str) -> Edits:
    """Return the edits of keys at and below the path of an array."""
    found = Edits()
    for prefix in edits.list_prefixes():
        if is_within(prefix, array) or is_within(array, prefix):
            found.remove_below(prefix)
    for key, edit in edits.list_changes().items():
        if is_within(key, array):
            found.put(key, edit)
    return found


class _Editing:
    """Apply edits to the columns and the other members of ``refs``, which stays unchanged."""

    def __init__(self, refs: ReferenceSet, where: str) -> None:
        self._where = where
        self._side = dict(refs.side.items())
        self._tables = dict(refs.tables)
        self._old = refs.urls
        self._pins = refs.pins
        self._new_pins: dict[str, Pin] = {}
        self._origins = refs.origins
        self._origins_of_new: dict[str, Origin] = {}  # new URL → the servers of the sets that named it
        self._new: dict[str, int] = {}  # new URL → its number

    def remove_below(self, prefix: str) -> None:
        """Remove all keys at and below ``prefix``."""
        for key in [key for key in self._side if is_within(key, prefix)]:
            del self._side[key]
        for path, table in list(self._tables.items()):
            if is_within(path, prefix):
                del self._tables[path]
            elif is_within(prefix, path):
                below = make_relative(prefix, path)
                numbers = table.list_present()
                number, directory = table.grid.number(below), table.grid.find_directory(below)
                if number is not None:
                    self._tables[path] = _take_chunks(table, numbers != number)
                elif directory is not None:
                    start, stop = directory.numbers.start, directory.numbers.stop
                    self._tables[path] = _take_chunks(table, (numbers < start) | (numbers >= stop))

    def put(self, key: str, edit: Edit) -> Row | None:
        """Set ``key`` to ``edit``; return the edit as a row if it is a reference."""
        self._side.pop(key, None)
        match edit:
            case Inline(data):
                self._side[key] = data
            case Span(url, start, stop, pin=pin, origin=origin):
                if pin is not None and pin.exact:
                    self._new_pins[url] = pin
                self._origins_of_new[url] = self._origins_of_new.get(url, origin) and origin
                number = self._new.setdefault(url, len(self._old) + len(self._new))
                row = self._side[key] = Row(number, start, None if stop is None else stop - start)
                return row
        return None

    def put_others(self, changes: Mapping[str, Edit]) -> None:
        """Set keys that are not metadata of arrays; references to chunks go into the tables of arrays."""
        grids = {path: table.grid for path, table in self._tables.items()}
        rows: dict[str, list[tuple[int, Row]]] = {}
        for key, edit in changes.items():
            row = self.put(key, edit)
            at = find_chunk(grids, key)
            if at is not None:
                rows.setdefault(at.array, []).append((at.number, row or Row(NO_TARGET, 0, 0)))
                if row is not None:
                    del self._side[key]
        for path, found in rows.items():
            table = self._tables[path]
            self._tables[path] = ChunkTable.from_parts(table.grid, [table.make_part(), Part.from_rows(found)])

    def rebuild_table(self, path: str) -> None:
        """Rebuild the table of the array ``path`` for the grid in its new metadata."""
        grid = None
        for name in sorted(METADATA):  # version 2 first
            value = self._side.get(join(path, name))
            if value is not None:
                grid = grid or find_grid(join(path, name), value, self._where)
        table = self._tables.pop(path, None)
        parts: list[Part] = []
        if table is not None and grid is not None and grid == table.grid:
            self._tables[path] = table
            return
        if table is not None:
            outside = table.list_present()
            if grid is not None and grid.encoding == table.grid.encoding and len(grid.counts) == len(table.grid.counts):
                numbers, is_inside = renumber(outside, table.grid, grid)
                parts.append(table.make_part(outside[is_inside])._replace(numbers=numbers[is_inside]))
                outside = outside[~is_inside]
            rows = ((number, table.get_row(number)) for number in outside.tolist())
            self._side |= {join(path, table.grid.tail(number)): row for number, row in rows if row is not None}
        if grid is None:
            return
        found: list[tuple[int, Row]] = []
        for key, value in list(self._side.items()):
            at = find_chunk({path: grid}, key) if isinstance(value, Row) and is_within(key, path) else None
            if at is not None and isinstance(value, Row):
                del self._side[key]
                found.append((at.number, value))
        self._tables[path] = ChunkTable.from_parts(grid, [*parts, Part.from_rows(found)])

    def finish(self) -> ReferenceSet:
        """Return the edited set."""
        new = self._new
        urls = Texts.concatenate([self._old, Texts.of(new)]) if new else self._old
        new_pins = Pins.of(self._new_pins.get(url) for url in new) if self._new_pins else None
        pins = Pins.join([(self._pins, len(self._old)), (new_pins, len(new))])
        origins = self._origins.with_urls(self._origins_of_new.items())
        return ReferenceSet(urls, self._tables, self._side, pins=pins, origins=origins)


def _take_chunks(table: ChunkTable, mask: Booleans) -> ChunkTable:
    """Return ``table`` with only the chunks for which ``mask`` is true."""
    return ChunkTable.from_parts(table.grid, [table.make_part(table.list_present()[mask])])
