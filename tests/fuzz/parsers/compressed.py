"""Decompress documents in pieces of any length: the result is the same bytes, or a DamagedStream."""

from __future__ import annotations

import bz2
import gzip
import lzma
from contextlib import nullcontext as set_up
from functools import cache

import numcodecs

from refshard_fs.core.compression import DamagedStream, Inflate, is_compressed

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", bytes(16))
_MOST = 1 << 24


@cache
def make_seeds() -> list[bytes]:
    text = b'{"a/0":["s3://bucket/key",0,10],' * 20
    zstd = bytes(numcodecs.Zstd(3).encode(text))
    whole = [gzip.compress(text, mtime=0), bz2.compress(text), lzma.compress(text), zstd]
    return [*whole, whole[0] * 2, whole[3] * 2, gzip.compress(bytes(100_000), mtime=0)]


def check_input(data: bytes) -> None:
    whole = _inflated(data, len(data) or 1)
    assert _inflated(data, 1 + len(data) // 3) == whole


def _inflated(data: bytes, piece: int) -> int | None:
    """Decompress ``data`` in pieces of ``piece`` bytes; return a checksum of the result, or None if it is damaged."""
    if not is_compressed(data):
        return None
    inflate = Inflate(data)
    found, size = 0, 0
    try:
        for start in range(0, len(data), piece):
            for part in inflate.feed(data[start : start + piece]):
                size += len(part)
                found = hash((found, part)) if len(part) < 1000 else hash((found, len(part)))
                assert len(part) <= _MOST
        for part in inflate.feed(b"", is_last=True):
            size += len(part)
    except DamagedStream:
        return None
    return size
