"""Decode chunks that are images, or are compressed as segmentations. No I/O here.

An image has the voxels of a chunk row by row, x fastest; its width and height may be any factors of their number.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.compression import decode_by_imagecodecs
from refshard_fs.formats.neuroglancer.minishards import decompress_gzip

SEGMENTATION: Final = "compressed_segmentation"
# The types of elements and the numbers of channels of each encoding.
ENCODINGS: Final[dict[str, tuple[frozenset[str], range]]] = {
    "jpeg": (frozenset(["uint8"]), range(1, 4, 2)),
    "png": (frozenset(["uint8", "uint16"]), range(1, 5)),
    SEGMENTATION: (frozenset(["uint32", "uint64"]), range(1, 1 << 20)),
}
MOST_IN_BLOCK: Final = 1 << 20  # voxels
_SLACK: Final = 1 << 20  # bytes that an encoded chunk may have beyond four times those of its voxels
_AT_ONCE: Final = 1 << 20  # voxels that are unpacked at a time
_PNG_CHANNELS: Final = {0: 1, 2: 3, 4: 2, 6: 4}  # by the type of colour; palettes are not used
# The markers of JPEG with the size of the image, and those without a length.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE: Final = frozenset([0x01, *range(0xD0, 0xD9)])


class EncodedRecipe(msgspec.Struct, frozen=True):
    """Decodes a chunk of the stored ``extents`` (x, y, z, channel), and pads it to the shape ``chunks`` with zeros.

    ``block`` is the shape of the blocks of a compressed segmentation.
    """

    extents: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    encoding: str
    block: tuple[int, int, int]
    is_gzip: bool

    def make(self, raw: bytes) -> bytes:
        shape, dtype = self.extents[::-1], np.dtype(self.dtype)
        if self.is_gzip:
            raw = decompress_gzip(raw, 4 * math.prod(shape) * dtype.itemsize + _SLACK, exact=False)
        if self.encoding == SEGMENTATION:
            found = _decode_segmentation(raw, shape, dtype, self.block)
        else:
            found = _decode_image(raw, self.encoding, shape, dtype)
        return pad(found.tobytes(), self.extents, self.chunks, dtype.itemsize)


def pad(data: bytes, extents: tuple[int, ...], chunks: tuple[int, ...], itemsize: int) -> bytes:
    """Pad a chunk from the shape ``extents`` to ``chunks`` with zeros; both name the fastest dimension first."""
    if extents == chunks:
        return data
    full = np.zeros((*chunks[::-1], itemsize), np.uint8)
    full[tuple(map(slice, extents[::-1]))] = np.frombuffer(data, np.uint8).reshape(*extents[::-1], itemsize)
    return full.tobytes()


def _decode_image(raw: bytes, encoding: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the voxels of an image in ``shape``: channel, z, y, x."""
    channels, count = shape[0], math.prod(shape[1:])
    found = (
        _parse_jpeg_size(raw) if encoding == "jpeg" else _parse_png_size(raw)
    )  # decoders allocate what the image states
    expected = count, channels, dtype.itemsize * 8
    if found != expected:
        raise ValueError(f"its image has (pixels, channels, bits) {found}: expected {expected}")
    image = np.asarray(decode_by_imagecodecs(f"{encoding}_decode", raw, "tiff"))
    if image.size != count * channels:
        raise ValueError(f"its image decodes to {image.size} samples: expected {count * channels}")
    return image.reshape(count, channels).T.reshape(shape).astype(dtype)


def _parse_png_size(raw: bytes) -> tuple[int, int, int]:
    """Return the numbers of pixels, of channels, and of bits of each sample."""
    if not raw.startswith(b"\x89PNG\r\n\x1a\n") or raw[12:16] != b"IHDR" or len(raw) < 26:
        raise ValueError("it is not a PNG image")
    pixels = int.from_bytes(raw[16:20], "big") * int.from_bytes(raw[20:24], "big")
    return pixels, _PNG_CHANNELS.get(raw[25], 0), raw[24]


def _parse_jpeg_size(raw: bytes) -> tuple[int, int, int]:
    """Return the numbers of pixels, of channels, and of bits of each sample."""
    at = 2 if raw.startswith(b"\xff\xd8") else len(raw)
    while at + 10 <= len(raw) and raw[at] == 0xFF:
        marker = raw[at + 1]
        if marker in _FRAMES:
            height, width = int.from_bytes(raw[at + 5 : at + 7], "big"), int.from_bytes(raw[at + 7 : at + 9], "big")
            return height * width, raw[at + 9], raw[at + 4]
        at += 1 if marker == 0xFF else 2 if marker in _BARE else 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
    raise ValueError("it is not a JPEG image: no frame begins in it")


def _decode_segmentation(
    raw: bytes, shape: tuple[int, ...], dtype: np.dtype[Any], block: tuple[int, int, int]
) -> npt.NDArray[Any]:
    """Return the voxels of a compressed segmentation in ``shape``: channel, z, y, x."""
    words = np.frombuffer(raw, "<u4", len(raw) // 4).astype(np.uint32, copy=False)
    channels, *extents = shape
    steps = block[::-1]
    counts = [-(-extent // step) for extent, step in zip(extents, steps, strict=True)]
    size, blocks = math.prod(steps), math.prod(counts)
    if blocks * size > 8 * math.prod(extents) + MOST_IN_BLOCK:
        raise ValueError(f"its blocks of {list(block)} are much larger than its voxels {extents[::-1]}")
    found = np.empty(shape, dtype)
    try:
        for channel, start in enumerate(words[:channels].tolist()):
            own = words[start:]
            if len(words) < channels or len(own) < 2 * blocks:
                raise ValueError(f"its index is cut short: expected {blocks} blocks")
            heads = own[: 2 * blocks].reshape(blocks, 2).astype(np.int64)
            values = np.empty((blocks, size), dtype)
            for bits in np.unique(heads[:, 0] >> 24).tolist():
                alike = np.flatnonzero(heads[:, 0] >> 24 == bits)
                some = max(_AT_ONCE // size, 1)
                for rows in (alike[at : at + some] for at in range(0, len(alike), some)):
                    numbers = _unpack(own, heads[rows, 1], bits, size)
                    values[rows] = _look_up(own, heads[rows, 0] & 0xFFFFFF, numbers, dtype)
            whole = values.reshape(*counts, *steps).transpose(0, 3, 1, 4, 2, 5)
            whole = whole.reshape([count * step for count, step in zip(counts, steps, strict=True)])
            found[channel] = whole[tuple(map(slice, extents))]
    except IndexError:
        raise ValueError("its blocks lead beyond its end") from None
    return found


def _unpack(words: npt.NDArray[Any], starts: npt.NDArray[Any], bits: int, size: int) -> npt.NDArray[Any]:
    """Return ``size`` numbers of ``bits`` bits for each block whose words begin at ``starts``."""
    if bits not in (0, 1, 2, 4, 8, 16, 32):
        raise ValueError(f"its blocks have numbers of {bits} bits: expected 0 or a power of two up to 32")
    if bits == 0:
        return np.zeros((len(starts), size), np.int64)
    stored = words[starts[:, None] + np.arange(-(-size * bits // 32))]
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    parts = stored[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return parts.reshape(len(starts), -1)[:, :size].astype(np.int64)


def _look_up(words: npt.NDArray[Any], tables: npt.NDArray[Any], numbers: npt.NDArray[Any], dtype: np.dtype[Any]) -> Any:
    """Return the labels with ``numbers`` in the tables that begin at ``tables``, one for each block."""
    if dtype.itemsize == 4:
        return words[tables[:, None] + numbers]
    low = tables[:, None] + 2 * numbers
    return words[low].astype(np.uint64) | words[low + 1].astype(np.uint64) << np.uint64(32)
