"""Compressed documents made plain as they come, in pieces of bounded size. What with is told by their first bytes.

gzip, bzip2, xz and zstd, of one or several streams in a row. What makes more bytes than any document of references does
is refused, before they are made. No I/O here.
"""

from __future__ import annotations

import bz2
import importlib.util
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

MAGIC: Final = 6  # bytes that tell what a document is compressed with
PIECE: Final = 1 << 22  # bytes at a time, at most
LONGEST: Final = 1 << 32  # bytes of a zstd frame, where it can only be had in one piece
RATIO: Final = 500  # bytes that are made of one, on the average,
SLICE: Final = 1 << 16  # bytes that are looked at together for that
GRACE: Final = 64 << 20  # from so many on


class DamagedStream(ValueError):
    """Compressed bytes that break their format, or end too early."""


class Inflate(Protocol):
    """One compressed document; DamagedStream where it is not whole."""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """Yield what ``data``, the next bytes, stand for."""

    def finish(self) -> Iterator[bytes | memoryview]:
        """Yield the rest: the document has ended."""


class _Bounded(Protocol):
    """What bz2, lzma and compression.zstd have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """zlib in the manner of bz2."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail and not self._full

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        out = self._zlib.decompress(self._zlib.unconsumed_tail + data, max(max_length, 0))
        self._full = len(out) == max_length
        return out

    _full = False


class _Streams:
    """Streams in a row, of a decompressor that bounds its output."""

    def __init__(self, make: Callable[[], _Bounded], magic: bytes, errors: tuple[type[Exception], ...]) -> None:
        self._make = make
        self._magic = magic
        self._errors = errors
        self._current = make()
        self._between = b""  # bytes since the last stream ended

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        left = bytes(data)
        while left or not self._current.eof:
            if self._current.eof:
                left = (self._between + left).lstrip(b"\0")  # padding
                self._between = b""
                if not left:
                    return
                if len(left) < len(self._magic):
                    self._between = left
                    return
                if not left.startswith(self._magic):
                    raise DamagedStream("something else follows its end")
                self._current = self._make()
            try:
                out = self._current.decompress(left, PIECE)
            except self._errors as e:
                raise DamagedStream(str(e)) from e
            left = self._current.unused_data if self._current.eof else b""
            if out:
                yield out
            if not self._current.eof and self._current.needs_input:
                return

    def finish(self) -> Iterator[bytes]:
        if not self._current.eof or self._between:
            raise DamagedStream("it ends too early")
        yield from ()


class _WholeZstd:
    """zstd by numcodecs, which takes a document as a whole: for Pythons that have nothing better."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        self._parts.append(bytes(data))
        yield from ()

    def finish(self) -> Iterator[bytes]:
        from numcodecs.zstd import Zstd  # slow to import, and seldom needed

        data = b"".join(self._parts)
        self._parts.clear()
        size = zstd_size(data)
        if size is None and len(data) >= 18:
            raise DamagedStream("it does not tell its size; install zstandard to stream it")
        if size is not None and size > LONGEST:
            raise DamagedStream(f"it promises {size} bytes: too many in one piece; install zstandard to stream it")
        _check_swelling(len(data), size or 0)
        try:
            out = memoryview(Zstd().decode(data))
        except (RuntimeError, ValueError, MemoryError) as e:
            raise DamagedStream(str(e)) from e
        for start in range(0, len(out), PIECE):
            yield bytes(out[start : start + PIECE])


def zstd_size(data: bytes) -> int | None:
    """Return the size that a frame's header gives for its content (RFC 8878, section 3.1.1.1), or None."""
    if len(data) < 6:
        return None
    descriptor = data[4]
    single, dictionary = descriptor >> 5 & 1, (0, 1, 2, 4)[descriptor & 3]
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    at = 5 + (not single) + dictionary
    if not width or at + width > len(data):
        return None
    return int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)


class _Zstandard:
    """zstd by the package zstandard, fed so little at a time that its output stays small."""

    _STEP = 1 << 10  # which make 32 MiB at most

    def __init__(self, module: Any) -> None:
        self._module = module
        self._new()

    def _new(self) -> None:
        self._current = self._module.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        self._fresh = True

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        view = memoryview(data)
        for start in range(0, len(view), self._STEP):
            left = bytes(view[start : start + self._STEP])
            while left:
                if self._current.eof:
                    self._new()
                try:
                    out = self._current.decompress(left)
                except self._module.ZstdError as e:
                    raise DamagedStream(str(e)) from e
                self._fresh = False
                left = self._current.unused_data if self._current.eof else b""
                if out:
                    yield out

    def finish(self) -> Iterator[bytes]:
        if not self._current.eof:
            raise DamagedStream("it ends too early")
        yield from ()


def _zstd() -> Inflate:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return _Streams(zstd.ZstdDecompressor, b"\x28\xb5\x2f\xfd", (zstd.ZstdError, EOFError))
    if importlib.util.find_spec("zstandard") is not None:
        return _Zstandard(importlib.import_module("zstandard"))
    return _WholeZstd()


_KNOWN: Final[tuple[tuple[bytes, Callable[[], Inflate]], ...]] = (
    (b"\x1f\x8b", lambda: _Streams(_Gzip, b"\x1f\x8b", (zlib.error,))),
    (b"BZh", lambda: _Streams(bz2.BZ2Decompressor, b"BZh", (OSError, EOFError))),
    (b"\xfd7zXZ\x00", lambda: _Streams(lzma.LZMADecompressor, b"\xfd7zXZ\x00", (lzma.LZMAError, EOFError))),
    (b"\x28\xb5\x2f\xfd", _zstd),
)


def _check_swelling(taken: int, made: int) -> None:
    if made > max(GRACE, RATIO * taken):
        raise DamagedStream(f"{taken} bytes make {made} or more: no document of references is like that")


class _Plain:
    """A document that is not compressed."""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        yield data

    def finish(self) -> Iterator[bytes | memoryview]:
        yield from ()


class _Watched:
    """Another one, as long as it does not make too much of what it is fed."""

    def __init__(self, inner: Inflate) -> None:
        self._inner = inner
        self._taken = self._made = 0

    def feed(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        view = memoryview(data)
        for start in range(0, len(view), SLICE):  # what is not looked at yet does not count
            part = view[start : start + SLICE]
            self._taken += len(part)
            yield from self._counted(self._inner.feed(part))

    def finish(self) -> Iterator[bytes | memoryview]:
        yield from self._counted(self._inner.finish())

    def _counted(self, pieces: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for piece in pieces:
            self._made += len(piece)
            _check_swelling(self._taken, self._made)
            yield piece


def is_compressed(head: bytes) -> bool:
    """Whether a document that begins with ``head`` is compressed."""
    return any(head.startswith(magic) for magic, _ in _KNOWN)


def inflate_for(head: bytes) -> Inflate:
    """Return what makes a document plain that begins with ``head``."""
    for magic, make in _KNOWN:
        if head.startswith(magic):
            return _Watched(make())
    return _Plain()
