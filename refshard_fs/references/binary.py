"""Encode a reference set as bytes: compressed for a pickle, or uncompressed for the index cache. No I/O here.

The bytes are: a magic and the version; the length of the whole, as a u64, and of the header, as a u32, both
little-endian; the header, as msgpack; and the columns. Uncompressed columns begin at multiples of 64 bytes, and have no
checksums: the index cache has its own. Compressed columns are compressed by blosc, some of them as differences between
neighbouring values. Each part of them has a checksum, because some damaged bytes make blosc end the process. Decoding
raises ValueError for damaged bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Ranges, Row, Texts
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.references.key_table import KeyTable, Value
from refshard_fs.references.pieces import Buffer
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.security.origins import Origins

Bytes: TypeAlias = bytes | memoryview
Column: TypeAlias = npt.NDArray[Any]

VERSION: Final = 7
_MAGIC: Final = b"refshard index" + VERSION.to_bytes(2, "little")
_FIXED: Final = struct.Struct("<16sQI")
_ALIGN: Final = 64  # bytes
_CHECK: Final = struct.Struct("<I")  # a CRC-32, before each part of a compressed column
_SIZE: Final = struct.Struct("<II")  # the beginning of blosc's header: versions and flags, decompressed size
BLOCK: Final = 1 << 30  # bytes that are compressed at a time; blosc takes less than 2 GiB

# The columns in their order: the URLs, the tables of all arrays, joined, the key table, and the pins. Each has a type,
# and whether the differences between its values are compressed in place of the values.
_U1, _U4, _U8 = np.dtype("<u1"), np.dtype("<u4"), np.dtype("<u8")
_COLUMNS: Final[dict[str, tuple[np.dtype[Any], bool]]] = {
    "urls": (_U1, False),
    "url_ends": (_U8, True),
    "targets": (_U4, True),
    "offsets": (_U8, True),
    "lengths": (_U8, False),
    "numbers": (_U8, True),  # of chunks in sparse tables
    "keys": (_U1, False),
    "key_ends": (_U8, True),
    "key_targets": (_U4, True),
    "key_offsets": (_U8, True),
    "key_lengths": (_U8, False),
    "data": (_U1, False),
    "index": (_U8, False),  # empty in a pickle: each process has its own hashes
    "etags": (_U1, False),
    "etag_ends": (_U8, True),
    "times": (_U1, False),
    "time_ends": (_U8, True),
    "sizes": (_U8, False),
}


class _Table(msgspec.Struct, frozen=True, array_like=True):
    path: bytes  # in UTF-8, which may have lone surrogates
    grid: ChunkGrid
    rows: int
    is_sparse: bool


class _Header(msgspec.Struct, frozen=True, array_like=True):
    counts: list[int]  # the number of values in each column
    parts: list[list[int]] | None  # the sizes of the compressed parts of each column; None: not compressed
    tables: list[_Table]
    objects: dict[int, Any]  # objects of the key table; a Row as an array, an object with lone surrogates as JSON bytes
    seed: int
    version: int | None
    has_pins: bool
    where: bytes
    origins: dict[str, tuple[str, ...]]


def pack(refs: ReferenceSet) -> list[Bytes]:
    """Encode ``refs`` as parts of bytes; ValueError if a value cannot be encoded."""
    return _encode(refs, compress=False)


def pack_compressed(refs: ReferenceSet) -> bytes:
    """Encode ``refs``, with columns compressed at a fast level; ValueError if a value cannot be encoded."""
    return b"".join(_encode(refs, compress=True))


def _encode(refs: ReferenceSet, *, compress: bool) -> list[Bytes]:
    tables = list(refs.chunks.values())
    keys, pins, none = refs.keys, refs.pins, np.zeros(0, np.uint64)
    columns: dict[str, list[Column]] = {
        "urls": [refs.urls.data],
        "url_ends": [refs.urls.ends],
        **{name: [getattr(table.ranges, name) for table in tables] for name in Ranges._fields},
        "numbers": [table.numbers for table in tables if table.numbers is not None],
        "keys": [np.frombuffer(keys.joined_keys, np.uint8)],
        "key_ends": [keys.ends],
        **{f"key_{name}": [column] for name, column in keys.ranges._asdict().items()},
        "data": [np.frombuffer(keys.data, np.uint8)],
        "index": [none if compress else keys.index],
    }
    if pins is not None:
        columns |= {"etags": [pins.etags.data], "etag_ends": [pins.etags.ends], "times": [pins.times.data]}
        columns |= {"time_ends": [pins.times.ends], "sizes": [pins.sizes]}
    counts, part_sizes, out = [], [], list[Bytes]()
    for name, (dtype, is_steps) in _COLUMNS.items():
        arrays = [array.astype(dtype, copy=False) for array in columns.get(name, ())]
        counts.append(sum(map(len, arrays)))
        if compress:
            parts = _pack_column(
                arrays[0] if len(arrays) == 1 else np.concatenate([none.astype(dtype), *arrays]), is_steps
            )
            part_sizes.append(list(map(len, parts)))
            out += parts
        else:
            out += [np.ascontiguousarray(array).view(np.uint8).data for array in arrays]
            out.append(bytes(-counts[-1] * dtype.itemsize % _ALIGN))
    header = _Header(
        counts,
        part_sizes if compress else None,
        [
            _Table(path.encode("utf-8", "surrogatepass"), table.grid, table.ranges.rows, table.numbers is not None)
            for path, table in refs.chunks.items()
        ],
        {row: _make_plain(value) for row, value in keys.objects.items()},
        keys.seed,
        refs.version,
        pins is not None,
        refs.where.encode("utf-8", "surrogatepass"),
        dict(refs.origins.by_prefix),
    )
    try:
        head = msgspec.msgpack.encode(header)
    except (TypeError, OverflowError, RecursionError, UnicodeEncodeError) as e:
        raise ValueError(f"the set has a value that cannot be encoded: {e}") from e
    start = _find_columns_start(len(head))
    length = start + sum(map(len, out))
    return [_FIXED.pack(_MAGIC, length, len(head)), head, bytes(start - _FIXED.size - len(head)), *out]


def _make_plain(value: Value) -> Any:
    """Return a value that msgpack can encode: an object with lone surrogates becomes JSON bytes."""
    if isinstance(value, dict):
        try:
            msgspec.msgpack.encode(value)
        except UnicodeEncodeError:
            return zarrmeta.dumps(value)
        except (TypeError, OverflowError, RecursionError):  # encoding the whole header reports the error
            return value
    return value


def unpack(view: memoryview) -> ReferenceSet:
    """Decode the result of `pack`; ValueError if it is malformed. The set uses the memory of ``view``."""
    if len(view) < _FIXED.size:
        raise ValueError(f"expected a header of {_FIXED.size} bytes, found {len(view)} bytes")
    magic, length, header_length = _FIXED.unpack_from(view)
    if magic != _MAGIC:
        raise ValueError(f"expected a packed reference set of version {VERSION}, found {bytes(magic)!r}")
    start = _find_columns_start(header_length)
    if length != len(view):
        raise ValueError(f"expected {length} bytes, found {len(view)}")
    if start > length:
        raise ValueError(f"expected columns from byte {start} on, found only {length} bytes")
    try:
        header = msgspec.msgpack.decode(view[_FIXED.size :][:header_length], type=_Header)
        return _build(header, view[start:])
    # For damaged bytes, blosc raises RuntimeError, SystemError and MemoryError.
    except (msgspec.MsgspecError, IndexError, TypeError, RuntimeError, SystemError, MemoryError) as e:
        raise ValueError(f"the header or a column cannot be decoded: {e}") from e


def unpack_compressed(data: bytes) -> ReferenceSet:
    """Decode the result of `pack_compressed`; ValueError if it is damaged."""
    try:
        return unpack(memoryview(data))
    except ValueError as e:
        raise ValueError(f"the pickled references are damaged: {e}") from e


def _find_columns_start(header_length: int) -> int:
    end = _FIXED.size + header_length
    return end + -end % _ALIGN


def _build(header: _Header, view: memoryview) -> ReferenceSet:
    columns = dict(zip(_COLUMNS, _split_columns(header, view), strict=True))
    ranges, key_ranges = (Ranges(*(columns[start + name] for name in Ranges._fields)) for start in ("", "key_"))
    chunks, row, number = {}, 0, 0
    for table in header.tables:
        path = table.path.decode("utf-8", "surrogatepass")
        numbers = columns["numbers"][number : number + table.rows] if table.is_sparse else None
        chunks[path] = ChunkTable(table.grid, ranges.take(slice(row, row + table.rows)), numbers)
        chunks[path].check()
        row += table.rows
        number += table.rows if table.is_sparse else 0
    keys = KeyTable(
        columns["keys"].data,
        columns["key_ends"],
        key_ranges,
        columns["data"].data,
        {row: Row(*value) if type(value) is list else value for row, value in header.objects.items()},
        columns["index"] if header.parts is None else None,
        header.seed,
    )
    keys.check()
    pins = None
    if header.has_pins:
        etags, times = (Texts(columns[f"{name}s"], columns[f"{name}_ends"]) for name in ("etag", "time"))
        pins = Pins(etags, times, columns["sizes"])
    urls = Texts(columns["urls"], columns["url_ends"])
    where = header.where.decode("utf-8", "surrogatepass")
    return ReferenceSet(urls, chunks, keys, header.version, pins, where, Origins(header.origins))


def _split_columns(header: _Header, view: memoryview) -> list[Column]:
    found, at = [], 0
    for i, (count, (dtype, is_steps)) in enumerate(zip(header.counts, _COLUMNS.values(), strict=True)):
        if header.parts is None:
            column = np.frombuffer(view, dtype, count, at)
            at += count * dtype.itemsize
            at += -at % _ALIGN
        else:
            parts = []
            for size in header.parts[i]:
                parts.append(view[at : at + size])
                at += size
            column = _unpack_column(parts, dtype, is_steps)
            if len(column) != count:
                raise ValueError(f"expected {count} values in a column, found {len(column)}")
        found.append(column)
    return found


def compress_bytes(data: Buffer) -> list[bytes]:
    """Compress ``data`` to one or several parts."""
    return _pack_column(np.frombuffer(data, np.uint8), is_steps=False)


def decompress_bytes(parts: list[bytes]) -> bytes:
    """Decompress the result of `compress_bytes`."""
    return _unpack_column(parts, _U1, is_steps=False).tobytes()


def _pack_column(array: Column, is_steps: bool) -> list[bytes]:
    from numcodecs import blosc  # imported here, because the import is slow and only pickles need it

    if is_steps and len(array):  # the first value, and then differences, which wrap around
        array = np.concatenate((array[:1], np.diff(array)))
    step = BLOCK // array.itemsize
    shuffle = blosc.SHUFFLE if array.itemsize > 1 else blosc.NOSHUFFLE
    compressed = (
        bytes(blosc.compress(np.ascontiguousarray(array[i : i + step]), b"zstd", 1, shuffle))
        for i in range(0, len(array), step)
    )
    return [_CHECK.pack(zlib.crc32(part)) + part for part in compressed]


def _unpack_column(parts: Sequence[bytes | memoryview], dtype: np.dtype[Any], is_steps: bool) -> Column:
    from numcodecs import blosc

    for part in parts:
        computed = _CHECK.pack(zlib.crc32(memoryview(part)[_CHECK.size :]))
        if part[: _CHECK.size] != computed:
            stored = bytes(part[: _CHECK.size]).hex()
            raise ValueError(f"a column is damaged: expected the checksum {stored}, found {computed.hex()}")
    sizes = [_read_size(part) for part in parts]
    out = np.empty(sum(sizes), np.uint8)
    for part, size, end in zip(parts, sizes, accumulate(sizes), strict=True):
        if size:
            blosc.decompress(memoryview(part)[_CHECK.size :], out[end - size : end])
    column: Column = out.view(dtype)
    return np.cumsum(column, dtype=dtype, out=column) if is_steps else column


def _read_size(part: bytes | memoryview) -> int:
    """Return the decompressed size of a part of a column, from blosc's header, which the checksum covers."""
    if len(part) < _CHECK.size + _SIZE.size:
        raise ValueError(f"expected a header of {_CHECK.size + _SIZE.size} bytes, found {len(part)} bytes")
    size: int = _SIZE.unpack_from(part, _CHECK.size)[1]
    return size
