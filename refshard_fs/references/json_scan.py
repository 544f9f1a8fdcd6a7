r"""JSON members of a reference set read as columns, a block at a time, without a Python object for any. No I/O here.

A block is a run of members ``"key":["url",offset,length]``, ``"key":["url"]`` and ``"key":"text"``, as all writers of
reference sets spell them, or with a blank after each comma and colon. A block with anything else in it, or with an
escape like ``\u00e9``, is not taken: a JSON reader has to read it. From what is taken, it would read the same.

The positions of the quotes cut a block into keys, URLs and texts; what stands between these is compared with what it
has to be, and its numbers are read.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import WHOLE, Ranges, UInt32s, UInt64s
from refshard_fs.references.chunk_keys import Keys
from refshard_fs.references.pieces import PAD, Positions, begins_with, join_pieces, numbers_before, runs

Urls = dict[bytes | None, int]  # the number of each URL; None: the default target

# What a letter after a backslash means; 0 where that is no simple escape. The one for a backslash itself is replaced.
_MEANINGS: Final = np.zeros(256, np.uint8)
_MEANINGS[list(b'\1"/ntrbf')] = list(b'\\"/\n\t\r\b\f')
_QUOTE, _BACKSLASH = ord('"'), ord("\\")


class Members(NamedTuple):
    """The members of a block. One without a target is a text: ``length`` bytes of ``texts`` from ``offset`` on.

    The bytes between texts mean nothing.
    """

    keys: Keys
    ranges: Ranges
    texts: bytes


def scan(block: bytes | memoryview, urls: Urls) -> Members | None:
    """Return the members of ``block``, which begins with a quote and ends with a value; None if a JSON reader has to.

    URLs are added to ``urls``. Bytes that are not UTF-8 are a UnicodeDecodeError.
    """
    sample = bytes(block[:4096])
    blank = b" " if b'": ["' in sample or b'": "' in sample else b""
    text = b"".join((block, b",", blank, b'"', PAD))
    if not text.isascii():
        text.decode()
    escapes = None
    if b"\\" in text:
        escapes = _without_escapes(text)
        if escapes is None:
            return None
        text = escapes.text
    characters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(characters == _QUOTE)
    count = len(quotes) // 4
    if len(quotes) != 4 * count + 1 or not count or text.find(0) != len(text) - len(PAD):
        return None
    keys, keys_end, values, values_end, following = (quotes[i::4][:count] for i in range(5))
    is_text = values - keys_end == 2 + len(blank)
    rows = np.flatnonzero(is_text)
    if len(rows) and not (
        begins_with(text, keys_end[rows], b'":%b"' % blank).all()
        and begins_with(text, values_end[rows], b'",%b"' % blank).all()
        and (following[rows] - values_end[rows] == 2 + len(blank)).all()
    ):
        return None
    references: Any = np.flatnonzero(~is_text) if len(rows) else slice(None)
    if not (
        begins_with(text, keys_end[references], b'":%b["' % blank).all()
        and (values - keys_end == 3 + len(blank))[references].all()
    ):
        return None
    found = _ranges(text, values_end[references], following[references], blank)
    if found is None:
        return None
    marked = characters.copy()
    if escapes is not None:
        marked[escapes.places] = escapes.meanings
    marked[keys_end] = marked[values_end] = 0
    text = marked.tobytes()
    ranges = Ranges(_numbers_of(urls, text, values[references] + 1, values_end[references]), *found)
    spelled = Keys(text, keys + 1, keys_end)
    if not len(rows):
        return Members(spelled, ranges, b"")
    starts, stops = values[rows] + 1, values_end[rows]
    sizes = stops - starts
    texts = text
    if 2 * int(sizes.sum()) < len(text):  # or else it is faster to keep all of the block
        texts, starts = join_pieces(text, starts, stops), sizes.cumsum() - sizes
    members = Members(spelled, Ranges.absent(count), texts)
    members.ranges.put(references, ranges)
    members.ranges.offsets[rows], members.ranges.lengths[rows] = starts, sizes
    return members


class _Escapes(NamedTuple):
    text: bytes  # with another byte in place of each escape
    places: Positions
    meanings: npt.NDArray[np.uint8]


def _without_escapes(text: bytes) -> _Escapes | None:
    """Return the text without escapes, and what they mean; None if there are other ones than those of one letter."""
    characters = np.frombuffer(text, np.uint8)
    if characters[: -len(PAD)].min() <= 1:
        return None
    places = np.flatnonzero(characters == _BACKSLASH)
    if (characters[places + 1] == _BACKSLASH).any():
        text = text.replace(b"\\\\", b"\\\1")
        characters = np.frombuffer(text, np.uint8)
        places = np.flatnonzero(characters == _BACKSLASH)
    meanings = _MEANINGS[characters[places + 1]]
    if not meanings.all():
        return None
    replaced = characters.copy()
    replaced[places + 1] = 1
    return _Escapes(replaced.tobytes().replace(b"\\", b""), places - np.arange(len(places)), meanings)


def _ranges(text: bytes, values_end: Positions, following: Positions, blank: bytes) -> tuple[UInt64s, UInt64s] | None:
    """Return offsets and lengths, between the end of each URL and the next key; None where one is no such value."""
    step = 1 + len(blank)
    ends = following - step - 1
    if not begins_with(text, ends, b'],%b"' % blank).all():
        return None
    is_whole = ends - values_end == 1
    if is_whole.any():
        offsets, lengths = np.zeros(len(ends), np.uint64), np.full(len(ends), WHOLE, np.uint64)
        others = np.flatnonzero(~is_whole)
        if len(others):
            found = _ranges(text, values_end[others], following[others], blank)
            if found is None:
                return None
            offsets[others], lengths[others] = found
        return offsets, lengths
    last = numbers_before(text, ends)
    if last is None:
        return None
    commas = ends - last.digits - step
    first = numbers_before(text, commas)
    if (
        first is None
        or not begins_with(text, commas, b"," + blank).all()
        or not begins_with(text, values_end, b'",' + blank).all()
        or (commas - first.digits - step - 1 != values_end).any()
    ):
        return None
    return first.values, last.values


def _numbers_of(urls: Urls, text: bytes, starts: Positions, stops: Positions) -> UInt32s:
    """Return the numbers of URLs, each of which a NUL follows. Mostly many in a row are the same."""
    firsts = runs(text, starts, stops)
    spelled = join_pieces(text, starts[firsts], stops[firsts] + 1).split(b"\0")[:-1]
    fresh = [url for url in dict.fromkeys(spelled) if url not in urls]
    urls.update(zip(fresh, range(len(urls), len(urls) + len(fresh)), strict=True))
    return np.fromiter(map(urls.__getitem__, spelled), np.uint32, len(spelled)).repeat(
        np.diff(firsts, append=len(starts))
    )
