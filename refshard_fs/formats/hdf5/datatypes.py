"""HDF5 datatypes: parse datatype messages, and convert elements to numpy's and Python's values. No I/O here.

The reference is the chapter on the datatype message in the HDF5 File Format Specification. A type whose values cannot
be shown has a `refusal`, so that the rest of its file can be opened.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.dtypes import Padding, remove_padding
from refshard_fs.core.zarrmeta import is_divided
from refshard_fs.formats.hdf5.file import PARSE_CACHE, Fields, Sizes

Kind = Literal[
    "integer", "float", "complex", "time", "string", "bitfield", "opaque", "compound", "reference", "region", "bool",
    "enum", "vlen-string", "vlen-sequence", "array", "member",
]  # fmt: skip
Elements = npt.NDArray[Any]

MOST_LEVELS: Final = 16  # levels of nested types
MOST_ELEMENTS: Final = 1 << 24  # elements of one array datatype
MOST_BYTES: Final = 1 << 25  # bytes of one element: several copies of an element are in memory together
MOST_TEXT: Final = 1 << 28  # bytes of text in a chunk: many elements may refer to one long text

_PADDINGS: Final[tuple[Padding, ...]] = ("null-terminated", "null-padded", "space-padded")
_NUMPY_TAG: Final = re.compile(r"NUMPY:([<>|=]?[mM]8(?:\[[0-9]{0,9}[a-zA-Zμ]{1,2}\])?)")
# Layouts of IEEE 754: bits, sign, exponent's position and width, mantissa's position and width, exponent's bias.
_IEEE: Final = {
    (16, 15, 10, 5, 0, 10, 15): "f2",
    (32, 31, 23, 8, 0, 23, 127): "f4",
    (64, 63, 52, 11, 0, 52, 1023): "f8",
}
_BFLOAT16: Final = (16, 15, 7, 8, 0, 7, 127)


class Field(msgspec.Struct, frozen=True):
    """One member of a compound datatype."""

    name: str
    offset: int
    datatype: Datatype


class Datatype(msgspec.Struct, frozen=True):
    """One HDF5 datatype.

    ``dtype`` is numpy's type of an element in the file, ``shown`` the type in zarr's metadata. A ``shown`` that is not
    None differs from ``dtype`` only if ``is_recast``. ``shown`` is None in three cases: if values cannot be shown; if
    elements are Python objects (texts of variable length, sequences, and references, which are shown as paths); and if
    a member of a compound has no ``shown``. Then each member is shown as a separate array, whose datatype has the kind
    "member" and the size of the whole compound.

    An array datatype has the ``dtype`` and ``shown`` of its elements; its ``shape`` follows the shape of the dataset.
    """

    size: int  # bytes of an element in the file
    kind: Kind
    dtype: np.dtype[Any] | None = None
    shown: np.dtype[Any] | None = None
    refusal: str | None = None  # the reason why values cannot be shown
    shape: tuple[int, ...] = ()
    base: Datatype | None = None  # the base type of an enum, an array, a variable-length text or sequence
    names: tuple[tuple[str, int], ...] = ()  # names and numbers of an enum
    fields: tuple[Field, ...] = ()  # members of a compound
    padding: Padding = "null-padded"
    bits: tuple[int, int] | None = None  # offset and precision of an integer that does not fill its bytes

    is_recast: bool = False  # whether elements must be converted before zarr can read them as ``shown``

    @property
    def members(self) -> Mapping[str, int]:
        """The values of an enum, by name."""
        return dict(self.names)

    @property
    def inner(self) -> Datatype:
        """The datatype of the member for the kind "member", of the elements for an array of objects, otherwise self."""
        match self:
            case Datatype(kind="member", fields=(Field(datatype=datatype),)):
                return datatype.inner
            case Datatype(kind="array", shown=None, base=Datatype() as base):
                return base.inner
        return self

    @property
    def is_text(self) -> bool:
        """Whether elements are shown as texts."""
        return self.inner.kind in ("vlen-string", *_REFERENCES)

    @property
    def has_values(self) -> bool:
        """Whether attributes of this type can be shown. Attributes can be of more types than datasets."""
        match self.kind:
            case "compound" if self.shown is None:
                return all(field.datatype.has_values for field in self.fields)
            case "array" | "vlen-sequence" if self.base is not None and self.shown is None:
                return (
                    self.base.shown is not None
                    or self.base.kind == "reference"
                    or (self.kind == "array" and self.base.has_values)
                )
        return self.refusal is None

    @property
    def unit(self) -> int:
        """The size in bytes of an item of a variable-length element, whose length is a number of items."""
        return self.base.size if self.kind == "vlen-sequence" and self.base is not None else 1


@lru_cache(PARSE_CACHE)
def parse_datatype(data: bytes) -> Datatype:
    """Parse the body of a datatype message. Raise ValueError if it is damaged."""
    return _Parser(data).parse(0)


class _Parser:
    """A parser of one datatype message, which it reads from front to back."""

    def __init__(self, data: bytes) -> None:
        self._fields = Fields(data, Sizes())

    def parse(self, depth: int) -> Datatype:
        """Parse the next datatype; the outermost one has ``depth`` 0."""
        if depth > MOST_LEVELS:
            raise ValueError(f"its datatype is nested too deeply: expected at most {MOST_LEVELS} levels")
        head, low, high, size = self._fields.unpack("BBHI")
        version, flags = head >> 4, low | high << 8
        if not 1 <= version <= 5:
            raise ValueError(f"datatype version {version} is not supported: expected 1 to 5")
        if size > MOST_BYTES:
            return Datatype(size, "opaque", refusal=f"its elements have {size} bytes: expected at most {MOST_BYTES}")
        match head & 15:
            case 0:
                return self._parse_whole_number("integer", size, flags, "i" if flags & 8 else "u")
            case 1:
                return self._parse_float(size, flags)
            case 2:
                return self._parse_whole_number("time", size, flags, "i")
            case 3:
                return _parse_string(size, flags)
            case 4:
                return self._parse_whole_number("bitfield", size, flags, "u")
            case 5:
                return self._parse_opaque(size, flags)
            case 6:
                return self._parse_compound(size, flags & 0xFFFF, version, depth)
            case 7:
                return _parse_reference(size, flags & 15)
            case 8:
                return self._parse_enumeration(flags & 0xFFFF, version, depth)
            case 9:
                return self._parse_variable_length(size, flags, depth)
            case 10:
                return self._parse_array(size, version, depth)
            case 11:
                return self._parse_complex(size, depth)
            case number:
                raise ValueError(f"datatype class {number} is not supported: expected 0 to 11")

    def _parse_whole_number(self, kind: Kind, size: int, flags: int, code: str) -> Datatype:
        """Parse a type that numpy reads as an integer."""
        offset, precision = (0, *self._fields.unpack("H")) if kind == "time" else self._fields.unpack("HH")
        if not precision or offset + precision > size * 8:
            found = f"the datatype {kind!r} has {precision} bits from bit {offset} on"
            raise ValueError(f"{found}: expected at least 1 bit, within its {size} bytes")
        if size not in (1, 2, 4, 8):
            return Datatype(
                size, kind, refusal=f"its datatype {kind!r} has {size} bytes: expected 1, 2, 4 or 8, as in zarr"
            )
        dtype = np.dtype(f"{'<>'[flags & 1]}{code}{size}")
        bits = None if (offset, precision) == (0, size * 8) else (offset, precision)
        return Datatype(size, kind, dtype, dtype, bits=bits, is_recast=bits is not None)

    def _parse_float(self, size: int, flags: int) -> Datatype:
        offset, precision, exponent, exponents, mantissa, mantissas, bias = self._fields.unpack("HHBBBBI")
        layout = (precision, flags >> 8 & 0xFF, exponent, exponents, mantissa, mantissas, bias)
        order, normal = flags & 0x41, flags >> 4 & 3
        if order > 1:
            found = "of a VAX" if order == 0x41 else f"of the unknown number {order:#x}"
            refusal = f"its datatype is a float in the byte order {found}: expected little- or big-endian"
            return Datatype(size, "float", refusal=refusal)
        if layout == _BFLOAT16 and size == 2:
            refusal = "its datatype is bfloat16, which numpy and zarr lack: expected float16, float32 or float64"
            return Datatype(size, "float", refusal=refusal)
        name = _IEEE.get(layout)
        if name is None or offset or size * 8 != precision or normal != 2:
            found = f"its datatype is a float of {precision} bits in {size} bytes with the layout {layout[2:]}"
            refusal = f"{found}: expected float16, float32 or float64 of IEEE 754"
            return Datatype(size, "float", refusal=refusal)
        dtype = np.dtype(f"{'<>'[order]}{name}")
        return Datatype(size, "float", dtype, dtype)

    def _parse_opaque(self, size: int, flags: int) -> Datatype:
        tag = self._fields.take(flags & 0xFF).split(b"\0")[0].decode("ascii", "replace")
        if not size:
            raise ValueError("an opaque datatype has 0 bytes: expected at least 1")
        match = _NUMPY_TAG.fullmatch(tag)  # h5py writes datetimes as opaque values with this tag
        dtype = np.dtype(f"V{size}")
        if match and not is_divided(match[1]):
            try:
                tagged = np.dtype(match[1])
            except TypeError:
                tagged = dtype
            dtype = tagged if tagged.itemsize == size else dtype
        return Datatype(size, "opaque", dtype, dtype)

    def _parse_compound(self, size: int, count: int, version: int, depth: int) -> Datatype:
        fields: list[Field] = []
        for _ in range(count):
            name = self._parse_name(padded=version < 3)
            offset = self._fields.read_uint(4 if version < 3 else max(1, -(-size.bit_length() // 8)))
            dims: tuple[int, ...] = ()
            if version == 1:
                ndim, *sizes = self._fields.unpack("B11x4I")
                if ndim > 4:
                    raise ValueError(f"the member {name!r} of a compound has {ndim} dimensions: expected at most 4")
                dims = tuple(sizes[:ndim])
            member = self.parse(depth + 1)
            if dims:
                member = _make_array(member, dims)
            if offset + member.size > size:
                end = offset + member.size
                raise ValueError(f"the member {name!r} of a compound ends at byte {end}: expected at most {size}")
            fields.append(Field(name, offset, member))
        if not fields:
            raise ValueError("a compound datatype has no members: expected at least one")
        names = [field.name for field in fields]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"a compound datatype has two members {twice!r}: expected members of different names")
        if (total := sum(field.datatype.size for field in fields)) > size:
            raise ValueError(f"the members of a compound have {total} bytes: expected at most {size}, its size")
        return _make_compound(size, tuple(fields))

    def _parse_enumeration(self, count: int, version: int, depth: int) -> Datatype:
        base = self.parse(depth + 1)
        if base.kind != "integer" or base.dtype is None:
            found = f"the base type of an enumeration is {base.kind!r} of {base.size} bytes"
            raise ValueError(f"{found}: expected an integer of 1, 2, 4 or 8 bytes")
        names = [self._parse_name(padded=version < 3) for _ in range(count)]
        values = np.frombuffer(self._fields.take(count * base.size), base.dtype).tolist()
        members = tuple(zip(names, values, strict=True))
        if base.size == 1 and base.dtype.kind == "i" and dict(members) == {"FALSE": 0, "TRUE": 1}:
            return Datatype(1, "bool", np.dtype("?"), np.dtype("?"), names=members)
        return msgspec.structs.replace(base, kind="enum", base=base, names=members)

    def _parse_variable_length(self, size: int, flags: int, depth: int) -> Datatype:
        base = self.parse(depth + 1)
        if size not in _DESCRIPTORS:
            raise ValueError(f"a variable-length datatype has elements of {size} bytes: expected 10, 12 or 16")
        if flags & 15 == 1:
            return Datatype(size, "vlen-string", np.dtype(f"V{size}"), base=base)
        is_plain = base.shown is not None and base.shown.kind in "biufcS" and not base.shape
        expected = "expected elements of numbers, or of texts of fixed length"
        refusal = None if is_plain else f"its datatype is a variable-length sequence of {base.kind!r}: {expected}"
        return Datatype(size, "vlen-sequence", np.dtype(f"V{size}"), base=base, refusal=refusal)

    def _parse_array(self, size: int, version: int, depth: int) -> Datatype:
        ndim = self._fields.read_uint(1)
        self._fields.take(3 if version < 3 else 0)
        if not 0 < ndim <= 32:
            raise ValueError(f"an array datatype has {ndim} dimensions: expected 1 to 32")
        dims = self._fields.unpack(f"{ndim}I")
        self._fields.take(4 * ndim if version < 3 else 0)
        array = _make_array(self.parse(depth + 1), dims)
        if array.size != size:
            raise ValueError(f"an array datatype has {size} bytes: expected {array.size} for its shape {dims}")
        return array

    def _parse_complex(self, size: int, depth: int) -> Datatype:
        base = self.parse(depth + 1)
        if base.kind != "float" or base.size * 2 != size:
            found = f"two elements of the kind {base.kind!r} and of {base.size} bytes"
            raise ValueError(f"a complex datatype of {size} bytes has {found}: expected two floats of half its size")
        return _make_complex(base) or Datatype(
            size, "complex", refusal=f"its datatype is a complex number of {size} bytes: expected 8 or 16, as in zarr"
        )

    def _parse_name(self, *, padded: bool) -> str:
        start = self._fields.at
        name = self._fields.read_text()
        if padded:  # names are padded with zeros to a multiple of eight bytes
            self._fields.at += -(self._fields.at - start) % 8
        return name


def _parse_reference(size: int, kind: int) -> Datatype:
    if kind > 1:
        return Datatype(size, "reference", refusal=f"its datatype is a reference of kind {kind}: expected 0 or 1")
    if size - 4 * kind not in (2, 4, 8):
        sizes = ", ".join(str(address + 4 * kind) for address in (2, 4, 8))
        refusal = f"its datatype is a reference of kind {kind} with {size} bytes: expected one of {sizes}"
        return Datatype(size, "reference", refusal=refusal)
    return Datatype(size, _REFERENCES[kind], np.dtype(f"V{size}"))


def _parse_string(size: int, flags: int) -> Datatype:
    if flags & 15 >= len(_PADDINGS):
        raise ValueError(f"the padding of a string is of type {flags & 15}: expected 0, 1 or 2")
    if not size:
        raise ValueError("a string datatype has 0 bytes: expected at least 1")
    dtype = np.dtype(f"S{size}")
    padding = _PADDINGS[flags & 15]
    is_recast = padding == "space-padded" or (padding == "null-terminated" and size > 1)
    return Datatype(size, "string", dtype, dtype, padding=padding, is_recast=is_recast)


def _make_array(base: Datatype, dims: tuple[int, ...]) -> Datatype:
    count = math.prod(dims)
    if not 0 < count <= MOST_ELEMENTS or base.size * count > MOST_BYTES:
        limits = f"expected 1 to {MOST_ELEMENTS} elements, and at most {MOST_BYTES} bytes"
        raise ValueError(f"an array datatype has the shape {dims} of elements of {base.size} bytes: {limits}")
    refusal = base.refusal
    if base.shown is None and not base.is_text:
        found = f"its datatype is an array of elements of the kind {base.kind!r}, which zarr cannot hold"
        refusal = refusal or f"{found}: expected numbers, text, or compounds without text of variable length"
    innermost = base.base if base.kind == "array" and base.base is not None else base
    size, shape = base.size * count, (*dims, *base.shape)
    return Datatype(size, "array", base.dtype, base.shown, refusal, shape, innermost, is_recast=base.is_recast)


def _make_complex(base: Datatype) -> Datatype | None:
    if base.dtype is None or base.size not in (4, 8):
        return None
    dtype = np.dtype(f"{base.dtype.str[0]}c{base.size * 2}")
    return Datatype(base.size * 2, "complex", dtype, dtype)


def _make_compound(size: int, fields: tuple[Field, ...]) -> Datatype:
    match fields:
        case (Field("r", 0, real), Field("i", offset, imaginary)) if (
            real == imaginary and real.kind == "float" and offset == real.size == size - offset
        ):
            complex_type = _make_complex(real)  # h5py and NetCDF write complex numbers as compounds of "r" and "i"
            if complex_type is not None:
                return complex_type
    if any(field.datatype.shown is None for field in fields):
        return Datatype(size, "compound", fields=fields)
    dtype = np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": [(field.datatype.dtype, field.datatype.shape) for field in fields],
            "offsets": [field.offset for field in fields],
            "itemsize": size,
        }
    )
    shown = np.dtype([(field.name, field.datatype.shown, field.datatype.shape) for field in fields])
    is_recast = dtype != shown or any(field.datatype.is_recast for field in fields)
    return Datatype(size, "compound", dtype, shown, fields=fields, is_recast=is_recast)


# Conversion of elements to zarr's values.


def recast(datatype: Datatype, raw: bytes) -> Elements:
    """Convert elements from their bytes in the file to an array of type ``shown``.

    The elements of an array datatype lie along the last dimensions of the result.
    """
    if datatype.kind == "member":
        (field,) = datatype.fields
        elements = recast(field.datatype, _cut_member(field, datatype.size, raw))
        return elements if datatype.shown is None else elements.astype(datatype.shown, copy=False)
    dtype, shown = datatype.dtype, datatype.shown
    if dtype is None:
        found = f"found {datatype.kind!r}, whose members are shown as separate arrays"
        raise ValueError(datatype.refusal or f"expected a datatype that one array can show, {found}")
    if len(raw) % datatype.size:
        raise ValueError(f"expected a whole number of elements of {datatype.size} bytes, found {len(raw)} bytes")
    elements = np.frombuffer(raw, np.dtype((dtype, datatype.shape)) if datatype.shape else dtype)
    elements = _recast(datatype, elements) if datatype.is_recast else elements
    return elements if shown is None else elements.astype(shown, copy=False)


def make_little_endian(datatype: Datatype) -> Datatype:
    """Return a datatype of compounds with a little-endian ``shown``; return any other datatype unchanged.

    zarr version 3 has no big-endian fields, and xarray cannot read them from version 2.
    """
    shown = None if datatype.shown is None or datatype.shown.names is None else datatype.shown.newbyteorder("<")
    return (
        datatype if shown in (None, datatype.shown) else msgspec.structs.replace(datatype, shown=shown, is_recast=True)
    )


def split_members(compound: Datatype) -> list[Datatype]:
    """Return a datatype for each member of a compound that zarr cannot hold; an empty list for other datatypes.

    Each datatype describes an array of one member. In the file, its elements are whole elements of the outermost
    compound.
    """
    match compound:
        case Datatype(kind="compound", shown=None, fields=fields):
            offset = 0
        case Datatype(kind="member", fields=(Field(_, offset, Datatype(kind="compound", shown=None, fields=fields)),)):
            pass
        case _:
            return []
    return [
        _make_member(compound.size, Field(name, offset + position, datatype))
        for name, position, datatype in map(msgspec.structs.astuple, fields)
    ]


def _make_member(size: int, field: Field) -> Datatype:
    datatype = field.datatype
    return Datatype(
        size,
        "member",
        datatype.dtype,
        datatype.shown,
        datatype.refusal,
        datatype.shape,
        fields=(field,),
        is_recast=True,
    )


def _cut_member(field: Field, size: int, raw: bytes) -> bytes:
    """Cut one member out of compounds of ``size`` bytes."""
    rows = np.frombuffer(raw, np.uint8).reshape(-1, size)
    return rows[:, field.offset : field.offset + field.datatype.size].tobytes()


def _recast(datatype: Datatype, elements: Elements) -> Elements:
    """Convert ``elements`` from ``datatype.dtype`` to ``datatype.shown``."""
    match datatype.kind:
        case "string":
            return remove_padding(elements, datatype.padding)
        case "compound":
            result = np.empty(elements.shape, datatype.shown)
            for field in datatype.fields:
                member = elements[field.name]
                result[field.name] = _recast(field.datatype, member) if field.datatype.is_recast else member
            return result
        case "array" | "enum" if datatype.base is not None:
            return _recast(datatype.base, elements)
    if datatype.bits is None or datatype.shown is None:
        return elements
    offset, precision = datatype.bits
    unused_bits = elements.dtype.itemsize * 8 - precision - offset
    native = elements.astype(elements.dtype.newbyteorder("="))
    shifted = native << unused_bits >> (unused_bits + offset)  # >> extends the sign of signed types
    return shifted.astype(datatype.shown)


# Values in the global heap.

_REFERENCES: Final[tuple[Kind, Kind]] = ("reference", "region")
_REGIONS: Final = {6: "H", 8: "I", 12: "Q"}  # by bytes of a region reference: the `struct` code of the address in it
# By bytes of a variable-length element: its fields, which are (number of items, address of the collection, index).
_DESCRIPTORS: Final = {size: struct.Struct(f"<I{code}I") for size, code in {10: "H", 12: "I", 16: "Q"}.items()}
HeapID = tuple[int, int, int]  # address of the collection, index of the object in it, length in bytes
Heap = Mapping[tuple[int, int], bytes]  # objects of the global heap by (address of the collection, index)


def list_heap_ids(datatype: Datatype, raw: bytes) -> list[HeapID]:
    """Return the places of elements' values in the global heap; empty values have no place."""
    match datatype.kind:
        case "vlen-string" | "vlen-sequence" if raw.count(0) == len(raw):  # nothing was written
            return []
        case "vlen-string" | "vlen-sequence":
            unit = datatype.unit
            return [
                (address, index, count * unit) for address, index, count in _iter_descriptors(datatype, raw) if count
            ]
        case "region":
            return [(address, index, datatype.size - 4) for address, index in _iter_regions(datatype, raw) if address]
        case "compound" if datatype.shown is None:
            size = datatype.size
            members = [(field.datatype, _cut_member(field, size, raw)) for field in datatype.fields]
            return [heap_id for member, data in members for heap_id in list_heap_ids(member, data)]
        case "array" if datatype.base is not None and datatype.shown is None:
            return list_heap_ids(datatype.base, raw)
    return []


def _iter_regions(datatype: Datatype, raw: bytes) -> Iterator[tuple[int, int]]:
    """Yield (address of the collection, index) for each region reference; an empty one has the address 0."""
    yield from struct.Struct(f"<{_REGIONS[datatype.size]}I").iter_unpack(raw)


def _iter_descriptors(datatype: Datatype, raw: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (collection, index, number of items) for each variable-length element; 0 items if it was never written."""
    descriptor = _DESCRIPTORS[datatype.size]
    if len(raw) % descriptor.size:
        raise ValueError(f"expected a whole number of elements of {descriptor.size} bytes, found {len(raw)} bytes")
    undefined = (1 << 8 * (descriptor.size - 8)) - 1
    for count, address, index in descriptor.iter_unpack(raw):
        yield address, index, 0 if address == undefined or not index else count


def decode_sequences(datatype: Datatype, raw: bytes, heap: Heap) -> list[bytes]:
    """Return the bytes of each variable-length element; elements that were never written are empty."""
    unit = datatype.unit
    if raw.count(0) == len(raw) and len(raw) % datatype.size == 0:  # nothing was written
        return [b""] * (len(raw) // datatype.size)
    elements = []
    total = 0
    for address, index, count in _iter_descriptors(datatype, raw):
        total += count * unit
        if total > MOST_TEXT:
            raise ValueError(f"its variable-length elements have {total} bytes or more: expected at most {MOST_TEXT}")
        try:
            data = heap[address, index][: count * unit] if count else b""
        except KeyError:
            found = f"an element refers to object {index} of the global heap at {address}"
            raise ValueError(f"{found}: expected this object there, found none") from None
        if len(data) != count * unit:
            found = f"object {index} of the global heap at {address} has {len(data)} bytes"
            raise ValueError(f"{found}: expected at least {count * unit}")
        elements.append(data)
    return elements


def decode_objects(
    datatype: Datatype, raw: bytes, heap: Heap, paths: Mapping[int, str], errors: str = "surrogateescape"
) -> list[Any]:
    """Convert elements to Python values. A reference becomes the path of its object, or "" if no object is there.

    ``paths`` are the paths of objects by address. ``errors`` says what happens to bytes that are not UTF-8, as for
    `bytes.decode`.
    """
    values: list[Any]
    base, size = datatype.base, datatype.size
    match datatype.kind:
        case "vlen-string":
            texts = decode_sequences(datatype, raw, heap)
            return [text.split(b"\0")[0].decode("utf-8", errors) if text else "" for text in texts]
        case "reference" | "region":
            if datatype.kind == "reference":
                addresses = [raw[position : position + size] for position in range(0, len(raw), size)]
            else:
                addresses = [heap[key][: size - 4] if key[0] else b"" for key in _iter_regions(datatype, raw)]
            values = [paths.get(int.from_bytes(address, "little"), "") for address in addresses]
            if (total := sum(map(len, values))) > MOST_TEXT:
                raise ValueError(f"the paths of its references have {total} characters: expected at most {MOST_TEXT}")
            return values
        case "vlen-sequence" if base is not None:
            return [
                decode_objects(base, sequence, heap, paths, errors)
                for sequence in decode_sequences(datatype, raw, heap)
            ]
        case "compound" if datatype.shown is None:
            members = [(field.datatype, _cut_member(field, size, raw)) for field in datatype.fields]
            return list(
                map(
                    list,
                    zip(*[decode_objects(member, data, heap, paths, errors) for member, data in members], strict=True),
                )
            )
        case "array" if base is not None and datatype.shown is None:
            return _nest(decode_objects(base, raw, heap, paths, errors), datatype.shape)
    return list(recast(datatype, raw))


def _nest(items: list[Any], inner: tuple[int, ...]) -> list[Any]:
    """Fold ``items`` into lists of the shape ``inner``."""
    for extent in reversed(inner):
        items = [items[position : position + extent] for position in range(0, len(items), extent)]
    return items


def decode_references(datatype: Datatype, raw: bytes, heap: Heap) -> list[list[int]]:
    """Return the addresses of the objects in sequences of object references, a list for each sequence."""
    base = datatype.base
    if datatype.kind != "vlen-sequence" or base is None or base.kind != "reference" or not base.size:
        return []
    size = base.size
    return [
        [int.from_bytes(data[position : position + size], "little") for position in range(0, len(data), size)]
        for data in decode_sequences(datatype, raw, heap)
    ]


# Values of attributes.


def decode_attribute(
    datatype: Datatype, shape: tuple[int, ...] | None, raw: bytes, heap: Heap, paths: Mapping[int, str]
) -> Any:
    """Return the value of an attribute: an array, a str, or nested lists.

    Fixed-length strings of more than one byte are texts, as in h5netcdf; strings of one byte are characters, as bytes.
    The value of an attribute without elements (``shape`` None) is an empty array; of characters, the text "".
    """
    if shape is None:
        is_character = datatype.kind == "string" and datatype.size == 1  # NetCDF writes an empty text in this way
        return "" if is_character else np.empty(0, datatype.shown)
    size = math.prod(shape) * datatype.size
    if len(raw) < size:
        raise ValueError(f"it has {len(raw)} bytes: expected {size} for its elements")
    raw = raw[:size]
    if datatype.shown is None:
        elements = decode_objects(datatype, raw, heap, paths)
        elements = _nest(elements, shape[1:]) if all(shape) else elements
    else:
        array = recast(datatype, raw).reshape(shape + datatype.shape)
        if datatype.kind != "string" or datatype.size == 1:
            return array
        elements = [text.decode("utf-8", "surrogateescape") for text in array.ravel().tolist()]  # flat, as in h5netcdf
    return elements if shape else elements[0]
