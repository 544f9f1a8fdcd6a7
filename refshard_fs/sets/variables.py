"""The arrays of a reference set, with their attributes, dimensions, and the values that are inline. No I/O here.

`ChangedSet` makes a set of another one, some of whose arrays are stored otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_group import PACKING, PACKING_TYPE
from refshard_fs.core.columns import ChunkTable, Part, Row
from refshard_fs.core.dtypes import dtype_of, fill_of, plain
from refshard_fs.core.keys import ChunkGrid, join, parent
from refshard_fs.core.keyspace import place
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.errors import ManifestError
from refshard_fs.formats.virtual_concat.recoding import decode_chunk
from refshard_fs.references.key_table import Value
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA, decode, object_in

Numbers = npt.NDArray[np.int64]
Move = Callable[[Any], Any]  # returns new coordinates of chunks along an axis, given the old ones

MOST: Final = 1 << 24  # elements that are looked at together: shapes and chunks may be any numbers


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

    @property
    def is_sharded(self) -> bool:
        """Whether the set refers to the array's shards, not to its chunks."""
        codecs = self.meta.raw.get("codecs") or ()
        return "shards" in self.meta.raw or any(
            isinstance(codec, Mapping) and codec.get("name") == "sharding_indexed" for codec in codecs
        )


def auxiliary(variables: Mapping[str, Variable]) -> set[str]:
    """Return the paths that attributes ``coordinates`` of arrays name (CF conventions, section 5)."""
    return {
        join(parent(path)[0], name)
        for path, variable in variables.items()
        if isinstance(names := variable.attributes.get("coordinates"), str)
        for name in names.split()
    }


class Named(msgspec.Struct, frozen=True, dict=True):
    """A set, its variables by path, and what it is called in errors."""

    name: str
    refs: ReferenceSet
    variables: Mapping[str, Variable]
    # What stands for the bytes of arrays that were read to be compared: digests, of joined arrays in the order of sets.
    digests: Mapping[str, Hashable] = {}
    # The attributes that say the units of arrays whose own do not: those of their coordinate, as it is in the set.
    units: Mapping[str, Mapping[str, Any]] = {}
    # What its chunks are read with: `RefShardFileSystem(fo, **options)`, or ``fo`` itself if it is a filesystem.
    fo: Any = None
    options: Mapping[str, Any] = {}

    @cached_property
    def inline(self) -> Mapping[str, Mapping[int, bytes]]:
        """The chunks that are data, by array and number."""
        found: dict[str, dict[int, bytes]] = {}
        for key, value in self.refs.side.items():
            if type(value) is Row or zarrmeta.is_metadata(key):
                continue
            at = place(self.refs.grids, key)
            if at is not None:
                try:
                    found.setdefault(at.array, {})[at.number] = decode(value)
                except ValueError as e:
                    raise ManifestError(f"{key!r} of {self.name}: {e}") from e
        return found

    def values(self, path: str) -> npt.NDArray[Any] | None:
        """Return the values of an array.

        None where they are not all inline, not readable, or with what chunks hold beyond the array's end more than
        `MOST`.
        """
        table = self.refs.tables.get(path)
        return None if table is None or len(table) else self.decoded(path, self.inline.get(path, {}))

    def decoded(self, path: str, chunks: Mapping[int, bytes]) -> npt.NDArray[Any] | None:
        """Return the values of an array that has these ``chunks``; None where they are not readable, or too many."""
        meta = self.variables[path].meta
        if meta.chunks is None:
            return None
        dtype = dtype_of(meta)
        counts = self.refs.tables[path].grid.counts
        room = [count * size for count, size in zip(counts, meta.chunks, strict=True)]
        if dtype is None or math.prod(room) > MOST:
            return None
        try:
            out = np.full(room, fill_of(meta, dtype), dtype)
            for number, data in chunks.items():
                values = decode_chunk(meta, data)
                if values is None:
                    return None
                at = np.unravel_index(number, counts)
                out[tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, meta.chunks, strict=True))] = values
        except ValueError as e:
            raise ManifestError(f"{path!r} of {self.name}: {e}") from e
        return np.asarray(out[tuple(map(slice, meta.shape))])


class VariableReader:
    """Reads the arrays of sets; what the same texts say is parsed once, and is the same variable."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Value, Value | None], Variable | None] = {}

    def read(self, refs: ReferenceSet, where: str, paths: Container[str] | None = None) -> dict[str, Variable]:
        """Return the arrays of a set by path, or only those at ``paths``."""
        found = {}
        for key, value in refs.side.items():
            if not key.endswith(METADATA) or type(value) is Row:
                continue
            path, name = parent(key)
            if name not in METADATA or (paths is not None and path not in paths):
                continue
            spelled = key, value, refs.side.get(join(path, ".zattrs"))
            is_text = not isinstance(value, dict) and not isinstance(spelled[2], dict)
            if is_text and spelled in self._known:
                variable = self._known[spelled]
            else:
                variable = _variable(refs, path, key, value, where)
                if is_text:
                    self._known[spelled] = variable
            if variable is not None:
                found[path] = variable
        return found


def _variable(refs: ReferenceSet, path: str, key: str, value: Value, where: str) -> Variable | None:
    doc = object_in(value, f"{key!r} of {where}")
    meta = zarrmeta.array_meta(doc, f"{key!r} of {where}")
    if meta is None:
        return None
    attributes: Any = doc.get("attributes") or {}
    aside = refs.side.get(join(path, ".zattrs"))
    if meta.zarr_format == 2:
        attributes = {} if aside is None else object_in(aside, f"{join(path, '.zattrs')!r} of {where}")
    if not isinstance(attributes, dict):
        raise ManifestError(f"{key!r} of {where}: its attributes are no object, but {type(attributes).__name__}")
    names = doc.get("dimension_names") or attributes.get("_ARRAY_DIMENSIONS") or [None] * len(meta.shape)
    match names:
        case [*_] if len(names) == len(meta.shape) and all(name is None or isinstance(name, str) for name in names):
            return Variable(key, meta, attributes, tuple(names))
    raise ManifestError(f"{key!r} of {where}: {names!r:.100} are no names of its {len(meta.shape)} dimensions")


def with_type(meta: ArrayMeta, dtype: np.dtype[Any]) -> ArrayMeta:
    """Return the metadata of an array of that type; the same, byte order and all, if it has it."""
    known = dtype_of(meta)
    if known is None or (known.kind, known.itemsize) == (dtype.kind, dtype.itemsize):
        return meta
    name = dtype.name if meta.zarr_format == 3 else dtype.newbyteorder("<").str
    field = "data_type" if meta.zarr_format == 3 else "dtype"
    return msgspec.structs.replace(meta, dtype=name, raw={**meta.raw, field: name})


def with_packing_types(refs: ReferenceSet, dtypes: Mapping[str, Mapping[str, str]], where: str) -> ReferenceSet:
    """Return the set whose arrays are packed by 32-bit numbers where ``dtypes`` (by path and attribute) say so.

    That is an attribute: xarray decodes by the type of scale_factor and add_offset, and JSON has one kind of numbers.
    """
    paths = []
    for path, own in dtypes.items():
        if {np.dtype(own[name]).newbyteorder("=") for name in PACKING if name in own} == {np.dtype("f4")}:
            paths.append(path)
    changed: dict[str, Value] = {}
    for variable in VariableReader().read(refs, where, paths).values():
        attributes = {**variable.attributes, PACKING_TYPE: "float32"}
        for key, doc in with_attributes(variable.key, variable.meta.raw, attributes).items():
            changed[key] = zarrmeta.dumps(doc).decode()
    if not changed:
        return refs
    return msgspec.structs.replace(refs, chunks=refs.tables, members={**dict(refs.side.items()), **changed})


# ----------------------------------------------------------------------------------------------------
# Sets with some arrays stored otherwise.


def grid_of(doc: Mapping[str, Any], where: str) -> ChunkGrid:
    """Return the chunk grid of an array; ManifestError, which begins with ``where``, if it is not known."""
    meta = zarrmeta.array_meta(doc, where)
    if meta is None or meta.grid is None:
        raise ManifestError(f"{where} has no chunk grid")
    return meta.grid


def moved(
    numbers: Numbers, old: Sequence[int], new: Sequence[int], along: Mapping[int, Move]
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Return the numbers in a ``new`` grid of the chunks of an ``old`` one, and which of them lie in it.

    ``old`` and ``new`` are the counts of chunks; ``along`` has the axes along which chunks get other coordinates.
    """
    found, is_there = np.zeros(len(numbers), np.int64), np.ones(len(numbers), np.bool_)
    for axis, (coords, count) in enumerate(zip(np.unravel_index(numbers, old), new, strict=True)):
        now = along[axis](coords) if axis in along else coords
        found = found * count + now
        is_there &= (now >= 0) & (now < count)
    return found, is_there


class ChangedSet:
    """A set some of whose arrays are replaced; `named` returns the result."""

    def __init__(self, part: Named) -> None:
        self.part = part
        self.tables: dict[str, ChunkTable] = dict(part.refs.tables)
        self.members: dict[str, Value] = dict(part.refs.side.items())
        self._changed: set[str] = set()

    def put(
        self,
        variable: Variable,
        doc: Mapping[str, Any],
        attributes: Value | None = None,
        chunks: Mapping[int, bytes] = {},
    ) -> ChunkGrid:
        """Replace an array by one with the metadata ``doc``, and with inline ``chunks`` alone; return its grid."""
        path = variable.path
        grid = grid_of(doc, f"{path!r} of {self.part.name}")
        for number in self.part.inline.get(path, {}):
            self.members.pop(join(path, self.part.refs.tables[path].grid.tail(number)), None)
        self.members[variable.key] = dict(doc)
        if attributes is not None:
            self.members[join(path, ".zattrs")] = attributes
        self.members |= {join(path, grid.tail(number)): data for number, data in chunks.items()}
        self.tables[path] = ChunkTable.from_parts(grid, [])
        self._changed.add(path)
        return grid

    def put_values(self, variable: Variable, values: npt.NDArray[Any], attributes: Value | None = None) -> None:
        """Replace an array by one of ``values``, in one inline chunk, of a type that holds them."""
        doc, data = plain(with_type(variable.meta, values.dtype), values)
        self.put(variable, doc, attributes, {0: data} if values.size else {})

    def put_moved(self, variable: Variable, doc: Mapping[str, Any], along: Mapping[int, Move]) -> None:
        """Replace an array by one with those of its chunks that lie in the new grid: see `moved`."""
        path = variable.path
        old, new = self.tables[path].grid.counts, grid_of(doc, f"{path!r} of {self.part.name}").counts
        numbers, ranges = self.tables[path].part()
        inline = self.part.inline.get(path, {})
        now, is_there = moved(np.array(list(inline), np.int64), old, new, along)
        stay = zip(now.tolist(), is_there.tolist(), inline.values(), strict=True)
        grid = self.put(variable, doc, chunks={number: data for number, stays, data in stay if stays})
        now, is_there = moved(numbers.astype(np.int64), old, new, along)
        part = Part(now[is_there].astype(np.uint64), ranges.take(is_there))
        self.tables[path] = ChunkTable.from_parts(grid, [part])

    def put_documents(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace metadata documents, by key; chunks stay as they are."""
        self.members |= {key: dict(doc) for key, doc in documents.items()}
        self._changed |= {parent(key)[0] for key in documents}

    def named(self, *, keeps_digests: bool = False) -> Named:
        """Return the set; digests of arrays that were replaced are dropped, unless it ``keeps_digests``."""
        part, changed = self.part, self._changed
        refs = ReferenceSet(part.refs.urls, self.tables, self.members, pins=part.refs.pins)
        variables = {**part.variables, **VariableReader().read(refs, part.name, changed)}
        gone = set() if keeps_digests else changed
        digests = {path: digest for path, digest in part.digests.items() if path not in gone}
        return msgspec.structs.replace(part, refs=refs, variables=variables, digests=digests)


def with_metadata(part: Named, documents: Mapping[str, Mapping[str, Any]]) -> Named:
    """Return a set that shows metadata ``documents`` (by key) in place of its own."""
    if not documents:
        return part
    changed = ChangedSet(part)
    changed.put_documents(documents)
    return changed.named(keeps_digests=True)


def with_attributes(key: str, doc: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the document, by key, that gives the array with metadata ``doc`` (at ``key``) other ``attributes``."""
    path, name = parent(key)
    if name == "zarr.json":
        return {key: {**doc, "attributes": dict(attributes)}}
    return {join(path, ".zattrs"): dict(attributes)}
