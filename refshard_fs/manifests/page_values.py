"""Columns as nearly every writer of reference sets has them, made of their pages with numpy. No I/O here.

Parquet's own readers take longer to begin with a file than it takes to read such columns: one group of rows, whole
numbers, texts and bytes, plain or by a dictionary. Whatever else there is, and whatever is damaged, is `Unusual`: it is
for pyarrow to read, or to refuse.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.manifests.hybrid import hybrid
from refshard_fs.manifests.inflate import zstd_size
from refshard_fs.manifests.parquet_pages import (
    BYTE_ARRAY,
    DATA,
    DICTIONARY,
    INT32,
    INT64,
    WIDTHS,
    Chunk,
    Footer,
    Leaf,
    Page,
    Room,
    pages,
)

__all__ = ["Booleans", "Column", "Numbers", "Unusual", "usual_columns"]

ROWS: Final = 1 << 17  # with more of them it is not the beginning that takes the time
_REQUIRED, _OPTIONAL = 0, 1
_PLAIN, _OF_DICTIONARY, _BY_DICTIONARY = 0, (0, 2), (2, 8)  # encodings
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_DTYPES: Final[dict[int, np.dtype[Any]]] = {INT32: np.dtype("<i4"), INT64: np.dtype("<i8")}
_KINDS: Final = {  # by physical type, the older logical one (INT_32, INT_64, UTF8), and whether the newer one is STRING
    (INT32, None, None): "whole numbers",
    (INT32, 17, None): "whole numbers",
    (INT64, None, None): "whole numbers",
    (INT64, 18, None): "whole numbers",
    (BYTE_ARRAY, None, None): "bytes",
    (BYTE_ARRAY, 0, None): "text",
    (BYTE_ARRAY, 0, True): "text",
}

Numbers = npt.NDArray[Any]
Booleans = npt.NDArray[np.bool_]
Values = Numbers | list[bytes]


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
    chunks, _, rows = groups[0]
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
    values: Values | None = None
    parts: list[Numbers] = []
    masks: list[Booleans] = []
    for page in pages(data, chunk, rows, room, WIDTHS.get(chunk.type, 1)):
        try:
            body = _body(data, page, chunk.codec)
            if page.kind == DICTIONARY and page.encoding in _OF_DICTIONARY and values is None and not parts:
                values = _plain(body, 0, chunk.type, page.values)
                continue
            if page.kind != DATA:
                raise Unusual
            at = 0
            absent = np.zeros(page.values, np.bool_)
            if leaf.repetition == _OPTIONAL:
                at = 4 + int.from_bytes(body[:4], "little")
                absent = hybrid(body[:at], 4, 1, page.values) == 0
            numbers, values = _numbers(body, at, page, chunk.type, absent, values)
        except (ValueError, IndexError, OSError) as e:
            raise Unusual from e
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
    texts = values if isinstance(values, list) else []
    return Column(
        kind,
        _joined(parts),
        absent if absent.any() else None,
        [text.decode() for text in texts] if kind == "text" else texts,
    )


def _numbers(
    body: bytes, at: int, page: Page, kind: int, absent: Booleans, values: Values | None
) -> tuple[Numbers, Values | None]:
    """Return the numbers of a page's rows, and the values that those of texts are places in."""
    count = page.values - int(np.count_nonzero(absent))
    numbers: Values
    if not count:
        return np.zeros(page.values, np.int32), values
    if page.encoding in _BY_DICTIONARY and values is not None:
        numbers = hybrid(body, at + 1, body[at], count)
        if int(numbers.max()) >= len(values):
            raise Unusual
        if isinstance(values, np.ndarray):
            numbers = values[numbers]
    elif page.encoding == _PLAIN and values is None:
        numbers = _plain(body, at, kind, count)
        if isinstance(numbers, list):
            values = list(dict.fromkeys(numbers))
            places = {value: place for place, value in enumerate(values)}
            numbers = np.array([places[value] for value in numbers], np.uint32)
    else:
        raise Unusual
    if count < page.values:
        some, numbers = numbers, np.zeros(page.values, numbers.dtype)
        numbers[~absent] = some
    return numbers, values


def _plain(body: bytes, at: int, kind: int, count: int) -> Values:
    """Return ``count`` values that stand one after the other."""
    dtype = _DTYPES.get(kind)
    if dtype is not None:
        numbers: Numbers = np.frombuffer(body, dtype, count, at)
        # A view would keep all of the page in memory, and what is not aligned is slow to use.
        return numbers if numbers.flags.aligned and len(body) < 2 * numbers.nbytes else numbers.copy()
    if count and kind != BYTE_ARRAY:
        raise Unusual
    texts = []
    for _ in range(count):
        start = at + 4
        at = start + int.from_bytes(body[at:start], "little")
        texts.append(body[start:at])
    if at > len(body):
        raise Unusual
    return texts


def _joined(parts: list[Numbers]) -> Numbers:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _body(data: bytes, page: Page, codec: int) -> bytes:
    """Return what the stored bytes of a page stand for: as many as its header says."""
    stored = data[page.start : page.start + page.stored]
    if page.crc is not None and zlib.crc32(stored) != page.crc & 0xFFFFFFFF:
        raise Unusual
    match codec:
        case 0 if page.stored == page.made:
            return stored
        # pyarrow's codecs do not say how much they have made: they make what the first bytes say, or raise an error.
        case 1 if _snappy_size(stored) == page.made:
            return _decompressed("snappy", stored, page.made)
        case 6 if stored.startswith(_ZSTD) and zstd_size(stored) == page.made:
            return _decompressed("zstd", stored, page.made)
    raise Unusual


def _snappy_size(data: bytes) -> int:
    """Return the size that compressed bytes begin with; -1 if they do not."""
    size = 0
    for shift, byte in zip(range(0, 35, 7), data, strict=False):
        size |= (byte & 127) << shift
        if byte < 128:
            return size
    return -1


def _decompressed(codec: str, stored: bytes, made: int) -> bytes:
    body: bytes = _codec(codec).decompress(stored, made, asbytes=True)
    return body


@cache
def _codec(name: str) -> Any:
    import pyarrow  # the extra: see require_pyarrow

    return pyarrow.Codec(name)
