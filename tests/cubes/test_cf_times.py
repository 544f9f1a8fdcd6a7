"""Convert times to other units: they mean the same instants, or an error names the reason."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.cubes.cf_times import TimeUnits, find_common_unit, format_time, list_finer_units

SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
CALENDARS = ("standard", "gregorian", "proleptic_gregorian", "noleap", "365_day", "all_leap", "360_day", "julian")
moments = st.datetimes(datetime(1583, 1, 1), datetime(2200, 1, 1)).map(lambda t: t.replace(microsecond=0))
years = st.tuples(st.integers(1, 2500), st.integers(1, 12), st.integers(1, 28))


def parse_units(text: str, **more: Any) -> TimeUnits:
    return TimeUnits.of({"units": text, **more})


@given(st.sampled_from(sorted(SECONDS)), st.sampled_from(sorted(SECONDS)), moments, moments,
       st.lists(st.integers(-(10**5), 10**5), max_size=5), st.sampled_from(["<i8", "<f8", ">i4"]))  # fmt: skip
def test_converted_times_are_the_same_instants(
    theirs: str, ours: str, since: datetime, new: datetime, numbers: list[int], dtype: str
) -> None:
    values = np.array(numbers, dtype)
    try:
        found = parse_units(f"{theirs} since {since}").convert(values, parse_units(f"{ours} since {new}"))
    except ValueError:
        return
    assert found.dtype == (np.float64 if values.dtype.kind == "f" else np.int64)
    for old, value in zip(numbers, found.tolist(), strict=True):
        one = since + timedelta(seconds=old * SECONDS[theirs])
        assert abs(one - (new + timedelta(seconds=float(value) * SECONDS[ours]))) < timedelta(microseconds=10)


@given(st.sampled_from(CALENDARS), years, years)
def test_days_between_dates_equal_those_of_cftime(
    calendar: str, one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    cftime = pytest.importorskip("cftime")
    names = [f"{year:04}-{month:02}-{day:02}" for year, month, day in (one, other)]
    try:
        since, new = (parse_units(f"days since {name}", calendar=calendar) for name in names)
    except ValueError:  # one of the ten days that the standard calendar leaves out
        assert any((1582, 10, 4) < date < (1582, 10, 15) for date in (one, other))
        return
    date = cftime.datetime(*one, calendar=calendar)
    expected = cftime.date2num(date, f"days since {names[1]}", calendar=calendar)
    assert since.convert(np.array([0]), new).tolist() == [expected]


def test_times_are_converted_to_another_reference_time() -> None:
    values = np.array([0, 6, 12], "<i4")
    ours = parse_units("hours since 2001-01-01 00:00:00")
    assert parse_units("hours since 2001-01-02").convert(values, ours).tolist() == [24, 30, 36]
    assert parse_units("days since 2001-01-01").convert(values, ours).tolist() == [0, 144, 288]


def test_fractions_of_days_stay_exact() -> None:
    values = np.array([[0.5, 15.25], [np.nan, 30.125]])
    found = parse_units("days since 2001-01-01").convert(values, parse_units("days since 2000-01-01"))
    np.testing.assert_array_equal(found, values + 366)


def test_fractions_of_days_convert_to_whole_hours() -> None:
    values = np.arange(24) / 24
    found = parse_units("days since 2001-01-02").convert(values, parse_units("hours since 2001-01-01"))
    assert found.tolist() == [24.0 + hour for hour in range(24)]


def test_common_unit_of_days_and_quarter_days_is_hours() -> None:
    found = [parse_units(text) for text in ("days since 2001-01-01", "days since 2001-01-02 06:00")]
    length = find_common_unit(found)
    assert list_finer_units(length, "days since 2001-01-01 00:00:00")[0] == "hours since 2001-01-01 00:00:00"


def test_units_are_converted_in_a_calendar_of_360_days() -> None:
    theirs = parse_units("days since 2000-02-30", calendar="360_day")
    assert theirs.convert(np.array([2]), parse_units("hours since 2000-02-30", calendar="360_day")).tolist() == [48]


@pytest.mark.parametrize(
    ("values", "theirs", "more", "words"),
    [
        (np.array([5]), "hours since 2000-01-01", {}, "expected whole numbers in the other units.* for 5"),
        (np.array([0.1]), "days since 2000-01-02", {}, "0.1 cannot be stored exactly in the other units"),
        (np.array([1]), "months since 2000-01-01", {}, "expected a unit from nanoseconds to days"),
        (np.array([1]), "days since 2000-01-02", {"calendar": "noleap"}, "as 'noleap': expected 'standard'"),
        (np.array([1]), "days since 2000-01-02", {"calendar": "mayan"}, "unknown calendar 'mayan'"),
        (np.array([1]), "days since 1582-10-09", {}, "which skips 5 to 14 October 1582"),
        (np.array([1]), "days since 2000-01-02 00:00 +02:00", {}, "expected a date and time in UTC"),
        (np.array([1]), "days since 2000-13-02", {}, "expected a date"),
        (np.array([1]), "days since 2001-02-29", {}, "expected a date"),
        (np.array([2**62]), "days since 2000-01-02", {}, "fit into 64 bits"),
        (np.array([b"x"]), "days since 2000-01-02", {}, "expected numbers"),
    ],
)
def test_inexact_or_unknown_times_are_refused(values: Any, theirs: str, more: dict[str, Any], words: str) -> None:
    ours = parse_units("days since 2000-01-01" if "64 bits" not in words else "seconds since 2000-01-01")
    with pytest.raises(ValueError, match=words):
        parse_units(theirs, **more).convert(values, ours)


@pytest.mark.parametrize(
    ("value", "units", "calendar", "shown"),
    [
        (1, "days since 2024-01-01", None, "2024-01-02"),
        (1.5, "days since 2024-01-01", "gregorian", "2024-01-02 12:00:00"),
        (-3600, "seconds since 2024-01-01 01:00", "proleptic_gregorian", "2024-01-01"),
        (59, "days since 2024-01-01", "noleap", "59 days since 2024-01-01"),
        (5, "days since 0001-01-01", None, "5 days since 0001-01-01"),
        (10**9, "days since 2024-01-01", None, "1000000000 days since 2024-01-01"),
        (float("nan"), "days since 2024-01-01", None, "nan days since 2024-01-01"),
        (300, "K", None, "300 K"),
    ],
)
def test_times_are_formatted_as_dates_or_as_number_and_units(
    value: float, units: str, calendar: str | None, shown: str
) -> None:
    attributes = {"units": units} if calendar is None else {"units": units, "calendar": calendar}
    assert format_time(value, attributes) == shown
