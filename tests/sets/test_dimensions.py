"""The dimensions of a join are those in which sets differ, or the error lists the choices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import refshard_fs
from refshard_fs.errors import ManifestError
from tests.support.cube_files import DAYS, X, make_values, open_cube, write


def test_scalar_time_that_differs_becomes_the_dimension(tmp_path: Path) -> None:
    parts = []
    for hour in range(3):
        data = {
            "CMI": (("y", "x"), make_values(3, seed=hour)),
            "count": ((), 2 * hour),
            "name": ((), f"granule {hour}"),
        }
        ds = xr.Dataset(data, {"t": DAYS[hour], "y": np.arange(3.0), "x": X})
        write(ds, tmp_path / f"{hour}.nc", t={"units": "seconds since 2000-01-01", "dtype": "f8"})
        parts.append(ds)
    xr.testing.assert_equal(open_cube(f"{tmp_path}/*.nc"), xr.concat(parts, "t"))


@pytest.mark.parametrize("drift", [1e-9, 0.5, 100.0])
def test_granules_with_other_coordinates_differ_in_time(tmp_path: Path, drift: float) -> None:
    """Joined along x, granules of the same region would be one row of different times."""
    parts = []
    for hour in range(3):
        ds = xr.Dataset({"a": ("x", make_values(seed=hour))}, {"t": DAYS[hour], "x": X + hour * drift})
        write(ds, tmp_path / f"{hour}.nc")
        parts.append(ds)
    advice = (
        "of 't', which does not have the dimension 'x'" if drift == 100.0 else "of 'x'.*join='outer'.* and tolerance="
    )
    with pytest.raises(ManifestError, match=f"different values {advice}"):
        refshard_fs.open(f"{tmp_path}/*.nc")
    if drift < 0.1:
        cube = xr.open_dataset(refshard_fs.open(f"{tmp_path}/*.nc", tolerance=1e-6), engine="refshard")
        assert cube.sizes == {"t": 3, "x": len(X)}


def test_dimension_without_coordinate_is_found_by_its_length(tmp_path: Path) -> None:
    parts = [xr.Dataset({"a": (("obs", "x"), make_values(2 + n, seed=n))}, {"x": X}) for n in range(3)]
    for number, ds in enumerate(parts):
        write(ds, tmp_path / f"{number}.nc")
    xr.testing.assert_equal(open_cube(f"{tmp_path}/*.nc"), xr.concat(parts, "obs"))


def test_error_of_sets_with_equal_coordinates_lists_choices(tmp_path: Path) -> None:
    for number in range(2):
        write(xr.Dataset({"a": ("x", make_values(seed=number))}, {"x": X}), tmp_path / f"{number}.nc")
    with pytest.raises(ManifestError, match=r"same values of all coordinates \(x\).*name it \(dim=\)"):
        refshard_fs.cube(f"{tmp_path}/*.nc")


def test_error_of_sets_that_form_no_grid_lists_choices(tmp_path: Path) -> None:
    for x, y in ((0, 0), (0, 1), (1, 1)):
        ds = xr.Dataset({"a": (("y", "x"), np.zeros((1, 1)))}, {"x": [float(x)], "y": [float(y)]})
        write(ds, tmp_path / f"{x}{y}.nc")
    with pytest.raises(ManifestError, match="differ in 'y', 'x'.*do not form a grid"):
        refshard_fs.cube(f"{tmp_path}/*.nc")


@pytest.mark.parametrize("is_reversed", [False, True])
def test_grid_keeps_descending_order_as_in_xarray(is_reversed: bool, tmp_path: Path) -> None:
    y = np.arange(12.0)[::-1]
    whole = xr.Dataset({"t": (("time", "y"), make_values(4, 3).reshape(4, 12))}, {"time": DAYS[:4], "y": y})
    for number in (2, 0, 1):
        for half in range(2):
            part = whole.isel(time=slice(2 * half, 2 * half + 2), y=slice(4 * number, 4 * number + 4))
            write(part, tmp_path / f"{half}_{number}.nc")
    urls = sorted(map(str, tmp_path.glob("*.nc")), reverse=is_reversed)
    xr.testing.assert_equal(xr.open_dataset(refshard_fs.open(urls), engine="refshard"), whole)


@pytest.mark.parametrize("unlimited", [[], ["obs"], ["obs", "x"]])
def test_single_set_grows_along_its_only_unlimited_dimension(unlimited: list[str], tmp_path: Path) -> None:
    """Otherwise the first coordinate is taken, and the error of the next append says how to choose another one."""
    for number in range(2):
        ds = xr.Dataset({"a": (("obs", "x"), make_values(2, seed=number))}, {"x": X})
        ds.to_netcdf(tmp_path / f"{number}.nc", engine="h5netcdf", unlimited_dims=unlimited)
    with xr.open_dataset(str(tmp_path / "0*.nc"), engine="refshard") as one:
        assert one.sizes == {"obs": 2, "x": len(X)}
    refshard_fs.cube([str(tmp_path / "0.nc")]).save(str(tmp_path / "c.refshard"))
    if unlimited != ["obs"]:
        with pytest.raises(ManifestError, match="other than 'x', make the set anew by concat with dim="):
            refshard_fs.append(str(tmp_path / "c.refshard"), [str(tmp_path / "1.nc")])
        return
    refshard_fs.append(str(tmp_path / "c.refshard"), [str(tmp_path / "1.nc")])
    assert open_cube(str(tmp_path / "c.refshard")).sizes == {"obs": 4, "x": len(X)}


@pytest.mark.parametrize("dim", ["record", "time"])
def test_single_set_is_joined_along_record_or_time(dim: str, tmp_path: Path) -> None:
    write(xr.Dataset({"a": ((dim, "x"), make_values(2))}, {"x": X}), tmp_path / "0.nc")
    assert f"joined along {dim}" in repr(refshard_fs.cube([str(tmp_path / "0.nc")]))


def test_source_without_variables_is_an_error_that_says_so(tmp_path: Path) -> None:
    write(xr.Dataset(), tmp_path / "a.nc")
    for path in ("a.nc", "*.nc"):
        with pytest.raises(ManifestError, match="a.nc.* has no variables: expected one to join"):
            refshard_fs.open(f"{tmp_path}/{path}")
