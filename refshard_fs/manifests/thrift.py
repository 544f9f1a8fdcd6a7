"""Structures in Thrift's compact protocol, as far as Parquet uses it: the fields that are asked for, out of bytes.

Stricter than other readers: what they would skip or let the last one win (a field twice, or of another type) is an
error, so that what is read here is what any of them reads. No more memory is taken than there are bytes. No I/O here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["BINARY", "BOOL", "I32", "I64", "Damaged", "Fields", "Reader"]

BOOL: Final = 2  # or 1, where it is true
I32: Final = 5
I64: Final = 6
BINARY: Final = 8
_LIST, _STRUCT = 9, 12
_BITS: Final = {I32: 31, I64: 63}
_NESTING: Final = 16  # of what is skipped
_THINGS: Final = 100_000  # structures that are kept: they may have been written in a byte each

# What is asked for of a structure: the number of a field → BOOL, I32, I64 or BINARY, the fields of a structure, or a
# list of one such.
Fields = Mapping[int, Any]


class Damaged(ValueError):
    """The bytes are no such structure."""


class Reader:
    """Reads structures from ``data``, from ``at`` on and no further than ``stop``."""

    __slots__ = ("_data", "_stop", "_things", "at")

    def __init__(self, data: bytes, at: int, stop: int) -> None:
        self._data = data
        self._stop = stop
        self._things = _THINGS
        self.at = at

    def struct(self, fields: Fields) -> dict[int, Any]:
        """Return those of a structure's fields that are asked for and there, by number."""
        try:
            found = self._struct(fields)
        except IndexError:  # of the bytes
            raise Damaged("it has no end") from None
        if self.at > self._stop:
            raise Damaged("it has no end")
        return found

    def _struct(self, fields: Fields) -> dict[int, Any]:
        self._things -= 1
        if self._things < 0:
            raise Damaged(f"it has more than {_THINGS} parts")
        data = self._data
        out: dict[int, Any] = {}
        number = 0
        while (byte := data[self.at]) != 0:
            self.at += 1
            kind, step = byte & 15, byte >> 4
            number = number + step if step else self._number(I32)
            wanted = fields.get(number)
            if wanted is None:
                self._skip(kind, _NESTING)
            elif number in out:
                raise Damaged("a field is there twice")
            elif wanted == kind and kind in _BITS:
                out[number] = self._number(kind)
            else:
                out[number] = self._value(kind, wanted)
        self.at += 1
        return out

    def _value(self, kind: int, wanted: Any) -> Any:
        match wanted:
            case int() if wanted == BOOL and kind in (1, 2):
                return kind == 1
            case int() if kind == wanted == BINARY:
                size = self._varint()
                self._pass(size)
                return self._data[self.at - size : self.at]
            case dict() if kind == _STRUCT:
                return self._struct(wanted)
            case [one] if kind == _LIST:
                item, size = self._list()
                if size and item != _STRUCT:
                    raise Damaged("a list is of another type")
                return [self._struct(one) for _ in range(size)]
        raise Damaged("a field is of another type")

    def _varint(self, most: int = 5) -> int:
        at = self.at
        value = self._data[at]
        if value > 127:
            value &= 127
            for shift in range(7, 7 * most, 7):
                at += 1
                byte = self._data[at]
                value |= (byte & 127) << shift
                if byte < 128:
                    break
            else:
                raise Damaged("a number has no end")
        self.at = at + 1
        return value

    def _number(self, kind: int) -> int:
        value = self._varint(5 if kind == I32 else 10)
        number = (value >> 1) ^ -(value & 1)
        if value > 127 and not -(1 << _BITS[kind]) <= number < 1 << _BITS[kind]:
            raise Damaged("a number is too large")
        return number

    def _list(self) -> tuple[int, int]:
        """Return the type of a list's items, and how many there are: each of them takes a byte at least."""
        byte = self._data[self.at]
        self.at += 1
        size = byte >> 4
        if size == 15:
            size = self._varint()
        if size > self._stop - self.at:
            raise Damaged("a list is longer than there are bytes")
        return byte & 15, size

    def _pass(self, size: int) -> None:
        if size > self._stop - self.at:
            raise Damaged("it has no end")
        self.at += size

    def _skip(self, kind: int, nesting: int, *, listed: bool = False) -> None:
        """Go behind a value of the type ``kind``, which is ``listed`` or a field."""
        if not nesting:
            raise Damaged("it nests too deep")
        match kind:
            case 4 | 5 | 6:
                self._varint(10)
            case 8:
                self._pass(self._varint())
            case 1 | 2:
                self.at += listed  # a field's type is its value
            case 3:
                self.at += 1
            case 7:
                self.at += 8
            case 9 | 10:
                item, size = self._list()
                for _ in range(size):
                    self._skip(item, nesting - 1, listed=True)
            case 12:
                while (byte := self._data[self.at]) != 0:
                    self.at += 1
                    if not byte >> 4:
                        self._number(I32)
                    self._skip(byte & 15, nesting - 1)
                self.at += 1
            case _:  # no structure of Parquet's has maps
                raise Damaged("a field is of no known type")
