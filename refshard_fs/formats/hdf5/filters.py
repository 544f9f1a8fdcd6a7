"""HDF5 filter pipelines: use zarr's codecs if they read the same bytes, otherwise decode here. No I/O here.

`Codecs` says how the chunks of a dataset are shown. If zarr has no codec for one of the filters, chunks are shown
decoded, and a `FilterRecipe` decodes them. The recipe also handles chunks that skip filters by their filter mask.
"""

from __future__ import annotations

import bz2
import importlib.util
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import encode_chunk
from refshard_fs.core.compression import check_blosc, decode_by_imagecodecs, decompress, zstd
from refshard_fs.core.libdeflate import fast_zlib
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.datatypes import Datatype, recast
from refshard_fs.formats.hdf5.file import Fields, Sizes

MOST_DECODED: Final = 1 << 29  # bytes of a chunk that is decoded here: some filters expand a few bytes without limit
MOST_FILTERS: Final = 32  # in one pipeline: a filter mask has 32 bits

DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET = 1, 2, 3, 4, 5, 6
BZIP2, LZF, BLOSC, LZ4, BITSHUFFLE, ZFP, ZSTD, BLOSC2 = 307, 32000, 32001, 32004, 32008, 32013, 32015, 32026
BITGROOM, BITROUND = 32022, 32023  # they round numbers when these are written, and change nothing when they are read

# Names of registered filters, by number.
NAMES: Final = {
    DEFLATE: "deflate", SHUFFLE: "shuffle", FLETCHER32: "fletcher32", SZIP: "szip", NBIT: "nbit",
    SCALEOFFSET: "scale-offset", BZIP2: "bzip2", LZF: "lzf", BLOSC: "blosc", LZ4: "lz4", BITSHUFFLE: "bitshuffle",
    ZSTD: "zstd", 305: "lzo", 32002: "mafisc", 32003: "snappy", 32006: "spdp", 32012: "jpeg-xr", ZFP: "zfp",
    32014: "fpzip", 32016: "b3d", 32017: "sz", 32018: "fcidecomp", 32019: "jpeg", BITGROOM: "bitgroom",
    BITROUND: "granular bitround", 32024: "sz3", BLOSC2: "blosc2", 32028: "sperr", 32030: "ffmpeg",
}  # fmt: skip

_BLOSC_CODECS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_EXTRA: Final = 'that needs imagecodecs: pip install "refshard_fs[hdf5]"'
_HEADERS: Final = 4096  # bytes that filters may add to a chunk, in addition to an eighth of its size
_LZ4_EXPANSION: Final = 256  # largest ratio of decompressed to compressed bytes in lz4
# Decoders raise these, and ValueError, for damaged bytes.
_FAILURES: Final = (RuntimeError, zlib.error, OSError, EOFError, struct.error, LookupError, TypeError, MemoryError)
_ZFP_RATES, _ZFP_EXPERT = 2048, 0xFFF  # smaller modes are bits of a block; in expert mode, the header has them
_PIECES: Final = 1 << 16  # most numbers in one element that nbit packs
_BITS_AT_ONCE: Final = 1 << 20  # bits that are unpacked together, one byte each: all at once take 8 to 64 chunks


class Filter(msgspec.Struct, frozen=True):
    """One filter of a pipeline: its registered number, its name, and the client data ``values``."""

    id: int
    name: str
    values: tuple[int, ...]


def parse_pipeline(data: bytes) -> tuple[Filter, ...]:
    """Parse the body of a filter message. Return its filters in the order of encoding."""
    fields = Fields(data, Sizes())
    found: list[Filter] = []
    try:
        version, count = fields.unpack("BB")
        if version not in (1, 2) or count > MOST_FILTERS:
            raise ValueError(f"version {version} with {count} filters: expected version 1 or 2, at most {MOST_FILTERS}")
        is_padded = version == 1  # to multiples of eight bytes
        fields.take(6 if is_padded else 0)
        for _ in range(count):
            number = fields.uint(2)
            length = fields.uint(2) if is_padded or number >= 256 else 0
            (many,) = fields.unpack("2xH")
            name = fields.take(length).split(b"\0")[0].decode("utf-8", "replace")
            fields.at += -length % 8 if is_padded else 0
            values = fields.unpack(f"{many}I")
            fields.at += 4 * (many % 2) if is_padded else 0
            found.append(Filter(number, NAMES.get(number) or name or f"number {number}", values))
    except ValueError as e:
        raise ValueError(f"a filter pipeline is damaged: {e}") from None
    return tuple(found)


# Codecs for zarr's readers.


class Codecs(msgspec.Struct, frozen=True):
    """The encoding of a chunk of ``count`` elements.

    ``spelled`` are the codecs that decode a chunk, as JSON of zarr version 2; None: chunks are shown decoded.
    """

    filters: tuple[Filter, ...]
    datatype: Datatype
    count: int
    spelled: tuple[str, ...] | None

    @property
    def shown(self) -> tuple[dict[str, Any], ...]:
        """The codecs in the array's metadata."""
        return tuple(json.loads(codec) for codec in self.spelled or ())

    def encode(self, plain: bytes) -> bytes:
        """Encode elements of the dataset's datatype as the array's metadata says."""
        data = recast(self.datatype, plain).tobytes() if self.datatype.is_recast else plain
        return encode_chunk(data, self.shown)

    def recipe(self, mask: int) -> FilterRecipe | None:
        """Return the recipe for a chunk that skips the filters in ``mask``; None if zarr's codecs read it as it is."""
        is_shown = self.spelled is not None and not mask & ((1 << len(self.filters)) - 1)
        return None if is_shown else FilterRecipe(self, mask)


class FilterRecipe(msgspec.Struct, frozen=True):
    """Decode the filters of a chunk except those in ``mask``, which the chunk skips, and encode it for zarr."""

    codecs: Codecs
    mask: int = 0

    @property
    def made(self) -> int | None:
        """The size of the result in bytes; None if it is unknown before the chunk is made."""
        datatype = self.codecs.datatype
        size = datatype.inner.size if datatype.shown is None else datatype.shown.itemsize
        return None if self.codecs.spelled else self.codecs.count * size * math.prod(datatype.shape)

    def make(self, raw: bytes) -> bytes:
        length = self.codecs.count * self.codecs.datatype.size
        for number, used in reversed(list(enumerate(self.codecs.filters))):
            if not self.mask >> number & 1:
                try:
                    raw = _UNDO[used.id](raw, used.values, length)
                except ValueError:
                    raise
                except _FAILURES as e:
                    raise ValueError(f"the filter {used.name} cannot decode it: {e}") from e
        if not self.codecs.filters:
            raw = raw.ljust(length, b"\0")  # the last piece of a contiguous dataset may be shorter
        if len(raw) < length:
            raise ValueError(f"its filters decode to {len(raw)} bytes: expected {length}, {self.codecs.count} elements")
        return self.codecs.encode(raw[:length])


def make_codecs(filters: Sequence[Filter], datatype: Datatype, chunk_shape: tuple[int, ...]) -> Codecs:
    """Choose how to show chunks of ``chunk_shape``. Raise ManifestError if a filter makes that impossible."""
    for used in filters:
        _check(used)
    count = math.prod(chunk_shape)
    length = count * datatype.size
    decoding = [used for used in filters if used.id not in (BITGROOM, BITROUND)]
    known = [_find_codec(used, number, length) for number, used in enumerate(decoding)]
    if not datatype.is_recast and datatype.shown is not None and None not in known:
        return Codecs(tuple(filters), datatype, count, tuple(json.dumps(codec) for codec in known))
    if length > MOST_DECODED:
        raise ManifestError(f"its chunks have {length} bytes: at most {MOST_DECODED} can be decoded")
    return Codecs(tuple(filters), datatype, count, None)


def _check(used: Filter) -> None:
    """Raise ManifestError if neither this module nor zarr can decode a filter."""
    what = f"its chunks are encoded with the filter {used.name!r} (number {used.id})"
    if used.id not in _UNDO:
        raise ManifestError(f"{what}, which is not supported")
    if used.id in (LZF, SZIP, ZFP, BLOSC2) and importlib.util.find_spec("imagecodecs") is None:
        raise ManifestError(f"{what}: {_EXTRA}")
    if used.id == BLOSC and used.values[6:7] == (3,):
        raise ManifestError(f"{what} and snappy, which zarr's blosc codec cannot decode")
    if used.id == BITSHUFFLE and _get_value(used.values, 4) not in _BITSHUFFLED:
        raise ManifestError(f"{what} and the unknown compressor {_get_value(used.values, 4)}")
    least = {SZIP: 4, NBIT: 4, SCALEOFFSET: 8, BITSHUFFLE: 3, ZFP: 4}.get(used.id, 0)
    if len(used.values) < least:
        raise ManifestError(f"{what}, which has {len(used.values)} parameters: expected at least {least}")


def _find_codec(used: Filter, number: int, length: int) -> dict[str, Any] | None:
    """Return the numcodecs codec that decodes a filter's output; None if there is none for its frames."""
    level = _get_value(used.values, 0)
    match used.id:
        case 1:
            return {"id": "zlib", "level": min(level, 9)}
        case 2:
            size = level or 1
            return {"id": "shuffle", "elementsize": size} if not number and not length % size else None
        case 3:
            return {"id": "fletcher32"}
        case 307:
            return {"id": "bz2", "level": min(max(level, 1), 9)}
        case 32001:
            codec, shuffle = _get_value(used.values, 6), _get_value(used.values, 5)
            if codec >= len(_BLOSC_CODECS) or shuffle > 2:
                return None
            clevel = min(_get_value(used.values, 4), 9)
            return {"id": "blosc", "cname": _BLOSC_CODECS[codec], "clevel": clevel, "shuffle": shuffle, "blocksize": 0}
        case 32015:
            return {"id": "zstd", "level": min(level, 22)}
    return None


def _get_value(values: tuple[int, ...], number: int) -> int:
    return values[number] if number < len(values) else 0


# Decoders: each takes the bytes, the filter's parameters and the size of the decoded chunk.

Undo = Callable[[bytes, tuple[int, ...], int], bytes]


def _find_output_limit(length: int) -> int:
    """Return the largest output of a filter in a chunk of ``length`` bytes; later filters may add headers."""
    return length + length // 8 + _HEADERS


def _make_stream_decoder(make: Callable[[], Any]) -> Undo:
    """Make the decoder of a filter whose streams ``make()`` decompresses."""
    return lambda data, values, length: decompress(make(), data, _find_output_limit(length))


def _decode_deflate(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    made = fast_zlib(data, length)
    return decompress(zlib.decompressobj(), data, _find_output_limit(length)) if made is None else bytes(made)


def _shuffle(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    size = _get_value(values, 0) or 1
    count = len(data) // size
    whole = np.frombuffer(data, np.uint8, count * size).reshape(size, count)
    return whole.T.tobytes() + data[count * size :]  # the rest, less than one element, is not shuffled


def _decode_fletcher32(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    from numcodecs import get_codec

    return bytes(get_codec({"id": "fletcher32"}).decode(data))


def _decode_blosc(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    from numcodecs import blosc

    check_blosc(data)
    size = int.from_bytes(data[4:8], "little")
    if size > _find_output_limit(length):
        raise ValueError(f"a blosc frame decodes to {size} bytes, more than expected")
    return bytes(blosc.decompress(data))


def _decode_blosc2(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    """Decode a blosc2 frame: its chunks one after the other. An n-dimensional frame is then reordered from blocks."""
    head, size, stored = struct.unpack_from(">11xI15xQxQ", data)
    if not data.startswith(b"\x9e\xa8b2frame\0") or head > len(data) or not 0 <= size <= MOST_DECODED:
        raise ValueError(f"a blosc2 frame of {size} bytes with a header of {head} bytes is damaged")
    made: list[bytes] = [] if stored else [bytes(size)]  # a chunk of zeros is not stored
    at, left = head, size if stored else 0
    while left > 0:
        count, _, chunk = struct.unpack_from("<4xIII", data, at)
        if not 0 < count <= left or not 32 <= chunk <= len(data) - at:
            raise ValueError(f"a blosc2 chunk of {chunk} bytes decodes to {count} bytes: expected 1 to {left}")
        made.append(decode_by_imagecodecs("blosc2_decode", data[at : at + chunk], "hdf5"))
        at, left = at + chunk, left - count
    whole = b"".join(made)
    name = data.find(b"\xa4b2nd\xd2", 0, head)
    return whole if name < 0 else _order_blocks(whole, data[struct.unpack_from(">I", data, name + 6)[0] + 7 :], length)


def _order_blocks(blocks: bytes, shapes: bytes, length: int) -> bytes:
    """Reorder elements from padded blocks to C order; ``shapes`` has the shapes of the array, a chunk and a block."""
    ndim = _get_value(tuple(shapes[:1]), 0)
    lists = struct.unpack_from(f">{'xx' + 'xq' * ndim}x{'xi' * ndim}x{'xi' * ndim}", shapes)
    shape, chunk, block = lists[:ndim], lists[ndim : 2 * ndim], lists[2 * ndim :]
    if not 0 < ndim <= 8 or shape != chunk or min(chunk + block) < 1 or length % math.prod(shape):
        raise ValueError(f"a blosc2 frame of the shape {shape}, in chunks of {chunk} and blocks of {block}, is damaged")
    counts = [-(-extent // size) for extent, size in zip(shape, block, strict=True)]
    items = np.frombuffer(blocks, f"V{length // math.prod(shape)}").reshape(*counts, *block)
    mixed = items.transpose([axis + side for axis in range(ndim) for side in (0, ndim)])
    padded = mixed.reshape([count * size for count, size in zip(counts, block, strict=True)])
    return padded[tuple(map(slice, shape))].tobytes()


def _decode_zfp(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    """Decode a zfp stream. The filter's parameters after the first are the stream's header."""
    head = int.from_bytes(struct.pack(f"<{len(values) - 1}I", *values[1:]), "little")
    kind, ndim, mode = head >> 32 & 3, (head >> 34 & 3) + 1, head >> 84 & 0xFFF
    itemsize, width = (4, 8, 4, 8)[kind], 48 // ndim
    shape = [(head >> 36 + width * axis & (1 << width) - 1) + 1 for axis in range(ndim)]
    if head & 0xFFFFFF != int.from_bytes(b"zfp", "little") or math.prod(shape) * itemsize != length:
        raise ValueError(f"a zfp header has the shape {shape}, {itemsize} bytes an item: expected {length} bytes")
    # zfp may read beyond the end of the stream, up to twice the bits of the values: append zeros.
    most = 2 * 4**ndim * itemsize * 8 + 64
    least = mode + 1 if mode < _ZFP_RATES else (head >> 96 & 0x7FFF) + 1 if mode == _ZFP_EXPERT else 0
    if least > most:
        raise ValueError(f"zfp blocks have {least} bits: their values need at most {most}")
    bits = 148 if mode == _ZFP_EXPERT else 96
    stream = int.from_bytes(data, "little") << bits | head & (1 << bits) - 1
    room = math.prod(-(-extent // 4) for extent in shape) * most // 8 + 64
    padded = stream.to_bytes(len(data) + 32, "little").ljust(room, b"\0")
    return bytes(decode_by_imagecodecs("zfp_decode", padded, "hdf5").tobytes())


def _decode_lzf(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    return bytes(decode_by_imagecodecs("lzf_decode", data, "hdf5", out=_find_output_limit(length)))


def _decode_szip(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    (size,) = struct.unpack_from("<I", data)
    width = 1 << max((values[2] - 1).bit_length() - 3, 0)  # bytes of a pixel; the encoder drops incomplete pixels
    if size > _find_output_limit(length) or size % width:
        raise ValueError(f"an szip chunk of {size} bytes with pixels of {width} bytes is damaged")
    names = ("options_mask", "pixels_per_block", "bits_per_pixel", "pixels_per_scanline")
    options = dict(zip(names, values, strict=False))
    found = bytes(decode_by_imagecodecs("szip_decode", data[4:], "hdf5", out=size, **options))
    if len(found) != size:
        raise ValueError(f"an szip chunk is cut short: it decodes to {len(found)} of {size} bytes")
    return found


def _decode_lz4(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    size, block = struct.unpack_from(">QI", data)
    if size > _find_output_limit(length) or (size and not block):
        raise ValueError(f"an lz4 chunk of {size} bytes in blocks of {block} bytes is damaged")
    # A block is stored as it is if compression does not make it smaller.
    return b"".join(
        _decode_blocks(data, size, block, lambda f, want: f if len(f) == want else _decode_lz4_block(f, want))
    )


def _decode_blocks(data: bytes, size: int, block: int, decode: Callable[[bytes, int], bytes]) -> list[bytes]:
    """Decode the blocks after the header; each comes after its length."""
    made: list[bytes] = []
    at = 12
    for done in range(0, size, block):
        want = min(block, size - done)
        (stored,) = struct.unpack_from(">I", data, at)
        frame = data[at + 4 : at + 4 + stored]
        if len(frame) != stored:
            raise ValueError(f"a block of {stored} bytes is cut short: {len(frame)} are there")
        made.append(decode(frame, want))
        if len(made[-1]) != want:
            raise ValueError(f"a block decodes to {len(made[-1])} bytes: expected {want}")
        at += 4 + stored
    return made


def _decode_lz4_block(frame: bytes, size: int) -> bytes:
    from numcodecs import lz4

    if size > len(frame) * _LZ4_EXPANSION:
        raise ValueError(f"an lz4 block of {len(frame)} bytes cannot decode to {size}")
    return bytes(lz4.decompress(struct.pack("<I", size) + frame))


def _decode_zstd_block(frame: bytes, size: int) -> bytes:
    return decompress(zstd().ZstdDecompressor(), frame, size)


# Decoders of bitshuffle's blocks, by the number of the compressor.
_BITSHUFFLED: Final[dict[int, Callable[[bytes, int], bytes] | None]] = {
    0: None,
    2: _decode_lz4_block,
    3: _decode_zstd_block,
}


def _decode_bitshuffle(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    itemsize, decode = values[2], _BITSHUFFLED[_get_value(values, 4)]
    if not 0 < itemsize <= 1 << 16:
        raise ValueError(f"bitshuffle has elements of {itemsize} bytes: expected 1 to {1 << 16}")
    if decode is None:
        step = itemsize * (_get_value(values, 3) or max(8192 // itemsize // 8 * 8, 128))
        return b"".join(_undo_bitshuffle(data[at : at + step], itemsize) for at in range(0, len(data), step))
    size, block = struct.unpack_from(">QI", data)
    if size > _find_output_limit(length) or not block or block % (8 * itemsize):
        raise ValueError(f"a bitshuffle chunk of {size} bytes in blocks of {block} bytes is damaged")
    rest = size % (8 * itemsize)  # the last elements, fewer than eight, are not shuffled
    parts = [_undo_bitshuffle(part, itemsize) for part in _decode_blocks(data, size - rest, block, decode)]
    return b"".join(parts) + data[len(data) - rest :]


def _undo_bitshuffle(block: bytes, itemsize: int) -> bytes:
    """Undo bitshuffle: the first bits of all elements come first, then the second bits, and so on."""
    count = len(block) // itemsize // 8 * 8
    rows = np.frombuffer(block, np.uint8, count * itemsize).reshape(itemsize * 8, count // 8)
    step = max(_BITS_AT_ONCE // (itemsize * 64), 1)  # bytes of each row; a byte holds a bit of eight elements
    made: list[bytes] = []
    for first in range(0, count // 8, step):
        bits = np.unpackbits(rows[:, first : first + step], axis=1, bitorder="little")
        made.append(np.packbits(bits.T, axis=1, bitorder="little").tobytes())
    return b"".join([*made, block[count * itemsize :]])


# HDF5's own filters that pack numbers into fewer bits.


def _pack_bits(bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Pack each row of bits into an integer, the highest bit first."""
    wide = np.zeros((bits.shape[0], 64), np.uint8)
    wide[:, 64 - bits.shape[1] :] = bits
    return np.packbits(wide, axis=1).view(">u8")[:, 0].astype(np.uint64)


def _iter_bits(data: bytes, count: int, width: int) -> Iterator[tuple[slice, npt.NDArray[np.uint8]]]:
    """Yield slices of elements with their bits, one row of ``width`` bits each, for all ``count`` elements.

    A slice is small, because each bit takes a byte here, and each number takes 64 of them while it is packed.
    """
    if len(data) * 8 < count * width:
        raise ValueError(f"{len(data)} bytes are too few for {count} elements of {width} bits")
    step = max(_BITS_AT_ONCE // max(width, 64), 512) // 8 * 8  # elements in a slice, which begins at a whole byte
    for first in range(0, count, step):
        some = min(step, count - first)
        part = np.frombuffer(data, np.uint8, -(-some * width // 8), first * width // 8)
        yield slice(first, first + some), np.unpackbits(part, count=some * width).reshape(some, width)


def _scale_offset(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    kind, factor, count, type_class, size, is_signed, is_big, has_fill = values[:8]
    if (
        size not in (1, 2, 4, 8)
        or count * size > _find_output_limit(length)
        or type_class > 1
        or (type_class and size < 4)
    ):
        raise ValueError(f"scale-offset parameters are damaged: {count} elements of {size} bytes")
    if type_class and kind != 0:
        raise ValueError("scale-offset has a variable factor, which HDF5 does not define")
    if len(data) < 21:
        raise ValueError("a scale-offset chunk is cut short")
    width, low = int.from_bytes(data[:4], "little"), data[5:13]
    order = "<>"[is_big & 1]
    code = "f" if type_class else "i" if is_signed else "u"
    if width == size * 8:
        plain = np.frombuffer(data[21:], f"<{code}{size}", count)
        return plain.astype(f"{order}{code}{size}").tobytes()
    if width > size * 8:
        raise ValueError(f"scale-offset has {width} bits: too many for elements of {size} bytes")
    whole = np.zeros(count, f"<u{size}")
    for rows, bits in _iter_bits(data[21:], count, width) if width else ():
        whole[rows] = _pack_bits(bits)
    if type_class:
        least = np.frombuffer(low, f"<f{size}", 1)[0]
        scale = np.dtype(f"<f{size}").type(10.0 ** _convert_to_signed(factor))
        found = whole.view(f"<i{size}").astype(f"<f{size}") / scale + least
    else:
        found = (whole + np.frombuffer(low, f"<u{size}", 1)[0]).view(f"<{code}{size}")
    if has_fill:
        fill = np.frombuffer(struct.pack(f"<{len(values) - 8}I", *values[8:]), f"<{code}{size}", 1)
        found = np.where(whole == (1 << width) - 1, fill, found)
    made: bytes = found.astype(f"{order}{code}{size}").tobytes()
    return made


def _convert_to_signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _decode_nbit(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    if values[1]:  # this chunk is not packed
        return data
    count = values[2]
    pieces: list[_Piece] = []
    size, _ = _collect_pieces(values, 3, 0, pieces, 0)
    if not size or count * size > _find_output_limit(length):
        raise ValueError(f"nbit parameters are damaged: {count} elements of {size} bytes")
    made = np.zeros((count, size), np.uint8)
    for rows, bits in _iter_bits(data, count, sum(precision for *_, precision, _ in pieces)):
        at = 0
        for start, width, is_big, precision, offset in pieces:
            number = _pack_bits(bits[:, at : at + precision]) << np.uint64(offset)
            raw = number.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :]
            made[rows, start : start + width] = raw if is_big else raw[:, ::-1]
            at += precision
    return bytes(made.tobytes())


# A number within an element: its start, its size in bytes, whether it is big-endian, its bits, and its first bit.
_Piece = tuple[int, int, int, int, int]


def _collect_pieces(values: tuple[int, ...], at: int, start: int, pieces: list[_Piece], depth: int) -> tuple[int, int]:
    """Collect the numbers in an element from the parameters at ``at``. Return its size and the next position."""
    kind, size = values[at : at + 2]
    end = at + 2
    if depth > 16 or len(pieces) > _PIECES:
        raise ValueError("an nbit element has too many members")
    match kind:
        case 1:  # a number
            is_big, precision, offset = values[end : end + 3]
            if size not in range(1, 9) or not precision or precision + offset > size * 8:
                raise ValueError(f"an nbit number of {precision} bits at bit {offset} does not fit into {size} bytes")
            pieces.append((start, size, is_big, precision, offset))
            return size, end + 3
        case 2:  # an array
            base, end = _collect_pieces(values, end, start, pieces, depth + 1)
            if not base or size % base:
                raise ValueError(f"an nbit array of {size} bytes is not a whole number of elements of {base} bytes")
            for place in range(start + base, start + size, base):
                _collect_pieces(values, at + 2, place, pieces, depth + 1)
        case 3:  # a compound
            many, end = values[end], end + 1
            for _ in range(many):
                _, end = _collect_pieces(values, end + 1, start + values[end], pieces, depth + 1)
        case 4 if size <= _PIECES:  # bytes that are not packed
            pieces += [(start + place, 1, 0, 8, 0) for place in range(size)]
        case _:
            raise ValueError(f"an nbit member is of the unknown kind {kind}, or too large: {size} bytes")
    return size, end


_UNDO: Final[dict[int, Undo]] = {
    DEFLATE: _decode_deflate,
    SHUFFLE: _shuffle,
    FLETCHER32: _decode_fletcher32,
    SZIP: _decode_szip,
    NBIT: _decode_nbit,
    SCALEOFFSET: _scale_offset,
    BZIP2: _make_stream_decoder(bz2.BZ2Decompressor),
    LZF: _decode_lzf,
    BLOSC: _decode_blosc,
    LZ4: _decode_lz4,
    BITSHUFFLE: _decode_bitshuffle,
    ZFP: _decode_zfp,
    ZSTD: _make_stream_decoder(lambda: zstd().ZstdDecompressor()),
    BLOSC2: _decode_blosc2,
    **dict.fromkeys((BITGROOM, BITROUND), lambda data, values, length: data),
}
