"""Parse and format selections as people write them, such as ``air[0:10, :, -1]``; no code is evaluated. No I/O here."""

from __future__ import annotations

import re
from types import EllipsisType
from typing import Any, Final

import numpy as np

_INDEX: Final = re.compile(r"[+-]?\d{1,18}|(\s*([+-]?\d{1,18})?\s*:){1,2}\s*([+-]?\d{1,18})?", re.ASCII)
AxisIndex = int | slice | EllipsisType


def parse_selection(text: str) -> tuple[str, tuple[AxisIndex, ...]]:
    """Return the array (empty if none is named) and the selection in ``text``; ValueError if it is malformed.

    >>> parse_selection("g/air[0:10, ..., -1]")
    ('g/air', (slice(0, 10, None), Ellipsis, -1))
    """
    name, bracket, inside = text.strip().rpartition("[")
    if not bracket or not inside.endswith("]"):
        raise ValueError(f'{text!r} is not a selection: write one as "air[0:10, :, -1]"')
    parts = inside[:-1].split(",")
    if len(parts) > 1 and not parts[-1].strip():  # such as [1,]
        parts.pop()
    return name.strip().strip("/"), tuple(_parse_part(part.strip(), text) for part in parts)


def _parse_part(part: str, text: str) -> AxisIndex:
    if part == "...":
        return ...
    if not _INDEX.fullmatch(part):
        raise ValueError(f"{part!r} in {text!r} is not an index: use integers, slices such as 0:10 or ::2, and ...")
    bounds = [int(bound) if bound.strip() else None for bound in part.split(":")]
    if bounds[2:] == [0]:
        raise ValueError(f"{part!r} in {text!r} has the step 0: expected another step")
    return slice(*bounds) if ":" in part else int(part)


def format_selection(select: Any) -> str:
    """Return the text of a selection, as written between brackets."""
    return ", ".join(map(_format_part, select if isinstance(select, tuple) else (select,)))


def _format_part(part: Any) -> str:
    match part:
        case slice(start=start, stop=stop, step=step):
            bounds = ":".join("" if bound is None else str(bound) for bound in (start, stop))
            return bounds if step is None else f"{bounds}:{step}"
        case _ if part is Ellipsis:
            return "..."
    return np.array2string(np.asarray(part), threshold=4, separator=", ")
