"""Chunks of HDF4 data sets: headers that contradict themselves are errors."""

from __future__ import annotations

import struct

import pytest

from refshard_fs.formats.hdf4.chunks import cut, parse_chunked


def header(count: int = 12, chunk: tuple[int, int] = (3, 4), version: int = 0, fill: bytes = b"\0\7") -> bytes:
    """Return the header of a chunked element of 7 * 9 elements of two bytes."""
    cells = struct.pack(">6i", 0, 7, chunk[0], 0, 9, chunk[1])
    head = struct.pack(">HiBiiiiHHHHi", 5, 0, version, 3, 63, count, 2, 1962, 8, 0, 0, 2)
    deflate = struct.pack(">HiHHH", 3, 6, 0, 4, 6)
    return head + cells + struct.pack(">i", len(fill)) + fill + deflate


def test_header_gives_chunk_layout() -> None:
    found = parse_chunked(header())
    assert (found.length, found.chunk, found.shape, found.table, found.fill) == (126, (3, 4), (7, 9), 8, b"\0\7")
    assert found.coding is not None
    assert found.coding.name == "deflate"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header(count=13), "13 elements"),
        (header(chunk=(0, 4)), "chunks of"),
        (header(version=1), "version 1"),
        (header()[:40], "cut short"),
        (header()[:-2], "cut short"),
    ],
)
def test_damaged_header_is_an_error(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_chunked(data)


def test_ranges_are_cut_from_several_parts() -> None:
    parts = [(100, 10), (200, 5), (300, 10)]
    assert cut(parts, 0, 10) == [(100, 10)]
    assert cut(parts, 8, 9) == [(108, 2), (200, 5), (300, 2)]
    assert cut(parts, 15, 10) == [(300, 10)]
