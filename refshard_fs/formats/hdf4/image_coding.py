"""Compressions of raster images before HDF 4: runs, JPEG, and blocks of two colours (IMCOMP). No I/O here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.compression import decode_by_imagecodecs
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf4.coding import check_decoded_size, decode_runs

RUNS, BLOCKS, JPEGS = 11, 12, (15, 16)  # tags of compressions; JPEG: 15 for three bands, 16 for one band
_SIDE: Final = 4  # rows and columns of a block


class ImageCoding(msgspec.Struct, frozen=True):
    """The compression of an image, by its tag, and the numbers of rows, columns and bands of the image."""

    compression: int
    rows: int
    columns: int
    bands: int

    @property
    def codecs(self) -> Sequence[Mapping[str, Any]]:
        """The codecs with which zarr decodes an image: none, because a recipe decodes it."""
        return []

    @property
    def file_codecs(self) -> tuple[str, ...]:
        """The name of the compression."""
        return ("jpeg" if self.compression in JPEGS else "rle" if self.compression == RUNS else "imcomp",)

    def make_recipe(self, size: int, itemsize: int) -> ImageRecipe:
        """Return the recipe that decodes the image to ``size`` bytes.

        Raises ManifestError if the compression, or its use with this shape, is not supported.
        """
        if self.compression not in (RUNS, BLOCKS, *JPEGS):
            known = ", ".join(map(str, (RUNS, BLOCKS, *JPEGS)))
            raise ManifestError(f"it is a raster image with the compression {self.compression}: expected {known}")
        check_decoded_size(size, self.file_codecs[0])
        if itemsize != 1 or size != math.prod((self.rows, self.columns, self.bands)):
            raise ManifestError(
                f"its compression is {self.compression}, and its pixels have {itemsize} bytes: expected 1 byte for "
                f"each of {self.bands} bands"
            )
        if self.compression == BLOCKS and (self.rows % _SIDE or self.columns % _SIDE):
            raise ManifestError(
                f"it is compressed in blocks of {_SIDE} rows and columns, and has {self.rows} rows and {self.columns} "
                f"columns: expected multiples of {_SIDE}"
            )
        return ImageRecipe(self, size)


class ImageRecipe(msgspec.Struct, frozen=True):
    """Decode an image to ``size`` bytes."""

    coding: ImageCoding
    size: int

    def make(self, raw: bytes) -> bytes:
        coding = self.coding
        if coding.compression in JPEGS:
            out = np.zeros((coding.rows, coding.columns, coding.bands)[: 2 + (coding.bands > 1)], np.uint8)
            decode_by_imagecodecs("jpeg_decode", raw, "hdf5", out=out)
            return out.tobytes()
        pixels = decode_runs(raw, self.size, 0, 0) if coding.compression == RUNS else self._decode_blocks(raw)
        if len(pixels) != self.size:
            raise ValueError(f"its image decodes to {len(pixels)} bytes: expected {self.size}")
        return pixels

    def _decode_blocks(self, raw: bytes) -> bytes:
        """Decode blocks of 4 by 4 pixels: 16 bits, one for each pixel, then the values of set and of unset bits."""
        down, across = self.coding.rows // _SIDE, self.coding.columns // _SIDE
        if len(raw) < 4 * down * across:
            raise ValueError(f"its image has {len(raw)} bytes of blocks: expected {4 * down * across}")
        blocks = np.frombuffer(raw, np.uint8, 4 * down * across).reshape(down, across, 4)
        bits = np.unpackbits(blocks[..., :2], axis=2).reshape(down, across, _SIDE, _SIDE)
        pixels = np.where(bits, blocks[..., 2, None, None], blocks[..., 3, None, None])
        return pixels.swapaxes(1, 2).tobytes()
