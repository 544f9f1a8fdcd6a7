"""Convert CF times to other units. Instants do not change, unless the caller permits rounding. No I/O here.

See the CF conventions, section 4.4. Only units of fixed length are supported (no months, no years), and reference
times in UTC. Lengths of units and reference times are whole numbers of nanoseconds.
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

UNITS: Final = ("units", "calendar")  # the attributes with the units of times
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
# Most sources mean whole seconds: 1/24 day is an hour. A number is rounded to a multiple of the first of these grains
# (nanoseconds) for which rounding changes it by no more than its precision.
_GRAINS: Final = (SECOND, 10**6, 10**3)
_SLACK: Final = 10**6  # the most nanoseconds by which a number, of any type, may differ from the instant that it means
GREGORIAN: Final = ("standard", "proleptic_gregorian")
CHANGE: Final = (1582, 10, 15)  # the first Gregorian day of the standard calendar, which is Julian before
CALENDARS: Final = (*GREGORIAN, "julian", "noleap", "all_leap", "360_day")
_SYNONYMS: Final = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}

_UNITS = re.compile(r"\s*([A-Za-z]+?)s?\s+since\s+(.+?)\s*", re.IGNORECASE)
_TIME = re.compile(
    r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[T ]\s*(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.0*)?)?)?"
    r"\s*(?:Z|UTC|GMT|[+-]00?:?(?:00)?)?"
)


class TimeUnits(NamedTuple):
    """Units of times: their length and their reference time, in nanoseconds, and the calendar of the reference time.

    ``standard`` and ``proleptic_gregorian`` count the same days, under different dates before 1582.
    """

    length: int
    since: int
    calendar: str

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> TimeUnits:
        """Parse the units of times in attributes; ValueError, with the reason, if they are not units of times."""
        length, since = parse_units(attributes.get("units"))
        calendar = get_calendar(attributes)
        return cls(length, _count_seconds(since, calendar) * SECOND, get_calendar_family(calendar))

    def convert(self, values: npt.NDArray[Any], to: TimeUnits, *, rounded: bool = False) -> npt.NDArray[Any]:
        """Convert numbers of these units to other units, with 64 bits; ValueError if an instant would change.

        A floating-point number means a whole second, millisecond or microsecond if the difference is at most the
        precision of its type. With ``rounded``, an instant without an exact number becomes the closest one. NaN stays
        NaN.
        """
        if self.calendar != to.calendar:
            raise ValueError(
                f"its calendar counts days as {self.calendar!r}: expected {to.calendar!r}, or one with the same days"
            )
        if values.dtype.kind not in "iuf":
            raise ValueError(f"expected numbers, got values of type {values.dtype}")
        distinct, where = np.unique(values, return_inverse=True)
        found = [self._convert_number(value, to, rounded=rounded) for value in distinct]
        try:
            out = np.array(found, np.float64 if rounded or values.dtype.kind == "f" else np.int64)
        except OverflowError as e:
            largest = max(found, key=abs)
            raise ValueError(f"expected values that fit into 64 bits in the other units, found {largest}") from e
        return out[where].reshape(values.shape)

    def _convert_number(self, value: Any, to: TimeUnits, *, rounded: bool) -> int | float:
        shift = self.since - to.since
        if isinstance(value, np.integer):
            wanted = Fraction(int(value) * self.length + shift, to.length)
            if wanted.denominator != 1 and not rounded:
                raise ValueError(f"expected whole numbers in the other units, got the fraction {wanted} for {value}")
            return float(wanted) if rounded else int(wanted)
        if not np.isfinite(value):
            return float(value)
        wanted = (self._to_nanoseconds(value) + shift) / to.length
        if not rounded and Fraction(float(wanted)) != wanted:
            raise ValueError(f"{value} cannot be stored exactly in the other units")
        return float(wanted)

    def _to_nanoseconds(self, value: np.floating[Any]) -> Fraction:
        """Return the nanoseconds that a number means."""
        exact = Fraction(float(value)) * self.length
        slack = min(Fraction(float(np.spacing(np.abs(value)))) * self.length, Fraction(_SLACK))
        for grain in _GRAINS:
            whole = Fraction(round(exact / grain) * grain)
            if 4 * slack < grain and abs(exact - whole) <= slack:
                return whole
        return exact

    def snap(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return ``values`` in which numbers that mean the same instant are equal.

        A number that means a whole second, millisecond or microsecond becomes the number closest to it.
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
        """Return whether all instants have the same dates in the standard and in the proleptic Gregorian calendar."""
        known = values[np.isfinite(values)] if values.dtype.kind == "f" else values
        first = _count_seconds("-".join(map(str, CHANGE)), GREGORIAN[0]) * SECOND
        return not known.size or int(known.min()) * self.length + self.since >= first


def find_common_unit(units: Iterable[TimeUnits]) -> int:
    """Return the length of the longest unit in which times of all ``units`` are integers since the first reference."""
    every = list(units)
    common = math.gcd(*(unit.length for unit in every), *(unit.since - every[0].since for unit in every))
    return next(length for length in _NAMES if common % length == 0)


def list_finer_units(length: int, like: object) -> list[str]:
    """Return all units of at most this ``length``, the longest first, with the reference time of the units ``like``."""
    return [f"{name} since {parse_units(like)[1]}" for known, name in _NAMES.items() if known <= length]


def is_time(attributes: Mapping[str, Any]) -> bool:
    """Return whether the units of an array count time since an instant, as in ``days since 2000-01-01``."""
    units = attributes.get("units")
    return isinstance(units, str) and _UNITS.fullmatch(units) is not None


def get_calendar(attributes: Mapping[str, Any]) -> str:
    """Return the calendar in ``attributes``, by one of its names in CF: always the same one, in small letters."""
    calendar = str(attributes.get("calendar") or "standard").lower()
    return _SYNONYMS.get(calendar, calendar)


def are_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the attributes of two arrays of times have the same units, in any spelling."""
    try:
        return TimeUnits.of(one) == TimeUnits.of(other)
    except ValueError:
        return one.get("units") == other.get("units") and get_calendar(one) == get_calendar(other)


def get_calendar_family(calendar: str) -> str:
    """Return the calendar that counts the same days: "standard" for both Gregorian calendars, else ``calendar``."""
    return GREGORIAN[0] if calendar in GREGORIAN else calendar


def parse_units(units: object) -> tuple[int, str]:
    """Return the length of the unit in nanoseconds, and the text of the reference time."""
    match = _UNITS.fullmatch(units) if isinstance(units, str) else None
    name = "" if match is None else match[1].lower()
    length = _LENGTHS.get(name) or _LENGTHS.get(f"{name}s")  # "ms" and "s" end like a plural
    if match is None or length is None:
        raise ValueError(f"expected a unit from nanoseconds to days since a time, got {units!r}")
    return length, match[2]


def format_time(value: Any, attributes: Mapping[str, Any]) -> str:
    """Return the date of a CF time after 1582 in a Gregorian calendar; for other times, the number and its units."""
    with suppress(ValueError, OverflowError):
        length, since = parse_units(attributes.get("units"))
        begin = parse_instant(since)
        time = begin + timedelta(microseconds=round(float(value) * length / 1000))
        if get_calendar_family(get_calendar(attributes)) == GREGORIAN[0] and min(begin, time).year > CHANGE[0]:
            return str(time.date() if time == datetime(time.year, time.month, time.day) else time)
    return f"{value} {attributes.get('units')}"


def parse_instant(text: str) -> datetime:
    """Parse the reference time of CF units; ValueError if it is not a time in UTC."""
    try:
        return datetime(*_parse_fields(text))  # type: ignore[arg-type]  # six integers
    except ValueError as e:
        raise ValueError(f"expected a date and time, got {text!r}: {e}") from e


def _parse_fields(text: str) -> tuple[int, ...]:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a date and time in UTC, got {text!r}")
    return tuple(int(number or 0) for number in match.groups())


def _count_seconds(text: str, calendar: str) -> int:
    """Return the seconds from day 0 of the calendar's family to a time; ValueError if it is not in the calendar."""
    if calendar not in CALENDARS:
        raise ValueError(f"unknown calendar {calendar!r}: expected one of {', '.join(sorted(CALENDARS))}")
    year, month, day, hour, minute, second = _parse_fields(text)
    date, shift, rule = (year, month, day), 0, calendar
    if calendar == "standard":
        # Count all days from the Gregorian 0001-01-01: the Julian 0001-01-01 is two days earlier.
        shift, rule = (-2, "julian") if date < CHANGE else (0, "proleptic_gregorian")
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= _count_days(year, month, rule)):
        raise ValueError(f"expected a date of the calendar {calendar!r}, got {text!r}")
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{text!r} is not a time of day: expected at most 23 hours, 59 minutes and 59 seconds")
    if calendar == "standard" and (1582, 10, 4) < date < CHANGE:
        raise ValueError(
            f"expected a date of the calendar {calendar!r}, which skips 5 to 14 October 1582, got {text!r}"
        )
    before = (360 if rule == "360_day" else 365) * (year - 1) + _count_leap_days(year - 1, rule)
    days = before + sum(_count_days(year, earlier, rule) for earlier in range(1, month)) + day + shift
    return days * 86400 + hour * 3600 + minute * 60 + second


def _count_days(year: int, month: int, calendar: str) -> int:
    if calendar == "360_day":
        return 30
    if month == 2:
        return 28 + _count_leap_days(year, calendar) - _count_leap_days(year - 1, calendar)
    return 30 if month in (4, 6, 9, 11) else 31


def _count_leap_days(year: int, calendar: str) -> int:
    """Return the number of leap days from year 1 to the end of ``year``."""
    match calendar:
        case "noleap" | "360_day":
            return 0
        case "all_leap":
            return year
        case "julian":
            return year // 4
    return year // 4 - year // 100 + year // 400
