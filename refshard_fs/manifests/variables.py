"""The arrays of a reference set, with their attributes, dimensions, and such values as are at hand. No I/O here."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs import zarrmeta
from refshard_fs.columns import Row
from refshard_fs.errors import ManifestError
from refshard_fs.keys import join, parent
from refshard_fs.keyspace import place
from refshard_fs.manifests.chunk_values import decode_chunk
from refshard_fs.manifests.plain_values import dtype_of, fill_of
from refshard_fs.manifests.reference_set import ReferenceSet
from refshard_fs.manifests.values import METADATA, Value, decode, object_in
from refshard_fs.zarrmeta import ArrayMeta

__all__ = ["Known", "Named", "Variable", "digest", "inline_of", "values_at_hand", "variables"]


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


MOST: Final = 1 << 24  # elements that are looked at together: shapes and chunks may be any numbers

# What is known of arrays: by the key and text of their metadata, and the text of their attributes.
Known = dict[tuple[str, Any, Any], Variable | None]


class Named(NamedTuple):
    """A set, its variables by path, and what it is called in errors."""

    name: str
    refs: ReferenceSet
    variables: dict[str, Variable]
    # Of chunks that were read to be compared, as many bytes as tell them apart (`digest`): by array and number.
    digests: Mapping[str, Mapping[int, bytes]] = {}


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


def digest(chunk: bytes) -> bytes:
    """Return what stands for a chunk's bytes, which may be many, where chunks are compared."""
    return hashlib.sha256(chunk).digest()


def inline_of(refs: ReferenceSet, where: str) -> dict[str, dict[int, bytes]]:
    """Return the chunks that are data, by array and number."""
    found: dict[str, dict[int, bytes]] = {}
    for key, value in refs.side.items():
        at = None if type(value) is Row or zarrmeta.is_metadata(key) else place(refs.grids, key)
        if at is not None and type(value) is not Row:
            try:
                found.setdefault(at.array, {})[at.number] = decode(value)
            except ValueError as e:
                raise ManifestError(f"{key!r} of {where}: {e}") from e
    return found


def values_at_hand(
    variable: Variable, refs: ReferenceSet, chunks: Mapping[int, bytes], where: str
) -> np.ndarray[Any, Any] | None:
    """Return the values of an array of at most one dimension.

    None where they are not all inline, not readable, or with what chunks hold beyond the array's end more than `MOST`.
    """
    meta = variable.meta
    table = refs.tables.get(variable.path)
    if table is None or len(table) or meta.chunks is None or len(meta.shape) > 1:
        return None
    dtype = dtype_of(meta)
    size = meta.chunks[0] if meta.chunks else 1
    room = -(-math.prod(meta.shape) // max(size, 1)) * size
    if dtype is None or room > MOST:
        return None
    try:
        out = np.full(room, fill_of(meta, dtype), dtype)
        for number, data in chunks.items():
            values = decode_chunk(meta, data)
            if values is None:
                return None
            out[number * size : (number + 1) * size] = values.reshape(-1)
    except ValueError as e:
        raise ManifestError(f"{variable.path!r} of {where}: {e}") from e
    return out[: math.prod(meta.shape)]
