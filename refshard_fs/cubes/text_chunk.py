"""Chunks of texts, or bytes, of any length (vlen-utf8): their number, then each text after its length. No I/O here."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy.typing as npt

_UINT32: Final = struct.Struct("<I")


def dump_texts(values: npt.NDArray[Any]) -> bytes:
    """Return a chunk of texts; ValueError if an element is neither text nor bytes."""
    flat: list[Any] = values.reshape(-1).tolist()
    try:
        return join_texts([text if isinstance(text, bytes) else text.encode() for text in flat])
    except (AttributeError, UnicodeEncodeError) as e:
        wrong = next((text for text in flat if not isinstance(text, (str, bytes))), e)
        raise ValueError(f"expected texts, found {wrong!r:.80}") from e


def join_texts(texts: Sequence[bytes]) -> bytes:
    """Return a chunk of texts, which are already encoded as UTF-8."""
    return b"".join([_UINT32.pack(len(texts)), *(part for text in texts for part in (_UINT32.pack(len(text)), text))])


def split_texts(data: bytes, start: int, count: int) -> tuple[list[bytes], int]:
    """Return the encoded texts of the chunk that begins at ``start``, and the end of the chunk.

    ValueError if the chunk is truncated, or does not have ``count`` texts.
    """
    texts = []
    try:
        (found,) = _UINT32.unpack_from(data, start)
        if found != count:
            raise ValueError(f"a chunk has {found:,} texts: expected {count:,}")
        at = start + _UINT32.size
        for _ in range(count):
            (length,) = _UINT32.unpack_from(data, at)
            at += _UINT32.size + length
            texts.append(data[at - length : at])
    except struct.error as e:
        raise ValueError(f"a chunk of texts is cut short: expected {count:,} texts in its {len(data)} bytes") from e
    if at > len(data):
        raise ValueError(f"a chunk of texts is cut short: expected {at} bytes, found {len(data)}")
    return texts, at
