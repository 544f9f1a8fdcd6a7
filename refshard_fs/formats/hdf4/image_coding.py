"""Compressions of raster images before HDF 4: runs, JPEG, and two colours for each block. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.compression import decode_by_imagecodecs
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf4.coding import decode_runs

RUNS, BLOCKS, JPEGS = 11, 12, (15, 16)  # tags that name the compressions; 15 has three bands, 16 one
_SIDE: Final = 4  # rows and columns of a block


class ImageCoding(msgspec.Struct, frozen=True):
    """A compression by its tag, of an image of ``rows``, ``columns`` and ``bands``."""

    compression: int
    rows: int
    columns: int
    bands: int

    @property
    def codecs(self) -> Sequence[Mapping[str, Any]]:
        """The codecs of zarr that decode an image: none."""
        return []

    @property
    def file_codecs(self) -> tuple[str, ...]:
        """The name of the compression."""
        return ("jpeg" if self.compression in JPEGS else "rle" if self.compression == RUNS else "imcomp",)

    def recipe(self, size: int, itemsize: int) -> DecodedImage:
        """Return the recipe for the image of ``size`` bytes; ManifestError, which names the compression, if unknown."""
        if self.compression not in (RUNS, BLOCKS, *JPEGS):
            raise ManifestError(f"it is a raster image that is compressed by {self.compression}, which is not read")
        if itemsize != 1 or size != math.prod((self.rows, self.columns, self.bands)):
            raise ManifestError(
                f"its compression is {self.compression}, and its pixels have {itemsize} bytes: expected 1"
            )
        if self.compression == BLOCKS and (self.rows % _SIDE or self.columns % _SIDE):
            raise ManifestError(f"it is compressed by blocks, and has {self.rows} rows and {self.columns} columns")
        return DecodedImage(self, size)


class DecodedImage(msgspec.Struct, frozen=True):
    """A recipe: the ``size`` bytes of an image."""

    coding: ImageCoding
    size: int

    def make(self, raw: bytes) -> bytes:
        coding = self.coding
        if coding.compression in JPEGS:
            out = np.zeros((coding.rows, coding.columns, coding.bands)[: 2 + (coding.bands > 1)], np.uint8)
            decode_by_imagecodecs("jpeg_decode", raw, "hdf5", out=out)
            return out.tobytes()
        found = decode_runs(raw, self.size, 0, 0) if coding.compression == RUNS else self._decode_blocks(raw)
        if len(found) != self.size:
            raise ValueError(f"its image decodes to {len(found)} bytes: expected {self.size}")
        return found

    def _decode_blocks(self, raw: bytes) -> bytes:
        """Return the pixels of blocks: a block has a bit for each pixel, and the values of a set bit and of others."""
        down, across = self.coding.rows // _SIDE, self.coding.columns // _SIDE
        if len(raw) < 4 * down * across:
            raise ValueError(f"its image has {len(raw)} bytes of blocks: expected {4 * down * across}")
        blocks = np.frombuffer(raw, np.uint8, 4 * down * across).reshape(down, across, 4)
        bits = np.unpackbits(blocks[..., :2], axis=2).reshape(down, across, _SIDE, _SIDE)
        pixels = np.where(bits, blocks[..., 2, None, None], blocks[..., 3, None, None])
        return pixels.swapaxes(1, 2).tobytes()
