"""Chunk keys among the keys of a text read as numbers in their grids, all at once. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from refshard_fs.columns import UInt64s
from refshard_fs.keys import ChunkGrid
from refshard_fs.manifests.json_fast import Records
from refshard_fs.manifests.words import (
    LEAST,
    ONES,
    Booleans,
    Positions,
    bytes_after_last,
    digits,
    marks,
    stands,
    u64,
    words_at,
)

__all__ = ["chunk_numbers", "name_starts", "tail_numbers"]

_SLASHES: Final = u64(ord("/") * ONES)
_8, _64 = u64(8), u64(64)


def chunk_numbers(
    records: Records, among: Positions | None, prefix: bytes, grid: ChunkGrid
) -> tuple[UInt64s, Booleans]:
    """Return the numbers in ``grid`` of keys, and which of them are valid: the others are no chunks of it.

    ``prefix`` is what keys of the array begin with ("c" included), and ``among`` the records to look at (None: all).
    """
    starts, stops = records.key_starts, records.key_stops
    if among is not None:
        starts, stops = starts[among], stops[among]
    valid = stops - starts > len(prefix)
    for i in range(0, len(prefix), 8):
        valid &= stands(records.text, starts + i, prefix[i : i + 8])
    numbers, fit = tail_numbers(records.text, starts + len(prefix), stops, grid.encoding.separator, grid.counts)
    fit &= valid
    return numbers, fit


def tail_numbers(
    text: bytes, starts: Positions, stops: Positions, separator: str, counts: Sequence[Any]
) -> tuple[UInt64s, Booleans]:
    """Return the numbers of chunks in C order by coordinates with ``separator`` between them, and which are valid.

    ``counts`` are the chunks along each dimension: one number, or one for each of the keys.
    """
    remaining = stops - starts
    valid = remaining > 0
    width = min(4, -(-int(remaining.max(initial=1)) // 8)) if counts else 1
    valid &= remaining <= 8 * width
    # The tail's last bytes, at hand as the high end of the last word.
    words = list(words_at(text, stops - 8 * width, width).T)
    numbers = np.zeros(len(starts), np.uint64)
    left = remaining.astype(np.uint64)
    between = u64(ord(separator) * ONES)
    stride: Any = np.uint64(1)
    for dimension in reversed(range(len(counts))):
        if dimension:
            size = bytes_after_last(marks(words[-1], between))
            fits = (size < left) & (size < _8)
        else:
            size = left
            fits = size <= _8
        fits &= size > np.uint64(0)
        if not fits.all():
            valid &= fits
            size = np.where(fits, size, np.uint64(1))
        count = np.asarray(counts[dimension], np.uint64)
        coords, wrong = digits(words[-1], size)
        fits = coords >= LEAST[size.view(np.int64)]
        fits &= coords < count
        fits &= wrong == 0
        valid &= fits
        coords *= stride
        numbers += coords
        stride = stride * count
        if dimension:
            taken = size + np.uint64(1)
            left -= taken
            taken <<= np.uint64(3)
            back = _64 - taken
            for i in range(width - 1, 0, -1):
                words[i] = (words[i] << taken) | (words[i - 1] >> back)
            words[0] = words[0] << taken
    if not counts:
        valid[:] = False
    return numbers, valid


def name_starts(text: bytes, starts: Positions, stops: Positions) -> Positions:
    """Return where the last name of each key begins; where that is too far from its end, the key's own beginning."""
    found = starts.copy()
    left = np.arange(len(starts))
    for i in range(1, 5):
        last = words_at(text, stops[left] - 8 * i, 1)[:, 0]
        after = bytes_after_last(marks(last, _SLASHES)).view(np.int64)
        begins = stops[left] - 8 * (i - 1) - after
        here = (after < 8) & (begins > starts[left])
        found[left[here]] = begins[here]
        left = left[~here]
        left = left[stops[left] - 8 * i > starts[left]]
        if not len(left):
            break
    return found
