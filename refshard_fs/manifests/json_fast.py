"""Compact JSON references read as columns, a block at a time, without an object for any of them. No I/O here.

A block is a run of members ``"key":["url",offset,length]``, or of ``"key":["url"]``, as every writer of reference sets
spells them (or with one space after each comma and colon). Anything else in it, and the block is not recognised: then
its members have to be read in some other way. What is recognised is exactly what a JSON reader would find.

How: the positions of the quotes cut the block into fields; the text between them is compared with what it must be;
numbers are taken eight digits at a time as 64-bit words, of which arithmetic makes values in all records at once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from refshard_fs.columns import WHOLE, UInt32s, UInt64s
from refshard_fs.keys import ChunkGrid

__all__ = ["Records", "Urls", "chunk_numbers", "scan"]

Positions: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]
Urls: TypeAlias = dict[bytes | None, int]

PAD: Final = bytes(64)  # on either side of a block, so that words may reach over its ends
LONGEST_URL: Final = 512  # bytes, of those that are compared as words


def _u64(value: int) -> Any:
    return np.uint64(value)


_ONES: Final = 0x0101010101010101
_HIGH: Final = _u64(0x80 * _ONES)
_LOW7: Final = _u64(0x7F * _ONES)
_ZEROS: Final = _u64(ord("0") * _ONES)
_OVER9: Final = _u64(0x76 * _ONES)  # added to a byte above 9, sets its high bit
_8, _16, _32, _52, _64 = map(_u64, (8, 16, 32, 52, 64))
_TEN: Final = _u64(10)
_PAIRS: Final = _u64(0x000000FF000000FF)
_HUNDREDS: Final = _u64(100 + (1000000 << 32))
_UNITS: Final = _u64(1 + (10000 << 32))
_EIGHT_DIGITS: Final = _u64(10**8)
# The least number of so many digits, bar the single 0.
_LEAST: Final = np.array([0, 0, *(10**n for n in range(1, 16))], np.uint64)
# The first so many bytes of a word.
_FIRST: Final = np.array([2 ** (8 * n) - 1 for n in range(9)], np.uint64)


class _Style(NamedTuple):
    """What stands between the fields: compact, or with spaces."""

    after_key: int  # the text from a key's closing quote to the URL's opening one, as a word,
    after_key_length: int
    after_record: int  # and from a record's "]" to the next key's opening quote
    after_record_length: int
    separator: Any  # the byte before a number, in all bytes of a word
    spaces: int
    end: bytes


def _style(space: bytes) -> _Style:
    key, record = b'":' + space + b'["', b"]," + space + b'"'
    return _Style(
        int.from_bytes(key, "little"),
        len(key),
        int.from_bytes(record, "little"),
        len(record),
        _u64((b"," + space)[-1] * _ONES),
        len(space),
        record[1:],
    )


COMPACT: Final = _style(b"")
SPACED: Final = _style(b" ")


class Records(NamedTuple):
    """References in the order of the block: ``text[key_starts[i]:key_stops[i]]`` is a key, in UTF-8."""

    text: bytes
    key_starts: Positions
    key_stops: Positions
    targets: UInt32s
    offsets: UInt64s
    lengths: UInt64s

    def __len__(self) -> int:
        return len(self.targets)

    def key(self, record: int) -> str:
        """Return one key; ValueError if it is not UTF-8."""
        return self.text[self.key_starts[record] : self.key_stops[record]].decode()

    def keys(self, among: Positions) -> list[str]:
        """Return the keys of some records; ValueError if one is not UTF-8."""
        starts = self.key_starts[among]
        sizes = self.key_stops[among] - starts + 1  # with the quote that follows, here a separator
        ends = sizes.cumsum()
        places = np.arange(ends[-1] if len(ends) else 0)
        places += (starts - ends + sizes).repeat(sizes)
        found = np.frombuffer(self.text, np.uint8)[places].tobytes().decode().split('"')
        del found[-1]
        return found


def scan(block: bytes | memoryview, urls: Urls) -> Records | None:
    """Return the references of ``block``, which begins with a quote and ends with "]"; None if it is not of this form.

    URLs not in ``urls`` are added to it, each with the next number.
    """
    style = SPACED if b'": ["' in bytes(block[:4096]) else COMPACT
    text = b"".join((PAD, block, style.end, PAD))
    if b"\\" in text:
        if b"\\\\" in text:
            return None
        text = text.replace(b"\\/", b"/")
        if b"\\" in text:
            return None
    quotes = np.flatnonzero(np.frombuffer(text, np.uint8) == ord('"'))
    if len(quotes) % 4 != 1 or len(quotes) == 1:
        return None
    keys, keys_end, urls_start, urls_end, following = (quotes[i::4][: len(quotes) // 4] for i in range(5))
    if (urls_start - keys_end != style.after_key_length - 1).any():
        return None
    after_key = _words(text, keys_end, 1)[:, 0] & _u64(2 ** (8 * style.after_key_length) - 1)
    if (after_key != _u64(style.after_key)).any():
        return None
    if int(following[0]) - int(urls_end[0]) == style.after_record_length:
        return _wholes(text, quotes, style, urls)
    ends = following - (style.after_record_length - 1)
    words = _words(text, ends - 16, 3)
    after_record = words[:, 2] & _u64(2 ** (8 * style.after_record_length) - 1)
    if (after_record != _u64(style.after_record)).any():
        return None
    length = _number_before(words[:, 0], words[:, 1], style.separator)
    if length is None:
        return None
    lengths, digits = length
    ends = ends - digits.view(np.int64) - (1 + style.spaces)  # of the offset: where its comma stands
    words = _words(text, ends - 16, 2)
    offset = _number_before(words[:, 0], words[:, 1], style.separator)
    if offset is None:
        return None
    offsets, digits = offset
    if (ends - digits.view(np.int64) - (2 + style.spaces) != urls_end).any():
        return None
    if style.spaces:
        characters = np.frombuffer(text, np.uint8)
        if (characters[ends] != ord(",")).any() or (characters[urls_end + 1] != ord(",")).any():
            return None
    targets = _targets(text, urls_start + 1, urls_end, urls)
    return Records(text, keys + 1, keys_end, targets, offsets, lengths)


def _wholes(text: bytes, quotes: Positions, style: _Style, urls: Urls) -> Records | None:
    """Return records of whole files, ``"key":["url"]``, if that is what the block is made of."""
    keys, keys_end, urls_start, urls_end, following = (quotes[i::4][: len(quotes) // 4] for i in range(5))
    if (following - urls_end != style.after_record_length).any():
        return None
    after = _words(text, urls_end + 1, 1)[:, 0] & _u64(2 ** (8 * style.after_record_length) - 1)
    if (after != _u64(style.after_record)).any():
        return None
    targets = _targets(text, urls_start + 1, urls_end, urls)
    offsets, lengths = np.zeros(len(keys), np.uint64), np.full(len(keys), WHOLE, np.uint64)
    return Records(text, keys + 1, keys_end, targets, offsets, lengths)


def _words(text: bytes, starts: Positions, count: int) -> UInt64s:
    """Return ``count`` 8-byte words from each of ``starts`` on, a row each."""
    size = 8 * count
    rows = np.ndarray((len(text) - size + 1,), np.dtype((np.void, size)), text, 0, (1,))
    return rows[starts].view("<u8").reshape(len(starts), count)


def _marks(words: UInt64s, byte: Any) -> UInt64s:
    """Return words with the high bit of each byte set that equals ``byte`` (given in all bytes of a word)."""
    different = words ^ byte
    marks: UInt64s = different & _LOW7
    marks += _LOW7
    marks |= different
    marks |= _LOW7
    return np.invert(marks, out=marks)


def _bytes_after_last(marks: UInt64s) -> UInt64s:
    """Return how many bytes follow the last marked one; 8 and more where none is marked."""
    counts = marks.astype(np.float64).view(np.uint64)
    counts >>= _52  # the exponent: 1023 and the place of the highest bit
    np.subtract(_u64(1023 + 63), counts, out=counts)
    counts >>= np.uint64(3)
    return counts


def _digits(words: UInt64s, counts: UInt64s) -> tuple[UInt64s, UInt64s]:
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


def _number_before(low: UInt64s, high: UInt64s, separator: Any) -> tuple[UInt64s, UInt64s] | None:
    """Return the numbers (JSON: no needless zero) between ``separator`` and the end of 16 bytes, and their digits."""
    counts = _bytes_after_last(_marks(high, separator))
    if not counts.all():
        return None
    long = counts > np.uint64(7)
    if not long.any():
        values, wrong = _digits(high, counts)
    else:
        more = _bytes_after_last(_marks(low, separator)) * long
        if (more > np.uint64(7)).any():
            return None
        counts = np.minimum(counts, _8)
        values, wrong = _digits(high, counts)
        upper, also_wrong = _digits(low, more)  # of no bytes: 0
        values += upper * _EIGHT_DIGITS
        wrong |= also_wrong
        counts += more
    if wrong.any() or (values < _LEAST[counts.view(np.int64)]).any():
        return None
    return values, counts


def _targets(text: bytes, starts: Positions, stops: Positions, urls: Urls) -> UInt32s:
    """Return the number of each URL. Those that equal the one before are told by their words alone."""
    sizes = stops - starts
    longest = int(sizes.max())
    if longest > LONGEST_URL or longest == 0 or len(sizes) == 1:
        firsts = np.arange(len(sizes))
    else:
        words = _words(text, starts, (longest + 7) // 8) if stops[-1] + longest < len(text) else None
        if words is None:  # the last ones lie so near to the end that words would reach beyond
            text += bytes(longest)
            words = _words(text, starts, (longest + 7) // 8)
        shortest = int(sizes.min())
        differs = sizes[1:] ^ sizes[:-1]
        for i in range(words.shape[1]):
            word = words[1:, i] ^ words[:-1, i]
            if 8 * i + 8 > shortest:
                word &= _FIRST[np.clip(sizes[1:] - 8 * i, 0, 8)]
            differs |= word.view(np.int64)
        firsts = np.flatnonzero(differs) + 1
        firsts = np.concatenate(([0], firsts))
    number_of = urls.setdefault
    spans = zip(starts[firsts].tolist(), stops[firsts].tolist(), strict=True)
    numbers = np.array([number_of(text[start:stop], len(urls)) for start, stop in spans], np.uint32)
    if len(firsts) == len(sizes):
        return numbers
    return numbers.repeat(np.diff(firsts, append=len(sizes)))


def chunk_numbers(
    records: Records, among: Positions | None, prefix: bytes, grid: ChunkGrid
) -> tuple[UInt64s, Booleans]:
    """Return the numbers in ``grid`` of keys, and which of them are valid: the others are no chunks of it.

    ``prefix`` is what keys of the array begin with ("c" included), and ``among`` the records to look at (None: all).
    """
    starts, stops = records.key_starts, records.key_stops
    if among is not None:
        starts, stops = starts[among], stops[among]
    remaining = stops - starts - len(prefix)
    valid = remaining > 0
    for i in range(0, len(prefix), 8):
        part = prefix[i : i + 8]
        word = _words(records.text, starts + i, 1)[:, 0] & _FIRST[len(part)]
        valid &= word == _u64(int.from_bytes(part, "little"))
    counts = grid.counts
    width = min(4, -(-int(remaining.max(initial=1)) // 8)) if counts else 1
    valid &= remaining <= 8 * width
    # The tail's last bytes, at hand as the high end of the last word.
    words = list(_words(records.text, stops - 8 * width, width).T)
    numbers = np.zeros(len(starts), np.uint64)
    left = remaining.astype(np.uint64)
    separator = _u64(ord(grid.encoding.separator) * _ONES)
    stride = 1
    for dimension in reversed(range(len(counts))):
        if dimension:
            size = _bytes_after_last(_marks(words[-1], separator))
            fits = (size < left) & (size < _8)
        else:
            size = left
            fits = size <= _8
        fits &= size > np.uint64(0)
        if not fits.all():
            valid &= fits
            size = np.where(fits, size, np.uint64(1))
        coords, wrong = _digits(words[-1], size)
        fits = coords >= _LEAST[size.view(np.int64)]
        fits &= coords < np.uint64(counts[dimension])
        fits &= wrong == 0
        valid &= fits
        coords *= np.uint64(stride)
        numbers += coords
        stride *= counts[dimension]
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
