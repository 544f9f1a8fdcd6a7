"""Coordinates with equal steps: freq=."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")
pytest.importorskip("h5netcdf")

from tests.support.gapped_files import UNITS, write_days  # noqa: E402  # xarray may be absent
from tests.support.outer_cubes import (  # noqa: E402  # xarray may be absent
    DIMS,
    check_values,
    list_in_turn,
    load_each,
    make_member_day,
    write_member_day,
)


@pytest.mark.parametrize(("dims", "version"), list_in_turn(DIMS, DIMS[::-1]))
def test_days_that_all_files_lack_are_filled_in(tmp_path: Path, dims: tuple[str, str], version: int) -> None:
    here = [(0, 0), (0, 1), (2, 0), (5, 1)]
    for day, member in here:
        write_member_day(tmp_path / f"m{member}/202401{day + 1:02d}.nc", make_member_day(day, member))
    files = list(map(str, tmp_path.glob("*/*.nc")))
    expected = xr.combine_by_coords(load_each(files), join="outer").resample(time="1D").asfreq()
    pattern = f"{tmp_path}/m{{member:d}}/{{time:%Y%m%d}}.nc"
    for lazy in (True, False):
        cube = refshard_fs.concat(pattern, dims=dims, lazy=lazy, join="outer", freq="1D", zarr_format=version)
        check_values(cube, expected, tmp_path)
    assert expected.sizes["time"] == 6


def test_missing_days_of_members_with_other_days_are_filled(tmp_path: Path) -> None:
    files = [
        [write_member_day(tmp_path / f"{m}{d}.nc", make_member_day(d, m)) for d in days]
        for m, days in enumerate(([0, 2], [5, 7]))
    ]
    expected = (
        xr.combine_by_coords(load_each([f for row in files for f in row]), join="outer").resample(time="1D").asfreq()
    )
    for lazy in (True, False):
        cube = refshard_fs.concat(files, dims=("member", "time"), lazy=lazy, join="outer", freq="1D")
        check_values(cube, expected, tmp_path)


@pytest.mark.parametrize(
    ("freq", "units", "days", "expected"),
    [
        ("6h", "hours since 2024-01-01", ([0, 6], [18]), [0, 6, 12, 18]),
        ("12h", UNITS, ([0.0, 0.5], [2.0]), [0.0, 0.5, 1.0, 1.5, 2.0]),
        ("MS", UNITS, ([0, 31], [91]), [0, 31, 60, 91]),
        ("2D", UNITS, ([3], [9]), [3, 5, 7, 9]),
    ],
)
def test_steps_of_hours_days_and_months_are_filled_in(
    tmp_path: Path, freq: str, units: str, days: Any, expected: list[float]
) -> None:
    files = [write_days(tmp_path / f"{i}.nc", some, units=units) for i, some in enumerate(days)]
    fs = RefShardFileSystem(refshard_fs.concat(files, "time", freq=freq))
    dtype = "<i8" if isinstance(expected[0], int) else "<f8"
    assert np.frombuffer(fs.cat_file("time/0"), dtype).tolist() == expected


def test_calendar_of_360_days_takes_freq_in_days_not_months(tmp_path: Path) -> None:
    files = [write_days(tmp_path / f"{i}.nc", some, calendar="360_day") for i, some in enumerate(([0], [2]))]
    fs = RefShardFileSystem(refshard_fs.concat(files, "time", freq="1D"))
    assert np.frombuffer(fs.cat_file("time/0"), "<i8").tolist() == [0, 1, 2]
    with pytest.raises(ManifestError, match="found '360_day'"):
        refshard_fs.concat(files, "time", freq="MS")


@pytest.mark.parametrize(
    ("freq", "said"),
    [
        ("2D", r"1\.nc\) has time = 20\d\d-\d\d-04, which is not on the grid of freq= that begins at 20\d\d-\d\d-01"),
        ("1h", "expected a whole number of at least 1"),
        ("fortnight", "expected a number of s, S, min"),
    ],
)
def test_irregular_times_and_invalid_freq_are_refused(tmp_path: Path, freq: str, said: str) -> None:
    files = [write_days(tmp_path / f"{i}.nc", some) for i, some in enumerate(([0], [3]))]
    with pytest.raises(ManifestError, match=said):
        refshard_fs.concat(files, "time", freq=freq)


def test_filled_steps_are_bounded(tmp_path: Path) -> None:
    files = [write_days(tmp_path / f"{i}.nc", some) for i, some in enumerate(([0], [10**9]))]
    with pytest.raises(ManifestError, match=r"more than 16,777,216 values"):
        refshard_fs.concat(files, "time", freq="1D")
