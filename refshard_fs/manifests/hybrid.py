"""Numbers of few bits, as Parquet packs them: one after the other, or in turns with runs of one. No I/O here."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["hybrid", "unpacked", "varint"]

_WHOLE: Final[dict[int, np.dtype[Any]]] = {8: np.dtype("u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4")}  # by bits
_PACKED: Final = -1

Numbers = npt.NDArray[Any]


def hybrid(data: bytes, at: int, width: int, count: int) -> Numbers:
    """Return ``count`` numbers of ``width`` bits, which begin ``at`` a place of ``data``; ValueError if they do not."""
    if not 0 <= width <= 32:
        raise ValueError(f"numbers of {width} bits")
    runs: list[tuple[int, int]] = []  # how many there are of which number
    packed: list[bytes] = []
    left = count
    while left > 0:
        header, at = varint(data, at)
        if header & 1:
            many, size, number = (header >> 1) * 8, (header >> 1) * width, _PACKED
            packed.append(data[at : at + size])
        else:
            many, size = header >> 1, (width + 7) // 8
            number = int.from_bytes(data[at : at + size], "little")
        at += size
        if not many or at > len(data):
            raise ValueError("a run of no numbers, or of more than there are bytes")
        runs.append((min(many, left), number))
        left -= many
    if len(runs) == 1 and packed:
        return unpacked(packed[0], width, count)
    out = np.empty(count, np.uint32)
    numbers = unpacked(b"".join(packed), width, sum(many for many, number in runs if number == _PACKED))
    start = taken = 0
    for many, number in runs:
        if number == _PACKED:
            out[start : start + many] = numbers[taken : taken + many]
            taken += many
        else:
            out[start : start + many] = number
        start += many
    return out


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of 32 bits at most, and where the next begins."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number has no end")


def unpacked(data: bytes, width: int, count: int) -> Numbers:
    """Return the first ``count`` numbers of ``width`` bits, of which ``data`` has as many."""
    if width in _WHOLE:
        return np.frombuffer(data, _WHOLE[width], count)
    if width == 1:
        return np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little")
    # Where each begins, in bits: it is in the word that begins with the same byte.
    first = np.arange(count, dtype=np.uint64) * np.uint64(width)
    words: Numbers = np.ndarray(len(data) + 1, "<u8", data + bytes(8), strides=(1,))
    out: Numbers = (words[first >> np.uint64(3)] >> (first & np.uint64(7))) & np.uint64((1 << width) - 1)
    return out
