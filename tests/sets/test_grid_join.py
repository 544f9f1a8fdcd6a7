"""Grids of sets in several dimensions, some without a file."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")
pytest.importorskip("h5netcdf")

from tests.support.outer_cubes import (  # noqa: E402  # xarray may be absent
    DIMS,
    check_values,
    list_in_turn,
    load_each,
    make_member_day,
    write_member_day,
)
from tests.support.xarray_loading import load_dataset  # noqa: E402  # xarray may be absent


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with three days of three members, and the dataset of all of them."""
    folder = tmp_path_factory.mktemp("full")
    files = [
        write_member_day(folder / f"m{m}/202401{day:02d}.nc", make_member_day(day - 1, m))
        for day in range(1, 4)
        for m in range(3)
    ]
    return folder, xr.combine_by_coords(load_each(files))


@pytest.mark.parametrize(("case", "version"), list_in_turn(((0, 0), DIMS), ((1, 1), DIMS[::-1]), ((2, 2), DIMS)))
def test_missing_file_gives_missing_values_in_a_lazy_cube(
    full: tuple[Path, Any], tmp_path: Path, case: tuple[tuple[int, int], tuple[str, str]], version: int
) -> None:
    hole, dims = case
    shutil.copytree(full[0], tmp_path, dirs_exist_ok=True)
    expected = full[1].copy()
    (tmp_path / f"m{hole[1]}/202401{hole[0] + 1:02d}.nc").unlink()
    gone = (expected["time"] == expected["time"][hole[0]]) & (expected["member"] == hole[1])
    pattern = f"{tmp_path}/m{{member:d}}/{{time:%Y%m%d}}.nc"
    expected["v"] = expected["v"].where(~gone)
    cube = refshard_fs.concat(pattern, dims=dims, lazy=True, join="outer", zarr_format=version)
    fs = check_values(cube, expected, tmp_path)
    assert len([key for key in fs.find("v") if not key.endswith((".zarray", ".zattrs", "zarr.json"))]) == 16
    eager = refshard_fs.concat(pattern, dims=dims, join="outer", zarr_format=version)
    xr.testing.assert_equal(load_dataset(eager), load_dataset(cube))


@pytest.mark.parametrize(("kind", "version"), list_in_turn("text", "number"))
def test_outer_join_of_a_pattern_fills_missing_files(tmp_path: Path, kind: str, version: int) -> None:
    for member, day in itertools.product(range(3), range(1, 4)):
        ds = xr.Dataset({"v": (("y", "x"), np.full((2, 3), 10 * member + day, "f4"))})
        if (member, day) not in [(0, 1), (2, 3)]:
            ds.to_netcdf(tmp_path / f"m{member}_{day:02d}.nc", engine="h5netcdf")
    pattern = f"{tmp_path}/m{{member{':d' if kind == 'number' else ''}}}_{{time:%d}}.nc"
    eager = load_dataset(refshard_fs.concat(pattern, dims=DIMS, join="outer", zarr_format=version))
    assert int(eager["v"].isnull().sum()) == 12
    check_values(refshard_fs.concat(pattern, dims=DIMS, lazy=True, join="outer", zarr_format=version), eager, tmp_path)


def test_whole_rows_may_be_missing_in_three_dimensions(tmp_path: Path) -> None:
    for member, day, run in itertools.product(range(2), range(1, 3), range(2)):
        ds = xr.Dataset({"v": (("x",), np.full(3, 100 * run + 10 * member + day, "f4"))})
        if (member, day) != (0, 1) and (member, day, run) != (1, 2, 1):
            ds.to_netcdf(tmp_path / f"m{member}_{day:02d}_{run}.nc", engine="h5netcdf")
    pattern = f"{tmp_path}/m{{member:d}}_{{time:%d}}_{{run:d}}.nc"
    dims = ("time", "member", "run")
    eager = load_dataset(refshard_fs.concat(pattern, dims=dims, join="outer"))
    assert int(eager["v"].isnull().sum()) == 9
    check_values(refshard_fs.concat(pattern, dims=dims, lazy=True, join="outer"), eager, tmp_path)


def test_missing_file_of_a_grid_has_the_time_of_its_row(tmp_path: Path) -> None:
    for member, day in itertools.product(range(2), range(3)):
        if (member, day) not in [(0, 0), (1, 1)]:
            ds = make_member_day(day, member, since=f"2024-01-{day + 1:02d}")
            write_member_day(tmp_path / f"m{member}/{day + 1:02d}.nc", ds)
    expected = xr.combine_by_coords(load_each(list(map(str, tmp_path.glob("*/*.nc")))), join="outer")
    for dims in (DIMS, DIMS[::-1]):
        cube = refshard_fs.concat(f"{tmp_path}/m{{member:d}}/{{time:%d}}.nc", dims=dims, lazy=True, join="outer")
        check_values(cube, expected, tmp_path)


def test_skipped_unreadable_files_become_missing_values(tmp_path: Path) -> None:
    files = [
        write_member_day(tmp_path / f"m{m}/202401{d:02d}.nc", make_member_day(d - 1, m))
        for d in range(1, 4)
        for m in range(2)
    ]
    expected = xr.combine_by_coords(load_each(files))
    for broken in (files[0], files[4], files[5]):
        Path(broken).write_bytes(b"nothing")
    pattern = f"{tmp_path}/m{{member:d}}/{{time:%Y%m%d}}.nc"
    expected = expected.isel(time=[0, 1])
    expected["v"] = expected["v"].where((expected["member"] == 1) | (expected["time"].dt.day == 2))
    for lazy in (True, False):
        with pytest.warns(UserWarning, match="left out"):
            cube = refshard_fs.concat(pattern, dims=DIMS, lazy=lazy, join="outer", on_error="skip")
        xr.testing.assert_equal(load_dataset(cube).transpose(*expected.dims), expected)


def test_error_names_an_array_that_lacks_a_dimension_of_a_grid(tmp_path: Path) -> None:
    for number in range(2):  # neither dimension is of times, so that the files are the corners of a grid
        x, y = [float(number)], [10.0 * number, 10.0 * number + 1]
        ds = xr.Dataset({"v": (("x", "y"), [[1.0, 2.0]]), "a": ("x", x), "b": ("y", y)}, {"x": x, "y": y})
        ds.to_netcdf(tmp_path / f"{number}.nc", engine="h5netcdf")
    with pytest.raises(ManifestError, match=r"'b' of set 1 .*1\.nc\) does not have the dimension 'x', .* drop='b'"):
        refshard_fs.open(f"{tmp_path}/*.nc", join="outer")
    each = [xr.load_dataset(path).drop_vars("b") for path in sorted(tmp_path.glob("*.nc"))]
    expected = xr.combine_by_coords(each, data_vars="minimal", coords="minimal", compat="no_conflicts", join="outer")
    found = xr.open_dataset(refshard_fs.open(f"{tmp_path}/*.nc", join="outer", drop=["b"]), engine="refshard")
    xr.testing.assert_equal(found.load(), expected)
