"""Chunks of HDF4 data sets: a header is parsed, and one that contradicts itself is an error."""

from __future__ import annotations

import struct

import pytest

from refshard_fs.formats.hdf4.chunks import cut_parts, parse_chunked


def make_header(count: int = 12, chunk: tuple[int, int] = (3, 4), version: int = 0, fill: bytes = b"\0\7") -> bytes:
    """Make the header of a chunked element with the shape (7, 9) and numbers of two bytes."""
    extents = struct.pack(">6i", 0, 7, chunk[0], 0, 9, chunk[1])
    head = struct.pack(">HiBiiiiHHHHi", 5, 0, version, 3, 63, count, 2, 1962, 8, 0, 0, 2)
    deflate = struct.pack(">HiHHH", 3, 6, 0, 4, 6)
    return head + extents + struct.pack(">i", len(fill)) + fill + deflate


def test_header_of_chunked_element_is_parsed() -> None:
    layout = parse_chunked(make_header())
    assert (layout.length, layout.chunk, layout.shape, layout.table, layout.fill) == (126, (3, 4), (7, 9), 8, b"\0\7")
    assert layout.coding is not None
    assert layout.coding.name == "deflate"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (make_header(count=13), "13 values in a chunk"),
        (make_header(chunk=(0, 4)), "chunks of"),
        (make_header(version=1), "version 1"),
        (make_header()[:40], "cut short"),
        (make_header()[:-2], "cut short"),
    ],
)
def test_damaged_header_of_chunked_element_is_an_error(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_chunked(data)


def test_range_is_cut_out_of_several_parts() -> None:
    parts = [(100, 10), (200, 5), (300, 10)]
    assert cut_parts(parts, 0, 10) == [(100, 10)]
    assert cut_parts(parts, 8, 9) == [(108, 2), (200, 5), (300, 2)]
    assert cut_parts(parts, 15, 10) == [(300, 10)]
