"""Compressions of elements of an HDF4 file: codecs of zarr if it has them; others are decoded here. No I/O here."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.core.compression import decode_by_imagecodecs
from refshard_fs.errors import ManifestError

MOST_DECODED: Final = 1 << 29  # bytes of a chunk that is decoded here: runs make many bytes of few
_NONE, _RUNS, _BITS, _HUFFMAN, _DEFLATE, _SZIP = range(6)
_NAMES: Final = ("none", "RLE", "NBIT", "skipping Huffman", "deflate", "szip")
_OTHER_NAMES: Final = {7: "JPEG", 12: "IMCOMP"}
_LAYOUTS: Final = {_BITS: ">iHHii", _HUFFMAN: ">II", _DEFLATE: ">H", _SZIP: ">IIIBB"}  # their parameters
_PREAMBLE: Final = 0x10000  # flag in szip's options: five bytes come first
_ELEMENTS_AT_ONCE: Final = 1 << 16  # elements whose bits are unpacked together


class Coding(msgspec.Struct, frozen=True):
    """A coder by its number, and its parameters."""

    coder: int
    values: tuple[int, ...]

    @property
    def name(self) -> str:
        return _NAMES[self.coder]

    @property
    def codecs(self) -> Sequence[Mapping[str, Any]]:
        """The codecs of zarr that decode a chunk as it is; none if it is raw, or decoded here."""
        return [{"id": "zlib", "level": min(self.values[0], 9)}] if self.coder == _DEFLATE else []

    @property
    def file_codecs(self) -> tuple[str, ...]:
        """The name of the coder if zarr does not decode it."""
        return () if self.coder in (_NONE, _DEFLATE) else (self.name.lower(),)

    def recipe(self, size: int, itemsize: int) -> Decoded | None:
        """Return the recipe for the ``size`` bytes of a chunk; None if it is shown as it is stored."""
        if self.coder in (_NONE, _DEFLATE):
            return None
        if size > MOST_DECODED:
            raise ManifestError(
                f"its chunks have {size} bytes, compressed by {self.name}: at most {MOST_DECODED} are decoded"
            )
        return Decoded(self, size, itemsize)


def parse_coding(data: bytes) -> Coding:
    """Parse the header of a compressed element from its model on.

    Raises ManifestError, which names the compression, if it is not read.
    """
    if len(data) < 4:
        raise ValueError("the header of a compressed element is cut short")
    model, coder = struct.unpack_from(">HH", data)
    layout = _LAYOUTS.get(coder, "")
    if model or coder == _HUFFMAN or coder > _SZIP:
        name = _OTHER_NAMES.get(coder) or (_NAMES[coder] if coder <= _SZIP else f"number {coder}")
        raise ManifestError(f"it is compressed by {name} (model {model}), which is not read")
    if len(data) < 4 + struct.calcsize(layout):
        raise ValueError(f"the header of an element that is compressed by {_NAMES[coder]} is cut short")
    return Coding(coder, struct.unpack_from(layout, data, 4))


class Decoded(msgspec.Struct, frozen=True):
    """A recipe: the ``size`` bytes of a chunk, of elements of ``itemsize``."""

    coding: Coding
    size: int
    itemsize: int

    def make(self, raw: bytes) -> bytes:
        match self.coding.coder:
            case 1:  # _RUNS
                found = decode_runs(raw, self.size)
            case 2:  # _BITS
                found = _unpack_bits(raw, self.size, self.itemsize, self.coding.values)
            case _:
                found = _decode_szip(raw, self.size, self.coding.values)
        if len(found) != self.size:
            raise ValueError(f"{self.coding.name} decodes to {len(found)} bytes: expected {self.size}")
        return found


def decode_runs(raw: bytes, size: int, repeated: int = 3, plain: int = 1) -> bytes:
    """Decode runs: a count with the highest bit set repeats the next byte, another one is followed by plain bytes.

    ``repeated`` and ``plain`` are the numbers of bytes for a count of 0. ValueError if the runs are too short.
    """
    made = bytearray()
    at = 0
    while len(made) < size:
        if at + 1 >= len(raw):
            raise ValueError(f"its runs are cut short: they decode to {len(made)} bytes of {size}")
        count = raw[at] & 0x7F
        if raw[at] & 0x80:
            made += raw[at + 1 : at + 2] * (count + repeated)
            at += 2
        else:
            made += raw[at + 1 : at + 1 + count + plain]
            at += 1 + count + plain
    return bytes(made[:size])  # the library, too, leaves the rest of the last run


def _unpack_bits(raw: bytes, size: int, itemsize: int, values: tuple[int, ...]) -> bytes:
    """Return elements whose bits from ``first`` down were stored; all other bits are equal."""
    _, is_signed, fill, first, width = values
    bits = 8 * itemsize
    if not 0 < width <= first + 1 <= bits or size % itemsize:
        raise ValueError(f"NBIT of {width} bits from bit {first} on, of {bits}")
    count = size // itemsize
    if len(raw) * 8 < count * width:
        raise ValueError(f"{len(raw)} bytes cannot hold {count} elements of {width} bits")
    start = bits - 1 - first
    made = []
    for at in range(0, count, _ELEMENTS_AT_ONCE):  # a multiple of eight: it begins with a whole byte
        some = min(_ELEMENTS_AT_ONCE, count - at)
        part = np.frombuffer(raw, np.uint8, -(-some * width // 8), at * width // 8)
        full = np.full((some, bits), 1 if fill else 0, np.uint8)
        full[:, start : start + width] = np.unpackbits(part, count=some * width).reshape(some, width)
        if is_signed:
            full[:, :start] = full[:, start : start + 1]
        made.append(np.packbits(full).tobytes())
    return b"".join(made)


def _decode_szip(raw: bytes, size: int, values: tuple[int, ...]) -> bytes:
    pixels, scanline, options, depth, block = values
    width = (depth + 7) // 8
    width += width == 3
    if pixels * width != size:
        raise ValueError(f"szip of {pixels} pixels of {width} bytes: expected {size} bytes")
    if options & _PREAMBLE:
        if len(raw) < 5:
            raise ValueError("its szip bytes are cut short")
        length = int.from_bytes(raw[1:5], "big")
        if length > len(raw) - 5:
            raise ValueError(f"its {len(raw) - 5} bytes of szip are cut short: expected {length}")
        if raw[0] == 1:  # it did not shrink
            return raw[5 : 5 + length]
        raw = raw[5 : 5 + length]
    names = ("options_mask", "pixels_per_block", "bits_per_pixel", "pixels_per_scanline")
    parameters = dict(zip(names, (options & ~_PREAMBLE, block, depth, scanline), strict=True))
    return bytes(decode_by_imagecodecs("szip_decode", raw, "hdf5", out=size, **parameters))
