"""The headers of a bloscpack file (version 3): read, and every field checked against the others and the file's size."""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import msgspec

from refshard_fs.core.zarrmeta import object_in
from refshard_fs.errors import ManifestError
from refshard_fs.formats.bcolz import MAGIC
from refshard_fs.formats.bcolz.blosc import BODY, CHECKSUMS, EXPANSION, LARGEST, Checksum

HEADER: Final = 32  # bytes, of the file's header and of the metadata's
MOST: Final = 1 << 26  # bytes of metadata, uncompressed

_HEADER: Final = struct.Struct("<4sBBBBiiqq")
_METADATA: Final = struct.Struct("<8sBBBBIII8s")
_OFFSETS: Final = 1
_HAS_METADATA: Final = 2


class Header(msgspec.Struct, frozen=True):
    """The first 32 bytes: ``frames`` of ``frame_size`` bytes each (uncompressed), but ``last_size`` in the last."""

    has_offsets: bool
    has_metadata: bool
    checksum: int
    typesize: int
    frame_size: int
    last_size: int
    frames: int
    spare: int

    @property
    def total(self) -> int:
        """Uncompressed bytes of all frames."""
        return self.frame_size * (self.frames - 1) + self.last_size if self.frames else 0

    @property
    def slots(self) -> int:
        """Offsets in the table, those kept for frames to come among them."""
        return self.frames + self.spare if self.has_offsets else 0

    @property
    def digest(self) -> Checksum:
        """What follows each frame."""
        return CHECKSUMS[self.checksum]

    def length(self, number: int) -> int:
        """Uncompressed bytes of frame ``number``."""
        return self.last_size if number == self.frames - 1 else self.frame_size


def parse_header(data: bytes, size: int, url: str) -> Header:
    """Return the header of a file of ``size`` bytes; ManifestError, which names the field, where it cannot be true."""
    if len(data) < HEADER:
        raise ManifestError(f"{url}: it is cut short: its header has {HEADER} bytes, there are {len(data)}")
    magic, version, options, checksum, typesize, frame_size, last_size, frames, spare = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ManifestError(f"{url}: its magic is {magic!r}, not {MAGIC!r}: it is no bloscpack file")
    match version:
        case 3:
            pass
        case 1:
            raise ManifestError(
                f"{url}: its version is 1, that of one chunk of a bcolz carray: give the carray's directory"
            )
        case 2:
            raise ManifestError(f"{url}: its version is 2, which was proposed for bcolz, but never released")
        case _:
            raise ManifestError(f"{url}: its version is {version}; version 3 is read")
    if options & ~(_OFFSETS | _HAS_METADATA):
        raise ManifestError(f"{url}: its options are {options:#04x}: only bits 1 (offsets) and 2 (metadata) are known")
    if checksum >= len(CHECKSUMS):
        raise ManifestError(f"{url}: its checksum is number {checksum}; they go up to {len(CHECKSUMS) - 1}")
    header = Header(
        bool(options & _OFFSETS),
        bool(options & _HAS_METADATA),
        checksum,
        typesize,
        frame_size,
        last_size,
        frames,
        spare,
    )
    _check(header, size, url)
    return header


def _check(header: Header, size: int, url: str) -> None:
    frames, most = header.frames, size // (BODY + header.digest.size)
    if not 0 <= header.frame_size <= LARGEST:
        raise ManifestError(f"{url}: its chunk_size is {header.frame_size}, not from 0 to {LARGEST}")
    if not 0 <= frames <= most:
        raise ManifestError(f"{url}: its nchunks is {frames}; its {size} bytes have room for at most {most}")
    if not 0 <= header.last_size <= header.frame_size or (frames > 1 and not header.last_size):
        raise ManifestError(f"{url}: its last_chunk is {header.last_size}, with a chunk_size of {header.frame_size}")
    if header.spare < 0 or header.slots * 8 > size:
        raise ManifestError(f"{url}: its max_app_chunks is {header.spare}: {size} bytes have no room for the offsets")
    if header.total > size * EXPANSION:
        raise ManifestError(f"{url}: its {size} bytes cannot hold {frames} chunks of {header.frame_size} (chunk_size)")


class MetadataHeader(msgspec.Struct, frozen=True):
    """The 32 bytes before the metadata, which has ``size`` bytes, ``stored`` in the file, where ``room`` are kept."""

    checksum: int
    is_compressed: bool
    size: int
    room: int
    stored: int

    @property
    def digest(self) -> Checksum:
        """What follows the room."""
        return CHECKSUMS[self.checksum]

    def decode(self, stored: bytes, digest: bytes, where: str) -> dict[str, Any]:
        """Return the metadata that ``stored`` bytes spell, once their digest proves right."""
        try:
            self.digest.verify(stored, digest)
            data = self._inflated(stored) if self.is_compressed else stored
            if len(data) != self.size:
                raise ValueError(f"its meta_size is {self.size}, but there are {len(data)} bytes")
        except (ValueError, zlib.error) as e:
            raise ManifestError(f"{where}: {e}") from None
        return object_in(data, where)

    def _inflated(self, stored: bytes) -> bytes:
        inflate = zlib.decompressobj()
        data = inflate.decompress(stored, self.size + 1)
        if not inflate.eof or inflate.unused_data:
            raise ValueError(f"its {self.stored} bytes (meta_comp_size) are no zlib stream of {self.size} (meta_size)")
        return data


def parse_metadata_header(data: bytes, where: str) -> MetadataHeader:
    """Return the metadata's header; ManifestError, which names the field, where it cannot be true."""
    if len(data) < HEADER:
        raise ManifestError(f"{where}: it is cut short: its header has {HEADER} bytes, there are {len(data)}")
    magic, options, checksum, codec, level, size, room, stored, _ = _METADATA.unpack_from(data)
    if magic.rstrip(b"\0") != b"JSON":
        raise ManifestError(f"{where}: its magic is {magic!r}: only JSON is read")
    if options:
        raise ManifestError(f"{where}: its options are {options:#04x}: none are known")
    if checksum >= len(CHECKSUMS):
        raise ManifestError(f"{where}: its checksum is number {checksum}; they go up to {len(CHECKSUMS) - 1}")
    if codec > 1 or level > 9:
        raise ManifestError(
            f"{where}: its codec is {codec} with level {level}; 0 (none) and 1 (zlib) are known, to level 9"
        )
    if stored > room:
        raise ManifestError(f"{where}: its meta_comp_size is {stored}, more than its max_meta_size of {room}")
    if max(size, stored) > MOST:
        raise ManifestError(
            f"{where}: its meta_size is {size} and its meta_comp_size {stored}; at most {MOST} are read"
        )
    return MetadataHeader(checksum, codec == 1, size, room, stored)
