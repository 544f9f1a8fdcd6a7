"""A reference set for joins: its arrays, their dimensions, and the values that are inline. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import Row
from refshard_fs.core.dtypes import dtype_of, find_decoded_type, holds_characters, parse_fill_value
from refshard_fs.core.keys import join, parent
from refshard_fs.core.version_3 import convert_fill_attribute
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.cubes.chunk_codec import decode_chunk
from refshard_fs.errors import ManifestError
from refshard_fs.references.key_table import Value
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA, decode, object_in

MOST: Final = 1 << 24  # elements of an array that is decoded: a damaged shape may promise any number


class Variable(NamedTuple):
    """An array of a set: its metadata, its attributes, and the names of its dimensions (None if one has no name)."""

    key: str  # key of the metadata
    meta: ArrayMeta
    attributes: Mapping[str, Any]
    dims: tuple[str | None, ...]

    @property
    def path(self) -> str:
        return parent(self.key)[0]

    @property
    def is_coordinate(self) -> bool:
        """Whether the array has the values of the dimension with its own name."""
        return self.dims == (parent(self.path)[1],)

    @property
    def has_labels(self) -> bool:
        """Whether the array has the values of the dimension with its own name, also as texts of single characters."""
        name = parent(self.path)[1]
        return self.is_coordinate or (len(self.dims) == 2 and self.dims[0] == name and holds_characters(self.meta))

    @property
    def is_sharded(self) -> bool:
        """Whether the set refers to the array's shards, not to its chunks."""
        codecs = self.meta.raw.get("codecs") or ()
        return "shards" in self.meta.raw or any(
            isinstance(codec, Mapping) and codec.get("name") == "sharding_indexed" for codec in codecs
        )


# Attributes that name arrays which describe other arrays (CF conventions, sections 5 and 7), bounds among them.
BOUNDS: Final = ("bounds", "climatology")
DESCRIBING: Final = ("coordinates", "grid_mapping", "cell_measures", *BOUNDS)


def find_named_arrays(variables: Mapping[str, Variable], attributes: Sequence[str]) -> set[str]:
    """Return the paths of the arrays that these ``attributes`` of other arrays name."""
    return {
        join(parent(path)[0], name)
        for path, variable in variables.items()
        for names in map(variable.attributes.get, attributes)
        if isinstance(names, str)
        for name in names.split()
    }


def find_auxiliary(variables: Mapping[str, Variable]) -> set[str]:
    """Return the paths of auxiliary coordinates: arrays that an attribute ``coordinates`` names."""
    return find_named_arrays(variables, ("coordinates",))


class NamedSet(msgspec.Struct, frozen=True):
    """A reference set, its arrays by path, and its name in errors."""

    name: str
    refs: ReferenceSet
    variables: Mapping[str, Variable]
    # Digests of arrays whose bytes were read to be compared. A joined array has the digests of its parts, in order.
    digests: Mapping[str, Hashable] = {}
    # Attributes ``units`` and ``calendar`` of arrays that inherit them from their coordinate, such as its bounds.
    units: Mapping[str, Mapping[str, Any]] = {}
    # The filesystem that reads its chunks is `RefShardFileSystem(fo, **options)`, or ``fo`` if it is a filesystem.
    fo: Any = None
    options: Mapping[str, Any] = {}
    # For a part of a set in a document: its first element along the dimension, and the set's length; see `Piece`.
    take: tuple[int, int] | None = None

    def find_axes(self, dim: str | None) -> dict[str, int]:
        """Return, by path, the axis of the dimension in each array that has it."""
        return {path: v.dims.index(dim) for path, v in self.variables.items() if dim is not None and dim in v.dims}

    def find_length(self, dim: str) -> int:
        """Return the length of a dimension; ManifestError if no array has it, or if arrays have different lengths."""
        lengths = {path: self.variables[path].meta.shape[axis] for path, axis in self.find_axes(dim).items()}
        if not lengths:
            known = sorted({name for v in self.variables.values() for name in v.dims if name is not None})
            raise ManifestError(
                f"{self.name}: expected an array along {dim!r}, found the dimensions {known}: leave it out, or choose "
                "another dimension"
            )
        if len(set(lengths.values())) > 1:
            raise ManifestError(
                f"{self.name}: expected variables of one length along {dim!r}, found {lengths}: leave the set out, or "
                "drop= the others"
            )
        return next(iter(lengths.values()))

    def find_coordinate(self, dim: str | None) -> Variable | None:
        """Return the coordinate of a dimension, of the first group that has one; None if there is none."""
        return next((v for v in self.variables.values() if v.dims == (dim,) and v.is_coordinate), None)

    def find_inline_chunks(self, path: str) -> dict[int, bytes]:
        """Return, by number, the chunks of an array whose bytes are in the set."""
        table, side = self.refs.tables.get(path), self.refs.side
        if table is None:
            return {}
        grid, begin = table.grid, f"{path}/" if path else ""
        if grid.size <= len(side):  # most coordinates have one chunk, so that few keys are looked up
            if len(table) == grid.size:  # all chunks are references
                return {}
            found = {number: side.get(begin + grid.tail(number)) for number in range(grid.size)}
        else:
            below = ((grid.number(key[len(begin) :]), key) for key in side if key.startswith(begin))
            found = {number: side[key] for number, key in below if number is not None}
        chunks: dict[int, bytes] = {}
        for number, value in found.items():
            if value is not None and type(value) is not Row:
                try:
                    chunks[number] = decode(value)
                except ValueError as e:
                    raise ManifestError(f"{join(path, grid.tail(number))!r} of {self.name}: {e}") from e
        return chunks

    def decode_values(self, path: str) -> npt.NDArray[Any] | None:
        """Return the numbers of an array; None if a chunk is not inline, or if its type or codec is unknown."""
        table = self.refs.tables.get(path)
        if table is None or len(table) or dtype_of(self.variables[path].meta) is None:
            return None
        return self.decode(path, self.find_inline_chunks(path))

    def decode(self, path: str, chunks: Mapping[int, bytes]) -> npt.NDArray[Any] | None:
        """Return the values of an array with these ``chunks``.

        None if the codec or type is unknown, or chunks have more than `MOST` elements.
        """
        meta = self.variables[path].meta
        if meta.chunks is None:
            return None
        dtype = find_decoded_type(meta)
        counts = self.refs.tables[path].grid.counts
        padded = [count * size for count, size in zip(counts, meta.chunks, strict=True)]
        if dtype is None or math.prod(padded) > MOST:
            return None
        try:
            out = np.full(padded, parse_fill_value(meta, dtype), dtype)
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
    """Read the arrays of sets. The same metadata text is parsed once, so sets with equal metadata share `Variable`s."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Value, Value | None], Variable | None] = {}
        self._last: dict[str, Variable] = {}

    def read(self, refs: ReferenceSet, where: str, paths: Container[str] | None = None) -> dict[str, Variable]:
        """Return the arrays of a set by path, or only those at ``paths``."""
        variables = {}
        for key, value in refs.side.items():
            if not key.endswith(METADATA) or type(value) is Row:
                continue
            path, name = parent(key)
            if name not in METADATA or (paths is not None and path not in paths):
                continue
            text = key, value, refs.side.get(join(path, ".zattrs"))
            is_hashable = not isinstance(value, dict) and not isinstance(text[2], dict)
            if is_hashable and text in self._known:
                variable = self._known[text]
            else:
                variable = _parse_variable(refs, path, key, value, where)
                if is_hashable:
                    self._known[text] = variable
            if variable is not None:
                variables[path] = variable
        if list(variables.items()) != list(self._last.items()):
            self._last = variables
        return self._last


def _parse_variable(refs: ReferenceSet, path: str, key: str, value: Value, where: str) -> Variable | None:
    doc = object_in(value, f"{key!r} of {where}")
    meta = zarrmeta.array_meta(doc, f"{key!r} of {where}")
    if meta is None:
        return None
    attributes: Any = doc.get("attributes") or {}
    if meta.zarr_format == 2:
        zattrs = refs.side.get(join(path, ".zattrs"))
        attributes = {} if zattrs is None else object_in(zattrs, f"{join(path, '.zattrs')!r} of {where}")
    if not isinstance(attributes, dict):
        raise ManifestError(f"{key!r} of {where}: expected an object of attributes, got {type(attributes).__name__}")
    names = doc.get("dimension_names") or attributes.get("_ARRAY_DIMENSIONS") or [None] * len(meta.shape)
    match names:
        case [*_] if len(names) == len(meta.shape) and all(name is None or isinstance(name, str) for name in names):
            return Variable(key, meta, attributes, tuple(names))
    raise ManifestError(f"{key!r} of {where}: expected names of its {len(meta.shape)} dimensions, got {names!r:.100}")


def change_type(meta: ArrayMeta, dtype: np.dtype[Any]) -> ArrayMeta:
    """Return the metadata with another data type; unchanged, byte order too, if kind and size are the same."""
    known = dtype_of(meta)
    if known is None or (known.kind, known.itemsize) == (dtype.kind, dtype.itemsize):
        return meta
    name = dtype.name if meta.zarr_format == 3 else dtype.newbyteorder("<").str
    field = "data_type" if meta.zarr_format == 3 else "dtype"
    raw = {**meta.raw, field: name}
    if meta.zarr_format == 3 and "attributes" in raw:
        raw["attributes"] = convert_fill_attribute(raw["attributes"], known, dtype)
    return msgspec.structs.replace(meta, dtype=name, raw=raw)


def put_attributes(key: str, doc: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the metadata document, by key, in which the array with ``doc`` at ``key`` has these ``attributes``."""
    path, name = parent(key)
    if name == "zarr.json":
        return {key: {**doc, "attributes": dict(attributes)}}
    return {join(path, ".zattrs"): dict(attributes)}
