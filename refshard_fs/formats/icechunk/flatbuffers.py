"""Read FlatBuffers and FlexBuffers, as far as Icechunk's objects need them. No I/O here.

The fields of a table are found by its vtable: ``offset = vtable[field]``, 0 if the field is absent. `Tables` reads the
same field of many tables at once, as columns. Every offset is checked: ValueError if one leads out of the buffer. All
vectors of a field together may have a few times the bytes of the buffer, so that a small buffer, in which all offsets
lead to one place, cannot cause much work.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

_TIMES: Final = 4  # how many vectors may contain the same bytes, on average
_DAMAGED: Final = "it is cut short or damaged: an offset leads out of it"


class Tables:
    """Tables of one kind, at the positions ``at`` of a buffer, as columns.

    Fields are numbered in the order of the schema; a union counts as two. Absent numbers are 0, absent bytes empty.
    """

    def __init__(self, data: bytes, at: Int64s) -> None:
        self.data = data
        self.at = at
        self._vtables = at - gather(data, at, "<i4")
        self._sizes = gather(data, self._vtables, "<u2")

    @classmethod
    def root(cls, data: bytes) -> Tables:
        """Return the root table of a buffer."""
        return cls(data, gather(data, np.zeros(1, np.int64), "<u4"))

    def take(self, index: Any) -> Tables:
        """Select some of the tables."""
        return Tables(self.data, self.at[index])

    def places(self, field: int) -> tuple[Int64s, Int64s]:
        """Return which tables have a field, and its position in each."""
        slot = 4 + 2 * field
        rows = np.flatnonzero(self._sizes >= slot + 2)
        offsets = gather(self.data, self._vtables[rows] + slot, "<u2")
        rows, offsets = rows[offsets > 0], offsets[offsets > 0]
        return rows, self.at[rows] + offsets

    def numbers(self, field: int, dtype: str) -> Int64s:
        """Return an integer for each table. Raise ValueError if an unsigned one has more than 63 bits."""
        found = np.zeros(len(self.at), np.int64)
        rows, places = self.places(field)
        found[rows] = gather(self.data, places, dtype)
        if dtype == "<u8" and len(found) and found.min() < 0:
            raise ValueError("it is damaged: a number has more than 63 bits")
        return found

    def structs(self, field: int, size: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a struct of ``size`` bytes for each table, a row each; ValueError if one lacks it."""
        rows, places = self.places(field)
        if len(rows) != len(self.at):
            raise ValueError("it is damaged: it lacks an id")
        return gather(self.data, places[:, None] + np.arange(size), "u1").astype(np.uint8)

    def vectors(self, field: int, width: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return which tables have a vector, the position of its elements of ``width`` bytes, and their number."""
        rows, places = self.places(field)
        starts = places + gather(self.data, places, "<u4")
        counts = gather(self.data, starts, "<u4")
        starts += 4
        if len(rows) and (starts + counts * width).max() > len(self.data):
            raise ValueError(_DAMAGED)
        return rows, starts, counts

    def elements(self, field: int, width: int) -> tuple[Int64s, Int64s]:
        """Return the positions of the elements of all vectors of a field, and which table each belongs to."""
        rows, starts, counts = self.vectors(field, width)
        if counts.sum() * width > _TIMES * len(self.data):
            raise ValueError("it is damaged: many of its offsets lead to the same bytes")
        firsts = starts - width * (counts.cumsum() - counts)
        return np.repeat(firsts, counts) + width * np.arange(counts.sum()), np.repeat(rows, counts)

    def tables(self, field: int) -> tuple[Tables, Int64s]:
        """Return the tables in all vectors of a field, and which table each belongs to."""
        slots, owners = self.elements(field, 4)
        return Tables(self.data, slots + gather(self.data, slots, "<u4")), owners

    def table(self, field: int) -> tuple[Tables, Int64s]:
        """Return the tables that a field refers to, and which table each belongs to."""
        rows, places = self.places(field)
        return Tables(self.data, places + gather(self.data, places, "<u4")), rows

    def pieces(self, field: int, width: int = 1) -> tuple[list[int], list[bytes]]:
        """Return which tables have a vector (or a text) of elements of ``width`` bytes, and all bytes of each."""
        rows, starts, counts = self.vectors(field, width)
        firsts, index, codes = np.unique(starts, return_index=True, return_inverse=True)
        sizes = counts[index] * width
        if sizes.sum() > len(self.data):
            raise ValueError("it is damaged: its texts overlap")
        made = [self.data[at : at + size] for at, size in zip(firsts.tolist(), sizes.tolist(), strict=True)]
        return rows.tolist(), list(map(made.__getitem__, codes.tolist()))

    def bytes(self, field: int, width: int = 1) -> list[bytes]:
        """Return all bytes of a vector, or of a text, for each table."""
        found = [b""] * len(self.at)
        for row, piece in zip(*self.pieces(field, width), strict=True):
            found[row] = piece
        return found

    def texts(self, field: int) -> list[str]:
        """Return a text for each table."""
        return [text.decode() for text in self.bytes(field)]  # UnicodeDecodeError is a ValueError


def gather(data: bytes, places: Int64s, dtype: str) -> Int64s:
    """Return the integers of type ``dtype`` at ``places``. Raise ValueError if one lies outside the buffer."""
    size = np.dtype(dtype).itemsize
    if not places.size:
        return np.zeros(places.shape, np.int64)
    if places.min() < 0 or places.max() + size > len(data):
        raise ValueError(_DAMAGED)
    numbers: npt.NDArray[Any] = np.ndarray(len(data) - size + 1, dtype, data, strides=(1,))
    return numbers[places].astype(np.int64)


# FlexBuffers: value, type and width are read from the end. Only maps and texts are supported.

_TEXT: Final = 5  # types of values
_MAP: Final = 9


def parse_flex(data: bytes) -> Any:
    """Return the root value of a FlexBuffer: a dict for a map, a text, or None for a value of another type."""
    if len(data) < 3:
        raise ValueError(_DAMAGED)
    try:
        return _FlexReader(data).value(len(data) - 2 - data[-1], data[-1], data[-2])
    except RecursionError as e:
        raise ValueError("it is damaged: its maps contain themselves") from e


class _FlexReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _TIMES * len(data)  # bytes that may still be read

    def _read_number(self, at: int, width: int) -> int:
        if width not in (1, 2, 4, 8) or not 0 <= at <= len(self._data) - width:
            raise ValueError(_DAMAGED)
        return int.from_bytes(self._data[at : at + width], "little")

    def value(self, at: int, parent_width: int, packed: int) -> Any:
        """Return the value that lies at ``at``, or to which an offset of ``parent_width`` bytes there leads."""
        kind, width = packed >> 2, 1 << (packed & 3)
        if kind not in (_TEXT, _MAP):
            return None
        at -= self._read_number(at, parent_width)
        size = self._read_number(at - width, width)
        if kind == _TEXT:
            return self._take(at, at + size)
        keys = at - 3 * width - self._read_number(at - 3 * width, width)
        key_width = self._read_number(at - 2 * width, width)
        found = {}
        for i in range(size):
            place = keys + i * key_width
            start = place - self._read_number(place, key_width)
            key = self._take(start, self._data.find(b"\0", max(start, 0)))
            found[key] = self.value(at + i * width, width, self._read_number(at + size * width + i, 1))
        return found

    def _take(self, start: int, stop: int) -> str:
        self._left -= stop - start + 1
        if start < 0 or stop < start or self._left < 0:
            raise ValueError("it is damaged: many of its offsets lead to the same bytes")
        return self._data[start:stop].decode()
