"""Locate the values of an HDF4 data set: in one element, in linked blocks, or in chunks. No I/O here."""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from refshard_fs.core.array_group import (
    ArrayDescription,
    Chunks,
    Contiguous,
    FilledChunks,
    ZeroPaddingRecipe,
    choose_chunks,
    encode_chunk,
    report_damage,
)
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import Entry, Listed, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf4.coding import Coding, parse_coding
from refshard_fs.formats.hdf4.elements import ElementPart, Elements, Key, Tag
from refshard_fs.formats.hdf4.image_coding import ImageCoding
from refshard_fs.formats.hdf4.objects import parse_vdata

MOST_DIMENSIONS: Final = 32  # the limit of numpy before version 2


class Layout(NamedTuple):
    """How the values of a data set are stored. ``length`` is their size in bytes, before compression.

    ``chunk`` is the shape of the chunks: () if all values are one chunk, None if they are stored without chunks and
    compression. ``shape`` is the shape of the data set, if the header of the chunks states it. ``written`` has the
    elements of the written chunks, by chunk number; None if the Vdata with the reference number ``table`` lists them.
    ``fill`` are the bytes of one value that was never written.
    """

    length: int
    chunk: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    coding: Coding | ImageCoding | None = None
    table: int = 0
    written: dict[int, Key] | None = None
    fill: bytes = b""


def find_layout(elements: Elements, key: Key | None) -> Steps[Layout | None]:
    """Return the layout of the values in element ``key``; None if they were never written.

    Raises ManifestError if the layout is not supported.
    """
    if key is None or key not in elements.descriptors:
        return None
    kind = yield from elements.read_kind(key)
    if kind == "plain":
        return Layout(elements.descriptors[key].length)
    header = yield from elements.read_stored_bytes(key)
    match kind:
        case "linked":
            return Layout(int.from_bytes(header[2:6], "big", signed=True))
        case "compressed":
            length, ref, coding = parse_compressed(header)
            if not length or (Tag.COMPRESSED, ref) not in elements.descriptors:
                return None
            return Layout(length, (), None, parse_coding(coding), written={0: key})
        case "chunked":
            return parse_chunked(header)
        case "external":
            name = header[14:].split(b"\0")[0].decode(errors="replace")
            raise ManifestError(f"its values lie in another file, {name[:100]!r}: expected values in the file itself")
    raise ManifestError(f"its values are in a {kind} element: expected a plain, linked, compressed or chunked element")


def parse_compressed(header: bytes) -> tuple[int, int, bytes]:
    """Parse the header of a compressed element.

    Returns the size of the values in bytes, the reference number of the compressed bytes, and the rest of the header,
    which describes the compression.
    """
    if len(header) < 14:
        raise ValueError(f"the header of its compressed values is cut short: {len(header)} bytes, expected 14")
    _, length, ref = struct.unpack_from(">HiH", header, 2)
    return length, ref, header[10:]


def parse_chunked(header: bytes) -> Layout:
    """Parse the header of a chunked element. Raise ValueError if it is damaged."""
    try:
        _, version, _, total, count, width, _, table, _, _, ndim = struct.unpack_from(">iBiiiiHHHHi", header, 2)
        if version != 0 or not 0 < ndim <= MOST_DIMENSIONS:
            raise ValueError(
                f"its chunks have version {version} and {ndim} dimensions: expected version 0, "
                f"1 to {MOST_DIMENSIONS} dimensions"
            )
        extents = struct.unpack_from(f">{3 * ndim}i", header, 35)
        position = 39 + 12 * ndim
        (length,) = struct.unpack_from(">i", header, position - 4)
        fill, position = header[position : position + length], position + length
        shape, chunk = extents[1::3], extents[2::3]
        if min(shape) < 0 or min(chunk) < 1 or count != math.prod(chunk) or len(fill) != length or width < 1:
            raise ValueError(
                f"the header of its chunks has the shape {shape}, chunks of {chunk}, {count} values in a chunk, "
                f"{width} bytes in a value, and {len(fill)} of {length} bytes of a fill value: expected "
                f"{math.prod(chunk)} values, positive numbers and a whole fill value"
            )
        coding = None
        if position + 6 <= len(header):
            (length,) = struct.unpack_from(">i", header, position + 2)
            coding = parse_coding(header[position + 6 : position + 6 + max(length, 0)])
    except struct.error as e:
        raise ValueError(f"the header of its chunks is cut short: it has {len(header)} bytes ({e})") from e
    return Layout(total * width, chunk, shape, coding, table, None, fill)


def find_chunk_shape(layout: Layout | None, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the shape of the chunks of a data set. Values without chunks are cut into chunks for reading."""
    if layout is None or layout.chunk is None:
        return choose_chunks(shape, itemsize)
    return layout.chunk or tuple(max(extent, 1) for extent in shape)


def make_chunks(
    elements: Elements, key: Key | None, layout: Layout | None, array: ArrayDescription, grid: ChunkGrid, fill: bytes
) -> Chunks:
    """Return the chunks of a data set; ``fill`` are the bytes of one value that was never written.

    Raises ManifestError if the data set has fewer bytes than its shape needs.
    """
    expected = math.prod(array.shape) * array.dtype.itemsize
    if layout is not None and layout.length < expected:
        raise ManifestError(f"{array.where}: its values have {layout.length} bytes: expected {expected} for its shape")
    if layout is None or layout.chunk is not None or key is None:
        return CodedChunks(elements, layout or Layout(0, written={}), array, grid, fill)
    if elements.descriptors[key].is_special:
        return LinkedBlocks(elements, key, array)
    offset = elements.descriptors[key].offset
    return Contiguous(elements.file.source, offset, array.shape, array.chunks, array.dtype.itemsize, array.where)


class LinkedBlocks(Contiguous):
    """The chunks of an array that is stored in linked blocks."""

    are_found_together = False
    find_entries = Chunks.find_entries

    def __init__(self, elements: Elements, key: Key, array: ArrayDescription) -> None:
        itemsize = array.dtype.itemsize
        super().__init__(elements.file.source, 0, array.shape, array.chunks, itemsize, array.where)
        self._elements = elements
        self._key = key
        self._recipe = ZeroPaddingRecipe(math.prod(array.chunks) * itemsize)

    def find_entry(self, number: int) -> Steps[Entry | None]:
        start, size = self.place(number)
        parts = cut_parts((yield from self._elements.find_parts(self._key)), start, size)
        recipe = None if size == self._recipe.size else self._recipe
        return self._elements.make_entry(parts, recipe, f"the linked element {self._key}")


def cut_parts(parts: Sequence[ElementPart], start: int, size: int) -> list[ElementPart]:
    """Return the parts that hold ``size`` bytes of an element from byte ``start`` on; ``parts`` hold all its bytes."""
    begins = list(accumulate((part_length for _, part_length in parts), initial=0))
    number = bisect_right(begins, start) - 1
    result = []
    while size > 0 and number < len(parts):
        (offset, part_length), skipped = parts[number], start - begins[number]
        length = min(part_length - skipped, size)
        result.append((offset + skipped, length))
        start, size, number = start + length, size - length, number + 1
    return result


class CodedChunks(FilledChunks):
    """The chunks of a data set that is chunked, is compressed as a whole, or was never written."""

    def __init__(
        self, elements: Elements, layout: Layout, array: ArrayDescription, grid: ChunkGrid, fill: bytes
    ) -> None:
        itemsize = array.dtype.itemsize
        self._chunk_size = math.prod(array.chunks) * itemsize
        self._fill = layout.fill if len(layout.fill) == itemsize else fill
        # zarr fills unwritten chunks with the attribute's fill value: this is right only if the file has the same one.
        fills_itself = array.fill_value is not None and self._fill == fill
        super().__init__(array.where, grid, self._chunk_size, fills_itself=fills_itself)
        self._elements = elements
        self._layout = layout
        self._codecs = array.codecs
        self._recipe = None if layout.coding is None else layout.coding.make_recipe(self._chunk_size, itemsize)
        self._written = layout.written

    def encode_fill(self) -> bytes:
        return encode_chunk(self._fill * (self._chunk_size // len(self._fill)), self._codecs)

    def find_written(self) -> Steps[dict[int, Key]]:
        """Return the elements of the chunks that were written, by chunk number."""
        if self._written is None:
            self._written = yield from self._read_table()
        return self._written

    def _read_table(self) -> Steps[dict[int, Key]]:
        ref, counts = self._layout.table, self.grid.counts
        header = parse_vdata((yield from self._elements.read_stored_bytes((Tag.VDATA, ref))))
        row = np.dtype([("origin", ">i4", (len(counts),)), ("tag", ">u2"), ("ref", ">u2")])
        if header.size != row.itemsize:
            raise ValueError(f"the records of its table of chunks have {header.size} bytes: expected {row.itemsize}")
        if not header.records:
            return {}
        data = yield from self._elements.read_contents((Tag.VDATA_VALUES, ref))
        if len(data) < header.records * row.itemsize:
            expected = header.records * row.itemsize
            raise ValueError(f"its table of {header.records} chunks has {len(data)} bytes: expected {expected}")
        rows = np.frombuffer(data, row, header.records)
        rows = rows[((rows["origin"] >= 0) & (rows["origin"] < counts)).all(axis=1) & (rows["tag"] == Tag.CHUNK)]
        numbers = np.ravel_multi_index(tuple(rows["origin"].T), counts) if len(rows) else np.empty(0, np.int64)
        return {number: (Tag.CHUNK, ref) for number, ref in zip(numbers.tolist(), rows["ref"].tolist(), strict=True)}

    def find_entry(self, number: int) -> Steps[Entry | None]:
        elements = self._elements
        with report_damage(elements.file.url, self.where):
            key = (yield from self.find_written()).get(number)
            if key is None:
                return self.make_unwritten_entry()
            parts = yield from self._find_parts(key)
            size = sum(length for _, length in parts)
            if not size:
                raise ValueError(f"chunk {number} has 0 bytes: expected at least 1")
            if self._layout.coding is None and size != self._chunk_size:
                raise ValueError(f"chunk {number} has {size} bytes: expected {self._chunk_size}")
            return elements.make_entry(parts, self._recipe, f"chunk {number}")

    def _find_parts(self, key: Key) -> Steps[list[ElementPart]]:
        """Return the places of the bytes of a chunk, without the header of a compressed chunk."""
        elements = self._elements
        descriptor = elements.descriptors.get(key)
        if descriptor is None or not descriptor.is_special:
            return (yield from elements.find_parts(key))
        compressed = elements.find_compressed(key) if key[0] == Tag.CHUNK else None
        if compressed is None:
            _, ref, _ = parse_compressed((yield from elements.read_stored_bytes(key)))
            compressed = Tag.COMPRESSED, ref
        return (yield from elements.find_parts(compressed))

    def list_existing(self) -> Steps[list[Listed] | None]:
        with report_damage(self._elements.file.url, self.where):
            numbers = yield from self.find_written()
        return self.list_written(np.array(sorted(numbers), np.uint64))
