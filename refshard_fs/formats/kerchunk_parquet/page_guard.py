"""Refuse parquet files that would take far more memory than their rows need, before pyarrow reads them. No I/O here.

A page header states the decoded size and the number of values of its page. pyarrow allocates memory for them without a
check. This module parses the footer and the headers of the pages that pyarrow will read (`FileMetaData` and
`PageHeader` of the Parquet format, in Thrift's compact protocol), and raises ValueError before pyarrow allocates them.

This module does not use pyarrow's objects for metadata: for an encrypted or contradictory footer, they end the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

# All pages of a file may decode to GRACE bytes, or to RATIO bytes for each byte of the file if that is more, but to at
# most DECODED bytes.
DECODED: Final = 1 << 30
RATIO: Final = 500
GRACE: Final = 64 << 20
OLD_WRITERS: Final = 100  # a column chunk by an old parquet-mr may have this many bytes more than its metadata state

# Types of Thrift's compact protocol.
I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
BYTE_ARRAY: Final = 6  # Parquet's type of texts and bytes
_NESTING: Final = 16  # the most levels of structures and lists
_PARTS: Final = 100_000  # the most structures and list items in a footer: each may take only one byte

# Types of pages; pyarrow skips pages of other types.
DATA, DICTIONARY, DATA_V2 = 0, 2, 3
# For each type of page: the number of the field in the page header that describes the page, and the number of the field
# in this description that has the encoding.
_DESCRIPTIONS: Final = {DATA: (5, 2), DICTIONARY: (7, 2), DATA_V2: (8, 4)}

# Encodings whose decoded size is bounded by the page header or the number of values.
_BOUNDED: Final = frozenset([0, 2, 3, 4, 5, 8, 9])
# Encodings in which a few bytes may stand for any amount of text.
_UNBOUNDED: Final = {6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY"}


class DamagedParquet(ValueError):
    """The bytes do not follow the Parquet format."""


class ThriftReader:
    """Read structures of Thrift's compact protocol from bytes ``at`` to ``stop`` of ``data``.

    Bytes that readers may interpret differently are refused, so that pyarrow reads the values that were checked. For
    example, a repeated field is an error, while other readers use its last value. A list may not have more items than
    bytes are left.
    """

    def __init__(self, data: bytes, at: int, stop: int) -> None:
        self._data = data
        self._stop = stop
        self._parts = _PARTS
        self.at = at

    def read_struct(self) -> dict[tuple[int, int], Any]:
        """Return the fields of the next structure by (number, type)."""
        try:
            fields = self._read_struct(_NESTING)
        except IndexError:
            raise DamagedParquet(f"a structure is cut short: expected its end up to byte {self._stop}") from None
        if self.at > self._stop:
            raise DamagedParquet(f"a structure ends at byte {self.at}: expected at most {self._stop}")
        return fields

    def _read_struct(self, nesting: int) -> dict[tuple[int, int], Any]:
        if not nesting:
            raise DamagedParquet(f"its structures are nested too deeply: expected at most {_NESTING} levels")
        self._count_parts(1)
        fields: dict[tuple[int, int], Any] = {}
        number = 0
        data = self._data
        while (byte := data[self.at]) != 0:
            self.at += 1
            kind, step = byte & 15, byte >> 4
            number = number + step if step else self._read_integer(32)
            if not -(1 << 15) <= number < 1 << 15:  # other readers drop the higher bits
                raise DamagedParquet(f"a field has the number {number}: expected -2**15 to 2**15-1")
            if (number, kind) in fields:
                raise DamagedParquet(f"a structure has the field {number} twice: expected each field once")
            # The type of a boolean field is its value.
            fields[number, kind] = None if kind in (1, 2) else self._read_value(kind, nesting - 1)
        self.at += 1
        return fields

    def _read_value(self, kind: int, nesting: int) -> Any:
        match kind:
            case 5:
                return self._read_integer(32)
            case 4 | 6:
                return self._read_integer(64)
            case 8:
                return self._read_bytes(self._read_varint(32))
            case 1 | 2 | 3:  # booleans in lists, and bytes
                return self._read_byte()
            case 7:
                return self._read_bytes(8)
            case 9 | 10:
                return self._read_list(nesting)
            case 12:
                return self._read_struct(nesting)
        raise DamagedParquet(f"a field is of the type {kind}: expected 1 to 10, or 12")

    def _read_list(self, nesting: int) -> list[Any]:
        if not nesting:
            raise DamagedParquet(f"its lists are nested too deeply: expected at most {_NESTING} levels")
        byte = self._read_byte()
        size = byte >> 4
        if size == 15:
            size = self._read_varint(32)
        if size > self._stop - self.at:
            left = self._stop - self.at
            raise DamagedParquet(f"a list states {size} items: expected at most {left}, the bytes that are left")
        self._count_parts(size)
        return [self._read_value(byte & 15, nesting - 1) for _ in range(size)]

    def _count_parts(self, parts: int) -> None:
        """Count structures and list items; raise DamagedParquet if there are too many."""
        self._parts -= parts
        if self._parts < 0:
            raise DamagedParquet(f"expected at most {_PARTS} structures and list items, found more")

    def _read_byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte

    def _read_bytes(self, size: int) -> bytes:
        if size > self._stop - self.at:
            raise DamagedParquet(f"a text has {size} bytes: expected at most {self._stop - self.at}, which are left")
        self.at += size
        return self._data[self.at - size : self.at]

    def _read_varint(self, bits: int) -> int:
        start, value = self.at, self._data[self.at]
        self.at += 1
        if value < 128:  # most numbers have one byte
            return value
        value &= 127
        for shift in range(7, bits + 3, 7):
            byte = self._read_byte()
            value |= (byte & 127) << shift
            if byte < 128:
                if value >> bits:
                    raise DamagedParquet(f"a number has {value.bit_length()} bits: expected at most {bits}")
                return value
        raise DamagedParquet(f"a number has more than {self.at - start} bytes: expected at most {bits} bits")

    def _read_integer(self, bits: int) -> int:
        value = self._read_varint(bits)
        return (value >> 1) ^ -(value & 1)


class ColumnChunk(NamedTuple):
    """The pages of a column in a row group: ``size`` bytes from byte ``at`` on, with ``values`` values.

    A number that the footer lacks is -1.
    """

    values: int
    at: int
    size: int


class Footer:
    """The footer of a file: its number of ``rows``, and for each row group its number of rows and its columns.

    ``texts`` are the names of columns of texts or bytes; ``notes`` are the key-value metadata.
    """

    def __init__(self, data: bytes) -> None:
        """Parse the footer of the file ``data``; DamagedParquet if it is damaged."""
        end = len(data) - 8  # before the footer's length and the magic
        length = int.from_bytes(data[end : end + 4], "little") if end > 0 else 0
        if not 0 < length <= end:
            raise DamagedParquet(f"its last 8 bytes state a footer of {length} bytes: expected 1 to {max(end, 0)}")
        fields = ThriftReader(data, end - length, end).read_struct()
        self.rows: int = fields.get((3, I64), -1)
        if self.rows < 0:
            raise DamagedParquet("expected the number of rows in its footer, found none")
        names = [item.get((4, BINARY), b"") for item in _get_structs(fields, 2) if item.get((1, I32)) == BYTE_ARRAY]
        self.texts = {name.decode(errors="replace") for name in names}
        self.notes = {item.get((1, BINARY)): item.get((2, BINARY), b"") for item in _get_structs(fields, 5)}
        self.groups = [(group.get((3, I64), -1), _parse_chunks(group)) for group in _get_structs(fields, 4)]


def _get_structs(fields: dict[tuple[int, int], Any], number: int) -> list[dict[tuple[int, int], Any]]:
    """Return the list of structures in field ``number``; an empty list if it is absent."""
    items: list[Any] = fields.get((number, LIST), [])
    if not all(isinstance(item, dict) for item in items):
        raise DamagedParquet(f"field {number} is a list: expected only structures as items, found others")
    return items


def _parse_chunks(group: dict[tuple[int, int], Any]) -> list[ColumnChunk]:
    """Return the columns of a row group."""
    chunks = []
    for column in _get_structs(group, 1):
        meta = column.get((3, STRUCT), {})
        data_at, dictionary_at = meta.get((9, I64), -1), meta.get((11, I64), 0)
        at = dictionary_at if 0 < dictionary_at < data_at else data_at
        chunks.append(ColumnChunk(meta.get((5, I64), -1), at, meta.get((7, I64), -1)))
    return chunks


class Page(NamedTuple):
    """A page: ``stored_size`` bytes from byte ``start`` on, decoded ``decoded_size`` bytes, with ``values`` values."""

    kind: int
    start: int
    stored_size: int
    decoded_size: int
    values: int = 0
    encoding: int = 0


def parse_page_header(data: bytes, at: int, stop: int) -> Page:
    """Parse the page header at byte ``at``. Raise ValueError if it is damaged, or its page ends after ``stop``."""
    reader = ThriftReader(data, at, stop)
    header = reader.read_struct()
    kind, decoded_size, stored_size = header.get((1, I32)), header.get((2, I32), -1), header.get((3, I32), -1)
    start = reader.at
    if kind is None or decoded_size < 0 or not 0 <= stored_size <= stop - start:
        raise DamagedParquet(
            f"a page header states the type {kind}, {stored_size} bytes, and {decoded_size} decoded bytes: expected a "
            f"type, at most {stop - start} bytes, and at least 0 decoded bytes"
        )
    if kind not in _DESCRIPTIONS:
        return Page(kind, start, stored_size, decoded_size)
    field, encoding = _DESCRIPTIONS[kind]
    description = header.get((field, STRUCT), {})
    values = description.get((1, I32), -1)
    if values < 0 or (encoding, I32) not in description:
        raise DamagedParquet(
            f"a page header states {description.get((1, I32))} values and the encoding "
            f"{description.get((encoding, I32))}: expected at least 0 values, and an encoding"
        )
    return Page(kind, start, stored_size, decoded_size, values, description[encoding, I32])


def check_columns(data: bytes, footer: Footer, columns: Mapping[str, tuple[int, int]]) -> None:
    """Raise ValueError if decoding ``columns`` may take more memory than their rows need, or than the limits allow.

    ``columns`` has for each name the index of the column in the file, and the smallest size of a value in bytes.
    """
    most = left = min(max(GRACE, RATIO * len(data)), DECODED)
    for rows, chunks in footer.groups:
        for name, (number, width) in columns.items():
            if number >= len(chunks):
                raise DamagedParquet(f"a row group has {len(chunks)} columns: expected column {number}, {name!r}")
            try:
                for page in _walk_pages(data, chunks[number], rows, width):
                    left -= page.decoded_size
                    if left < 0:
                        raise ValueError(
                            f"the pages up to this column decode to {most - left} bytes or more: expected at most "
                            f"{most} for all columns"
                        )
            except ValueError as e:
                raise ValueError(f"its column {name!r} cannot be read: {e}") from e


def _walk_pages(data: bytes, chunk: ColumnChunk, rows: int, width: int) -> Iterator[Page]:
    """Yield the pages of a column chunk that pyarrow reads. Raise ValueError if a page cannot have the stated size."""
    if not 0 <= chunk.values <= rows:
        raise DamagedParquet(f"it has {chunk.values} values: expected at most {rows}, one for each row")
    if chunk.at < 0 or chunk.size < 0 or chunk.at + chunk.size > len(data):
        raise DamagedParquet(
            f"its pages have {chunk.size} bytes from byte {chunk.at} on: expected a range in the file of {len(data)} "
            "bytes"
        )
    at = chunk.at
    stop = min(at + chunk.size + OLD_WRITERS, len(data))
    seen = 0
    while seen < chunk.values and at < stop:
        page = parse_page_header(data, at, stop)
        if page.values > chunk.values or (page.kind == DICTIONARY and page.values * width > page.decoded_size):
            raise ValueError(
                f"a page of {page.decoded_size} bytes has {page.values} values: expected at most {chunk.values}, and "
                f"at least {width} bytes for each value of a dictionary"
            )
        _check_encoding(page.encoding)
        yield page
        if page.kind != DICTIONARY:
            seen += page.values
        at = page.start + page.stored_size


def _check_encoding(encoding: int) -> None:
    """Raise ValueError for an encoding whose decoded size has no bound, or that is unknown."""
    if encoding in _UNBOUNDED:
        raise ValueError(
            f"a page has the encoding {_UNBOUNDED[encoding]}, whose decoded size has no bound: write the file with the "
            "encoding PLAIN or a dictionary"
        )
    if encoding not in _BOUNDED:
        raise ValueError(f"a page has the encoding {encoding}: expected one of {sorted(_BOUNDED)}")
