"""CF times in the units of others, where that changes no instant: exact arithmetic on whole numbers. No I/O here.

CF conventions, section 4.4. Only units of fixed length are known (no months, no years), and reference times in UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

UNITS: Final = ("units", "calendar")  # attributes that say the units of times
SECONDS: Final = {
    **dict.fromkeys(("second", "sec", "s"), 1),
    **dict.fromkeys(("minute", "min"), 60),
    **dict.fromkeys(("hour", "hr", "h"), 3600),
    **dict.fromkeys(("day", "d"), 86400),
}
GREGORIAN: Final = ("standard", "proleptic_gregorian")
CHANGE: Final = (1582, 10, 15)  # the standard calendar is Julian before
_NAMES: Final = {86400: "days", 3600: "hours", 60: "minutes", 1: "seconds"}
CALENDARS: Final = (*GREGORIAN, "julian", "noleap", "all_leap", "360_day")
_SYNONYMS: Final = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}

_UNITS = re.compile(r"\s*([A-Za-z]+?)s?\s+since\s+(.+?)\s*", re.IGNORECASE)
_TIME = re.compile(
    r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[T ]\s*(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.0*)?)?)?"
    r"\s*(?:Z|UTC|GMT|[+-]00?:?(?:00)?)?"
)


class TimeUnits(NamedTuple):
    """Units of times: the seconds of one, the time that they count from, in seconds of the calendar, and that."""

    seconds: int
    since: int
    calendar: str

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> TimeUnits:
        """Return the units that attributes say; ValueError, saying why, if these are none of times."""
        seconds, since = parsed_units(attributes.get("units"))
        calendar = calendar_of(attributes)
        return cls(seconds, _instant(since, calendar), calendar)

    def converted(self, values: npt.NDArray[Any], to: TimeUnits) -> npt.NDArray[Any]:
        """Return numbers of these units as numbers of others, 64 bits wide; ValueError where an instant would change.

        A floating-point number that lies as close to a whole number of the others as its type tells apart is meant as
        that: 1/24 day is an hour. NaN stays NaN.
        """
        if self.calendar != to.calendar:
            raise ValueError(f"its calendar is {self.calendar!r}, not {to.calendar!r}")
        if values.dtype.kind not in "iuf":
            raise ValueError(f"its type is {values.dtype}, no number")
        shift = self.since - to.since
        distinct, where = np.unique(values, return_inverse=True)
        found = [self._number(value, shift, to) for value in distinct]
        try:
            out = np.array(found, np.float64 if values.dtype.kind == "f" else np.int64)
        except OverflowError as e:
            raise ValueError("its values in the other units are beyond 64 bits") from e
        return out[where].reshape(values.shape)

    def _number(self, value: Any, shift: int, to: TimeUnits) -> int | float:
        if isinstance(value, np.integer):
            whole, rest = divmod(int(value) * self.seconds + shift, to.seconds)
            if rest:
                raise ValueError(f"{value} is no whole number in the other units")
            return whole
        if not np.isfinite(value):
            return float(value)
        exact = (Fraction(float(value)) * self.seconds + shift) / to.seconds
        nearest = round(exact)
        if abs(exact - nearest) * to.seconds <= Fraction(float(np.spacing(np.abs(value)))) * self.seconds:
            return nearest
        if Fraction(float(exact)) != exact:
            raise ValueError(f"{value} is not exactly a number in the other units")
        return float(exact)


def finest(units: Iterable[TimeUnits]) -> int:
    """Return the seconds of the longest unit, from the first one's reference time, of which all are whole numbers."""
    every = list(units)
    common = math.gcd(*(each.seconds for each in every), *(each.since - every[0].since for each in every))
    return next(seconds for seconds in _NAMES if common % seconds == 0)


def spelled(seconds: int, like: object) -> str:
    """Return units of that many seconds that count from the time that those of ``like`` do."""
    return f"{_NAMES[seconds]} since {parsed_units(like)[1]}"


def is_time(attributes: Mapping[str, Any]) -> bool:
    """Whether an array's units are of times."""
    units = attributes.get("units")
    return isinstance(units, str) and _UNITS.fullmatch(units) is not None


def calendar_of(attributes: Mapping[str, Any]) -> str:
    """Return the calendar of times, by one name where CF has several."""
    calendar = str(attributes.get("calendar") or "standard").lower()
    return _SYNONYMS.get(calendar, calendar)


def parsed_units(units: object) -> tuple[int, str]:
    """Return the seconds of the unit, and the reference time."""
    match = _UNITS.fullmatch(units) if isinstance(units, str) else None
    seconds = SECONDS.get(match[1].lower()) if match is not None else None
    if match is None or seconds is None:
        raise ValueError(f"{units!r} are no seconds, minutes, hours or days since a time")
    return seconds, match[2]


def instant(text: str) -> datetime:
    """Return the time that the units of CF times count from; ValueError if it is none in UTC."""
    try:
        return datetime(*_fields(text))  # type: ignore[arg-type]  # six integers
    except ValueError as e:
        raise ValueError(f"{text!r} is no date and time: {e}") from e


def _fields(text: str) -> tuple[int, ...]:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no date and time in UTC")
    return tuple(int(number or 0) for number in match.groups())


def _instant(text: str, calendar: str) -> int:
    """Return the seconds of a time since a day that is the same for all times of the calendar."""
    if calendar not in CALENDARS:
        raise ValueError(f"the calendar {calendar!r} is not known")
    year, month, day, hour, minute, second = _fields(text)
    date, shift, rule = (year, month, day), 0, calendar
    if calendar == "standard":
        # Its days are counted as Gregorian ones: the first day of the Julian calendar is two days earlier.
        shift, rule = (-2, "julian") if date < CHANGE else (0, "proleptic_gregorian")
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= _days(year, month, rule)):
        raise ValueError(f"{text!r} is no date of the calendar {calendar!r}")
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{text!r} is no date and time: its hours, minutes or seconds are too many")
    if calendar == "standard" and (1582, 10, 4) < date < CHANGE:
        raise ValueError(f"{text!r} is no date of the calendar {calendar!r}, which leaves out ten days there")
    before = (360 if rule == "360_day" else 365) * (year - 1) + _leap_days(year - 1, rule)
    days = before + sum(_days(year, earlier, rule) for earlier in range(1, month)) + day + shift
    return days * 86400 + hour * 3600 + minute * 60 + second


def _days(year: int, month: int, calendar: str) -> int:
    if calendar == "360_day":
        return 30
    if month == 2:
        return 28 + _leap_days(year, calendar) - _leap_days(year - 1, calendar)
    return 30 if month in (4, 6, 9, 11) else 31


def _leap_days(year: int, calendar: str) -> int:
    """Return how many leap days there are until the end of a year."""
    match calendar:
        case "noleap" | "360_day":
            return 0
        case "all_leap":
            return year
        case "julian":
            return year // 4
    return year // 4 - year // 100 + year // 400
