"""CF times in the units of others, where that changes no instant: exact arithmetic on whole numbers. No I/O here.

CF conventions, section 4.4. Only units of fixed length are known (no months, no years), and reference times in UTC.
Lengths and instants are whole numbers of nanoseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

UNITS: Final = ("units", "calendar")  # attributes that say the units of times
SECOND: Final = 10**9
_LENGTHS: Final = {
    **dict.fromkeys(("nanosecond", "nanosec", "ns"), 1),
    **dict.fromkeys(("microsecond", "microsec", "us"), 10**3),
    **dict.fromkeys(("millisecond", "millisec", "msec", "ms"), 10**6),
    **dict.fromkeys(("second", "sec", "s"), SECOND),
    **dict.fromkeys(("minute", "min"), 60 * SECOND),
    **dict.fromkeys(("hour", "hr", "h"), 3600 * SECOND),
    **dict.fromkeys(("day", "d"), 86400 * SECOND),
}
_NAMES: Final = {
    86400 * SECOND: "days",
    3600 * SECOND: "hours",
    60 * SECOND: "minutes",
    SECOND: "seconds",
    10**6: "milliseconds",
    10**3: "microseconds",
    1: "nanoseconds",
}  # the longest first
# Sources mean whole seconds, mostly: 1/24 day is an hour. The closest of these that a number's precision tells apart.
_GRAINS: Final = (SECOND, 10**6, 10**3)
_SLACK: Final = 10**6  # nanoseconds that a number may be off what it means, whatever its type
GREGORIAN: Final = ("standard", "proleptic_gregorian")
CHANGE: Final = (1582, 10, 15)  # the standard calendar is Julian before
CALENDARS: Final = (*GREGORIAN, "julian", "noleap", "all_leap", "360_day")
_SYNONYMS: Final = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}

_UNITS = re.compile(r"\s*([A-Za-z]+?)s?\s+since\s+(.+?)\s*", re.IGNORECASE)
_TIME = re.compile(
    r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[T ]\s*(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.0*)?)?)?"
    r"\s*(?:Z|UTC|GMT|[+-]00?:?(?:00)?)?"
)


class TimeUnits(NamedTuple):
    """Units of times: the length of one, the time that they count from, on the scale of the calendar, and that.

    ``standard`` and ``proleptic_gregorian`` have one scale, on which days follow each other, whatever they are called.
    """

    length: int
    since: int
    calendar: str

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> TimeUnits:
        """Return the units that attributes say; ValueError, saying why, if these are not units of times."""
        length, since = parse_units(attributes.get("units"))
        calendar = calendar_of(attributes)
        return cls(length, _instant(since, calendar) * SECOND, family_of(calendar))

    def convert(self, values: npt.NDArray[Any], to: TimeUnits, *, rounded: bool = False) -> npt.NDArray[Any]:
        """Convert numbers of these units to other units, with 64 bits; ValueError if an instant would change.

        A floating-point number as close to a whole second as its type tells apart means that second. If ``rounded``, an
        instant without an exact floating-point number becomes the closest number. NaN stays NaN.
        """
        if self.calendar != to.calendar:
            raise ValueError(f"its calendar is {self.calendar!r}, not {to.calendar!r}")
        if values.dtype.kind not in "iuf":
            raise ValueError(f"its type is {values.dtype}, no number")
        distinct, where = np.unique(values, return_inverse=True)
        found = [self._number(value, to, rounded=rounded) for value in distinct]
        try:
            out = np.array(found, np.float64 if rounded or values.dtype.kind == "f" else np.int64)
        except OverflowError as e:
            raise ValueError("in the other units, its values do not fit into 64 bits") from e
        return out[where].reshape(values.shape)

    def _number(self, value: Any, to: TimeUnits, *, rounded: bool) -> int | float:
        shift = self.since - to.since
        if isinstance(value, np.integer):
            wanted = Fraction(int(value) * self.length + shift, to.length)
            if wanted.denominator != 1 and not rounded:
                raise ValueError(f"{value} would not be a whole number in the other units")
            return float(wanted) if rounded else int(wanted)
        if not np.isfinite(value):
            return float(value)
        wanted = (self._to_nanoseconds(value) + shift) / to.length
        if not rounded and Fraction(float(wanted)) != wanted:
            raise ValueError(f"{value} is not exactly a number in the other units")
        return float(wanted)

    def _to_nanoseconds(self, value: np.floating[Any]) -> Fraction:
        """Return the nanoseconds that a number stands for."""
        exact = Fraction(float(value)) * self.length
        slack = min(Fraction(float(np.spacing(np.abs(value)))) * self.length, Fraction(_SLACK))
        for grain in _GRAINS:
            whole = Fraction(round(exact / grain) * grain)
            if 4 * slack < grain and abs(exact - whole) <= slack:
                return whole
        return exact

    def snap(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return numbers of these units so that those which mean the same instant are equal.

        Those as close to a whole second as their type tells apart become the floating-point number of that second.
        """
        if values.dtype.kind != "f":
            return values
        wide = values.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            slack = np.minimum(np.spacing(np.abs(values)).astype(np.float64), _SLACK / self.length)
            for grain in reversed(_GRAINS):
                if self.length % grain == 0:
                    whole = np.rint(wide * (self.length // grain)) / (self.length // grain)
                    near = (np.abs(wide - whole) <= slack) & (4 * slack * self.length < grain)
                    wide = np.where(near, whole, wide)
        return wide

    def is_gregorian(self, values: npt.NDArray[Any]) -> bool:
        """Whether all instants are such that the standard calendar and the proleptic one name them alike."""
        known = values[np.isfinite(values)] if values.dtype.kind == "f" else values
        first = _instant("-".join(map(str, CHANGE)), GREGORIAN[0]) * SECOND
        return not known.size or int(known.min()) * self.length + self.since >= first


def finest(units: Iterable[TimeUnits]) -> int:
    """Return the length of the longest unit that counts all of them as integers from the first one's reference time."""
    every = list(units)
    common = math.gcd(*(each.length for each in every), *(each.since - every[0].since for each in every))
    return next(length for length in _NAMES if common % length == 0)


def finer(length: int, like: object) -> list[str]:
    """Return all units of that length or less that count from the time that those of ``like`` do, the longest first."""
    return [f"{_NAMES[each]} since {parse_units(like)[1]}" for each in _NAMES if each <= length]


def is_time(attributes: Mapping[str, Any]) -> bool:
    """Whether an array has units of time."""
    units = attributes.get("units")
    return isinstance(units, str) and _UNITS.fullmatch(units) is not None


def calendar_of(attributes: Mapping[str, Any]) -> str:
    """Return the calendar of times, by one name where CF has several."""
    calendar = str(attributes.get("calendar") or "standard").lower()
    return _SYNONYMS.get(calendar, calendar)


def are_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether attributes of two arrays of times say the same units, however they spell them."""
    try:
        return TimeUnits.of(one) == TimeUnits.of(other)
    except ValueError:
        return one.get("units") == other.get("units") and calendar_of(one) == calendar_of(other)


def family_of(calendar: str) -> str:
    """Return the calendar by which a calendar counts days."""
    return GREGORIAN[0] if calendar in GREGORIAN else calendar


def parse_units(units: object) -> tuple[int, str]:
    """Return the nanoseconds of the unit, and the reference time."""
    match = _UNITS.fullmatch(units) if isinstance(units, str) else None
    name = "" if match is None else match[1].lower()
    length = _LENGTHS.get(name) or _LENGTHS.get(f"{name}s")  # "ms" and "s" end like a plural
    if match is None or length is None:
        raise ValueError(f"expected seconds, minutes, hours or days since a time, got {units!r}")
    return length, match[2]


def format_time(value: Any, attributes: Mapping[str, Any]) -> str:
    """Return a CF time as a date; as a number with its units, where Python has no date for it."""
    with suppress(ValueError, OverflowError):
        length, since = parse_units(attributes.get("units"))
        begin = instant(since)
        time = begin + timedelta(microseconds=round(float(value) * length / 1000))
        if family_of(calendar_of(attributes)) == GREGORIAN[0] and min(begin, time).year > CHANGE[0]:
            return str(time.date() if time == datetime(time.year, time.month, time.day) else time)
    return f"{value} {attributes.get('units')}"


def instant(text: str) -> datetime:
    """Return the time that the units of CF times count from; ValueError if it is not in UTC."""
    try:
        return datetime(*_fields(text))  # type: ignore[arg-type]  # six integers
    except ValueError as e:
        raise ValueError(f"expected a date and time, got {text!r}: {e}") from e


def _fields(text: str) -> tuple[int, ...]:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a date and time in UTC, got {text!r}")
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
        raise ValueError(f"{text!r} is not a date of the calendar {calendar!r}")
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{text!r} is not a date and time: its hours, minutes or seconds are too many")
    if calendar == "standard" and (1582, 10, 4) < date < CHANGE:
        raise ValueError(f"{text!r} is not a date of the calendar {calendar!r}, which skips ten days there")
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
