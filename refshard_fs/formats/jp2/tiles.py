"""Locate and decode the tiles of a JPEG 2000 image, which are its chunks. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import Chunks, make_entry_of_parts
from refshard_fs.core.compression import decode_by_imagecodecs
from refshard_fs.core.format import FileBytes, Probe
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import Entry, Inline, Load, Span, Steps
from refshard_fs.errors import DamagedIndex
from refshard_fs.formats.jp2.codestream import EOC, POC, SOD, Header, split_segments
from refshard_fs.formats.jp2.tile_parts import SOT_SIZE, TilePart, TileParts, TilePartScan, parse_lengths

_END: Final = EOC.to_bytes(2)


class TileRecipe(msgspec.Struct, frozen=True):
    """Recipe: decode a tile, from tile parts of ``sizes`` bytes, to a chunk of ``shape`` (bands, rows, columns).

    The decoder gets a code stream with only this tile, whose main header is made from the image's ``header``. ``level``
    is the resolution level of the chunk, ``most`` the most bytes that decoding may take.
    """

    header: Header
    tile: int
    level: int
    sizes: tuple[int, ...]
    shape: tuple[int, int, int]
    most: int

    @property
    def size(self) -> int:
        """The size of the decoded chunk in bytes."""
        return math.prod(self.shape) * self.header.size.dtype.itemsize

    def make(self, raw: bytes) -> bytes:
        # The number of levels that the headers leave out. The decoder skips all others, which takes longer.
        lowered = 0 if self.header.find_order_problem() else self.level
        ends = enumerate(zip(accumulate(self.sizes), self.sizes, strict=True))
        parts = [self._encode_part(raw[stop - size : stop], number, lowered) for number, (stop, size) in ends]
        tile = self.header.size.select_tile(self.tile, self.level)
        rows, columns = tile.compute_shape(0)
        chunk = np.zeros(self.shape, tile.dtype)
        for depth in set(tile.depths):  # the decoder has one depth for all components
            stream = b"".join([self.header.encode(self.tile, lowered, depth), *parts, _END])
            shape, dtype = (tile.bands, rows, columns), tile.replace_depths(depth).dtype
            has_depth = np.frombuffer(tile.depths, np.uint8) == depth
            chunk[has_depth, :rows, :columns] = decode_stream(stream, shape, dtype, self.level - lowered)[has_depth]
        return chunk.tobytes()

    def _encode_part(self, data: bytes, number: int, lowered: int) -> bytes:
        """Return a tile part as part ``number`` of an image of one tile, without ``lowered`` resolution levels.

        Raises ValueError if ``data`` is not this part of the tile.
        """
        part = TilePart.parse(data)
        # Some writers state too few parts in the first header.
        if (part.tile, part.number) != (self.tile, number) or part.total > len(self.sizes):
            raise ValueError(
                f"expected part {number} of {len(self.sizes)} of tile {self.tile}, found part {part.number} of tile "
                f"{part.tile}, which has {part.total or 'an unknown number of'} parts"
            )
        if part.size not in (0, len(data)):
            raise ValueError(f"expected a tile part of {len(data)} bytes, found a header that states {part.size} bytes")
        body = data[SOT_SIZE : -2 if not part.size and data.endswith(_END) else None]
        try:
            segments, end = split_segments(body, 0, SOD)
        except EOFError:
            raise ValueError(f"expected the end of the header (SOD) in a tile part of {len(data)} bytes") from None
        codings = self.header.parse_codings(self.tile, segments, self.most)
        if lowered:
            levels = self.header.list_codings()[0].levels
            is_by_resolution = all(coding.levels == levels and coding.is_by_resolution for coding in codings)
            if not is_by_resolution or any(marker == POC for marker, _ in segments):
                raise ValueError(
                    "expected the order of packets of the main header in its tile, found another order: only the full "
                    "resolution can be read"
                )
            changed = [self.header.lower_resolution(marker, segment, lowered) for marker, segment in segments]
            body = b"".join([*changed, body[end:]])
        return part._replace(tile=0, size=SOT_SIZE + len(body), total=len(self.sizes)).encode() + body


def decode_stream(stream: bytes, shape: tuple[int, int, int], dtype: np.dtype[Any], skipped: int) -> npt.NDArray[Any]:
    """Decode a code stream to ``shape`` (bands, rows, columns), without the ``skipped`` highest resolution levels."""
    bands, rows, columns = shape
    out = np.zeros((rows, columns, bands)[: 2 + (bands > 1)], dtype.newbyteorder("="))
    options = {"skipres": skipped} if skipped else {}
    decode_by_imagecodecs("jpeg2k_decode", stream, "tiff", out=out, **options)
    return np.moveaxis(out.reshape(rows, columns, bands), 2, 0)


@cache
def has_skipping_decoder() -> bool:
    """Return whether imagecodecs can skip resolution levels (its option ``skipres``)."""
    try:
        return [int(number) for number in version("imagecodecs").split(".")[:3]] >= [2026, 10, 10]
    except (PackageNotFoundError, ValueError):
        return False


class TileIndex:
    """Find the tile parts of a code stream that ends at byte ``stop``, once for all resolution levels."""

    def __init__(self, file: FileBytes, probe: Probe, header: Header, stop: int) -> None:
        self.file = file
        self.header = header
        self._whole = Span(file.url, pin=None if probe.facts is None else probe.facts.pin)
        count = math.prod(header.size.tiles)
        self._scan = TilePartScan(probe.head, file.size, header.first, stop, count)
        self._parts = parse_lengths(header.lengths, header.first, stop, count)

    def read(self) -> Steps[TileParts]:
        """Return all tile parts; DamagedIndex if they are damaged."""
        if self._parts is not None:
            return self._parts
        if isinstance(self.file.source, Inline):
            try:
                self._parts = yield from self._scan.find(self.file)
            except ValueError as e:
                raise DamagedIndex("", self.file.url, str(e)) from e
            return self._parts
        parts: TileParts = yield Load(self._whole, self._scan)
        return parts


class TileChunks(Chunks):
    """Locate the tiles of an image at a resolution ``level``; ``grid`` has the axes (band, y, x), or (y, x)."""

    are_found_together = True

    def __init__(self, index: TileIndex, grid: ChunkGrid, level: int, most: int) -> None:
        self._index = index
        self._grid = grid
        self._level = level
        self._most = most

    def find_entry(self, number: int) -> Steps[Entry | None]:
        return self._locate(number, (yield from self._index.read()))

    def find_entries(self, numbers: Sequence[int]) -> Steps[Sequence[Entry | None]]:
        parts = yield from self._index.read()
        return [self._locate(number, parts) for number in numbers]

    def _locate(self, number: int, parts: TileParts) -> Entry:
        """Return the entry of chunk ``number``."""
        header, url = self._index.header, self._index.file.url
        *_, row, column = self._grid.coords(number)
        tile = row * header.size.tiles[0] + column
        ranges = parts.select_tile(tile)
        if not ranges:
            reason = f"expected a tile part of tile {tile}, found none: the code stream is damaged or cut short"
            raise DamagedIndex("", url, reason)
        chunk_shape = header.size.choose_chunks(self._level)
        assert chunk_shape is not None, "levels whose tiles differ are decoded whole"
        sizes = tuple(size for _, size in ranges)
        recipe = TileRecipe(header, tile, self._level, sizes, (header.size.bands, *chunk_shape), self._most)
        return make_entry_of_parts(self._index.file.source, ranges, recipe, recipe.size, f"{url}: tile {tile}")
