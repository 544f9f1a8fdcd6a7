"""Read FlatBuffers and FlexBuffers, as far as Icechunk's objects need them. No I/O here.

The fields of a table are found by its vtable: ``offset = vtable[field]``, 0 if the field is absent. `Table` reads one
table, `Tables` the same field of many tables at once, as columns. Every offset is checked: ValueError if one leads out
of the buffer. All vectors and texts together may have a few times the bytes of the buffer, so that a small buffer, in
which all offsets lead to one place, cannot cause much work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

_TIMES: Final = 4  # how often the bytes of a buffer may be read, on average


class Buffer:
    """The bytes of a FlatBuffer, and the number of bytes that may still be read."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = _TIMES * len(data) + 1024

    def number(self, at: int, width: int, *, signed: bool = False) -> int:
        """Return the little-endian integer of ``width`` bytes at ``at``."""
        return int.from_bytes(self.part(at, width), "little", signed=signed)

    def part(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes at ``at``."""
        if at < 0 or at + size > len(self.data):
            raise ValueError(f"it is cut short or damaged: an offset leads to byte {at + size} of {len(self.data)}")
        return self.data[at : at + size]

    def spend(self, size: int) -> None:
        """Count ``size`` bytes as read."""
        self.left -= size
        if self.left < 0:
            raise ValueError("it is damaged: many of its offsets lead to the same bytes")

    @property
    def root(self) -> Table:
        """The root table."""
        return Table(self, self.number(0, 4))


class Table:
    """One table. Fields are numbered in the order of the schema; a union counts as two."""

    __slots__ = ("_buffer", "_size", "_vtable", "at")

    def __init__(self, buffer: Buffer, at: int) -> None:
        self._buffer = buffer
        self.at = at
        self._vtable = at - buffer.number(at, 4, signed=True)
        self._size = buffer.number(self._vtable, 2)

    def _place(self, field: int) -> int | None:
        slot = 4 + 2 * field
        offset = self._buffer.number(self._vtable + slot, 2) if slot + 2 <= self._size else 0
        return self.at + offset if offset else None

    def number(self, field: int, width: int, *, signed: bool = False) -> int:
        """Return an integer; 0 if it is absent."""
        at = self._place(field)
        return 0 if at is None else self._buffer.number(at, width, signed=signed)

    def struct(self, field: int, size: int) -> bytes:
        """Return the bytes of a struct; empty if it is absent."""
        at = self._place(field)
        return b"" if at is None else self._buffer.part(at, size)

    def table(self, field: int) -> Table | None:
        """Return a table; None if it is absent."""
        at = self._place(field)
        return None if at is None else Table(self._buffer, at + self._buffer.number(at, 4))

    def elements(self, field: int, width: int) -> range:
        """Return the positions of a vector's elements of ``width`` bytes; empty if it is absent."""
        at = self._place(field)
        if at is None:
            return range(0)
        at += self._buffer.number(at, 4)
        size = self._buffer.number(at, 4) * width
        if at + 4 + size > len(self._buffer.data):
            raise ValueError(f"it is cut short or damaged: a vector of {size} bytes is at byte {at}")
        self._buffer.spend(size)
        return range(at + 4, at + 4 + size, width)

    def tables(self, field: int) -> Iterator[Table]:
        """Yield the tables in a vector."""
        for at in self.elements(field, 4):
            yield Table(self._buffer, at + self._buffer.number(at, 4))

    def structs(self, field: int, size: int) -> Iterator[bytes]:
        """Yield the structs of ``size`` bytes in a vector."""
        for at in self.elements(field, size):
            yield self._buffer.part(at, size)

    def bytes(self, field: int) -> bytes:
        """Return a vector of bytes; empty if it is absent."""
        places = self.elements(field, 1)
        return self._buffer.data[places.start : places.stop]

    def text(self, field: int) -> str:
        """Return a text."""
        return self.bytes(field).decode()  # UnicodeDecodeError is a ValueError


class Tables:
    """Many tables, at the positions ``at``, as columns: each method answers for the tables with a field."""

    def __init__(self, data: bytes, at: Int64s) -> None:
        self.data = data
        self.at = at
        self._vtables = at - gather(data, at, "<i4")
        self._sizes = gather(data, self._vtables, "<u2")

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
        """Return an integer for each table, 0 if it is absent. Raise ValueError if one has more than 63 bits."""
        found = np.zeros(len(self.at), np.int64)
        rows, places = self.places(field)
        found[rows] = gather(self.data, places, dtype)
        if len(found) and found.min() < 0:
            raise ValueError("it is damaged: a number has more than 63 bits")
        return found

    def vectors(self, field: int, width: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return which tables have a vector, the position of its elements of ``width`` bytes, and their number."""
        rows, places = self.places(field)
        starts = places + gather(self.data, places, "<u4")
        counts = gather(self.data, starts, "<u4")
        starts += 4
        if len(rows) and (starts + counts * width).max() > len(self.data):
            raise ValueError("it is cut short or damaged: a vector ends beyond its end")
        return rows, starts, counts

    def pieces(self, field: int) -> tuple[list[int], list[bytes]]:
        """Return which tables have a vector of bytes or a text, and its bytes."""
        rows, starts, counts = self.vectors(field, 1)
        if not len(rows):
            return [], []
        firsts, index, codes = np.unique(starts, return_index=True, return_inverse=True)
        sizes = counts[index]
        if sizes.sum() > len(self.data):
            raise ValueError("it is damaged: its texts overlap")
        made = [self.data[at : at + size] for at, size in zip(firsts.tolist(), sizes.tolist(), strict=True)]
        return rows.tolist(), list(map(made.__getitem__, codes.tolist()))


def gather(data: bytes, places: Int64s, dtype: str) -> Int64s:
    """Return the integers of type ``dtype`` at ``places``. Raise ValueError if one lies outside the buffer."""
    size = np.dtype(dtype).itemsize
    if not places.size:
        return np.zeros(places.shape, np.int64)
    if places.min() < 0 or places.max() + size > len(data):
        raise ValueError("it is cut short or damaged: an offset leads out of it")
    numbers: npt.NDArray[Any] = np.ndarray(len(data) - size + 1, dtype, data, strides=(1,))
    return numbers[places].astype(np.int64)


# FlexBuffers: value, type and width are read from the end. Only maps and texts are supported.

_TEXTS: Final = (4, 5)  # types of keys and of texts
_MAP: Final = 9
_BOOLEAN: Final = 26


class Flex:
    """A value of a FlexBuffer; ``at`` is the position of the value or of its offset."""

    __slots__ = ("_at", "_buffer", "_kind", "_width")

    def __init__(self, buffer: Buffer, at: int, parent_width: int, packed: int) -> None:
        self._buffer = buffer
        self._kind = packed >> 2
        self._width = 1 << (packed & 3)  # of the value at the offset
        is_inline = self._kind < _TEXTS[0] or self._kind == _BOOLEAN
        self._at = at if is_inline else at - buffer.number(at, parent_width)

    @classmethod
    def of(cls, data: bytes) -> Flex:
        """Return the root value of ``data``."""
        buffer = Buffer(data)
        width = buffer.number(len(data) - 1, 1)
        if width not in (1, 2, 4, 8):
            raise ValueError(f"its root value has {width} bytes: a FlexBuffer has 1, 2, 4 or 8")
        return cls(buffer, len(data) - 2 - width, width, buffer.number(len(data) - 2, 1))

    def members(self) -> dict[str, Flex]:
        """Return the values of a map by key; empty for a value of another type."""
        if self._kind != _MAP:
            return {}
        buffer, at, width = self._buffer, self._at, self._width
        count = buffer.number(at - width, width)
        buffer.spend(count * (width + 1))
        keys = at - 3 * width - buffer.number(at - 3 * width, width)
        key_width = buffer.number(at - 2 * width, width)
        found = {}
        for i in range(count):
            place = keys + i * key_width
            start = place - buffer.number(place, key_width)
            if start < 0:
                raise ValueError("it is damaged: the offset of a key leads out of it")
            key = buffer.data[start : buffer.data.find(b"\0", start)]
            buffer.spend(len(key))
            kind = buffer.number(at + count * width + i, 1)
            found[key.decode()] = Flex(buffer, at + i * width, width, kind)
        return found

    @property
    def text(self) -> str | None:
        """The text; None for a value of another type."""
        if self._kind != _TEXTS[1]:
            return None
        size = self._buffer.number(self._at - self._width, self._width)
        self._buffer.spend(size)
        return self._buffer.part(self._at, size).decode()
