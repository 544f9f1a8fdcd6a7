"""Decode chunks of the encodings ``jpeg``, ``png`` and ``compressed_segmentation``. No I/O here.

An image has the voxels of a chunk in the order x, y, z, the first dimension fastest. Its width times its height is the
number of voxels.
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
# For each encoding: the data types and the numbers of channels that it can have.
ENCODINGS: Final[dict[str, tuple[frozenset[str], range]]] = {
    "jpeg": (frozenset(["uint8"]), range(1, 4, 2)),
    "png": (frozenset(["uint8", "uint16"]), range(1, 5)),
    SEGMENTATION: (frozenset(["uint32", "uint64"]), range(1, 1 << 20)),
}
MOST_IN_BLOCK: Final = 1 << 20  # the most voxels of a block
_SLACK: Final = 1 << 20  # an encoded chunk may have four times the bytes of its voxels, and this number of bytes more
_AT_ONCE: Final = 1 << 20  # voxels that are unpacked together
_PNG_CHANNELS: Final = {0: 1, 2: 3, 4: 2, 6: 4}  # by PNG's colour type; 3, a palette, is not supported
# The markers of JPEG segments that state the size of the image, and the markers without a length.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE: Final = frozenset([0x01, *range(0xD0, 0xD9)])


class DecodingRecipe(msgspec.Struct, frozen=True):
    """Decode a chunk of the shape ``extents`` (x, y, z, channel), and pad it with zeros to the shape ``chunks``.

    ``block`` is the shape of a block in a compressed segmentation.
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
            voxels = _decode_segmentation(raw, shape, dtype, self.block)
        else:
            voxels = _decode_image(raw, self.encoding, shape, dtype)
        return pad_chunk(voxels.tobytes(), self.extents, self.chunks, dtype.itemsize)


def pad_chunk(data: bytes, extents: tuple[int, ...], chunks: tuple[int, ...], itemsize: int) -> bytes:
    """Pad a chunk with zeros from the shape ``extents`` to ``chunks``; in both, the fastest dimension comes first."""
    if extents == chunks:
        return data
    full = np.zeros((*chunks[::-1], itemsize), np.uint8)
    full[tuple(map(slice, extents[::-1]))] = np.frombuffer(data, np.uint8).reshape(*extents[::-1], itemsize)
    return full.tobytes()


def _decode_image(raw: bytes, encoding: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Decode an image to voxels of ``shape``: (channel, z, y, x)."""
    channels, count = shape[0], math.prod(shape[1:])
    # Check the sizes before decoding, because decoders allocate memory for them.
    stated = _parse_jpeg_size(raw) if encoding == "jpeg" else _parse_png_size(raw)
    expected = count, channels, dtype.itemsize * 8
    if stated != expected:
        raise ValueError(f"its image has (pixels, channels, bits) {stated}: expected {expected}")
    if encoding == "jpeg" and not raw.rstrip(b"\0").endswith(b"\xff\xd9"):  # the decoder would fill the rest with grey
        raise ValueError(f"its JPEG image is cut short: expected the marker FFD9 at its end, found {raw[-2:].hex()!r}")
    image = np.asarray(decode_by_imagecodecs(f"{encoding}_decode", raw, "tiff"))
    if image.size != count * channels:
        raise ValueError(f"its image decodes to {image.size} samples: expected {count * channels}")
    return image.reshape(count, channels).T.reshape(shape).astype(dtype)


def _parse_png_size(raw: bytes) -> tuple[int, int, int]:
    """Return how many pixels, channels, and bits of a sample the image states."""
    if not raw.startswith(b"\x89PNG\r\n\x1a\n") or raw[12:16] != b"IHDR" or len(raw) < 26:
        raise ValueError(f"expected a PNG image, found the first bytes {raw[:16]!r} of {len(raw)}")
    pixels = int.from_bytes(raw[16:20], "big") * int.from_bytes(raw[20:24], "big")
    return pixels, _PNG_CHANNELS.get(raw[25], 0), raw[24]


def _parse_jpeg_size(raw: bytes) -> tuple[int, int, int]:
    """Return how many pixels, channels, and bits of a sample the image states."""
    position = 2 if raw.startswith(b"\xff\xd8") else len(raw)
    while position + 10 <= len(raw) and raw[position] == 0xFF:
        marker = raw[position + 1]
        if marker in _FRAMES:
            height, width = (
                int.from_bytes(raw[position + 5 : position + 7], "big"),
                int.from_bytes(raw[position + 7 : position + 9], "big"),
            )
            return height * width, raw[position + 9], raw[position + 4]
        position += (
            1
            if marker == 0xFF
            else 2
            if marker in _BARE
            else 2 + int.from_bytes(raw[position + 2 : position + 4], "big")
        )
    raise ValueError(
        f"expected a JPEG image with a frame, found the first bytes {raw[:16]!r} of {len(raw)}, without one"
    )


def _decode_segmentation(
    raw: bytes, shape: tuple[int, ...], dtype: np.dtype[Any], block: tuple[int, int, int]
) -> npt.NDArray[Any]:
    """Decode a compressed segmentation to voxels of ``shape``: (channel, z, y, x)."""
    if len(raw) % 4:
        raise ValueError(f"its segmentation has {len(raw)} bytes: expected a multiple of 4. It is damaged or cut short")
    words = np.frombuffer(raw, "<u4").astype(np.uint32, copy=False)
    channels, *extents = shape
    steps = block[::-1]
    counts = [-(-extent // step) for extent, step in zip(extents, steps, strict=True)]
    size, blocks = math.prod(steps), math.prod(counts)
    if blocks * size > 8 * math.prod(extents) + MOST_IN_BLOCK:
        found = f"its blocks of {list(block)} have {blocks * size} voxels"
        most = 8 * math.prod(extents) + MOST_IN_BLOCK
        raise ValueError(f"{found}: expected at most {most} for a chunk of {extents[::-1]}")
    if len(words) < channels:
        raise ValueError(f"it has {len(raw)} bytes: expected at least {4 * channels}, a word for each channel")
    voxels = np.empty(shape, dtype)
    try:
        for channel, start in enumerate(words[:channels].tolist()):
            channel_words = words[start:]
            if len(channel_words) < 2 * blocks:
                found = f"{max(len(channel_words), 0)} words from word {start} on"
                raise ValueError(
                    f"its index is cut short: expected {2 * blocks} words for {blocks} blocks, found {found}"
                )
            heads = channel_words[: 2 * blocks].reshape(blocks, 2).astype(np.int64)
            values = np.empty((blocks, size), dtype)
            for bits in np.unique(heads[:, 0] >> 24).tolist():
                same_width = np.flatnonzero(heads[:, 0] >> 24 == bits)
                batch = max(_AT_ONCE // size, 1)
                for rows in (same_width[begin : begin + batch] for begin in range(0, len(same_width), batch)):
                    numbers = _unpack_numbers(channel_words, heads[rows, 1], bits, size)
                    values[rows] = _look_up_labels(channel_words, heads[rows, 0] & 0xFFFFFF, numbers, dtype)
            joined = values.reshape(*counts, *steps).transpose(0, 3, 1, 4, 2, 5)
            joined = joined.reshape([count * step for count, step in zip(counts, steps, strict=True)])
            voxels[channel] = joined[tuple(map(slice, extents))]
    except IndexError:
        raise ValueError(f"its blocks refer to words beyond its end: expected at most {len(words)} words") from None
    return voxels


def _unpack_numbers(words: npt.NDArray[Any], starts: npt.NDArray[Any], bits: int, size: int) -> npt.NDArray[Any]:
    """Unpack ``size`` numbers of ``bits`` bits in each block. The blocks' words begin at ``starts``."""
    if bits not in (0, 1, 2, 4, 8, 16, 32):
        raise ValueError(f"its blocks have numbers of {bits} bits: expected 0 or a power of two up to 32")
    if bits == 0:
        return np.zeros((len(starts), size), np.int64)
    packed = words[starts[:, None] + np.arange(-(-size * bits // 32))]
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    numbers = packed[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return numbers.reshape(len(starts), -1)[:, :size].astype(np.int64)


def _look_up_labels(
    words: npt.NDArray[Any], tables: npt.NDArray[Any], numbers: npt.NDArray[Any], dtype: np.dtype[Any]
) -> Any:
    """Return the labels of voxels. ``numbers`` are indexes into the table of labels of the block.

    ``tables`` has the index of the word at which the table of each block begins.
    """
    if dtype.itemsize == 4:
        return words[tables[:, None] + numbers]
    low = tables[:, None] + 2 * numbers
    return words[low].astype(np.uint64) | words[low + 1].astype(np.uint64) << np.uint64(32)
