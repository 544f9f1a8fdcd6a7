"""Compact JSON references read as columns, a block at a time, without an object for any of them. No I/O here.

A block is a run of members ``"key":["url",offset,length]``, ``"key":["url"]`` and ``"key":"text"``, as every writer of
reference sets spells them (or with one space after each comma and colon). Anything else in it, or an escape in a key or
a URL, and the block is not recognised: then its members have to be read in some other way. What is recognised is
exactly what a JSON reader would find.

How: the positions of the quotes cut the block into fields; the text between them is compared with what it must be;
numbers are taken eight digits at a time as 64-bit words, of which arithmetic makes values in all records at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import ABSENT, WHOLE, Ranges, Texts, UInt32s, UInt64s
from refshard_fs.core.swar import (
    ONES,
    PAD,
    Booleans,
    Positions,
    groups_of,
    hash_of,
    hashes,
    join_pieces,
    number_before,
    runs,
    stands,
    u64,
    words_at,
)
from refshard_fs.errors import ManifestError
from refshard_fs.references.chunk_keys import Keys
from refshard_fs.references.key_table import ESCAPED, text_at

# ----------------------------------------------------------------------------------------------------
# The URLs of a reference set while it is read: each has a number, and none is an object where they are many. A URL that
# comes in two large blocks has a number in each; in the end `Urls.finish` says which numbers are of one URL.


FEW: Final = 256  # URLs of a block that are looked for one by one


class NotExpanded(Exception):
    """The URL ``text`` with this ``number`` cannot be expanded."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.number = number
        self.text = text


class _Block(NamedTuple):
    """URLs one after the other, and what is known of each."""

    text: bytes
    sizes: Positions
    hashes: UInt64s
    numbers: Positions


class Urls:
    """All URLs so far; None, the default target, may be one of them."""

    def __init__(self) -> None:
        self._by_text: dict[bytes | None, int] = {}
        self._blocks: list[_Block] = []  # of all others
        self._count = 0

    def number(self, url: bytes | None) -> int:
        """Return the number of one URL."""
        found = self._by_text.get(url)
        if found is None:
            found = self._by_text[url] = self._count
            self._count += 1
        return found

    def numbers(self, text: bytes, starts: Positions, stops: Positions) -> UInt32s:
        """Return the number of each piece of ``text``; most are the same as the one before."""
        if not len(starts):
            return np.zeros(0, np.uint32)
        firsts = runs(text, starts, stops)
        begins, ends = starts[firsts], stops[firsts]
        if len(firsts) > FEW:
            found = self._block(text, begins, ends)
        else:
            spans = zip(begins.tolist(), ends.tolist(), strict=True)
            found = np.array([self.number(text[start:stop]) for start, stop in spans], np.uint32)
        return found.repeat(np.diff(firsts, append=len(starts)))

    def _block(self, text: bytes, starts: Positions, stops: Positions) -> UInt32s:
        hashed = hashes(text, starts, stops)
        chosen, groups = groups_of(text, starts, stops, hashed)
        starts, stops = starts[chosen], stops[chosen]
        numbers = np.arange(self._count, self._count + len(chosen))
        self._blocks.append(_Block(join_pieces(text, starts, stops), stops - starts, hashed[chosen], numbers))
        groups = groups + np.uint32(self._count)
        self._count += len(chosen)
        return groups

    def expand(self, expand: Callable[[str], str]) -> UInt32s | None:
        """Expand each URL that has ``{{`` in it, once; return what each number has become, None where all stay.

        `NotExpanded`, with a number, where ``expand`` raises ManifestError.
        """
        if not any(b"{{" in text for text in (*(block.text for block in self._blocks), *filter(None, self._by_text))):
            return None
        urls, moved = self.finish()
        known: dict[bytes | None, int] = {}
        became = np.empty(len(urls), np.uint32)
        for number, url in enumerate(urls):
            if url is not None and "{{" in url:
                try:
                    url = expand(url)
                except ManifestError as e:
                    first = number if moved is None else int(np.flatnonzero(moved == number)[0])
                    raise NotExpanded(first, url) from e
            encoded = None if url is None else url.encode("utf-8", "surrogatepass")
            became[number] = known.setdefault(encoded, len(known))
        if moved is not None:
            became = became[moved]
        count, self._count = self._count, len(known)
        self._by_text = known
        self._blocks.clear()
        return None if (became == np.arange(count)).all() else became

    def finish(self) -> tuple[Texts, UInt32s | None]:
        """Return all URLs, each once, and which of them each number has become: None where all stay."""
        if not self._blocks:
            return Texts.of(self._by_text), None
        single = {url: number for url, number in self._by_text.items() if url is not None}
        sizes, hashed = np.fromiter(map(len, single), np.int64), np.fromiter(map(hash_of, single), np.uint64)
        blocks = [*self._blocks, _Block(b"".join(single), sizes, hashed, np.array([*single.values()], np.int64))]
        texts, *columns = zip(*blocks, strict=True)
        sizes, hashed, numbers = map(np.concatenate, columns)
        stops = len(PAD) + sizes.cumsum()
        starts, text = stops - sizes, b"".join((PAD, *texts, PAD))
        if single:  # in the order in which they came first
            order = np.argsort(numbers)
            starts, stops, hashed, numbers = starts[order], stops[order], hashed[order], numbers[order]
        chosen, groups = groups_of(text, starts, stops, hashed)
        starts, stops = starts[chosen], stops[chosen]
        is_whole = not single and len(chosen) == len(groups)
        data = text[len(PAD) : -len(PAD)] if is_whole else join_pieces(text, starts, stops)
        urls = Texts(np.frombuffer(data, np.uint8), (stops - starts).cumsum().view(np.uint64))
        if len(groups) == self._count:
            return urls, None if len(urls) == self._count else groups
        became = np.full(self._count, len(urls), np.uint32)  # of None, which is one of them
        became[numbers] = groups
        return Texts.joined([urls, Texts.of([None])]), became


# ----------------------------------------------------------------------------------------------------
# Blocks.


_QUOTE, _BACKSLASH, _SLASH = ord('"'), ord("\\"), ord("/")


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
    separator = u64(after[-2] * ONES)
    return _Style(b'":' + space + b'["', b'":' + space + b'"', b"]" + after, b'"' + after, separator, len(space))


COMPACT: Final = _style(b"")
SPACED: Final = _style(b" ")


class Records(NamedTuple):
    """Members in the order of the block; their keys are in UTF-8, without escapes.

    Where there is no target, the value is a text, as JSON spells it: ``text[value_starts[i]:value_stops[i]]``, with
    backslashes at ``escapes``.
    """

    keys: Keys
    ranges: Ranges
    value_starts: Positions | None = None  # None: there are no texts
    value_stops: Positions | None = None
    escapes: Positions | None = None  # None: there are none
    has_escape: Booleans | None = None  # each value

    def __len__(self) -> int:
        return self.ranges.rows

    def names(self, among: Positions) -> list[str]:
        """Return the keys of some records."""
        names = self.spelled_keys(among).decode("utf-8", "surrogatepass").split('"')[:-1]
        return names if len(names) == len(among) else list(map(self.keys.key, among.tolist()))  # a key has a quote

    def spelled_keys(self, among: Positions) -> bytes:
        """Return the keys of some records, each with a quote behind it."""
        return join_pieces(self.keys.text, self.keys.starts[among], self.keys.stops[among] + 1)

    def has(self, key: bytes) -> bool:
        """Whether there is such a key."""
        text, starts, stops = self.keys
        likely = starts[stops - starts == len(key)]
        likely = likely[stands(text, likely, key[:8])]
        return any(text.startswith(key, start) for start in likely.tolist())


def scan(block: bytes | memoryview, urls: Urls) -> Records | None:
    """Return the members of ``block``, which begins with a quote and ends with a value; None if one is of another form.

    URLs are added to ``urls``, which numbers them.
    """
    sample = bytes(block[:4096])
    style = SPACED if b'": ["' in sample or b'": "' in sample else COMPACT
    text = b"".join((PAD, block, style.after_record[1:], PAD))
    if not text.isascii():
        text.decode()  # UnicodeDecodeError where it is not UTF-8
    characters = np.frombuffer(text, np.uint8)
    escapes = has_escape = None
    if b"\\" in text:
        escapes = np.flatnonzero(characters == _BACKSLASH)
        after = characters[escapes + 1]
        if (after == _BACKSLASH).any():  # of which some do not escape what follows them
            unescaped = _unescaped(characters, np.flatnonzero(characters == _QUOTE))
            if unescaped is None:
                return None
            quotes = unescaped
        else:
            if (after == _SLASH).any():
                text = text.replace(b"\\/", b"/")
                characters = np.frombuffer(text, np.uint8)
                escapes = np.flatnonzero(characters == _BACKSLASH)
            is_quote = characters == _QUOTE
            is_quote[escapes + 1] = False
            quotes = np.flatnonzero(is_quote)
            if not len(escapes):
                escapes = None
    else:
        quotes = np.flatnonzero(characters == _QUOTE)
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
        fits_text = stands(text, keys_end[of_text], style.after_text_key)
        fits_text &= stands(text, values_end[of_text], style.after_text)
        fits_text &= following[of_text] - values_end[of_text] == len(style.after_text) - 1
        if not fits_text.all():
            return None
    if not fits.all():
        return None
    if escapes is not None:  # which may stand in texts alone
        if chosen is None:
            return None
        within = escapes.searchsorted(values_end[of_text]) - escapes.searchsorted(values[of_text])
        if int(within.sum()) != len(escapes):
            return None
        has_escape = np.zeros(len(keys), np.bool_)
        has_escape[of_text] = within > 0
    pick = _all if chosen is None else chosen
    values, values_end, following = values[pick], values_end[pick], following[pick]
    ranges = _ranges(text, values_end, following, style)
    if ranges is None:
        return None
    offsets, lengths = ranges
    targets = urls.numbers(text, values + 1, values_end)
    found, spelled = Ranges(targets, offsets, lengths), Keys(text, keys + 1, keys_end)
    if chosen is None:
        return Records(spelled, found)
    spread = Ranges.absent(len(keys))
    spread.put(chosen, found)
    return Records(spelled, spread, quotes[2::4][: len(keys)] + 1, quotes[3::4], escapes, has_escape)


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
    words = words_at(text, ends - 16, 2)
    length = number_before(words[:, 0], words[:, 1], style.separator)
    if length is None:
        return None
    lengths, digits = length
    ends = ends - digits.view(np.int64) - (1 + style.spaces)  # of the offset: where its comma stands
    words = words_at(text, ends - 16, 2)
    offset = number_before(words[:, 0], words[:, 1], style.separator)
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


# ----------------------------------------------------------------------------------------------------
# The texts among the members of a block, as the bytes that spell them, most escapes and all. No I/O here.


_SIMPLE: Final = np.array([chr(byte) in '"\\bfnrt' for byte in range(256)])  # what stands escaped in all JSON
_LIST: Final[Callable[[bytes], list[str]]] = msgspec.json.Decoder(list[str]).decode


class Irregular(Exception):
    """Something in texts that only a JSON reader can tell the meaning of."""


class BlockTexts(NamedTuple):
    """Texts in the order of the block: each is ``data[offset : offset + length]``, in UTF-8 or, if so marked, JSON."""

    rows: Positions  # of the records
    data: bytes
    offsets: UInt64s  # with ESCAPED in those that have escapes
    lengths: UInt64s

    def text(self, place: int) -> str:
        """Return one of the texts."""
        return text_at(self.data, int(self.offsets[place]), int(self.lengths[place]))


def block_texts(records: Records) -> BlockTexts | None:
    """Return the texts among records, None if there are none; `Irregular` where a JSON reader has to look at them."""
    if records.value_starts is None or records.value_stops is None:
        return None
    text = records.keys.text
    characters = np.frombuffer(text, np.uint8)
    if characters[len(PAD) : -len(PAD)].min() < ord(" "):
        raise Irregular
    rows = np.flatnonzero(records.ranges.targets == ABSENT)
    starts, stops = records.value_starts[rows], records.value_stops[rows]
    data, begins = _plain(text, starts, stops)
    offsets, lengths = begins.astype(np.uint64), (stops - starts).view(np.uint64)
    if records.escapes is not None and records.has_escape is not None:
        escaped = np.flatnonzero(records.has_escape[rows])
        if _SIMPLE[characters[records.escapes + 1]].all():
            offsets[escaped] |= np.uint64(ESCAPED)
        else:
            decoded = _decoded(text, starts[escaped], stops[escaped])
            sizes = np.fromiter(map(len, decoded), np.uint64, len(decoded))
            offsets[escaped] = np.uint64(len(data)) + sizes.cumsum() - sizes
            lengths[escaped] = sizes
            data = b"".join((data, *decoded))
    return BlockTexts(rows, data, offsets, lengths)


def _decoded(text: bytes, starts: Positions, stops: Positions) -> list[bytes]:
    """Return what pieces of ``text`` say, which stand between quotes in JSON."""
    pieces = [text[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    try:
        return list(map(str.encode, _LIST(b'["%b"]' % b'","'.join(pieces))))
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise Irregular from e


def _plain(text: bytes, starts: Positions, stops: Positions) -> tuple[bytes, Positions]:
    """Return bytes that have those pieces of ``text``, and where: the text itself, if they are most of it."""
    sizes = stops - starts
    total = int(sizes.sum())
    if 2 * total > len(text):
        return text, starts
    return join_pieces(text, starts, stops), sizes.cumsum() - sizes
