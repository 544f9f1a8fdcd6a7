"""Decode compressed HDF4 elements: by a codec of zarr, or, if zarr has none, by a recipe. No I/O here."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.compression import decode_by_imagecodecs
from refshard_fs.errors import ManifestError

MOST_DECODED: Final = 1 << 29  # the most bytes of a decoded chunk: runs can decode to 65 times their bytes
_NONE, _RUNS, _BITS, _HUFFMAN, _DEFLATE, _SZIP = range(6)
_NAMES: Final = ("none", "RLE", "NBIT", "skipping Huffman", "deflate", "szip")
_OTHER_NAMES: Final = {7: "JPEG", 12: "IMCOMP"}
_LAYOUTS: Final = {_BITS: ">iHHii", _HUFFMAN: ">II", _DEFLATE: ">H", _SZIP: ">IIIBB"}  # parameters, as for `struct`
_PREAMBLE: Final = 0x10000  # a flag in szip's options: five bytes come before the data
_ELEMENTS_AT_ONCE: Final = 1 << 16  # elements whose bits are unpacked together


class Coding(msgspec.Struct, frozen=True):
    """The compression of an element: the number of a coder, and its parameters."""

    coder: int
    values: tuple[int, ...]

    @property
    def name(self) -> str:
        return _NAMES[self.coder]

    @property
    def codecs(self) -> Sequence[Mapping[str, Any]]:
        """The codecs with which zarr decodes a chunk; empty if it is not compressed, or if a recipe decodes it."""
        return [{"id": "zlib", "level": min(self.values[0], 9)}] if self.coder == _DEFLATE else []

    @property
    def file_codecs(self) -> tuple[str, ...]:
        """The name of the coder; empty if zarr decodes the chunk, or if it is not compressed."""
        return () if self.coder in (_NONE, _DEFLATE) else (self.name.lower(),)

    def make_recipe(self, size: int, itemsize: int) -> DecodingRecipe | None:
        """Return the recipe that decodes a chunk to ``size`` bytes; None if zarr reads the stored bytes.

        Raises ManifestError if the chunk is too large.
        """
        if self.coder in (_NONE, _DEFLATE):
            return None
        check_decoded_size(size, self.name)
        return DecodingRecipe(self, size, itemsize)


def check_decoded_size(size: int, name: str) -> None:
    """Raise ManifestError if a recipe would decode too many bytes, where ``name`` is the compression."""
    if size > MOST_DECODED:
        raise ManifestError(
            f"its chunks, compressed with {name}, take {size} bytes when decoded: expected at most {MOST_DECODED}"
        )


def parse_coding(data: bytes) -> Coding:
    """Parse the part of a compressed element's header that begins with the model and the coder.

    Raises ManifestError, which names the compression, if it is not supported.
    """
    if len(data) < 4:
        raise ValueError(f"the header of a compressed element is cut short: expected 4 bytes, found {len(data)}")
    model, coder = struct.unpack_from(">HH", data)
    layout = _LAYOUTS.get(coder, "")
    if model or coder == _HUFFMAN or coder > _SZIP:
        name = _OTHER_NAMES.get(coder) or (_NAMES[coder] if coder <= _SZIP else f"number {coder}")
        expected = "expected RLE, NBIT, deflate or szip of model 0 (convert: hrepack -t '*:GZIP 6')"
        raise ManifestError(f"it is compressed with {name} (model {model}): {expected}")
    if len(data) < 4 + struct.calcsize(layout):
        sizes = f"expected {4 + struct.calcsize(layout)} bytes, found {len(data)}"
        raise ValueError(f"the header of an element that is compressed with {_NAMES[coder]} is cut short: {sizes}")
    return Coding(coder, struct.unpack_from(layout, data, 4))


class DecodingRecipe(msgspec.Struct, frozen=True):
    """Decode a chunk to ``size`` bytes, in elements of ``itemsize`` bytes."""

    coding: Coding
    size: int
    itemsize: int

    def make(self, raw: bytes) -> bytes:
        match self.coding.coder:
            case 1:  # _RUNS
                decoded = decode_runs(raw, self.size)
            case 2:  # _BITS
                decoded = _unpack_bits(raw, self.size, self.itemsize, self.coding.values)
            case _:
                decoded = _decode_szip(raw, self.size, self.coding.values)
        if len(decoded) != self.size:
            raise ValueError(f"{self.coding.name} decodes to {len(decoded)} bytes: expected {self.size}")
        return decoded


def decode_runs(raw: bytes, size: int, repeated: int = 3, plain: int = 1) -> bytes:
    """Decode runs to ``size`` bytes. Raise ValueError if they decode to fewer.

    A run begins with a byte: its highest bit is a flag, the other bits are a count. With the flag, the next byte is
    repeated ``count + repeated`` times; without it, ``count + plain`` bytes follow as they are.
    """
    decoded = bytearray()
    position = 0
    while len(decoded) < size:
        if position + 1 >= len(raw):
            raise ValueError(f"its runs are cut short: they decode to {len(decoded)} bytes, expected {size}")
        count = raw[position] & 0x7F
        if raw[position] & 0x80:
            decoded += raw[position + 1 : position + 2] * (count + repeated)
            position += 2
        else:
            decoded += raw[position + 1 : position + 1 + count + plain]
            position += 1 + count + plain
    return bytes(decoded[:size])  # the HDF4 library, too, ignores the rest of the last run


def _unpack_bits(raw: bytes, size: int, itemsize: int, values: tuple[int, ...]) -> bytes:
    """Unpack elements of which only ``width`` bits were stored, from bit ``first`` down.

    The other bits become ``fill``; if the elements are signed, the bits above the stored bits repeat the sign.
    """
    _, is_signed, fill, first, width = values
    bits = 8 * itemsize
    if not 0 < width <= first + 1 <= bits or size % itemsize:
        found = f"NBIT stores {width} bits from bit {first} down, in {size} bytes"
        raise ValueError(f"{found}: expected 1 bit or more within each element of {bits} bits")
    count = size // itemsize
    if len(raw) * 8 < count * width:
        raise ValueError(f"NBIT has {len(raw)} bytes: expected {count} elements of {width} bits")
    start = bits - 1 - first
    batches = []
    for begin in range(0, count, _ELEMENTS_AT_ONCE):  # a multiple of eight, so that each batch begins at a whole byte
        length = min(_ELEMENTS_AT_ONCE, count - begin)
        raw_bits = np.frombuffer(raw, np.uint8, -(-length * width // 8), begin * width // 8)
        full = np.full((length, bits), 1 if fill else 0, np.uint8)
        full[:, start : start + width] = np.unpackbits(raw_bits, count=length * width).reshape(length, width)
        if is_signed:
            full[:, :start] = full[:, start : start + 1]
        batches.append(np.packbits(full).tobytes())
    return b"".join(batches)


def _decode_szip(raw: bytes, size: int, values: tuple[int, ...]) -> bytes:
    pixels, scanline, options, depth, block = values
    width = (depth + 7) // 8
    width += width == 3
    if pixels * width != size:
        raise ValueError(f"its szip header states {pixels} pixels of {width} bytes: expected {size} bytes in all")
    if options & _PREAMBLE:
        if len(raw) < 5:
            raise ValueError(f"its szip bytes are cut short: expected at least 5, found {len(raw)}")
        length = int.from_bytes(raw[1:5], "big")
        if length > len(raw) - 5:
            raise ValueError(f"its szip bytes are cut short: expected {length}, found {len(raw) - 5}")
        if raw[0] == 1:  # stored without compression, because that is smaller
            return raw[5 : 5 + length]
        raw = raw[5 : 5 + length]
    names = ("options_mask", "pixels_per_block", "bits_per_pixel", "pixels_per_scanline")
    parameters = dict(zip(names, (options & ~_PREAMBLE, block, depth, scanline), strict=True))
    return bytes(decode_by_imagecodecs("szip_decode", raw, "hdf5", out=size, **parameters))
