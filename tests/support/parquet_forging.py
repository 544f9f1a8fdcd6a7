"""Forge page headers of real parquet files: another header of the same length states other sizes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from refshard_fs.formats.kerchunk_parquet.page_guard import Page, parse_page_header

__all__ = ["DATA", "DATA_V2", "DICTIONARY", "Found", "forge", "list_pages", "make_partition", "encode_varint"]

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
OWN = {DATA: 5, DICTIONARY: 7, DATA_V2: 8}


class Found(NamedTuple):
    """A page of a file: the position of its header, and the content of the header."""

    at: int
    page: Page


def make_partition(rows: int = 8, **options: Any) -> bytes:
    """Return a partition whose page headers have room for larger numbers, in place of checksums and statistics."""
    columns = {
        "path": pa.array([f"s3://bucket/{'x' * 40}/{row % 4}" for row in range(rows)]),
        "offset": pa.array(range(rows), pa.int64()),
        "size": pa.array([7] * rows, pa.int64()),
        "raw": pa.array([b"data" if row == 1 else None for row in range(rows)], pa.binary()),
    }
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, write_page_checksum=True, write_statistics=True, **options)
    return out.getvalue()


def list_pages(data: bytes, column: str) -> list[Found]:
    """Return the pages of ``column`` in a file of one group of rows."""
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    (chunk,) = (c for i in range(group.num_columns) if (c := group.column(i)).path_in_schema == column)
    at = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    stop = at + chunk.total_compressed_size
    found = []
    while at < stop:
        found.append(Found(at, parse_page_header(data, at, stop)))
        at = found[-1].page.start + found[-1].page.stored_size
    return found


def forge(data: bytes, found: Found, decoded_size: int | None = None, own: Mapping[int, int] | None = None) -> bytes:
    """Return ``data`` with another page header, which states ``decoded_size`` and the fields ``own`` of its type."""
    page = found.page
    values: dict[int, int] = {1: page.values}
    if page.kind == DATA_V2:
        values |= {2: 0, 3: page.values, 4: page.encoding, 5: 0, 6: 0}
    else:
        values |= {2: page.encoding} | ({3: 3, 4: 3} if page.kind == DATA else {})
    values |= own or {}
    inner = b"".join(b"\x15" + encode_varint(2 * values[number]) for number in sorted(values)) + b"\0"
    fields = [
        (1, b"\x05", encode_varint(2 * page.kind)),
        (2, b"\x05", encode_varint(2 * (page.decoded_size if decoded_size is None else decoded_size))),
    ]
    fields += [(3, b"\x05", encode_varint(2 * page.stored_size)), (OWN[page.kind], b"\x0c", inner)]
    header, last = b"", 0
    for number, kind, value in fields:
        header += bytes([(number - last) << 4 | kind[0]]) + value
        last = number
    room = page.start - found.at - len(header) - 1
    if room:  # an unknown field, which readers skip, fills the length
        assert room >= 2, "there is no room"
        header += bytes([(14 - last) << 4 | 8]) + encode_varint(room - 2) + bytes(room - 2)
    header += b"\0"
    assert len(header) == page.start - found.at
    return data[: found.at] + header + data[page.start :]


def encode_varint(value: int) -> bytes:
    """Return a number as Thrift's compact protocol writes it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
