"""Open GRIB files of both editions with sidecars: all fields lie in the file, or an error of this package is raised."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np

from refshard_fs.core.model import Packed
from refshard_fs.formats.grib2.library import _CENTRES, name_parameter
from refshard_fs.formats.grib2.messages import TEMPLATES, Parameter, Surface
from refshard_fs.formats.grib2.source import open_
from tests.fuzz.array_files import choose_chunks, open_file
from tests.support.grib_messages import make_message
from tests.support.shards_in_memory import ROOT

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (
    b"GRIB\0\0\0\2",
    b"GRIB\0\0\x6c\1",
    b"7777",
    b"\0\0\0\x22\4",
    b"\0\0\0\5\7",
    b"\xff" * 8,
    b"\0" * 8,
    b"\xfe",
    b'{"_offset": 0}',
    b"1:0:d",
)
VALUES = np.arange(4.0)
END = b"\n--\n"  # between a file and its sidecar


@contextmanager
def set_up() -> Iterator[None]:
    """Make eccodes read all tables of centres and projects before memory is measured."""
    surface = Surface(100, 0, 50000)
    for centre in _CENTRES:
        name_parameter(Parameter(0, 0, 0, centre, (28, 1), 0, 0, 255, 0, (surface, surface)))
        name_parameter(
            Parameter(0, 128, 130, centre, (0, 0), 0, 0, 255, 0, (surface, surface._replace(kind=255)), edition=1)
        )
    for status in (4, 6, 8, 12, 14, 16):
        name_parameter(Parameter(0, 0, 0, 98, (28, 1), 0, status, 255, 0, (surface, surface)))
    yield


def make_seeds() -> list[bytes]:
    one = _section(1, bytes(7) + struct.pack(">HBBBBB", 2024, 2, 3, 4, 5, 6) + b"\0\1")
    corners = struct.pack(">iiBiiiiB", 10, 20, 48, 0, 30, 10, 10, 0)
    grid = _section(3, struct.pack(">BIBBH", 0, 6, 0, 0, 0) + bytes(16) + struct.pack(">IIII", 3, 2, 0, 0) + corners)
    instant = struct.pack(">HHBBBBBHBBIBBIBBI", 0, 0, 0, 0, 2, 0, 0, 0, 0, 1, 6, 100, 0, 50000, 255, 0, 0)
    summed = struct.pack(">HHBB", 0, 8, 1, 8) + instant[6:]
    range_ = struct.pack(">HBBBBBBIBBBIBI", 2024, 2, 3, 10, 5, 6, 1, 0, 1, 2, 1, 6, 1, 0)
    rest = _section(5, struct.pack(">IH", 6, 0) + bytes(10)) + _section(6, b"\xff") + _section(7, bytes(6))
    first, second = (_section(4, product) + rest for product in (instant, summed + range_))
    messages = [_message(one + grid + first), _message(one + grid + first + second), _message(one + grid + second)]
    data = b"".join(messages)
    index = f"1:0:d=2024:TMP\n2:{len(messages[0])}:d=2024".encode()
    return [
        messages[0] + END,
        data + END,
        data[: len(messages[0]) * 2] + END,
        data + END + index,
        data + END + b'{"_offset": 0}',
        make_message_1() + messages[0] + END,
        make_message_1() + make_message_1() + END,
        *(message + END for message in _make_products()),
    ]


@cache
def _make_products() -> list[bytes]:
    """Return a message of each template of products."""
    return [make_message(VALUES, productDefinitionTemplateNumber=template, Ni=2, Nj=2) for template in TEMPLATES]


def make_message_1() -> bytes:
    """Return a message of edition 1: six points, of which four have a value."""
    local = bytes(12) + b"\1\1\2\4\0" + b"0001" + b"\3\0\0"
    product = b"\0\0\x34\x80\x62\x80\xff\xc0\x82\x64\1\xf4\x18\2\3\4\5\1\0\6\4\0\0\0\x15\0\0\0" + local
    grid = b"\0\0\x20\0\xff\0\0\3\0\2" + bytes(3) + b"\0\0\0\x80\0\0\1\0\0\x1e\0\x0a\0\x0a\0" + bytes(4)
    bitmap, packed = b"\0\0\7\2\0\0\xb4", b"\0\0\x0f\0\0\0\x42\x64\0\0\x08\1\2\3\4"
    sections = product + grid + bitmap + packed + b"7777"
    return b"GRIB" + (8 + len(sections)).to_bytes(3) + b"\1" + sections


def _section(number: int, content: bytes) -> bytes:
    return struct.pack(">IB", len(content) + 5, number) + content


def _message(sections: bytes) -> bytes:
    return b"GRIB\0\0\0\2" + struct.pack(">Q", len(sections) + 20) + sections + b"7777"


def check_input(data: bytes) -> None:
    data, _, index = data.partition(END)
    found = open_file(open_, data, {ROOT + ".idx": index} if index else None)
    if found is None:
        return
    files, keys = found
    for key in choose_chunks(keys):
        entry = files.run(keys.lookup(key))
        if isinstance(entry, Packed):
            assert all(0 <= span.start < (span.stop or 0) <= len(data) for span in entry.spans)
