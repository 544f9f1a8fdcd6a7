"""Compact JSON references read as columns, a block at a time, without an object for any of them. No I/O here.

A block is a run of members ``"key":["url",offset,length]``, ``"key":["url"]`` and ``"key":"text"``, as every writer of
reference sets spells them (or with one space after each comma and colon). Anything else in it, or an escape in a key or
a URL, and the block is not recognised: then its members have to be read in some other way. What is recognised is
exactly what a JSON reader would find.

How: the positions of the quotes cut the block into fields; the text between them is compared with what it must be;
numbers are taken eight digits at a time as 64-bit words, of which arithmetic makes values in all records at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.columns import ABSENT, WHOLE, UInt32s, UInt64s
from refshard_fs.keys import ChunkGrid

__all__ = ["Records", "Urls", "chunk_numbers", "name_starts", "runs", "scan", "stands", "tail_numbers"]

Positions: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]
Urls: TypeAlias = dict[bytes | None, int]

PAD: Final = bytes(64)  # on either side of a block, so that words may reach over its ends
LONGEST_COMPARED: Final = 512  # bytes of URLs and directories that are compared as words


def _u64(value: int) -> Any:
    return np.uint64(value)


_ONES: Final = 0x0101010101010101
_HIGH: Final = _u64(0x80 * _ONES)
_LOW7: Final = _u64(0x7F * _ONES)
_ZEROS: Final = _u64(ord("0") * _ONES)
_OVER9: Final = _u64(0x76 * _ONES)  # added to a byte above 9, sets its high bit
_8, _16, _32, _52, _64 = map(_u64, (8, 16, 32, 52, 64))
_SLASHES: Final = _u64(ord("/") * _ONES)
_TEN: Final = _u64(10)
_PAIRS: Final = _u64(0x000000FF000000FF)
_HUNDREDS: Final = _u64(100 + (1000000 << 32))
_UNITS: Final = _u64(1 + (10000 << 32))
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_EIGHT_DIGITS: Final = _u64(10**8)
# The least number of so many digits, bar the single 0.
_LEAST: Final = np.array([0, 0, *(10**n for n in range(1, 16))], np.uint64)
# The first so many bytes of a word.
_FIRST: Final = np.array([2 ** (8 * n) - 1 for n in range(9)], np.uint64)


class _Style(NamedTuple):
    """What stands between the fields: compact, or with spaces."""

    after_key: bytes  # the text from a key's closing quote to a URL's opening one,
    after_text_key: bytes  # or to a text's,
    after_record: bytes  # and from a record's "]" to the next key's opening quote,
    after_text: bytes  # or from a text's closing quote
    separator: Any  # the byte before a number, in all bytes of a word
    spaces: int


def _style(space: bytes) -> _Style:
    after = b"," + space + b'"'
    separator = _u64(after[-2] * _ONES)
    return _Style(b'":' + space + b'["', b'":' + space + b'"', b"]" + after, b'"' + after, separator, len(space))


COMPACT: Final = _style(b"")
SPACED: Final = _style(b" ")


class Records(NamedTuple):
    """Members in the order of the block: ``text[key_starts[i]:key_stops[i]]`` is a key, in UTF-8, without escapes.

    Where the target is ABSENT, the value is a text, and its closing quote is at ``value_stops[i]``.
    """

    text: bytes
    key_starts: Positions
    key_stops: Positions
    targets: UInt32s
    offsets: UInt64s
    lengths: UInt64s
    value_stops: Positions | None  # None: there are no texts

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

    def last_bytes(self) -> npt.NDArray[np.uint8]:
        """Return the last byte of each key; of an empty one, a quote."""
        return np.frombuffer(self.text, np.uint8)[self.key_stops - 1]

    def texts(self) -> dict[str, str]:
        """Return the members that are texts; ValueError where a JSON reader has to say what is wrong."""
        if self.value_stops is None:
            return {}
        chosen = np.flatnonzero(self.targets == ABSENT)
        starts, stops = self.key_starts[chosen] - 1, self.value_stops[chosen] + 1
        firsts = np.flatnonzero(np.diff(chosen, prepend=-2) != 1)  # of those that follow one another
        lasts = np.append(firsts[1:], len(chosen)) - 1
        view = memoryview(self.text)
        spans = zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True)
        found: dict[str, str] = _TEXTS.decode(b"{%b}" % b",".join([view[start:stop] for start, stop in spans]))
        return found


_TEXTS: Final = msgspec.json.Decoder(dict[str, str])


def scan(block: bytes | memoryview, urls: Urls) -> Records | None:
    """Return the members of ``block``, which begins with a quote and ends with a value; None if one is of another form.

    URLs not in ``urls`` are added to it, each with the next number.
    """
    sample = bytes(block[:4096])
    style = SPACED if b'": ["' in sample or b'": "' in sample else COMPACT
    text = b"".join((PAD, block, style.after_record[1:], PAD))
    if b"\\/" in text and b"\\\\" not in text:
        text = text.replace(b"\\/", b"/")
    characters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(characters == _QUOTE)
    escapes = np.flatnonzero(characters == _BACKSLASH) if b"\\" in text else None
    if escapes is not None:
        unescaped = _unescaped(characters, quotes)
        if unescaped is None:
            return None
        quotes = unescaped
    if len(quotes) % 4 != 1 or len(quotes) == 1:
        return None
    keys, keys_end, values, values_end, following = (quotes[i::4][: len(quotes) // 4] for i in range(5))
    is_text = values - keys_end == len(style.after_text_key) - 1
    if not is_text.any():
        chosen = None
        fits = stands(text, keys_end, style.after_key) & (values - keys_end == len(style.after_key) - 1)
    else:
        chosen = np.flatnonzero(~is_text)
        fits = stands(text, keys_end[chosen], style.after_key)
        fits &= values[chosen] - keys_end[chosen] == len(style.after_key) - 1
        of_text = np.flatnonzero(is_text)
        found = stands(text, keys_end[of_text], style.after_text_key)
        found &= stands(text, values_end[of_text], style.after_text)
        found &= following[of_text] - values_end[of_text] == len(style.after_text) - 1
        if not found.all():
            return None
    if not fits.all():
        return None
    if escapes is not None:  # which may stand in texts alone
        fields = quotes.searchsorted(escapes) - 1
        if (fields % 4 != 2).any() or not is_text[fields // 4].all():
            return None
    pick = _all if chosen is None else chosen
    values, values_end, following = values[pick], values_end[pick], following[pick]
    ranges = _ranges(text, values_end, following, style)
    if ranges is None:
        return None
    offsets, lengths = ranges
    targets = _targets(text, values + 1, values_end, urls)
    if chosen is None:
        return Records(text, keys + 1, keys_end, targets, offsets, lengths, None)
    spread = np.full(len(keys), ABSENT, np.uint32), np.zeros(len(keys), np.uint64), np.zeros(len(keys), np.uint64)
    spread[0][chosen], spread[1][chosen], spread[2][chosen] = targets, offsets, lengths
    return Records(text, keys + 1, keys_end, *spread, quotes[3::4])


_all: Final = slice(None)


def _unescaped(characters: npt.NDArray[np.uint8], quotes: Positions) -> Positions | None:
    """Return the quotes that no odd number of backslashes stands before; None where these are too many to count."""
    escaped = characters[quotes - 1] == _BACKSLASH
    doubtful = np.flatnonzero(escaped)
    for distance in range(2, len(PAD)):
        doubtful = doubtful[characters[quotes[doubtful] - distance] == _BACKSLASH]
        if not len(doubtful):
            found: Positions = quotes[~escaped]
            return found
        escaped[doubtful] ^= True
    return None


def stands(text: bytes, at: Positions, expected: bytes) -> Booleans:
    """Return whether ``expected``, of up to 8 bytes, stands at each of the places ``at``."""
    word = _words(text, at, 1)[:, 0]
    fits: Booleans = word & _FIRST[len(expected)] == _u64(int.from_bytes(expected, "little"))
    return fits


def _ranges(text: bytes, urls_end: Positions, following: Positions, style: _Style) -> tuple[UInt64s, UInt64s] | None:
    """Return offsets and lengths, between the end of each URL and the next key; None where one is no such value."""
    ends = following - (len(style.after_record) - 1)
    if not stands(text, ends, style.after_record).all():
        return None
    is_whole = ends - urls_end == 1
    if is_whole.any():
        offsets, lengths = np.zeros(len(ends), np.uint64), np.full(len(ends), WHOLE, np.uint64)
        others = np.flatnonzero(~is_whole)
        if len(others):
            found = _ranges(text, urls_end[others], following[others], style)
            if found is None:
                return None
            offsets[others], lengths[others] = found
        return offsets, lengths
    words = _words(text, ends - 16, 2)
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
    return offsets, lengths


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
        words = _words(text, starts, (longest + 7) // 8)
        shortest = int(sizes.min())
        for i in range(words.shape[1]):
            word = words[1:, i] ^ words[:-1, i]
            if 8 * i + 8 > shortest:
                word &= _FIRST[np.clip(sizes[1:] - 8 * i, 0, 8)]
            differs |= word != _u64(0)
    return np.concatenate(([0], np.flatnonzero(differs) + 1))


def _targets(text: bytes, starts: Positions, stops: Positions, urls: Urls) -> UInt32s:
    """Return the number of each URL. Those that equal the one before are told by their words alone."""
    if not len(starts):
        return np.zeros(0, np.uint32)
    firsts = runs(text, starts, stops)
    number_of = urls.setdefault
    spans = zip(starts[firsts].tolist(), stops[firsts].tolist(), strict=True)
    numbers = np.array([number_of(text[start:stop], len(urls)) for start, stop in spans], np.uint32)
    return numbers.repeat(np.diff(firsts, append=len(starts)))


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
    words = list(_words(text, stops - 8 * width, width).T)
    numbers = np.zeros(len(starts), np.uint64)
    left = remaining.astype(np.uint64)
    between = _u64(ord(separator) * _ONES)
    stride: Any = np.uint64(1)
    for dimension in reversed(range(len(counts))):
        if dimension:
            size = _bytes_after_last(_marks(words[-1], between))
            fits = (size < left) & (size < _8)
        else:
            size = left
            fits = size <= _8
        fits &= size > np.uint64(0)
        if not fits.all():
            valid &= fits
            size = np.where(fits, size, np.uint64(1))
        count = np.asarray(counts[dimension], np.uint64)
        coords, wrong = _digits(words[-1], size)
        fits = coords >= _LEAST[size.view(np.int64)]
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
        last = _words(text, stops[left] - 8 * i, 1)[:, 0]
        after = _bytes_after_last(_marks(last, _SLASHES)).view(np.int64)
        begins = stops[left] - 8 * (i - 1) - after
        here = (after < 8) & (begins > starts[left])
        found[left[here]] = begins[here]
        left = left[~here]
        left = left[stops[left] - 8 * i > starts[left]]
        if not len(left):
            break
    return found
