"""bloscpack files (``.blp``, version 3) as a group of one array. No I/O here.

The array is the one that the metadata describes, or else the bytes, in one dimension. Where frames are whole rows of
the array, a chunk is a frame as it lies; where they are not, chunks of whole rows are made of them when they are read.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup, Chunks, made
from refshard_fs.core.compression import decompressed
from refshard_fs.core.dtypes import parse_dtype
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Load, Parsed, Raw, Span, Steps
from refshard_fs.core.zarrmeta import integers, object_in, shown
from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.formats.bcolz import MAGIC
from refshard_fs.formats.bcolz.blosc import (
    BODY,
    CHECKSUMS,
    EXPANSION,
    LARGEST,
    Checksum,
    FrameHeader,
    Piece,
    Refilled,
    Verified,
    compressor,
    parse,
)

# ----------------------------------------------------------------------------------------------------
# The headers of a bloscpack file (version 3): read, and every field checked against the others and the file's size.


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
            stream = zlib.decompressobj()
            data = decompressed(stream, stored, self.size) if self.is_compressed else stored
            if len(data) != self.size or stream.unused_data:
                raise ValueError(f"it has {len(data)} bytes, or more behind its end")
        except ValueError as e:
            sizes = f"its meta_size is {self.size} and its meta_comp_size {self.stored}"
            raise ManifestError(f"{where}: {e} ({sizes})") from None
        return object_in(data, where)


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


# ----------------------------------------------------------------------------------------------------
# Where the frames of a bloscpack file lie: by its table of offsets, or from frame to frame where it has none.
#
# What was found is kept: offsets a piece of the table at a time, the way from frame to frame as far as it was walked.


PIECE: Final = 4096  # offsets read at a time
WINDOW: Final = 1 << 16  # bytes read at a time on a long way from frame to frame, where frames are small
FEW: Final = 8  # frames that are walked from header to header, so that nothing else is read


class Located(NamedTuple):
    """A frame's place in the file, and what it says of itself."""

    offset: int
    header: FrameHeader


def parse_frames(data: bytes, most: int, tail: int) -> tuple[FrameHeader, ...]:
    """Return the headers of up to ``most`` frames that follow one another, each with a digest of ``tail`` bytes."""
    headers = [parse(data)]
    position = headers[0].stored + tail
    while len(headers) < most and position + BODY <= len(data):
        try:
            header = parse(data[position : position + BODY])
        except ValueError:
            break  # those before it are sound; whoever wants it is told
        headers.append(header)
        position += header.stored + tail
    return tuple(headers)


class Superchunk:
    """The frames of ``base``, a file of ``size`` bytes whose table of offsets, or first frame, is at ``table``."""

    def __init__(self, url: str, base: Entry, size: int, header: Header, table: int) -> None:
        self.url = url
        self.header = header
        self._base = base
        self._size = size
        self._table = table
        self._begin = table + header.slots * 8
        self._walked: dict[int, Located] = {}
        if self._begin > size:
            raise ManifestError(f"{url}: it is cut short: its offsets end at byte {self._begin}, the file at {size}")

    def part(self, offset: int, length: int) -> Entry:
        """Return bytes of the file."""
        return self._base.part(offset, length)

    def locate(self, first: int, last: int) -> Steps[list[Located]]:
        """Return frames ``[first, last)``; DamagedIndex, which names the field, where one cannot be there."""
        if not self.header.has_offsets:
            yield from self._walk(last)
            return [self._walked[number] for number in range(first, last)]
        offsets = yield from self._offsets(first, last)
        for number, offset in enumerate(offsets, first):
            self._check_offset(number, offset)
        headers = yield tuple(Load(self._base.part(offset, BODY), Parsed(parse)) for offset in offsets)
        found = list(map(Located, offsets, headers))
        for number, located in enumerate(found, first):
            self._check(number, located)
        return found

    def _offsets(self, first: int, last: int) -> Steps[list[int]]:
        starts = range(first - first % PIECE, last, PIECE)
        loads = []
        for start in starts:
            length = min(PIECE, self.header.frames - start) * 8
            loads.append(Load(self._base.part(self._table + start * 8, length), Raw()))
        pieces = yield tuple(loads)
        offsets = np.frombuffer(b"".join(pieces), "<i8")[first - starts.start : last - starts.start]
        return [int(offset) for offset in offsets]

    def _walk(self, last: int) -> Steps[None]:
        while len(self._walked) < last:
            number = len(self._walked)
            offset, step = self._begin, 0
            if number:
                before = self._walked[number - 1]
                step = before.header.stored + self.header.digest.size
                offset = before.offset + step
            self._check_offset(number, offset)
            window = min(WINDOW if step * 4 <= WINDOW and last - number > FEW else BODY, self._size - offset)
            index = Parsed(parse_frames, (self.header.frames - number, self.header.digest.size))
            headers = yield Load(self._base.part(offset, window), index)
            for header in headers:
                located = Located(offset, header)
                self._check(number, located)
                self._walked[number] = located
                offset += header.stored + self.header.digest.size
                number += 1

    def _check_offset(self, number: int, offset: int) -> None:
        if not self._begin <= offset <= self._size - BODY:
            reason = f"offset {offset} of chunk {number} is outside of bytes [{self._begin}, {self._size})"
            raise DamagedIndex("", self.url, reason)

    def _check(self, number: int, located: Located) -> None:
        offset, frame = located
        end = offset + frame.stored + self.header.digest.size
        if frame.length != self.header.length(number):
            due = self.header.length(number)
            raise DamagedIndex("", self.url, f"blosc nbytes {frame.length} of chunk {number}, where {due} are due")
        if end > self._size:
            reason = f"blosc ctbytes {frame.stored} of chunk {number}: it ends at byte {end}, the file at {self._size}"
            raise DamagedIndex("", self.url, reason)


DATA: Final = "data"  # the one array
BYTES: Final = "u1"  # what a file without metadata holds

_DESCRIBED: Final = frozenset(["dtype", "shape", "order", "container"])


class Described(NamedTuple):
    """The array that the frames hold, by the metadata; ``order`` is that of all its elements."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    attributes: Mapping[str, Any]

    @property
    def axis(self) -> int:
        """The slowest axis, along which the array is cut."""
        return len(self.shape) - 1 if self.order == "F" else 0

    @property
    def row_size(self) -> int:
        """Bytes of one step along the slowest axis."""
        others = math.prod(extent for axis, extent in enumerate(self.shape) if axis != self.axis)
        return others * self.dtype.itemsize

    def chunks(self, rows: int) -> tuple[int, ...]:
        """Return the shape of a chunk of ``rows`` steps along the slowest axis."""
        return tuple(max(rows if axis == self.axis else extent, 1) for axis, extent in enumerate(self.shape))


class SuperchunkChunks(Chunks):
    """The chunks of an array, ``size`` bytes each before compression, in the frames of a superchunk."""

    def __init__(self, frames: Superchunk, size: int, *, verify: bool) -> None:
        self._frames = frames
        self._size = size
        self._checksum = frames.header.checksum if verify else 0

    def entry(self, number: int) -> Steps[Entry | None]:
        header, size = self._frames.header, self._size
        start = number * size
        stop = min(start + size, header.total)
        first, last = start // header.frame_size, -(-stop // header.frame_size)
        found = yield from self._frames.locate(first, last)
        checksum = self._checksum
        tail = header.digest.size if checksum else 0
        if len(found) == 1 and found[0].header.length == size:
            offset, frame = found[0]
            if not checksum:
                return self._frames.part(offset, frame.stored)
            recipe = Verified(checksum, frame.stored)
            return made(self._frames.part(offset, frame.stored + tail), recipe, frame.stored, self._frames.url)
        begin = min(offset for offset, _ in found)
        end = max(offset + frame.stored for offset, frame in found) + tail
        cuts = tuple((offset - begin, frame.stored + tail) for offset, frame in found)
        joined = accumulate((length for _, length in cuts), initial=0)
        pieces = tuple(Piece(at, frame.stored, frame.length) for at, (_, frame) in zip(joined, found, strict=False))
        refilled = Refilled(pieces, size, found[0].header.typesize, start - first * header.frame_size, checksum)
        part, url = self._frames.part(begin, end - begin), self._frames.url
        return made(part, refilled, refilled.made, url, cuts if len(cuts) > 1 else ())


def _part(probe: Probe, size: int, start: int, stop: int, what: str) -> Entry:
    if stop > size:
        raise ManifestError(f"{probe.url}: it is cut short: {what} reaches to byte {stop}, the file to {size}")
    if stop <= len(probe.head):
        return Inline(probe.head[start:stop])
    return Span(probe.url, start, stop)


def _metadata(probe: Probe, size: int) -> Steps[tuple[int, dict[str, Any]]]:
    """Return where the metadata ends, and what it says."""
    where = f"the metadata of {probe.url}"
    data = yield Load(_part(probe, size, HEADER, 2 * HEADER, "its metadata's header"), Raw())
    header = parse_metadata_header(data, where)
    start = 2 * HEADER
    end = start + header.room
    stored, digest = yield (
        Load(_part(probe, size, start, start + header.stored, "its metadata (meta_comp_size)"), Raw()),
        Load(_part(probe, size, end, end + header.digest.size, "its metadata (max_meta_size)"), Raw()),
    )
    return end + header.digest.size, header.decode(stored, digest, where)


def _described(metadata: Mapping[str, Any], header: Header, url: str, zarr_format: int) -> Described:
    where = f"the metadata of {url}"
    match metadata.get("container"):
        case "numpy":
            pass
        case _:
            return Described(np.dtype(BYTES), (header.total,), "C", metadata)
    dtype = parse_dtype(metadata.get("dtype"), where, zarr_format)
    shape = integers(metadata.get("shape"), "shape", where)
    if len(shape) > 32:
        raise ManifestError(f"{where}: its 'shape' has {len(shape)} dimensions")
    size = math.prod(shape) * dtype.itemsize
    if size != header.total:
        reason = f"its 'shape' {shown(list(shape))} of {dtype} takes {size} bytes, but the chunks hold {header.total}"
        raise ManifestError(f"{where} is stale: {reason}")
    attributes = {name: value for name, value in metadata.items() if name not in _DESCRIBED}
    match metadata.get("order"):
        case "C":
            return Described(dtype, shape, "C", attributes)
        case "F":
            return Described(dtype, shape, "F" if len(shape) > 1 else "C", attributes)
    raise ManifestError(f"{where}: its 'order' is {shown(metadata.get('order'))}, neither 'C' nor 'F'")


def _rows(array: Described, header: Header, url: str) -> int:
    """Return how many steps along the slowest axis a chunk takes: those of a frame, or enough to fill one."""
    if not header.total:
        return 1
    if header.frames == 1:
        return array.shape[array.axis] if array.shape else 1
    rows = -(-header.frame_size // array.row_size)
    if rows * array.row_size > LARGEST:
        raise ManifestError(f"{url}: one row of its array has {array.row_size} bytes, too many for a chunk")
    return rows


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a bloscpack file."""
    url = probe.url
    _, size = probe.file("bloscpack")
    header = parse_header(probe.head[:HEADER], size, url)
    table = HEADER
    metadata: dict[str, Any] = {}
    if header.has_metadata:
        table, metadata = yield from _metadata(probe, size)
    array = _described(metadata, header, url, options.zarr_format)
    base = Inline(probe.head) if probe.is_in_memory else Span(url, 0, size, apart=True)
    frames = Superchunk(url, base, size, header, table)
    rows = _rows(array, header, url)
    frame = compressor("blosclz", 5, 1, max(header.typesize, 1))
    if header.frames:
        ((_, first),) = yield from frames.locate(0, 1)
        frame = compressor(first.codec, 5, first.shuffle, first.typesize)
    dimensions = tuple(f"dim_{axis}" for axis in range(len(array.shape)))
    shown_as = ArrayDescription(
        url, array.shape, array.chunks(rows), array.dtype, array.order, frame, dimensions, array.attributes
    )
    chunks = SuperchunkChunks(frames, rows * array.row_size, verify=options.verify)
    return ArrayGroup({DATA: shown_as}, {DATA: chunks}, options.zarr_format, {})
