"""JPEG 2000 files of several tiles, put together from images of one tile by imagecodecs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from refshard_fs.formats.jp2 import SIGNATURE
from refshard_fs.formats.jp2.codestream import SIZ, parse_header

imagecodecs = pytest.importorskip("imagecodecs")

TILE = 128  # pixels; a tile at a multiple of it has the same code blocks as an image of one tile
END = b"\xff\xd9"


def make_smooth_values(*shape: int, dtype: str = "u2") -> np.ndarray[Any, Any]:
    """Return smooth values, with waves along both axes."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    plane = 90 + 40 * np.sin(x / 17) + 30 * np.cos(y / 11) + (x * y) % 7
    values = np.stack([plane + 5 * band for band in range(shape[2])], -1) if len(shape) == 3 else plane
    return values.astype(dtype) * (100 if np.dtype(dtype).itemsize > 1 else 1)


def encode(values: np.ndarray[Any, Any], levels: int = 1, bits: int | None = None) -> bytes:
    """Encode an image as the code stream of one tile."""
    options = {"codecformat": "j2k", "reversible": True, "level": 0, "mct": False, "bitspersample": bits}
    return bytes(imagecodecs.jpeg2k_encode(values, resolutions=levels + 1, **options))


def join_components(parts: Sequence[tuple[np.ndarray[Any, Any], int, tuple[int, int]]]) -> bytes:
    """Return a code stream of one tile without lower resolutions.

    Each of ``parts`` is a component: its values, their bits, and the distance of its samples along x and y.
    """
    components, steps, packets = b"", b"", b""
    for number, (values, bits, (x, y)) in enumerate(parts):
        one = encode(values, 0, bits)
        header = parse_header(one, 0)
        if not number:
            first = header
        _, quantization = next(segment for segment in header.segments if segment[0] == 0xFF5C)
        length = len(quantization) - 1
        steps += struct.pack(">HHB", 0xFF5D, length, number) + quantization[4:]  # QCC instead of QCD
        components += bytes([bits - 1 + 128 * (values.dtype.kind == "i"), x, y])
        packets += one[header.first + 14 : -len(END)]
    segments = b"".join(segment for marker, segment in first.segments if marker != SIZ)
    head = b"\xff\x4f" + first.size._replace(components=components).encode() + segments + steps
    return head + struct.pack(">HHHIBB", 0xFF90, 10, 0, 14 + len(packets), 0, 1) + b"\xff\x93" + packets + END


def encode_tiles(
    values: np.ndarray[Any, Any],
    *,
    tlm: int | None = None,
    is_open: bool = False,
    more: bytes = b"",
    left: int = 0,
    side: int = TILE,
) -> bytes:
    """Return a code stream of ``values`` in tiles, with the table TLM in the form ``tlm``.

    If ``is_open``, the header of the last tile part states the size 0: it reaches the end of the code stream. ``more``
    are segments of the main header, ``side`` the rows and columns of a tile. The first tile of each row lacks ``left``
    columns.
    """
    rows, columns = values.shape[:2]
    parts: list[bytes] = []
    for top in range(0, rows, side):
        for right in range(side - left, columns + side, side):
            tile = values[top : top + side, max(right - side, 0) : right]
            if not tile.size:
                continue
            one = encode(np.ascontiguousarray(tile))
            first = parse_header(one, 0).first
            size = len(one) - first - len(END)
            head = struct.pack(">HHHIBB", 0xFF90, 10, len(parts), size, 0, 1)
            parts.append(head + one[first + 12 : first + size])
    header = parse_header(one, 0)
    size_ = header.size._replace(stop=(left + columns, rows), start=(left, 0), first_tile=(0, 0), tile=(side, side))
    table = b"" if tlm is None else make_table(tlm, [(number, len(part)) for number, part in enumerate(parts)])
    if is_open:
        parts[-1] = parts[-1][:6] + bytes(4) + parts[-1][10:]
    segments = b"".join(segment for marker, segment in header.segments if marker != SIZ)
    return b"\xff\x4f" + size_.encode() + segments + table + more + b"".join(parts) + END


def make_table(form: int, parts: list[tuple[int, int]]) -> bytes:
    """Return the segment TLM. ``form``: 0x10 or 0x20 for numbers of tiles in 1 or 2 bytes, 0x40 for long sizes."""
    kind = {0: "", 0x10: "B", 0x20: "H"}[form & 0x30]
    size = "I" if form & 0x40 else "H"
    rows = [struct.pack(f">{kind}{size}", *([number, length] if kind else [length])) for number, length in parts]
    data = b"".join(rows)
    return struct.pack(">HHBB", 0xFF55, 4 + len(data), 0, form) + data


def make_box(kind: bytes, contents: bytes) -> bytes:
    """Return the bytes of a box."""
    return struct.pack(">I4s", 8 + len(contents), kind) + contents


def make_jp2_file(stream: bytes, *boxes: bytes) -> bytes:
    """Return a JP2 file: ``boxes`` come before the code stream."""
    kind = make_box(b"ftyp", b"jp2 \0\0\0\0jp2 ")
    return b"".join([SIGNATURE, kind, *boxes, make_box(b"jp2c", stream)])


def make_gml_box(origin: str, first: str, second: str, srs: str) -> bytes:
    """Return an association box with a rectified grid in GML."""
    text = (
        '<gml:FeatureCollection xmlns:gml="http://www.opengis.net/gml"><gml:RectifiedGrid dimension="2">'
        f'<gml:origin><gml:Point srsName="{srs}"><gml:pos>{origin}</gml:pos></gml:Point></gml:origin>'
        f"<gml:offsetVector>{first}</gml:offsetVector><gml:offsetVector>{second}</gml:offsetVector>"
        "</gml:RectifiedGrid></gml:FeatureCollection>"
    )
    inner = make_box(b"asoc", make_box(b"lbl ", b"gml.root-instance") + make_box(b"xml ", text.encode()))
    return make_box(b"asoc", make_box(b"lbl ", b"gml.data") + inner)
