"""Sets in a row: gaps between them, and recut arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs.errors import ManifestError

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")

from tests.support.gapped_files import load_all, write_days  # noqa: E402  # xarray may be absent
from tests.support.xarray_loading import load_dataset  # noqa: E402  # xarray may be absent


def test_gaps_between_recut_files_are_filled(tmp_path: Path) -> None:
    files = [write_days(tmp_path / f"{i}.nc", days) for i, days in enumerate(([0, 1, 2], [4], [8, 9]))]
    cube = refshard_fs.concat(files, "time", lazy=True, freq="1D", chunks={"time": 4})
    xr.testing.assert_equal(load_dataset(cube), xr.concat(load_all(files), "time").resample(time="1D").asfreq())


@pytest.mark.parametrize("lazy", [False, True])
def test_freq_fills_a_gap_within_a_file(tmp_path: Path, lazy: bool) -> None:
    files = [write_days(tmp_path / f"{i}.nc", days) for i, days in enumerate(([0, 1, 4], [5]))]
    made = refshard_fs.concat(files, "time", freq="D", lazy=lazy)
    xr.testing.assert_equal(load_dataset(made), xr.concat(load_all(files), "time").resample(time="1D").asfreq())


def test_first_set_that_cannot_be_recoded_is_refused(tmp_path: Path) -> None:
    """Later sets are compared with the array as it is shown, which has another type than in the first set."""
    zarr = pytest.importorskip("zarr", minversion="3")
    for day, (dtype, shards) in enumerate((("i4", (2,)), ("f4", None))):
        group = zarr.open_group(tmp_path / f"{day}.zarr", mode="w", zarr_format=3)
        group.create_array("air", shape=(2,), chunks=(1,), shards=shards, dtype=dtype, dimension_names=["time"])
        time = group.create_array("time", shape=(2,), chunks=(2,), dtype="i4", dimension_names=["time"])
        time[:] = [2 * day, 2 * day + 1]
    with pytest.raises(ManifestError, match=r"set 0 .*sharding_indexed.*: expected a type and codecs"):
        refshard_fs.concat(f"{tmp_path}/*.zarr", "time", lazy=True)


@pytest.mark.parametrize("join", ["exact", "outer"])
def test_variable_that_the_first_set_lacks_is_reported(tmp_path: Path, join: Any) -> None:
    for day in range(3):
        ds = xr.Dataset({"air": ("time", [float(day)])}, {"time": [day]})
        if day == 1:
            ds["mask"] = "x", [1.0, 2.0]
        ds.to_netcdf(tmp_path / f"{day}.nc", engine="h5netcdf")
    with pytest.warns(UserWarning, match=r"'mask' of set 1 .*1\.nc\) is left out: .*set 0 .*0\.nc\), from .* lacks it"):
        cube = refshard_fs.open(f"{tmp_path}/*.nc", join=join)
    assert set(xr.open_dataset(cube, engine="refshard").variables) == {"air", "time"}
    assert len(refshard_fs.open(f"{tmp_path}/*.nc", join=join, drop=["mask"])) == 3


@pytest.mark.parametrize("join", ["exact", "outer"])
def test_members_with_times_in_other_units_are_joined(tmp_path: Path, join: Any) -> None:
    times = np.array(["2000-01-01T00", "2000-01-01T01", "2000-01-01T02"], "M8[ns]")
    for member, unit in enumerate(("hours", "seconds", "minutes")):
        ds = xr.Dataset({"air": (("member", "time"), np.full((1, 3), member))}, {"time": times, "member": [member]})
        encoding = {"time": {"units": f"{unit} since 1970-01-01", "dtype": "f8" if unit == "hours" else "i4"}}
        ds.to_netcdf(tmp_path / f"{member}.nc", engine="h5netcdf", encoding=encoding)
    expected = xr.combine_by_coords([xr.load_dataset(path) for path in sorted(tmp_path.glob("*.nc"))])
    for cube in (
        refshard_fs.open(f"{tmp_path}/*.nc", join=join),
        refshard_fs.concat(f"{tmp_path}/*.nc", "member", join=join, lazy=True),
    ):
        cube.save(f"{tmp_path}/cube.refshard")
        found = xr.open_dataset(f"{tmp_path}/cube.refshard", engine="refshard").load()
        xr.testing.assert_equal(found, expected)
