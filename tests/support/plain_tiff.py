"""A TIFF file of one strip, written by hand."""

from __future__ import annotations

import struct


def plain_tiff(data: bytes, width: int, height: int, bits: int = 8, compression: int = 1, **more: int) -> bytes:
    """Return a TIFF of one strip, as the specification lays it out; ``more`` are tags, as in ``t266=2``."""
    tags = {256: width, 257: height, 258: bits, 259: compression, 262: 1, 273: 8, 277: 1, 278: height, 279: len(data)}
    tags |= {int(name[1:]): value for name, value in more.items()}
    entries = b"".join(struct.pack("<HHII", number, 4, 1, value) for number, value in sorted(tags.items()))
    return struct.pack("<2sHI", b"II", 42, 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)
