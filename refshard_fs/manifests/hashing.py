"""Pieces of a text told apart by 64-bit hashes, a hundred thousand at a time. No I/O here.

A hash is a sum of the piece's 64-bit words, each multiplied by a number drawn from ``seed``: who does not know the
seed cannot make pieces that have the same. Pieces with the same hash may differ all the same; whoever uses hashes
compares the bytes.
"""

from __future__ import annotations

import os
from functools import cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.columns import UInt32s, UInt64s
from refshard_fs.manifests.words import FIRST, Booleans, Positions, u64, words_at

__all__ = ["SEED", "Groups", "alike", "gathered", "grouped", "hash_of", "hashes"]

SEED: Final = int.from_bytes(os.urandom(8), "little")  # of this process
WORDS: Final = 64  # of longer pieces the hash is a keyed digest

_MASK: Final = 2**64 - 1
_32: Final = u64(32)


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
    """Return the hash of each piece of ``text``, which has `words.PAD` on either side."""
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
    """Hashes in groups of equals: the first of each group, in their order, and the group of each hash."""

    firsts: Positions
    groups: UInt32s


def grouped(keyed: UInt64s) -> Groups:
    """Return hashes in groups. Only their highest bits count, 40 for a million: what is equal is to be compared."""
    count = len(keyed)
    bits = u64(max(count - 1, 1).bit_length())
    rows = np.arange(count, dtype=np.uint64)
    # Sorting numbers takes a fraction of what it takes to sort their places by them.
    packed = keyed >> bits << bits
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


def alike(
    text: bytes, starts: Positions, other: bytes, others: Positions, sizes: Positions, longest: int = 8 * WORDS
) -> Booleans:
    """Return which pieces of ``text`` are those of ``other`` that have the same ``sizes``; both have `words.PAD`."""
    same = np.ones(len(sizes), np.bool_)
    most = int(sizes.max(initial=0))
    left = np.arange(len(sizes))
    for i in range((min(most, longest) + 7) // 8):
        left = left[sizes[left] > 8 * i]
        different = words_at(text, starts[left] + 8 * i, 1)[:, 0] ^ words_at(other, others[left] + 8 * i, 1)[:, 0]
        different &= FIRST[np.minimum(sizes[left] - 8 * i, 8)]
        same[left] &= different == u64(0)
    for i in np.flatnonzero(sizes > longest).tolist() if most > longest else ():
        one, two, size = int(starts[i]), int(others[i]), int(sizes[i])
        same[i] = text[one : one + size] == other[two : two + size]
    return same


def gathered(text: bytes, starts: Positions, stops: Positions) -> bytes:
    """Return pieces of ``text``, which has `words.PAD` behind it, one after the other."""
    sizes = stops - starts
    widest, total = int(sizes.max(initial=0)), int(sizes.sum())
    if len(sizes) < 64 or widest > 64 or widest * len(sizes) > 3 * total:
        return b"".join([text[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)])
    rows: npt.NDArray[Any] = np.ndarray((len(text) - widest + 1,), np.dtype((np.void, widest)), text, 0, (1,))
    table = rows[starts].view(np.uint8).reshape(len(starts), widest)
    if widest * len(sizes) == total:
        return table.tobytes()
    return table[np.arange(widest) < sizes[:, None]].tobytes()
