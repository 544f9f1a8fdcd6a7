"""CRC-32C (Castagnoli, RFC 3720 appendix B.4), as zarr's ``crc32c`` codec appends it: four bytes, little-endian.

By the package google-crc32c, which zarr 3 brings. Where that is not, computed in numpy by halving: the checksum is
linear, so neighbouring words are joined pairwise, level by level.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

__all__ = ["LENGTH", "crc32c"]

LENGTH = 4
_PIECE = 1 << 20  # bytes at a time; the tables' work on them takes several times their memory
_POLYNOMIAL = 0x82F63B78
_Words = npt.NDArray[np.uint32]


def crc32c(data: bytes | memoryview, before: int = 0) -> int:
    """Return the checksum of ``data``, or of that after other bytes, whose checksum is ``before``."""
    extend = _native() or _halved
    for start in range(0, len(data), _PIECE):
        before = extend(before, bytes(data[start : start + _PIECE]))
    return before


@cache
def _native() -> Callable[[int, bytes], int] | None:
    """Return what computes a checksum further at the speed of the machine, if there is such a thing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package says when it is in Python, and slow
        try:
            found = importlib.import_module("google_crc32c")
        except ImportError:
            return None
    extend: Callable[[int, bytes], int] | None = found.extend if found.implementation == "c" else None
    return extend


def _halved(before: int, data: bytes) -> int:
    register = before ^ 0xFFFFFFFF
    if len(data) < 4:
        for byte in data:
            register = int(_byte_table()[(register ^ byte) & 0xFF]) ^ (register >> 8)
        return register ^ 0xFFFFFFFF
    # Zeros in front do not change a register of zeros; the one there is goes over the first four bytes.
    padding = -len(data) % 4
    padded = bytearray(padding) + data
    for i, byte in enumerate(register.to_bytes(4, "little"), padding):
        padded[i] ^= byte
    words: _Words = np.frombuffer(padded, "<u4").astype(np.uint32)
    level = 0
    while len(words) > 1:
        if len(words) % 2:
            words = np.concatenate([np.zeros(1, np.uint32), words])
        words = _shift(words[::2], _operator(level)) ^ words[1::2]
        level += 1
    return int(_shift(words, _operator(0))[0]) ^ 0xFFFFFFFF


@cache
def _byte_table() -> _Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


@cache
def _operator(level: int) -> _Words:
    """Return what ``4 << level`` zero bytes make of a register, as a table for each of its four bytes."""
    if level:
        half = _operator(level - 1)
        return np.stack([_shift(row, half) for row in half])
    registers = np.arange(256, dtype=np.uint32) << (np.arange(4, dtype=np.uint32) * 8)[:, None]
    for _ in range(4):
        registers = _byte_table()[registers & 0xFF] ^ (registers >> 8)
    return registers


def _shift(registers: _Words, operator: _Words) -> _Words:
    low: _Words = operator[0][registers & 0xFF] ^ operator[1][registers >> 8 & 0xFF]
    high: _Words = operator[2][registers >> 16 & 0xFF] ^ operator[3][registers >> 24]
    return low ^ high
