"""Many files by one call: the dimension is found, and the values are those that xarray finds with its own readers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import refshard_fs
from refshard_fs.errors import ManifestError

DAYS = pd.date_range("2024-01-01", periods=6).as_unit("ns")
X = np.arange(4.0)


def values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random((*shape, 4)).astype("f4")


def write(ds: xr.Dataset, path: Path, **encoding: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    ds.to_netcdf(path, engine="h5netcdf", encoding=encoding)


def opened(fo: Any, **arguments: Any) -> xr.Dataset:
    return xr.open_dataset(refshard_fs.cube(fo, **arguments), engine="refshard").load()


def by_coords(folder: Path) -> xr.Dataset:
    parts = [xr.open_dataset(path, engine="h5netcdf") for path in sorted(folder.rglob("*.nc"))]
    return xr.combine_by_coords(parts, data_vars="minimal", coords="minimal", compat="equals").load()  # type: ignore[return-value]


def write_days(folder: Path, order: str = "dcab") -> None:
    for day, name in enumerate(order):
        ds = xr.Dataset({"t": (("time", "x"), values(1, seed=day))}, {"time": DAYS[day : day + 1], "x": X})
        units = f"days since 2024-01-0{1 + day % 3}"
        write(ds, folder / f"{name}.nc", time={"units": units, "dtype": "f8"})


def write_ensemble(folder: Path) -> None:
    for member in "ab":
        for year in (2000, 2001):
            time = pd.date_range(f"{year}-01-01", periods=3).as_unit("ns")
            ds = xr.Dataset({"t": (("time", "x"), values(3, seed=year + ord(member)))}, {"time": time, "x": X})
            write(ds, folder / member / f"tas_{year}.nc")


def test_sets_are_joined_in_the_order_of_the_coordinate_that_differs(tmp_path: Path) -> None:
    write_days(tmp_path)
    xr.testing.assert_equal(opened(f"{tmp_path}/*.nc"), by_coords(tmp_path))


def test_sets_in_a_grid_of_coordinates_get_all_dimensions(tmp_path: Path) -> None:
    for member in (3, 7):
        for half in range(2):
            coordinates = {"member": [member], "time": DAYS[3 * half : 3 * half + 3], "x": X}
            ds = xr.Dataset({"t": (("member", "time", "x"), values(1, 3, seed=member + half))}, coordinates)
            write(ds, tmp_path / f"{member}_{1 - half}.nc")
    xr.testing.assert_equal(opened(f"{tmp_path}/*.nc"), by_coords(tmp_path))


def test_field_that_tells_files_apart_makes_no_dimension(tmp_path: Path) -> None:
    write_ensemble(tmp_path)
    found = opened(f"{tmp_path}/{{member}}/tas_{{year}}.nc")
    expected = xr.concat([by_coords(tmp_path / m) for m in "ab"], pd.Index(["a", "b"], name="member"))
    xr.testing.assert_equal(found, expected)


def test_scalar_time_that_differs_becomes_the_dimension(tmp_path: Path) -> None:
    parts = []
    for hour in range(3):
        data = {"CMI": (("y", "x"), values(3, seed=hour)), "count": ((), 2 * hour), "name": ((), f"granule {hour}")}
        ds = xr.Dataset(data, {"t": DAYS[hour], "y": np.arange(3.0), "x": X})
        write(ds, tmp_path / f"{hour}.nc", t={"units": "seconds since 2000-01-01", "dtype": "f8"})
        parts.append(ds)
    xr.testing.assert_equal(opened(f"{tmp_path}/*.nc"), xr.concat(parts, "t"))


def test_dimension_without_coordinate_whose_length_differs_is_found(tmp_path: Path) -> None:
    parts = [xr.Dataset({"a": (("obs", "x"), values(2 + n, seed=n))}, {"x": X}) for n in range(3)]
    for number, ds in enumerate(parts):
        write(ds, tmp_path / f"{number}.nc")
    xr.testing.assert_equal(opened(f"{tmp_path}/*.nc"), xr.concat(parts, "obs"))


def as_pairs(rows: list[tuple[str, int]]) -> Any:
    return [(url, {"time": np.datetime64("2024-01-01") + np.timedelta64(day, "D")}) for url, day in rows]


def as_frame(rows: list[tuple[str, int]]) -> Any:
    return pd.DataFrame({"url": [url for url, _ in rows], "time": [DAYS[day] for _, day in rows]})


def as_items(rows: list[tuple[str, int]]) -> Any:
    return {
        "type": "FeatureCollection",
        "features": [
            {
                "type": "Feature",
                "properties": {"datetime": f"{DAYS[day].isoformat()}Z"},
                "assets": {"data": {"href": url}, "thumbnail": {"href": "https://example.com/none.png"}},
            }
            for url, day in rows
        ],
    }


@pytest.mark.parametrize("table", [as_pairs, as_frame, as_items])
def test_places_come_with_urls(table: Callable[[list[tuple[str, int]]], Any], tmp_path: Path) -> None:
    parts = [xr.Dataset({"a": ("x", values(seed=n))}, {"x": X}) for n in range(3)]
    for number, ds in enumerate(parts):
        write(ds, tmp_path / f"{number}.nc")
    rows = [(str(tmp_path / f"{number}.nc"), number) for number in (2, 0, 1)]
    arguments = {"assets": ["data"]} if table is as_items else {}
    xr.testing.assert_equal(opened(table(rows), **arguments), xr.concat(parts, pd.Index(DAYS[:3], name="time")))


def test_sets_that_nothing_tells_apart_are_an_error_with_the_choices(tmp_path: Path) -> None:
    for number in range(2):
        write(xr.Dataset({"a": ("x", values(seed=number))}, {"x": X}), tmp_path / f"{number}.nc")
    with pytest.raises(ManifestError, match=r"same values of all coordinates \(x\).*name it \(dim=\)"):
        refshard_fs.cube(f"{tmp_path}/*.nc")


def test_sets_that_are_no_grid_are_an_error_with_the_choices(tmp_path: Path) -> None:
    for x, y in ((0, 0), (0, 1), (1, 1)):
        ds = xr.Dataset({"a": (("y", "x"), np.zeros((1, 1)))}, {"x": [float(x)], "y": [float(y)]})
        write(ds, tmp_path / f"{x}{y}.nc")
    with pytest.raises(ManifestError, match="differ in 'y', 'x'.*do not form a grid"):
        refshard_fs.cube(f"{tmp_path}/*.nc")


# ----------------------------------------------------------------------------------------------------
# As the source of a filesystem.


def test_pattern_and_list_open_in_xarray(tmp_path: Path) -> None:
    write_days(tmp_path)
    expected = by_coords(tmp_path)
    for source in (f"{tmp_path}/*.nc", [str(tmp_path / f"{name}.nc") for name in "abcd"], f"refshard::{tmp_path}/*.nc"):
        xr.testing.assert_equal(xr.open_dataset(source, engine="refshard").load(), expected)


def test_filesystem_of_a_pattern_is_pickled_as_what_was_found(tmp_path: Path) -> None:
    write_days(tmp_path)
    fs = fsspec.filesystem("refshard", fo=f"{tmp_path}/*.nc", concat={"keep": ["t"], "attrs": {"t": {"units": "K"}}})
    (tmp_path / "b.nc").rename(tmp_path / "gone")
    copy = pickle.loads(pickle.dumps(fs))
    assert copy == fs
    assert xr.open_dataset(copy, engine="refshard").sizes["time"] == 4


def test_many_sources_are_not_written_to(tmp_path: Path) -> None:
    write_days(tmp_path)
    with pytest.raises(ValueError, match="mode='a'.*is many sources"):
        fsspec.filesystem("refshard", fo=f"{tmp_path}/*.nc", mode="a")
    with pytest.raises(ValueError, match="is for many sources"):
        fsspec.filesystem("refshard", fo=f"{tmp_path}/a.nc", concat={"dim": "time"})
