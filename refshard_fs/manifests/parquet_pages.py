"""What decoding a parquet file's columns will take, told by the headers of their pages before anything is decoded.

A page header names a number of bytes to be made, and Parquet's own readers make room for them, whatever they are. Here
footer and headers of the columns that will be read are followed as such a reader follows them (``FileMetaData`` and
``PageHeader`` of the Parquet format), and a file is refused where they say what its rows cannot need. No I/O here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from refshard_fs.manifests.inflate import GRACE, RATIO
from refshard_fs.manifests.thrift import BINARY, I32, I64, Damaged, Fields, Reader

__all__ = ["Footer", "Page", "check_pages", "page_at"]

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # kinds of pages; others are skipped by readers
# PLAIN, those of dictionaries, RLE, BIT_PACKED, DELTA_BINARY_PACKED and BYTE_STREAM_SPLIT: what they make is as long as
# the page tells, or as its values are. Those of texts by lengths and differences make what they like of a few bytes.
_ENCODINGS: Final = frozenset([0, 2, 3, 4, 5, 8, 9])
# Bytes of a value at least, by its physical type; columns of other types are none of ours.
_WIDTHS: Final = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_LATE: Final = 100  # bytes that the column chunks of an old writer have more than it says: readers read on
_TAIL: Final = 8  # bytes: the footer's length, and the magic

_CHUNK: Final[Fields] = {
    5: I64,  # num_values
    7: I64,  # total_compressed_size
    9: I64,  # data_page_offset
    11: I64,  # dictionary_page_offset
}
_FOOTER: Final[Fields] = {
    2: [{4: BINARY}],  # schema: name
    4: [{1: [{3: _CHUNK}], 3: I64}],  # row_groups: columns (meta_data), num_rows
}
_HEADER: Final[Fields] = {
    1: I32,  # type
    2: I32,  # uncompressed_page_size
    3: I32,  # compressed_page_size
    5: {1: I32, 2: I32},  # of a data page: num_values, encoding
    7: {1: I32, 2: I32},  # of a dictionary
    8: {1: I32, 4: I32},  # of a data page, version 2
}
_OWN: Final = {
    _DATA: (5, 2),
    _DICTIONARY: (7, 2),
    _DATA_V2: (8, 4),
}  # where each kind tells of itself, and its encoding


class Page(NamedTuple):
    """A page as its header tells it: the ``stored`` bytes from ``start`` on make ``made`` bytes, of so many values."""

    kind: int
    start: int
    stored: int
    made: int
    values: int = 0
    encoding: int = 0


class Footer:
    """What the footer of a file says; ValueError if it has none."""

    def __init__(self, data: bytes) -> None:
        end = len(data) - _TAIL
        length = int.from_bytes(data[end : end + 4], "little") if end > 0 else 0
        if not 0 < length <= end:
            raise Damaged("it has no footer")
        found = Reader(data, end - length, end).struct(_FOOTER)
        self.names = frozenset(item.get(4, b"") for item in found.get(2, ()))
        self.groups: list[dict[int, Any]] = found.get(4, [])


def check_pages(data: bytes, footer: Footer, schema: Any, names: Collection[str]) -> None:
    """Raise ValueError where decoding the columns ``names`` of ``data`` may take more than their rows can need.

    ``schema`` is what pyarrow makes of the footer: a column is the leaf of the same number, whatever else it is called.
    """
    wanted = []
    for number in range(len(schema)):
        column = schema.column(number)
        path = column.path
        name = path.partition(".")[0]
        if name in names:
            wanted.append((number, name, _width(name, path, column)))
    most = max(GRACE, RATIO * len(data))
    made = 0
    for group in footer.groups:
        chunks = group.get(1, ())
        for number, name, width in wanted:
            if number >= len(chunks):
                raise Damaged("a group of rows lacks a column")
            try:
                made += _made(data, chunks[number].get(3, {}), group.get(3, -1), width, most - made)
            except ValueError as e:
                raise ValueError(f"its column {name!r} cannot be read: {e}") from e


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
    return Page(kind, start, stored, made, own[1], own[encoding])


def _width(name: str, path: str, column: Any) -> int:
    if path != name or column.max_repetition_level or column.max_definition_level > 1:
        raise ValueError(f"its column {name!r} is nested")
    kind = column.physical_type
    if kind not in _WIDTHS:
        raise ValueError(f"its column {name!r} is of the type {kind}")
    return _WIDTHS[kind]


def _made(data: bytes, chunk: dict[int, Any], rows: int, width: int, most: int) -> int:
    """Return the bytes that the pages of a column chunk make; ValueError if they are more than ``most``."""
    count, size, at, first = chunk.get(5, -1), chunk.get(7, -1), chunk.get(9, -1), chunk.get(11, 0)
    if not 0 <= count <= rows:
        raise Damaged(f"{count} values in {rows} rows")
    if 0 < first < at:
        at = first
    if at < 0 or size < 0 or at + size > len(data):
        raise Damaged(f"{size} bytes at {at}, of {len(data)}")
    stop = min(at + size + _LATE, len(data))
    seen = made = 0
    while seen < count and at < stop:
        page = page_at(data, at, stop)
        made += page.made
        if made > most:
            raise ValueError(f"its pages would make {made} bytes or more, and {most} are allowed")
        if page.values > count or (page.kind == _DICTIONARY and page.values * width > page.made):
            raise ValueError(f"a page of {page.made} bytes has {page.values} values, of {count} in all")
        if page.encoding not in _ENCODINGS:
            raise ValueError(f"a page has the encoding {page.encoding}, which is not read here")
        seen += page.values if page.kind != _DICTIONARY else 0
        at = page.start + page.stored
    return made
