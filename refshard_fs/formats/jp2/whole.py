"""Show JPEG 2000 images whose tiles cannot be chunks: each resolution level is one chunk. No I/O here."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from refshard_fs.core.array_group import Chunks, make_entry
from refshard_fs.core.format import FileBytes
from refshard_fs.core.model import Entry, Steps
from refshard_fs.formats.jp2.codestream import SOD, Header, split_segments
from refshard_fs.formats.jp2.tile_parts import SOT_SIZE, TilePart
from refshard_fs.formats.jp2.tiles import decode_stream

LARGEST: Final = 1 << 28  # the most bytes of such an image: reading any part decodes all of it


class WholeRecipe(msgspec.Struct, frozen=True):
    """Recipe: decode a code stream to an image of ``shape`` (bands, rows, columns) at a resolution ``level``.

    ``tiles`` is the position of the first tile part in the code stream. ``most`` is the most bytes that decoding a tile
    may take.
    """

    header: Header
    tiles: int
    level: int
    shape: tuple[int, int, int]
    most: int

    @property
    def size(self) -> int:
        """The size of the decoded image in bytes."""
        return math.prod(self.shape) * self.header.size.dtype.itemsize

    def make(self, raw: bytes) -> bytes:
        self._check_tiles(raw)
        dtype = self.header.size.dtype
        return decode_stream(raw, self.shape, dtype, self.level).astype(dtype).tobytes()

    def _check_tiles(self, raw: bytes) -> None:
        """Raise ValueError if a tile part is damaged, or its header states a coding that takes too much memory."""
        at = self.tiles
        while len(raw) - at >= SOT_SIZE:
            part = TilePart.parse(raw[at : at + SOT_SIZE])
            try:
                segments, _ = split_segments(raw, at + SOT_SIZE, SOD)
            except EOFError:
                expected = "expected the end of the header (SOD)"
                raise ValueError(f"{expected} of the tile part at byte {at} of the code stream, found none") from None
            self.header.parse_codings(part.tile, segments, self.most)
            at = at + part.size if part.size else len(raw)


def check_decodable_as_one_chunk(header: Header, level: int, most: int) -> None:
    """Raise ValueError if a level cannot be decoded as one chunk of at most ``most`` bytes."""
    size = header.size
    needed = math.prod(size.compute_shape(level)) * size.bands * size.dtype.itemsize
    if needed > min(most, LARGEST):
        raise ValueError(f"decoding it whole takes {needed} bytes: expected at most {min(most, LARGEST)}")
    if size.sampling not in (None, (1, 1)):
        raise ValueError(f"its samples are {size.sampling} units of the reference grid apart: expected (1, 1)")
    if size.sampling is None and not size.has_subsampled_colours:
        raise ValueError(
            f"its components differ in sampling ({size.components[:12].hex(' ', 3)}, as in SIZ): expected equal "
            "sampling, or YCbCr whose Cb and Cr have half as many columns as Y, or half as many columns and rows"
        )
    if len(set(size.depths)) > 1:
        raise ValueError(f"its components differ in depth ({size.depths[:4].hex()}, as in SIZ): expected equal depths")


class WholeChunks(Chunks):
    """Locate the single chunk of an image, whose code stream lies in bytes ``start`` to ``stop`` of a file."""

    def __init__(self, file: FileBytes, start: int, stop: int, recipe: WholeRecipe) -> None:
        self._file = file
        self._range = start, stop - start
        self._recipe = recipe

    def find_entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        url = self._file.url
        return make_entry(self._file.source.part(*self._range), self._recipe, self._recipe.size, f"{url}: the image")
