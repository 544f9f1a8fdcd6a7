"""Times in other units name the same instants, or are refused with the reason."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.sets.variables import in_units_of

SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
moments = st.datetimes(datetime(1583, 1, 1), datetime(2200, 1, 1)).map(lambda t: t.replace(microsecond=0))


@given(st.sampled_from(sorted(SECONDS)), st.sampled_from(sorted(SECONDS)), moments, moments,
       st.lists(st.integers(-(10**5), 10**5), max_size=5), st.sampled_from(["<i8", "<f8", ">i4"]))  # fmt: skip
def test_instants_do_not_change(
    theirs: str, ours: str, since: datetime, new: datetime, numbers: list[int], dtype: str
) -> None:
    values = np.array(numbers, dtype)
    try:
        found = in_units_of(values, {"units": f"{theirs} since {since}"}, {"units": f"{ours} since {new}"}, [])
    except ValueError:
        return
    assert found.dtype == values.dtype
    for old, value in zip(numbers, found.tolist(), strict=True):
        one = since + timedelta(seconds=old * SECONDS[theirs])
        assert one == new + timedelta(seconds=int(value) * SECONDS[ours])


def test_hours_since_another_day() -> None:
    values = np.array([0, 6, 12], "<i4")
    theirs, ours = {"units": "hours since 2001-01-02"}, {"units": "hours since 2001-01-01 00:00:00"}
    assert in_units_of(values, theirs, ours, [-999]).tolist() == [24, 30, 36]
    assert in_units_of(values, {"units": "days since 2001-01-01"}, ours, []).tolist() == [0, 144, 288]


def test_only_the_unit_differs_in_any_calendar() -> None:
    theirs = {"units": "days since 2000-02-30", "calendar": "360_day"}
    assert in_units_of(np.array([2]), theirs, {**theirs, "units": "hours since 2000-02-30"}, []).tolist() == [48]


@pytest.mark.parametrize(
    ("values", "theirs", "more", "fills", "words"),
    [
        (np.array([5]), "hours since 2000-01-01", {}, [], "5 is no whole number"),
        (np.array([0.5]), "days since 2000-01-02", {}, [], "not all of its values are whole"),
        (np.array([np.nan]), "days since 2000-01-02", {}, [], "not all of its values are whole"),
        (np.array([1]), "months since 2000-01-01", {}, [], "no seconds, minutes, hours or days"),
        (np.array([1]), "days since 2000-01-02", {"calendar": "noleap"}, [], "calendar 'noleap'"),
        (np.array([1]), "days since 1500-01-02", {}, [], "1582-10-15"),
        (np.array([1]), "days since 2000-01-02 00:00 +02:00", {}, [], "no date and time in UTC"),
        (np.array([1]), "days since 2000-13-02", {}, [], "no date and time"),
        (np.array([1]), "days since 2000-01-02", {"bounds": "time_bnds"}, [], "attribute bounds"),
        (np.array([1]), "days since 2000-01-02", {"scale_factor": 2}, [], "attribute scale_factor"),
        (np.array([1]), "days since 2000-01-02", {}, [2], "stands for missing"),
        (np.array([127], "i1"), "days since 2000-01-02", {}, [], "beyond the type"),
        (np.array([b"x"]), "days since 2000-01-02", {}, [], "no number"),
    ],
)
def test_what_would_change_or_is_not_known_is_refused(
    values: Any, theirs: str, more: dict[str, Any], fills: list[Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        in_units_of(values, {"units": theirs, **more}, {"units": "days since 2000-01-01", **more}, fills)
