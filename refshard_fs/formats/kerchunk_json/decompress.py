"""Compressed documents made plain as they come, in pieces of bounded size. What with is told by their first bytes.

gzip, bzip2, xz and zstd, of one or several streams in a row. What makes more bytes than any document of references does
is refused, before they are made. No I/O here.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from refshard_fs.core.compression import zstd

MAGIC: Final = 6  # bytes that tell what a document is compressed with
PIECE: Final = 1 << 22  # bytes at a time, at most
RATIO: Final = 500  # bytes that are made of one, on the average,
SLICE: Final = 1 << 16  # bytes that are looked at together for that
GRACE: Final = 64 << 20  # from so many on


class DamagedStream(ValueError):
    """Compressed bytes that break their format, or end too early."""


# What makes a decompressor for each stream, and the errors that one raises.
_Library = tuple[Callable[[], Any], tuple[type[Exception], ...]]


_KNOWN: Final[dict[bytes, Callable[[], _Library]]] = {
    b"\x1f\x8b": lambda: (lambda: zlib.decompressobj(wbits=31), (zlib.error,)),
    b"BZh": lambda: (bz2.BZ2Decompressor, (OSError, EOFError)),
    b"\xfd7zXZ\x00": lambda: (lzma.LZMADecompressor, (lzma.LZMAError, EOFError)),
    b"\x28\xb5\x2f\xfd": lambda: (zstd().ZstdDecompressor, (zstd().ZstdError, EOFError)),
}


class Plain:
    """A document that is not compressed."""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """Yield what ``data``, the next bytes, stand for."""
        yield data

    def finish(self) -> Iterator[bytes]:
        """Yield the rest: the document has ended."""
        yield from ()


class Inflate(Plain):
    """One compressed document, by a library; DamagedStream where it is not whole."""

    def __init__(self, make: Callable[[], Any], errors: tuple[type[Exception], ...]) -> None:
        self._make, self._errors = make, errors
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
            except self._errors as e:
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
    for magic, library in _KNOWN.items():
        if head.startswith(magic):
            return Inflate(*library())
    return Plain()
