"""NumPy dtypes as other software spells them, and as zarr's metadata does. Names are data: none of them is evaluated.

A dtype with objects is refused: its bytes would be pickles.
"""

from __future__ import annotations

import ast
import bz2
import importlib
import lzma
import math
import re
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from refshard_fs.core.zarrmeta import ArrayMeta, is_divided, shown, zarr_major
from refshard_fs.errors import ManifestError

LONGEST: Final = 1 << 16  # characters of a dtype's name
MOST_ELEMENTS: Final = 1 << 10  # of an array within a field
MOST_FIELDS: Final = 1 << 16  # of all arrays within fields, where each element is a field
_NATIVE = re.compile(r"[A-Za-z]")  # such names state no byte order


def parse_dtype(text: object, where: str, zarr_format: int) -> np.dtype[Any]:
    """Return the dtype whose ``str`` or ``descr`` is ``text``, as metadata of ``zarr_format`` shows its fields.

    A name that states no byte order is little-endian.
    """
    match text:
        case str() if 0 < len(text) <= LONGEST:
            pass
        case _:
            raise ManifestError(f"{where}: its 'dtype' is {shown(text)}, no name of a dtype")
    try:
        spelled = ast.literal_eval(text) if text[0] in "[{('\"" else text
        if is_divided(repr(spelled)):
            raise ValueError("it has a unit of time with a divisor")
        dtype = np.dtype(spelled)
        if _NATIVE.match(text):
            dtype = dtype.newbyteorder("<")
        if dtype.names is not None and not dtype.hasobject:
            dtype = with_single_fields(_without_gaps(dtype), zarr_format)
    except (ValueError, TypeError, SyntaxError, OverflowError, RecursionError, MemoryError, KeyError) as e:
        raise ManifestError(f"{where}: its 'dtype' is {shown(text)}: {e}") from None
    if dtype.hasobject:
        raise ManifestError(
            f"{where}: its 'dtype' is {shown(text)}: objects are stored as pickles, which are never read"
        )
    if not dtype.itemsize or dtype.subdtype is not None:
        raise ManifestError(f"{where}: its 'dtype' is {shown(text)}, which is no dtype of a single element")
    return dtype


def _without_gaps(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return ``dtype`` with its padding as fields of their own, as zarr's metadata can say it."""
    packed = np.dtype(_untitled(dtype.descr))
    if packed.itemsize != dtype.itemsize:
        raise ValueError("its fields do not lie one after the other")
    return packed


def _untitled(descr: list[Any]) -> list[Any]:
    """Return ``descr`` without titles, second names that zarr's metadata cannot say and that may be any object."""
    fields: list[Any] = []
    for name, of, *shape in descr:
        fields.append(
            (name[1] if isinstance(name, tuple) else name, _untitled(of) if isinstance(of, list) else of, *shape)
        )
    return fields


def _holds_arrays(dtype: np.dtype[Any]) -> bool:
    """Whether a field, at any depth, is an array."""
    fields = [dtype[name] for name in dtype.names or ()]
    return any(field.subdtype is not None or _holds_arrays(field) for field in fields)


def with_single_fields(dtype: np.dtype[Any], zarr_format: int) -> np.dtype[Any]:
    """Return ``dtype`` as readers of ``zarr_format`` take it: fields that are arrays may have to be many fields.

    ValueError where those would be too many.
    """
    if dtype.names is not None and _holds_arrays(dtype) and (zarr_format == 3 or (zarr_major() or 2) > 2):
        return _spread(dtype)
    return dtype


def _spread(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return ``dtype`` with each field that holds an array as one field per element: zarr-python 3 reads no others.

    No document opens in both: zarr-python 2 would take these fields, but they are not the dtype that was written. A
    field of very many elements stays as it is, for readers of version 2 metadata that take it.
    """
    if _spread_fields(dtype) > MOST_FIELDS:
        raise ValueError(f"its fields hold arrays of more than {MOST_FIELDS} elements in all")
    fields: list[tuple[str, Any]] = []
    for name in dtype.names or ():
        base, shape = dtype[name].subdtype or (dtype[name], ())
        if math.prod(shape) > MOST_ELEMENTS:
            fields.append((name, dtype[name]))
            continue
        single = base if base.names is None else _spread(base)
        fields += [(".".join([name, *map(str, at)]), single) for at in np.ndindex(shape)]
    return np.dtype(fields)


def _spread_fields(dtype: np.dtype[Any]) -> int:
    """Return how many fields there are, at all depths together, once each element of an array is one."""
    total = 0
    for name in dtype.names or ():
        base, shape = dtype[name].subdtype or (dtype[name], ())
        elements = math.prod(shape)
        total += 1 if elements > MOST_ELEMENTS else elements * (1 + _spread_fields(base))
    return total


# ----------------------------------------------------------------------------------------------------
# Types and missing values of arrays as numpy has them, and arrays of one chunk without a codec.


_NUMERIC: Final = "biufcmM"


def dtype_of(meta: ArrayMeta) -> np.dtype[Any] | None:
    """Return the type of an array's elements; None where numpy alone cannot read them."""
    name = f"<{meta.dtype}" if meta.zarr_format == 3 and meta.dtype in ("c8", "c16") else meta.dtype
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        return None
    return dtype if dtype.kind in _NUMERIC and (meta.zarr_format == 2 or dtype.kind in "biufc") else None


def fill_of(meta: ArrayMeta, dtype: np.dtype[Any]) -> Any:
    """Return the value of elements that are in no chunk; ValueError where that is no plain number."""
    fill = meta.raw.get("fill_value")
    if fill is None:
        return np.zeros((), dtype)[()]
    try:
        if dtype.kind in "mM":
            return np.array(int(fill)).astype("<i8").view(dtype)[()]
        if dtype.kind == "c" and isinstance(fill, list):
            real, imaginary = map(_number, fill)
            return np.array(complex(real, imaginary), dtype)[()]
        return np.array(_number(fill), dtype)[()]
    except (TypeError, ValueError, OverflowError) as e:
        raise ValueError(f"its fill_value is {fill!r}, no value of {dtype}: {e}") from e


def _number(fill: Any) -> Any:
    """Return a fill value, or one half of a complex one, of which JSON may have no number but a name."""
    if fill in ("NaN", "Infinity", "-Infinity"):
        return float(fill)
    if isinstance(fill, str):
        raise ValueError("it is text")  # noqa: TRY004  # one kind of error for all that is no value
    return fill


def plain(meta: ArrayMeta, values: npt.NDArray[Any]) -> tuple[dict[str, Any], bytes]:
    """Return the metadata of a one-dimensional array of ``values`` in one uncompressed chunk, and that chunk."""
    doc = plain_document(meta, len(values))
    if meta.zarr_format == 2:
        return doc, np.ascontiguousarray(values, np.dtype(meta.dtype)).tobytes()
    return doc, np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()


def plain_document(meta: ArrayMeta, count: int) -> dict[str, Any]:
    """Return the metadata of such an array of ``count`` elements."""
    doc = {**meta.raw, "shape": [count]}
    if meta.zarr_format == 2:
        return doc | {"chunks": [max(count, 1)], "compressor": None, "filters": None}
    doc["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [max(count, 1)]}}
    doc["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    return doc


# ----------------------------------------------------------------------------------------------------
# What decoding a chunk would make, found before it is made: no more than the metadata promise. No I/O here.
#
# Codecs make as much as the bytes say: a kilobyte of gzip may be a gigabyte, and four bytes are a count of two thousand
# million texts. Whoever decodes chunks of somebody else's set holds them against the size of a chunk first.


MOST: Final = 1 << 28  # bytes of a chunk that are decoded here; readers of the data decide for themselves
SLACK: Final = 1 << 16  # bytes that any chunk may have: filters add some
WIDEST: Final = 16  # bytes of a number: filters may have stored wider ones than those that are shown

_COUNTED: Final = frozenset(["vlen-utf8", "vlen-bytes", "vlen-array"])  # begin with how many there are
_AS_LONG: Final = frozenset(["bytes", "endian", "transpose", "shuffle", "bitround", "delta", "quantize", "zfpy"])


def check_chunk(meta: ArrayMeta, data: bytes) -> None:
    """Raise ValueError, which says how much it would be, where decoding ``data`` takes more than a chunk may."""
    count, most = promised(meta)
    codecs = _codecs(meta)
    for place, (name, codec) in enumerate(codecs):
        is_last = _COUNTED.isdisjoint(later for later, _ in codecs[place + 1 :])
        if name in _COUNTED:
            _check(int.from_bytes(data[:4], "little"), count, "texts")
        elif name == "crc32c":
            data = data[:-4]
        elif name in _MAKERS:
            if name == "lzma" and codec.get("format", lzma.FORMAT_XZ) not in (lzma.FORMAT_AUTO, lzma.FORMAT_XZ):
                raise ValueError("it is of a format of LZMA whose size cannot be told before it is made")
            data = _inflated(_MAKERS[name](), data, most)
        elif name in _TELL:
            made = _TELL[name](data)
            _check(made, most, "bytes")
            if made is None:
                data = _inflated(_zstd(), data, most)
            elif not is_last:
                data = _opened(name, data)
        elif name not in _AS_LONG:
            return  # nothing is known of it
        if is_last and name not in _AS_LONG and name != "crc32c":
            return


def promised(meta: ArrayMeta) -> tuple[int, int]:
    """Return how many elements a chunk has, and how many bytes it may have as it is stored; ValueError if too many."""
    count = math.prod(meta.chunks or ())
    try:
        size = np.dtype(meta.dtype).itemsize if meta.dtype != "|O" else None
    except (TypeError, ValueError):  # texts of any length, or a type of fields
        size = None
    if count * (size or 1) > MOST:
        raise ValueError(f"a chunk is of {count * (size or 1):,} bytes, and {MOST:,} are decoded here at most")
    return count, MOST if size is None else min(count * max(size, WIDEST) + SLACK, MOST)


def _codecs(meta: ArrayMeta) -> list[tuple[str, Mapping[str, Any]]]:
    """Return name and document of each codec, in the order in which they decode."""
    if meta.zarr_format == 3:
        given = list(meta.raw.get("codecs") or [])
    else:
        last = meta.raw.get("compressor")
        given = [*(meta.raw.get("filters") or []), *([] if last is None else [last])]
    found: list[tuple[str, Mapping[str, Any]]] = []
    for codec in reversed(given):
        document = codec if isinstance(codec, dict) else {}
        name = codec if isinstance(codec, str) else document.get("id", document.get("name", ""))
        found.append((str(name).removeprefix("numcodecs."), document))
    return found


def _check(made: int | None, most: int, what: str) -> None:
    if made is not None and made > most:
        raise ValueError(f"it says that it is {made:,} {what}, and a chunk has {most:,} at most")


def _inflated(decompressor: Any, data: bytes, most: int) -> bytes:
    try:
        out: bytes = decompressor.decompress(data, most + 1)
    except (zlib.error, lzma.LZMAError, OSError, EOFError) as e:
        raise ValueError(str(e)) from e
    if len(out) > most:
        raise ValueError(f"its {len(data):,} bytes make more than {most:,}, and a chunk has fewer")
    return out


def _zstd() -> Any:
    """Return a decompressor of frames that do not say their size."""
    try:
        return importlib.import_module(
            "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        ).ZstdDecompressor()
    except ImportError as e:
        raise ValueError("its frame of zstd does not say how much it makes: install backports.zstd to decode it") from e


def _blosc_size(data: bytes) -> int:
    return int.from_bytes(data[4:8], "little")


def _lz4_size(data: bytes) -> int:
    return int.from_bytes(data[:4], "little")


def _zstd_size(data: bytes) -> int | None:
    """Return the size of the content that a frame's header tells (RFC 8878, 3.1.1.1), if it does."""
    if data[:4] != b"\x28\xb5\x2f\xfd" or len(data) < 6:
        raise ValueError("it is no frame of zstd")
    descriptor = data[4]
    single, kind = descriptor >> 5 & 1, descriptor >> 6
    width = (single, 2, 4, 8)[kind]
    at = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    size = int.from_bytes(data[at : at + width], "little") + (256 if kind == 1 else 0)
    return size if width else None


def _opened(name: str, data: bytes) -> bytes:
    """Return what a compressor, which was seen to make no more than it may, makes."""
    import numcodecs  # slow to import

    return bytes(numcodecs.get_codec({"id": name}).decode(data))


_MAKERS: Final[Mapping[str, Callable[[], Any]]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "zlib": zlib.decompressobj,
    "bz2": bz2.BZ2Decompressor,
    "lzma": lambda: lzma.LZMADecompressor(memlimit=MOST),
}
_TELL: Final[Mapping[str, Callable[[bytes], int | None]]] = {
    "blosc": _blosc_size,
    "lz4": _lz4_size,
    "zstd": _zstd_size,
}
