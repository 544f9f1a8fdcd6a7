"""Gaps in the documents of cubes, and sets that fill them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")

from tests.support.gapped_files import UNITS, load_all, write_days  # noqa: E402  # xarray may be absent
from tests.support.xarray_loading import load_dataset  # noqa: E402  # xarray may be absent


@pytest.mark.parametrize("chunks", [None, {"time": 3}])
def test_late_day_fills_its_gap(tmp_path: Path, chunks: dict[str, int] | None) -> None:
    files = [write_days(tmp_path / f"{day}.nc", [day]) for day in (0, 1, 5, 6)]
    url = str(tmp_path / "cube.refshard")
    refshard_fs.concat(files, "time", lazy=True, freq="1D", chunks=chunks).save(url)  # type: ignore[attr-defined]
    for day in (3, 2, 4, 7):
        files.append(write_days(tmp_path / f"{day}.nc", [day]))
        assert refshard_fs.append(url, files[-1], "time") == 1
        expected = xr.concat(load_all(files), "time").sortby("time").resample(time="1D").asfreq()
        xr.testing.assert_equal(load_dataset(url), expected)
    for day in (2, 4, 5):
        with pytest.raises(ManifestError, match=f"has time = 2024-01-0{day + 1} already"):
            refshard_fs.append(url, files[files.index(str(tmp_path / f"{day}.nc"))], "time")


@pytest.mark.parametrize(
    ("days", "how"),
    [([1, 2], "error"), ([1, 2], "skip"), ([3, 2], "error"), ([4, 2], "skip"), ([6, 7, 2], "replace")],
)
def test_set_with_values_inside_and_outside_of_gaps_is_refused(tmp_path: Path, days: list[int], how: Any) -> None:
    files = [write_days(tmp_path / f"{day}.nc", [day]) for day in (0, 1, 5, 6)]
    url = tmp_path / "cube.refshard"
    refshard_fs.concat(files, "time", lazy=True, freq="1D").save(str(url))
    before = url.read_bytes()
    with pytest.raises(ManifestError, match=r"new\.nc.* both inside and outside of the gaps of .*: append the values"):
        refshard_fs.append(url, write_days(tmp_path / "new.nc", days), "time", on_duplicate=how)
    assert url.read_bytes() == before


@pytest.mark.parametrize(
    ("days", "how", "added"),
    [
        ([2, 4], "skip", 2),
        ([3, 8], "error", 2),
        ([2, 3, 8], "error", 3),
        ([4, 5], "replace", 1),
        ([4, 9], "replace", 1),
    ],
)
def test_set_fills_several_gaps(tmp_path: Path, days: list[int], how: Any, added: int) -> None:
    files = {day: write_days(tmp_path / f"{day}.nc", [day]) for day in (0, 1, 5, 6, 9)}
    url = str(tmp_path / "cube.refshard")
    refshard_fs.concat(list(files.values()), "time", lazy=True, freq="1D").save(url)
    new = write_days(tmp_path / "new.nc", days)
    assert refshard_fs.append(url, new, "time", on_duplicate=how) == added
    kept = [path for day, path in files.items() if day not in days]
    expected = xr.concat(load_all([*kept, new]), "time").sortby("time").resample(time="1D").asfreq()
    xr.testing.assert_equal(load_dataset(url), expected)


@pytest.mark.parametrize("first", [2, 3, 4])
def test_set_fills_a_gap_within_its_chunks(first: int, tmp_path: Path) -> None:
    def write_two(name: str, first: int) -> str:
        path = tmp_path / name
        days = [first, first + 1]
        data = xr.DataArray(np.add.outer(days, [0.0, 0.5]), dims=("time", "x"))
        ds = xr.Dataset({"v": data}, coords={"time": ("time", days, {"units": UNITS}), "x": [0, 1]})
        ds.to_netcdf(path, engine="h5netcdf", encoding={"v": {"chunksizes": (2, 2), "_FillValue": np.nan}})
        return str(path)

    files = [write_two("0.nc", 0), write_two("6.nc", 6)]
    url = str(tmp_path / "cube.refshard")
    refshard_fs.concat(files, "time", lazy=True, freq="1D").save(url)
    files.append(write_two("new.nc", first))
    refshard_fs.append(url, files[-1], "time")
    expected = xr.concat(load_all(files), "time").sortby("time").resample(time="1D").asfreq()
    xr.testing.assert_equal(load_dataset(url), expected)
