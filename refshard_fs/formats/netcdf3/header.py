"""The header of a NetCDF-3 file: dimensions, attributes, variables and where their values begin. No I/O here.

Names are those of the format's specification (classic, 64-bit offset, 64-bit data). All numbers are big-endian. Every
count is held against the bytes that are left before anything is made of it.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.array_group import PACKING
from refshard_fs.core.zarrmeta import COUNTABLE
from refshard_fs.errors import ManifestError

MOST_NAMES: Final = 1 << 20  # characters of all variables' dimensions' names that any file may have
MOST_HEADER: Final = 64 << 20  # bytes of a header; those of real files take kilobytes

_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12  # tags of lists
_TYPES: Final = {
    number: np.dtype(name)
    for number, name in enumerate((">i1", "S1", ">i2", ">i4", ">f4", ">f8", ">u1", ">u2", ">u4", ">i8", ">u8"), 1)
}
_CLASSIC_TYPES: Final = 6  # the first so many exist in all versions, the others in CDF-5 alone
_CHAR: Final = np.dtype("S1")


class Short(Exception):
    """The header goes on behind the bytes that were given."""


class Dimension(NamedTuple):
    """A dimension; its length is that in records, for the record dimension."""

    name: str
    length: int
    is_record: bool


class Variable(msgspec.Struct, frozen=True):
    """A variable. ``begin`` is where its values lie in the file, those of its first record if it has records."""

    name: str
    dimensions: tuple[Dimension, ...]
    attributes: dict[str, Any]
    attribute_dtypes: dict[str, str]
    dtype: np.dtype[Any]
    begin: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(dimension.length for dimension in self.dimensions)

    @property
    def is_record(self) -> bool:
        """Whether it has a value, or some, in each record."""
        return bool(self.dimensions) and self.dimensions[0].is_record

    @property
    def slab(self) -> int:
        """Bytes of its values, in one record if it has records; without padding."""
        return math.prod(d.length for d in self.dimensions if not d.is_record) * self.dtype.itemsize


class Header(NamedTuple):
    """What a header says; ``record_size`` is the bytes from one record to the next, ``length`` those of the header."""

    dimensions: tuple[Dimension, ...]
    attributes: dict[str, Any]
    variables: tuple[Variable, ...]
    record_size: int
    length: int


class _Cursor:
    """Reads the header's fields one after the other, of a file of ``size`` bytes that begins with ``data``."""

    def __init__(self, data: bytes, size: int, where: str) -> None:
        self.data = data
        self.size = size
        self.where = where
        self.version = data[3]
        self.width = 8 if self.version == 5 else 4  # of counts
        self.at = 4

    def error(self, reason: str) -> ManifestError:
        return ManifestError(f"{self.where}: {reason} (byte {self.at} of its header)")

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes, and go on behind their padding to a multiple of four."""
        end = self.at + count + -count % 4
        if end > self.size:
            raise self.error(f"it is cut short: its header goes on to byte {end}, the file has {self.size}")
        if end > MOST_HEADER:
            raise self.error(f"its header has more than {MOST_HEADER} bytes")
        if end > len(self.data):
            raise Short
        found = self.data[self.at : self.at + count]
        self.at = end
        return found

    def uint(self, width: int) -> int:
        """Return a number of ``width`` bytes; those of 8 are signed, and may not be negative."""
        number = int.from_bytes(self.take(width), "big")
        if width == 8 and number >= COUNTABLE:
            raise self.error(f"a number is negative: {number - (1 << 64)}")
        return number

    def number(self) -> int:
        """Return a count, a length or an index."""
        return self.uint(self.width)

    def name(self) -> str:
        data = self.take(self.number())
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.error(f"a name is no UTF-8: {data[:80]!r}") from None

    def entries(self, tag: int, what: str) -> range:
        """Return the numbers of a list's entries, each of which takes eight bytes or more."""
        found, count = self.uint(4), self.number()
        if found not in (0, tag) or (count and not found):
            raise self.error(f"its list of {what} begins with the tag {found} and a count of {count}")
        if count * 8 > self.size - self.at:
            raise self.error(f"it is cut short, or damaged: {count} {what} do not fit into its {self.size} bytes")
        return range(count)

    def dtype(self) -> np.dtype[Any]:
        number = self.uint(4)
        if number not in _TYPES or (number > _CLASSIC_TYPES and self.version != 5):
            raise self.error(f"type {number} is none of version {self.version} of the format")
        return _TYPES[number]

    def attributes(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return attributes, and the dtypes of those that say how values are packed."""
        found: dict[str, Any] = {}
        dtypes: dict[str, str] = {}
        for _ in self.entries(_ATTRIBUTE, "attributes"):
            name = self.name()
            dtype = self.dtype()
            data = self.take(self.number() * dtype.itemsize)
            if name in found:
                raise self.error(f"there are two attributes {name!r}")
            found[name] = _value(name, dtype, data)
            if name in PACKING and isinstance(found[name], (int, float)):
                dtypes[name] = dtype.str
        return found, dtypes


def _value(name: str, dtype: np.dtype[Any], data: bytes) -> Any:
    """Return an attribute as JSON has it: text, a number, or a list of numbers; bytes for a ``_FillValue`` of text."""
    if dtype == _CHAR:
        return data if name == "_FillValue" else data.decode(errors="replace").replace("\0", "")
    values = np.frombuffer(data, dtype).tolist()
    return values[0] if len(values) == 1 else values


def parse_header(data: bytes, size: int, where: str) -> Header:
    """Return the header of a file of ``size`` bytes that begins with ``data``; ``where`` begins errors.

    Raises `Short` where ``data`` are too few, and ManifestError where the header contradicts itself or the file's size.
    """
    cursor = _Cursor(data, size, where)
    records = int.from_bytes(cursor.take(cursor.width), "big")
    dimensions = _dimensions(cursor)
    attributes, _ = cursor.attributes()
    variables: dict[str, Variable] = {}
    named = 0  # bytes of the names of all variables' dimensions, which metadata repeat
    for _ in cursor.entries(_VARIABLE, "variables"):
        name = cursor.name()
        if name in variables:
            raise cursor.error(f"there are two variables {name!r}")
        shared = tuple(dimensions[number] for number in _ids(cursor, name, dimensions))
        of_it, dtypes = cursor.attributes()
        dtype = cursor.dtype()
        cursor.number()  # vsize, which the shape tells as well: it is wrong for variables of 4 GiB and more
        named += sum(len(dimension.name) for dimension in shared)
        if named > max(MOST_NAMES, size):
            raise cursor.error(f"the names of its variables' dimensions have {named} characters, more than the file")
        begin = cursor.uint(4 if cursor.version == 1 else 8)
        variables[name] = Variable(name, shared, of_it, dtypes, dtype, begin)
    recorded = [variable for variable in variables.values() if variable.is_record]
    record_size = sum(variable.slab + -variable.slab % 4 for variable in recorded)
    if len(recorded) == 1:  # whose records follow one another without padding
        record_size = recorded[0].slab
    if records == (1 << 8 * cursor.width) - 1:  # the file was being written as a stream: as many as there are
        begin = min((variable.begin for variable in recorded), default=size)
        records = max(size - begin, 0) // record_size if recorded else 0
    if records >= COUNTABLE:
        raise ManifestError(f"{where}: its number of records is negative: {records}")
    whole = []
    for variable in variables.values():
        what = f"{where}: variable {variable.name!r}"
        first, *others = variable.dimensions or (None,)
        steps, length = 0, variable.slab
        if first is not None and first.is_record:
            variable = msgspec.structs.replace(variable, dimensions=(first._replace(length=records), *others))
            steps, length = max(records - 1, 0) * record_size, length if records else 0
        if length and variable.begin < cursor.at:
            raise ManifestError(f"{what} begins at byte {variable.begin}, within the header")
        end = variable.begin + steps + length
        if length and end > size:
            raise ManifestError(f"{what} is cut short: it ends at byte {end}, the file at {size}")
        whole.append(variable)
    return Header(tuple(dimensions), attributes, tuple(whole), record_size, cursor.at)


def _dimensions(cursor: _Cursor) -> list[Dimension]:
    found: list[Dimension] = []
    for _ in cursor.entries(_DIMENSION, "dimensions"):
        name, length = cursor.name(), cursor.number()
        if not length and any(dimension.is_record for dimension in found):
            raise cursor.error(f"dimension {name!r} is a second one of length 0, which tells the record dimension")
        found.append(Dimension(name, length, not length))
    if len({dimension.name for dimension in found}) < len(found):
        raise cursor.error("two dimensions have one name")
    return found


def _ids(cursor: _Cursor, name: str, dimensions: list[Dimension]) -> tuple[int, ...]:
    """Return the numbers of a variable's dimensions."""
    rank = cursor.number()
    width = cursor.width
    if rank * width > cursor.size - cursor.at:
        raise cursor.error(f"variable {name!r} has {rank} dimensions, more than its {cursor.size} bytes can tell of")
    ids = tuple(np.frombuffer(cursor.take(rank * width), f">u{width}").tolist())
    if any(number >= len(dimensions) for number in ids):
        raise cursor.error(f"variable {name!r} has the dimensions {ids}, of {len(dimensions)} that there are")
    if any(dimensions[number].is_record for number in ids[1:]):
        raise cursor.error(f"the record dimension is not the first one of variable {name!r}")
    return ids
