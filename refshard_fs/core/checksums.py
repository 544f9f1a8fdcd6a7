"""CRC-32C (Castagnoli, RFC 3720 appendix B.4), as zarr's ``crc32c`` codec appends it: four bytes, little-endian.

By the package google-crc32c, which zarr 3 brings. Where that is not, computed in numpy by halving: the checksum is
linear, so neighbouring words are joined pairwise, level by level.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import warnings
import zlib
from collections.abc import Callable
from functools import cache
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.model import Entry, Inline, Packed, Span
from refshard_fs.errors import ManifestError

__all__ = ["Checked", "LENGTH", "checked", "crc32c"]

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


# ----------------------------------------------------------------------------------------------------
# Checksums of manifest entries: ``"<name>:<hexadecimal digits>"``, of all bytes of the entry. No I/O here.
#
# Names are those of the digests below; 32-bit sums are written with the most significant digit first.


_HASHES: Final = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "sha3_512", "blake2b", "blake2s")
_SUMS: Final[dict[str, Callable[[bytes], int]]] = {"crc32c": crc32c, "crc32": zlib.crc32, "adler32": zlib.adler32}
_SPELLED: Final = re.compile(r"([a-z0-9_]+):([0-9a-fA-F]+)", re.ASCII)


class Checked(msgspec.Struct, frozen=True):
    """A recipe: the bytes as they lie, once their ``checksum`` proves right."""

    checksum: str

    def make(self, raw: bytes) -> bytes:
        name, digits = _parts(self.checksum)
        found = f"{_SUMS[name](raw):08x}" if name in _SUMS else _hash(name, raw)
        if found != digits:
            raise ValueError(f"its {name} checksum is {found}, not {digits} as the manifest says")
        return raw


def checked(entry: Entry, checksum: str | None, where: str, key: str) -> Entry:
    """Return the entry of ``key``, to be checked when it is read; ManifestError where that cannot be."""
    try:
        return entry if checksum is None else _checked(entry, checksum)
    except ValueError as e:
        raise ManifestError(f"{where}: {key!r}: {e}") from e


def _checked(entry: Entry, checksum: str) -> Entry:
    recipe = Checked(checksum)
    name, digits = _parts(checksum)
    if len(digits) != (8 if name in _SUMS else hashlib.new(name, usedforsecurity=False).digest_size * 2):
        raise ValueError(f"its checksum {checksum!r} is of the wrong length")
    match entry:
        case Inline(data):
            return Inline(recipe.make(data))
        case Span():
            return Packed(entry, recipe, entry.size)
        case Packed():
            raise ValueError("it is made from other bytes, and its checksum cannot be checked")


def _parts(checksum: str) -> tuple[str, str]:
    spelled = _SPELLED.fullmatch(checksum)
    if spelled is None or (spelled[1] not in _SUMS and spelled[1] not in _HASHES):
        names = ", ".join([*_SUMS, *_HASHES])
        raise ValueError(f"its checksum {checksum[:80]!r} is not NAME:HEXADECIMAL, with a name of {names}")
    return spelled[1], spelled[2].lower()


def _hash(name: str, raw: bytes) -> str:
    return hashlib.new(name, raw, usedforsecurity=False).hexdigest()
