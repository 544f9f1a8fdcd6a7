"""The methods that members of a ZIP are compressed by: each made plain, to the size that the directory promises.

PKWARE's APPNOTE 6.3.10, sections 4.4.5 and 5.8. No I/O here.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from refshard_fs.core.compression import decompressed, zstd

STORED: Final = 0
XZ_MEMORY: Final = 1 << 28  # bytes that a dictionary of xz may take
_LZMA_HEAD: Final = struct.Struct("<2xHBL")  # after the version of the writer's library
_LZMA_PROPERTIES: Final = 5  # bytes: three small numbers in one byte, and the dictionary's size
_SMALLEST_DICTIONARY: Final = 4096
_MOST_PROPERTIES: Final = 9 * 5 * 5


class Method(NamedTuple):
    """How a member is made plain."""

    name: str
    open: Callable[[bytes, int], tuple[Any, bytes]]  # compressed bytes and size → a decompressor, and its input
    most: int  # bytes that it makes of one, at most, roughly: a directory that promises more is forged


def _deflated(raw: bytes, size: int) -> tuple[Any, bytes]:
    return zlib.decompressobj(-zlib.MAX_WBITS), raw


def _bzip2(raw: bytes, size: int) -> tuple[Any, bytes]:
    return bz2.BZ2Decompressor(), raw


def _lzma(raw: bytes, size: int) -> tuple[Any, bytes]:
    if len(raw) < _LZMA_HEAD.size:
        raise ValueError("its LZMA header is cut short")
    length, packed, dictionary = _LZMA_HEAD.unpack_from(raw)
    if length != _LZMA_PROPERTIES or packed >= _MOST_PROPERTIES:
        raise ValueError("its LZMA header has properties that there are none of")
    rest, lc = divmod(packed, 9)
    pb, lp = divmod(rest, 5)
    # Nothing in a member lies further back than it is long.
    room = max(min(dictionary, size), _SMALLEST_DICTIONARY)
    filters = [{"id": lzma.FILTER_LZMA1, "lc": lc, "lp": lp, "pb": pb, "dict_size": room}]
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters), raw[_LZMA_HEAD.size :]


def _xz(raw: bytes, size: int) -> tuple[Any, bytes]:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY), raw


def _zstd(raw: bytes, size: int) -> tuple[Any, bytes]:
    return zstd().ZstdDecompressor(), raw


METHODS: Final = {
    8: Method("deflate", _deflated, 1032),
    12: Method("bzip2", _bzip2, 1 << 20),
    14: Method("LZMA", _lzma, 1 << 14),
    20: Method("Zstandard", _zstd, 1 << 16),  # its number before version 6.3.8
    93: Method("Zstandard", _zstd, 1 << 16),
    95: Method("XZ", _xz, 1 << 14),
}
# Those that are not read.
OTHERS: Final = {1: "shrink", 6: "implode", 9: "deflate64", 98: "PPMd"}


def plain(number: int, raw: bytes, size: int, crc: int) -> bytes:
    """Return the ``size`` bytes that ``raw`` stands for by the method ``number``; ValueError where it does not."""
    method = METHODS[number]
    try:
        stream, data = method.open(raw, size)
        made = decompressed(stream, data, size, has_end=number != 14)  # which need not mark it
    except ImportError as e:
        raise ValueError(f"it is compressed by {method.name}, for which a package is missing: {e}") from e
    except ValueError as e:
        raise ValueError(f"{method.name}: {e}") from e
    if len(made) != size or stream.unused_data:
        raise ValueError(f"its bytes do not inflate to the {size} that the directory promises")
    if zlib.crc32(made) != crc:
        raise ValueError(f"its CRC-32 is {zlib.crc32(made):08x}, where {crc:08x} is stored")
    return made
