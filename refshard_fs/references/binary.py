"""A reference set as one run of bytes that can be mapped from a file and used as it stands. No I/O here.

Sixteen bytes of magic and version, then little-endian: u64 length of the whole, u32 length of the header; the header
(msgpack); and the columns, each at a multiple of 64 bytes. What says something else of itself is a ValueError; that the
bytes are those that were written is for whoever keeps them to see to.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ChunkTable, Row
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.strings import Texts
from refshard_fs.core.swar import Buffer
from refshard_fs.references.finalise import set_by_key
from refshard_fs.references.key_table import Columns, Run, SideTable, Value
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet

__all__ = ["VERSION", "pack", "shrink", "shrink_bytes", "swell", "swell_bytes", "unpack"]

Bytes: TypeAlias = bytes | memoryview

VERSION: Final = 4
_MAGIC: Final = b"refshard index" + VERSION.to_bytes(2, "little")
_FIXED: Final = struct.Struct("<16sQI")
_ALIGN: Final = 64
_DTYPES: Final = ("|u1", "<u4", "<u8")


class _Column(msgspec.Struct, frozen=True, array_like=True):
    start: int  # counted from the end of the header
    count: int
    dtype: int  # its place in _DTYPES


class _Table(msgspec.Struct, frozen=True, array_like=True):
    path: str
    grid: ChunkGrid
    targets: _Column
    offsets: _Column
    lengths: _Column
    numbers: _Column | None


class _Pins(msgspec.Struct, frozen=True, array_like=True):
    etags: _Column
    etag_ends: _Column
    times: _Column
    time_ends: _Column
    sizes: _Column


class _Aside(msgspec.Struct, frozen=True, array_like=True):
    """A table of what lies aside, with its index."""

    spelled: _Column
    ends: _Column
    targets: _Column
    offsets: _Column
    lengths: _Column
    data: _Column
    index: _Column
    seed: int


class _Header(msgspec.Struct, frozen=True, array_like=True):
    urls: _Column
    url_ends: _Column
    tables: list[_Table]
    side: _Column  # msgpack of key → value (of a table: row → what is no column); a Row is an array
    version: int | None = None  # of the document
    pins: _Pins | None = None
    aside: _Aside | None = None
    named: str | None = None  # in errors: a set that is all by key


class _Layout:
    """Places columns one after the other."""

    def __init__(self) -> None:
        self.parts: list[Bytes] = []
        self.size = 0

    def add(self, array: npt.NDArray[Any]) -> _Column:
        dtype = _DTYPES.index(array.dtype.newbyteorder("<").str)
        if sys.byteorder == "big":
            array = array.astype(_DTYPES[dtype])
        column = _Column(self.size, len(array), dtype)
        self.parts.append(np.ascontiguousarray(array).view(np.uint8).data)
        padding = -array.nbytes % _ALIGN
        self.parts.append(bytes(padding))
        self.size += array.nbytes + padding
        return column


def pack(refs: ReferenceSet) -> list[Bytes]:
    """Return the bytes that stand for ``refs``, in parts; ValueError where something in it cannot be written."""
    layout = _Layout()
    tables = [
        _Table(
            path,
            table.grid,
            layout.add(table.targets),
            layout.add(table.offsets),
            layout.add(table.lengths),
            None if table.numbers is None else layout.add(table.numbers),
        )
        for path, table in refs.in_columns.items()
    ]
    members: Mapping[Any, Value]
    aside = None
    match refs.by_key:
        case SideTable() as found:
            spelled, data = (np.frombuffer(part, np.uint8) for part in (found.spelled, found.data))
            aside = _Aside(
                layout.add(spelled),
                layout.add(found.ends),
                layout.add(found.columns.targets),
                layout.add(found.columns.offsets),
                layout.add(found.columns.lengths),
                layout.add(data),
                layout.add(found.index),
                found.seed,
            )
            members = found.objects
        case members:
            pass
    try:
        side = msgspec.msgpack.encode(dict(members))
    except (TypeError, OverflowError, RecursionError) as e:
        raise ValueError(f"the data among the references cannot be written: {e}") from e
    urls, ends = layout.add(refs.urls.data), layout.add(refs.urls.ends)
    pins = None if refs.pins is None else _Pins(*map(layout.add, _pin_columns(refs.pins)))
    header = msgspec.msgpack.encode(
        _Header(urls, ends, tables, layout.add(np.frombuffer(side, np.uint8)), refs.version, pins, aside, refs.named)
    )
    padding = _columns_start(len(header)) - _FIXED.size - len(header)
    length = _columns_start(len(header)) + layout.size
    return [_FIXED.pack(_MAGIC, length, len(header)), header, bytes(padding), *layout.parts]


def unpack(view: memoryview) -> ReferenceSet:
    """Return the reference set that `pack` wrote, on the memory of ``view``; ValueError if it is none."""
    if len(view) < _FIXED.size:
        raise ValueError("it is cut short")
    magic, length, header_length = _FIXED.unpack_from(view)
    if magic != _MAGIC:
        raise ValueError("it is of another version, or none of ours")
    if length != len(view) or _columns_start(header_length) > length:
        raise ValueError(f"it has {len(view)} bytes of {length}")
    try:
        header = msgspec.msgpack.decode(view[_FIXED.size :][:header_length], type=_Header)
        return _build(header, view[_columns_start(header_length) :])
    except (msgspec.MsgspecError, IndexError, TypeError) as e:
        raise ValueError(f"its header is damaged: {e}") from e


def _columns_start(header_length: int) -> int:
    end = _FIXED.size + header_length
    return end + -end % _ALIGN


def _build(header: _Header, columns: memoryview) -> ReferenceSet:
    def array(column: _Column) -> npt.NDArray[Any]:
        return np.frombuffer(columns, _DTYPES[column.dtype], column.count, column.start)

    tables = {}
    for t in header.tables:
        numbers = None if t.numbers is None else array(t.numbers)
        tables[t.path] = ChunkTable(t.grid, array(t.targets), array(t.offsets), array(t.lengths), numbers)
        tables[t.path].check()
    kept = array(header.side).tobytes()
    side: Mapping[str, Value]
    if header.aside is None:
        side = _read(msgspec.msgpack.decode(kept, type=dict[str, Any]))
    else:
        *columns_of, seed = msgspec.structs.astuple(header.aside)
        spelled, ends, targets, offsets, lengths, data, index = map(array, columns_of)
        objects = _read(msgspec.msgpack.decode(kept, type=dict[int, Any]))
        side = SideTable(spelled.data, ends, Columns(targets, offsets, lengths), data.data, objects, index, seed)
        side.check()
    pins = None
    if header.pins is not None:
        etags, etag_ends, times, time_ends, sizes = map(array, msgspec.structs.astuple(header.pins))
        pins = Pins(Texts(etags, etag_ends), Texts(times, time_ends), sizes)
    urls = Texts(array(header.urls), array(header.url_ends))
    if header.named is not None and isinstance(side, SideTable):
        return msgspec.structs.replace(set_by_key(urls, side, header.named), version=header.version, pins=pins)
    return ReferenceSet(urls, tables, side, header.version, pins)


def _pin_columns(pins: Pins) -> tuple[npt.NDArray[Any], ...]:
    return pins.etags.data, pins.etags.ends, pins.times.data, pins.times.ends, pins.sizes


def _read(members: dict[Any, Any]) -> dict[Any, Value]:
    return {key: Row(*value) if type(value) is list else value for key, value in members.items()}


# ----------------------------------------------------------------------------------------------------
# Reference sets in as few bytes as little time buys, for pickles. No I/O here.


_CHECK: Final = struct.Struct("<I")  # stands before each part of a column
_SIZE: Final = struct.Struct("<II")  # what blosc's header begins with: of four bytes each, and the size of the content
BLOCK: Final = 1 << 30  # bytes that blosc takes at a time, at most


class _Table_pickled(msgspec.Struct, frozen=True, array_like=True):
    path: bytes  # in UTF-8, with half surrogate pairs
    grid: ChunkGrid
    columns: list[list[bytes] | None]  # targets, offsets, lengths, numbers


class _Aside_pickled(msgspec.Struct, frozen=True, array_like=True):
    """A table of what lies aside; a Row is an array."""

    keys: list[bytes]
    data: list[bytes]
    columns: list[list[bytes]]  # sizes of keys, targets, offsets, lengths
    objects: dict[int, Any]


class _Set(msgspec.Struct, frozen=True, array_like=True):
    urls: list[bytes]
    url_ends: list[bytes]
    tables: list[_Table_pickled]
    side: dict[str, Any]  # a Row is an array
    pins: list[list[bytes]] | None = None  # ETags, their ends, times, their ends, sizes
    aside: _Aside_pickled | None = None
    named: str | None = None  # in errors: a set that is all by key


_DTYPES_PICKLED: Final = (np.uint32, np.uint64, np.uint64, np.uint64)


def shrink(refs: ReferenceSet) -> bytes:
    """Return bytes that `swell` makes ``refs`` of; ValueError where something in it cannot be written."""
    tables = []
    for path, t in refs.in_columns.items():
        columns: list[list[bytes] | None] = [_packed(_steps(t.targets)), _packed(_steps(t.offsets)), _packed(t.lengths)]
        columns.append(None if t.numbers is None else _packed(_steps(t.numbers)))
        tables.append(_Table_pickled(path.encode("utf-8", "surrogatepass"), t.grid, columns))
    side, aside = dict[str, Any](), None
    match refs.by_key:
        case SideTable() as table:
            aside = _shrunk(table.run())
        case members if _is_text(members):
            side = dict(members)
        case members:
            aside = _shrunk(Run.of(members))
    urls, pins = refs.urls, None
    if refs.pins is not None:
        texts = (refs.pins.etags, refs.pins.times)
        pins = [_packed(column) for t in texts for column in (t.data, _steps(t.ends))] + [_packed(refs.pins.sizes)]
    try:
        return msgspec.msgpack.encode(
            _Set(_packed(urls.data), _packed(_steps(urls.ends)), tables, side, pins, aside, refs.named)
        )
    except (TypeError, OverflowError, RecursionError) as e:
        raise ValueError(f"the data among the references cannot be written: {e}") from e


def swell(data: bytes) -> ReferenceSet:
    """Return the reference set that `shrink` wrote; ValueError where the bytes are damaged."""
    try:
        return _built(msgspec.msgpack.decode(data, type=_Set))
    except (msgspec.MsgspecError, RuntimeError, SystemError, MemoryError, TypeError) as e:  # msgpack's, blosc's, Row's
        raise ValueError(f"the pickled references are damaged: {e}") from e


def _built(found: _Set) -> ReferenceSet:
    tables = {}
    for t in found.tables:
        targets, offsets, lengths, numbers = (
            None if column is None else _unpacked(column, dtype)
            for column, dtype in zip(t.columns, _DTYPES_PICKLED, strict=True)
        )
        if targets is None or offsets is None or lengths is None:
            raise ValueError("a table lacks a column")
        absolute = None if numbers is None else _sums(numbers)
        path = t.path.decode("utf-8", "surrogatepass")
        tables[path] = ChunkTable(t.grid, _sums(targets), _sums(offsets), lengths, absolute)
        tables[path].check()
    side: Mapping[str, Value]
    if found.aside is None:
        side = {key: Row(*value) if type(value) is list else value for key, value in found.side.items()}
    else:
        side = SideTable.of([_swollen(found.aside)])
        side.check()
    pins = None
    if found.pins is not None:
        etags, etag_ends, times, time_ends, sizes = found.pins
        pins = Pins(_texts(etags, etag_ends), _texts(times, time_ends), _unpacked(sizes, np.uint64))
    urls = _texts(found.urls, found.url_ends)
    if found.named is not None and isinstance(side, SideTable):
        return msgspec.structs.replace(set_by_key(urls, side, found.named), pins=pins)
    return ReferenceSet(urls, tables, side, pins=pins)


def _shrunk(run: Run) -> _Aside_pickled:
    columns = [_packed(run.sizes), _packed(_steps(run.targets)), _packed(_steps(run.offsets)), _packed(run.lengths)]
    objects = {  # an object that has half a surrogate pair, as the JSON that it is read as
        place: zarrmeta.dumps(value) if isinstance(value, dict) and not _is_text(value) else value
        for place, value in run.objects.items()
    }
    return _Aside_pickled(shrink_bytes(run.keys), shrink_bytes(run.data), columns, objects)


def _is_text(value: Mapping[str, Any]) -> bool:
    """Whether nothing in ``value`` is half a surrogate pair, which UTF-8 cannot spell."""
    try:
        msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        return False
    except (TypeError, OverflowError, RecursionError):  # which is told when all is written
        return True
    return True


def _swollen(found: _Aside_pickled) -> Run:
    sizes, targets, offsets, lengths = map(_unpacked, found.columns, (np.int64, np.uint32, np.uint64, np.uint64))
    keys, data = swell_bytes(found.keys), swell_bytes(found.data)
    if not len(sizes) == len(targets) == len(offsets) == len(lengths) or (sizes < 0).any():
        raise ValueError("what lies aside has columns of different lengths")
    if int(sizes.sum()) + len(sizes) != len(keys):
        raise ValueError("what lies aside has other keys than it says")
    return Run(keys, sizes, _sums(targets), _sums(offsets), lengths, data, found.objects)


def _texts(data: list[bytes], ends: list[bytes]) -> Texts:
    return Texts(_unpacked(data, np.uint8), _sums(_unpacked(ends, np.uint64)))


def shrink_bytes(data: Buffer) -> list[bytes]:
    """Return ``data``, compressed."""
    return _packed(np.frombuffer(data, np.uint8))


def swell_bytes(parts: list[bytes]) -> bytes:
    """Return the bytes that `shrink_bytes` took."""
    return _unpacked(parts, np.uint8).tobytes()


def _steps(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the first value, and then from each one to the next; differences wrap around."""
    out = array.copy()
    out[1:] -= array[:-1]
    return out


def _sums(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.cumsum(array, dtype=array.dtype, out=array)


def _packed(array: npt.NDArray[Any]) -> list[bytes]:
    from numcodecs import blosc  # slow to import, and only pickles need it

    step = BLOCK // array.itemsize
    shuffle = blosc.SHUFFLE if array.itemsize > 1 else blosc.NOSHUFFLE
    parts = (
        bytes(blosc.compress(np.ascontiguousarray(array[i : i + step]), b"zstd", 1, shuffle))
        for i in range(0, len(array), step)
    )
    return [_CHECK.pack(zlib.crc32(part)) + part for part in parts]


def _unpacked(parts: list[bytes], dtype: type[Any]) -> npt.NDArray[Any]:
    from numcodecs import blosc

    for part in parts:  # blosc ends the process over some damaged ones
        if part[: _CHECK.size] != _CHECK.pack(zlib.crc32(memoryview(part)[_CHECK.size :])):
            raise ValueError("its checksum is another one")
    sizes = [_size(part) for part in parts]
    out = np.empty(sum(sizes), np.uint8)
    for part, size, end in zip(parts, sizes, accumulate(sizes), strict=True):
        if size:
            blosc.decompress(memoryview(part)[_CHECK.size :], out[end - size : end])
    return out.view(dtype)


def _size(part: bytes) -> int:
    """Return the bytes that a part of a column has decompressed, as blosc's header says, which the checksum covers."""
    if len(part) < _CHECK.size + _SIZE.size:
        raise ValueError("a part of a column has no header")
    size: int = _SIZE.unpack_from(part, _CHECK.size)[1]
    return size
