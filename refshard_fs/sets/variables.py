"""The arrays of a reference set, with their attributes, dimensions, and such values as are at hand. No I/O here."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final, NamedTuple

import numcodecs
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_values import dtype_of, fill_of
from refshard_fs.core.columns import Row
from refshard_fs.core.keys import join, parent
from refshard_fs.core.keyspace import place
from refshard_fs.core.zarrmeta import ArrayMeta, check_blosc, undecodable, unsafe
from refshard_fs.errors import ManifestError
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import METADATA, Value, decode, object_in

__all__ = ["Known", "Named", "Variable", "decode_chunk", "digest", "inline_of", "values_at_hand", "variables"]

# ----------------------------------------------------------------------------------------------------
# The values in one chunk, where numpy and numcodecs are enough to know them. No I/O here.


# Make objects, as many as four bytes say, and no numbers.
_OBJECTS: Final = frozenset(["categorize", "json2", "msgpack2", "vlen-array", "vlen-bytes", "vlen-utf8"])


def decode_chunk(meta: ArrayMeta, data: bytes) -> npt.NDArray[Any] | None:
    """Return the values of a chunk, in its shape; None where its codecs or type are not known here.

    ValueError where the bytes are damaged.
    """
    dtype = dtype_of(meta)
    if dtype is None or meta.chunks is None or undecodable(meta, "") or unsafe(meta):
        return None
    pipeline = _version_2(meta.raw) if meta.zarr_format == 2 else _version_3(meta.raw)
    if pipeline is None:
        return None
    codecs, order = pipeline
    if order is not None:
        dtype = dtype.newbyteorder("<" if order == "little" else ">")
    decoded: Any = data
    try:
        for codec in codecs:
            if codec.codec_id == "blosc":
                check_blosc(bytes(decoded))
            decoded = codec.decode(decoded)
        flat = np.frombuffer(np.ascontiguousarray(decoded).view(np.uint8), dtype)
    except Exception as e:  # numcodecs' codecs raise what they like
        raise ValueError(f"a chunk cannot be decoded: {e}") from e
    if flat.size != math.prod(meta.chunks):
        raise ValueError(f"a chunk has {flat.size} elements, and chunks are of {meta.chunks}")
    return flat.reshape(meta.chunks, order=meta.order)


def _version_2(doc: Mapping[str, Any]) -> tuple[list[Any], None] | None:
    if "shards" in doc:
        return None
    configured = [*([doc["compressor"]] if doc.get("compressor") else []), *reversed(doc.get("filters") or [])]
    if any(codec.get("id") in _OBJECTS for codec in configured if codec is not None):
        return None
    try:
        return [numcodecs.get_codec(dict(codec)) for codec in configured], None
    except (ValueError, TypeError, KeyError):
        return None


def _version_3(doc: Mapping[str, Any]) -> tuple[list[Any], str | None] | None:
    order: str | None = None
    codecs: list[Any] = []
    for codec in doc.get("codecs") or []:
        match codec:
            case {"name": "bytes", "configuration": {"endian": "little" | "big" as endian}}:
                order = endian
            case "bytes" | {"name": "bytes"}:  # of elements of one byte
                order = "little"
            case {"name": "gzip" | "zstd" as name}:  # whatever the level
                codecs.append(numcodecs.get_codec({"id": name}))
            case {"name": "blosc"}:
                codecs.append(numcodecs.get_codec({"id": "blosc"}))
            case _:
                return None
    return list(reversed(codecs)), order


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
