"""A selection as people write it, ``air[0:10, :, -1]``, read without evaluating anything. Pure."""

from __future__ import annotations

import re
from types import EllipsisType
from typing import Final

__all__ = ["parse_selection"]

Part = int | slice | EllipsisType
_INTEGER: Final = re.compile(r"[+-]?\d{1,18}")


def parse_selection(text: str) -> tuple[str, tuple[Part, ...]]:
    """Return the array (empty if none is named) and the selection in ``text``; ValueError if it is none.

    >>> parse_selection("g/air[0:10, ..., -1]")
    ('g/air', (slice(0, 10, None), Ellipsis, -1))
    """
    name, bracket, inside = text.strip().rpartition("[")
    if not bracket or not inside.endswith("]"):
        raise ValueError(f'{text!r} is no selection: write one as "air[0:10, :, -1]"')
    parts = inside[:-1].split(",")
    if len(parts) > 1 and not parts[-1].strip():  # as in [1,]
        parts.pop()
    return name.strip().strip("/"), tuple(_part(part.strip(), text) for part in parts)


def _part(part: str, text: str) -> Part:
    if part == "...":
        return ...
    bounds = [bound.strip() for bound in part.split(":")]
    if len(bounds) > 3 or not all(_INTEGER.fullmatch(bound) or (not bound and len(bounds) > 1) for bound in bounds):
        raise ValueError(f"{part!r} in {text!r} is no index: use integers, slices such as 0:10 or ::2, and ...")
    numbers = [int(bound) if bound else None for bound in bounds]
    if len(numbers) == 1 and numbers[0] is not None:
        return numbers[0]
    if numbers[2:] == [0]:
        raise ValueError(f"{part!r} in {text!r} has a step of 0")
    return slice(*numbers)
