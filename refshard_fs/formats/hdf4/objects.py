"""Parse Vgroups, Vdatas and number types of an HDF4 file. No I/O here."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.core.format import decode_text
from refshard_fs.formats.hdf4.elements import Key

# Numpy's data types by the code of a number type, without the byte order.
_TYPES: Final = {
    3: "S1", 4: "S1", 5: "f4", 6: "f8", 20: "i1", 21: "u1", 22: "i2", 23: "u2", 24: "i4", 25: "u4", 26: "i8", 27: "u8",
}  # fmt: skip
_NATIVE, _LITTLE = 0x1000, 0x4000  # flags of a number type; "native" means little-endian on the machines of today
_PC: Final = 4  # in an element of the number type, 4 means little-endian; 0 and 1 mean big-endian


class Vgroup(NamedTuple):
    """A group of elements; ``members`` are their tags and reference numbers."""

    name: str
    kind: str  # called "class" in the specification
    members: tuple[Key, ...]


class Field(NamedTuple):
    """A field of a Vdata, with ``order`` values in each record."""

    name: str
    dtype: np.dtype[Any]
    order: int


class Vdata(NamedTuple):
    """A table of ``records`` records. ``fields`` is empty if the type of any field is unknown."""

    name: str
    kind: str
    records: int
    size: int  # bytes of a record
    fields: tuple[Field, ...]
    is_by_record: bool = True  # records lie one after the other; otherwise all values of a field lie together


class _Cursor:
    """Take numbers and texts from ``data`` in order. Raise ValueError, which names ``label``, if the data end early."""

    def __init__(self, data: bytes, label: str) -> None:
        self.data = data
        self.label = label
        self.at = 0

    def take_bytes(self, count: int) -> bytes:
        data = self.data[self.at : self.at + count]
        if len(data) < count:
            expected = self.at + count
            raise ValueError(f"its {self.label} is cut short: {len(self.data)} bytes, expected at least {expected}")
        self.at += count
        return data

    def read_numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(f">{layout}", self.take_bytes(struct.calcsize(f">{layout}")))

    def read_text(self) -> str:
        (size,) = self.read_numbers("H")
        return decode_text(self.take_bytes(size).split(b"\0")[0])


def parse_vgroup(data: bytes) -> Vgroup:
    """Parse a Vgroup. Raise ValueError if it is damaged."""
    cursor = _Cursor(data, "Vgroup")
    (count,) = cursor.read_numbers("H")
    tags, refs = cursor.read_numbers(f"{count}H"), cursor.read_numbers(f"{count}H")
    return Vgroup(cursor.read_text(), cursor.read_text(), tuple(zip(tags, refs, strict=True)))


def parse_vdata(data: bytes) -> Vdata:
    """Parse the header of a Vdata. Raise ValueError if it is damaged."""
    cursor = _Cursor(data, "Vdata")
    interlace, count, size, fields = cursor.read_numbers("HiHH")
    codes, _, _, orders = (cursor.read_numbers(f"{fields}H") for _ in range(4))
    names = [cursor.read_text() for _ in range(fields)]
    name, kind = cursor.read_text(), cursor.read_text()
    if count < 0:
        raise ValueError(f"its Vdata {name!r} has {count} records: expected at least 0")
    columns = zip(names, map(parse_type, codes), orders, strict=True)
    known_fields = [Field(field, dtype, order) for field, dtype, order in columns if dtype is not None]
    return Vdata(name, kind, count, size, tuple(known_fields) if len(known_fields) == fields else (), interlace == 0)


def parse_type(code: int) -> np.dtype[Any] | None:
    """Return numpy's data type for the code of a number type; None if the code is unknown."""
    kind = _TYPES.get(code & 0xFFF)
    return None if kind is None else np.dtype(("<" if code & (_NATIVE | _LITTLE) else ">") + kind)


def parse_number_type(data: bytes) -> np.dtype[Any]:
    """Parse the number type of a data set. Raise ValueError if it is unknown or cut short."""
    if len(data) < 4:
        raise ValueError(f"its number type has {len(data)} bytes: expected 4")
    dtype = parse_type(data[1] | (_LITTLE if data[3] == _PC else 0))
    if dtype is None or data[3] not in (0, 1, _PC):
        expected = f"expected one of the codes {', '.join(map(str, _TYPES))}, in the byte order 0, 1 or {_PC}"
        raise ValueError(f"its number type has the code {data[1]}, in the byte order {data[3]}: {expected}")
    return dtype


def decode_value(field: Field, data: bytes) -> Any:
    """Decode an attribute to a text, a number, or a list of numbers."""
    if field.dtype.kind == "S":
        return decode_text(data).rstrip("\0")  # some writers pad texts with NULs
    values = np.frombuffer(data, field.dtype, len(data) // field.dtype.itemsize).tolist()
    return values[0] if len(values) == 1 else values
