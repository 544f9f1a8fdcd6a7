"""CF times in the units of others, where that changes no instant: whole numbers, exact arithmetic. No I/O here.

CF conventions, section 4.4. Only units of fixed length are known (no months, no years). Reference times that differ
need a Gregorian calendar: in any other one, only the length of the unit may differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["in_units_of"]

SECONDS: Final = {
    **dict.fromkeys(("second", "sec", "s"), 1),
    **dict.fromkeys(("minute", "min"), 60),
    **dict.fromkeys(("hour", "hr", "h"), 3600),
    **dict.fromkeys(("day", "d"), 86400),
}
GREGORIAN: Final = ("standard", "gregorian", "proleptic_gregorian")
FIRST: Final = datetime(1582, 10, 15)  # the standard calendar is Julian before
EXACT: Final = 2**53  # floating-point numbers up to it are whole numbers without a gap
# Attributes by which other values depend on these units, or which make the values something else than numbers of units.
TIED: Final = ("bounds", "climatology", "scale_factor", "add_offset")

_UNITS = re.compile(r"\s*([A-Za-z]+?)s?\s+since\s+(.+?)\s*", re.IGNORECASE)
_TIME = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ]\s*(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.0+)?)?)?\s*(?:Z|UTC|GMT|\+00:?00)?"
)


def in_units_of(
    values: npt.NDArray[Any], theirs: Mapping[str, Any], ours: Mapping[str, Any], fills: list[Any]
) -> npt.NDArray[Any]:
    """Return ``values``, whose attributes are ``theirs``, in the units of ``ours``; ValueError, saying why, if not.

    ``fills`` stand for missing values: none may be in it, or come of it.
    """
    tied = next((name for name in TIED if name in theirs or name in ours), None)
    if tied is not None:
        raise ValueError(f"it has the attribute {tied}, which ties its units to another variable")
    if values.dtype.kind not in "iuf":
        raise ValueError(f"its type is {values.dtype}, no number")
    unit, since = _parsed(theirs.get("units"))
    new_unit, new_since = _parsed(ours.get("units"))
    shift = 0 if since == new_since else _seconds_between(since, new_since, theirs, ours)
    if values.dtype.kind == "f" and not (np.isfinite(values).all() and (values == np.rint(values)).all()):
        raise ValueError("not all of its values are whole numbers")
    whole = [int(value) for value in values.tolist()]
    found = []
    for value in whole:
        new, rest = divmod(value * unit + shift, new_unit)
        if rest:
            raise ValueError(f"{value} is no whole number in the other units")
        found.append(new)
    info = np.iinfo(values.dtype) if values.dtype.kind in "iu" else None
    least, most = (-EXACT, EXACT) if info is None else (int(info.min), int(info.max))
    out = np.zeros(len(found), values.dtype)
    if all(least <= number <= most for number in (*whole, *found)):
        out[:] = found
    if out.tolist() != found:
        raise ValueError(f"its values in the other units are beyond the type {values.dtype}")
    for fill in fills:
        if isinstance(fill, int | float) and (fill in whole or fill in found):
            raise ValueError(f"the value {fill}, which stands for missing ones, is among its values")
    return out


def _parsed(units: object) -> tuple[int, str]:
    """Return the seconds of the unit, and the reference time."""
    match = _UNITS.fullmatch(units) if isinstance(units, str) else None
    seconds = SECONDS.get(match[1].lower()) if match is not None else None
    if match is None or seconds is None:
        raise ValueError(f"{units!r} are no seconds, minutes, hours or days since a time")
    return seconds, match[2]


def _seconds_between(since: str, new_since: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> int:
    calendar = theirs.get("calendar", "standard")
    if calendar not in GREGORIAN or ours.get("calendar", "standard") != calendar:
        raise ValueError(f"times since others are not known in the calendar {calendar!r}")
    begin, end = _instant(new_since), _instant(since)
    if calendar != "proleptic_gregorian" and min(begin, end) < FIRST:
        raise ValueError("the standard calendar changes before 1582-10-15")
    between = end - begin
    return between.days * 86400 + between.seconds


def _instant(text: str) -> datetime:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no date and time in UTC")
    try:
        return datetime(*(int(number or 0) for number in match.groups()))  # type: ignore[arg-type]  # six integers
    except ValueError as e:
        raise ValueError(f"{text!r} is no date and time: {e}") from e
