"""Parquet's delta encodings of texts: by their lengths, and by what they share with the text before. No I/O here.

A text may have all of the one before it in a byte: what a few bytes make is told to the caller before it is made.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from refshard_fs.manifests.hybrid import unpacked, varint

__all__ = ["texts_by_differences", "texts_by_lengths"]

Numbers = npt.NDArray[np.int64]


def texts_by_lengths(data: bytes, at: int, count: int) -> list[bytes]:
    """Return ``count`` texts from ``at`` on (DELTA_LENGTH_BYTE_ARRAY); ValueError if they are not there."""
    lengths, at = _lengths(data, at, count)
    ends = at + np.cumsum(lengths)
    if count and int(ends[-1]) > len(data):
        raise ValueError("texts are longer than their page")
    return [data[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]


def texts_by_differences(data: bytes, at: int, count: int, take: Callable[[int], object]) -> list[bytes]:
    """Return ``count`` texts (DELTA_BYTE_ARRAY); ``take`` is told how many bytes they have, and raises if too many."""
    shared, at = _lengths(data, at, count)
    rest = texts_by_lengths(data, at, count)
    take(int(shared.sum()))
    texts: list[bytes] = []
    last = b""
    for size, text in zip(shared.tolist(), rest, strict=True):
        if size > len(last):
            raise ValueError("a text shares more than there is of the one before")
        last = last[:size] + text
        texts.append(last)
    return texts


def _lengths(data: bytes, at: int, count: int) -> tuple[Numbers, int]:
    """Return ``count`` lengths (DELTA_BINARY_PACKED), and where what follows them begins."""
    block, at = varint(data, at)
    parts, at = varint(data, at)
    total, at = varint(data, at)
    first, at = _signed(data, at)
    if total != count or not parts or not block or block % (8 * parts):
        raise ValueError("lengths are not packed as they ought to be")
    size = block // parts
    deltas = [np.array([first][:count], np.int64)]
    left = count - 1
    while left > 0:
        least, at = _signed(data, at)
        widths, at = data[at : at + parts], at + parts
        for width in widths[: -(-left // size)]:
            many, step = min(size, left), size * width // 8
            if width > 32 or at + step > len(data):
                raise ValueError("lengths of too many bits, or of more than there are")
            deltas.append(unpacked(data[at : at + step], width, many).astype(np.int64) + least)
            at += step
            left -= many
        if at > len(data):
            raise ValueError("lengths have no end")
    lengths = np.cumsum(np.concatenate(deltas))
    if count and not 0 <= int(lengths.min()) <= int(lengths.max()) < 1 << 31:
        raise ValueError("a text of an impossible length")
    return lengths, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = varint(data, at)
    return (value >> 1) ^ -(value & 1), at
