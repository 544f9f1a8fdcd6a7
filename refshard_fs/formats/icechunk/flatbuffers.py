"""Read FlatBuffers and FlexBuffers, as far as Icechunk's objects need them. No I/O here.

The fields of a table are located by its vtable: ``offset = vtable[field]``, 0 if the field is absent. `Tables` reads
the same field of many tables at once, as columns. Offsets that lead out of the buffer raise ValueError. So do vectors
of a field that together have more than `_TIMES` times the bytes of the buffer: many offsets in a damaged buffer may
lead to the same bytes, so that a small buffer makes much work.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

_TIMES: Final = 4  # all vectors of a field together have at most this many times the bytes of the buffer
_DAMAGED: Final = "it is cut short or damaged: expected offsets to its own bytes, found one beyond its end"
_REPEATED: Final = "it is damaged: expected each offset to lead to other bytes, found many to the same bytes"


class Tables:
    """Tables of the same kind, at the positions ``at`` of a buffer, whose fields are read as columns.

    Fields are numbered in the order of the schema; a union counts as two. Absent numbers are 0, absent bytes b"".
    """

    def __init__(self, data: bytes, at: Int64s) -> None:
        self.data = data
        self.at = at
        self._vtables = at - gather_integers(data, at, "<i4")
        self._sizes = gather_integers(data, self._vtables, "<u2")

    @classmethod
    def read_root(cls, data: bytes) -> Tables:
        """Return the root table of a buffer."""
        return cls(data, gather_integers(data, np.zeros(1, np.int64), "<u4"))

    def take(self, index: Any) -> Tables:
        """Select tables by a numpy index."""
        return Tables(self.data, self.at[index])

    def locate_field(self, field: int) -> tuple[Int64s, Int64s]:
        """Return the rows of the tables that have a field, and the position of the field in each."""
        slot = 4 + 2 * field
        rows = np.flatnonzero(self._sizes >= slot + 2)
        offsets = gather_integers(self.data, self._vtables[rows] + slot, "<u2")
        rows, offsets = rows[offsets > 0], offsets[offsets > 0]
        return rows, self.at[rows] + offsets

    def read_numbers(self, field: int, dtype: str) -> Int64s:
        """Return an integer for each table. Raise ValueError if an unsigned integer has more than 63 bits."""
        numbers = np.zeros(len(self.at), np.int64)
        rows, places = self.locate_field(field)
        numbers[rows] = gather_integers(self.data, places, dtype)
        if dtype == "<u8" and len(numbers) and numbers.min() < 0:
            raise ValueError(f"it is damaged: field {field} has a number of 64 bits: expected at most 63 bits")
        return numbers

    def read_structs(self, field: int, size: int) -> npt.NDArray[np.uint8]:
        """Return a struct of ``size`` bytes for each table, a row each; ValueError if a table lacks the field."""
        rows, places = self.locate_field(field)
        if len(rows) != len(self.at):
            raise ValueError(f"it is damaged: expected an id (field {field}) in each table, found one without it")
        return gather_integers(self.data, places[:, None] + np.arange(size), "u1").astype(np.uint8)

    def locate_vectors(self, field: int, width: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return the rows of the tables that have a vector, the positions of the first elements, and the lengths.

        Elements have ``width`` bytes.
        """
        rows, places = self.locate_field(field)
        starts = places + gather_integers(self.data, places, "<u4")
        counts = gather_integers(self.data, starts, "<u4")
        starts += 4
        if len(rows) and (starts + counts * width).max() > len(self.data):
            raise ValueError(_DAMAGED)
        return rows, starts, counts

    def locate_elements(self, field: int, width: int) -> tuple[Int64s, Int64s]:
        """Return the positions of the elements of all vectors of a field, and for each element the row of its table."""
        rows, starts, counts = self.locate_vectors(field, width)
        if counts.sum() * width > _TIMES * len(self.data):
            raise ValueError(_REPEATED)
        firsts = starts - width * (counts.cumsum() - counts)
        return np.repeat(firsts, counts) + width * np.arange(counts.sum()), np.repeat(rows, counts)

    def read_vectors_of_tables(self, field: int) -> tuple[Tables, Int64s]:
        """Return the tables in all vectors of a field, and the row of the owner of each: the table with the vector."""
        slots, owners = self.locate_elements(field, 4)
        return Tables(self.data, slots + gather_integers(self.data, slots, "<u4")), owners

    def read_tables(self, field: int) -> tuple[Tables, Int64s]:
        """Return the tables to which a field refers, and the row of the owner of each: the table with the field."""
        rows, places = self.locate_field(field)
        return Tables(self.data, places + gather_integers(self.data, places, "<u4")), rows

    def read_vectors(self, field: int, width: int = 1) -> tuple[list[int], list[bytes]]:
        """Return the rows of the tables that have a vector or a text, and the bytes of each.

        Elements have ``width`` bytes.
        """
        rows, starts, counts = self.locate_vectors(field, width)
        firsts, index, codes = np.unique(starts, return_index=True, return_inverse=True)
        sizes = counts[index] * width
        if sizes.sum() > len(self.data):
            raise ValueError(_REPEATED)
        distinct = [self.data[at : at + size] for at, size in zip(firsts.tolist(), sizes.tolist(), strict=True)]
        return rows.tolist(), list(map(distinct.__getitem__, codes.tolist()))

    def read_bytes(self, field: int, width: int = 1) -> list[bytes]:
        """Return for each table the bytes of a vector or a text, whose elements have ``width`` bytes."""
        column = [b""] * len(self.at)
        for row, vector in zip(*self.read_vectors(field, width), strict=True):
            column[row] = vector
        return column

    def read_texts(self, field: int) -> list[str]:
        """Return a text for each table; ValueError if a text is not UTF-8."""
        return [_decode_text(text) for text in self.read_bytes(field)]


def gather_integers(data: bytes, places: Int64s, dtype: str) -> Int64s:
    """Return the integers of type ``dtype`` at the positions ``places``; ValueError if one lies outside the buffer."""
    size = np.dtype(dtype).itemsize
    if not places.size:
        return np.zeros(places.shape, np.int64)
    if places.min() < 0 or places.max() + size > len(data):
        raise ValueError(_DAMAGED)
    numbers: npt.NDArray[Any] = np.ndarray(len(data) - size + 1, dtype, data, strides=(1,))
    return numbers[places].astype(np.int64)


def _decode_text(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as e:
        raise ValueError(f"it is damaged: expected UTF-8, found the text {text[:100]!r}") from e


# FlexBuffers: a buffer ends with its root value, the type of this value, and its width. Only maps and texts are read.

_TEXT, _MAP = 5, 9  # types of values


def parse_flex(data: bytes) -> Any:
    """Return the root value of a FlexBuffer: a dict for a map, a text, or None for any other value."""
    if len(data) < 3:
        raise ValueError(_DAMAGED)
    try:
        return _FlexReader(data).read_value(len(data) - 2 - data[-1], data[-1], data[-2])
    except RecursionError as e:
        raise ValueError("it is damaged: expected few levels of maps, found maps that are nested too deeply") from e


class _FlexReader:
    """Read the values in the FlexBuffer ``data``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _TIMES * len(data)  # bytes of texts that may still be read

    def _read_number(self, at: int, width: int) -> int:
        if width not in (1, 2, 4, 8) or not 0 <= at <= len(self._data) - width:
            raise ValueError(_DAMAGED)
        return int.from_bytes(self._data[at : at + width], "little")

    def read_value(self, at: int, parent_width: int, packed: int) -> Any:
        """Return the text or map to which the offset at ``at`` leads; None for other values.

        The offset has ``parent_width`` bytes. ``packed`` is the type of the value, and in its two lowest bits the
        logarithm of the width of the value.
        """
        kind, width = packed >> 2, 1 << (packed & 3)
        if kind not in (_TEXT, _MAP):
            return None
        at -= self._read_number(at, parent_width)
        size = self._read_number(at - width, width)
        if kind == _TEXT:
            return self._read_text(at, at + size)
        keys = at - 3 * width - self._read_number(at - 3 * width, width)
        key_width = self._read_number(at - 2 * width, width)
        members = {}
        for number in range(size):
            place = keys + number * key_width
            start = place - self._read_number(place, key_width)
            key = self._read_text(start, self._data.find(b"\0", max(start, 0)))
            members[key] = self.read_value(at + number * width, width, self._read_number(at + size * width + number, 1))
        return members

    def _read_text(self, start: int, stop: int) -> str:
        self._left -= stop - start + 1
        if start < 0 or stop < start:
            raise ValueError(_DAMAGED)
        if self._left < 0:
            raise ValueError(_REPEATED)
        return _decode_text(self._data[start:stop])
