"""Decompression within bounds, by Python's own libraries. No I/O here.

`decompressed` is for formats that say how many bytes there are, `Inflate` for documents that come in pieces.
`check_chunk` is for chunks that another library will decode: their metadata says how large they may be.
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
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from refshard_fs.core.zarrmeta import ArrayMeta, codec_documents


def zstd() -> Any:
    """Return the module: Python's own from 3.14 on, a backport before. Few sources need it."""
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def errors() -> tuple[type[Exception], ...]:
    """Return what decompressors raise where their input is damaged."""
    return (zlib.error, OSError, EOFError, lzma.LZMAError, zstd().ZstdError)


_PART: Final = 1 << 20  # bytes that are made at once; a large result is made in 16 parts, each of which copies the rest


def decompressed(stream: Any, data: bytes, most: int, *, has_end: bool = True) -> bytes:
    """Return the bytes that ``stream``, a decompressor of zlib, bz2, lzma or zstd, makes of ``data``.

    Raises ValueError where the data are damaged, make more than ``most`` bytes, or do not reach the end of the stream
    (unless ``has_end`` is false).
    """
    # Decompressors hold what they make twice while they join it: so parts are small, and one buffer grows.
    out, part = io.BytesIO(), max(_PART, most >> 4)
    left = most + 1
    try:
        while left and not stream.eof:
            made = stream.decompress(data, min(left, part))
            data = getattr(stream, "unconsumed_tail", b"")  # of zlib; the others keep it
            left -= out.write(made)
            if not made:
                break
    except errors() as e:
        raise ValueError(f"its compressed bytes are damaged: {e}") from e
    if not left:
        raise ValueError(f"its compressed bytes do not end after {most} bytes: they make more than there may be")
    if has_end and not stream.eof:
        raise ValueError(f"its compressed bytes do not end after {most} bytes: they are cut short")
    return out.getvalue()


# ----------------------------------------------------------------------------------------------------
# Documents that may be compressed (gzip, bzip2, xz, zstd; one or several streams in a row), decompressed as they come.


MAGIC: Final = 6  # bytes of a document that say how it is compressed
PIECE: Final = 1 << 22  # bytes that are made at a time, at most
RATIO: Final = 500  # bytes that one byte may make on average; references compress to a tenth or so.
SLICE: Final = 1 << 16  # bytes that are decompressed before the ratio is looked at
GRACE: Final = 64 << 20  # bytes that any document may make

# What makes a decompressor for each stream, by the bytes that it begins with.
_STREAMS: Final[Mapping[bytes, Callable[[], Any]]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\x00": lzma.LZMADecompressor,
    b"\x28\xb5\x2f\xfd": lambda: zstd().ZstdDecompressor(),
}


class DamagedStream(ValueError):
    """Compressed bytes that break their format, or end too early."""


class Inflate:
    """Decompresses a document that begins with ``head`` as its bytes come; DamagedStream where they are damaged.

    A document that is not compressed comes out as it is.
    """

    def __init__(self, head: bytes) -> None:
        self._make = next((make for magic, make in _STREAMS.items() if head.startswith(magic)), None)
        self._stream: Any = None if self._make is None else self._make()
        self._taken = self._made = 0  # bytes

    def feed(self, data: bytes | memoryview, *, is_last: bool = False) -> Iterator[bytes | memoryview]:
        """Yield what ``data``, the next bytes, make; ``is_last`` says that the document ends with them."""
        if self._make is None:
            yield data
            return
        view = memoryview(data)
        for start in range(0, len(view), SLICE):
            part = bytes(view[start : start + SLICE])
            self._taken += len(part)
            for out in self._inflated(part, self._make):
                self._made += len(out)
                if self._made > max(GRACE, RATIO * self._taken):
                    swelling = f"{self._taken} bytes make {self._made} or more"
                    raise DamagedStream(f"{swelling}: no document of references is like that")
                yield out
        if is_last and not self._stream.eof:
            raise DamagedStream("it ends too early")

    def _inflated(self, left: bytes, make: Callable[[], Any]) -> Iterator[bytes]:
        while True:
            if self._stream.eof:
                left = left.lstrip(b"\0")  # padding between streams
                if not left:
                    return
                self._stream = make()
            try:
                out = self._stream.decompress(left, PIECE)
            except errors() as e:
                raise DamagedStream(str(e)) from e
            # zlib gives back what it has not looked at yet, the others keep it.
            left = self._stream.unused_data if self._stream.eof else getattr(self._stream, "unconsumed_tail", b"")
            if out:
                yield out
            if not self._stream.eof and not left and len(out) < PIECE:
                return


def is_compressed(head: bytes) -> bool:
    """Whether a document that begins with ``head`` is compressed."""
    return head.startswith(tuple(_STREAMS))


# ----------------------------------------------------------------------------------------------------
# Numbers and images that are packed.


def by_imagecodecs(function: str, data: bytes, extra: str, **options: Any) -> Any:
    """Return what a function of imagecodecs, which comes with ``extra``, makes of ``data``.

    Raises ValueError where the data are damaged, or the library is not there.
    """
    try:
        library = importlib.import_module("imagecodecs")
    except ImportError as e:
        raise ValueError(f'it is decoded by imagecodecs: pip install "refshard_fs[{extra}]"') from e
    try:
        return getattr(library, function)(data, **options)
    except Exception as e:  # each decoder has errors of its own for damaged bytes
        raise ValueError(f"its bytes are damaged: {function} says {e}") from e


def unpacked(data: bytes, bits: int, count: int) -> npt.NDArray[Any]:
    """Return ``count`` unsigned numbers of ``bits`` bits each, up to 32, the most significant first.

    Raises ValueError where ``data`` hold fewer.
    """
    if len(data) * 8 < bits * count or not 0 < bits <= 32:
        raise ValueError(f"{count} values of {bits} bits are not in its {len(data)} bytes")
    if bits in (8, 16, 32):
        return np.frombuffer(data, f">u{bits // 8}", count)
    # Eight numbers take whole bytes, as many as a number has bits: the k-th of all eights lie alike.
    eights = -(-count // 8)
    stored = np.zeros(eights * bits, "u1")
    given = np.frombuffer(data, "u1", min(len(data), stored.size))
    stored[: given.size] = given
    word: Any = np.uint32 if bits <= 24 else np.uint64  # which holds the bytes that a number touches
    columns: list[Any] = [column.astype(word) for column in stored.reshape(eights, bits).T]
    numbers = np.empty((eights, 8), "u4")
    for k in range(8):
        first, last = k * bits // 8, ((k + 1) * bits - 1) // 8
        value = columns[first]
        for column in columns[first + 1 : last + 1]:
            value = (value << word(8)) | column
        numbers[:, k] = (value >> word((last + 1) * 8 - (k + 1) * bits)) & word((1 << bits) - 1)
    return numbers.reshape(-1)[:count]


# ----------------------------------------------------------------------------------------------------
# How much decoding a chunk would make, found out before that is done.
#
# Codecs make as many bytes as their input says: a kilobyte of gzip may be a gigabyte, and four bytes may announce two
# thousand million texts. Whoever decodes chunks of somebody else's set first checks that they fit the array's metadata.


MOST: Final = 1 << 28  # bytes of a chunk that are decoded here; readers of the data decide for themselves
SLACK: Final = 1 << 16  # bytes that any chunk may have: filters add some
WIDEST: Final = 16  # bytes of a number: filters may have stored wider ones than those that are shown
_MOST_STREAMS: Final = 64  # of a chunk, one after the other: each is a copy of what is left

_COUNTED: Final = frozenset(["vlen-utf8", "vlen-bytes", "vlen-array"])  # begin with the number of their elements
_SAME_SIZE: Final = frozenset(
    ["bytes", "endian", "transpose", "shuffle", "bitround", "delta", "quantize", "zfpy", "astype", "fixedscaleoffset"]
)
_CHECKSUMS: Final = {"crc32c": slice(-4), "fletcher32": slice(-4)}  # what is left without them


def check_chunk(meta: ArrayMeta, data: bytes) -> None:
    """Raise ValueError, which says how much it would be, where decoding ``data`` takes more than a chunk may."""
    count, most = promised(meta)
    codecs = _codecs(meta)
    for place, (name, codec) in enumerate(codecs):
        is_last = all(later in _SAME_SIZE or later in _CHECKSUMS for later, _ in codecs[place + 1 :])
        if name in _COUNTED:
            _check(int.from_bytes(data[:4], "little"), count, "texts")
        elif name in _CHECKSUMS:
            data = data[_CHECKSUMS[name]]
        elif name in _MAKERS:
            if name == "lzma" and codec.get("format", lzma.FORMAT_XZ) not in (lzma.FORMAT_AUTO, lzma.FORMAT_XZ):
                raise ValueError("it is of a format of LZMA whose size cannot be told before it is made")
            data = _joined_streams(_MAKERS[name], data, most)
        elif name in _SIZES:
            size = _SIZES[name](data)
            if size is None:
                data = _joined_streams(zstd().ZstdDecompressor, data, most)
            else:
                _check(size, most, "bytes")
                data = data if is_last else _decoded(name, data)
        elif name not in _SAME_SIZE:
            return  # nothing is known of it
        if is_last and name not in _SAME_SIZE and name not in _CHECKSUMS:
            return


def _joined_streams(make: Callable[[], Any], data: bytes, most: int) -> bytes:
    """Return what all streams in ``data``, one after the other, make together, as codecs decode them."""
    parts: list[bytes] = []
    while data.strip(b"\0") or not parts:  # zeros may follow a stream
        if len(parts) == _MOST_STREAMS:
            raise ValueError(f"it is of more than {_MOST_STREAMS} compressed streams, which are not looked through")
        stream = make()
        parts.append(decompressed(stream, data, most, has_end=False))
        most -= len(parts[-1])
        data = stream.unused_data
    return b"".join(parts)


def is_bounded(meta: ArrayMeta) -> bool:
    """Whether all codecs of an array are known here: then a chunk that `check_chunk` accepts takes seconds at most."""
    # zfpy is not: its bytes repeat how large the array is, and are believed.
    bounded = (_SAME_SIZE - {"zfpy"}) | _COUNTED | {*_CHECKSUMS, *_MAKERS, *_SIZES}
    return all(name in bounded for name, _ in _codecs(meta))


def promised(meta: ArrayMeta) -> tuple[int, int]:
    """Return how many elements a chunk has, and how many bytes it may have as it is stored; ValueError if too many."""
    count = math.prod(meta.chunks or ())
    try:
        size = np.dtype(meta.dtype).itemsize if meta.dtype != "|O" else None
    except (TypeError, ValueError):  # texts of any length, or a type of fields
        size = None
    if count * (size or 1) > MOST:
        raise ValueError(f"a chunk is of {count * (size or 1):,} bytes, and {MOST:,} are decoded here at most")
    return count, MOST if size is None else min(count * max(size, WIDEST) + SLACK, MOST)


def _codecs(meta: ArrayMeta) -> list[tuple[str, Mapping[str, Any]]]:
    """Return name and document of each codec, in the order in which they decode."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for codec in reversed(codec_documents(meta)):
        document = codec if isinstance(codec, dict) else {}
        name = codec if isinstance(codec, str) else document.get("id", document.get("name", ""))
        found.append((str(name).removeprefix("numcodecs."), document))
    return found


def _check(size: int, most: int, what: str) -> None:
    if size > most:
        raise ValueError(f"it says that it is {size:,} {what}, and a chunk has {most:,} at most")


def check_blosc(data: bytes) -> None:
    """Raise ValueError where a frame of blosc says that it is longer than ``data``: blosc would read past their end."""
    stated = int.from_bytes(data[12:16], "little")
    if len(data) < 16 or stated > len(data):
        raise ValueError(f"it is a frame of {max(stated, 16)} bytes, and {len(data)} are there")


def _blosc_size(data: bytes) -> int:
    check_blosc(data)
    return int.from_bytes(data[4:8], "little")


def _zstd_size(data: bytes) -> int | None:
    try:
        size: int | None = zstd().get_frame_info(data).decompressed_size
    except zstd().ZstdError as e:
        raise ValueError(f"it is no frame of zstd: {e}") from e
    return size


def _decoded(name: str, data: bytes) -> bytes:
    import numcodecs  # slow to import

    return bytes(numcodecs.get_codec({"id": name}).decode(data))


# Codecs that are decompressed here to learn how much they make, and those that say it at the beginning of their bytes.
_MAKERS: Final[Mapping[str, Callable[[], Any]]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "zlib": zlib.decompressobj,
    "bz2": bz2.BZ2Decompressor,
    "lzma": lambda: lzma.LZMADecompressor(memlimit=MOST),
}
_SIZES: Final[Mapping[str, Callable[[bytes], int | None]]] = {
    "blosc": _blosc_size,
    "lz4": lambda data: int.from_bytes(data[:4], "little"),
    "zstd": _zstd_size,
}
