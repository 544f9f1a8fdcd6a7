"""Zarr's metadata, versions 2 and 3: chunks and codecs of arrays, consolidated metadata, and the JSON. No I/O here.

Invalid metadata raise a ManifestError. Unknown features (another chunk grid or key encoding, an extension of zarr v3)
are not an error: such an array has no `ChunkGrid`, and its keys are not interpreted.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from itertools import accumulate
from typing import Annotated, Any, Final, Literal

import msgspec

from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding, check_key, is_key, join, parent
from refshard_fs.errors import ManifestError

version = cache(metadata.version)  # version of a package; cached, because reading it takes a third of a millisecond

# Names of metadata documents, of zarr's versions 3 and 2.
ARRAY_DOCUMENTS: Final = ("zarr.json", ".zarray")  # documents of an array
NODE_DOCUMENTS: Final = (*ARRAY_DOCUMENTS, ".zgroup")  # documents of an array or a group
CONSOLIDATED: Final = ".zmetadata"
METADATA_NAMES: Final = frozenset({*NODE_DOCUMENTS, ".zattrs", CONSOLIDATED})
_METADATA_ENDINGS: Final = tuple(METADATA_NAMES)

_DIVIDED: Final = re.compile(r"(?:[mM]8?|64)\[[^\]]*/\s*[-+]?[0-9]+\]")  # such as m8[s/0]
_FILLS: Final = ("missing_value", "_FillValue")  # attributes with which xarray compares values
_JSON: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
COUNTABLE: Final = 2**63  # elements along a dimension, and chunks in an array, must be fewer: they are 64-bit integers


def loads(data: bytes | str) -> Any:
    """Parse a JSON text; ValueError if it is invalid.

    Programs that write zarr produce bare ``NaN``, ``Infinity``, ``-Infinity``, control characters in strings and byte
    order marks, so these are accepted. Other invalid JSON is not: more lenient parsers read ``-`` as 0 and ``01`` as 1.
    """
    text = data if isinstance(data, str) else data.decode("utf-8")
    try:
        return json.loads(text.removeprefix("\ufeff"), strict=False)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply: expected fewer levels of objects and lists") from None


def object_in(data: bytes | str, where: str) -> dict[str, Any]:
    """Parse the JSON text of an object; ManifestError, which begins with ``where``, if it is invalid."""
    try:
        found = loads(data)
    except ValueError as e:
        raise ManifestError(f"{where} is not JSON: {e}") from e
    if not isinstance(found, dict):
        raise ManifestError(f"{where}: expected a JSON object, got {type(found).__name__}")
    return found


def dumps(obj: Any) -> bytes:
    """Encode ``obj`` as compact JSON in UTF-8, with bare ``NaN`` and ``Infinity``, which zarr reads.

    Raises ValueError if it is nested too deeply, and TypeError if JSON cannot express it.
    """
    try:
        return _JSON.encode(obj).encode()
    except UnicodeEncodeError:  # a lone surrogate, which has to be escaped
        return json.dumps(obj, separators=(",", ":")).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply for JSON") from None


def make_strict(document: bytes) -> bytes:
    """Return metadata as JSON that every reader accepts: see `replace_non_finite`."""
    if b"NaN" not in document and b"Infinity" not in document:
        return document
    return dumps(replace_non_finite(loads(document)))


def replace_non_finite(value: Any) -> Any:
    """Replace NaN and infinities in a JSON value by texts, as in zarr's fill values: JSON has no such numbers.

    Attributes with which xarray compares numbers keep their numbers: NaN is left out there, since xarray treats it as
    missing without an attribute, and infinities stay.
    """
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case dict():
            fills = {name: _drop_nan(value[name]) for name in _FILLS if name in value}
            kept = {name: of for name, of in value.items() if fills.get(name) != []}
            return {name: fills[name] if name in fills else replace_non_finite(of) for name, of in kept.items()}
        case list():
            return [replace_non_finite(element) for element in value]
    return value


def _drop_nan(value: Any) -> Any:
    """Return a number, or a list of numbers, without NaN; an empty list if nothing is left."""
    if isinstance(value, list):
        return [element for element in value if element == element]
    return value if value == value else []


def is_metadata(key: str) -> bool:
    """Return whether ``key`` names a metadata document of either version."""
    return key.endswith(_METADATA_ENDINGS) and key.rpartition("/")[2] in METADATA_NAMES


def is_node_name(name: str) -> bool:
    """Return whether an array or a group can have the name: one segment of a key, not a name of metadata."""
    return "/" not in name and "::" not in name and name not in METADATA_NAMES and is_key(name)


def is_array_document(key: str) -> bool:
    """Return whether ``key`` names a document that may describe an array."""
    return key.rpartition("/")[2] in ARRAY_DOCUMENTS


class ArrayMeta(msgspec.Struct, frozen=True):
    """Facts about the chunks of an array, from its metadata.

    ``chunks`` is the shape of a stored chunk (in a sharded array, of a shard); None if chunks differ in size, or the
    shape of chunks is unknown. ``grid`` is None if the chunk grid or the encoding of its keys is unknown. ``dtype`` is
    the text in the document, or JSON if it is not text there. ``raw`` is the document, which must not be changed.
    """

    zarr_format: Literal[2, 3]
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None
    grid: ChunkGrid | None
    dtype: str
    order: Literal["C", "F"]
    raw: Mapping[str, Any]


def array_meta(doc: Mapping[str, Any], where: str) -> ArrayMeta | None:
    """Parse a ``.zarray`` or ``zarr.json``; None for groups, and for versions other than 2 and 3.

    Raises ManifestError, which begins with ``where``, if the document breaks the specification of its version.
    """
    match doc:
        case {"zarr_format": 3, "node_type": "array"}:
            return _parse_version_3(doc, where)
        case {"zarr_format": 2, "shape": _} | {"zarr_format": 2, "chunks": _}:
            return _parse_version_2(doc, where)
    return None


def grid_of(doc: object) -> ChunkGrid | None:
    """Return the grid of the array with the metadata ``doc``, parsed or as JSON.

    Return None if the metadata are damaged, or have no known grid.
    """
    try:
        doc = loads(doc) if isinstance(doc, bytes) else doc
        meta = array_meta(doc, "its metadata") if isinstance(doc, Mapping) else None
    except ValueError:
        return None
    return None if meta is None else meta.grid


def describe_chunking(doc: Mapping[str, Any]) -> Any:
    """Return the part of an array's metadata that determines how its chunks are read, for comparison.

    The result leaves out the shape of the array, and the configurations of codecs, which programs write in different
    ways.
    """
    try:
        meta = array_meta(doc, "its metadata")
    except ValueError:
        return None
    if meta is None:
        return None
    encoding = None if meta.grid is None else meta.grid.encoding
    if meta.zarr_format == 3:
        codecs = _list_codec_names(doc.get("codecs"))
    else:
        codecs = _list_codec_names([doc.get("compressor"), *(doc.get("filters") or ())])
    others = sorted(name for name, value in doc.items() if value and name not in _STANDARD)
    return meta.zarr_format, meta.chunks, encoding, meta.dtype, meta.order, codecs, others


# fmt: off
_STANDARD: Final = frozenset([
    "zarr_format", "node_type", "shape", "chunks", "chunk_grid", "chunk_key_encoding", "dimension_separator", "dtype",
    "data_type", "order", "compressor", "filters", "codecs", "fill_value", "attributes", "dimension_names",
    "consolidated_metadata",
])
# fmt: on


def requires_extension(doc: Mapping[str, Any]) -> bool:
    """Return whether an array's metadata of version 3 have a member of an extension that readers must understand.

    Readers may ignore an unknown member only if it is an object whose ``must_understand`` is false.
    """
    others = [value for name, value in doc.items() if name not in _STANDARD and name != "storage_transformers"]
    return not all(isinstance(value, Mapping) and value.get("must_understand") is False for value in others)


def _list_codec_names(codecs: Any) -> Any:
    """Return the names of codecs of either version; for sharding also the shape and the codecs of inner chunks."""
    found: list[Any] = []
    for codec in codecs if isinstance(codecs, list) else ():
        match codec:
            case {"name": "sharding_indexed" as name, "configuration": {"chunk_shape": shape, "codecs": inner}}:
                found.append((name, shape, _list_codec_names(inner)))
            case {"name": name} | {"id": name}:
                found.append(name)
            case other:
                found.append(other)
    return found


class _Plain(msgspec.Struct, gc=False):
    """The members of a ``.zarray`` that define the grid. Decoding raises an error if they have unusual values."""

    zarr_format: Literal[2]
    shape: list[Annotated[int, msgspec.Meta(ge=0, le=COUNTABLE - 1)]]
    chunks: list[Annotated[int, msgspec.Meta(ge=1, le=COUNTABLE - 1)]]
    dtype: str
    order: Literal["C", "F"] = "C"
    dimension_separator: Literal[".", "/"] | None = "."
    shards: Any = msgspec.UNSET


_plain = msgspec.json.Decoder(_Plain)
_ENCODINGS: Final = {separator: ChunkKeyEncoding("v2", separator or ".") for separator in (".", "/", None)}


def parse_plain_grid(text: str) -> ChunkGrid | None:
    """Return the grid of a ``.zarray`` with usual values, ten times faster than `grid_of`; None for other values."""
    try:
        found = _plain.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    shape, chunks = found.shape, found.chunks
    if len(shape) != len(chunks) or found.shards is not msgspec.UNSET or "/" in found.dtype:
        return None
    counts = tuple([-(-extent // chunk) for extent, chunk in zip(shape, chunks)])  # noqa: B905  # checked above
    return ChunkGrid(counts, _ENCODINGS[found.dimension_separator]) if math.prod(counts) < COUNTABLE else None


def iterate_consolidated_arrays(
    doc: Mapping[str, Any], where: str = "consolidated metadata"
) -> Iterator[tuple[str, Any]]:
    """Yield path and metadata of each array in consolidated metadata, once: see `iterate_consolidated_nodes`."""
    seen: set[str] = set()
    for path, _, content, is_array in iterate_consolidated_nodes(doc, where):
        if is_array and path not in seen:
            seen.add(path)
            yield path, content


def iterate_consolidated_nodes(
    doc: Mapping[str, Any], where: str = "consolidated metadata"
) -> Iterator[tuple[str, str, Any, bool]]:
    """Yield (path, name, content, is_array) of each document in a ``.zmetadata`` or a group's ``zarr.json``.

    ``is_array`` says whether the document describes an array. ``zarr.json`` and ``.zarray`` must be JSON objects; other
    documents are not checked. Groups in metadata of version 3 may have their own consolidated metadata. Raises
    ManifestError for an invalid key, and for a ``zarr.json`` or a ``.zarray`` that is not an object.
    """
    pending = [("", doc)]
    while pending:
        base, holder = pending.pop()
        inline = holder.get("consolidated_metadata")
        version_3 = holder.get("zarr_format") == 3
        if version_3 and inline is None:
            continue
        members = _parse_object(_parse_object(inline if version_3 else holder, where).get("metadata", {}), where)
        for key, value in members.items():
            path, name = (key, "zarr.json") if version_3 else parent(key)
            path = join(base, path)
            try:
                check_key(path if version_3 else key)
            except ValueError as e:
                raise ManifestError(f"{key[:1000]!r} in {where}: {e}") from e
            is_node = name in ARRAY_DOCUMENTS
            content = _parse_object(value, f"{key!r} in {where}") if is_node else value
            is_array = is_node and (name == ".zarray" or content.get("node_type") == "array")
            yield path, name, content, is_array
            if name == "zarr.json" and path and not is_array:
                pending.append((path, content))


def _parse_object(value: object, where: str) -> Mapping[str, Any]:
    """Return a JSON object; parse ``value`` if it is a text."""
    if isinstance(value, str):
        return object_in(value, where)
    if not isinstance(value, Mapping):
        raise ManifestError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value


def _parse_version_2(doc: Mapping[str, Any], where: str) -> ArrayMeta:
    shape = check_integers(doc.get("shape"), "shape", where)
    chunks = _parse_chunks(doc.get("chunks"), "chunks", shape, where)
    if "shards" in doc:  # in the prototype of sharding for v2, the number of inner chunks per shard
        shards = _parse_chunks(doc["shards"], "shards", shape, where)
        chunks = tuple(chunk * shard for chunk, shard in zip(chunks, shards, strict=True))
    separator = doc.get("dimension_separator")
    encoding = _make_encoding("v2", "." if separator is None else separator, "dimension_separator", where)
    order = doc.get("order", "C")
    if order not in ("C", "F"):
        raise ManifestError(f"{where}: its order is {shorten(order)}: expected 'C' or 'F'")
    grid = _make_grid(shape, tuple(map(_count_equal_chunks, shape, chunks)), encoding, where)
    return ArrayMeta(2, shape, chunks, grid, _parse_dtype(doc.get("dtype"), "dtype", where), order, doc)


def _parse_version_3(doc: Mapping[str, Any], where: str) -> ArrayMeta:
    shape = check_integers(doc.get("shape"), "shape", where)
    dtype = _parse_dtype(doc.get("data_type"), "data_type", where)
    chunks, counts = _parse_chunk_grid(doc.get("chunk_grid"), shape, where)
    encoding = _parse_key_encoding(doc.get("chunk_key_encoding"), where)
    grid = None if counts is None or encoding is None else _make_grid(shape, counts, encoding, where)
    return ArrayMeta(3, shape, chunks, grid, dtype, "C", doc)


def _make_grid(shape: tuple[int, ...], counts: tuple[int, ...], encoding: ChunkKeyEncoding, where: str) -> ChunkGrid:
    if math.prod(counts) >= COUNTABLE:
        raise ManifestError(
            f"{where}: its shape {shorten(list(shape))} has too many chunks: expected fewer than 2**63 chunks"
        )
    return ChunkGrid(counts, encoding)


def _count_equal_chunks(extent: int, chunk: int) -> int:
    return -(-extent // chunk) if chunk else 0


def _parse_chunk_grid(
    spec: object, shape: tuple[int, ...], where: str
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Return the shape of chunks (None if it varies or is unknown), and their count per dimension (None if unknown)."""
    match spec:
        case {"name": "regular", "configuration": {"chunk_shape": chunk_shape}}:
            chunks = _parse_chunks(chunk_shape, "chunk_shape", shape, where)
            return chunks, tuple(map(_count_equal_chunks, shape, chunks))
        case {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [*edges]}}:
            if len(edges) != len(shape):
                raise ManifestError(
                    f"{where}: its chunk_shapes have {len(edges)} dimensions: expected {len(shape)}, as its shape"
                )
            counts = tuple(
                _count_unequal_chunks(edge, extent, where) for edge, extent in zip(edges, shape, strict=True)
            )
            return None, counts
        case {"name": "rectilinear", "configuration": {"kind": str(kind)}} if kind != "inline":
            return None, None
        case {"name": "regular" | "rectilinear"}:
            raise ManifestError(
                f"{where}: its chunk_grid is {shorten(spec)}: expected a configuration with chunk shapes"
            )
        case {"name": str()} | str():
            return None, None
    raise ManifestError(f"{where}: its chunk_grid is {shorten(spec)}: expected an object with a name")


def _count_unequal_chunks(edges: object, extent: int, where: str) -> int:
    """Return the number of chunks that cover ``extent``.

    ``edges`` is one length of all chunks, or a list of lengths and of pairs [length, repeats].
    """
    match edges:
        case [_, *_]:
            covered = chunks = 0
            for entry in edges:
                edge, repeats = entry if isinstance(entry, list | tuple) and len(entry) == 2 else (entry, 1)
                size, times = check_integer(edge, "chunk_shapes", where), check_integer(repeats, "chunk_shapes", where)
                if not size or not times:
                    raise ManifestError(
                        f"{where}: its chunk_shapes contain {shorten(entry)}: expected positive numbers"
                    )
                chunks += min(times, max(0, -((covered - extent) // size)))
                covered += size * times
            if covered < extent:
                raise ManifestError(f"{where}: its chunk_shapes cover {covered} elements: expected at least {extent}")
            return chunks
    return _count_equal_chunks(extent, _parse_chunks([edges], "chunk_shapes", (extent,), where)[0])


def _parse_key_encoding(spec: object, where: str) -> ChunkKeyEncoding | None:
    match spec:
        case None | "default":
            return ChunkKeyEncoding("default", "/")
        case "v2":
            return ChunkKeyEncoding("v2", ".")
        case {"name": "default" | "v2" as name, **rest}:
            match rest:
                case {"configuration": {"separator": separator}} | {"separator": separator}:
                    return _make_encoding(name, separator, "chunk_key_encoding", where)
            return _parse_key_encoding(name, where)
        case {"name": str()} | str():
            return None
    raise ManifestError(f"{where}: its chunk_key_encoding is {shorten(spec)}: expected an object with a name")


def _make_encoding(name: Literal["default", "v2"], separator: object, field: str, where: str) -> ChunkKeyEncoding:
    if separator in (".", "/"):
        return ChunkKeyEncoding(name, str(separator))
    raise ManifestError(f"{where}: its {field} has the separator {shorten(separator)}: expected '.' or '/'")


def _parse_chunks(value: object, field: str, shape: tuple[int, ...], where: str) -> tuple[int, ...]:
    chunks = check_integers(value, field, where)
    if len(chunks) != len(shape):
        raise ManifestError(f"{where}: its {field} has {len(chunks)} dimensions: expected {len(shape)}, as its shape")
    for chunk, extent in zip(chunks, shape, strict=True):
        if not chunk and extent:  # some writers give an empty dimension chunks of 0
            raise ManifestError(f"{where}: its {field} is 0 for a dimension of {extent} elements: expected 1 or more")
    return chunks


def check_integers(value: object, field: str, where: str) -> tuple[int, ...]:
    """Check a list of integers; return it as a tuple."""
    match value:
        case [*items]:
            return tuple(check_integer(item, field, where) for item in items)
    raise ManifestError(f"{where}: its {field} is {shorten(value)}: expected a list of integers")


def check_integer(value: object, field: str, where: str, least: int = 0) -> int:
    """Check an integer from ``least`` to 2**63 - 1; return it."""
    match value:
        case bool():
            pass
        case int() if least <= value < COUNTABLE:
            return value
        case float() if value.is_integer() and least <= value < 2**53:  # programs in JavaScript or pandas may write 5.0
            return int(value)
    raise ManifestError(f"{where}: its {field} contains {shorten(value)}: expected an integer from {least} to 2**63-1")


def is_divided(dtype: str) -> bool:
    """Return whether a dtype's name has a unit of time with a divisor, such as ``m8[s/0]``, which crashes numpy."""
    return _DIVIDED.search(dtype) is not None


def _parse_dtype(value: object, field: str, where: str) -> str:
    text = value
    match value:
        case {"name": str()} | [_, *_]:
            text = dumps(value).decode()
    if isinstance(text, str):
        if is_divided(text):  # numpy never writes such names, and may crash when it parses one
            raise ManifestError(f"{where}: its {field} is {shorten(value)}: expected a unit of time without a divisor")
        return text
    raise ManifestError(f"{where}: its {field} is {shorten(value)}: expected the name of a data type")


def shorten(value: object) -> str:
    """Return a value of a JSON document as a short text for errors."""
    if value is None:
        return "missing"
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "a huge integer"
    return text if len(text) <= 100 else f"{text[:100]}..."


# The codecs of an array: whether they are known and safe.


_CODECS: Final = ("codecs", "compressor", "filters")
_PICKLES: Final = ("pickle", "numcodecs.pickle")

# VirtualiZarr 1.0.0 writes version 2's filters as codecs, or null, and leaves out the compressor, the order and
# (mostly) the fill value, so that chunks cannot be decoded. This text takes the place of a codec's name, because zarr
# names an unknown codec in its error.
_LOST: Final = (
    "missing: its writer (VirtualiZarr 1.0.0?) did not store how the chunks of array %r are encoded; if you know it, "
    "put codecs and fill_value into its zarr.json"
)
_UNKNOWN: Final = "?"


def make_lost_codec(path: str) -> dict[str, Any]:
    """Return a codec whose name says that the writer of the array ``path`` left out its codecs."""
    return {"name": _LOST % path}


def is_codec_list(codecs: object) -> bool:
    """Return whether ``codecs`` is a list of codecs of version 3, and not null or filters of version 2."""
    if not isinstance(codecs, list | tuple) or not codecs:
        return False
    return all(isinstance(codec.get("name") if isinstance(codec, dict) else codec, str) for codec in codecs)


def find_transformer_problem(doc: Mapping[str, Any]) -> str | None:
    """Return an error text if the array has storage transformers, so that its chunks are unknown; else None."""
    found = doc.get("storage_transformers")
    return (
        f"its storage_transformers are {_shorten_json(found)}: expected none, since none are supported"
        if found
        else None
    )


def find_decoding_problem(meta: ArrayMeta, path: str) -> str | None:
    """Return an error text if the metadata of the array ``path`` do not say how its chunks are encoded; else None."""
    if meta.zarr_format == 3:
        codecs = meta.raw.get("codecs")
        if codecs == [make_lost_codec(path)]:
            return f"its codecs are {_LOST % path}"
        if not is_codec_list(codecs):
            return f"its codecs are {_shorten_json(codecs)}: expected a list of codecs with names"
        return find_transformer_problem(meta.raw)
    for member, codecs in (("compressor", [meta.raw.get("compressor")]), ("filters", meta.raw.get("filters") or [])):
        names = [
            codec.get("id") if isinstance(codec, dict) else None for codec in _as_list(codecs) if codec is not None
        ]
        if not isinstance(codecs, list) or not all(isinstance(name, str) for name in names):
            return f"its member '{member}' is {_shorten_json(meta.raw[member])}: expected codecs with an 'id'"
    return None


def find_safety_problem(meta: ArrayMeta) -> str | None:
    """Return an error text if decoding the chunks of an array would be unsafe; else None."""
    pending = [meta.raw.get(member) for member in _CODECS]
    while pending:
        match pending.pop():
            case str(text) if is_divided(text):
                return f"its codecs have the data type {text[:100]!r}, which can crash numpy: expected no divisor"
            case {**members}:
                if any(members.get(name) in _PICKLES for name in ("id", "name")):
                    return "its chunks are pickles, which may run code: they are never read"
                pending += members.values()
            case [*items]:
                pending += items
    return None


def uses_pickle(document: bytes) -> bool:
    """Return whether ``document``, metadata of an array or consolidated metadata, has a codec that unpickles chunks.

    Some readers unpickle even the fill value, when they open the array.
    """
    if not may_use_pickle(document):
        return False
    try:
        pending: list[Any] = [json.loads(document)]  # the parser that zarr uses; others refuse NaN
    except ValueError:  # no reader accepts the document
        return False
    except RecursionError:
        return True
    while pending:
        match pending.pop():
            case {**members} if any(members.get(name) in _PICKLES for name in ("id", "name")):
                return True
            case {**members}:
                pending += [value for name, value in members.items() if not _is_attributes(str(name))]
            case [*items]:
                pending += items
    return False


def is_nested_deeply(document: bytes) -> bool:
    """Return whether brackets in ``document`` are nested too deeply for zarr's parsers, which recurse."""
    if document.count(b"[") + document.count(b"{") <= _DEEPEST:
        return False
    brackets = document.translate(None, _NO_BRACKETS)  # with brackets in strings: these are left out below
    for _ in range(_DEEPEST // 2):  # each step removes one or two of the innermost levels
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not brackets:
            return False
    steps = map(_STEPS.__getitem__, b"".join(_BRACKET.findall(document)))
    return max(accumulate(steps), default=0) > _DEEPEST


_DEEPEST: Final = 200  # levels of nested brackets; Python's recursion limit is 1,000 by default
_STEPS: Final = dict(zip(b"[{]}", (1, 1, -1, -1), strict=True))
_NO_BRACKETS: Final = bytes(set(range(256)) - _STEPS.keys())
_BRACKET: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|([][{}])', re.DOTALL)


def may_use_pickle(document: bytes) -> bool:
    """Return whether a document may name a pickle codec, so that `uses_pickle` has to parse it."""
    return any(mark in document for mark in (b"pickle", b"\\u", b"\0"))  # the name may have escapes, or be in UTF-16


def _is_attributes(member: str) -> bool:
    return member == "attributes" or member.rpartition("/")[2] == ".zattrs"


def list_codec_documents(meta: ArrayMeta) -> list[Any]:
    """Return the codecs in an array's metadata, in the order in which they encode."""
    if meta.zarr_format == 3:
        return _as_list(meta.raw.get("codecs"))
    last = meta.raw.get("compressor")
    return [*_as_list(meta.raw.get("filters") or []), *([] if last is None else [last])]


def codecs_of(meta: ArrayMeta) -> tuple[str, ...]:
    """Return the names of an array's codecs in the order in which they encode, codecs of inner chunks in brackets."""
    return tuple(map(_find_codec_name, list_codec_documents(meta)))


def _shorten_json(value: Any) -> str:
    return dumps(value).decode()[:100]


def _as_list(codecs: Any) -> list[Any]:
    return codecs if isinstance(codecs, list) else [codecs]


def _find_codec_name(codec: Any) -> str:
    match codec:
        case {"name": "sharding_indexed", "configuration": {"codecs": [*inner]}}:
            return f"sharding_indexed[{', '.join(map(_find_codec_name, inner))}]"
        case {"name": str(name), "configuration": {"cname": str(kind)}} | {"id": str(name), "cname": str(kind)}:
            return f"{name}({kind})"
        case {"name": str(name)} | {"id": str(name)} | str(name):
            return _UNKNOWN if " " in name else name  # see `make_lost_codec`
    return _UNKNOWN


# The version of zarr that reads our metadata: the imported zarr, or else the installed one.


def zarr_major() -> int | None:
    """Return the first number of zarr's version, such as 3; None if zarr is not installed."""
    found = getattr(sys.modules.get("zarr"), "__version__", None)
    try:
        major = (found if isinstance(found, str) else version("zarr")).partition(".")[0]
    except PackageNotFoundError:
        return None
    return int(major) if major.isdecimal() else None


def dimension_names(meta: ArrayMeta, attributes: bytes | None) -> tuple[str, ...]:
    """Return the names of an array's dimensions, "" for a dimension without a name; () if the metadata have no names.

    ``attributes`` is the text of the array's ``.zattrs``, where xarray writes the names in version 2.
    """
    names = meta.raw.get("dimension_names")
    if names is None and attributes is not None:
        try:
            found = loads(attributes)
        except ValueError:
            return ()
        names = found.get("_ARRAY_DIMENSIONS") if isinstance(found, dict) else None
    if not isinstance(names, list) or len(names) != len(meta.shape):
        return ()
    return tuple(name if isinstance(name, str) else "" for name in names)
