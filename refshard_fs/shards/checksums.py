"""The checksums of bloscpack, by their number in its headers."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["CHECKSUMS", "Checksum"]


class Checksum(NamedTuple):
    """A digest of ``size`` bytes."""

    name: str
    size: int
    digest: Callable[[bytes | memoryview], bytes]

    def verify(self, data: bytes | memoryview, digest: bytes) -> None:
        """Raise ValueError unless ``digest`` is that of ``data``."""
        found = self.digest(data)
        if found != digest:
            raise ValueError(f"its {self.name} checksum is {found.hex()}, not {digest.hex()} as written: it is damaged")


def _hashed(name: str) -> Checksum:
    size = hashlib.new(name, usedforsecurity=False).digest_size
    return Checksum(name, size, lambda data: hashlib.new(name, data, usedforsecurity=False).digest())


CHECKSUMS: Final = (
    Checksum("none", 0, lambda data: b""),
    Checksum("adler32", 4, lambda data: zlib.adler32(data).to_bytes(4, "little")),
    Checksum("crc32", 4, lambda data: zlib.crc32(data).to_bytes(4, "little")),
    *map(_hashed, ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")),
)
