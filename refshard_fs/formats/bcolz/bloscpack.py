"""bloscpack files (``.blp``, version 3) as a group of one array. No I/O here.

The metadata describe the array; without metadata, the array has one dimension of bytes. If frames are whole rows of the
array, a chunk is an unchanged frame; otherwise chunks of whole rows are made of parts of frames.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup, Chunks, make_entry
from refshard_fs.core.compression import decompress
from refshard_fs.core.dtypes import parse_dtype
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Load, ParsedIndex, Raw, Span, Steps
from refshard_fs.core.zarrmeta import check_integers, object_in, shorten
from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.formats.bcolz import MAGIC
from refshard_fs.formats.bcolz.blosc import (
    BODY,
    CHECKSUMS,
    EXPANSION,
    LARGEST,
    Checksum,
    FrameHeader,
    ReframeRecipe,
    StoredFrame,
    VerifyRecipe,
    describe_compressor,
    parse_frame_header,
)

# Headers of a bloscpack file (version 3): each field is checked against the others and the size of the file.


HEADER: Final = 32  # bytes of the file's header, and of the metadata's header
MOST_METADATA: Final = 1 << 26  # the most bytes of metadata after decompression

_HEADER: Final = struct.Struct("<4sBBBBiiqq")
_METADATA: Final = struct.Struct("<8sBBBBIII8s")
_OFFSETS: Final = 1  # flags of options
_HAS_METADATA: Final = 2
_OTHER_VERSIONS: Final = {
    1: "Files of version 1 are chunks of a bcolz carray: open the carray's directory",
    2: "No program writes version 2, which was only proposed: the file is damaged",
}


class Header(NamedTuple):
    """The header of a file, its first 32 bytes. The file has ``frames`` frames.

    Each frame has ``frame_size`` bytes after decompression, the last one ``last_size``.
    """

    magic: bytes
    version: int
    options: int
    checksum: int
    typesize: int
    frame_size: int
    last_size: int
    frames: int
    spare: int  # unused slots in the table of offsets

    @property
    def total(self) -> int:
        """The size of all frames together, in bytes after decompression."""
        return self.frame_size * (self.frames - 1) + self.last_size if self.frames else 0

    @property
    def slots(self) -> int:
        """The number of offsets in the table; 0 without a table."""
        return self.frames + self.spare if self.options & _OFFSETS else 0

    @property
    def digest(self) -> Checksum:
        """The kind of checksum after each frame."""
        return CHECKSUMS[self.checksum]

    def find_length(self, number: int) -> int:
        """Return the size of frame ``number``, in bytes after decompression."""
        return self.last_size if number == self.frames - 1 else self.frame_size


def parse_header(data: bytes, size: int, url: str) -> Header:
    """Parse the header of a file of ``size`` bytes. Raise ManifestError, which names the field, if it is invalid."""
    if len(data) < HEADER:
        raise ManifestError(f"{url} is cut short: expected a header of {HEADER} bytes, found {len(data)}")
    header = Header(*_HEADER.unpack_from(data))
    if header.magic != MAGIC:
        raise ManifestError(f"{url} is not a bloscpack file: it begins with {header.magic!r}, expected {MAGIC!r}")
    if header.version != 3:
        note = _OTHER_VERSIONS.get(header.version, "Write the file again with bloscpack 0.16")
        raise ManifestError(f"{url}: its version is {header.version}: expected 3. {note}")
    if header.options & ~(_OFFSETS | _HAS_METADATA):
        expected = "expected no bits except 1 (offsets) and 2 (metadata)"
        raise ManifestError(f"{url}: its options are {header.options:#04x}: {expected}")
    if header.checksum >= len(CHECKSUMS):
        raise ManifestError(f"{url}: its checksum is number {header.checksum}: expected 0 to {len(CHECKSUMS) - 1}")
    _check_fields(header, size, url)
    return header


def _check_fields(header: Header, size: int, url: str) -> None:
    frames, most_frames = header.frames, size // (BODY + header.digest.size)
    if not 0 <= header.frame_size <= LARGEST:
        raise ManifestError(f"{url}: its chunk_size is {header.frame_size}: expected 0 to {LARGEST}")
    if not 0 <= frames <= most_frames:
        raise ManifestError(f"{url}: its nchunks is {frames}: expected 0 to {most_frames} in a file of {size} bytes")
    if not 0 <= header.last_size <= header.frame_size or (frames > 1 and not header.last_size):
        raise ManifestError(
            f"{url}: its last_chunk is {header.last_size}: expected {int(frames > 1)} to {header.frame_size}, its "
            "chunk_size"
        )
    if header.spare < 0 or header.slots * 8 > size:
        expected = f"expected at least 0, and at most {size // 8} offsets in a file of {size} bytes"
        raise ManifestError(f"{url}: its max_app_chunks is {header.spare}: {expected}")
    if header.total > size * EXPANSION:
        expected = f"expected at most {size * EXPANSION} bytes in a file of {size} bytes"
        raise ManifestError(f"{url}: its {frames} chunks decode to {header.total} bytes: {expected}")


# Locations of frames: a table has their offsets. Without a table, the place of a frame follows from the frame before.
#
# Locations are cached: parts of the table, or the places of frames up to the last one that was needed.


OFFSETS_AT_ONCE: Final = 4096  # offsets that are read together
WINDOW: Final = 1 << 16  # bytes that are read together to find the headers of many small frames
FEW: Final = 8  # if at most this number of frames is missing, only their headers are read, one after the other


class LocatedFrame(NamedTuple):
    """The position of a frame in the file, and its header."""

    offset: int
    header: FrameHeader


def parse_frames(data: bytes, limit: int, tail: int) -> tuple[FrameHeader, ...]:
    """Parse the headers of up to ``limit`` consecutive frames, each followed by a checksum of ``tail`` bytes."""
    headers = [parse_frame_header(data)]
    position = headers[0].stored_size + tail
    while len(headers) < limit and position + BODY <= len(data):
        try:
            header = parse_frame_header(data[position : position + BODY])
        except ValueError:
            break  # the frames before it are valid; reading this frame raises the error
        headers.append(header)
        position += header.stored_size + tail
    return tuple(headers)


class FrameChunks(Chunks):
    """The chunks of an array in the frames of a file. A chunk has ``chunk_size`` bytes before compression.

    ``base`` is the entry of the whole file of ``size`` bytes. ``table`` is the byte at which the table of offsets
    begins; without a table, the first frame begins there.
    """

    def __init__(
        self, url: str, base: Entry, size: int, header: Header, table: int, chunk_size: int, *, verify: bool
    ) -> None:
        self._url = url
        self._base = base
        self._size = size
        self._header = header
        self._table = table
        self._chunk_size = chunk_size
        self._checksum = header.checksum if verify else 0
        self._begin = table + header.slots * 8
        self._located: dict[int, LocatedFrame] = {}
        if self._begin > size:
            raise ManifestError(f"{url} is cut short: expected offsets up to byte {self._begin}, found {size} bytes")

    def find_entry(self, number: int) -> Steps[Entry | None]:
        header, size = self._header, self._chunk_size
        start = number * size
        stop = min(start + size, header.total)
        first_frame, end_frame = start // header.frame_size, -(-stop // header.frame_size)
        located = yield from self.locate(first_frame, end_frame)
        checksum = self._checksum
        tail = header.digest.size if checksum else 0
        if len(located) == 1 and located[0].header.length == size:
            offset, frame = located[0]
            if not checksum:
                return self._base.part(offset, frame.stored_size)
            recipe = VerifyRecipe(checksum, frame.stored_size)
            return make_entry(self._base.part(offset, frame.stored_size + tail), recipe, frame.stored_size, self._url)
        begin = min(offset for offset, _ in located)
        end = max(offset + frame.stored_size for offset, frame in located) + tail
        cuts = tuple((offset - begin, frame.stored_size + tail) for offset, frame in located)
        joined = accumulate((length for _, length in cuts), initial=0)
        stored_frames = tuple(
            StoredFrame(position, frame.stored_size, frame.length)
            for position, (_, frame) in zip(joined, located, strict=False)
        )
        recipe_of_parts = ReframeRecipe(
            stored_frames, size, located[0].header.typesize, start - first_frame * header.frame_size, checksum
        )
        span, url = self._base.part(begin, end - begin), self._url
        return make_entry(span, recipe_of_parts, recipe_of_parts.encoded_size, url, cuts if len(cuts) > 1 else ())

    def locate(self, first_frame: int, end_frame: int) -> Steps[list[LocatedFrame]]:
        """Locate the frames ``[first_frame, end_frame)``. Raise DamagedIndex, which names the field, for damage."""
        if not self._header.slots:
            yield from self._locate_frames_in_order(end_frame)
            return [self._located[number] for number in range(first_frame, end_frame)]
        offsets = yield from self._read_offsets(first_frame, end_frame)
        for number, offset in enumerate(offsets, first_frame):
            self._check_offset(number, offset)
        headers = yield tuple(
            Load(self._base.part(offset, BODY), ParsedIndex(parse_frame_header)) for offset in offsets
        )
        located_frames = list(map(LocatedFrame, offsets, headers))
        for number, located in enumerate(located_frames, first_frame):
            self._check_frame(number, located)
        return located_frames

    def _read_offsets(self, first_frame: int, end_frame: int) -> Steps[list[int]]:
        starts = range(first_frame - first_frame % OFFSETS_AT_ONCE, end_frame, OFFSETS_AT_ONCE)
        loads = []
        for start in starts:
            length = min(OFFSETS_AT_ONCE, self._header.frames - start) * 8
            loads.append(Load(self._base.part(self._table + start * 8, length), Raw()))
        parts = yield tuple(loads)
        offsets = np.frombuffer(b"".join(parts), "<i8")[first_frame - starts.start : end_frame - starts.start]
        return [int(offset) for offset in offsets]

    def _locate_frames_in_order(self, end_frame: int) -> Steps[None]:
        while len(self._located) < end_frame:
            number = len(self._located)
            offset, step = self._begin, 0
            if number:
                previous = self._located[number - 1]
                step = previous.header.stored_size + self._header.digest.size
                offset = previous.offset + step
            self._check_offset(number, offset)
            window = min(WINDOW if step * 4 <= WINDOW and end_frame - number > FEW else BODY, self._size - offset)
            index = ParsedIndex(parse_frames, (self._header.frames - number, self._header.digest.size))
            headers = yield Load(self._base.part(offset, window), index)
            for header in headers:
                located = LocatedFrame(offset, header)
                self._check_frame(number, located)
                self._located[number] = located
                offset += header.stored_size + self._header.digest.size
                number += 1

    def _check_offset(self, number: int, offset: int) -> None:
        if not self._begin <= offset <= self._size - BODY:
            reason = f"chunk {number} has offset {offset}: expected {self._begin} to {self._size - BODY}"
            raise DamagedIndex("", self._url, reason)

    def _check_frame(self, number: int, located: LocatedFrame) -> None:
        offset, frame = located
        end = offset + frame.stored_size + self._header.digest.size
        if frame.length != self._header.find_length(number):
            expected = self._header.find_length(number)
            raise DamagedIndex("", self._url, f"chunk {number} has blosc nbytes {frame.length}: expected {expected}")
        if end > self._size:
            reason = (
                f"chunk {number}, of blosc ctbytes {frame.stored_size}, ends at byte {end}: expected at most "
                f"{self._size}, the size of the file"
            )
            raise DamagedIndex("", self._url, reason)


DATA: Final = "data"  # the name of the array
BYTES: Final = "u1"  # the data type of the array if the file has no metadata

_DESCRIBED: Final = frozenset(["dtype", "shape", "order", "container"])


class DescribedArray(NamedTuple):
    """The array in the frames, as the metadata describe it; ``order`` is the order of elements in the whole array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    attributes: Mapping[str, Any]

    @property
    def axis(self) -> int:
        """The slowest axis, along which the array is cut into chunks."""
        return len(self.shape) - 1 if self.order == "F" else 0

    @property
    def row_size(self) -> int:
        """The size of one step along the slowest axis, in bytes."""
        row_elements = math.prod(extent for axis, extent in enumerate(self.shape) if axis != self.axis)
        return row_elements * self.dtype.itemsize

    def find_chunk_shape(self, rows: int) -> tuple[int, ...]:
        """Return the shape of a chunk of ``rows`` steps along the slowest axis."""
        return tuple(max(rows if axis == self.axis else extent, 1) for axis, extent in enumerate(self.shape))


def _make_entry(probe: Probe, size: int, start: int, stop: int, label: str) -> Entry:
    if stop > size:
        raise ManifestError(f"{probe.url} is cut short: expected {label} up to byte {stop}, found {size} bytes")
    if stop <= len(probe.head):
        return Inline(probe.head[start:stop])
    return Span(probe.url, start, stop)


def _read_metadata(probe: Probe, size: int) -> Steps[tuple[int, dict[str, Any]]]:
    """Read the metadata. Return the byte at which they end, and their content.

    Raises ManifestError, which names the field, if they are damaged.
    """
    label = f"the metadata of {probe.url}"
    data = yield Load(_make_entry(probe, size, HEADER, 2 * HEADER, "its metadata's header"), Raw())
    magic, options, checksum, codec, level, length, room, stored_size, _ = _METADATA.unpack(data)
    if magic.rstrip(b"\0") != b"JSON":
        raise ManifestError(f"{label}: its magic is {magic!r}: expected b'JSON'")
    if options:
        raise ManifestError(f"{label}: its options are {options:#04x}: expected 0")
    if checksum >= len(CHECKSUMS):
        raise ManifestError(f"{label}: its checksum is number {checksum}: expected 0 to {len(CHECKSUMS) - 1}")
    if codec > 1 or level > 9:
        expected = "expected codec 0 (none) or 1 (zlib), level 0 to 9"
        raise ManifestError(f"{label}: its codec is {codec} with level {level}: {expected}")
    if stored_size > room:
        raise ManifestError(f"{label}: its meta_comp_size is {stored_size}: expected at most {room}, its max_meta_size")
    sizes = f"its meta_size is {length} and its meta_comp_size {stored_size}"
    if max(length, stored_size) > MOST_METADATA:
        raise ManifestError(f"{label}: {sizes}: expected at most {MOST_METADATA}")
    begin, digest_at, digest = 2 * HEADER, 2 * HEADER + room, CHECKSUMS[checksum]
    end = digest_at + digest.size
    raw, stored_digest = yield (
        Load(_make_entry(probe, size, begin, begin + stored_size, "its metadata (meta_comp_size)"), Raw()),
        Load(_make_entry(probe, size, digest_at, end, "its metadata (max_meta_size)"), Raw()),
    )
    try:
        digest.verify(raw, stored_digest)
        stream = zlib.decompressobj()
        document = decompress(stream, raw, length) if codec else raw
        if len(document) != length or stream.unused_data:
            found = f"it decompresses to {len(document)} bytes, with {len(stream.unused_data)} bytes after its end"
            raise ValueError(f"{found}: expected {length} bytes, and none after its end")
    except ValueError as e:
        raise ManifestError(f"{label}: {e} ({sizes})") from None
    return end, object_in(document, label)


def _describe_array(metadata: Mapping[str, Any], header: Header, url: str, zarr_format: int) -> DescribedArray:
    label = f"the metadata of {url}"
    if metadata.get("container") != "numpy":
        return DescribedArray(np.dtype(BYTES), (header.total,), "C", metadata)
    dtype = parse_dtype(metadata.get("dtype"), label, zarr_format)
    shape = check_integers(metadata.get("shape"), "shape", label)
    if len(shape) > 32:
        raise ManifestError(f"{label}: its 'shape' has {len(shape)} dimensions: expected at most 32")
    size = math.prod(shape) * dtype.itemsize
    if size != header.total:
        found = f"its 'shape' {shorten(list(shape))} of {dtype} takes {size} bytes"
        raise ManifestError(f"{label}: {found}: expected {header.total}, the bytes of the chunks")
    attributes = {name: value for name, value in metadata.items() if name not in _DESCRIBED}
    order = metadata.get("order")
    if order not in ("C", "F"):
        raise ManifestError(f"{label}: its 'order' is {shorten(order)}: expected 'C' or 'F'")
    return DescribedArray(dtype, shape, "F" if order == "F" and len(shape) > 1 else "C", attributes)


def _count_rows_per_chunk(array: DescribedArray, header: Header, url: str) -> int:
    """Return how many steps along the slowest axis a chunk has: the fewest that fill a frame; for one frame, all."""
    if not header.total:
        return 1
    if header.frames == 1:
        return array.shape[array.axis] if array.shape else 1
    rows = -(-header.frame_size // array.row_size)
    if rows * array.row_size > LARGEST:
        raise ManifestError(
            f"{url}: a chunk of whole rows of its array has {rows * array.row_size} bytes: expected at most {LARGEST}"
        )
    return rows


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a bloscpack file."""
    url = probe.url
    _, size = probe.file("bloscpack file")
    header = parse_header(probe.head[:HEADER], size, url)
    table = HEADER
    metadata: dict[str, Any] = {}
    if header.options & _HAS_METADATA:
        table, metadata = yield from _read_metadata(probe, size)
    array = _describe_array(metadata, header, url, options.zarr_format)
    base = Inline(probe.head) if probe.is_in_memory else Span(url, 0, size, apart=True)
    rows = _count_rows_per_chunk(array, header, url)
    chunks = FrameChunks(url, base, size, header, table, rows * array.row_size, verify=options.verify)
    frame = describe_compressor("blosclz", 5, 1, max(header.typesize, 1))
    if header.frames:
        ((_, first_frame),) = yield from chunks.locate(0, 1)
        frame = describe_compressor(first_frame.codec, 5, first_frame.shuffle, first_frame.typesize)
    dimensions = tuple(f"dim_{axis}" for axis in range(len(array.shape)))
    description = ArrayDescription(
        url,
        array.shape,
        array.find_chunk_shape(rows),
        array.dtype,
        dimensions,
        array.attributes,
        [frame],
        order=array.order,
    )
    return ArrayGroup({DATA: description}, {DATA: chunks}, options.zarr_format, {})
