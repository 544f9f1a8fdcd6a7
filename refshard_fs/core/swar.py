"""Bytes of a text as 64-bit words, from many places at a time: compared, searched and read as digits. No I/O here.

The text has `PAD` on either side, so that words may reach over its ends.
"""

from __future__ import annotations

import os
from functools import cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import UInt32s, UInt64s

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


# ----------------------------------------------------------------------------------------------------
# Pieces of a text told apart by 64-bit hashes, a hundred thousand at a time. No I/O here.
#
# A hash is a sum of the piece's 64-bit words, each multiplied by a number drawn from ``seed``: who does not know the
# seed cannot make pieces that have the same. Pieces with the same hash may differ all the same; whoever uses hashes
# compares the bytes.


SEED: Final = int.from_bytes(os.urandom(8), "little")  # of this process
WORDS: Final = 64  # of longer pieces the hash is a keyed digest

_MASK: Final = 2**64 - 1


@cache
def _multipliers(seed: int) -> tuple[list[int], UInt64s]:
    """Return a number for each word, and one for the size: odd, so that no word is lost."""
    found = []
    for i in range(WORDS + 1):
        digest = blake2b(i.to_bytes(8, "little"), digest_size=8, key=seed.to_bytes(8, "little")).digest()
        found.append(int.from_bytes(digest, "little") | 1)
    return found, np.array(found, np.uint64)


def hash_of(piece: bytes, seed: int = SEED) -> int:
    """Return the hash of one piece."""
    size = len(piece)
    if size > 8 * WORDS:
        return int.from_bytes(blake2b(piece, digest_size=8, key=seed.to_bytes(8, "little")).digest(), "little")
    multipliers, _ = _multipliers(seed)
    total = size * multipliers[WORDS]
    for i in range(0, size, 8):
        word = int.from_bytes(piece[i : i + 8], "little")
        total += (word ^ (word >> 32)) * multipliers[i >> 3]
    return total & _MASK


def hashes(text: bytes, starts: Positions, stops: Positions, seed: int = SEED) -> UInt64s:
    """Return the hash of each piece of ``text``, which has `PAD` on either side."""
    sizes = stops - starts
    _, multipliers = _multipliers(seed)
    total: UInt64s = sizes.view(np.uint64) * multipliers[WORDS]
    longest = int(sizes.max(initial=0))
    long = np.flatnonzero(sizes > 8 * WORDS) if longest > 8 * WORDS else sizes[:0]
    if len(long):
        sizes = sizes.copy()
        sizes[long], longest = 0, 8 * WORDS
    left: Any = slice(None)
    begins, counts = starts, sizes
    for i in range((longest + 7) // 8):
        if i:
            remain = counts > 8 * i
            if not remain.all():
                left = np.flatnonzero(remain) if isinstance(left, slice) else left[remain]
                begins, counts = begins[remain], counts[remain]
        word = words_at(text, begins + 8 * i, 1)[:, 0]
        word &= FIRST[np.minimum(counts - 8 * i, 8)]
        word ^= word >> _32
        word *= multipliers[i]
        total[left] += word
    for place in long.tolist():
        total[place] = hash_of(text[starts[place] : stops[place]], seed)
    return total


class Groups(NamedTuple):
    """Pieces in groups of equals: the first of each group, in their order, and the group of each piece."""

    firsts: Positions
    groups: UInt32s


def groups_of(text: bytes, starts: Positions, stops: Positions, hashes: UInt64s) -> Groups:
    """Return pieces of ``text``, which has `PAD` on either side, in groups, by way of their ``hashes``."""
    found = _by_hash(hashes)
    first = found.firsts[found.groups]
    others = np.flatnonzero(first != np.arange(len(first)))
    if _are_same(text, starts[others], stops[others], starts[first[others]], stops[first[others]]):
        return found
    places: dict[bytes, int] = {}
    spans = zip(starts.tolist(), stops.tolist(), strict=True)
    groups = np.array([places.setdefault(text[start:stop], len(places)) for start, stop in spans], np.uint32)
    return Groups(np.unique(groups, return_index=True)[1], groups)


def _by_hash(hashes: UInt64s) -> Groups:
    """Return hashes in groups. Only their highest bits count, 40 for a million: what is equal is to be compared."""
    count = len(hashes)
    bits = u64(max(count - 1, 1).bit_length())
    rows = np.arange(count, dtype=np.uint64)
    # Sorting numbers takes a fraction of what it takes to sort their places by them.
    packed = hashes >> bits << bits
    packed |= rows
    packed.sort()
    high = packed >> bits
    begins = np.flatnonzero(np.concatenate((np.ones(min(count, 1), np.bool_), high[1:] != high[:-1])))
    if len(begins) == count:
        return Groups(rows.view(np.int64), rows.astype(np.uint32))
    packed &= (u64(1) << bits) - u64(1)
    members = packed.view(np.int64)
    firsts = members[begins]
    is_first = np.zeros(count, np.bool_)
    is_first[firsts] = True
    ranks = (np.cumsum(is_first) - 1).astype(np.uint32)
    groups = np.empty(count, np.uint32)
    groups[members] = ranks[firsts].repeat(np.diff(begins, append=count))
    return Groups(np.flatnonzero(is_first), groups)


def _are_same(text: bytes, starts: Positions, stops: Positions, starts_2: Positions, stops_2: Positions) -> bool:
    """Whether each piece is the same as another one of the text."""
    sizes = stops - starts
    if (sizes != stops_2 - starts_2).any():
        return False
    left = np.arange(len(sizes))
    for i in range(0, min(int(sizes.max(initial=0)), 8 * WORDS), 8):
        left = left[sizes[left] > i]
        different = words_at(text, starts[left] + i, 1)[:, 0] ^ words_at(text, starts_2[left] + i, 1)[:, 0]
        different &= FIRST[np.minimum(sizes[left] - i, 8)]
        if different.any():
            return False
    long = np.flatnonzero(sizes > 8 * WORDS).tolist()
    return all(text[starts[i] : stops[i]] == text[starts_2[i] : stops_2[i]] for i in long)


def join_pieces(text: bytes, starts: Positions, stops: Positions) -> bytes:
    """Return pieces of ``text``, which has `PAD` behind it, one after the other."""
    sizes = stops - starts
    widest, total = int(sizes.max(initial=0)), int(sizes.sum())
    if len(sizes) < 64 or widest > 64 or widest * len(sizes) > 3 * total:
        return b"".join([text[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)])
    rows: npt.NDArray[Any] = np.ndarray((len(text) - widest + 1,), np.dtype((np.void, widest)), text, 0, (1,))
    table = rows[starts].view(np.uint8).reshape(len(starts), widest)
    if widest * len(sizes) == total:
        return table.tobytes()
    return table[np.arange(widest) < sizes[:, None]].tobytes()
