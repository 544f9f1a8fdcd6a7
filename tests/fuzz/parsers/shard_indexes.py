"""Decode indexes of zarr shards, v3 and v2: chunks lie in the shard outside of its index, or ValueError is raised."""

from __future__ import annotations

from contextlib import nullcontext as set_up
from functools import cache

import numpy as np

from refshard_fs.core.checksums import crc32c
from refshard_fs.sharding.index import Level, OffsetsLevel, TableIndex
from refshard_fs.sharding.v2 import MaskLevel

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (bytes(8), b"\xff" * 8, b"\xff" * 16, bytes(16))
_SLOTS = 4
_LEVELS: tuple[Level, ...] = (
    *(OffsetsLevel(_SLOTS, at_end=end, checked=checked) for end in (True, False) for checked in (True, False)),
    OffsetsLevel(_SLOTS, big_endian=True),
    OffsetsLevel(_SLOTS, big_endian=True, absent="no length"),
    MaskLevel((2, 2), 10, "fortran"),
    MaskLevel((2, 2), 10, "morton"),
)


@cache
def make_seeds() -> list[bytes]:
    """Return inputs: a byte that chooses the kind of index, two bytes with the shard's size, and an index."""
    pairs = np.array([(0, 10), (10, 20), (2**64 - 1, 2**64 - 1), (100, 7)], np.uint64)
    found = []
    for kind, level in enumerate(_LEVELS):
        match level:
            case OffsetsLevel(big_endian=big):
                index = pairs.astype(">u8" if big else "<u8").tobytes()
            case _:
                index = b"\x0b"
        found.append(bytes([kind]) + (300).to_bytes(2, "little") + index)
    return found


def check_input(data: bytes) -> None:
    if len(data) < 3:
        return
    level = _LEVELS[data[0] % len(_LEVELS)]
    size = int.from_bytes(data[1:3], "little") or None
    index = data[3:]
    match level:
        case OffsetsLevel(checked=True):  # correct the checksum: otherwise every changed index would fail there
            index = index[: 16 * _SLOTS] + crc32c(index[: 16 * _SLOTS]).to_bytes(4, "little")
    try:
        table = TableIndex(level, "c/0", "a", 0, size).decode(index)
    except ValueError:
        return
    for slot in range(_SLOTS):
        found = table.locate(slot)
        if found is None:
            continue
        offset, length = found
        assert offset >= 0
        assert length >= 0
        assert offset + length < 2**63
        if size is not None and length:
            assert offset + length <= size - (level.length if level.at_end else 0)
            assert level.at_end or offset >= level.length
