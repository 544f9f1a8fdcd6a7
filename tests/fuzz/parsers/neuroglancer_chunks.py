"""Decode chunks of neuroglancer's encodings: they have the size of the array's chunks, or ValueError is raised."""

from __future__ import annotations

import gzip
import math
from contextlib import nullcontext as set_up
from functools import cache

import imagecodecs
import numpy as np

from refshard_fs.formats.neuroglancer.encodings import DecodingRecipe

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (b"\xff\xc0", b"\xff\xd8", b"\xff\xda", b"IHDR", b"IDAT", b"\1\0\0\1", b"\x20\0\0\1", b"\0\0\0\0")
_SHAPE = (4, 3, 2, 1)
_PADDED = (4, 4, 2, 1)
_SEGMENTATION = "compressed_segmentation"
# The first byte of an input is the number of its recipe.
_RECIPES = (
    DecodingRecipe(_SHAPE, _PADDED, "|u1", "jpeg", (1, 1, 1), is_gzip=False),
    DecodingRecipe((4, 3, 2, 3), (4, 4, 2, 3), "|u1", "jpeg", (1, 1, 1), is_gzip=True),
    DecodingRecipe(_SHAPE, _SHAPE, "<u2", "png", (1, 1, 1), is_gzip=False),
    DecodingRecipe(_SHAPE, _PADDED, "<u4", _SEGMENTATION, (2, 2, 2), is_gzip=False),
    DecodingRecipe(_SHAPE, _PADDED, "<u8", _SEGMENTATION, (4, 4, 2), is_gzip=True),
)


@cache
def make_seeds() -> list[bytes]:
    gray = np.arange(24, dtype="u1").reshape(6, 4)
    parts = (
        imagecodecs.jpeg_encode(gray),
        gzip.compress(imagecodecs.jpeg_encode(np.stack([gray] * 3, -1)), mtime=0),
        imagecodecs.png_encode(gray.astype("u2") * 300),
        # 2 x 2 x 1 blocks: two labels in numbers of 1 bit, one label, four labels in numbers of 2 bits, one label
        np.array(
            [1, 1 << 24 | 9, 8, 11, 0, 2 << 24 | 13, 12, 17, 0, 90, 5, 6, 7, 0xE4E4, 1, 2, 3, 4, 9], "<u4"
        ).tobytes(),
        gzip.compress(np.array([1, 1 << 24 | 3, 2, 0x5A5A5A, 1, 2, 3, 4], "<u4").tobytes(), mtime=0),
    )
    return [bytes([number]) + part for number, part in enumerate(parts)]


def check_input(data: bytes) -> None:
    recipe = _RECIPES[data[0] % len(_RECIPES)] if data else _RECIPES[0]
    try:
        made = recipe.make(data[1:])
    except ValueError:
        return
    assert len(made) == math.prod(recipe.chunks) * np.dtype(recipe.dtype).itemsize
