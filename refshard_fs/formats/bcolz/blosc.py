"""Blosc 1 frames: parse and check headers, decode a frame, frame plain bytes. No I/O here.

A frame is a chunk for zarr's blosc codec. The sizes in a header are accepted only if the bytes at hand can hold them.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

BODY: Final = 16  # size of the header, and so the position of the body
LARGEST: Final = 2**31 - 1 - BODY  # most bytes in one frame (c-blosc's BLOSC_MAX_BUFFERSIZE)
EXPANSION: Final = 1 << 16  # an upper bound of the ratio of decompressed to compressed bytes; zstd reaches half of it

_HEADER: Final = struct.Struct("<BBBBIII")
_PLAIN: Final = 2
_RESERVED: Final = 8
_CODECS: Final = {0: "blosclz", 1: "lz4", 3: "zlib", 4: "zstd"}
_SNAPPY: Final = 2


class FrameHeader(msgspec.Struct, frozen=True):
    """The header of a frame: its ``stored`` bytes, with the 16 of the header, decompress to ``length`` bytes."""

    length: int
    stored: int
    typesize: int
    flags: int

    nbytes = 512  # its cost in a cache: a Struct of small integers, and its keys

    @property
    def codec(self) -> str:
        """The name of the codec in zarr's metadata."""
        return _CODECS[self.flags >> 5]

    @property
    def shuffle(self) -> int:
        """0: none, 1: byte shuffle, 2: bit shuffle."""
        return 2 if self.flags & 4 else self.flags & 1


def parse(data: bytes) -> FrameHeader:
    """Parse the header at the start of ``data``. Raise ValueError, with the field, if it is invalid."""
    if len(data) < BODY:
        raise ValueError(f"a blosc header is cut short: it has {len(data)} of {BODY} bytes")
    version, codec_version, flags, typesize, length, blocksize, stored = _HEADER.unpack_from(data)
    codec = flags >> 5
    if version != 2:
        raise ValueError(f"blosc version {version} is not supported: expected 2")
    if flags & _RESERVED:
        raise ValueError(f"blosc flags {flags:#04x}: bit 3 is reserved and must be 0")
    if codec == _SNAPPY:
        raise ValueError(
            f"blosc flags {flags:#04x}: it is compressed with snappy, which zarr's blosc codec cannot decode"
        )
    if codec not in _CODECS:
        raise ValueError(f"blosc flags {flags:#04x}: codec {codec} does not exist")
    if codec_version != 1:
        raise ValueError(f"blosc versionlz {codec_version} is not supported: expected 1")
    if typesize == 0:
        raise ValueError("blosc typesize is 0: expected at least 1")
    if length > LARGEST:
        raise ValueError(f"blosc nbytes {length}: expected at most {LARGEST}")
    if flags & _PLAIN:
        if stored != length + BODY:
            raise ValueError(f"blosc ctbytes {stored}: expected {length + BODY} for a plain frame of nbytes {length}")
    elif not BODY < stored <= length + BODY or length > (stored - BODY) * EXPANSION:
        raise ValueError(f"blosc ctbytes {stored}: impossible with nbytes {length}")
    elif not 0 < blocksize <= length or -(-length // blocksize) * 4 > stored - BODY:
        raise ValueError(f"blosc blocksize {blocksize}: impossible with nbytes {length} and ctbytes {stored}")
    return FrameHeader(length, stored, typesize, flags)


def decode(frame: bytes, length: int) -> bytes:
    """Decode ``frame`` to ``length`` bytes. Raise ValueError if it is damaged or has another length."""
    from numcodecs import blosc  # slow to import, and only short last chunks need it

    header = parse(frame)
    if header.stored != len(frame):  # the decoder reads beyond the end of a frame that is cut short
        raise ValueError(f"blosc ctbytes {header.stored}: expected {len(frame)}, the size of the frame")
    if header.length != length:
        raise ValueError(f"blosc nbytes {header.length}: expected {length}")
    try:
        data: bytes = blosc.decompress(frame)
    except RuntimeError as e:
        raise ValueError(f"the blosc frame cannot be decoded: {e}") from e
    if len(data) != length:
        raise ValueError(f"the blosc frame decodes to {len(data)} bytes: expected {length}")
    return data


def make_plain_frame(parts: list[bytes], size: int, typesize: int) -> bytes:
    """Make an uncompressed frame of ``size`` bytes: ``parts``, followed by zeros."""
    header = _HEADER.pack(2, 1, 0x20 | _PLAIN, typesize, size, size, size + BODY)
    return b"".join([header, *parts, bytes(size - sum(map(len, parts)))])


def describe_compressor(codec: str, level: int, shuffle: int, typesize: int) -> dict[str, Any]:
    """Describe the compression of frames in zarr's metadata; readers need only the codec's name, blosc."""
    return {"id": "blosc", "cname": codec, "clevel": level, "shuffle": shuffle, "blocksize": 0, "typesize": typesize}


# Checksums of bloscpack by their numbers in its headers.


class Checksum(NamedTuple):
    """A checksum of ``size`` bytes."""

    name: str
    size: int
    digest: Callable[[bytes | memoryview], bytes]

    def verify(self, data: bytes | memoryview, digest: bytes) -> None:
        """Raise ValueError if the checksum of ``data`` is not ``digest``."""
        found = self.digest(data)
        if found != digest:
            raise ValueError(f"it is damaged: its {self.name} checksum is {found.hex()}, expected {digest.hex()}")


def _make_hash(name: str) -> Checksum:
    size = hashlib.new(name, usedforsecurity=False).digest_size
    return Checksum(name, size, lambda data: hashlib.new(name, data, usedforsecurity=False).digest())


CHECKSUMS: Final = (
    Checksum("none", 0, lambda data: b""),
    Checksum("adler32", 4, lambda data: zlib.adler32(data).to_bytes(4, "little")),
    Checksum("crc32", 4, lambda data: zlib.crc32(data).to_bytes(4, "little")),
    *map(_make_hash, ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")),
)


# Recipes for chunks made of blosc frames: verify a frame's digest, or cut, pad and frame the bytes anew.


class VerifyRecipe(msgspec.Struct, frozen=True):
    """Returns the frame of ``stored`` bytes after it has verified the digest behind it (number in `CHECKSUMS`)."""

    checksum: int
    stored: int

    def make(self, raw: bytes) -> bytes:
        CHECKSUMS[self.checksum].verify(memoryview(raw)[: self.stored], raw[self.stored :])
        return raw[: self.stored]

    @property
    def made(self) -> int:
        """Size of the result in bytes."""
        return self.stored


class Piece(msgspec.Struct, frozen=True):
    """A frame of ``stored`` bytes at ``offset`` that decodes to ``length`` bytes."""

    offset: int
    stored: int
    length: int


class ReframeRecipe(msgspec.Struct, frozen=True):
    """Makes a plain frame of ``size`` bytes: the decoded ``pieces`` from byte ``skip`` on, padded with zeros.

    With a ``checksum``, the digest behind each piece is verified.
    """

    pieces: tuple[Piece, ...]
    size: int
    typesize: int
    skip: int = 0
    checksum: int = 0

    def make(self, raw: bytes) -> bytes:
        parts: list[bytes] = []
        begin, missing = self.skip, self.size
        checksum = CHECKSUMS[self.checksum]
        for piece in self.pieces:
            end = piece.offset + piece.stored
            frame = raw[piece.offset : end]
            checksum.verify(frame, raw[end : end + checksum.size])
            part = decode(frame, piece.length)[begin : begin + missing]
            parts.append(part)
            begin = 0
            missing -= len(part)
        return make_plain_frame(parts, self.size, self.typesize)

    @property
    def made(self) -> int:
        """Size of the result in bytes."""
        return self.size + BODY
