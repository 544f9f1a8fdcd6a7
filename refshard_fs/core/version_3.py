"""Convert metadata of zarr version 2 to version 3, for the same bytes in the same chunks, by zarr-python's rules.

Filters on bytes may follow filters on arrays, but not precede them. If version 3 has no equivalent of a type or a
codec, a ManifestError names the array. The names of dimensions, and the fill value as ``_FillValue``, are put where
xarray looks for them in version 3. No I/O here.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.core.keys import ChunkKeyEncoding
from refshard_fs.core.zarrmeta import array_meta, find_decoding_problem
from refshard_fs.errors import ManifestError

_DTYPE: Final = re.compile(r"[<>|=]?[biufcSUVmM][0-9]{1,10}(?:\[[0-9]{0,10}[a-zA-Zμ]+\])?")
_LONGEST_FILL: Final = 1 << 24  # bytes: the longest fill value that is written to metadata
_UNKNOWN: Final = frozenset(["float96", "float128", "complex192", "complex256"])
_ON_ARRAYS: Final = frozenset(["delta", "fixedscaleoffset", "quantize", "bitround", "packbits", "astype"])
ON_BYTES: Final = frozenset(
    ["shuffle", "zlib", "bz2", "lzma", "lz4", "crc32", "adler32", "fletcher32", "jenkins_lookup3"]
)
_SHUFFLES: Final[dict[Any, str]] = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}
_ENDIAN: Final = {">": "big", "<": "little", "=": "little"}

_NOT_A_TIME: Final = -(1 << 63)  # numpy's NaT
# Advice for users who open a source, and for those who save a set in a format of version 3.
_KEEP_VERSION_2: Final = (
    "open the source with zarr_format=2, save the set as JSON or Parquet, or leave the array out: fs.select(drop=[...])"
)

Spec = dict[str, Any]  # a named configuration of version 3: a codec, a grid or the like


class DataType(NamedTuple):
    """A data type of version 3, its byte order, and the fill value that zarr-python uses for arrays without one."""

    name: str | Spec
    default: Any
    endian: str | None


def convert_data_type(dtype: np.dtype[Any], where: str) -> DataType:
    """Convert ``dtype`` to version 3; ManifestError, which begins with ``where``, if version 3 has no such type."""
    endian = _ENDIAN.get(dtype.str[0])
    if dtype.kind == "V" and dtype.itemsize > _LONGEST_FILL:
        raise ManifestError(
            f"{where}: zarr v3 would need a fill value of {dtype.itemsize} bytes in the metadata: {_KEEP_VERSION_2}"
        )
    match dtype.kind:
        case "b" | "i" | "u" | "f" | "c" if dtype.name not in _UNKNOWN:
            return DataType(dtype.name, {"b": False, "c": [0.0, 0.0], "f": 0.0}.get(dtype.kind, 0), endian)
        case "S":
            return DataType(_make_spec("null_terminated_bytes", length_bytes=dtype.itemsize), "", None)
        case "U":
            return DataType(_make_spec("fixed_length_utf32", length_bytes=dtype.itemsize), "", endian)
        case "V" if dtype.names is None:
            return DataType(_make_spec("raw_bytes", length_bytes=dtype.itemsize), _encode_zeros(dtype.itemsize), None)
        case "V":
            # zarr 3.1 calls this type "structured"; later versions call it "struct", and accept the old name.
            fields = list(_convert_fields(dtype, where))
            return DataType(_make_spec("structured", fields=fields), _encode_zeros(dtype.itemsize), "little")
        case "M" | "m":
            unit, factor = np.datetime_data(dtype)
            name = "numpy.datetime64" if dtype.kind == "M" else "numpy.timedelta64"
            return DataType(_make_spec(name, unit=unit, scale_factor=factor), _NOT_A_TIME, endian)
        case "O":  # text, encoded by the first filter
            return DataType("string", "", None)
    raise ManifestError(f"{where}: zarr v3 has no data type for {dtype}: {_KEEP_VERSION_2}")


def _convert_fields(dtype: np.dtype[Any], where: str) -> Iterator[list[Any]]:
    for name in dtype.names or ():
        if dtype[name].subdtype is not None:
            shape = dtype[name].shape
            raise ManifestError(
                f"{where}: zarr v3 has no fields with arrays, but {name!r} has shape {shape}: {_KEEP_VERSION_2}"
            )
        field = convert_data_type(dtype[name], where)
        if field.endian == "big":
            raise ManifestError(f"{where}: zarr v3 has no big-endian fields, but {name!r} is one: {_KEEP_VERSION_2}")
        yield [name, field.name]


def _encode_zeros(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()


def _make_spec(name: str, **configuration: Any) -> Spec:
    return {"name": name, "configuration": configuration}


def convert_group(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Make the version 3 metadata of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


def convert_array(doc: Mapping[str, Any], attributes: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Convert an array's ``.zarray`` (at ``key``) and attributes to version 3."""
    where = repr(key)
    meta = array_meta(doc, where)
    if meta is None or meta.grid is None or "shards" in doc:
        raise ManifestError(
            f"{where}: cannot be converted to version 3 of zarr: expected chunks of one size, no shards"
        )
    problem = find_decoding_problem(meta, key)
    if problem is not None:
        raise ManifestError(f"{where}: {problem}")
    dtype = _parse_dtype(doc.get("dtype"), where)
    shown = dict(attributes)
    if doc.get("fill_value") is not None and (dtype.kind != "O" or doc["fill_value"] != 0):
        shown.setdefault("_FillValue", doc["fill_value"])
    try:
        if "_FillValue" in shown:
            shown["_FillValue"] = encode_for_xarray(shown["_FillValue"], dtype)
        return convert_document(
            {**doc, "chunks": [c or 1 for c in meta.chunks or ()]}, dtype, meta.grid.encoding, shown, where
        )
    except ManifestError:
        raise
    except (TypeError, ValueError, OverflowError) as e:
        raise ManifestError(f"{where}: expected a fill_value of its dtype {doc.get('dtype')!r}: {e}") from e


def convert_document(
    doc: Mapping[str, Any], dtype: np.dtype[Any], encoding: ChunkKeyEncoding, attributes: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Convert the version 2 metadata ``doc`` of an array of ``dtype`` to version 3.

    Raises TypeError, ValueError or OverflowError if the fill value in ``doc`` is not a value of ``dtype``.
    """
    found = convert_data_type(dtype, where)
    shown = dict(attributes)
    names = shown.pop("_ARRAY_DIMENSIONS", None)
    if dtype.kind in "OUSVmM" and "_FillValue" in shown:  # in version 3, xarray decodes _FillValue only for numbers
        fill = shown.pop("_FillValue")
        if dtype.kind in "OU":
            shown.setdefault("missing_value", fill)
    out = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(doc["shape"]),
        "data_type": found.name,
        "chunk_grid": _make_spec("regular", chunk_shape=list(doc["chunks"])),
        "chunk_key_encoding": _make_spec(encoding.name, separator=encoding.separator),
        "fill_value": _convert_fill(doc.get("fill_value"), dtype.kind, found.default),
        "codecs": _convert_codecs(doc, dtype, found.endian, where),
        "attributes": shown,
    }
    if isinstance(names, list) and len(names) == len(doc["shape"]):
        out["dimension_names"] = names
    return out


def _parse_dtype(name: object, where: str) -> np.dtype[Any]:
    """Parse a dtype of version 2; ManifestError if version 3 has no such type."""
    try:
        found = _make_dtype(name)
    except (TypeError, ValueError, OverflowError, RecursionError):
        found = None
    if found is None:
        raise ManifestError(f"{where}: zarr v3 has no data type for the dtype {str(name)[:80]!r}: {_KEEP_VERSION_2}")
    return found


def _make_dtype(name: object) -> np.dtype[Any] | None:
    """Return the dtype that version 2 calls ``name``; None if version 3 has no such type."""
    match name:
        case "|O":
            return np.dtype(object)  # text, if the first filter encodes text
        case str() if _DTYPE.fullmatch(name):
            return np.dtype(name)
        case [_, *_]:
            fields = []
            for field in name:
                match field:
                    case [str(own), of, *shape] if own and of != "|O" and (dtype := _make_dtype(of)) is not None:
                        rest: list[Any] = shape
                        fields.append((own, dtype, *map(tuple, rest)))
                    case _:
                        return None
            return np.dtype(fields)
    return None


def _convert_codecs(doc: Mapping[str, Any], dtype: np.dtype[Any], endian: str | None, where: str) -> list[Spec]:
    codecs: list[Spec] = []
    if doc.get("order") == "F" and len(doc["shape"]) > 1:
        codecs.append(_make_spec("transpose", order=list(range(len(doc["shape"])))[::-1]))
    filters: Sequence[Any] = doc.get("filters") or []
    if dtype.kind == "O":
        if not filters or not isinstance(filters[0], dict) or filters[0].get("id") != "vlen-utf8":
            raise ManifestError(f"{where}: its dtype is '|O', but its first filter is not vlen-utf8: {_KEEP_VERSION_2}")
        codecs.append({"name": "vlen-utf8"})
        return codecs + [
            _convert_bytes_codec(c, dtype.itemsize, where) for c in (*filters[1:], doc.get("compressor")) if c
        ]
    on_arrays = [f for f in filters if isinstance(f, dict) and f.get("id") in _ON_ARRAYS]
    if on_arrays != list(filters[: len(on_arrays)]):
        raise ManifestError(
            f"{where}: its filter {on_arrays[-1]['id']!r}, on arrays, follows a filter on bytes, which zarr v3 does "
            f"not allow: {_KEEP_VERSION_2}"
        )
    codecs += [_make_numcodecs_spec(f) for f in on_arrays]
    for codec in on_arrays:  # the result of a filter has its own byte order
        match codec:
            case {"encode_dtype": str(encoded)} | {"astype": str(encoded)} if encoded[:1] in ("<", ">", "|"):
                endian = _ENDIAN.get(encoded[0])
    codecs.append({"name": "bytes"} if endian is None else _make_spec("bytes", endian=endian))
    compressor = doc.get("compressor")
    for codec in (*filters[len(on_arrays) :], *([compressor] if compressor is not None else [])):
        codecs.append(_convert_bytes_codec(codec, dtype.itemsize, where))
    return codecs


def _convert_bytes_codec(codec: Any, itemsize: int, where: str) -> Spec:
    match codec:
        case {"id": "blosc", "cname": cname, "clevel": level, **rest}:
            shuffle = rest.get("shuffle", 1)
            if shuffle == -1:
                shuffle = 2 if itemsize == 1 else 1
            spelled = _SHUFFLES.get(shuffle, "shuffle") if isinstance(shuffle, int) else "shuffle"
            typesize, blocksize = rest.get("typesize", max(itemsize, 1)), rest.get("blocksize", 0)
            return _make_spec(
                "blosc", cname=cname, clevel=level, shuffle=spelled, typesize=typesize, blocksize=blocksize
            )
        case {"id": "gzip", **rest}:
            return _make_spec("gzip", level=rest.get("level", 1))
        case {"id": "zstd", **rest}:
            return _make_spec("zstd", level=rest.get("level", 0), checksum=bool(rest.get("checksum", False)))
        case {"id": str(name)} if name in ON_BYTES:
            return _make_numcodecs_spec(codec)
    identifier = codec.get("id") if isinstance(codec, dict) else codec
    raise ManifestError(f"{where}: zarr v3 has no codec {str(identifier)[:80]!r}: {_KEEP_VERSION_2}")


def _make_numcodecs_spec(codec: Mapping[str, Any]) -> Spec:
    return _make_spec(f"numcodecs.{codec['id']}", **{name: value for name, value in codec.items() if name != "id"})


def _convert_fill(value: Any, kind: str, default: Any) -> Any:
    """Convert a fill value to version 3; None becomes ``default``, the default of its type."""
    if value is None:
        return default
    match kind:
        case "b":
            return bool(value)
        case "i" | "u" | "m" | "M":
            return int(value)
        case "U" | "O":
            return value or ""
        case "S" | "V" if value in (0, ""):
            return default
    return value


def encode_for_xarray(value: Any, dtype: np.dtype[Any]) -> Any:
    """Encode a fill value as xarray does in attributes of version 3: a float becomes the base64 text of a double.

    A complex number becomes a list of two base64 texts.
    """
    if dtype.kind == "c" and isinstance(value, list):
        return [encode_for_xarray(part, np.dtype("f8")) for part in value]
    if dtype.kind != "f" or isinstance(value, list):
        return value
    number = float(value) if not isinstance(value, str) or value in ("NaN", "Infinity", "-Infinity") else None
    return value if number is None else base64.standard_b64encode(struct.pack("<d", number)).decode()


def decode_from_xarray(value: Any, dtype: np.dtype[Any]) -> Any:
    """Decode a fill value that xarray encoded in attributes of version 3; return other values unchanged."""
    if dtype.kind == "c" and isinstance(value, list):
        return [decode_from_xarray(part, np.dtype("f8")) for part in value]
    if dtype.kind != "f" or not isinstance(value, str):
        return value
    try:
        return struct.unpack("<d", base64.standard_b64decode(value))[0]
    except (ValueError, struct.error):
        return value


def convert_fill_attribute(attributes: Mapping[str, Any], old: np.dtype[Any], new: np.dtype[Any]) -> dict[str, Any]:
    """Convert ``_FillValue`` in attributes of version 3 for a new dtype, since xarray encodes it by dtype."""
    if "_FillValue" not in attributes:
        return dict(attributes)
    return {**attributes, "_FillValue": encode_for_xarray(decode_from_xarray(attributes["_FillValue"], old), new)}
