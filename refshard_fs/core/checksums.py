"""Checksums: CRC-32C, which zarr's ``crc32c`` codec appends, and checksums in manifests. No I/O here.

A checksum in a manifest is ``"<name>:<hexadecimal digits>"``, computed from all bytes of the entry. The names are
listed below; 32-bit sums are written with the most significant digit first.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable
from typing import Final

import google_crc32c
import msgspec

from refshard_fs.core.model import Entry, Inline, Packed, Span
from refshard_fs.errors import ManifestError

LENGTH: Final = 4  # bytes of a CRC-32C, little-endian
_STEP: Final = 1 << 20  # bytes that are copied and summed at a time


def crc32c(data: bytes | memoryview, before: int = 0) -> int:
    """Return the checksum of ``data``, or of ``data`` appended to bytes whose checksum is ``before``."""
    for start in range(0, len(data), _STEP):
        before = google_crc32c.extend(before, bytes(data[start : start + _STEP]))
    return before


_HASHES: Final = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "sha3_512", "blake2b", "blake2s")
_SUMS: Final[dict[str, Callable[[bytes], int]]] = {"crc32c": crc32c, "crc32": zlib.crc32, "adler32": zlib.adler32}
_CHECKSUM: Final = re.compile(r"([a-z0-9_]+):([0-9a-fA-F]+)", re.ASCII)


class ChecksumRecipe(msgspec.Struct, frozen=True):
    """A recipe that verifies the ``checksum`` of the bytes, and returns them unchanged."""

    checksum: str

    def make(self, raw: bytes) -> bytes:
        name, digits = _split_checksum(self.checksum)
        found = (
            f"{_SUMS[name](raw):08x}" if name in _SUMS else hashlib.new(name, raw, usedforsecurity=False).hexdigest()
        )
        if found != digits:
            raise ValueError(f"its {name} checksum is {found}: expected {digits}, as in the manifest")
        return raw


def add_checksum(entry: Entry, checksum: str | None, where: str, key: str) -> Entry:
    """Return an entry of ``key`` that verifies ``checksum`` when it is read; ManifestError if that is not possible."""
    if checksum is None:
        return entry
    recipe = ChecksumRecipe(checksum)
    try:
        name, digits = _split_checksum(checksum)
        expected = 8 if name in _SUMS else hashlib.new(name, usedforsecurity=False).digest_size * 2
        if len(digits) != expected:
            raise ValueError(f"its checksum is {checksum[:300]!r}: expected {expected} digits for {name}")
        match entry:
            case Inline(data):
                return Inline(recipe.make(data))
            case Span():
                return Packed(entry, recipe, entry.size)
            case Packed():
                raise ValueError("its checksum cannot be verified, since its bytes are decoded: remove the checksum")
    except ValueError as e:
        raise ManifestError(f"{where}: {key!r}: {e}") from e


def _split_checksum(checksum: str) -> tuple[str, str]:
    match = _CHECKSUM.fullmatch(checksum)
    if match is None or (match[1] not in _SUMS and match[1] not in _HASHES):
        names = ", ".join([*_SUMS, *_HASHES])
        raise ValueError(f"its checksum is {checksum[:80]!r}: expected NAME:HEXADECIMAL, with one of the names {names}")
    return match[1], match[2].lower()
