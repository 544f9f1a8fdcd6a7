"""Write a TIFF file without a library."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate


def make_tiff(
    data: bytes | Sequence[bytes],
    width: int,
    height: int,
    bits: int = 8,
    compression: int = 1,
    **more: int | tuple[float, ...],
) -> bytes:
    """Return a TIFF of one or several strips, by the specification; ``more`` are tags, such as ``t266=2``."""
    strips = [data] if isinstance(data, bytes) else list(data)
    sizes = tuple(map(len, strips))
    places = tuple(accumulate(sizes, initial=8))[:-1]
    tags: dict[int, int | tuple[float, ...]] = {256: width, 257: height, 258: bits, 259: compression, 262: 1}
    tags |= {273: places, 277: 1, 278: height, 279: sizes}
    tags |= {int(name[1:]): value for name, value in more.items()}
    at = 8 + sum(sizes)
    behind = b""
    entries = b""
    for number, value in sorted(tags.items()):
        kind, values = 4, [value] if isinstance(value, int) else list(value)
        if isinstance(values[0], float):  # of type RATIONAL: a numerator and a denominator
            kind = 5
            packed = b"".join(struct.pack("<iI", round(each * 10000), 10000) for each in values)
        else:
            packed = struct.pack(f"<{len(values)}I", *values)
        if len(packed) > 4:
            behind, packed = behind + packed, struct.pack("<I", at + len(behind))
        entries += struct.pack("<HHI", number, kind, len(values)) + packed
    end = struct.pack("<H", len(tags)) + entries + bytes(4)
    return struct.pack("<2sHI", b"II", 42, at + len(behind)) + b"".join(strips) + behind + end
