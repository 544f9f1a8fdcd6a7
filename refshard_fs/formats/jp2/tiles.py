"""The tiles of a JPEG 2000 image as chunks: each is decoded from its tile parts and a main header. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from refshard_fs.core.array_group import Chunks, make_entry_of_parts
from refshard_fs.core.compression import decode_by_imagecodecs
from refshard_fs.core.format import FileBytes
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import Entry, Inline, Load, Pin, Span, Steps
from refshard_fs.errors import DamagedIndex
from refshard_fs.formats.jp2.codestream import (
    COC,
    COD,
    EOC,
    POC,
    SOD,
    Coding,
    Header,
    check_cost,
    lower_resolution,
    split_segments,
)
from refshard_fs.formats.jp2.tile_parts import SOT_SIZE, Part, TileParts, TilePartScan, find_tile_parts, parse_lengths

_END: Final = EOC.to_bytes(2)


class TileRecipe(msgspec.Struct, frozen=True):
    """Decodes tile parts of ``sizes`` bytes to a chunk of ``shape`` (bands, rows, columns).

    ``header`` is the main header of the image; the code stream that is decoded has this tile only, at a ``level``.
    ``most`` is the limit of `check_cost`.
    """

    header: Header
    tile: int
    level: int
    sizes: tuple[int, ...]
    shape: tuple[int, int, int]
    most: int

    @property
    def size(self) -> int:
        """Size of the decoded chunk in bytes."""
        return math.prod(self.shape) * self.header.size.dtype.itemsize

    def make(self, raw: bytes) -> bytes:
        stream = [self.header.encode(self.tile, self.level)]
        at = 0
        for number, size in enumerate(self.sizes):
            stream += self._encode_part(raw[at : at + size], number)
            at += size
        size_ = self.header.size.select_tile(self.tile, self.level)
        (rows, columns), bands = size_.shape(0), size_.bands
        out = np.zeros((rows, columns, bands)[: 2 + (bands > 1)], size_.dtype.newbyteorder("="))
        decode_by_imagecodecs("jpeg2k_decode", b"".join([*stream, _END]), "tiff", out=out)
        chunk = np.zeros(self.shape, size_.dtype)
        chunk[:, :rows, :columns] = np.moveaxis(out.reshape(rows, columns, bands), 2, 0)
        return chunk.tobytes()

    def _encode_part(self, data: bytes, number: int) -> list[bytes]:
        """Return a tile part for an image of one tile at a lower resolution; ValueError if it is another one."""
        part, size = Part.parse(data), self.header.size
        if (part.tile, part.number) != (self.tile, number) or part.total not in (0, len(self.sizes)):
            raise ValueError(
                f"expected part {number} of {len(self.sizes)} of tile {self.tile}, found part {part.number} of "
                f"{part.total or 'some'} of tile {part.tile}"
            )
        if part.size not in (0, len(data)):
            raise ValueError(f"expected a tile part of {len(data)} bytes, found one of {part.size}")
        if not part.size and data.endswith(_END):
            data = data[:-2]
        try:
            segments, end = split_segments(data, SOT_SIZE, SOD)
        except EOFError:
            raise ValueError("its tile part ends within its header") from None
        if self.level and any(marker == POC for marker, _ in segments):
            raise ValueError("the order of packets changes in its tile (POC)")
        codings = [Coding.parse(marker, segment, size.bands) for marker, segment in segments if marker in (COD, COC)]
        check_cost(size.select_tile(self.tile, 0), codings, self.most)
        body = [lower_resolution(marker, segment, size.bands, self.level) for marker, segment in segments]
        body.append(data[end:])
        return [part._replace(tile=0, size=SOT_SIZE + sum(map(len, body))).encode(), *body]


class TileIndex:
    """Finds the tile parts of a code stream that ends at ``stop``, once."""

    def __init__(self, file: FileBytes, head: bytes, pin: Pin | None, header: Header, stop: int) -> None:
        self.file = file
        self.header = header
        self._whole = Span(file.url, pin=pin)
        self._count = math.prod(header.size.tiles)
        self._scan = TilePartScan(head, file.size, header.first, stop, self._count)
        self._found = parse_lengths(header.lengths, header.first, stop, self._count)

    def read(self) -> Steps[TileParts]:
        """Return all tile parts; DamagedIndex if they are damaged."""
        if self._found is not None:
            return self._found
        if isinstance(self.file.source, Inline):
            try:
                scan = self._scan
                self._found = yield from find_tile_parts(self.file, scan.first, scan.stop, scan.tiles)
            except ValueError as e:
                raise DamagedIndex("", self.file.url, str(e)) from e
            return self._found
        found: TileParts = yield Load(self._whole, self._scan)
        return found


class TileChunks(Chunks):
    """The tiles of an image at a resolution ``level``; ``grid`` is of an array (band, y, x), or (y, x)."""

    def __init__(self, index: TileIndex, grid: ChunkGrid, level: int, most: int) -> None:
        self._index = index
        self._grid = grid
        self._level = level
        self._most = most

    def entry(self, number: int) -> Steps[Entry | None]:
        return self._locate(number, (yield from self._index.read()))

    def entries(self, numbers: Sequence[int]) -> Steps[Sequence[Entry | None]]:
        parts = yield from self._index.read()
        return [self._locate(number, parts) for number in numbers]

    def _locate(self, number: int, parts: TileParts) -> Entry:
        header, url = self._index.header, self._index.file.url
        *_, row, column = self._grid.coords(number)
        tile = row * header.size.tiles[0] + column
        found = parts.of_tile(tile)
        if not found:
            raise DamagedIndex("", url, f"tile {tile} has no tile part: the code stream is damaged or cut short")
        chunks = header.size.chunks(self._level)
        assert chunks is not None, "levels without equal chunks are not shown"
        sizes = tuple(size for _, size in found)
        recipe = TileRecipe(header, tile, self._level, sizes, (header.size.bands, *chunks), self._most)
        return make_entry_of_parts(self._index.file.source, found, recipe, recipe.size, f"{url}: tile {tile}")
