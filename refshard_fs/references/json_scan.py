r"""Scan JSON members of a reference set to columns, a block at a time, without Python objects. No I/O here.

A block is a sequence of members ``"key":["url",offset,length]``, ``"key":["url"]`` and ``"key":"text"``, as writers of
reference sets usually write them, either without blanks or with a blank after each comma and colon. If a block has
anything else, or an escape like ``\u00e9``, `scan` returns None, and the caller uses a JSON reader, which gives equal
members.

The positions of the quotes divide a block into keys, URLs and texts. The functions check the characters between these,
and parse the numbers there.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.core.columns import WHOLE, Ranges, Texts, UInt32s, UInt64s
from refshard_fs.references.chunk_keys import Keys
from refshard_fs.references.pieces import (
    PAD,
    Buffer,
    Positions,
    find_distinct,
    find_runs,
    join_pieces,
    match_beginnings,
    parse_numbers_before,
)

# The meaning of a letter after a backslash; 0 if it is not an escape of one letter. `\\` was replaced by `\1` before.
_MEANINGS: Final = np.zeros(256, np.uint8)
_MEANINGS[list(b'\1"/ntrbf')] = list(b'\\"/\n\t\r\b\f')
_QUOTE, _BACKSLASH = ord('"'), ord("\\")


class Members(NamedTuple):
    """The members of a block, whose targets are indexes into ``urls``.

    The value of a member without a target is a text: ``length`` bytes of ``texts`` from ``offset`` on. ``texts`` may
    have other bytes between these.
    """

    keys: Keys
    ranges: Ranges
    urls: Texts
    texts: Buffer


def scan(block: bytes | memoryview) -> Members | None:
    """Scan ``block``, which begins with a quote and ends with a value; None if a JSON reader has to read it.

    Raises UnicodeDecodeError if the block is not UTF-8.
    """
    sample = bytes(block[:4096])
    blank = b" " if b'": ["' in sample or b'": "' in sample else b""
    # 16 blanks come first, so that `parse_numbers_before` need not copy the text.
    text: bytes | bytearray = b"".join((b" " * 16, block, b",", blank, b'"', PAD))
    if not text.isascii():
        text.decode()
    escapes = None
    if b"\\" in text:
        escapes = _remove_escapes(text)
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
        match_beginnings(text, keys_end[rows], b'":%b"' % blank).all()
        and match_beginnings(text, values_end[rows], b'",%b"' % blank).all()
        and (following[rows] - values_end[rows] == 2 + len(blank)).all()
    ):
        return None
    references: Any = np.flatnonzero(~is_text) if len(rows) else slice(None)
    if not (
        match_beginnings(text, keys_end[references], b'":%b["' % blank).all()
        and (values - keys_end == 3 + len(blank))[references].all()
    ):
        return None
    found = _parse_ranges(text, values_end[references], following[references], blank)
    if found is None:
        return None
    text = text if isinstance(text, bytearray) else bytearray(text)
    marked = np.frombuffer(text, np.uint8)
    if escapes is not None:
        marked[escapes.places] = escapes.meanings
    marked[keys_end] = marked[values_end] = 0
    urls, targets = _find_distinct_urls(text, values[references] + 1, values_end[references])
    ranges = Ranges(targets, *found)
    all_keys = Keys(text, keys + 1, keys_end)
    if not len(rows):
        return Members(all_keys, ranges, urls, b"")
    starts, stops = values[rows] + 1, values_end[rows]
    sizes = stops - starts
    texts: Buffer = text
    if 2 * int(sizes.sum()) < len(text):  # otherwise it is faster to keep the whole block
        texts, starts = join_pieces(text, starts, stops), sizes.cumsum() - sizes
    members = Members(all_keys, Ranges.make_absent(count), urls, texts)
    members.ranges.put(references, ranges)
    members.ranges.offsets[rows], members.ranges.lengths[rows] = starts, sizes
    return members


class _Escapes(NamedTuple):
    text: bytes | bytearray  # the text with a byte \1 in place of each escape
    places: Positions  # of these bytes
    meanings: npt.NDArray[np.uint8]  # the characters that the escapes mean


def _remove_escapes(text: bytes | bytearray) -> _Escapes | None:
    r"""Replace each escape of one letter by a byte \1; None if the text has other escapes, or the bytes \0 or \1."""
    characters = np.frombuffer(text, np.uint8)
    if characters[: -len(PAD)].min() <= 1:
        return None
    places = np.flatnonzero(characters == _BACKSLASH)
    letters = characters[places + 1]
    if (letters == _BACKSLASH).any():
        text = text.replace(b"\\\\", b"\\\1")
        characters = np.frombuffer(text, np.uint8)
        places = np.flatnonzero(characters == _BACKSLASH)
        letters = characters[places + 1]
    meanings = _MEANINGS[letters]
    if not meanings.all():
        return None
    replaced = bytearray(text)
    np.frombuffer(replaced, np.uint8)[places + 1] = 1
    places -= np.arange(len(places))
    return _Escapes(replaced.replace(b"\\", b""), places, meanings)


def _parse_ranges(
    text: Buffer, values_end: Positions, following: Positions, blank: bytes
) -> tuple[UInt64s, UInt64s] | None:
    """Parse the offset and the length between each URL's end and the next key; None if they are malformed anywhere."""
    step = 1 + len(blank)
    ends = following - step - 1
    if not match_beginnings(text, ends, b'],%b"' % blank).all():
        return None
    is_whole = ends - values_end == 1
    if is_whole.any():
        offsets, lengths = np.zeros(len(ends), np.uint64), np.full(len(ends), WHOLE, np.uint64)
        others = np.flatnonzero(~is_whole)
        if len(others):
            found = _parse_ranges(text, values_end[others], following[others], blank)
            if found is None:
                return None
            offsets[others], lengths[others] = found
        return offsets, lengths
    last = parse_numbers_before(text, ends)
    if last is None:
        return None
    commas = ends - last.digits - step
    first = parse_numbers_before(text, commas)
    if (
        first is None
        or not match_beginnings(text, commas, b"," + blank).all()
        or not match_beginnings(text, values_end, b'",' + blank).all()
        or (commas - first.digits - step - 1 != values_end).any()
    ):
        return None
    return first.values, last.values


def _find_distinct_urls(text: Buffer, starts: Positions, stops: Positions) -> tuple[Texts, UInt32s]:
    """Return the distinct URLs, and the number of each reference's URL among them."""
    begun = find_runs(text, starts, stops)  # usually many consecutive references have the same URL
    counts = np.diff(begun, append=len(starts))
    starts, stops = starts[begun], stops[begun]
    is_first, numbers = find_distinct(text, starts, stops)
    starts, stops = starts[is_first], stops[is_first]
    data = np.frombuffer(join_pieces(text, starts, stops), np.uint8)
    urls = Texts(data, (stops - starts).cumsum().view(np.uint64))
    return urls, numbers.astype(np.uint32).repeat(counts)
