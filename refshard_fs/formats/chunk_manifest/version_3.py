"""Array metadata of zarr version 2 as version 3, of the same bytes in the same chunks; by zarr-python's own rules.

Filters that work on bytes may be anywhere after those that work on arrays. What version 3 has no name for is a
ManifestError that names the key. What xarray reads from version 2 metadata is carried as it reads it from version 3:
names of dimensions, and the fill value as ``_FillValue``. No I/O here.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from refshard_fs.core.zarrmeta import array_meta, undecodable
from refshard_fs.errors import ManifestError

__all__ = ["array_3", "group_3"]

_NAMES: Final = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8", "u2": "uint16",
    "u4": "uint32", "u8": "uint64", "f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64",
    "c16": "complex128",
}  # fmt: skip
_DTYPE: Final = re.compile(r"([<>|=])?([biufcSUVmM])([0-9]{1,10})(?:\[([0-9]{0,10})([a-zA-Zμ]+)\])?")
_LONGEST_FILL: Final = 1 << 24  # bytes of a fill value that has to be spelled
_ON_ARRAYS: Final = frozenset(["delta", "fixedscaleoffset", "quantize", "bitround", "packbits", "astype"])
_ON_BYTES: Final = frozenset(
    ["shuffle", "zlib", "bz2", "lzma", "lz4", "crc32", "adler32", "fletcher32", "jenkins_lookup3"]
)
_SHUFFLES: Final[dict[Any, str]] = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}
_ENDIAN: Final = {">": "big", "<": "little", "=": "little"}

Codec = dict[str, Any]


class _Type(NamedTuple):
    """A data type of version 3, and how its bytes are ordered."""

    name: str | dict[str, Any]
    kind: str
    size: int
    endian: str | None


def group_3(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the version 3 metadata of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


def array_3(doc: Mapping[str, Any], attributes: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the version 3 metadata of the array whose ``.zarray`` (called ``key``) and attributes these are."""
    meta = array_meta(doc, repr(key))
    if meta is None or meta.grid is None or "shards" in doc:
        raise ManifestError(f"{key!r}: version 3 of zarr has no such shards or chunks")
    problem = undecodable(meta, key)
    if problem is not None:
        raise ManifestError(f"{key!r}: {problem}")
    dtype = _data_type(doc.get("dtype"), key)
    shown = dict(attributes)
    names = shown.pop("_ARRAY_DIMENSIONS", None)
    if doc.get("fill_value") is not None:
        shown.setdefault("_FillValue", doc["fill_value"])
    try:
        fill = _fill_value(doc.get("fill_value"), dtype)
        if "_FillValue" in shown:
            shown["_FillValue"] = _for_xarray(shown["_FillValue"], dtype)
    except (TypeError, ValueError, OverflowError) as e:
        raise ManifestError(f"{key!r}: its fill_value is no value of its dtype {doc.get('dtype')!r}: {e}") from e
    out = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(meta.shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [c or 1 for c in meta.chunks or ()]}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": meta.grid.encoding.separator}},
        "fill_value": fill,
        "codecs": _codecs(doc, dtype, len(meta.shape), key),
        "attributes": shown,
    }
    if isinstance(names, list) and len(names) == len(meta.shape):
        out["dimension_names"] = names
    return out


def _data_type(dtype: object, key: str) -> _Type:
    found = _DTYPE.fullmatch(dtype) if isinstance(dtype, str) else None
    if found is None:
        raise ManifestError(f"{key!r}: its dtype {str(dtype)[:80]!r} has no data type in version 3 of zarr")
    order, kind, digits, factor, unit = found.groups()
    size = int(digits)
    endian = _ENDIAN.get(order or "|")
    name: str | dict[str, Any] | None
    match kind:
        case "S":
            return _Type({"name": "null_terminated_bytes", "configuration": {"length_bytes": size}}, kind, size, None)
        case "V":
            return _Type({"name": "raw_bytes", "configuration": {"length_bytes": size}}, kind, size, None)
        case "U":
            name = {"name": "fixed_length_utf32", "configuration": {"length_bytes": 4 * size}}
        case "M" | "m" if size == 8:
            what = "numpy.datetime64" if kind == "M" else "numpy.timedelta64"
            scale = {"unit": unit or "generic", "scale_factor": int(factor or 1)}
            name = {"name": what, "configuration": scale}
        case _:
            name = _NAMES.get(f"{kind}{size}")
    if name is None:
        raise ManifestError(f"{key!r}: its dtype {dtype!r} has no data type in version 3 of zarr")
    return _Type(name, kind, size, endian if size > 1 or kind == "U" else None)


def _codecs(doc: Mapping[str, Any], dtype: _Type, ndim: int, key: str) -> list[Codec]:
    codecs: list[Codec] = []
    if doc.get("order") == "F" and ndim > 1:
        codecs.append({"name": "transpose", "configuration": {"order": list(range(ndim))[::-1]}})
    filters: Sequence[Any] = doc.get("filters") or []
    on_arrays = [f for f in filters if isinstance(f, dict) and f.get("id") in _ON_ARRAYS]
    if on_arrays != list(filters[: len(on_arrays)]):
        raise ManifestError(f"{key!r}: its filter {on_arrays[-1]['id']!r} follows one that makes bytes")
    codecs += [_numcodecs(f) for f in on_arrays]
    endian = dtype.endian
    for codec in on_arrays:  # what a filter makes has an order of its own
        match codec:
            case {"encode_dtype": str(made)} | {"astype": str(made)} if made[:1] in ("<", ">", "|"):
                endian = _ENDIAN.get(made[0])
    codecs.append({"name": "bytes"} if endian is None else {"name": "bytes", "configuration": {"endian": endian}})
    compressor = doc.get("compressor")
    for codec in (*filters[len(on_arrays) :], *([compressor] if compressor is not None else [])):
        codecs.append(_on_bytes(codec, dtype, key))
    return codecs


def _on_bytes(codec: Any, dtype: _Type, key: str) -> Codec:
    match codec:
        case {"id": "blosc", "cname": cname, "clevel": level, **rest}:
            shuffle = rest.get("shuffle", 1)
            if shuffle == -1:
                shuffle = 2 if dtype.size == 1 else 1
            configuration: Codec = {
                "cname": cname,
                "clevel": level,
                "shuffle": _SHUFFLES.get(shuffle, "shuffle") if isinstance(shuffle, int) else "shuffle",
                "typesize": max(dtype.size * (4 if dtype.kind == "U" else 1), 1),
                "blocksize": rest.get("blocksize", 0),
            }
            return {"name": "blosc", "configuration": configuration}
        case {"id": "gzip", **rest}:
            return {"name": "gzip", "configuration": {"level": rest.get("level", 1)}}
        case {"id": "zstd", **rest}:
            checksum = bool(rest.get("checksum", False))
            return {"name": "zstd", "configuration": {"level": rest.get("level", 0), "checksum": checksum}}
        case {"id": str(name)} if name in _ON_BYTES:
            return _numcodecs(codec)
    spelled = codec.get("id") if isinstance(codec, dict) else codec
    raise ManifestError(f"{key!r}: its codec {str(spelled)[:80]!r} has no name in version 3 of zarr")


def _numcodecs(codec: Mapping[str, Any]) -> Codec:
    return {"name": f"numcodecs.{codec['id']}", "configuration": {k: v for k, v in codec.items() if k != "id"}}


def _fill_value(value: Any, dtype: _Type) -> Any:
    """Return a fill value; where version 2 has none, the type's zero."""
    match dtype.kind:
        case "b":
            return bool(value)
        case "i" | "u" | "m" | "M":
            return int(value or 0)
        case "c":
            return value if value is not None else [0.0, 0.0]
        case "U":
            return value or ""
        case "S" | "V":
            if value is None or value == 0 or value == "":
                if dtype.kind == "V" and dtype.size > _LONGEST_FILL:
                    raise ValueError("it takes too many bytes")
                return base64.b64encode(bytes(dtype.size if dtype.kind == "V" else 0)).decode()
            return value
    return 0.0 if value is None else value


def _for_xarray(value: Any, dtype: _Type) -> Any:
    """Return a fill value as xarray spells it in the attributes of version 3: base64 of a double."""
    if dtype.kind != "f" or isinstance(value, list):
        return value
    number = float(value) if not isinstance(value, str) or value in ("NaN", "Infinity", "-Infinity") else None
    return value if number is None else base64.standard_b64encode(struct.pack("<d", number)).decode()
