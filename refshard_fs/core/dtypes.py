"""Parse names of NumPy dtypes, in the notations of zarr's metadata and other software, without evaluating code.

A dtype with objects is refused, because its bytes would be pickles. No I/O here.
"""

from __future__ import annotations

import ast
import base64
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from refshard_fs.core.zarrmeta import ArrayMeta, codecs_of, is_divided, shorten, zarr_major
from refshard_fs.errors import ManifestError

Padding = Literal["null-terminated", "null-padded", "space-padded"]  # HDF5's paddings of fixed-length strings

LONGEST: Final = 1 << 16  # the most characters of a dtype's name
MOST_ELEMENTS: Final = 1 << 10  # the most elements of an array in a field that become single fields
MOST_FIELDS: Final = 1 << 16  # the most fields of a dtype, after arrays in fields became single fields
_NATIVE = re.compile(r"[A-Za-z]")  # the first character of names without a byte order


def parse_dtype(text: object, where: str, zarr_format: int) -> np.dtype[Any]:
    """Parse the ``str`` or ``descr`` of a dtype; convert its fields to fields that ``zarr_format`` can hold.

    A name without a byte order means little-endian. Raises ManifestError, which begins with ``where``, if ``text`` is
    invalid.
    """
    if not isinstance(text, str) or not text:
        raise ManifestError(f"{where}: its 'dtype' is {shorten(text)}: expected the name of a dtype")
    if len(text) > LONGEST:
        raise ManifestError(f"{where}: its 'dtype' has {len(text)} characters: expected at most {LONGEST}")
    try:
        spelled = ast.literal_eval(text) if text[0] in "[{('\"" else text
        if is_divided(repr(spelled)):
            raise ValueError("expected a unit of time without a divisor")
        dtype = np.dtype(spelled)
        if _NATIVE.match(text):
            dtype = dtype.newbyteorder("<")
        if dtype.names is not None and not dtype.hasobject:
            dtype = replace_array_fields(_fill_gaps(dtype), zarr_format)
    except (ValueError, TypeError, SyntaxError, OverflowError, RecursionError, MemoryError, KeyError) as e:
        raise ManifestError(f"{where}: its 'dtype' is {shorten(text)}: {e}") from None
    if dtype.hasobject:
        raise ManifestError(
            f"{where}: its 'dtype' is {shorten(text)}: objects are stored as pickles, which are never read"
        )
    if not dtype.itemsize:
        raise ManifestError(f"{where}: its 'dtype' is {shorten(text)}: expected elements of at least one byte")
    if dtype.subdtype is not None:
        raise ManifestError(f"{where}: its 'dtype' is {shorten(text)}: expected single elements, found arrays")
    return dtype


def _fill_gaps(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return ``dtype`` with padding as extra fields, because zarr's metadata cannot express padding."""
    packed = np.dtype(_drop_titles(dtype.descr))
    if packed.itemsize != dtype.itemsize:
        raise ValueError("expected fields in ascending order that do not overlap")
    return packed


def _drop_titles(descr: list[Any]) -> list[Any]:
    """Remove titles, which are numpy's second names of fields, from ``descr``: zarr's metadata have no titles."""
    return [
        (name[1] if isinstance(name, tuple) else name, _drop_titles(of) if isinstance(of, list) else of, *shape)
        for name, of, *shape in descr
    ]


def _holds_arrays(dtype: np.dtype[Any]) -> bool:
    """Return whether a field, at any depth, is an array."""
    fields = [dtype[name] for name in dtype.names or ()]
    return any(field.subdtype is not None or _holds_arrays(field) for field in fields)


def replace_array_fields(dtype: np.dtype[Any], zarr_format: int) -> np.dtype[Any]:
    """Return ``dtype`` as the installed zarr can read it.

    zarr-python 3 cannot read fields with arrays: each becomes a field for each of its elements. zarr-python 2 can read
    them in metadata of version 2. Raises ValueError if there would be too many fields.
    """
    if dtype.names is not None and _holds_arrays(dtype) and (zarr_format == 3 or (zarr_major() or 2) > 2):
        return _spread(dtype)[0]
    return dtype


def _spread(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], int]:
    """Replace each field that is an array by a field for each element; return the dtype and the number of fields.

    A field of more than `MOST_ELEMENTS` elements stays: some readers of version 2 metadata accept it.
    """
    fields: list[tuple[str, Any]] = []
    total = 0
    for name in dtype.names or ():
        base, shape = dtype[name].subdtype or (dtype[name], ())
        elements = math.prod(shape)
        if elements > MOST_ELEMENTS:
            base, shape, elements = dtype[name], (), 1
        single, inner = (base, 0) if base.names is None else _spread(base)
        total += elements * (1 + inner)
        if total > MOST_FIELDS:
            raise ValueError(f"expected at most {MOST_FIELDS} fields after arrays become single fields, found more")
        fields += [(".".join([name, *map(str, at)]), single) for at in np.ndindex(shape)]
    return np.dtype(fields), total


_NUMERIC: Final = "biufcmM"
_TEXTS: Final = {
    "fixed_length_utf32": ("U", 4),
    "null_terminated_bytes": ("S", 1),
}  # numpy's kind, bytes of a character


def dtype_of(meta: ArrayMeta) -> np.dtype[Any] | None:
    """Return the type of an array of numbers, booleans or (in version 2) times; None for other arrays."""
    name = f"<{meta.dtype}" if meta.zarr_format == 3 and meta.dtype in ("c8", "c16") else meta.dtype
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        return None
    return dtype if dtype.kind in _NUMERIC and (meta.zarr_format == 2 or dtype.kind in "biufc") else None


def is_big_endian(meta: ArrayMeta) -> bool:
    """Return whether the elements of an array's chunks are big-endian."""
    if meta.zarr_format == 2:
        return meta.dtype.startswith(">")
    codecs = [codec for codec in meta.raw.get("codecs") or () if isinstance(codec, Mapping)]
    return any((codec.get("configuration") or {}).get("endian") == "big" for codec in codecs)


def itemsize_of(meta: ArrayMeta) -> int | None:
    """Return the size of an element in bytes, also of fixed-length text; None if numpy alone cannot read the type."""
    dtype = find_element_type(meta)
    return None if dtype is None else dtype.itemsize


def find_element_type(meta: ArrayMeta) -> np.dtype[Any] | None:
    """Return the type of an array's elements, also of fixed-length text; None if numpy alone cannot read them."""
    dtype = dtype_of(meta)
    match meta.raw.get("data_type", meta.raw.get("dtype")):
        case {"name": str(name), "configuration": {"length_bytes": int(size)}} if dtype is None and 0 < size < 1 << 22:
            kind, width = _TEXTS.get(name, ("", 1))
            return np.dtype(f"<{kind}{size // width}") if kind and size % width == 0 else None
        case str(name) if dtype is None and re.fullmatch(r"[<>|][US][1-9]\d{0,5}", name):
            return np.dtype(name)
    return dtype


def find_decoded_type(meta: ArrayMeta) -> np.dtype[Any] | None:
    """Return the type of an array's elements after decoding by this package: texts of any length are objects."""
    return np.dtype(object) if find_text_codec(meta) else find_element_type(meta)


def find_text_codec(meta: ArrayMeta) -> str | None:
    """Return the codec of texts or bytes of any length; None if the elements have one length."""
    is_text = meta.dtype in ("|O", "string", "bytes", "variable_length_bytes")
    match meta.raw.get("filters" if meta.zarr_format == 2 else "codecs"):
        case [{"id": str(name)}, *_] | [{"name": str(name)}, *_] | [str(name), *_] if is_text:
            return name if name in ("vlen-utf8", "vlen-bytes") else None
    return None


def holds_characters(*metas: ArrayMeta) -> bool:
    """Return whether all arrays have single characters, which xarray joins to texts along the last dimension."""
    return all(find_element_type(meta) == np.dtype("S1") for meta in metas)


def find_common_text_type(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Return a type for the texts of all ``dtypes``; None if one has no texts, or if bytes and texts are mixed."""
    kinds = {dtype.kind for dtype in dtypes}
    if kinds in ({"S"}, {"U"}):
        return max(dtypes, key=lambda dtype: dtype.itemsize).newbyteorder("<")
    return np.dtype(object) if kinds and kinds <= {"O", "U"} else None


def make_text_metadata(
    meta: ArrayMeta, dtype: np.dtype[Any], shape: Sequence[int], chunks: Sequence[int]
) -> dict[str, Any]:
    """Return the metadata of an array of texts with another type and ``shape``, in uncompressed ``chunks``."""
    doc = make_plain_document(meta, shape, chunks)
    codec = (find_text_codec(meta) or "vlen-utf8") if dtype.kind == "O" else None
    if meta.zarr_format == 2:
        return doc | {"dtype": dtype.str, "filters": [{"id": codec}] if codec else None}
    doc["data_type"] = make_text_document(dtype) if codec is None else "string"
    return doc | ({"codecs": [{"name": codec}], "fill_value": ""} if codec else {})


def make_text_document(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the data type of fixed-length text in metadata of zarr version 3."""
    name = next(name for name, (kind, _) in _TEXTS.items() if kind == dtype.kind)
    return {"name": name, "configuration": {"length_bytes": dtype.itemsize}}


LONG: Final = 1 << 20  # bytes: only longer chunks are checked here, because zarr refuses wrong lengths itself


def find_uncompressed_size(meta: ArrayMeta) -> int | None:
    """Return the size in bytes of each stored chunk; None if a codec of the array may change it."""
    size = itemsize_of(meta)
    if size is None or meta.chunks is None or "shards" in meta.raw:
        return None
    size *= math.prod(meta.chunks)
    for codec in codecs_of(meta):
        if codec == "crc32c":
            size += 4
        elif codec not in ("bytes", "endian", "transpose"):
            return None
    return size


def check_length(key: str, length: int | None, meta: ArrayMeta | None) -> None:
    """Raise ManifestError if the reference of ``key``, of ``length`` bytes, is longer than an uncompressed chunk.

    Without this check, a reference for a chunk of one byte could fetch gigabytes.
    """
    most = None if length is None or meta is None else find_uncompressed_size(meta)
    if most is not None and length is not None and length > most:
        raise ManifestError(
            f"{key!r}: its reference has {length} bytes: expected at most {most}, the size of an uncompressed chunk of "
            "its array. Make the set again"
        )


def parse_fill_value(meta: ArrayMeta, dtype: np.dtype[Any]) -> Any:
    """Return the fill value of an array; ValueError if it is not a value of ``dtype``."""
    fill = meta.raw.get("fill_value")
    if dtype.kind == "O":
        return b"" if find_text_codec(meta) == "vlen-bytes" else fill if isinstance(fill, str) else ""
    if fill is None:  # zarr 3 fills times with NaT
        return np.full((), "NaT", dtype)[()] if dtype.kind in "mM" else np.zeros((), dtype)[()]
    try:
        if dtype.kind == "U" and fill and not isinstance(fill, str):
            raise TypeError("it is not a text")
        if dtype.kind in "SU":
            return np.array(fill if dtype.kind == "U" else base64.b64decode(fill), dtype)[()] if fill else dtype.type()
        if dtype.kind == "c" and isinstance(fill, list):
            real, imaginary = map(_parse_number, fill)
            return np.array(complex(real, imaginary), dtype)[()]
        number = _parse_number(fill)
        if dtype.kind in "iumM" and number != int(number):
            raise ValueError("it has a fraction")
        if dtype.kind in "mM":
            return np.array(int(number), "<i8").view(dtype.newbyteorder("<"))[()]
        if dtype.kind in "iu" and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
            raise OverflowError("it is out of range")  # numpy 1 would wrap the number around
        return np.array(number, dtype)[()]
    except (TypeError, ValueError, OverflowError) as e:
        raise ValueError(f"its fill_value is {fill!r}: expected a value of {dtype}: {e}") from e


def _parse_number(fill: Any) -> Any:
    """Return a fill value, or a part of a complex one, as a number; NaN and infinities are texts in JSON."""
    if isinstance(fill, str) and fill in ("NaN", "Infinity", "-Infinity"):
        return float(fill)
    if not isinstance(fill, int | float):
        raise TypeError("it is not a number")
    return fill


def make_plain_array(meta: ArrayMeta, values: npt.NDArray[Any]) -> tuple[dict[str, Any], bytes]:
    """Return the metadata of an array of ``values`` in one uncompressed chunk, and the bytes of the chunk."""
    doc = make_plain_document(meta, values.shape)
    if meta.zarr_format == 2:
        return doc, np.ascontiguousarray(values, np.dtype(meta.dtype)).tobytes()
    return doc, np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()


def make_plain_document(meta: ArrayMeta, shape: Sequence[int], chunks: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the metadata of the array with another shape, in uncompressed ``chunks`` (by default in one chunk)."""
    doc = {**meta.raw, "shape": list(shape)}
    chunk_shape = list(chunks) if chunks is not None else [max(length, 1) for length in shape]
    codec = find_text_codec(meta)
    if meta.zarr_format == 2:
        filters = None if codec is None else [{"id": codec}]
        return doc | {"chunks": chunk_shape, "compressor": None, "filters": filters, "order": "C"}
    doc["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": chunk_shape}}
    doc["codecs"] = [{"name": codec}] if codec else [{"name": "bytes", "configuration": {"endian": "little"}}]
    return doc


def remove_padding(texts: npt.NDArray[Any], padding: Padding) -> npt.NDArray[Any]:
    """Replace the padding of fixed-length strings by zeros, which numpy expects.

    In space-padded strings, the spaces at the end are padding; in other strings, all bytes after the first zero.
    """
    size = texts.dtype.itemsize
    raw = np.ascontiguousarray(texts).view(np.uint8).reshape(*texts.shape, size)
    if padding == "space-padded":
        is_text = np.logical_or.accumulate((raw != 0x20)[..., ::-1], axis=-1)[..., ::-1]
    else:
        is_text = np.logical_and.accumulate(raw != 0, axis=-1)
    return np.where(is_text, raw, 0).astype(np.uint8).view(texts.dtype).reshape(texts.shape)
