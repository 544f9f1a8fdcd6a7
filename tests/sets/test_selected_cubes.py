"""Cubes of a part of each set: the rest of the sets is not compared, and the document records the selection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import refshard_fs

CHOICE: dict[str, Any] = {"keep": ["sst"], "rename": {"zlev": "depth"}, "attrs": {"sst": {"units": "K"}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files; their variable ``err`` has another type in the last one, and cannot be joined."""
    for number in range(3):
        write_month(tmp_path / f"month{number}.nc", number, np.dtype("f8" if number < 2 else "U2"))
    return tmp_path


def write_month(path: Path, number: int, dtype: np.dtype[Any]) -> None:
    time = ("time", np.arange(2) + 2 * number, {"units": "days since 2000-01-01"})
    sst = np.arange(6, dtype="f4").reshape(2, 1, 3) + 10 * number
    err = np.zeros((2, 3)).astype(dtype)
    ds = xr.Dataset(
        {"sst": (("time", "zlev", "lat"), sst, {"units": "C"}), "err": (("time", "lat"), err)},
        {"time": time, "zlev": [0.0], "lat": np.arange(3.0)},
    )
    ds.to_netcdf(path, engine="h5netcdf", encoding={"sst": {"chunksizes": (1, 1, 3)}})


def read_expected(folder: Path) -> Any:
    return np.concatenate([xr.open_dataset(path)["sst"].values for path in sorted(folder.glob("*.nc"))])


def test_lazy_cube_selects_from_each_set(folder: Path) -> None:
    cube = refshard_fs.concat(f"{folder}/*.nc", "time", lazy=True, **CHOICE)
    cube.save(f"{folder}/cube.refshard")
    for source in (cube, str(folder / "cube.refshard")):
        ds = xr.open_dataset(source, engine="refshard")
        assert set(ds.variables) == {"sst", "time", "depth", "lat"}
        assert ds["sst"].dims == ("time", "depth", "lat")
        assert ds["sst"].units == "K"
        np.testing.assert_array_equal(ds["sst"], read_expected(folder))


def test_selected_lazy_cube_equals_the_eager_one(folder: Path) -> None:
    lazy, eager = (refshard_fs.concat(f"{folder}/*.nc", "time", lazy=lazy, **CHOICE) for lazy in (True, False))
    ours, theirs = (xr.open_dataset(cube, engine="refshard") for cube in (lazy, eager))
    xr.testing.assert_identical(ours.drop_attrs(deep=False), theirs.drop_attrs(deep=False))


def test_append_selects_from_the_new_set_too(folder: Path) -> None:
    refshard_fs.concat(f"{folder}/*.nc", "time", lazy=True, **CHOICE).save(f"{folder}/cube.refshard")
    write_month(folder / "month3.nc", 3, np.dtype("i2"))
    assert refshard_fs.append(f"{folder}/cube.refshard", f"{folder}/month3.nc", "time") == 2
    ds = xr.open_dataset(f"{folder}/cube.refshard", engine="refshard")
    np.testing.assert_array_equal(ds["sst"], read_expected(folder))


def test_kept_scans_are_not_used_with_another_selection(folder: Path) -> None:
    resume = folder / "scans"
    refshard_fs.concat(f"{folder}/month[01].nc", "time", lazy=True, resume=resume, **CHOICE)
    whole = refshard_fs.concat(f"{folder}/month[01].nc", "time", lazy=True, resume=resume)
    assert "err" in xr.open_dataset(whole, engine="refshard")
    chosen = refshard_fs.concat(f"{folder}/*.nc", "time", lazy=True, resume=resume, **CHOICE)
    assert "err" not in xr.open_dataset(chosen, engine="refshard")


def test_name_in_no_set_is_an_error(folder: Path) -> None:
    with pytest.raises(refshard_fs.ManifestError, match="keep= names 'salt'.*sst"):
        refshard_fs.concat(f"{folder}/*.nc", "time", lazy=True, keep=["salt"])


def test_range_keeps_a_variable_that_only_the_first_file_has(tmp_path: Path) -> None:
    for day in range(3):
        ds = xr.Dataset({"air": ("time", [float(day)])}, {"time": [day]})
        if day == 0:
            ds["mask"] = "x", [1.0, 2.0]
        ds.to_netcdf(tmp_path / f"{day}.nc", engine="h5netcdf")
    cube = refshard_fs.open(f"{tmp_path}/*.nc")
    part = cube.select(isel={"time": slice(1, 3)})
    expected = xr.open_dataset(cube, engine="refshard").load().isel(time=slice(1, 3))
    xr.testing.assert_identical(xr.open_dataset(part, engine="refshard").load(), expected)
    assert len(cube.select(keep=["air"], isel={"time": 2})) == 1
