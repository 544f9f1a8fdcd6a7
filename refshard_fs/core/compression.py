"""Compressed streams made plain, by the libraries of Python, and no further than they may be. No I/O here.

`decompressed` is for formats that say how much there is, `Inflate` for documents that come in pieces. `check_chunk` is
for chunks, whose metadata say it, and that other libraries decode.
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
    """Return the module: from 3.14 on it is in the library, before that in backports. Few sources need it."""
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def errors() -> tuple[type[Exception], ...]:
    """Return what decompressors raise where their input is damaged."""
    return (zlib.error, OSError, EOFError, lzma.LZMAError, zstd().ZstdError)


_PART: Final = 1 << 20  # bytes that are made at once; a large result is made in 16 parts, each of which copies the rest


def decompressed(stream: Any, data: bytes, most: int, *, has_end: bool = True) -> bytes:
    """Return what ``data`` stands for by ``stream``, a decompressor of zlib, bz2, lzma or zstd: ``most`` bytes at most.

    Raises ValueError where the data are damaged, hold more, or (unless it need not be marked) do not reach their end.
    """
    # Decompressors hold what they make twice while they join it: the parts are small, and one buffer grows.
    out, part = io.BytesIO(), max(_PART, most >> 4)
    left = most + 1
    try:
        while left and not stream.eof:
            made = stream.decompress(data, min(left, part))
            data = getattr(stream, "unconsumed_tail", b"")  # of zlib; others keep it
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
# Compressed documents made plain as they come, in pieces of bounded size. What with is told by their first bytes.
#
# gzip, bzip2, xz and zstd, of one or several streams in a row. What makes more bytes than any document of references
# does is refused, before they are made.


MAGIC: Final = 6  # bytes that tell what a document is compressed with
PIECE: Final = 1 << 22  # bytes at a time, at most
RATIO: Final = 500  # bytes that are made of one, on the average,
SLICE: Final = 1 << 16  # bytes that are looked at together for that
GRACE: Final = 64 << 20  # from so many on

# What makes a decompressor for each stream, by the bytes that it begins with.
_KNOWN: Final[Mapping[bytes, Callable[[], Any]]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\x00": lzma.LZMADecompressor,
    b"\x28\xb5\x2f\xfd": lambda: zstd().ZstdDecompressor(),
}


class DamagedStream(ValueError):
    """Compressed bytes that break their format, or end too early."""


class Plain:
    """A document that is not compressed."""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """Yield what ``data``, the next bytes, stand for."""
        yield data

    def finish(self) -> Iterator[bytes]:
        """Yield the rest: the document has ended."""
        yield from ()


class Inflate(Plain):
    """One compressed document, of streams that ``make`` decompresses; DamagedStream where it is not whole."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._current = self._make()
        self._taken = self._made = 0  # bytes

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        view = memoryview(data)
        for start in range(0, len(view), SLICE):  # what is not looked at yet does not count
            part = bytes(view[start : start + SLICE])
            self._taken += len(part)
            for out in self._inflated(part):
                self._made += len(out)
                if self._made > max(GRACE, RATIO * self._taken):
                    swelling = f"{self._taken} bytes make {self._made} or more"
                    raise DamagedStream(f"{swelling}: no document of references is like that")
                yield out

    def _inflated(self, left: bytes) -> Iterator[bytes]:
        while True:
            if self._current.eof:
                left = left.lstrip(b"\0")  # padding between streams
                if not left:
                    return
                self._current = self._make()
            try:
                out = self._current.decompress(left, PIECE)
            except errors() as e:
                raise DamagedStream(str(e)) from e
            # zlib gives back what it has not looked at yet, others keep it.
            left = self._current.unused_data if self._current.eof else getattr(self._current, "unconsumed_tail", b"")
            if out:
                yield out
            if not self._current.eof and not left and len(out) < PIECE:
                return

    def finish(self) -> Iterator[bytes]:
        if not self._current.eof:
            raise DamagedStream("it ends too early")
        yield from ()


def is_compressed(head: bytes) -> bool:
    """Whether a document that begins with ``head`` is compressed."""
    return head.startswith(tuple(_KNOWN))


def inflate_for(head: bytes) -> Plain:
    """Return what makes a document plain that begins with ``head``."""
    for magic, make in _KNOWN.items():
        if head.startswith(magic):
            return Inflate(make)
    return Plain()


# ----------------------------------------------------------------------------------------------------
# Numbers and images that are packed.


_UNPACKED: Final = 1 << 16  # numbers of a few bits that are made at a time: each takes up to 256 bytes meanwhile


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
    numbers = np.empty(count, "u4")
    weights = 2.0 ** np.arange(bits)[::-1]
    for first in range(0, count, _UNPACKED):  # which begins with a byte
        some = min(_UNPACKED, count - first)
        part = np.frombuffer(data, "u1", -(-some * bits // 8), first * bits // 8)
        numbers[first : first + some] = np.unpackbits(part, count=bits * some).reshape(some, bits) @ weights
    return numbers


# ----------------------------------------------------------------------------------------------------
# What decoding a chunk would make, found before it is made: no more than the metadata promise.
#
# Codecs make as much as the bytes say: a kilobyte of gzip may be a gigabyte, and four bytes are a count of two thousand
# million texts. Whoever decodes chunks of somebody else's set holds them against the size of a chunk first.


MOST: Final = 1 << 28  # bytes of a chunk that are decoded here; readers of the data decide for themselves
SLACK: Final = 1 << 16  # bytes that any chunk may have: filters add some
WIDEST: Final = 16  # bytes of a number: filters may have stored wider ones than those that are shown
_MOST_STREAMS: Final = 64  # of a chunk, that follow one another: each is a copy of what is left

_COUNTED: Final = frozenset(["vlen-utf8", "vlen-bytes", "vlen-array"])  # begin with how many there are
_AS_LONG: Final = frozenset(["bytes", "endian", "transpose", "shuffle", "bitround", "delta", "quantize", "zfpy"])


def check_chunk(meta: ArrayMeta, data: bytes) -> None:
    """Raise ValueError, which says how much it would be, where decoding ``data`` takes more than a chunk may."""
    count, most = promised(meta)
    codecs = _codecs(meta)
    for place, (name, codec) in enumerate(codecs):
        is_last = _COUNTED.isdisjoint(later for later, _ in codecs[place + 1 :])
        if name in _COUNTED:
            _check(int.from_bytes(data[:4], "little"), count, "texts")
        elif name == "crc32c":
            data = data[:-4]
        elif name in _MAKERS:
            if name == "lzma" and codec.get("format", lzma.FORMAT_XZ) not in (lzma.FORMAT_AUTO, lzma.FORMAT_XZ):
                raise ValueError("it is of a format of LZMA whose size cannot be told before it is made")
            data = _streams(_MAKERS[name], data, most)
        elif name in _TELL:
            made = _TELL[name](data)
            _check(made, most, "bytes")
            if made is None:
                data = _streams(zstd().ZstdDecompressor, data, most)
            elif not is_last:
                data = _opened(name, data)
        elif name not in _AS_LONG:
            return  # nothing is known of it
        if is_last and name not in _AS_LONG and name != "crc32c":
            return


def _streams(make: Callable[[], Any], data: bytes, most: int) -> bytes:
    """Return what streams that follow one another in ``data`` make together, as codecs decode them."""
    parts: list[bytes] = []
    while data.strip(b"\0") or not parts:  # zeros may fill what follows a stream
        if len(parts) == _MOST_STREAMS:
            raise ValueError(f"it is of more than {_MOST_STREAMS} compressed streams, which are not looked through")
        stream = make()
        parts.append(decompressed(stream, data, most, has_end=False))
        most -= len(parts[-1])
        data = stream.unused_data
    return b"".join(parts)


def is_bounded(meta: ArrayMeta) -> bool:
    """Whether all codecs of an array are known here, so that what `check_chunk` lets pass takes seconds at most."""
    return all(name in _BOUNDED for name, _ in _codecs(meta))


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


def _check(made: int | None, most: int, what: str) -> None:
    if made is not None and made > most:
        raise ValueError(f"it says that it is {made:,} {what}, and a chunk has {most:,} at most")


def _zstd_size(data: bytes) -> int | None:
    """Return the size of the content that a frame's header gives, if it does."""
    try:
        size: int | None = zstd().get_frame_info(data).decompressed_size
    except zstd().ZstdError as e:
        raise ValueError(f"it is no frame of zstd: {e}") from e
    return size


def _opened(name: str, data: bytes) -> bytes:
    """Return what a compressor, which was seen to make no more than it may, makes."""
    import numcodecs  # slow to import

    return bytes(numcodecs.get_codec({"id": name}).decode(data))


_MAKERS: Final[Mapping[str, Callable[[], Any]]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "zlib": zlib.decompressobj,
    "bz2": bz2.BZ2Decompressor,
    "lzma": lambda: lzma.LZMADecompressor(memlimit=MOST),
}
_TELL: Final[Mapping[str, Callable[[bytes], int | None]]] = {
    "blosc": lambda data: int.from_bytes(data[4:8], "little"),
    "lz4": lambda data: int.from_bytes(data[:4], "little"),
    "zstd": _zstd_size,
}
# zfpy is not: its bytes say once more how large an array they are, and are believed.
_BOUNDED: Final = (_AS_LONG - {"zfpy"}) | _COUNTED | {"crc32c", *_MAKERS, *_TELL}
