"""Compressed streams made plain, by the libraries of Python, and no further than they may be. No I/O here."""

from __future__ import annotations

import importlib
import lzma
import sys
import zlib
from typing import Any


def zstd() -> Any:
    """Return the module: from 3.14 on it is in the library, before that in backports. Few sources need it."""
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def errors() -> tuple[type[Exception], ...]:
    """Return what decompressors raise where their input is damaged."""
    return (zlib.error, OSError, EOFError, lzma.LZMAError, zstd().ZstdError)


def decompressed(stream: Any, data: bytes, most: int, *, has_end: bool = True) -> bytes:
    """Return what ``data`` stands for by ``stream``, a decompressor of zlib, bz2, lzma or zstd: ``most`` bytes at most.

    Raises ValueError where the data are damaged, hold more, or (unless it need not be marked) do not reach their end.
    """
    parts: list[bytes] = []
    left = most + 1
    try:
        while left and not stream.eof:
            parts.append(stream.decompress(data, left))
            data = getattr(stream, "unconsumed_tail", b"")  # of zlib; others keep it
            left -= len(parts[-1])
            if not parts[-1]:
                break
    except errors() as e:
        raise ValueError(f"its compressed bytes are damaged: {e}") from e
    if not left or (has_end and not stream.eof):
        raise ValueError(f"its compressed bytes do not end after {most} bytes: they are cut short, or hold more")
    return b"".join(parts)
