"""Columns as nearly every writer of reference sets has them, made of their pages with numpy. No I/O here.

Parquet's own readers take longer to begin with a file than it takes to read such columns: one group of rows, whole
numbers, texts and bytes, plain or by a dictionary. Whatever else there is, and whatever is damaged, is `Unusual`: it is
for pyarrow to read, or to refuse.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.formats.kerchunk_json.decompress import zstd_size
from refshard_fs.formats.kerchunk_parquet.page_guard import (
    DATA,
    DATA_V2,
    DICTIONARY,
    WIDTHS,
    Chunk,
    Encoding,
    Footer,
    Leaf,
    Page,
    Room,
    TooMuch,
    Type,
    pages,
)

__all__ = [
    "Booleans",
    "Column",
    "Numbers",
    "Unusual",
    "hybrid",
    "texts_by_differences",
    "texts_by_lengths",
    "unpacked",
    "usual_columns",
    "varint",
]

# ----------------------------------------------------------------------------------------------------
# Numbers of few bits, as Parquet packs them: one after the other, or in turns with runs of one. No I/O here.


_WHOLE: Final[dict[int, np.dtype[Any]]] = {8: np.dtype("u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4")}  # by bits
_PACKED: Final = -1

Numbers_hybrid = npt.NDArray[Any]


def hybrid(data: bytes, at: int, width: int, count: int) -> Numbers_hybrid:
    """Return ``count`` numbers of ``width`` bits, which begin ``at`` a place of ``data``; ValueError if they do not."""
    if not 0 <= width <= 32:
        raise ValueError(f"numbers of {width} bits")
    runs: list[tuple[int, int]] = []  # how many there are of which number
    packed: list[bytes] = []
    left = count
    while left > 0:
        header, at = varint(data, at)
        if header & 1:
            many, size, number = (header >> 1) * 8, (header >> 1) * width, _PACKED
            packed.append(data[at : at + size])
        else:
            many, size = header >> 1, (width + 7) // 8
            number = int.from_bytes(data[at : at + size], "little")
        at += size
        if not many or at > len(data):
            raise ValueError("a run of no numbers, or of more than there are bytes")
        runs.append((min(many, left), number))
        left -= many
    if len(runs) == 1 and packed:
        return unpacked(packed[0], width, count)
    out = np.empty(count, np.uint32)
    numbers = unpacked(b"".join(packed), width, sum(many for many, number in runs if number == _PACKED))
    start = taken = 0
    for many, number in runs:
        if number == _PACKED:
            out[start : start + many] = numbers[taken : taken + many]
            taken += many
        else:
            out[start : start + many] = number
        start += many
    return out


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of 32 bits at most, and where the next begins."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number has no end")


def unpacked(data: bytes, width: int, count: int) -> Numbers_hybrid:
    """Return the first ``count`` numbers of ``width`` bits, of which ``data`` has as many."""
    if width in _WHOLE:
        return np.frombuffer(data, _WHOLE[width], count)
    if width == 1:
        return np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little")
    # Where each begins, in bits: it is in the word that begins with the same byte.
    first = np.arange(count, dtype=np.uint64) * np.uint64(width)
    words: Numbers_hybrid = np.ndarray(len(data) + 1, "<u8", data + bytes(8), strides=(1,))
    out: Numbers_hybrid = (words[first >> np.uint64(3)] >> (first & np.uint64(7))) & np.uint64((1 << width) - 1)
    return out


# ----------------------------------------------------------------------------------------------------
# Parquet's delta encodings of texts: by their lengths, and by what they share with the text before. No I/O here.
#
# A text may have all of the one before it in a byte: what a few bytes make is told to the caller before it is made.


Numbers_deltas = npt.NDArray[np.int64]


def texts_by_lengths(data: bytes, at: int, count: int) -> list[bytes]:
    """Return ``count`` texts from ``at`` on (DELTA_LENGTH_BYTE_ARRAY); ValueError if they are not there."""
    lengths, at = _lengths(data, at, count)
    ends = at + np.cumsum(lengths)
    if count and int(ends[-1]) > len(data):
        raise ValueError("texts are longer than their page")
    return [data[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]


def texts_by_differences(data: bytes, at: int, count: int, take: Callable[[int], object]) -> list[bytes]:
    """Return ``count`` texts (DELTA_BYTE_ARRAY); ``take`` is told how many bytes they have, and raises if too many."""
    shared, at = _lengths(data, at, count)
    rest = texts_by_lengths(data, at, count)
    take(int(shared.sum()))
    texts: list[bytes] = []
    last = b""
    for size, text in zip(shared.tolist(), rest, strict=True):
        if size > len(last):
            raise ValueError("a text shares more than there is of the one before")
        last = last[:size] + text
        texts.append(last)
    return texts


def _lengths(data: bytes, at: int, count: int) -> tuple[Numbers_deltas, int]:
    """Return ``count`` lengths (DELTA_BINARY_PACKED), and where what follows them begins."""
    block, at = varint(data, at)
    parts, at = varint(data, at)
    total, at = varint(data, at)
    first, at = _signed(data, at)
    if total != count or not parts or not block or block % (8 * parts):
        raise ValueError("lengths are not packed as they ought to be")
    size = block // parts
    deltas = [np.array([first][:count], np.int64)]
    left = count - 1
    while left > 0:
        least, at = _signed(data, at)
        widths, at = data[at : at + parts], at + parts
        for width in widths[: -(-left // size)]:
            many, step = min(size, left), size * width // 8
            if width > 32 or at + step > len(data):
                raise ValueError("lengths of too many bits, or of more than there are")
            deltas.append(unpacked(data[at : at + step], width, many).astype(np.int64) + least)
            at += step
            left -= many
        if at > len(data):
            raise ValueError("lengths have no end")
    lengths = np.cumsum(np.concatenate(deltas))
    if count and not 0 <= int(lengths.min()) <= int(lengths.max()) < 1 << 31:
        raise ValueError("a text of an impossible length")
    return lengths, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = varint(data, at)
    return (value >> 1) ^ -(value & 1), at


ROWS: Final = 1 << 17  # with more of them it is not the beginning that takes the time,
TEXTS: Final = 1 << 11  # nor with more of these,
PAGES: Final = 1 << 10  # and many pages take longer here than there
_REQUIRED, _OPTIONAL = 0, 1
_UNCOMPRESSED, _SNAPPY, _ZSTD = 0, 1, 6
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_DTYPES: Final[dict[int, np.dtype[Any]]] = {Type.INT32: np.dtype("<i4"), Type.INT64: np.dtype("<i8")}
_KINDS: Final[
    dict[tuple[int, int | None, bool | None], str]
] = {  # by physical type, the older logical one (INT_32, INT_64, UTF8), and whether the newer one is STRING
    (Type.INT32, None, None): "whole numbers",
    (Type.INT32, 17, None): "whole numbers",
    (Type.INT64, None, None): "whole numbers",
    (Type.INT64, 18, None): "whole numbers",
    (Type.BYTE_ARRAY, None, None): "bytes",
    (Type.BYTE_ARRAY, 0, None): "text",
    (Type.BYTE_ARRAY, 0, True): "text",
}

Numbers = npt.NDArray[Any]
Booleans = npt.NDArray[np.bool_]


class Unusual(Exception):
    """Columns are not read here."""


class Column(NamedTuple):
    """Numbers by row, or places in ``values``; those of rows that are ``absent`` mean nothing."""

    kind: str  # "whole numbers", "text", "bytes", or the name of another type
    numbers: Numbers
    absent: Booleans | None
    values: Sequence[str | bytes] = ()


def usual_columns(data: bytes, footer: Footer, names: Collection[str]) -> dict[str, Column | None]:
    """Return those of the columns ``names`` that are there; None for one in which every row is absent.

    ValueError where their pages promise too much.
    """
    schema, groups = footer.schema, footer.groups
    if len(groups) != 1 or not schema or schema[0].children != len(schema) - 1 or not 0 < footer.rows <= ROWS:
        raise Unusual
    chunks, rows = groups[0]
    if rows != footer.rows or len(chunks) != len(schema) - 1:
        raise Unusual
    room = Room(len(data))
    found: dict[str, Column | None] = {}
    for leaf, chunk in zip(schema[1:], chunks, strict=True):
        name = leaf.name.decode(errors="replace")
        if leaf.children or leaf.repetition not in (_REQUIRED, _OPTIONAL) or name in found:
            raise Unusual
        if name in names:
            try:
                found[name] = _column(data, leaf, chunk, rows, room)
            except ValueError as e:
                raise ValueError(f"its column {name!r} cannot be read: {e}") from e
    return found


def _column(data: bytes, leaf: Leaf, chunk: Chunk, rows: int, room: Room) -> Column | None:
    if chunk.type != leaf.type or chunk.values != rows or chunk.is_elsewhere:
        raise Unusual
    values = _Values(chunk.type, room)
    parts: list[Numbers] = []
    masks: list[Booleans] = []
    for page in pages(data, chunk, rows, room, WIDTHS.get(chunk.type, 1)):
        if (page.kind not in (DATA, DATA_V2) and (page.kind != DICTIONARY or parts)) or len(parts) == PAGES:
            raise Unusual
        try:
            levels, body = _body(data, page, chunk.codec)
            if page.kind == DICTIONARY:
                values.learn(page, body)
                continue
            at, absent = 0, np.zeros(page.values, np.bool_)
            if leaf.repetition == _OPTIONAL:
                if page.kind == DATA:
                    at = 4 + int.from_bytes(body[:4], "little")
                    levels = body[4:at]
                absent = hybrid(levels, 0, 1, page.values) == 0
            numbers = values.numbers(page.encoding, body, at, page.values - int(np.count_nonzero(absent)))
        except TooMuch:
            raise
        except (ValueError, IndexError, OSError) as e:
            raise Unusual from e
        if len(numbers) < page.values:
            there, numbers = numbers, np.zeros(page.values, numbers.dtype)
            numbers[~absent] = there
        parts.append(numbers)
        masks.append(absent)
    if sum(map(len, parts)) != rows:
        raise Unusual
    absent = _joined(masks)
    if absent.all():
        return None
    kind = _KINDS.get((chunk.type, leaf.converted, leaf.is_string))
    if kind is None:
        raise Unusual
    return Column(kind, _joined(parts), absent if absent.any() else None, values.texts(kind))


def _joined(parts: list[Numbers]) -> Numbers:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class _Values:
    """What the pages of a column hold: numbers, or texts, of which numbers are the places."""

    def __init__(self, kind: int, room: Room) -> None:
        self._kind = kind
        self._room = room
        self._dictionary: Numbers | None = None
        self._places: dict[bytes, int] = {}

    def learn(self, page: Page, body: bytes) -> None:
        """Take the dictionary that a column may begin with."""
        if (
            page.encoding not in (Encoding.PLAIN, Encoding.PLAIN_DICTIONARY)
            or self._dictionary is not None
            or self._places
        ):
            raise Unusual
        if self._kind in _DTYPES:
            self._dictionary = self._plain(body, 0, page.values)
        elif len(self._placed(_texts(body, 0, page.values))) != len(self._places):  # one text twice
            raise Unusual

    def numbers(self, encoding: int, body: bytes, at: int, count: int) -> Numbers:
        """Return ``count`` numbers, which begin ``at`` a place of a page's bytes."""
        if not count:
            return np.zeros(0, np.int32)
        if encoding in (Encoding.PLAIN_DICTIONARY, Encoding.RLE_DICTIONARY):
            numbers = hybrid(body, at + 1, body[at], count)
            if self._dictionary is not None:
                return self._dictionary[numbers]
            if int(numbers.max()) >= len(self._places):
                raise Unusual
            return numbers
        match self._kind, encoding:
            case ((Type.INT32 | Type.INT64), Encoding.PLAIN):
                return self._plain(body, at, count)
            case Type.BYTE_ARRAY, Encoding.PLAIN:
                return self._placed(_texts(body, at, count))
            case Type.BYTE_ARRAY, Encoding.DELTA_LENGTH_BYTE_ARRAY:
                return self._placed(texts_by_lengths(body, at, count))
            case Type.BYTE_ARRAY, Encoding.DELTA_BYTE_ARRAY:
                return self._placed(texts_by_differences(body, at, count, self._room.take))
        raise Unusual

    def texts(self, kind: str) -> Sequence[str | bytes]:
        """Return the texts, as what they are."""
        return [text.decode() for text in self._places] if kind == "text" else list(self._places)

    def _placed(self, texts: list[bytes]) -> Numbers:
        places = self._places
        return np.array([places.setdefault(text, len(places)) for text in texts], np.uint32)

    def _plain(self, body: bytes, at: int, count: int) -> Numbers:
        numbers: Numbers = np.frombuffer(body, _DTYPES[self._kind], count, at)
        # A view would keep all of the page in memory, and what is not aligned is slow to use.
        return numbers if numbers.flags.aligned and len(body) < 2 * numbers.nbytes else numbers.copy()


def _texts(body: bytes, at: int, count: int) -> list[bytes]:
    if count > TEXTS:
        raise Unusual
    texts = []
    for _ in range(count):
        start = at + 4
        at = start + int.from_bytes(body[at:start], "little")
        texts.append(body[start:at])
    if at > len(body):
        raise Unusual
    return texts


def _body(data: bytes, page: Page, codec: int) -> tuple[bytes, bytes]:
    """Return the levels that stand ahead of a page's other bytes, if they do, and what those stand for."""
    stored, made = data[page.start : page.start + page.stored], page.made
    if page.crc is not None and zlib.crc32(stored) != page.crc & 0xFFFFFFFF:
        raise Unusual
    levels = b""
    if page.kind == DATA_V2:
        if not 0 <= page.levels <= min(page.stored, made):
            raise Unusual
        levels, stored, made = stored[: page.levels], stored[page.levels :], made - page.levels
    if codec == _UNCOMPRESSED or not page.is_compressed:
        if len(stored) != made:
            raise Unusual
        return levels, stored
    # pyarrow's codecs do not say how much they have made: they make what the first bytes say, or raise an error.
    if codec == _SNAPPY and _snappy_size(stored) == made:
        return levels, _codec("snappy").decompress(stored, made, asbytes=True)
    if codec == _ZSTD and stored.startswith(_ZSTD_MAGIC) and zstd_size(stored) == made:
        return levels, _codec("zstd").decompress(stored, made, asbytes=True)
    raise Unusual


def _snappy_size(data: bytes) -> int:
    """Return the size that compressed bytes begin with; -1 if they do not."""
    size = 0
    for shift, byte in zip(range(0, 35, 7), data, strict=False):
        size |= (byte & 127) << shift
        if byte < 128:
            return size
    return -1


@cache
def _codec(name: str) -> Any:
    import pyarrow  # the extra: see require_pyarrow

    return pyarrow.Codec(name)
