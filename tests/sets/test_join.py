"""Join sets along the dimensions in which they differ; sets of different variables are merged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import refshard_fs
from refshard_fs import ManifestError
from tests.support.cube_files import X, make_values, open_cube, write
from tests.support.unordered_days import combine_by_coords, write_days


def test_sets_are_ordered_by_the_differing_coordinate(tmp_path: Path) -> None:
    write_days(tmp_path)
    xr.testing.assert_equal(open_cube(f"{tmp_path}/*.nc"), combine_by_coords(tmp_path))


def test_saved_cubes_of_different_variables_are_merged(tmp_path: Path) -> None:
    write_days(tmp_path)
    refshard_fs.open(f"{tmp_path}/*.nc").save(f"{tmp_path}/t.ref")
    refshard_fs.open(f"{tmp_path}/*.nc", rename={"t": "u"}).save(f"{tmp_path}/u.ref")
    whole = combine_by_coords(tmp_path)
    xr.testing.assert_equal(open_cube([f"{tmp_path}/t.ref", f"{tmp_path}/u.ref"]), whole.assign(u=whole["t"]))


def test_variables_that_lack_days_have_gaps(tmp_path: Path) -> None:
    days = {"a": range(3), "b": range(1, 5), "c": (0, 4)}
    for name, some in days.items():
        for day in some:
            time = ("time", [day - 1], {"units": "days since 2024-01-02"} if name == "b" else None)
            time = ("time", [day], {"units": "days since 2024-01-01"}) if name != "b" else time
            write(
                xr.Dataset({name: (("time", "x"), make_values(1, seed=day))}, {"time": time, "x": X}),
                tmp_path / f"{name}{day}.nc",
            )
    with pytest.raises(refshard_fs.ManifestError, match="time"):
        open_cube(f"{tmp_path}/*.nc")
    found = open_cube(f"{tmp_path}/*.nc", join="outer")
    parts = [xr.concat([xr.open_dataset(tmp_path / f"{n}{day}.nc") for day in days[n]], "time") for n in days]
    xr.testing.assert_equal(found, xr.merge(parts, join="outer", compat="no_conflicts").load())


def test_overlap_refuses_sets_that_differ_in_another_coordinate(tmp_path: Path) -> None:
    for month in (0, 1):
        coordinates = {"time": [month], "x": [1, 2]}
        xr.Dataset({"t": (("time", "x"), [[1.0, 2.0]])}, coordinates).to_netcdf(
            tmp_path / f"{month}.nc", engine="h5netcdf"
        )
    with pytest.raises(ManifestError, match="have different values of 'time'"):
        refshard_fs.open(f"{tmp_path}/*.nc", dim="x", overlap="first")


@pytest.mark.parametrize("step", [1, -1])
def test_coordinate_of_a_group_orders_the_files(tmp_path: Path, step: int) -> None:
    for number in range(3):
        time = [2 * number, 2 * number + 1][::step]
        ds = xr.Dataset({"air": ("time", np.array(time, "f4"))}, {"time": time})
        ds.to_netcdf(tmp_path / f"{9 - number}.nc", engine="h5netcdf", group="grid")
    each = [xr.load_dataset(path, group="grid") for path in tmp_path.glob("*.nc")]
    found = xr.open_dataset(refshard_fs.open(f"{tmp_path}/*.nc"), engine="refshard", group="grid")
    xr.testing.assert_equal(found.load(), xr.combine_by_coords(each))
