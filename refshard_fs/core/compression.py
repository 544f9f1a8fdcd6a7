"""Decompression with a limit on the size of the result, by Python's own libraries. No I/O here.

`decompress` is for formats that state the decompressed size, `Inflate` for documents that arrive in parts.
`check_chunk` is for chunks that another library will decode: the array's metadata state their size.
"""

from __future__ import annotations

import bz2
import importlib
import io
import lzma
import math
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from refshard_fs.core.zarrmeta import ArrayMeta, list_codec_documents
from refshard_fs.errors import ManifestError


@cache
def import_zstd() -> Any:
    """Import the module for zstd: Python's own from 3.14 on, a backport before. Few sources need it."""
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def list_decompression_errors() -> tuple[type[Exception], ...]:
    """Return the errors that decompressors raise for damaged input."""
    return (zlib.error, OSError, EOFError, lzma.LZMAError, import_zstd().ZstdError)


_PART: Final = 1 << 20  # bytes that are decompressed at a time; more if a large result would have more than 16 parts


def decompress(stream: Any, data: bytes | memoryview, most: int, *, has_end: bool = True) -> bytes:
    """Decompress ``data`` with ``stream``, a decompressor of zlib, bz2, lzma or zstd.

    Raises ValueError if the data are damaged, decompress to more than ``most`` bytes, or do not reach the end of the
    stream (unless ``has_end`` is false).
    """
    # A decompressor takes twice the memory of a part, so parts are small, and one buffer grows.
    out, part = io.BytesIO(), max(_PART, most >> 4)
    left = most + 1
    try:
        while left and not stream.eof:
            decoded: bytes = stream.decompress(data, min(left, part))
            data = getattr(stream, "unconsumed_tail", b"")  # zlib returns unused input; other decompressors keep it
            if stream.eof and left > most >= len(decoded):
                return decoded  # the usual case: the first part is all
            left -= out.write(decoded)
            if not decoded:
                break
    except list_decompression_errors() as e:
        raise ValueError(f"its compressed bytes are damaged: {e}") from e
    if not left:
        raise ValueError(f"its compressed bytes decode to too many bytes: expected at most {most}")
    if has_end and not stream.eof:
        raise ValueError(
            f"its compressed bytes are cut short: expected the end of the stream, found none after decoding "
            f"{out.tell()} bytes"
        )
    return out.getvalue()


MAGIC: Final = 6  # bytes at the start of a document that identify its compression
STEP: Final = 1 << 22  # the most bytes that are decompressed at a time
RATIO: Final = 500  # the highest average compression ratio; references compress to about a tenth
SLICE: Final = 1 << 16  # compressed bytes between two checks of the ratio
GRACE: Final = 64 << 20  # decompressed bytes below which the ratio is not checked

# Functions that make a decompressor, by the first bytes of the stream.
_STREAMS: Final[Mapping[bytes, Callable[[], Any]]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\x00": lzma.LZMADecompressor,
    b"\x28\xb5\x2f\xfd": lambda: import_zstd().ZstdDecompressor(),
}


class DamagedStream(ValueError):
    """Compressed bytes are damaged, end too early, or decompress to too many bytes."""


class Inflate:
    """Decompress a document that begins with ``head`` (gzip, bzip2, xz, zstd; one stream or several), part by part.

    A document that is not compressed is returned unchanged. Raises DamagedStream if the bytes are damaged, or too many;
    with ``checks_ratio=False``, the caller limits the size.
    """

    def __init__(self, head: bytes, *, checks_ratio: bool = True) -> None:
        self._checks_ratio = checks_ratio
        self._make = next((make for magic, make in _STREAMS.items() if head.startswith(magic)), None)
        self._stream: Any = None if self._make is None else self._make()
        self._taken = self._made = 0  # bytes that were fed, and bytes that were returned

    def feed(self, data: bytes | memoryview, *, is_last: bool = False) -> Iterator[bytes | memoryview]:
        """Decompress ``data``, the next bytes of the document; ``is_last`` says that the document ends with them."""
        if self._make is None:
            yield data
            return
        view = memoryview(data)
        for start in range(0, len(view), SLICE):
            part = bytes(view[start : start + SLICE])
            self._taken += len(part)
            for out in self._inflate(part, self._make):
                self._made += len(out)
                if self._checks_ratio and self._made > max(GRACE, RATIO * self._taken):
                    raise DamagedStream(
                        f"{self._taken} bytes decompress to {self._made}: expected at most {RATIO} times as many"
                    )
                yield out
        if is_last and not self._stream.eof:
            raise DamagedStream(f"expected the end of its last compressed stream, found the end of {self._taken} bytes")

    def _inflate(self, left: bytes, make: Callable[[], Any]) -> Iterator[bytes]:
        while True:
            if self._stream.eof:
                left = left.lstrip(b"\0")  # padding between streams
                if not left:
                    return
                self._stream = make()
            try:
                out = self._stream.decompress(left, STEP)
            except list_decompression_errors() as e:
                raise DamagedStream(str(e)) from e
            # zlib returns unused input; other decompressors keep it.
            left = self._stream.unused_data if self._stream.eof else getattr(self._stream, "unconsumed_tail", b"")
            if out:
                yield out
            if not self._stream.eof and not left and len(out) < STEP:
                return


MOST_DECOMPRESSED: Final = 256 << 20  # the most bytes of a decompressed file, because it is held in memory

_TO_CHUNKS: Final = (
    "Decompress it (gunzip, bunzip2, unxz, unzstd). To keep it compressed, compress its chunks (HDF5: h5repack -f "
    "GZIP=4; FITS: fpack; TIFF: gdal_translate -of COG)"
)


def decompress_file(data: bytes, where: str) -> bytes:
    """Decompress a file that is compressed as a whole; ManifestError if it is damaged or too large."""
    out = bytearray()
    try:
        for part in Inflate(data, checks_ratio=False).feed(data, is_last=True):
            out += part
            if len(out) > MOST_DECOMPRESSED:
                raise make_size_error(where)
    except DamagedStream as e:
        raise ManifestError(f"{where} is compressed as a whole, and is damaged: {e}. Fetch it again") from e
    return bytes(out)


def make_size_error(where: str) -> ManifestError:
    """Return the error for a file that is compressed as a whole and too large."""
    return ManifestError(
        f"{where} is compressed as a whole: no part of it can be read alone, and it has more than "
        f"{MOST_DECOMPRESSED >> 20} MiB, the most that is decompressed in memory. {_TO_CHUNKS}"
    )


def inflate_head(head: bytes, count: int) -> bytes:
    """Return up to ``count`` decompressed bytes of a document that begins with ``head``."""
    decompressed = b""
    try:
        for part in Inflate(head).feed(head):
            decompressed += bytes(part[: count - len(decompressed)])
            if len(decompressed) >= count:
                break
    except DamagedStream:
        pass
    return decompressed


def is_compressed(head: bytes) -> bool:
    """Return whether a document that begins with ``head`` is compressed."""
    return head.startswith(tuple(_STREAMS))


def decode_by_imagecodecs(function: str, data: bytes | memoryview, extra: str, **options: Any) -> Any:
    """Decode ``data`` with a function of imagecodecs, which the extra ``extra`` installs.

    Raises ValueError if the data are damaged, or imagecodecs is not installed.
    """
    try:
        library = importlib.import_module("imagecodecs")
    except ImportError as e:
        raise ValueError(f'decoding needs imagecodecs: pip install "refshard_fs[{extra}]"') from e
    try:
        return getattr(library, function)(data, **options)
    except Exception as e:  # each decoder has its own errors for damaged bytes
        raise ValueError(f"its bytes cannot be decoded: imagecodecs.{function}: {e}") from e


COLUMNS: Final = 16  # the most bytes of elements that are copied byte by byte


def unshuffle(data: Any, size: int) -> npt.NDArray[np.uint8]:
    """Undo shuffle, which stores the first bytes of all elements, then their second bytes, and so on.

    An operation of numpy for each byte of an element is faster than the loop over all bytes in numcodecs, if elements
    are small; for elements of 2 and 4 bytes, shifts of whole elements are faster than copies of bytes. ValueError if
    ``data`` are not whole elements of ``size`` bytes.
    """
    shuffled = np.frombuffer(data, np.uint8).reshape(size, -1)
    if size > COLUMNS:  # a file may claim any size
        return shuffled.T.copy().reshape(-1)
    if size in (2, 4):
        numbers: npt.NDArray[Any] = shuffled[-1].astype(f"<u{size}")
        for column in shuffled[-2::-1]:
            numbers <<= 8
            numbers |= column
        return numbers.view(np.uint8)
    elements = np.empty(shuffled.shape[::-1], np.uint8)
    for place, column in enumerate(shuffled):
        elements[:, place] = column
    return elements.reshape(-1)


def unpack_bits(data: bytes | memoryview, bits: int, count: int) -> npt.NDArray[Any]:
    """Unpack ``count`` unsigned numbers of ``bits`` bits each, at most 64, most significant bit first.

    Raises ValueError if ``data`` are too short.
    """
    if not 0 < bits <= 64:
        raise ValueError(f"its values have {bits} bits: expected 1 to 64")
    if len(data) * 8 < bits * count:
        raise ValueError(f"expected {count} values of {bits} bits, found {len(data)} bytes")
    if bits in (8, 16, 32, 64):
        return np.frombuffer(data, f">u{bits // 8}", count)
    dtype = "u1" if bits < 8 else "u2" if bits < 16 else "u4" if bits < 32 else "u8"
    data = memoryview(data)[: -(-bits * count // 8)]
    unpack = _find_unpacker(bits, dtype)
    return _unpack_by_numpy(data, bits, count, dtype) if unpack is None else unpack(data, dtype, bits)[:count]


@cache
def _find_unpacker(bits: int, dtype: str) -> Callable[..., npt.NDArray[Any]] | None:
    """Return imagecodecs' function for unpacking; None unless it is installed, and unpacks a sample correctly.

    imagecodecs 2026.1 unpacks numbers of 24 bits in the wrong byte order.
    """
    sample = bytes(range(1, 2 * bits + 1))  # 16 numbers
    try:
        unpack: Callable[..., npt.NDArray[Any]] = importlib.import_module("imagecodecs").packints_decode
        is_right = np.array_equal(unpack(sample, dtype, bits)[:16], _unpack_by_numpy(sample, bits, 16, dtype))
    except Exception:  # noqa: BLE001  # imagecodecs is not installed, or does not unpack this number of bits
        return None
    return unpack if is_right else None


def _unpack_by_numpy(data: bytes | memoryview, bits: int, count: int, dtype: str) -> npt.NDArray[Any]:
    numbers, room = np.empty(count, dtype), 32 if bits <= 32 else 64
    for first in range(0, count, _UNPACKED):  # a multiple of 8, so that each part begins with a whole byte
        unpacked = numbers[first : first + _UNPACKED]
        packed = np.frombuffer(data, "u1", -(-bits * unpacked.size // 8), first * bits // 8)
        digits = np.zeros((unpacked.size, room), "u1")
        digits[:, room - bits :] = np.unpackbits(packed, count=bits * unpacked.size).reshape(-1, bits)
        unpacked[:] = np.packbits(digits).view(f">u{room // 8}")
    return numbers


def add_up(numbers: npt.NDArray[np.signedinteger[Any]]) -> None:
    """Replace each number by the sum of all numbers up to it, in place; sums wrap.

    imagecodecs takes a sixth of the time that numpy takes.
    """
    try:
        add: Callable[..., Any] = importlib.import_module("imagecodecs").delta_decode
    except ImportError:
        np.cumsum(numbers, out=numbers)
    else:
        add(numbers, out=numbers)


BY_NUMPY: Final = 5 << 20  # bytes: numpy adds up so many in 5 to 10 ms, and loading imagecodecs takes as long
_by_numpy: list[int] = []  # the bytes of the arrays that numpy added up before imagecodecs was loaded


def add_up_rows(steps: npt.NDArray[np.unsignedinteger[Any]]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Return sums along axis 1, each of all numbers up to it in its row; sums wrap. imagecodecs is 5 times as fast."""
    if "imagecodecs" not in sys.modules and sum(_by_numpy) < BY_NUMPY:
        _by_numpy.append(steps.nbytes)
        return np.cumsum(steps, axis=1, dtype=steps.dtype)
    try:
        decode: Callable[..., Any] = importlib.import_module("imagecodecs").delta_decode
    except ImportError:
        return np.cumsum(steps, axis=1, dtype=steps.dtype)
    return np.asarray(decode(steps, axis=1))


_UNPACKED: Final = 1 << 15  # numbers that numpy unpacks at a time: each takes 32 bytes


# Check the decoded size of a chunk before decoding it.
#
# Codecs return as many bytes as their input states: a kilobyte of gzip may become a gigabyte, and four bytes may state
# a count of two thousand million texts. So chunks of a stranger's set are compared with the array's metadata first.


MOST: Final = 1 << 28  # bytes: the largest chunk that this package decodes; zarr decodes chunks of any size
SLACK: Final = 1 << 16  # bytes that filters may add to a chunk
WIDEST: Final = 16  # bytes: the largest number; filters may store wider numbers than the array shows
_MOST_STREAMS: Final = 64  # the most streams of a chunk: the rest of the chunk is copied for each of them

# Codecs whose data begin with the number of elements.
_COUNTED: Final = frozenset(["vlen-utf8", "vlen-bytes", "vlen-array"])
# Codecs that `check_chunk` skips: all but zfpy only convert numbers, or reorder bytes.
_SAME_SIZE: Final = frozenset(
    ["bytes", "endian", "transpose", "shuffle", "bitround", "delta", "quantize", "zfpy", "astype", "fixedscaleoffset"]
)
_CHECKSUMS: Final = {"crc32c": slice(-4), "fletcher32": slice(-4)}  # the slice that removes the checksum


def check_chunk(meta: ArrayMeta, data: bytes) -> None:
    """Raise ValueError if ``data`` would decode to more bytes or elements than a chunk of the array may have."""
    count, most = find_chunk_limits(meta)
    codecs = _list_codecs(meta)
    for place, (name, codec) in enumerate(codecs):
        is_last = all(later in _SAME_SIZE or later in _CHECKSUMS for later, _ in codecs[place + 1 :])
        if name in _COUNTED:
            _check_stated_size(int.from_bytes(data[:4], "little"), count, "elements")
        elif name in _CHECKSUMS:
            data = data[_CHECKSUMS[name]]
        elif name in _MAKERS:
            if name == "lzma" and codec.get("format", lzma.FORMAT_XZ) not in (lzma.FORMAT_AUTO, lzma.FORMAT_XZ):
                raise ValueError(f"its codec lzma has the format {codec['format']!r}: expected 1 (xz) or 0 (auto)")
            data = _decompress_streams(_MAKERS[name], data, most)
        elif name in _SIZES:
            size = _SIZES[name](data)
            if size is None:
                data = _decompress_streams(import_zstd().ZstdDecompressor, data, most)
            else:
                _check_stated_size(size, most, "bytes")
                data = data if is_last else _decode(name, data)
        elif name not in _SAME_SIZE:
            return  # the codec is unknown, and so is the size of its result
        if is_last and name not in _SAME_SIZE and name not in _CHECKSUMS:
            return


def decompress_unsized(name: str, data: bytes, most: int) -> bytes | None:
    """Decompress a chunk of zlib, gzip, bz2 or zstd that does not state its decoded size; None for other chunks.

    ValueError if it is damaged, or decodes to more than ``most`` bytes.
    """
    make = _MAKERS.get(name) if name != "lzma" else None
    if name == "zstd" and _parse_zstd_size(data) is None:
        make = import_zstd().ZstdDecompressor
    return None if make is None else _decompress_streams(make, data, most, has_end=True)


def _decompress_streams(make: Callable[[], Any], data: bytes, most: int, *, has_end: bool = False) -> bytes:
    """Decompress all streams in ``data``, one after another, and join the results, as codecs do."""
    parts: list[bytes] = []
    while data.strip(b"\0") or not parts:  # zeros may follow a stream
        if len(parts) == _MOST_STREAMS:
            raise ValueError(f"expected at most {_MOST_STREAMS} compressed streams in a chunk, found more")
        stream = make()
        parts.append(decompress(stream, data, most, has_end=has_end))
        most -= len(parts[-1])
        data = stream.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def is_bounded(meta: ArrayMeta) -> bool:
    """Return whether `check_chunk` knows all codecs of an array, so that a chunk that it accepts decodes in seconds."""
    # zfpy is left out: the size of its result is stated in its own bytes, and `check_chunk` does not read it.
    bounded = (_SAME_SIZE - {"zfpy"}) | _COUNTED | {*_CHECKSUMS, *_MAKERS, *_SIZES}
    return all(name in bounded for name, _ in _list_codecs(meta))


def find_chunk_limits(meta: ArrayMeta) -> tuple[int, int]:
    """Return the number of elements of a chunk, and the most bytes that it may have at any stage of decoding.

    Raises ValueError if the decoded chunk is too large.
    """
    count = math.prod(meta.chunks or ())
    try:
        size = np.dtype(meta.dtype).itemsize if meta.dtype != "|O" else None
    except (TypeError, ValueError):  # texts of any length, or a structured type
        size = None
    if count * (size or 1) > MOST:
        raise ValueError(f"a chunk has {count * (size or 1):,} bytes: expected at most {MOST:,}")
    return count, MOST if size is None else min(count * max(size, WIDEST) + SLACK, MOST)


def _list_codecs(meta: ArrayMeta) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the name and the document of each codec, in the order of decoding."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for codec in reversed(list_codec_documents(meta)):
        document = codec if isinstance(codec, dict) else {}
        name = codec if isinstance(codec, str) else document.get("id", document.get("name", ""))
        found.append((str(name).removeprefix("numcodecs."), document))
    return found


def _check_stated_size(size: int, most: int, what: str) -> None:
    if size > most:
        raise ValueError(f"its header states {size:,} {what}: expected at most {most:,} in a chunk")


def check_blosc(data: bytes) -> None:
    """Raise ValueError if a blosc frame states more bytes than ``data`` has: blosc would read past the end."""
    stated = int.from_bytes(data[12:16], "little")
    if len(data) < 16 or stated > len(data):
        raise ValueError(f"its blosc frame is cut short: expected {max(stated, 16)} bytes, found {len(data)}")


def _parse_blosc_size(data: bytes) -> int:
    check_blosc(data)
    return int.from_bytes(data[4:8], "little")


def _parse_zstd_size(data: bytes) -> int | None:
    try:
        size: int | None = import_zstd().get_frame_info(data).decompressed_size
    except import_zstd().ZstdError as e:
        raise ValueError(f"expected a zstd frame, found {data[:8]!r}: {e}") from e
    return size


def _decode(name: str, data: bytes) -> bytes:
    import numcodecs  # slow to import

    return bytes(numcodecs.get_codec({"id": name}).decode(data))


# Codecs whose chunks have to be decompressed to find their size, and codecs whose chunks state their size.
_MAKERS: Final[Mapping[str, Callable[[], Any]]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "zlib": zlib.decompressobj,
    "bz2": bz2.BZ2Decompressor,
    "lzma": lambda: lzma.LZMADecompressor(memlimit=MOST),
}
_SIZES: Final[Mapping[str, Callable[[bytes], int | None]]] = {
    "blosc": _parse_blosc_size,
    "lz4": lambda data: int.from_bytes(data[:4], "little"),
    "zstd": _parse_zstd_size,
}
