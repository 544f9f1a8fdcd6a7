"""Metadata of zarr version 2 converted to version 3, for the same bytes in the same chunks; by zarr-python's rules.

Filters on bytes may follow those on arrays, not the other way round. What version 3 has no name for is a ManifestError
that names the key. What xarray reads from metadata of version 2 is where it reads it from in version 3: the names of
dimensions, and the fill value as ``_FillValue``. No I/O here.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.core.keys import ChunkKeyEncoding
from refshard_fs.core.zarrmeta import array_meta, undecodable
from refshard_fs.errors import ManifestError

_DTYPE: Final = re.compile(r"[<>|=]?[biufcSUVmM][0-9]{1,10}(?:\[[0-9]{0,10}[a-zA-Zμ]+\])?")
_LONGEST_FILL: Final = 1 << 24  # bytes of a fill value that has to be spelled
_UNKNOWN: Final = frozenset(["float96", "float128", "complex192", "complex256"])
_ON_ARRAYS: Final = frozenset(["delta", "fixedscaleoffset", "quantize", "bitround", "packbits", "astype"])
ON_BYTES: Final = frozenset(
    ["shuffle", "zlib", "bz2", "lzma", "lz4", "crc32", "adler32", "fletcher32", "jenkins_lookup3"]
)
_SHUFFLES: Final[dict[Any, str]] = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}
_ENDIAN: Final = {">": "big", "<": "little", "=": "little"}

Named = dict[str, Any]  # a codec, a grid or the like, as version 3 spells it


class DataType(NamedTuple):
    """A data type as version 3 spells it, its zero as a fill value, and its byte order, if it has one."""

    name: str | Named
    zero: Any
    endian: str | None


def data_type(dtype: np.dtype[Any], where: str) -> DataType:
    """Return ``dtype`` as version 3 spells it; ManifestError, which begins with ``where``, if it cannot."""
    endian = _ENDIAN.get(dtype.str[0])
    if dtype.kind == "V" and dtype.itemsize > _LONGEST_FILL:
        raise ManifestError(f"{where}: zarr v3 spells a fill value of {dtype.itemsize} bytes; zarr_format=2 shows it")
    match dtype.kind:
        case "b" | "i" | "u" | "f" | "c" if dtype.name not in _UNKNOWN:
            return DataType(dtype.name, {"b": False, "c": [0.0, 0.0], "f": 0.0}.get(dtype.kind, 0), endian)
        case "S":
            return DataType(_named("null_terminated_bytes", length_bytes=dtype.itemsize), "", None)
        case "U":
            return DataType(_named("fixed_length_utf32", length_bytes=dtype.itemsize), "", endian)
        case "V" if dtype.names is None:
            return DataType(_named("raw_bytes", length_bytes=dtype.itemsize), _zeros(dtype.itemsize), None)
        case "V":
            # "structured" is what zarr 3.1 called it; later ones take it for their "struct".
            fields = list(_fields(dtype, where))
            return DataType(_named("structured", fields=fields), _zeros(dtype.itemsize), "little")
        case "M" | "m":
            unit, factor = np.datetime_data(dtype)
            name = "numpy.datetime64" if dtype.kind == "M" else "numpy.timedelta64"
            return DataType(_named(name, unit=unit, scale_factor=factor), 0, endian)
        case "O":  # text, which its first filter encodes
            return DataType("string", "", None)
    raise ManifestError(f"{where}: zarr v3 has no data type for {dtype}; zarr_format=2 shows it")


def _fields(dtype: np.dtype[Any], where: str) -> Iterator[list[Any]]:
    for name in dtype.names or ():
        if dtype[name].subdtype is not None:
            shape = dtype[name].shape
            raise ManifestError(f"{where}: zarr v3 has no field {name!r} of shape {shape}; zarr_format=2 shows it")
        field = data_type(dtype[name], where)
        if field.endian == "big":
            raise ManifestError(f"{where}: zarr v3 has no big-endian field {name!r}; zarr_format=2 shows it")
        yield [name, field.name]


def _zeros(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()


def _named(name: str, **configuration: Any) -> Named:
    return {"name": name, "configuration": configuration}


def group_3(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the version 3 metadata of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


def array_3(doc: Mapping[str, Any], attributes: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the version 3 metadata of the array whose ``.zarray`` (called ``key``) and attributes these are."""
    where = repr(key)
    meta = array_meta(doc, where)
    if meta is None or meta.grid is None or "shards" in doc:
        raise ManifestError(f"{where}: version 3 of zarr has no such shards or chunks")
    problem = undecodable(meta, key)
    if problem is not None:
        raise ManifestError(f"{where}: {problem}")
    dtype = _dtype(doc.get("dtype"), where)
    shown = dict(attributes)
    if doc.get("fill_value") is not None and (dtype.kind != "O" or doc["fill_value"] != 0):
        shown.setdefault("_FillValue", doc["fill_value"])
    try:
        if "_FillValue" in shown:
            shown["_FillValue"] = for_xarray(shown["_FillValue"], dtype)
        return version_3(
            {**doc, "chunks": [c or 1 for c in meta.chunks or ()]}, dtype, meta.grid.encoding, shown, where
        )
    except ManifestError:
        raise
    except (TypeError, ValueError, OverflowError) as e:
        raise ManifestError(f"{where}: its fill_value is no value of its dtype {doc.get('dtype')!r}: {e}") from e


def version_3(
    doc: Mapping[str, Any], dtype: np.dtype[Any], encoding: ChunkKeyEncoding, attributes: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Return the version 3 metadata of an array of ``dtype`` whose version 2 metadata is ``doc``.

    Raises TypeError, ValueError or OverflowError where its fill value is no value of its dtype.
    """
    found = data_type(dtype, where)
    shown = dict(attributes)
    names = shown.pop("_ARRAY_DIMENSIONS", None)
    if dtype.kind in "OUSVmM" and "_FillValue" in shown:  # xarray decodes it of numbers alone in version 3
        fill = shown.pop("_FillValue")
        if dtype.kind in "OU":
            shown.setdefault("missing_value", fill)
    out = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(doc["shape"]),
        "data_type": found.name,
        "chunk_grid": _named("regular", chunk_shape=list(doc["chunks"])),
        "chunk_key_encoding": _named(encoding.name, separator=encoding.separator),
        "fill_value": _fill_value(doc.get("fill_value"), dtype.kind, found.zero),
        "codecs": _codecs(doc, dtype, found.endian, where),
        "attributes": shown,
    }
    if isinstance(names, list) and len(names) == len(doc["shape"]):
        out["dimension_names"] = names
    return out


def _dtype(spelled: object, where: str) -> np.dtype[Any]:
    """Return a dtype that version 2 spells as text; names of fields are in none."""
    try:
        if isinstance(spelled, str) and _DTYPE.fullmatch(spelled):
            return np.dtype(spelled)
        if spelled == "|O":
            return np.dtype(object)  # which may be text: filters tell
    except (TypeError, ValueError, OverflowError):
        pass
    raise ManifestError(f"{where}: its dtype {str(spelled)[:80]!r} has no data type in version 3 of zarr")


def _codecs(doc: Mapping[str, Any], dtype: np.dtype[Any], endian: str | None, where: str) -> list[Named]:
    codecs: list[Named] = []
    if doc.get("order") == "F" and len(doc["shape"]) > 1:
        codecs.append(_named("transpose", order=list(range(len(doc["shape"])))[::-1]))
    filters: Sequence[Any] = doc.get("filters") or []
    if dtype.kind == "O":
        if not filters or not isinstance(filters[0], dict) or filters[0].get("id") != "vlen-utf8":
            raise ManifestError(f"{where}: its objects are no text, which alone version 3 of zarr has")
        codecs.append({"name": "vlen-utf8"})
        return codecs + [_on_bytes(c, dtype.itemsize, where) for c in (*filters[1:], doc.get("compressor")) if c]
    on_arrays = [f for f in filters if isinstance(f, dict) and f.get("id") in _ON_ARRAYS]
    if on_arrays != list(filters[: len(on_arrays)]):
        raise ManifestError(f"{where}: its filter {on_arrays[-1]['id']!r} follows one that makes bytes")
    codecs += [_numcodecs(f) for f in on_arrays]
    for codec in on_arrays:  # what a filter makes has an order of its own
        match codec:
            case {"encode_dtype": str(made)} | {"astype": str(made)} if made[:1] in ("<", ">", "|"):
                endian = _ENDIAN.get(made[0])
    codecs.append({"name": "bytes"} if endian is None else _named("bytes", endian=endian))
    compressor = doc.get("compressor")
    for codec in (*filters[len(on_arrays) :], *([compressor] if compressor is not None else [])):
        codecs.append(_on_bytes(codec, dtype.itemsize, where))
    return codecs


def _on_bytes(codec: Any, itemsize: int, where: str) -> Named:
    match codec:
        case {"id": "blosc", "cname": cname, "clevel": level, **rest}:
            shuffle = rest.get("shuffle", 1)
            if shuffle == -1:
                shuffle = 2 if itemsize == 1 else 1
            spelled = _SHUFFLES.get(shuffle, "shuffle") if isinstance(shuffle, int) else "shuffle"
            typesize, blocksize = rest.get("typesize", max(itemsize, 1)), rest.get("blocksize", 0)
            return _named("blosc", cname=cname, clevel=level, shuffle=spelled, typesize=typesize, blocksize=blocksize)
        case {"id": "gzip", **rest}:
            return _named("gzip", level=rest.get("level", 1))
        case {"id": "zstd", **rest}:
            return _named("zstd", level=rest.get("level", 0), checksum=bool(rest.get("checksum", False)))
        case {"id": str(name)} if name in ON_BYTES:
            return _numcodecs(codec)
    called = codec.get("id") if isinstance(codec, dict) else codec
    raise ManifestError(f"{where}: its codec {str(called)[:80]!r} has no name in version 3 of zarr")


def _numcodecs(codec: Mapping[str, Any]) -> Named:
    return _named(f"numcodecs.{codec['id']}", **{name: value for name, value in codec.items() if name != "id"})


def _fill_value(value: Any, kind: str, zero: Any) -> Any:
    """Return a fill value as version 3 spells it: the type's zero if version 2 has none."""
    if value is None:
        return zero
    match kind:
        case "b":
            return bool(value)
        case "i" | "u" | "m" | "M":
            return int(value)
        case "U" | "O":
            return value or ""
        case "S" | "V" if value in (0, ""):
            return zero
    return value


def for_xarray(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value as xarray spells it in the attributes of version 3: base64 of a double, or of two."""
    if dtype.kind == "c" and isinstance(value, list):
        return [for_xarray(part, np.dtype("f8")) for part in value]
    if dtype.kind != "f" or isinstance(value, list):
        return value
    number = float(value) if not isinstance(value, str) or value in ("NaN", "Infinity", "-Infinity") else None
    return value if number is None else base64.standard_b64encode(struct.pack("<d", number)).decode()


def of_xarray(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the fill value that xarray spells so in the attributes of version 3; what it does not, as it is."""
    if dtype.kind == "c" and isinstance(value, list):
        return [of_xarray(part, np.dtype("f8")) for part in value]
    if dtype.kind != "f" or not isinstance(value, str):
        return value
    try:
        return struct.unpack("<d", base64.standard_b64decode(value))[0]
    except (ValueError, struct.error):
        return value


def refilled(attributes: Mapping[str, Any], old: np.dtype[Any], new: np.dtype[Any]) -> dict[str, Any]:
    """Return the attributes of an array of version 3 whose dtype changes: xarray spells ``_FillValue`` by dtype."""
    if "_FillValue" not in attributes:
        return dict(attributes)
    return {**attributes, "_FillValue": for_xarray(of_xarray(attributes["_FillValue"], old), new)}
