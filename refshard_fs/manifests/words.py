"""Bytes of a text as 64-bit words, from many places at a time: compared, searched and read as digits. No I/O here.

The text has `PAD` on either side, so that words may reach over its ends.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from refshard_fs.columns import UInt64s

__all__ = [
    "FIRST",
    "LEAST",
    "ONES",
    "PAD",
    "Booleans",
    "Buffer",
    "Positions",
    "bytes_after_last",
    "digits",
    "marks",
    "number_before",
    "runs",
    "stands",
    "u64",
    "words_at",
]

Buffer: TypeAlias = bytes | bytearray | memoryview
Positions: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]

PAD: Final = bytes(64)  # on either side of a block, so that words may reach over its ends
LONGEST_COMPARED: Final = 512  # bytes of URLs and directories that are compared as words


def u64(value: int) -> Any:
    """Return a 64-bit number, typed loosely: numpy's own types get in the way of arithmetic."""
    return np.uint64(value)


ONES: Final = 0x0101010101010101
_HIGH: Final = u64(0x80 * ONES)
_LOW7: Final = u64(0x7F * ONES)
_ZEROS: Final = u64(ord("0") * ONES)
_OVER9: Final = u64(0x76 * ONES)  # added to a byte above 9, sets its high bit
_8, _16, _32, _52, _64 = map(u64, (8, 16, 32, 52, 64))
_TEN: Final = u64(10)
_PAIRS: Final = u64(0x000000FF000000FF)
_HUNDREDS: Final = u64(100 + (1000000 << 32))
_UNITS: Final = u64(1 + (10000 << 32))
_EIGHT_DIGITS: Final = u64(10**8)
# The least number of so many digits, bar the single 0.
LEAST: Final = np.array([0, 0, *(10**n for n in range(1, 16))], np.uint64)
# The first so many bytes of a word.
FIRST: Final = np.array([2 ** (8 * n) - 1 for n in range(9)], np.uint64)


def words_at(text: Buffer, starts: Positions, count: int) -> UInt64s:
    """Return ``count`` 8-byte words from each of ``starts`` on, a row each."""
    size = 8 * count
    rows = np.ndarray((max(len(text) - size + 1, 0),), np.dtype((np.void, size)), text, 0, (1,))
    return rows[starts].view("<u8").reshape(len(starts), count)


def marks(words: UInt64s, byte: Any) -> UInt64s:
    """Return words with the high bit of each byte set that equals ``byte`` (given in all bytes of a word)."""
    different = words ^ byte
    marks: UInt64s = different & _LOW7
    marks += _LOW7
    marks |= different
    marks |= _LOW7
    return np.invert(marks, out=marks)


def bytes_after_last(marks: UInt64s) -> UInt64s:
    """Return how many bytes follow the last marked one; 8 and more where none is marked."""
    counts = marks.astype(np.float64).view(np.uint64)
    counts >>= _52  # the exponent: 1023 and the place of the highest bit
    np.subtract(u64(1023 + 63), counts, out=counts)
    counts >>= np.uint64(3)
    return counts


def digits(words: UInt64s, counts: UInt64s) -> tuple[UInt64s, UInt64s]:
    """Return the numbers in the last ``counts`` (up to 8) bytes of words, and not 0 where these are no digits."""
    shift = _64 - (counts << np.uint64(3))  # shifting by 64 gives 0
    values = words ^ _ZEROS
    values >>= shift
    values <<= shift
    wrong = values + _OVER9
    wrong |= values
    wrong &= _HIGH
    pairs = values >> _8
    values *= _TEN
    values += pairs
    np.right_shift(values, _16, out=pairs)
    values &= _PAIRS
    values *= _HUNDREDS
    pairs &= _PAIRS
    pairs *= _UNITS
    values += pairs
    values >>= _32
    return values, wrong


def stands(text: Buffer, at: Positions, expected: bytes) -> Booleans:
    """Return whether ``expected``, of up to 8 bytes, stands at each of the places ``at``."""
    word = words_at(text, at, 1)[:, 0]
    fits: Booleans = word & FIRST[len(expected)] == u64(int.from_bytes(expected, "little"))
    return fits


def runs(text: bytes, starts: Positions, stops: Positions) -> Positions:
    """Return where in a row of pieces of ``text`` one is another than the one before; long ones are not compared."""
    sizes = stops - starts
    longest = int(sizes.max(initial=0))
    if longest > LONGEST_COMPARED:
        return np.arange(len(sizes))
    differs = sizes[1:] != sizes[:-1]
    if longest:
        if int(starts[-1]) + longest + 8 > len(text):  # words would reach beyond the end
            text += bytes(longest + 8)
        words = words_at(text, starts, (longest + 7) // 8)
        shortest = int(sizes.min())
        for i in range(words.shape[1]):
            word = words[1:, i] ^ words[:-1, i]
            if 8 * i + 8 > shortest:
                word &= FIRST[np.clip(sizes[1:] - 8 * i, 0, 8)]
            differs |= word != u64(0)
    return np.concatenate(([0], np.flatnonzero(differs) + 1))


def number_before(low: UInt64s, high: UInt64s, separator: Any) -> tuple[UInt64s, UInt64s] | None:
    """Return the numbers (JSON: no needless zero) between ``separator`` and the end of 16 bytes, and their digits."""
    counts = bytes_after_last(marks(high, separator))
    if not counts.all():
        return None
    long = counts > np.uint64(7)
    if not long.any():
        values, wrong = digits(high, counts)
    else:
        more = bytes_after_last(marks(low, separator)) * long
        if (more > np.uint64(7)).any():
            return None
        counts = np.minimum(counts, _8)
        values, wrong = digits(high, counts)
        upper, also_wrong = digits(low, more)  # of no bytes: 0
        values += upper * _EIGHT_DIGITS
        wrong |= also_wrong
        counts += more
    if wrong.any() or (values < LEAST[counts.view(np.int64)]).any():
        return None
    return values, counts
