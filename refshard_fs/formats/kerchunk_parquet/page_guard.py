"""What decoding a parquet file's columns will take, told by the headers of their pages before anything is decoded.

A page header names a number of bytes to be made, and Parquet's own readers make room for them, whatever they are. Here
footer and headers of the columns that will be read are followed as such a reader follows them (``FileMetaData`` and
``PageHeader`` of the Parquet format), and a file is refused where they say what its rows cannot need. No I/O here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from refshard_fs.formats.kerchunk_json.decompress import GRACE, RATIO

__all__ = [
    "BINARY",
    "BOOL",
    "Chunk",
    "DATA",
    "DATA_V2",
    "DICTIONARY",
    "Damaged",
    "Encoding",
    "Fields",
    "Footer",
    "Group",
    "I32",
    "I64",
    "Leaf",
    "Page",
    "Reader",
    "Room",
    "TooMuch",
    "Type",
    "WIDTHS",
    "page_at",
    "pages",
]

# ----------------------------------------------------------------------------------------------------
# Structures in Thrift's compact protocol, as far as Parquet uses it: the fields that are asked for, out of bytes.
#
# Stricter than other readers: what they would skip or let the last one win (a field twice, or of another type) is an
# error, so that what is read here is what any of them reads. No more memory is taken than there are bytes. No I/O here.


BOOL: Final = 2  # or 1, where it is true
I32: Final = 5
I64: Final = 6
BINARY: Final = 8
_LIST, _STRUCT = 9, 12
_BITS: Final = {I32: 31, I64: 63}
_NESTING: Final = 16  # of what is skipped
_THINGS: Final = 100_000  # structures that are kept: they may have been written in a byte each

# What is asked for of a structure: the number of a field → BOOL, I32, I64 or BINARY, the fields of a structure, or a
# list of one such.
Fields = Mapping[int, Any]


class Damaged(ValueError):
    """The bytes are no such structure."""


class Reader:
    """Reads structures from ``data``, from ``at`` on and no further than ``stop``."""

    __slots__ = ("_data", "_stop", "_things", "at")

    def __init__(self, data: bytes, at: int, stop: int) -> None:
        self._data = data
        self._stop = stop
        self._things = _THINGS
        self.at = at

    def struct(self, fields: Fields) -> dict[int, Any]:
        """Return those of a structure's fields that are asked for and there, by number."""
        try:
            found = self._struct(fields)
        except IndexError:  # of the bytes
            raise Damaged("it has no end") from None
        if self.at > self._stop:
            raise Damaged("it has no end")
        return found

    def _struct(self, fields: Fields) -> dict[int, Any]:
        self._things -= 1
        if self._things < 0:
            raise Damaged(f"it has more than {_THINGS} parts")
        data = self._data
        out: dict[int, Any] = {}
        number = 0
        while (byte := data[self.at]) != 0:
            self.at += 1
            kind, step = byte & 15, byte >> 4
            number = number + step if step else self._number(I32)
            wanted = fields.get(number)
            if wanted is None:
                self._skip(kind, _NESTING)
            elif number in out:
                raise Damaged("a field is there twice")
            elif wanted == kind and kind in _BITS:
                out[number] = self._number(kind)
            else:
                out[number] = self._value(kind, wanted)
        self.at += 1
        return out

    def _value(self, kind: int, wanted: Any) -> Any:
        match wanted:
            case int() if wanted == BOOL and kind in (1, 2):
                return kind == 1
            case int() if kind == wanted == BINARY:
                size = self._varint()
                self._pass(size)
                return self._data[self.at - size : self.at]
            case dict() if kind == _STRUCT:
                return self._struct(wanted)
            case [one] if kind == _LIST:
                item, size = self._list()
                if size and item != _STRUCT:
                    raise Damaged("a list is of another type")
                return [self._struct(one) for _ in range(size)]
        raise Damaged("a field is of another type")

    def _varint(self, most: int = 5) -> int:
        at = self.at
        value = self._data[at]
        if value > 127:
            value &= 127
            for shift in range(7, 7 * most, 7):
                at += 1
                byte = self._data[at]
                value |= (byte & 127) << shift
                if byte < 128:
                    break
            else:
                raise Damaged("a number has no end")
        self.at = at + 1
        return value

    def _number(self, kind: int) -> int:
        value = self._varint(5 if kind == I32 else 10)
        number = (value >> 1) ^ -(value & 1)
        if value > 127 and not -(1 << _BITS[kind]) <= number < 1 << _BITS[kind]:
            raise Damaged("a number is too large")
        return number

    def _list(self) -> tuple[int, int]:
        """Return the type of a list's items, and how many there are: each of them takes a byte at least."""
        byte = self._data[self.at]
        self.at += 1
        size = byte >> 4
        if size == 15:
            size = self._varint()
        if size > self._stop - self.at:
            raise Damaged("a list is longer than there are bytes")
        return byte & 15, size

    def _pass(self, size: int) -> None:
        if size > self._stop - self.at:
            raise Damaged("it has no end")
        self.at += size

    def _skip(self, kind: int, nesting: int, *, listed: bool = False) -> None:
        """Go behind a value of the type ``kind``, which is ``listed`` or a field."""
        if not nesting:
            raise Damaged("it nests too deep")
        match kind:
            case 4 | 5 | 6:
                self._varint(10)
            case 8:
                self._pass(self._varint())
            case 1 | 2:
                self.at += listed  # a field's type is its value
            case 3:
                self.at += 1
            case 7:
                self.at += 8
            case 9 | 10:
                item, size = self._list()
                for _ in range(size):
                    self._skip(item, nesting - 1, listed=True)
            case 12:
                while (byte := self._data[self.at]) != 0:
                    self.at += 1
                    if not byte >> 4:
                        self._number(I32)
                    self._skip(byte & 15, nesting - 1)
                self.at += 1
            case _:  # no structure of Parquet's has maps
                raise Damaged("a field is of no known type")


DATA, DICTIONARY, DATA_V2 = 0, 2, 3  # kinds of pages; others are skipped by readers
DECODED: Final = 1 << 30  # bytes that are made of a file, at most
_LATE: Final = 100  # bytes that the column chunks of an old writer have more than it says: readers read on
_TAIL: Final = 8  # bytes: the footer's length, and the magic

_FOOTER: Final[Fields] = {
    2: [{1: I32, 3: I32, 4: BINARY, 5: I32, 6: I32, 10: {1: {}}}],  # schema: see Leaf
    3: I64,  # num_rows
    4: [  # row_groups
        {
            1: [{1: BINARY, 3: {1: I32, 4: I32, 5: I64, 7: I64, 9: I64, 11: I64}}],  # columns: see Chunk
            3: I64,  # num_rows
        }
    ],
}
_HEADER: Final[Fields] = {
    1: I32,  # type
    2: I32,  # uncompressed_page_size
    3: I32,  # compressed_page_size
    4: I32,  # crc
    5: {1: I32, 2: I32},  # of a data page: num_values, encoding
    7: {1: I32, 2: I32},  # of a dictionary
    # of a data page, version 2: num_values, encoding, bytes of levels, is_compressed
    8: {1: I32, 4: I32, 5: I32, 6: I32, 7: BOOL},
}
# where each kind tells of itself, and its encoding
_OWN: Final = {DATA: (5, 2), DICTIONARY: (7, 2), DATA_V2: (8, 4)}


class Type(IntEnum):
    """Physical types; columns of others are none of ours."""

    INT32 = 1
    INT64 = 2
    INT96 = 3
    FLOAT = 4
    DOUBLE = 5
    BYTE_ARRAY = 6


class Encoding(IntEnum):
    """Encodings of values."""

    PLAIN = 0
    PLAIN_DICTIONARY = 2
    RLE = 3
    BIT_PACKED = 4
    DELTA_BINARY_PACKED = 5
    DELTA_LENGTH_BYTE_ARRAY = 6
    DELTA_BYTE_ARRAY = 7
    RLE_DICTIONARY = 8
    BYTE_STREAM_SPLIT = 9


# Bytes of a value at least.
WIDTHS: Final[Mapping[int, int]] = {
    Type.INT32: 4,
    Type.INT64: 8,
    Type.INT96: 12,
    Type.FLOAT: 4,
    Type.DOUBLE: 8,
    Type.BYTE_ARRAY: 4,
}


class Leaf(NamedTuple):
    """A column, as the schema has it.

    ``converted`` is its older logical type, ``is_string`` tells of the newer one; None where it has none.
    """

    name: bytes
    type: int | None
    repetition: int
    children: int
    converted: int | None
    is_string: bool | None


class Chunk(NamedTuple):
    """The pages of a column in a group of rows: ``size`` bytes from the first of two places on; -1: it does not say."""

    type: int
    codec: int
    values: int
    size: int
    data_at: int
    dictionary_at: int
    is_elsewhere: bool


class Group(NamedTuple):
    """A group of rows: its columns, and how many there are; -1: it does not say."""

    chunks: list[Chunk]
    rows: int


class Page(NamedTuple):
    """A page as its header tells it: the ``stored`` bytes from ``start`` on make ``made`` bytes, of so many values.

    Of version 2, ``levels`` of them stand ahead and are not compressed, nor may the others be.
    """

    kind: int
    start: int
    stored: int
    made: int
    values: int = 0
    encoding: int = 0
    crc: int | None = None
    levels: int = 0
    is_compressed: bool = True


class Footer:
    """What the footer of a file says; ValueError if it has none."""

    def __init__(self, data: bytes) -> None:
        end = len(data) - _TAIL
        length = int.from_bytes(data[end : end + 4], "little") if end > 0 else 0
        if not 0 < length <= end:
            raise Damaged("it has no footer")
        found = Reader(data, end - length, end).struct(_FOOTER)
        self.rows: int = found.get(3, -1)
        if self.rows < 0:
            raise Damaged("it does not tell its rows")
        self.schema = [
            Leaf(e.get(4, b""), e.get(1), e.get(3, 0), e.get(5, 0), e.get(6), 1 in e[10] if 10 in e else None)
            for e in found.get(2, ())
        ]
        self.groups = [Group(list(map(_chunk, g.get(1, ()))), g.get(3, -1)) for g in found.get(4, ())]


def _chunk(found: dict[int, Any]) -> Chunk:
    m = found.get(3, {})
    return Chunk(m.get(1, -1), m.get(4, -1), m.get(5, -1), m.get(7, -1), m.get(9, -1), m.get(11, 0), bool(found.get(1)))


class TooMuch(ValueError):
    """More would be made of a file than may be."""


class Room:
    """The bytes that may still be made of a file."""

    def __init__(self, size: int) -> None:
        self._most = self._left = min(max(GRACE, RATIO * size), DECODED)

    def take(self, made: int) -> None:
        """Let ``made`` bytes more be made; TooMuch where they are too many."""
        self._left -= made
        if self._left < 0:
            made = self._most - self._left
            raise TooMuch(f"its pages would make {made} bytes or more, and {self._most} are allowed")


def pages(data: bytes, chunk: Chunk, rows: int, room: Room, width: int) -> Iterator[Page]:
    """Yield the pages of a column chunk, whose values have ``width`` bytes at least.

    ValueError where decoding them may take more than ``rows`` can need, or ``room`` has.
    """
    count, at, first = chunk.values, chunk.data_at, chunk.dictionary_at
    if not 0 <= count <= rows:
        raise Damaged(f"{count} values in {rows} rows")
    if 0 < first < at:
        at = first
    if at < 0 or chunk.size < 0 or at + chunk.size > len(data):
        raise Damaged(f"{chunk.size} bytes at {at}, of {len(data)}")
    stop = min(at + chunk.size + _LATE, len(data))
    seen = 0
    while seen < count and at < stop:
        page = page_at(data, at, stop)
        room.take(page.made)
        if page.values > count or (page.kind == DICTIONARY and page.values * width > page.made):
            raise ValueError(f"a page of {page.made} bytes has {page.values} values, of {count} in all")
        yield page
        seen += page.values if page.kind != DICTIONARY else 0
        at = page.start + page.stored


def page_at(data: bytes, at: int, stop: int) -> Page:
    """Return the page whose header starts at ``at``; ValueError if that is none, or the page ends after ``stop``."""
    reader = Reader(data, at, stop)
    header = reader.struct(_HEADER)
    kind, made, stored = header.get(1), header.get(2, -1), header.get(3, -1)
    start = reader.at
    if kind is None or made < 0 or not 0 <= stored <= stop - start:
        raise Damaged(f"a page of {stored} bytes, that make {made}")
    if kind not in _OWN:
        return Page(kind, start, stored, made)
    field, encoding = _OWN[kind]
    own = header.get(field, {})
    if own.get(1, -1) < 0 or encoding not in own:
        raise Damaged("a page that does not tell its values")
    page = Page(kind, start, stored, made, own[1], own[encoding], header.get(4))
    if kind != DATA_V2:
        return page
    return page._replace(levels=own.get(5, -1) + own.get(6, 0), is_compressed=own.get(7, True))
