"""Merge files of different variables: files of each variable and year become one source."""

from __future__ import annotations

from pathlib import Path

import pytest
import xarray as xr

import refshard_fs
from refshard_fs.errors import ManifestError
from tests.support.cube_files import DAYS, X, make_values, write


def merge_by_xarray(folder: Path) -> xr.Dataset:
    parts = [xr.open_dataset(path, engine="h5netcdf") for path in sorted(folder.glob("*.nc"))]
    return xr.combine_by_coords(parts, data_vars="minimal", coords="minimal", compat="equals").load()  # type: ignore[return-value]


def write_variables(folder: Path, years: int = 2) -> None:
    for name in ("t2m", "tp"):
        for year in range(years):
            ds = xr.Dataset(
                {name: (("time", "x"), make_values(3, seed=year + len(name)))},
                {"time": DAYS[3 * year : 3 * year + 3], "x": X},
            )
            ds[name].encoding = {"scale_factor": 0.5 + year, "dtype": "i2", "_FillValue": -1}
            write(ds, folder / f"{name}_{year}.nc", time={"units": "hours since 1900-01-01"})


def test_files_of_different_variables_are_shown_together(tmp_path: Path) -> None:
    write_variables(tmp_path)
    cube = refshard_fs.cube(f"{tmp_path}/*.nc")
    assert len(cube) == 4
    expected = merge_by_xarray(tmp_path)
    xr.testing.assert_equal(xr.open_dataset(cube, engine="refshard").load(), expected)
    cube.save(f"{tmp_path}/cube.refshard")
    (tmp_path / "moved").mkdir()
    for path in [*tmp_path.glob("*.nc"), tmp_path / "cube.refshard"]:
        path.rename(tmp_path / "moved" / path.name)
    fs = refshard_fs.RefShardFileSystem(str(tmp_path / "moved" / "cube.refshard"))
    xr.testing.assert_equal(xr.open_dataset(fs, engine="refshard").load(), expected)
    assert {"t2m/.zarray", "tp/.zarray", "tp/1.0"} <= set(fs.find(""))
    assert fs.info("tp/.zarray")["size"] == len(fs.cat_file("tp/.zarray"))
    with pytest.raises(FileNotFoundError):
        fs.cat_file("tp/9.0")
    assert not refshard_fs.check(fs, "full").findings
    fs.save(str(tmp_path / "refs.json"))
    xr.testing.assert_equal(xr.open_dataset(tmp_path / "refs.json", engine="refshard").load(), expected)


def test_files_of_different_variables_must_have_same_coordinates(tmp_path: Path) -> None:
    write_variables(tmp_path)
    (tmp_path / "tp_1.nc").unlink()
    with pytest.raises(ManifestError, match="'time'"):
        refshard_fs.cube(f"{tmp_path}/*.nc")


@pytest.mark.parametrize("years", [1, 2])
def test_files_of_cmip_variables_share_bounds_and_latitudes(tmp_path: Path, years: int) -> None:
    """Each file of CMIP has a variable, the bounds of its times, and the places of its cells."""

    def write_all(latitude: float) -> None:
        for name in ("tas", "pr"):
            for year in range(years):
                days = range(3 * year, 3 * year + 3)
                ds = xr.Dataset(
                    {
                        name: (("time", "x"), make_values(3, seed=year)),
                        "time_bnds": (("time", "nv"), [[day, day + 1] for day in days]),
                        "lat": ("x", [latitude + (name == "pr")] * len(X)),
                    },
                    {"time": ("time", list(days), {"units": "days since 2000-01-01", "bounds": "time_bnds"}), "x": X},
                )
                ds[name].encoding["coordinates"] = "lat"
                ds.to_netcdf(tmp_path / f"{name}_{year}.nc", engine="h5netcdf")

    write_all(0.0)
    with pytest.raises(ManifestError, match="'lat'"):
        refshard_fs.cube(f"{tmp_path}/*.nc")
    cube = refshard_fs.cube(f"{tmp_path}/*.nc", same=["lat"])
    expected = xr.open_mfdataset(
        f"{tmp_path}/*.nc", engine="h5netcdf", compat="override", data_vars="minimal", coords="minimal"
    ).load()
    xr.testing.assert_equal(xr.open_dataset(cube, engine="refshard").load(), expected)


def test_times_that_a_variable_lacks_are_gaps(tmp_path: Path) -> None:
    parts = []
    for name, days in (("a", [0, 1, 4, 5]), ("a", [8]), ("b", [2, 3, 4]), ("b", [9])):
        ds = xr.Dataset({name: ("time", [10.0 + day for day in days])}, {"time": days})
        ds[name].encoding["chunksizes"] = (min(len(days), 3),)
        parts.append(ds)
        ds.to_netcdf(tmp_path / f"{name}_{days[0]}.nc", engine="h5netcdf")
    cube = refshard_fs.cube(f"{tmp_path}/*.nc", join="outer")
    found = xr.open_dataset(cube, engine="refshard").load()
    expected = xr.combine_by_coords(parts, join="outer")
    xr.testing.assert_equal(found, expected[["a", "b"]].transpose("time"))  # type: ignore[index]
