"""Blosc 1 frames: the header read and checked, one frame decoded, plain bytes framed. No I/O here.

A frame is what zarr's blosc codec takes for a chunk. What a header claims is believed only as far as the bytes that
are there could hold it.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

BODY: Final = 16  # bytes of the header, after which the body starts
LARGEST: Final = 2**31 - 1 - BODY  # bytes that one frame can hold (c-blosc's BLOSC_MAX_BUFFERSIZE)
EXPANSION: Final = 1 << 16  # no codec makes more bytes of one; zstd comes to half of it

_HEADER: Final = struct.Struct("<BBBBIII")
_PLAIN: Final = 2
_RESERVED: Final = 8
_CODECS: Final = {0: "blosclz", 1: "lz4", 3: "zlib", 4: "zstd"}
_SNAPPY: Final = 2


class FrameHeader(msgspec.Struct, frozen=True):
    """What a frame says of itself: ``length`` bytes come of its ``stored`` ones, the header's 16 among them."""

    length: int
    stored: int
    typesize: int
    flags: int

    nbytes = 512  # what remembering it costs, for the cache: a Struct of small integers and its keys

    @property
    def codec(self) -> str:
        """The name of the codec, as zarr's metadata spells it."""
        return _CODECS[self.flags >> 5]

    @property
    def shuffle(self) -> int:
        """0: none, 1: by bytes, 2: by bits."""
        return 2 if self.flags & 4 else self.flags & 1


def parse(data: bytes) -> FrameHeader:
    """Return the header that ``data`` starts with; ValueError, which names the field, where it cannot be true."""
    if len(data) < BODY:
        raise ValueError(f"a blosc header has {BODY} bytes, there are {len(data)}")
    version, codec_version, flags, typesize, length, blocksize, stored = _HEADER.unpack_from(data)
    codec = flags >> 5
    if version != 2:
        raise ValueError(f"blosc version {version}: only frames of version 2 are known")
    if flags & _RESERVED:
        raise ValueError(f"blosc flags {flags:#04x}: bit 8 is reserved")
    if codec == _SNAPPY:
        raise ValueError(
            f"blosc flags {flags:#04x}: compressed with snappy, which zarr's blosc codec has no decoder for"
        )
    if codec not in _CODECS:
        raise ValueError(f"blosc flags {flags:#04x}: there is no codec {codec}")
    if codec_version != 1:
        raise ValueError(f"blosc versionlz {codec_version}: only format 1 of the codecs is known")
    if typesize == 0:
        raise ValueError("blosc typesize 0")
    if length > LARGEST:
        raise ValueError(f"blosc nbytes {length}: a frame holds at most {LARGEST}")
    if flags & _PLAIN:
        if stored != length + BODY:
            raise ValueError(f"blosc ctbytes {stored}: a plain frame of nbytes {length} has {length + BODY}")
    elif not BODY < stored <= length + BODY or length > (stored - BODY) * EXPANSION:
        raise ValueError(f"blosc ctbytes {stored}: that cannot hold nbytes {length}")
    elif not 0 < blocksize <= length or -(-length // blocksize) * 4 > stored - BODY:
        raise ValueError(f"blosc blocksize {blocksize}: impossible with nbytes {length} and ctbytes {stored}")
    return FrameHeader(length, stored, typesize, flags)


def decode(frame: bytes, length: int) -> bytes:
    """Return the ``length`` bytes that ``frame`` holds; ValueError where it holds others, or is not all there."""
    from numcodecs import blosc  # slow to import, and only short last chunks need it

    header = parse(frame)
    if header.stored != len(frame):  # the decoder reads on past the end of a frame that is cut short
        raise ValueError(f"blosc ctbytes {header.stored}, but the frame has {len(frame)} bytes")
    if header.length != length:
        raise ValueError(f"blosc nbytes {header.length} where {length} are due")
    try:
        data: bytes = blosc.decompress(frame)
    except RuntimeError as e:
        raise ValueError(f"the blosc frame cannot be decoded: {e}") from e
    if len(data) != length:
        raise ValueError(f"the blosc frame gave {len(data)} bytes of {length}")
    return data


def plain_frame(parts: list[bytes], size: int, typesize: int) -> bytes:
    """Return a frame that holds ``parts`` and then zeros, ``size`` bytes in all, uncompressed."""
    header = _HEADER.pack(2, 1, 0x20 | _PLAIN, typesize, size, size, size + BODY)
    return b"".join([header, *parts, bytes(size - sum(map(len, parts)))])


def compressor(codec: str, level: int, shuffle: int, typesize: int) -> dict[str, Any]:
    """Return how frames were compressed, as zarr's metadata tells; readers only need that it is blosc."""
    return {"id": "blosc", "cname": codec, "clevel": level, "shuffle": shuffle, "blocksize": 0, "typesize": typesize}


# ----------------------------------------------------------------------------------------------------
# The checksums of bloscpack, by their number in its headers.


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


# ----------------------------------------------------------------------------------------------------
# Chunks that are made of blosc frames as they lie: checked against their digest, or cut, padded and framed anew.


class Verified(msgspec.Struct, frozen=True):
    """The frame of ``stored`` bytes, once the digest behind it (`CHECKSUMS`) proves right."""

    checksum: int
    stored: int

    def make(self, raw: bytes) -> bytes:
        CHECKSUMS[self.checksum].verify(memoryview(raw)[: self.stored], raw[self.stored :])
        return raw[: self.stored]

    @property
    def made(self) -> int:
        """Bytes of what is made."""
        return self.stored


class Piece(msgspec.Struct, frozen=True):
    """A frame of ``stored`` bytes at ``offset``, which holds ``length`` bytes."""

    offset: int
    stored: int
    length: int


class Refilled(msgspec.Struct, frozen=True):
    """A plain frame of ``size`` bytes: those from ``skip`` on that ``pieces`` hold, at most ``size``, then zeros.

    With a ``checksum``, the digest behind each piece must be right.
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
        return plain_frame(parts, self.size, self.typesize)

    @property
    def made(self) -> int:
        """Bytes of what is made."""
        return self.size + BODY
