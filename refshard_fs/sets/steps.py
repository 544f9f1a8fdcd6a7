"""Values of a coordinate at equal distances: every ``freq``. No I/O here."""

from __future__ import annotations

import re
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.cubes.cf_times import (
    CHANGE,
    GREGORIAN,
    SECOND,
    TimeUnits,
    get_calendar,
    parse_instant,
    parse_units,
)
from refshard_fs.errors import ManifestError
from refshard_fs.sets.coordinates import format_value
from refshard_fs.sets.variables import MOST, NamedSet, Variable

_FREQUENCY: Final = re.compile(r"\s*(\d*)\s*([A-Za-z]+)\s*")


# Seconds, as pandas spells them.
_SECONDS: Final = {
    **dict.fromkeys(("s", "S"), 1),
    **dict.fromkeys(("min", "T"), 60),
    **dict.fromkeys(("h", "H"), 3600),
    **dict.fromkeys(("D", "d"), 86400),
    "W": 7 * 86400,
}


_MONTH: Final = 146_097 * 86400 // 4800  # seconds of a Gregorian month, on average


_MONTHS: Final = {"MS": 1, "QS": 3, "YS": 12, "AS": 12}


class Steps(msgspec.Struct, frozen=True):
    """Values at equal distances of ``step`` units of the coordinate; or of ``months``, whose average is ``step``."""

    first: Any
    dtype: np.dtype[Any]
    step: Fraction
    months: int = 0
    unit: int = SECOND  # nanoseconds of a unit of the coordinate, for steps of months
    since: Any = None  # the instant from which the coordinate counts, for steps of months
    units: TimeUnits | None = None

    @classmethod
    def of(cls, freq: str | float, variable: Variable, first: Any, name: str) -> Steps:
        """Parse ``freq=`` for a coordinate of the set ``name`` that begins with ``first``; ManifestError if invalid."""
        dtype = np.dtype(first.dtype)
        where = f"freq={freq!r} and the units {variable.attributes.get('units')!r} of {variable.path!r} of {name}"
        if dtype.kind not in "iuf":
            raise ManifestError(
                f"freq={freq!r}: expected a coordinate of numbers, found {variable.path!r} of {name} with type {dtype}"
            )
        try:
            if not isinstance(freq, str):
                steps = cls(first, dtype, Fraction(freq))
            else:
                match = _FREQUENCY.fullmatch(freq)
                count, spelling = (int(match[1] or 1), match[2]) if match else (0, "")
                if not count or spelling not in {*_SECONDS, *_MONTHS}:
                    raise ValueError(f"expected a number of {', '.join([*_SECONDS, *_MONTHS])}")
                unit, since = parse_units(variable.attributes.get("units"))
                if spelling in _SECONDS:
                    length = Fraction(_SECONDS[spelling] * count * SECOND, unit)
                    steps = cls(first, dtype, length, units=TimeUnits.of(variable.attributes))
                else:
                    calendar = get_calendar(variable.attributes)
                    if calendar not in GREGORIAN:
                        raise ValueError(f"expected a standard calendar for steps of months, found {calendar!r}")
                    begin = parse_instant(since)
                    if calendar != "proleptic_gregorian" and begin < datetime(*CHANGE):
                        raise ValueError(
                            f"expected times since 1582-10-15 or later, because the calendar {calendar!r} is Julian "
                            f"before, found times since {since}"
                        )
                    months = _MONTHS[spelling] * count
                    step = Fraction(months * _MONTH * SECOND, unit)
                    steps = cls(first, dtype, step, months, unit, np.datetime64(begin, "s"))
        except ValueError as e:
            raise ManifestError(f"{where}: {e}") from e
        if not steps.months and (steps.step <= 0 or (dtype.kind in "iu" and steps.step.denominator != 1)):
            expected = "expected a whole number of at least 1" if dtype.kind in "iu" else "expected a number above 0"
            raise ManifestError(f"{where}: a step is {steps.step} of these units: {expected}, because they are {dtype}")
        return steps

    def count_steps(self, values: npt.NDArray[Any], part: NamedSet, dim: str) -> npt.NDArray[Any]:
        """Return the numbers of steps from the first value to ``values``; ManifestError if one is not an integer."""
        numbers = values.astype(np.float64)
        places: npt.NDArray[Any] = np.rint((numbers - float(self.first)) / float(self.step)).astype(np.int64)
        near = float(self.step) * 1e-6 if self.dtype.kind == "f" and not self.months else 0.0
        apart = np.flatnonzero(~(np.abs(self.compute_values(places).astype(np.float64) - numbers) <= near))
        if len(apart):
            value, first = (format_value(each, part, dim) for each in (values[apart[0]], self.first))
            raise ManifestError(
                f"{part.name} has {dim} = {value}, which is not on the grid of freq= that begins at {first}: give "
                "another freq=, or leave the set out"
            )
        return places

    def fill_in(self, values: npt.NDArray[Any], part: NamedSet, dim: str) -> npt.NDArray[Any]:
        """Return ``values`` and all steps between them; ``values`` begin with ``first``."""
        last = int(self.count_steps(values[-1:], part, dim)[0])
        if not 0 <= last < MOST:
            raise ManifestError(
                f"with {part.name}, {dim!r} would have {last + 1:,} values: expected 1 to {MOST:,}. Give a longer "
                "freq=, or leave the set out"
            )
        self.count_steps(values, part, dim)
        return self.compute_values(np.arange(last + 1))

    def compute_values(self, places: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values that are ``places`` steps after the first."""
        values: npt.NDArray[Any]
        if self.months:
            begin = self.since + np.rint(float(self.first) * self.unit / SECOND).astype("m8[s]")
            month = begin.astype("M8[M]")
            seconds = (month + places * self.months).astype("M8[s]") + (begin - month.astype("M8[s]")) - self.since
            values = seconds.astype(np.int64) / (self.unit / SECOND)
        elif self.dtype.kind in "iu":
            values = int(self.first) + places * int(self.step)
        else:
            values = float(self.first) + places * float(self.step)
            values = values if self.units is None else self.units.snap(values)
        return np.asarray(values, self.dtype)
