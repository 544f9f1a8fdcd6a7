"""Open NetCDF-3 files: values lie in the file, or an error of this package is raised."""

from __future__ import annotations

import struct
from contextlib import nullcontext as set_up

from refshard_fs.formats.netcdf3.source import open_
from tests.fuzz.array_files import choose_chunks, open_file

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (
    b"CDF\1",
    b"CDF\2",
    b"CDF\5",
    b"\0\0\0\x0a",
    b"\0\0\0\x0b",
    b"\0\0\0\x0c",
    b"\xff" * 8,
    b"_FillValue",
    b"\0" * 8,
)
_LARGEST = 1 << 20  # bytes of a chunk that is read


def make_seeds() -> list[bytes]:
    return [_file(version, records) for version in (1, 2, 5) for records in (0, 3)]


def _file(version: int, records: int) -> bytes:
    """Return a file with a variable without records, and two with records, one of which is their coordinate."""
    count = ">q" if version == 5 else ">i"

    def number(value: int) -> bytes:
        return struct.pack(count, value)

    def text(name: str) -> bytes:
        return number(len(name)) + name.encode() + bytes(-len(name) % 4)

    def entries(tag: int, found: list[bytes]) -> bytes:
        return struct.pack(">i", tag if found else 0) + number(len(found)) + b"".join(found)

    def variable(name: str, ids: list[int], attributes: list[bytes], kind: int, size: int, begin: int) -> bytes:
        where = struct.pack(">i" if version == 1 else ">q", begin)
        head = text(name) + number(len(ids)) + b"".join(map(number, ids)) + entries(12, attributes)
        return head + struct.pack(">i", kind) + number(size) + where

    def header(begin: int) -> bytes:
        dimensions = [text("t") + number(0), text("x") + number(3)]
        fill = text("_FillValue") + struct.pack(">i", 3) + number(1) + b"\xff\xff\0\0"
        variables = [
            variable("fixed", [1], [fill], 3, 8, begin),
            variable("t", [0], [], 6, 8, begin + 8),
            variable("v", [0, 1], [], 5, 12, begin + 16),
        ]
        title = text("title") + struct.pack(">i", 2) + text("a title")
        lists = entries(10, dimensions) + entries(12, [title]) + entries(11, variables)
        return b"CDF" + bytes([version]) + number(records) + lists

    begin = len(header(0))
    return header(begin) + struct.pack(">4h", 1, 2, 3, 0) + struct.pack(">d3f", 1, 2, 3, 4) * records


def check_input(data: bytes) -> None:
    found = open_file(open_, data)
    if found is None:
        return
    files, keys = found
    for key in choose_chunks(keys):
        entry = files.run(keys.lookup(key))
        assert entry is not None
        if (entry.size or 0) <= _LARGEST:
            files.bytes(entry)
