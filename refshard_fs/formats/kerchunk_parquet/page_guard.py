"""A guard in front of pyarrow: refuses parquet files whose pages promise more than their rows can need. No I/O here.

A page header says how many bytes and values its page makes, and a Parquet reader allocates memory for them, whatever
the number. The guard reads the footer and the headers of the pages that pyarrow will read (`FileMetaData` and
`PageHeader` of the Parquet format, in Thrift's compact protocol) and raises ValueError before pyarrow allocates.

pyarrow's own metadata objects cannot be used for that: an encrypted or contradictory footer makes them end the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

DECODED: Final = 1 << 30  # bytes that the pages of a file may make, at most,
RATIO: Final = 500  # and for each byte of the file,
GRACE: Final = 64 << 20  # if they make more than these
OLD_WRITERS: Final = 100  # bytes that a column chunk of old parquet-mr may be longer than it says: readers allow for it

# Types of Thrift's compact protocol.
I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
BYTE_ARRAY: Final = 6  # Parquet's type of texts
_NESTING: Final = 16
_PARTS: Final = 100_000  # structures and list items of a footer: they may take a byte each

# Types of pages; readers skip others.
DATA, DICTIONARY, DATA_V2 = 0, 2, 3
# The field of a page header that describes a page of that type, and the field in there that has the encoding.
_DESCRIPTIONS: Final = {DATA: (5, 2), DICTIONARY: (7, 2), DATA_V2: (8, 4)}

# Encodings of values whose size a page's header, or the number of values, bounds.
_BOUNDED: Final = frozenset([0, 2, 3, 4, 5, 8, 9])
# In these a few bytes may stand for any amount of text.
_UNBOUNDED: Final = {6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY"}


class Damaged(ValueError):
    """The bytes break the format."""


class ThriftReader:
    """Reads structures of Thrift's compact protocol from ``data``, from ``at`` on and no further than ``stop``.

    It is stricter than other readers: a field that comes twice, of which those take the last, is an error. So whatever
    it accepts means the same to them. Lists have no more items than there are bytes.
    """

    def __init__(self, data: bytes, at: int, stop: int) -> None:
        self._data = data
        self._stop = stop
        self._parts = _PARTS
        self.at = at

    def struct(self) -> dict[tuple[int, int], Any]:
        """Return the fields of the next structure by number and type."""
        try:
            found = self._struct(_NESTING)
        except IndexError:
            raise Damaged("it has no end") from None
        if self.at > self._stop:
            raise Damaged("it has no end")
        return found

    def _struct(self, nesting: int) -> dict[tuple[int, int], Any]:
        if not nesting:
            raise Damaged("it nests too deep")
        self._count(1)
        fields: dict[tuple[int, int], Any] = {}
        number = 0
        data = self._data
        while (byte := data[self.at]) != 0:
            self.at += 1
            kind, step = byte & 15, byte >> 4
            number = number + step if step else self._integer(32)
            if not -(1 << 15) <= number < 1 << 15:  # other readers cut it to 16 bits
                raise Damaged(f"a field has the number {number}")
            if (number, kind) in fields:
                raise Damaged("a field is there twice")
            # The type of a boolean field is its value.
            fields[number, kind] = None if kind in (1, 2) else self._value(kind, nesting - 1)
        self.at += 1
        return fields

    def _value(self, kind: int, nesting: int) -> Any:
        match kind:
            case 5:
                return self._integer(32)
            case 4 | 6:
                return self._integer(64)
            case 8:
                return self._bytes(self._varint(32))
            case 1 | 2 | 3:  # booleans in lists, and bytes
                return self._byte()
            case 7:
                return self._bytes(8)
            case 9 | 10:
                return self._list(nesting)
            case 12:
                return self._struct(nesting)
        raise Damaged(f"a field is of the unknown type {kind}")

    def _list(self, nesting: int) -> list[Any]:
        if not nesting:
            raise Damaged("it nests too deep")
        byte = self._byte()
        size = byte >> 4
        if size == 15:
            size = self._varint(32)
        if size > self._stop - self.at:
            raise Damaged("a list is longer than there are bytes")
        self._count(size)
        return [self._value(byte & 15, nesting - 1) for _ in range(size)]

    def _count(self, parts: int) -> None:
        self._parts -= parts
        if self._parts < 0:
            raise Damaged(f"it has more than {_PARTS} parts")

    def _byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte

    def _bytes(self, size: int) -> bytes:
        if size > self._stop - self.at:
            raise Damaged("it has no end")
        self.at += size
        return self._data[self.at - size : self.at]

    def _varint(self, bits: int) -> int:
        value = self._data[self.at]
        self.at += 1
        if value < 128:  # as most are
            return value
        value &= 127
        for shift in range(7, bits + 3, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                if value >> bits:
                    raise Damaged("a number is too large")
                return value
        raise Damaged("a number has no end")

    def _integer(self, bits: int) -> int:
        value = self._varint(bits)
        return (value >> 1) ^ -(value & 1)


class ColumnChunk(NamedTuple):
    """The pages of a column in a row group: ``size`` bytes from ``at`` on; -1 where the footer does not say."""

    values: int
    at: int
    size: int


class Footer:
    """What the footer of a file says: its rows, and for each row group its rows and columns. ValueError if damaged.

    ``texts`` names the columns of texts or bytes; ``notes`` are its key-value metadata.
    """

    def __init__(self, data: bytes) -> None:
        end = len(data) - 8  # before the footer's length and the magic
        length = int.from_bytes(data[end : end + 4], "little") if end > 0 else 0
        if not 0 < length <= end:
            raise Damaged("it has no footer")
        fields = ThriftReader(data, end - length, end).struct()
        self.rows: int = fields.get((3, I64), -1)
        if self.rows < 0:
            raise Damaged("it does not tell its rows")
        names = [item.get((4, BINARY), b"") for item in _structs(fields, 2) if item.get((1, I32)) == BYTE_ARRAY]
        self.texts = {name.decode(errors="replace") for name in names}
        self.notes = {item.get((1, BINARY)): item.get((2, BINARY), b"") for item in _structs(fields, 5)}
        self.groups = [(group.get((3, I64), -1), _chunks(group)) for group in _structs(fields, 4)]


def _structs(fields: dict[tuple[int, int], Any], number: int) -> list[dict[tuple[int, int], Any]]:
    found: list[Any] = fields.get((number, LIST), [])
    if not all(isinstance(item, dict) for item in found):
        raise Damaged("a list is of another type")
    return found


def _chunks(group: dict[tuple[int, int], Any]) -> list[ColumnChunk]:
    chunks = []
    for column in _structs(group, 1):
        meta = column.get((3, STRUCT), {})
        data_at, dictionary_at = meta.get((9, I64), -1), meta.get((11, I64), 0)
        at = dictionary_at if 0 < dictionary_at < data_at else data_at
        chunks.append(ColumnChunk(meta.get((5, I64), -1), at, meta.get((7, I64), -1)))
    return chunks


class Page(NamedTuple):
    """A page by its header: the ``stored`` bytes from ``start`` on make ``made`` bytes, which are ``values`` values."""

    kind: int
    start: int
    stored: int
    made: int
    values: int = 0
    encoding: int = 0


def page_at(data: bytes, at: int, stop: int) -> Page:
    """Return the page whose header begins at ``at``; ValueError if there is none, or it ends after ``stop``."""
    reader = ThriftReader(data, at, stop)
    header = reader.struct()
    kind, made, stored = header.get((1, I32)), header.get((2, I32), -1), header.get((3, I32), -1)
    start = reader.at
    if kind is None or made < 0 or not 0 <= stored <= stop - start:
        raise Damaged(f"a page of {stored} bytes, that make {made}")
    if kind not in _DESCRIPTIONS:
        return Page(kind, start, stored, made)
    field, encoding = _DESCRIPTIONS[kind]
    description = header.get((field, STRUCT), {})
    values = description.get((1, I32), -1)
    if values < 0 or (encoding, I32) not in description:
        raise Damaged("a page that does not tell its values")
    return Page(kind, start, stored, made, values, description[encoding, I32])


def check_columns(data: bytes, footer: Footer, columns: Mapping[str, tuple[int, int]]) -> None:
    """Raise ValueError where decoding ``columns`` may take more memory than their rows can need, or than there may be.

    Each has its number among all columns, and how many bytes a value takes at least.
    """
    most = left = min(max(GRACE, RATIO * len(data)), DECODED)
    for rows, chunks in footer.groups:
        for name, (number, width) in columns.items():
            if number >= len(chunks):
                raise Damaged("a group of rows lacks a column")
            try:
                for page in _pages(data, chunks[number], rows, width):
                    left -= page.made
                    if left < 0:
                        raise ValueError(f"its pages would make {most - left} bytes or more, and {most} are allowed")
            except ValueError as e:
                raise ValueError(f"its column {name!r} cannot be read: {e}") from e


def _pages(data: bytes, chunk: ColumnChunk, rows: int, width: int) -> Iterator[Page]:
    """Yield the pages of a column chunk as pyarrow finds them; ValueError where one promises more than it can hold."""
    if not 0 <= chunk.values <= rows:
        raise Damaged(f"{chunk.values} values in {rows} rows")
    if chunk.at < 0 or chunk.size < 0 or chunk.at + chunk.size > len(data):
        raise Damaged(f"{chunk.size} bytes at {chunk.at}, of {len(data)}")
    at = chunk.at
    stop = min(at + chunk.size + OLD_WRITERS, len(data))
    seen = 0
    while seen < chunk.values and at < stop:
        page = page_at(data, at, stop)
        if page.values > chunk.values or (page.kind == DICTIONARY and page.values * width > page.made):
            raise ValueError(f"a page of {page.made} bytes has {page.values} values, of {chunk.values} in all")
        _check_encoding(page.encoding)
        yield page
        if page.kind != DICTIONARY:
            seen += page.values
        at = page.start + page.stored


def _check_encoding(encoding: int) -> None:
    if encoding in _UNBOUNDED:
        raise ValueError(
            f"a page has the encoding {_UNBOUNDED[encoding]}, of which a few bytes may make any number: write it plain "
            "or with a dictionary"
        )
    if encoding not in _BOUNDED:
        raise ValueError(f"a page has the encoding {encoding}, which Parquet does not define")
