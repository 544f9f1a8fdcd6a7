"""Reference sets one after the other along a dimension, as columns: no chunk is read or copied. No I/O here.

What does not fit is a ManifestError that names the sets, the variable and the field.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs import zarrmeta
from refshard_fs.columns import ABSENT, ChunkTable, Part, Row
from refshard_fs.errors import ManifestError
from refshard_fs.keys import join, parent
from refshard_fs.keyspace import place
from refshard_fs.manifests.cf_times import converted
from refshard_fs.manifests.chunk_values import decode_chunk
from refshard_fs.manifests.plain_values import dtype_of, fill_of, plain
from refshard_fs.manifests.reference_set import METADATA, References, ReferenceSet, Value, decode
from refshard_fs.pins import Pins
from refshard_fs.texts import Texts
from refshard_fs.zarrmeta import ArrayMeta

__all__ = ["Known", "Named", "Variable", "concatenate", "has_same_references", "values_at_hand", "variables"]

# Attributes that change what the values mean: equal in all sets.
MEANING: Final = ("units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
# Fields of metadata that differ between parts of one array; and those that may in a coordinate, which is stored anew.
OWN: Final = {"shape", "attributes", "consolidated_metadata"}
STORED: Final = {"chunks", "compressor", "filters", "codecs", "chunk_grid", "order"}


class Variable(NamedTuple):
    """An array of a set: its metadata, attributes and the names of its dimensions, as far as it gives them."""

    key: str  # of the metadata
    meta: ArrayMeta
    attributes: Mapping[str, Any]
    dims: tuple[str | None, ...]

    @property
    def path(self) -> str:
        return parent(self.key)[0]

    @property
    def is_coordinate(self) -> bool:
        """Whether it holds the positions along the dimension of its own name."""
        return self.dims == (parent(self.path)[1],)


# What is known of arrays: by the key and text of their metadata, and the text of their attributes.
Known = dict[tuple[str, Any, Any], Variable | None]


class Named(NamedTuple):
    """A set, its variables by path, and what it is called in errors."""

    name: str
    refs: ReferenceSet
    variables: dict[str, Variable]
    read: Mapping[str, Mapping[int, bytes]] = {}  # chunks that were read to be compared: by array and number


def variables(refs: ReferenceSet, where: str, known: Known | None = None) -> dict[str, Variable]:
    """Return the arrays of a set by path; ``known`` remembers what texts say: of equal ones, the same variable."""
    found = {}
    known = {} if known is None else known
    for key, value in refs.side.items():
        if not key.endswith(METADATA):
            continue
        path, name = parent(key)
        if name not in METADATA or type(value) is Row:
            continue
        spelled = (key, value, refs.side.get(join(path, ".zattrs"))) if type(value) is str else None
        if spelled is not None and type(spelled[2]) in (str, NoneType):
            if spelled not in known:
                known[spelled] = _variable(refs, path, key, value, where)
            variable = known[spelled]
        else:
            variable = _variable(refs, path, key, value, where)
        if variable is not None:
            found[path] = variable
    return found


def _variable(refs: ReferenceSet, path: str, key: str, value: Value, where: str) -> Variable | None:
    doc = _document(key, value, where)
    meta = zarrmeta.array_meta(doc, f"{key!r} of {where}")
    if meta is None:
        return None
    attributes: Mapping[str, Any] = doc.get("attributes") or {}
    aside = refs.side.get(join(path, ".zattrs"))
    if meta.zarr_format == 2:
        attributes = {} if aside is None else _document(join(path, ".zattrs"), aside, where)
    names = doc.get("dimension_names") or attributes.get("_ARRAY_DIMENSIONS") or [None] * len(meta.shape)
    return Variable(key, meta, attributes, tuple(names))


def _document(key: str, value: Value, where: str) -> dict[str, Any]:
    try:
        doc = value if isinstance(value, dict) else zarrmeta.loads(decode(value))
    except ValueError as e:
        raise ManifestError(f"{key!r} of {where} is damaged: {e}") from e
    if not isinstance(doc, dict):
        raise ManifestError(f"{key!r} of {where} is no JSON object")
    return doc


def concatenate(sets: Sequence[Named], dim: str | None, same: Iterable[str] = ()) -> ReferenceSet:
    """Return ``sets`` as one: arrays with ``dim`` joined along it in order, all others merged.

    Variables without ``dim`` must be equal wherever they are, but for those in ``same``: they are the first set's.
    """
    starts = np.cumsum([0, *(len(part.refs.urls) for part in sets)])
    joining = _Joining(sets, dim, frozenset(same), starts.tolist())
    for path in dict.fromkeys(path for part in sets for path in part.variables):
        joining.variable(path)
    joining.rest()
    pins = Pins.joined([(part.refs.pins, len(part.refs.urls)) for part in sets])
    return ReferenceSet(Texts.joined([part.refs.urls for part in sets]), joining.tables, joining.side, pins=pins)


class _Joining:
    def __init__(self, sets: Sequence[Named], dim: str | None, same: frozenset[str], starts: list[int]) -> None:
        self.sets, self.dim, self.same, self.starts = sets, dim, same, starts
        self.tables: dict[str, ChunkTable] = {}
        self.side: dict[str, Value] = {}
        self.inline = [_inline(part.refs) for part in sets]

    def variable(self, path: str) -> None:
        """Take in the array ``path`` of all sets that have it."""
        holders = [i for i, part in enumerate(self.sets) if path in part.variables]
        first = self.sets[holders[0]].variables[path]
        if self.dim is None or self.dim not in first.dims:
            for i in holders[1:]:
                if path not in self.same and self.sets[i].refs is not self.sets[holders[0]].refs:
                    self._equal(path, holders[0], i)
            self._adopt(path, holders[0])
            return
        if len(holders) < len(self.sets):
            lacking = next(part.name for i, part in enumerate(self.sets) if i not in holders)
            raise ManifestError(f"{lacking} has no variable {path!r}, which others have along {self.dim!r}")
        values = self._coordinate(path) if first.is_coordinate else None
        axis = first.dims.index(self.dim)
        for i in holders[1:]:
            self._compatible(path, 0, i, axis, stored_anew=values is not None)
        if values is not None:
            doc, data = plain(first.meta, values)
            meta = zarrmeta.array_meta(doc, repr(path))
            if meta is not None and meta.grid is not None:
                self._metadata(first, doc)
                self.tables[path] = ChunkTable.from_parts(meta.grid, [])
                if len(values):
                    self.side[join(path, meta.grid.tail(0))] = data
            return
        self._joined(path, axis)

    def rest(self) -> None:
        """Take in what belongs to no array: the first set that has a key gives its value."""
        consolidated = False
        for i, part in enumerate(self.sets):
            arrays = part.variables
            for key, value in part.refs.side.items():
                directory, name = parent(key)
                if key == ".zmetadata":
                    consolidated = True
                elif key in self.side or (directory in arrays and zarrmeta.is_metadata(key)):
                    continue
                elif name == "zarr.json" and type(value) is not Row:
                    group = _document(key, value, part.name)
                    group.pop("consolidated_metadata", None)  # it tells of one set only
                    self.side[key] = group
                elif place(part.refs.grids, key) is None:
                    self.side[key] = self._moved(i, value)
        if consolidated:
            names = (".zarray", ".zattrs", ".zgroup")
            documents = {k: v for k, v in self.side.items() if parent(k)[1] in names and type(v) is not Row}
            metadata = {k: _document(k, v, "the result") for k, v in documents.items()}
            self.side[".zmetadata"] = {"zarr_consolidated_format": 1, "metadata": metadata}

    # ------------------------------------------------------------------ one variable

    def _moved(self, i: int, value: Value) -> Value:
        return value._replace(target=value.target + self.starts[i]) if type(value) is Row else value

    def _metadata(self, variable: Variable, doc: Mapping[str, Any]) -> None:
        self.side[variable.key] = dict(doc)
        aside = self.sets[0].refs.side.get(join(variable.path, ".zattrs"))
        if aside is not None:
            self.side[join(variable.path, ".zattrs")] = aside

    def _adopt(self, path: str, i: int) -> None:
        refs = self.sets[i].refs
        for name in (".zarray", "zarr.json", ".zattrs"):
            key = join(path, name)
            if key in refs.side:
                self.side[key] = refs.side[key]
        for number, data in self.inline[i].get(path, {}).items():
            self.side[join(path, refs.tables[path].grid.tail(number))] = data
        if path in refs.tables:
            self._table(path, refs.tables[path].grid, [self._part(path, i)])

    def _table(self, path: str, grid: Any, parts: list[Part]) -> None:
        self.tables[path] = ChunkTable.from_parts(grid, parts)

    def _part(self, path: str, i: int) -> Part:
        table = self.sets[i].refs.tables[path]
        numbers = table.present()
        rows: Any = slice(None) if table.numbers is not None or len(numbers) == table.grid.size else numbers
        targets = table.targets[rows] + np.uint32(self.starts[i])
        return Part(numbers, targets, table.offsets[rows], table.lengths[rows])

    def _joined(self, path: str, axis: int) -> None:
        first = self.sets[0].variables[path].meta
        lengths = [part.variables[path].meta.shape[axis] for part in self.sets]
        if first.chunks is None or first.grid is None:
            raise ManifestError(f"{self.sets[0].name}: the chunks of {path!r} are not of one size, or not known")
        size = first.chunks[axis]
        for part, length in zip(self.sets[:-1], lengths, strict=False):
            if size and length % size:
                raise ManifestError(
                    f"{part.name} has {length} elements of {path!r} along {self.dim!r}, no multiple of its chunks of "
                    f"{size}: only the last set may"
                )
        shape = [*first.shape[:axis], sum(lengths), *first.shape[axis + 1 :]]
        variable = self.sets[0].variables[path]
        doc = {**first.raw, "shape": shape}
        meta = zarrmeta.array_meta(doc, repr(path))
        if meta is None or meta.grid is None:
            raise ManifestError(f"{path!r} has no chunk grid")
        self._metadata(variable, doc)
        grid, inner = meta.grid, math.prod(meta.grid.counts[axis + 1 :])
        begin, parts = 0, []
        for i, length in enumerate(lengths):
            count = -(-length // size) if size else 0
            if path in self.sets[i].refs.tables and count:
                rows = self._part(path, i)
                numbers = _renumbered(rows.numbers.astype(np.uint64), count, grid.counts[axis], inner, begin)
                parts.append(rows._replace(numbers=numbers))
                for number, data in self.inline[i].get(path, {}).items():
                    outer, rest = divmod(number, count * inner)
                    self.side[join(path, grid.tail(outer * grid.counts[axis] * inner + rest + begin * inner))] = data
            begin += count
        self._table(path, grid, parts)

    def _coordinate(self, path: str) -> Any:
        """Return the values of a coordinate in all sets, if all are at hand."""
        found = []
        for i, part in enumerate(self.sets):
            variable = part.variables[path]
            values = values_at_hand(variable, part.refs, self.inline[i].get(path, {}), part.name)
            if values is None:
                return None
            found.append(self._in_first_units(path, i, values))
        return np.concatenate(found)

    def _in_first_units(self, path: str, i: int, values: Any) -> Any:
        """Return the values of a coordinate of times as numbers of the first set's units."""
        first, variable = self.sets[0].variables[path], self.sets[i].variables[path]
        if variable.attributes.get("units") == first.attributes.get("units"):
            return values
        fills = [v.meta.raw.get("fill_value") for v in (first, variable)]
        fills += [v.attributes.get(name) for v in (first, variable) for name in ("_FillValue", "missing_value")]
        try:
            return converted(values, variable.attributes, first.attributes, fills)
        except ValueError as e:
            mine, theirs = first.attributes.get("units"), variable.attributes.get("units")
            raise ManifestError(
                f"{path!r} has the attribute units {mine!r} in {self.sets[0].name}, and {theirs!r} in "
                f"{self.sets[i].name}, and cannot be carried over: {e}. Write {path!r} anew in {mine!r} there: its "
                f"values are the only ones that a set holds itself"
            ) from e

    # ------------------------------------------------------------------ what must be the same

    def _compatible(self, path: str, one: int, other: int, axis: int, *, stored_anew: bool) -> None:
        a, b = self.sets[one].variables[path], self.sets[other].variables[path]
        if a is b:
            return
        if a.dims != b.dims:
            raise self._differ(path, one, other, "dimensions", list(a.dims), list(b.dims))
        without = OWN | (STORED | {"units"} if stored_anew else set())
        self._documents(path, one, other, without)
        for k, (length, theirs) in enumerate(zip(a.meta.shape, b.meta.shape, strict=True)):
            if k != axis and length != theirs:
                raise self._differ(path, one, other, f"length along {a.dims[k]!r}", length, theirs)

    def _documents(self, path: str, one: int, other: int, without: set[str]) -> None:
        a, b = self.sets[one].variables[path], self.sets[other].variables[path]
        if a is b:
            return
        mine, theirs = _fields(a.meta), _fields(b.meta)
        for field in dict.fromkeys([*mine, *theirs]):
            if field not in without and _text(mine.get(field)) != _text(theirs.get(field)):
                raise self._differ(path, one, other, field, mine.get(field), theirs.get(field))
        for name in MEANING:
            if name in without:
                continue
            if _text(a.attributes.get(name)) != _text(b.attributes.get(name)):
                raise self._differ(
                    path, one, other, f"attribute {name}", a.attributes.get(name), b.attributes.get(name)
                )

    def _equal(self, path: str, one: int, other: int) -> None:
        a, b = self.sets[one], self.sets[other]
        if a.variables[path] is b.variables[path] and self._same_data(path, one, other):
            return
        mine = values_at_hand(a.variables[path], a.refs, self.inline[one].get(path, {}), a.name)
        theirs = values_at_hand(b.variables[path], b.refs, self.inline[other].get(path, {}), b.name)
        what, without = "references", {"attributes"}
        if mine is not None and theirs is not None:
            what, without = "values", without | STORED
        self._documents(path, one, other, without)
        if mine is not None and theirs is not None:
            if np.array_equal(mine, theirs, equal_nan=mine.dtype.kind in "fc"):
                return
        elif _content(a.refs, path, self.inline[one]) == _content(b.refs, path, self.inline[other]):
            return
        elif path in a.read and path in b.read:
            what = "bytes"
            if self._bytes(path, one) == self._bytes(path, other):
                return
        raise ManifestError(
            f"{a.name} and {b.name} have different {what} of {path!r}, which is not along {self.dim!r}: they must be "
            f"equal, or name it in same= to take the first set's"
        )

    def _same_data(self, path: str, one: int, other: int) -> bool:
        """Whether all chunks are inline, and the same bytes."""
        tables = [self.sets[i].refs.tables.get(path) for i in (one, other)]
        return not any(t is None or len(t) for t in tables) and self.inline[one].get(path) == self.inline[other].get(
            path
        )

    def _bytes(self, path: str, i: int) -> dict[int, bytes]:
        return {**self.sets[i].read[path], **self.inline[i].get(path, {})}

    def _differ(self, path: str, one: int, other: int, field: str, mine: Any, theirs: Any) -> ManifestError:
        return ManifestError(
            f"{path!r} has the {field} {mine!r} in {self.sets[one].name}, and {theirs!r} in {self.sets[other].name}"
        )


def _renumbered(numbers: Any, count: int, total: int, inner: int, begin: int) -> Any:
    """Return the numbers of chunks in a grid that has ``total`` along the axis where theirs has ``count``."""
    if total == count:
        return numbers
    if len(numbers) and numbers[-1] < count * inner:  # ascending: all in the first place of the axes before
        return numbers + np.uint64(begin * inner)
    outer, rest = np.divmod(numbers, np.uint64(count * inner))
    return outer * np.uint64(total * inner) + rest + np.uint64(begin * inner)


def _inline(refs: ReferenceSet) -> dict[str, dict[int, bytes]]:
    """Return the chunks that are data, by array and number."""
    found: dict[str, dict[int, bytes]] = {}
    for key, value in refs.side.items():
        at = None if type(value) is Row or zarrmeta.is_metadata(key) else place(refs.grids, key)
        if at is not None and type(value) is not Row:
            found.setdefault(at.array, {})[at.number] = decode(value)
    return found


def values_at_hand(
    variable: Variable, refs: ReferenceSet, chunks: Mapping[int, bytes], where: str
) -> np.ndarray[Any, Any] | None:
    """Return the values of an array of at most one dimension; None where they are not all inline, or not readable."""
    meta = variable.meta
    table = refs.tables.get(variable.path)
    if table is None or len(table) or meta.chunks is None or len(meta.shape) > 1:
        return None
    dtype = dtype_of(meta)
    if dtype is None:
        return None
    try:
        size = meta.chunks[0] if meta.chunks else 1
        out = np.full(-(-math.prod(meta.shape) // max(size, 1)) * size, fill_of(meta, dtype), dtype)
        for number, data in chunks.items():
            values = decode_chunk(meta, data)
            if values is None:
                return None
            out[number * size : (number + 1) * size] = values.reshape(-1)
    except ValueError as e:
        raise ManifestError(f"{variable.path!r} of {where}: {e}") from e
    return out[: math.prod(meta.shape)]


def _fields(meta: ArrayMeta) -> dict[str, Any]:
    fields = dict(meta.raw)
    if meta.zarr_format == 2:
        fields["dimension_separator"] = fields.get("dimension_separator") or "."
        fields["filters"] = fields.get("filters") or None
    return {**fields, "dtype" if meta.zarr_format == 2 else "data_type": meta.dtype}


def _text(value: Any) -> str:
    return zarrmeta.dumps(value).decode()


def has_same_references(one: Named, other: Named, path: str) -> bool:
    """Whether two sets refer to the same bytes for the chunks of the array ``path``, but for those that are inline."""
    tables = one.refs.tables.get(path), other.refs.tables.get(path)
    if one.refs is other.refs or not any(table is not None and len(table) for table in tables):
        return True
    return _content(one.refs, path, {}) == _content(other.refs, path, {})


def _content(refs: ReferenceSet, path: str, inline: Mapping[str, Any]) -> object:
    """Return what an array's chunks are, to be compared."""
    table = refs.tables.get(path)
    if table is None:
        below = {key: value for key, value in References(refs).items() if key.startswith(path + "/")}
        return {key: value for key, value in below.items() if not zarrmeta.is_metadata(key)}
    there = table.targets[table.targets != ABSENT]
    rows = [(number, refs.urls[row.target], row.offset, row.length) for number, row in table.rows()]
    return len(there), rows, inline.get(path, {})
