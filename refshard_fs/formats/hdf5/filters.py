"""HDF5 filter pipelines: if zarr's codecs can decode the chunks, zarr decodes them, otherwise this module. No I/O here.

`Codecs` holds the codecs for the metadata of an array. If zarr has no codec for one of the filters, or cannot hold the
elements unchanged, the array has no codecs, and a `FilterRecipe` decodes its chunks. A recipe also decodes single
chunks that skip filters (by their mask).
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
from refshard_fs.core.compression import check_blosc, decode_by_imagecodecs, decompress, import_zstd, unshuffle
from refshard_fs.core.libdeflate import try_zlib
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.datatypes import Datatype, recast
from refshard_fs.formats.hdf5.file import Fields, Sizes

MOST_DECODED: Final = 1 << 29  # bytes of a chunk that this module decodes: a few bytes can expand without limit
MOST_FILTERS: Final = 32  # in one pipeline: a filter mask has 32 bits

DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET = 1, 2, 3, 4, 5, 6
BZIP2, LZF, BLOSC, LZ4, BITSHUFFLE, ZFP, ZSTD, BLOSC2 = 307, 32000, 32001, 32004, 32008, 32013, 32015, 32026
BITGROOM, BITROUND = 32022, 32023  # filters that round numbers while writing, and do nothing while reading

# Names of registered filters, by number.
NAMES: Final = {
    DEFLATE: "deflate", SHUFFLE: "shuffle", FLETCHER32: "fletcher32", SZIP: "szip", NBIT: "nbit",
    SCALEOFFSET: "scale-offset", BZIP2: "bzip2", LZF: "lzf", BLOSC: "blosc", LZ4: "lz4", BITSHUFFLE: "bitshuffle",
    ZSTD: "zstd", 305: "lzo", 32002: "mafisc", 32003: "snappy", 32006: "spdp", 32012: "jpeg-xr", ZFP: "zfp",
    32014: "fpzip", 32016: "b3d", 32017: "sz", 32018: "fcidecomp", 32019: "jpeg", BITGROOM: "bitgroom",
    BITROUND: "granular bitround", 32024: "sz3", BLOSC2: "blosc2", 32028: "sperr", 32030: "ffmpeg",
}  # fmt: skip

_BLOSC_CODECS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_EXTRA: Final = 'decoding it needs imagecodecs: pip install "refshard_fs[hdf5]"'
_HEADERS: Final = 4096  # bytes that filters may add to a chunk, in addition to an eighth of its size
_LZ4_EXPANSION: Final = 256  # largest ratio of decompressed to compressed bytes in lz4
# Errors that decoders raise for damaged bytes, in addition to ValueError.
_FAILURES: Final = (RuntimeError, zlib.error, OSError, EOFError, struct.error, LookupError, TypeError, MemoryError)
# A zfp mode below _ZFP_RATES is the number of bits of a block minus 1. In expert mode, the header has more fields.
_ZFP_RATES, _ZFP_EXPERT = 2048, 0xFFF
_MOST_NUMBERS: Final = 1 << 16  # numbers in one element that nbit packs
# Bits that are unpacked together. A bit takes a byte while it is unpacked: all bits would take 8 to 64 times the chunk.
_BITS_AT_ONCE: Final = 1 << 20


class Filter(msgspec.Struct, frozen=True):
    """One filter of a pipeline: its registered number, its name, and its parameters (HDF5's "client data")."""

    id: int
    name: str
    values: tuple[int, ...]


def parse_pipeline(data: bytes) -> tuple[Filter, ...]:
    """Parse the body of a filter message. Return its filters in the order of encoding."""
    fields = Fields(data, Sizes())
    filters: list[Filter] = []
    try:
        version, count = fields.unpack("BB")
        if version not in (1, 2) or count > MOST_FILTERS:
            raise ValueError(f"version {version} with {count} filters: expected version 1 or 2, at most {MOST_FILTERS}")
        is_padded = version == 1  # to multiples of eight bytes
        fields.take(6 if is_padded else 0)
        for _ in range(count):
            number = fields.read_uint(2)
            length = fields.read_uint(2) if is_padded or number >= 256 else 0
            (value_count,) = fields.unpack("2xH")
            name = fields.take(length).split(b"\0")[0].decode("utf-8", "replace")
            fields.at += -length % 8 if is_padded else 0
            values = fields.unpack(f"{value_count}I")
            fields.at += 4 * (value_count % 2) if is_padded else 0
            filters.append(Filter(number, NAMES.get(number) or name or f"number {number}", values))
    except ValueError as e:
        raise ValueError(f"a filter pipeline is damaged: {e}") from None
    return tuple(filters)


# Codecs for zarr's readers.


class Codecs(msgspec.Struct, frozen=True):
    """The encoding of the chunks of a dataset, which have ``count`` elements each.

    ``codec_texts`` are the codecs of the array, as JSON of zarr version 2; None if a recipe decodes all chunks.
    """

    filters: tuple[Filter, ...]
    datatype: Datatype
    count: int
    codec_texts: tuple[str, ...] | None

    @property
    def shown_codecs(self) -> tuple[dict[str, Any], ...]:
        """The codecs in the array's metadata."""
        return tuple(json.loads(codec) for codec in self.codec_texts or ())

    def encode(self, plain: bytes) -> bytes:
        """Encode a chunk with the codecs of the array. ``plain`` are elements of the dataset's datatype."""
        data = recast(self.datatype, plain).tobytes() if self.datatype.is_recast else plain
        return encode_chunk(data, self.shown_codecs)

    def make_recipe(self, mask: int) -> FilterRecipe | None:
        """Return the recipe for a chunk that skips the filters in ``mask``; None if zarr's codecs decode the chunk."""
        is_shown = self.codec_texts is not None and not mask & ((1 << len(self.filters)) - 1)
        return None if is_shown else FilterRecipe(self, mask)


class FilterRecipe(msgspec.Struct, frozen=True):
    """Decode a chunk with all filters except the filters in ``mask``, and encode it with the codecs of the array."""

    codecs: Codecs
    mask: int = 0

    @property
    def result_size(self) -> int | None:
        """The size of the result in bytes; None if unknown, because the chunk is encoded again for zarr."""
        datatype = self.codecs.datatype
        size = datatype.inner.size if datatype.shown is None else datatype.shown.itemsize
        return None if self.codecs.codec_texts else self.codecs.count * size * math.prod(datatype.shape)

    def make(self, raw: bytes) -> bytes:
        return self.codecs.encode(self.decode_elements(raw))

    def decode_elements(self, raw: bytes) -> bytes:
        """Return the elements of the chunk, as the file has them before filters."""
        length = self.codecs.count * self.codecs.datatype.size
        for number, filter_ in reversed(list(enumerate(self.codecs.filters))):
            if not self.mask >> number & 1:
                try:
                    raw = _DECODERS[filter_.id](raw, filter_.values, length)
                except ValueError:
                    raise
                except _FAILURES as e:
                    raise ValueError(f"the filter {filter_.name} cannot decode the chunk: {e}") from e
        if not self.codecs.filters:
            raw = raw.ljust(length, b"\0")  # the last chunk of a contiguous dataset may be shorter
        if len(raw) < length:
            raise ValueError(f"its filters decode to {len(raw)} bytes: expected {length}, {self.codecs.count} elements")
        return raw[:length]


def make_codecs(filters: Sequence[Filter], datatype: Datatype, chunk_shape: tuple[int, ...]) -> Codecs:
    """Choose the codecs for chunks of ``chunk_shape``. Raise ManifestError if the chunks cannot be decoded."""
    for filter_ in filters:
        _check_filter(filter_)
    count = math.prod(chunk_shape)
    length = count * datatype.size
    decoding = [filter_ for filter_ in filters if filter_.id not in (BITGROOM, BITROUND)]
    codecs = [_find_codec(filter_, number, length) for number, filter_ in enumerate(decoding)]
    if not datatype.is_recast and datatype.shown is not None and None not in codecs:
        return Codecs(tuple(filters), datatype, count, tuple(json.dumps(codec) for codec in codecs))
    if length > MOST_DECODED:
        raise ManifestError(f"its chunks have {length} bytes: expected at most {MOST_DECODED}")
    return Codecs(tuple(filters), datatype, count, None)


def _check_filter(filter_: Filter) -> None:
    """Raise ManifestError if neither this module nor zarr can decode ``filter_``."""
    reason = f"its chunks are encoded with the filter {filter_.name!r} (number {filter_.id})"
    if filter_.id not in _DECODERS:
        raise ManifestError(f"{reason}, which is not supported: write it with another filter (h5repack -f GZIP=4)")
    if filter_.id in (LZF, SZIP, ZFP, BLOSC2) and importlib.util.find_spec("imagecodecs") is None:
        raise ManifestError(f"{reason}: {_EXTRA}")
    if filter_.id == BLOSC and filter_.values[6:7] == (3,):
        expected = "expected another compressor, since zarr's blosc codec cannot decode snappy"
        raise ManifestError(f"{reason}, and with compressor 3 (snappy): {expected}")
    if filter_.id == BITSHUFFLE and _get_value(filter_.values, 4) not in _BITSHUFFLED:
        compressor = _get_value(filter_.values, 4)
        raise ManifestError(f"{reason}, and with compressor {compressor}: expected 0 (none), 2 (lz4) or 3 (zstd)")
    fewest = {SZIP: 4, NBIT: 4, SCALEOFFSET: 8, BITSHUFFLE: 3, ZFP: 4}.get(filter_.id, 0)
    if len(filter_.values) < fewest:
        raise ManifestError(f"{reason}, which has {len(filter_.values)} parameters: expected at least {fewest}")


def _find_codec(filter_: Filter, number: int, length: int) -> dict[str, Any] | None:
    """Return the configuration of the numcodecs codec that decodes a filter's output; None if there is none.

    ``number`` is the filter's position in the pipeline, ``length`` the bytes of a decoded chunk.
    """
    parameter = _get_value(filter_.values, 0)
    match filter_.id:
        case 1:
            return {"id": "zlib", "level": min(parameter, 9)}
        case 2:
            size = parameter or 1
            return {"id": "shuffle", "elementsize": size} if not number and not length % size else None
        case 3:
            return {"id": "fletcher32"}
        case 307:
            return {"id": "bz2", "level": min(max(parameter, 1), 9)}
        case 32001:
            codec, shuffle = _get_value(filter_.values, 6), _get_value(filter_.values, 5)
            if codec >= len(_BLOSC_CODECS) or shuffle > 2:
                return None
            clevel = min(_get_value(filter_.values, 4), 9)
            return {"id": "blosc", "cname": _BLOSC_CODECS[codec], "clevel": clevel, "shuffle": shuffle, "blocksize": 0}
        case 32015:
            return {"id": "zstd", "level": min(parameter, 22)}
    return None


def _get_value(values: tuple[int, ...], number: int) -> int:
    return values[number] if number < len(values) else 0


# Decoders. Each takes the encoded bytes, the filter's parameters, and the size of the decoded chunk in bytes.

Decoder = Callable[[bytes, tuple[int, ...], int], bytes]


def _find_output_limit(length: int) -> int:
    """Return the most bytes that one filter may decode to in a chunk of ``length`` bytes.

    A filter may decode to more bytes than the chunk has, because an earlier filter of the pipeline may have added
    headers.
    """
    return length + length // 8 + _HEADERS


def _make_stream_decoder(make: Callable[[], Any]) -> Decoder:
    """Make the decoder of a filter; ``make()`` returns a new decompressor for each chunk."""
    return lambda data, values, length: decompress(make(), data, _find_output_limit(length))


def _decode_deflate(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    decoded = try_zlib(data, length)
    return decompress(zlib.decompressobj(), data, _find_output_limit(length)) if decoded is None else bytes(decoded)


def _undo_shuffle(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    size = _get_value(values, 0) or 1
    stop = len(data) // size * size
    return unshuffle(data[:stop], size).tobytes() + data[stop:]  # bytes of an incomplete element are not shuffled


def _decode_fletcher32(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    from numcodecs import get_codec

    return bytes(get_codec({"id": "fletcher32"}).decode(data))


def _decode_blosc(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    from numcodecs import blosc

    check_blosc(data)
    size = int.from_bytes(data[4:8], "little")
    if size > _find_output_limit(length):
        raise ValueError(f"a blosc frame decodes to {size} bytes: expected at most {_find_output_limit(length)}")
    return bytes(blosc.decompress(data))


def _decode_blosc2(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    """Decode the chunks of a blosc2 frame, and join them. Put the blocks of an n-dimensional frame in order."""
    head, size, stored_size = struct.unpack_from(">11xI15xQxQ", data)
    if not data.startswith(b"\x9e\xa8b2frame\0"):
        raise ValueError(f"a blosc2 frame begins with {data[:10]!r}: expected the signature b2frame")
    if head > len(data) or not 0 <= size <= MOST_DECODED:
        limits = f"expected at most {MOST_DECODED}, and a header of at most {len(data)}"
        raise ValueError(f"a blosc2 frame states {size} bytes and a header of {head} bytes: {limits}")
    chunks: list[bytes] = [] if stored_size else [bytes(size)]  # a chunk of zeros is not stored
    position, remaining = head, size if stored_size else 0
    while remaining > 0:
        count, _, chunk = struct.unpack_from("<4xIII", data, position)
        if not 0 < count <= remaining:
            raise ValueError(f"a blosc2 chunk decodes to {count} bytes: expected 1 to {remaining}")
        if not 32 <= chunk <= len(data) - position:
            most = len(data) - position
            raise ValueError(f"a blosc2 chunk at byte {position} has {chunk} bytes: expected 32 to {most}")
        chunks.append(decode_by_imagecodecs("blosc2_decode", data[position : position + chunk], "hdf5"))
        position, remaining = position + chunk, remaining - count
    plain = b"".join(chunks)
    name = data.find(b"\xa4b2nd\xd2", 0, head)
    return plain if name < 0 else _order_blocks(plain, data[struct.unpack_from(">I", data, name + 6)[0] + 7 :], length)


def _order_blocks(blocks: bytes, shapes: bytes, length: int) -> bytes:
    """Reorder elements from padded blocks to C order; ``shapes`` has the shapes of the array, a chunk and a block."""
    ndim = _get_value(tuple(shapes[:1]), 0)
    lists = struct.unpack_from(f">{'xx' + 'xq' * ndim}x{'xi' * ndim}x{'xi' * ndim}", shapes)
    shape, chunk, block = lists[:ndim], lists[ndim : 2 * ndim], lists[2 * ndim :]
    if not 0 < ndim <= 8 or shape != chunk or min(chunk + block) < 1 or length % math.prod(shape):
        found = f"the shape {shape}, chunks of {chunk} and blocks of {block}"
        raise ValueError(f"a blosc2 frame has {found}: expected one chunk of 1 to 8 dimensions, and {length} bytes")
    counts = [-(-extent // size) for extent, size in zip(shape, block, strict=True)]
    items = np.frombuffer(blocks, f"V{length // math.prod(shape)}").reshape(*counts, *block)
    interleaved = items.transpose([axis + side for axis in range(ndim) for side in (0, ndim)])
    padded = interleaved.reshape([count * size for count, size in zip(counts, block, strict=True)])
    return padded[tuple(map(slice, shape))].tobytes()


def _decode_zfp(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    """Decode a zfp stream. The filter's first parameter is a version, all further parameters the stream's header."""
    head = int.from_bytes(struct.pack(f"<{len(values) - 1}I", *values[1:]), "little")
    kind, ndim, mode = head >> 32 & 3, (head >> 34 & 3) + 1, head >> 84 & 0xFFF
    itemsize, width = (4, 8, 4, 8)[kind], 48 // ndim
    shape = [(head >> 36 + width * axis & (1 << width) - 1) + 1 for axis in range(ndim)]
    signature = (head & 0xFFFFFF).to_bytes(3, "little")
    if signature != b"zfp":
        raise ValueError(f"a zfp header begins with {signature!r}: expected b'zfp'")
    if math.prod(shape) * itemsize != length:
        raise ValueError(f"a zfp header has the shape {shape}, {itemsize} bytes an item: expected {length} bytes")
    # zfp may read beyond the end of the stream, up to twice the bits of the values: append zeros.
    most_bits = 2 * 4**ndim * itemsize * 8 + 64
    block_bits = mode + 1 if mode < _ZFP_RATES else (head >> 96 & 0x7FFF) + 1 if mode == _ZFP_EXPERT else 0
    if block_bits > most_bits:
        raise ValueError(f"a zfp header has blocks of {block_bits} bits: expected at most {most_bits} for its values")
    bits = 148 if mode == _ZFP_EXPERT else 96
    stream = int.from_bytes(data, "little") << bits | head & (1 << bits) - 1
    room = math.prod(-(-extent // 4) for extent in shape) * most_bits // 8 + 64
    padded = stream.to_bytes(len(data) + 32, "little").ljust(room, b"\0")
    return bytes(decode_by_imagecodecs("zfp_decode", padded, "hdf5").tobytes())


def _decode_lzf(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    return bytes(decode_by_imagecodecs("lzf_decode", data, "hdf5", out=_find_output_limit(length)))


def _decode_szip(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    (size,) = struct.unpack_from("<I", data)
    width = 1 << max((values[2] - 1).bit_length() - 3, 0)  # bytes of a pixel; the encoder drops incomplete pixels
    if size > _find_output_limit(length) or size % width:
        limits = f"expected a multiple of {width}, the size of a pixel, and at most {_find_output_limit(length)}"
        raise ValueError(f"an szip chunk decodes to {size} bytes: {limits}")
    names = ("options_mask", "pixels_per_block", "bits_per_pixel", "pixels_per_scanline")
    options = dict(zip(names, values, strict=False))
    decoded = bytes(decode_by_imagecodecs("szip_decode", data[4:], "hdf5", out=size, **options))
    if len(decoded) != size:
        raise ValueError(f"an szip chunk is cut short: it decodes to {len(decoded)} bytes, expected {size}")
    return decoded


def _decode_lz4(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    size, block = struct.unpack_from(">QI", data)
    if size > _find_output_limit(length) or (size and not block):
        limits = f"expected at most {_find_output_limit(length)}, and blocks of at least 1 byte"
        raise ValueError(f"an lz4 chunk decodes to {size} bytes in blocks of {block} bytes: {limits}")

    def decode_block(frame: bytes, size: int) -> bytes:
        # The writer does not compress a block if compression would not make it smaller.
        return frame if len(frame) == size else _decode_lz4_block(frame, size)

    return b"".join(_decode_blocks(data, size, block, decode_block))


def _decode_blocks(data: bytes, size: int, block: int, decode: Callable[[bytes, int], bytes]) -> list[bytes]:
    """Decode the blocks that follow a header of 12 bytes. Before each block there are 4 bytes with its length."""
    blocks: list[bytes] = []
    position = 12
    for offset in range(0, size, block):
        expected = min(block, size - offset)
        (frame_size,) = struct.unpack_from(">I", data, position)
        frame = data[position + 4 : position + 4 + frame_size]
        if len(frame) != frame_size:
            raise ValueError(f"a block is cut short: expected {frame_size} bytes, found {len(frame)}")
        blocks.append(decode(frame, expected))
        if len(blocks[-1]) != expected:
            raise ValueError(f"a block decodes to {len(blocks[-1])} bytes: expected {expected}")
        position += 4 + frame_size
    return blocks


def _decode_lz4_block(frame: bytes, size: int) -> bytes:
    from numcodecs import lz4

    if size > len(frame) * _LZ4_EXPANSION:
        limit = len(frame) * _LZ4_EXPANSION
        raise ValueError(f"an lz4 block of {len(frame)} bytes decodes to {size} bytes: expected at most {limit}")
    return bytes(lz4.decompress(struct.pack("<I", size) + frame))


def _decode_zstd_block(frame: bytes, size: int) -> bytes:
    return decompress(import_zstd().ZstdDecompressor(), frame, size)


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
        return b"".join(
            _undo_bitshuffle(data[position : position + step], itemsize) for position in range(0, len(data), step)
        )
    size, block = struct.unpack_from(">QI", data)
    if size > _find_output_limit(length) or not block or block % (8 * itemsize):
        limits = f"expected at most {_find_output_limit(length)}, and blocks of a multiple of {8 * itemsize}"
        raise ValueError(f"a bitshuffle chunk decodes to {size} bytes in blocks of {block} bytes: {limits}")
    tail = size % (8 * itemsize)  # elements at the end, fewer than eight, are not shuffled
    blocks = [_undo_bitshuffle(block_data, itemsize) for block_data in _decode_blocks(data, size - tail, block, decode)]
    return b"".join(blocks) + data[len(data) - tail :]


def _undo_bitshuffle(block: bytes, itemsize: int) -> bytes:
    """Undo bitshuffle, which stores the first bits of all elements, then their second bits, and so on."""
    count = len(block) // itemsize // 8 * 8
    rows = np.frombuffer(block, np.uint8, count * itemsize).reshape(itemsize * 8, count // 8)
    step = max(_BITS_AT_ONCE // (itemsize * 64), 1)  # bytes of each row; a byte holds a bit of eight elements
    parts: list[bytes] = []
    for first_column in range(0, count // 8, step):
        bits = np.unpackbits(rows[:, first_column : first_column + step], axis=1, bitorder="little")
        parts.append(np.packbits(bits.T, axis=1, bitorder="little").tobytes())
    return b"".join([*parts, block[count * itemsize :]])


# HDF5's own filters that pack numbers into fewer bits.


def _pack_bits(bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Pack each row of bits into an integer, the highest bit first."""
    wide = np.zeros((bits.shape[0], 64), np.uint8)
    wide[:, 64 - bits.shape[1] :] = bits
    return np.packbits(wide, axis=1).view(">u8")[:, 0].astype(np.uint64)


def _iter_bits(data: bytes, count: int, width: int) -> Iterator[tuple[slice, npt.NDArray[np.uint8]]]:
    """Unpack ``count`` elements of ``width`` bits each. Yield slices of elements, with a row of bits for each element.

    Slices are small, because each unpacked bit takes a byte, and each number takes 64 bytes in `_pack_bits`.
    """
    if len(data) * 8 < count * width:
        raise ValueError(f"a packed chunk has {len(data)} bytes: expected {count} elements of {width} bits")
    step = max(_BITS_AT_ONCE // max(width, 64), 512) // 8 * 8  # elements in a slice, which begins at a whole byte
    for start in range(0, count, step):
        length = min(step, count - start)
        raw = np.frombuffer(data, np.uint8, -(-length * width // 8), start * width // 8)
        yield slice(start, start + length), np.unpackbits(raw, count=length * width).reshape(length, width)


def _decode_scale_offset(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    kind, factor, count, type_class, size, is_signed, is_big, has_fill = values[:8]
    if (
        size not in (1, 2, 4, 8)
        or count * size > _find_output_limit(length)
        or type_class > 1
        or (type_class and size < 4)
    ):
        sizes = f"1, 2, 4 or 8 bytes, or class 1 (floats) with 4 or 8, and at most {_find_output_limit(length)} in all"
        found = f"scale-offset has {count} elements of {size} bytes and of class {type_class}"
        raise ValueError(f"{found}: expected class 0 (integers) with {sizes}")
    if type_class and kind != 0:
        raise ValueError(f"scale-offset of floats has the type {kind}: expected 0 (D-scaling)")
    if len(data) < 21:
        raise ValueError(f"a scale-offset chunk is cut short: expected a header of 21 bytes, found {len(data)}")
    width, low = int.from_bytes(data[:4], "little"), data[5:13]
    order = "<>"[is_big & 1]
    code = "f" if type_class else "i" if is_signed else "u"
    if width == size * 8:
        plain = np.frombuffer(data[21:], f"<{code}{size}", count)
        return plain.astype(f"{order}{code}{size}").tobytes()
    if width > size * 8:
        raise ValueError(f"scale-offset has packed elements of {width} bits: expected at most {size * 8}")
    packed = np.zeros(count, f"<u{size}")
    for rows, bits in _iter_bits(data[21:], count, width) if width else ():
        packed[rows] = _pack_bits(bits)
    if type_class:
        minimum = np.frombuffer(low, f"<f{size}", 1)[0]
        scale = np.dtype(f"<f{size}").type(10.0 ** _convert_to_signed(factor))
        numbers = packed.view(f"<i{size}").astype(f"<f{size}") / scale + minimum
    else:
        numbers = (packed + np.frombuffer(low, f"<u{size}", 1)[0]).view(f"<{code}{size}")
    if has_fill:
        fill = np.frombuffer(struct.pack(f"<{len(values) - 8}I", *values[8:]), f"<{code}{size}", 1)
        numbers = np.where(packed == (1 << width) - 1, fill, numbers)
    result: bytes = numbers.astype(f"{order}{code}{size}").tobytes()
    return result


def _convert_to_signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _decode_nbit(data: bytes, values: tuple[int, ...], length: int) -> bytes:
    if values[1]:  # the parameter says that no number needs packing
        return data
    count = values[2]
    numbers: list[_NumberPlace] = []
    size, _ = _collect_numbers(values, 3, 0, numbers, 0)
    if not size or count * size > _find_output_limit(length):
        limits = f"expected at least 1 byte, and at most {_find_output_limit(length)} in all"
        raise ValueError(f"nbit has {count} elements of {size} bytes: {limits}")
    rows_of_bytes = np.zeros((count, size), np.uint8)
    for rows, bits in _iter_bits(data, count, sum(precision for *_, precision, _ in numbers)):
        first_bit = 0
        for start, width, is_big, precision, offset in numbers:
            number = _pack_bits(bits[:, first_bit : first_bit + precision]) << np.uint64(offset)
            raw = number.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :]
            rows_of_bytes[rows, start : start + width] = raw if is_big else raw[:, ::-1]
            first_bit += precision
    return bytes(rows_of_bytes.tobytes())


# A number in an element: its start and size in bytes, whether it is big-endian, its number of bits, and its first bit.
_NumberPlace = tuple[int, int, int, int, int]


def _collect_numbers(
    values: tuple[int, ...], position: int, start: int, numbers: list[_NumberPlace], depth: int
) -> tuple[int, int]:
    """Collect the numbers in an element, which the parameters from ``position`` on describe.

    Returns the size of the element in bytes, and the position after its parameters.
    """
    kind, size = values[position : position + 2]
    end = position + 2
    if depth > 16:
        raise ValueError("an nbit element is nested too deeply: expected at most 16 levels")
    if len(numbers) > _MOST_NUMBERS:
        raise ValueError(f"an nbit element has {len(numbers)} numbers or more: expected at most {_MOST_NUMBERS}")
    match kind:
        case 1:  # a number
            is_big, precision, offset = values[end : end + 3]
            if size not in range(1, 9) or not precision or precision + offset > size * 8:
                found = f"an nbit number has {precision} bits from bit {offset} on, in {size} bytes"
                raise ValueError(f"{found}: expected at least 1 bit, within 1 to 8 bytes")
            numbers.append((start, size, is_big, precision, offset))
            return size, end + 3
        case 2:  # an array
            base, end = _collect_numbers(values, end, start, numbers, depth + 1)
            if not base or size % base:
                raise ValueError(f"an nbit array has {size} bytes: expected a whole number of elements of {base} bytes")
            for number_start in range(start + base, start + size, base):
                _collect_numbers(values, position + 2, number_start, numbers, depth + 1)
        case 3:  # a compound
            member_count, end = values[end], end + 1
            for _ in range(member_count):
                _, end = _collect_numbers(values, end + 1, start + values[end], numbers, depth + 1)
        case 4:  # bytes that are not packed
            if size > _MOST_NUMBERS:
                raise ValueError(f"an nbit member has {size} bytes: expected at most {_MOST_NUMBERS}")
            numbers += [(start + number_start, 1, 0, 8, 0) for number_start in range(size)]
        case _:
            raise ValueError(f"an nbit member is of the kind {kind}: expected 1 to 4")
    return size, end


_DECODERS: Final[dict[int, Decoder]] = {
    DEFLATE: _decode_deflate,
    SHUFFLE: _undo_shuffle,
    FLETCHER32: _decode_fletcher32,
    SZIP: _decode_szip,
    NBIT: _decode_nbit,
    SCALEOFFSET: _decode_scale_offset,
    BZIP2: _make_stream_decoder(bz2.BZ2Decompressor),
    LZF: _decode_lzf,
    BLOSC: _decode_blosc,
    LZ4: _decode_lz4,
    BITSHUFFLE: _decode_bitshuffle,
    ZFP: _decode_zfp,
    ZSTD: _make_stream_decoder(lambda: import_zstd().ZstdDecompressor()),
    BLOSC2: _decode_blosc2,
    **dict.fromkeys((BITGROOM, BITROUND), lambda data, values, length: data),
}
