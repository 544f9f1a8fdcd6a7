"""A reference set as one run of bytes that can be mapped from a file and used as it stands. No I/O here.

Sixteen bytes of magic and version, then little-endian: u64 length of the whole, u32 length of the header; the header
(msgpack); and the columns, each at a multiple of 64 bytes. What says something else of itself is a ValueError; that the
bytes are those that were written is for whoever keeps them to see to.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.columns import ChunkTable, Row
from refshard_fs.keys import ChunkGrid
from refshard_fs.manifests.reference_set import ReferenceSet
from refshard_fs.manifests.settling import set_by_key
from refshard_fs.manifests.side_table import Columns, SideTable, Value
from refshard_fs.pins import Pins
from refshard_fs.texts import Texts

__all__ = ["VERSION", "pack", "unpack"]

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
