"""Blosc 1 frames: parse and check headers, decode a frame, and make frames of plain bytes. No I/O here.

A frame is a chunk for zarr's blosc codec. A header with sizes that contradict one another is an error.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

BODY: Final = 16  # bytes of a frame's header, after which the body begins
LARGEST: Final = 2**31 - 1 - BODY  # the most decompressed bytes of a frame (c-blosc's BLOSC_MAX_BUFFERSIZE)
EXPANSION: Final = 1 << 16  # an upper bound of the ratio of decompressed to compressed bytes; zstd reaches half of it

_HEADER: Final = struct.Struct("<BBBBIII")
_PLAIN: Final = 2
_RESERVED: Final = 8
_CODECS: Final = {0: "blosclz", 1: "lz4", 3: "zlib", 4: "zstd"}
_KNOWN: Final = ", ".join(f"{number} ({name})" for number, name in _CODECS.items())
_SNAPPY: Final = 2


class FrameHeader(msgspec.Struct, frozen=True):
    """The header of a frame. The frame has ``stored_size`` bytes, and decompresses to ``length`` bytes."""

    length: int
    stored_size: int
    typesize: int
    flags: int

    nbytes = 512  # bytes that a header and its key take in a cache

    @property
    def codec(self) -> str:
        """The name of the codec in zarr's metadata."""
        return _CODECS[self.flags >> 5]

    @property
    def shuffle(self) -> int:
        """The kind of shuffling: 0 none, 1 of bytes, 2 of bits."""
        return 2 if self.flags & 4 else self.flags & 1


def parse_frame_header(data: bytes) -> FrameHeader:
    """Parse the frame header at the start of ``data``. Raise ValueError, which names the field, if it is invalid."""
    if len(data) < BODY:
        raise ValueError(f"a blosc header is cut short: expected {BODY} bytes, found {len(data)}")
    version, codec_version, flags, typesize, length, blocksize, stored_size = _HEADER.unpack_from(data)
    codec = flags >> 5
    if version != 2:
        raise ValueError(f"blosc version {version} is not supported: expected 2")
    if flags & _RESERVED:
        raise ValueError(f"blosc flags {flags:#04x}: expected 0 in bit 3, which is reserved")
    if codec == _SNAPPY:
        raise ValueError(
            f"blosc flags {flags:#04x}: codec {codec} is snappy, which zarr's blosc codec cannot decode: "
            f"expected {_KNOWN}"
        )
    if codec not in _CODECS:
        raise ValueError(f"blosc flags {flags:#04x}: codec {codec} is unknown: expected {_KNOWN}")
    if codec_version != 1:
        raise ValueError(f"blosc versionlz {codec_version} is not supported: expected 1")
    if typesize == 0:
        raise ValueError("blosc typesize is 0: expected at least 1")
    if length > LARGEST:
        raise ValueError(f"blosc nbytes {length}: expected at most {LARGEST}")
    if flags & _PLAIN:
        if stored_size != length + BODY:
            raise ValueError(
                f"blosc ctbytes {stored_size}: expected {length + BODY} for a plain frame of nbytes {length}"
            )
    elif not BODY < stored_size <= length + BODY or length > (stored_size - BODY) * EXPANSION:
        least = BODY + max(1, -(-length // EXPANSION))
        raise ValueError(f"blosc ctbytes {stored_size}: expected {least} to {length + BODY} for nbytes {length}")
    elif not 0 < blocksize <= length or -(-length // blocksize) * 4 > stored_size - BODY:
        expected = f"expected 1 to {length} (nbytes), and 4 bytes for each block within ctbytes {stored_size}"
        raise ValueError(f"blosc blocksize {blocksize}: {expected}")
    return FrameHeader(length, stored_size, typesize, flags)


def decode_frame(frame: bytes, length: int) -> bytes:
    """Decode ``frame`` to ``length`` bytes. Raise ValueError if it is damaged or has another length."""
    from numcodecs import blosc  # slow to import, and most chunks are frames that are not decoded here

    header = parse_frame_header(frame)
    if header.stored_size != len(frame):  # the decoder reads beyond the end of a frame that is cut short
        raise ValueError(f"blosc ctbytes {header.stored_size}: expected {len(frame)}, the size of the frame")
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
    """Make a frame of ``size`` bytes that are not compressed: ``parts``, followed by zeros."""
    header = _HEADER.pack(2, 1, 0x20 | _PLAIN, typesize, size, size, size + BODY)
    return b"".join([header, *parts, bytes(size - sum(map(len, parts)))])


def describe_compressor(codec: str, level: int, shuffle: int, typesize: int) -> dict[str, Any]:
    """Return the blosc codec for zarr's metadata. Readers need only its name: the frames have the parameters."""
    return {"id": "blosc", "cname": codec, "clevel": level, "shuffle": shuffle, "blocksize": 0, "typesize": typesize}


# Checksums of bloscpack, by their number in its headers.


class Checksum(NamedTuple):
    """A kind of checksum. A digest has ``size`` bytes."""

    name: str
    size: int
    digest: Callable[[bytes | memoryview], bytes]

    def verify(self, data: bytes | memoryview, digest: bytes) -> None:
        """Raise ValueError if the digest of ``data`` is not ``digest``."""
        computed = self.digest(data)
        if computed != digest:
            raise ValueError(f"it is damaged: its {self.name} checksum is {computed.hex()}, expected {digest.hex()}")


def _make_hash(name: str) -> Checksum:
    size = hashlib.new(name, usedforsecurity=False).digest_size
    return Checksum(name, size, lambda data: hashlib.new(name, data, usedforsecurity=False).digest())


CHECKSUMS: Final = (
    Checksum("none", 0, lambda data: b""),
    Checksum("adler32", 4, lambda data: zlib.adler32(data).to_bytes(4, "little")),
    Checksum("crc32", 4, lambda data: zlib.crc32(data).to_bytes(4, "little")),
    *map(_make_hash, ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")),
)


# Recipes for chunks in blosc frames: verify a frame's checksum, or make a new frame of parts of frames.


class VerifyRecipe(msgspec.Struct, frozen=True):
    """Verify the checksum after a frame of ``stored_size`` bytes, and return the frame.

    ``checksum`` is the number of the kind in `CHECKSUMS`.
    """

    checksum: int
    stored_size: int

    def make(self, raw: bytes) -> bytes:
        CHECKSUMS[self.checksum].verify(memoryview(raw)[: self.stored_size], raw[self.stored_size :])
        return raw[: self.stored_size]

    @property
    def encoded_size(self) -> int:
        """The size of the result in bytes."""
        return self.stored_size


class StoredFrame(msgspec.Struct, frozen=True):
    """A frame of ``stored_size`` bytes at ``offset`` that decodes to ``length`` bytes."""

    offset: int
    stored_size: int
    length: int


class ReframeRecipe(msgspec.Struct, frozen=True):
    """Make a frame of ``size`` bytes that are not compressed: the decoded ``frames`` from byte ``skip`` on, then zeros.

    ``checksum`` is the kind of checksum that is verified after each frame, 0 for none.
    """

    frames: tuple[StoredFrame, ...]
    size: int
    typesize: int
    skip: int = 0
    checksum: int = 0

    def make(self, raw: bytes) -> bytes:
        parts: list[bytes] = []
        begin, missing = self.skip, self.size
        checksum = CHECKSUMS[self.checksum]
        for frame in self.frames:
            end = frame.offset + frame.stored_size
            data = raw[frame.offset : end]
            checksum.verify(data, raw[end : end + checksum.size])
            plain = decode_frame(data, frame.length)[begin : begin + missing]
            parts.append(plain)
            begin = 0
            missing -= len(plain)
        return make_plain_frame(parts, self.size, self.typesize)

    @property
    def encoded_size(self) -> int:
        """The size of the result in bytes."""
        return self.size + BODY
