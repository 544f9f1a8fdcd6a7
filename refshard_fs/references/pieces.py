"""Compare, join, hash and parse thousands of pieces of one text at a time, with columns. No I/O here.

Every text must end with `PAD`: the functions read whole 64-bit words, which may reach beyond the end of a piece.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from operator import ne
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import UInt64s

Buffer: TypeAlias = bytes | bytearray | memoryview
Positions: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]

PAD: Final = bytes(512)
SEED: Final = int.from_bytes(os.urandom(8), "little")  # the seed of this process
HASHED: Final = 16384  # the most bytes of a piece that are hashed; keys have at most 4096 characters of 4 bytes

# Masks of the first n bytes of a word, for n from 0 to 8.
_FIRST: Final = np.array([2 ** (8 * n) - 1 for n in range(9)], np.uint64)
_MASK: Final = 2**64 - 1


def _read_words(text: Buffer, starts: Positions, count: int = 1) -> UInt64s:
    """Return, as a row for each of ``starts``, the ``count`` 64-bit words that begin there."""
    size = 8 * count
    rows = np.ndarray((len(text) - size + 1,), np.dtype((np.void, size)), text, 0, (1,))
    return rows[starts].view("<u8").reshape(len(starts), count)


def match_beginnings(text: Buffer, starts: Positions, expected: bytes) -> Booleans:
    """Return a mask of the ``starts`` at which the text has the bytes ``expected``, which contain no NUL."""
    fits: Any = True
    if len(expected) < 3:  # comparing bytes takes a fifth of the time of words
        for i, byte in enumerate(expected):
            fits &= np.frombuffer(text, np.uint8)[starts + i] == byte
        return np.full(len(starts), True) if fits is True else fits
    for i in range(0, len(expected), 8):
        part = expected[i : i + 8]
        words = _read_words(text, np.minimum(starts + i, len(text) - 8) if i else starts)[:, 0]
        fits &= words & _FIRST[len(part)] == np.uint64(int.from_bytes(part, "little"))
    return np.full(len(starts), True) if fits is True else fits


def find_runs(text: Buffer, starts: Positions, stops: Positions) -> Positions:
    """Return the positions of the pieces that differ from the piece before them, and the position 0."""
    sizes = stops - starts
    if len(sizes) < 2:
        return np.arange(len(sizes))
    differs: Any = sizes[1:] != sizes[:-1]
    shortest, longest = int(sizes.min()), int(sizes.max())
    if longest > len(PAD):
        pieces = [text[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        differs = np.fromiter(map(ne, pieces[1:], pieces), np.bool_, len(pieces) - 1)
    else:
        words = _read_words(text, starts, max((longest + 7) // 8, 1))
        for i in range((longest + 7) // 8):
            word = words[1:, i] ^ words[:-1, i]
            if 8 * i + 8 > shortest:
                word &= _FIRST[np.clip(sizes[1:] - 8 * i, 0, 8)]
            differs |= word != np.uint64(0)
    return np.concatenate(([0], np.flatnonzero(differs) + 1))


def join_pieces(text: Buffer, starts: Positions, stops: Positions) -> bytes:
    """Join the pieces from ``starts`` to ``stops``."""
    sizes = stops - starts
    widest, total = int(sizes.max(initial=0)), int(sizes.sum())
    if len(sizes) < 64 or widest > 64 or widest * len(sizes) > 3 * total:
        return b"".join([text[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)])
    rows: npt.NDArray[Any] = np.ndarray((len(text) - widest + 1,), np.dtype((np.void, widest)), text, 0, (1,))
    table = rows[starts].view(np.uint8).reshape(len(starts), widest)
    if widest * len(sizes) == total:
        return table.tobytes()
    return table[np.arange(widest) < sizes[:, None]].tobytes()


_TO_DIGITS: Final = np.uint64(int.from_bytes(b"0" * 8, "little"))  # XOR with this converts digits to their values
_LOW_BITS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_OVER_9: Final = np.uint64(0x7676767676767676)  # added to a byte of more than 9, this sets its high bit
_PAIRS: Final = np.uint64(0x000000FF000000FF)
_HUNDREDS: Final = np.uint64(100 + (1000000 << 32))
_UNITS: Final = np.uint64(1 + (10000 << 32))
_BIAS: Final = np.uint64(1023 + 63)  # the bias of a float's exponent, plus the number of a word's highest bit
_3, _8, _TEN, _16, _32, _52, _64 = (np.uint64(n) for n in (3, 8, 10, 16, 32, 52, 64))
# The least number with n digits; for 0 digits, and for 16 and more, a value that no number reaches.
_LEAST: Final = np.array([2**64 - 1, 0, *(10**n for n in range(1, 15)), 2**64 - 1], np.uint64)


class Numbers(NamedTuple):
    """Numbers that were parsed from a text, and how many digits each has."""

    values: UInt64s
    digits: Positions


def parse_numbers_before(text: Buffer, ends: Positions) -> Numbers | None:
    """Return the decimal numbers of up to 15 digits that end before ``ends``.

    Return None if there is no number before one of ``ends``, or if a number has leading zeros or more digits.
    """
    if len(ends) and int(ends.min()) < 16:  # words would reach beyond the beginning
        text, ends = b"".join((bytes(16), text)), ends + 16
    values, digits = _parse_last_digits(_read_words(text, ends - 8)[:, 0])
    long = np.flatnonzero(digits == 8)
    if len(long):
        upper, more = _parse_last_digits(_read_words(text, ends[long] - 16)[:, 0])
        values[long] += upper * np.uint64(10**8)
        digits[long] += more
    return None if (values < _LEAST[digits]).any() else Numbers(values, digits)


def _parse_last_digits(words: UInt64s) -> Numbers:
    """Return the numbers of up to 8 digits at the end of each word, and how many digits each has."""
    words = words ^ _TO_DIGITS
    others = words & _LOW_BITS
    others += _OVER_9
    others |= words
    others &= _HIGH_BITS
    # The exponent of a float gives the highest bit, and so the number of bytes after the last one that is not a digit.
    digits = (_BIAS - (others.astype(np.float64).view(np.uint64) >> _52)) >> _3
    np.minimum(digits, _8, out=digits)
    unused = _64 - (digits << _3)
    words >>= unused
    words <<= unused
    pairs = words >> _8
    words *= _TEN
    words += pairs
    np.right_shift(words, _16, out=pairs)
    words &= _PAIRS
    words *= _HUNDREDS
    pairs &= _PAIRS
    pairs *= _UNITS
    words += pairs
    words >>= _32
    return Numbers(words, digits.view(np.int64))


# A hash is the sum of a piece's words, each multiplied by a number that is derived from ``seed``: pieces with equal
# hashes cannot be made without the seed. Different pieces may still have equal hashes, so callers compare the bytes.


@cache
def _make_multipliers(seed: int) -> tuple[list[int], UInt64s]:
    """Return an odd number for each word of a piece and, at the end, one for its size: as a list, and as an array."""
    drawn = np.frombuffer(hashlib.shake_256(seed.to_bytes(8, "little")).digest(HASHED + 8), "<u8") | np.uint64(1)
    return drawn.tolist(), drawn


def compute_hash(piece: bytes, seed: int = SEED) -> int:
    """Return the hash of one piece, as a 64-bit number."""
    multipliers, _ = _make_multipliers(seed)
    total = len(piece) * multipliers[-1]
    for i in range(0, min(len(piece), HASHED), 8):
        word = int.from_bytes(piece[i : i + 8], "little")
        total += (word ^ (word >> 32)) * multipliers[i >> 3]
    return total & _MASK


def compute_hashes(text: Buffer, starts: Positions, stops: Positions, seed: int = SEED) -> UInt64s:
    """Return the hash of each piece."""
    _, multipliers = _make_multipliers(seed)
    sizes = stops - starts
    total: UInt64s = sizes.view(np.uint64) * multipliers[-1]
    left: Any = slice(None)
    for i in range(0, min(int(sizes.max(initial=0)), HASHED), 8):
        if i and not (longer := sizes > i).all():
            left = np.flatnonzero(longer)
        word = _read_words(text, starts[left] + i)[:, 0]
        word &= _FIRST[np.minimum(sizes[left] - i, 8)]
        word ^= word >> _32
        word *= multipliers[i >> 3]
        total[left] += word
    return total


def find_distinct(text: Buffer, starts: Positions, stops: Positions) -> tuple[Booleans, Positions]:
    """Return a mask of the pieces that equal no earlier piece; and for each piece, which of these pieces equals it.

    Equal pieces may count as different if pieces with the same hash lie between them, which is very rare.
    """
    count = len(starts)
    bits = np.uint64(count.bit_length())
    by_hash = compute_hashes(text, starts, stops) >> bits << bits | np.arange(count, dtype=np.uint64)
    by_hash.sort()  # sorting numbers takes a fraction of the time of an argsort
    places = (by_hash & (np.uint64(1) << bits) - np.uint64(1)).view(np.int64)
    by_hash >>= bits
    is_first = np.ones(count, np.bool_)
    same = np.flatnonzero(by_hash[1:] == by_hash[:-1])
    if not len(same):
        return is_first, np.arange(count)
    begins = np.ones(count, np.bool_)  # whether a group of equal pieces begins, in the order of hashes
    begins[same + 1] = False
    is_doubtful = ~begins
    is_doubtful[same] = True
    doubtful = np.flatnonzero(is_doubtful)
    begins[doubtful[find_runs(text, starts[places[doubtful]], stops[places[doubtful]])]] = True
    is_first[places[~begins]] = False
    numbers = is_first.cumsum() - 1
    numbers[places] = numbers[places[begins]].repeat(np.diff(np.flatnonzero(begins), append=count))
    return is_first, numbers
