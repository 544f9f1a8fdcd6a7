"""Amounts as people read them: bytes, counts, shapes; and text made safe to print on a terminal. No I/O here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["bytes_text", "count_text", "printable", "shape_text"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
# What moves a cursor, rings, starts an escape sequence, or turns the direction of writing.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def bytes_text(count: int) -> str:
    """Return ``count`` bytes with a unit.

    >>> bytes_text(999), bytes_text(1536), bytes_text(123_456_789)
    ('999 B', '1.5 KiB', '118 MiB')
    """
    amount, unit = float(count), 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count:,} B" if unit == 0 else f"{amount:.{1 if amount < 9.95 else 0}f} {_UNITS[unit]}"


def count_text(count: int, singular: str, plural: str = "") -> str:
    """Return how many there are of what.

    >>> count_text(1, "chunk"), count_text(1234, "chunk"), count_text(2, "key", "keys in all")
    ('1 chunk', '1,234 chunks', '2 keys in all')
    """
    return f"1 {singular}" if count == 1 else f"{count:,} {plural or singular + 's'}"


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape, "scalar" for that of no dimensions."""
    return " × ".join(map(str, shape)) or "scalar"


def printable(text: str) -> str:
    r"""Return ``text`` with control characters spelled out, so that a key cannot steer a terminal.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)
