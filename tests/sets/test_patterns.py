"""Files in a grid by their names: members, days, tiles; dimensions in the files and from names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.cli import main
from refshard_fs.sets.patterns import Pattern
from tests.support.joined_sets import VERSIONS

xr = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent
from tests.support.member_files import (  # noqa: E402  # xarray may be absent
    DIMS,
    MEMBERS,
    open_members,
    write_member,
)
from tests.support.xarray_loading import load_dataset  # noqa: E402  # xarray may be absent


@pytest.mark.parametrize("version", VERSIONS)
def test_pattern_of_members_and_days_joins_both_dimensions(tmp_path: Path, version: int) -> None:
    expected = open_members(tmp_path, zlib=version == 2).assign_coords(member=list(MEMBERS))
    made = refshard_fs.concat(f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc", dims=DIMS, zarr_format=version)
    found = load_dataset(made)
    xr.testing.assert_equal(found.transpose(*expected["v"].dims), expected)
    assert all(isinstance(value, list) for key, value in made.references.items() if key.startswith("v/c"))


def test_members_in_folder_names_are_sorted_as_integers(tmp_path: Path) -> None:
    expected = open_members(tmp_path).assign_coords(member=[1, 2, 10])
    found = load_dataset(refshard_fs.concat(f"{tmp_path}/r{{member:d}}/{{time:%Y%m%d}}.nc", dims=DIMS))
    xr.testing.assert_equal(found.transpose(*expected["v"].dims), expected)


def test_one_dimensional_pattern_orders_files(tmp_path: Path) -> None:
    expected = open_members(tmp_path, members=["r1"], days=(2, 1)).isel(member=0).sortby("time")
    for lazy in (False, True):
        pattern = f"{tmp_path}/r1/{{time:%Y%m%d}}.nc"
        xr.testing.assert_equal(load_dataset(refshard_fs.concat(pattern, "time", lazy=lazy)), expected)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("/{member}/{day:%Y%m%d}.nc", "the fields member, day: expected a field for each"),
        ("/{member:>3}/{time:%Y%m%d}.nc", "'{member:>3}' in"),
        ("/{member/{time:%Y%m%d}.nc", "'{' outside of its fields"),
        ("/{member}/{time:%Q}.nc", "'%Q'"),
    ],
)
def test_invalid_patterns_are_refused(pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        refshard_fs.concat(pattern, dims=DIMS)


@pytest.mark.parametrize("field", ["{step:d}", "{step:03d}", "{step:03}"])
def test_field_with_a_width_matches_at_least_that_many_digits(field: str) -> None:
    pattern = Pattern.of(f"f{field}.grib2", None)
    assert pattern is not None
    assert pattern.parse_places("f006.grib2") == {"step": 6}
    assert pattern.parse_places("f1200.grib2") == {"step": 1200}
    assert (pattern.parse_places("f6.grib2") is None) == ("3" in field)


def test_pattern_matches_on_s3(tmp_path: Path, s3_server: Any) -> None:
    expected = open_members(tmp_path, members=["r1", "r2"]).assign_coords(member=["r1", "r2"])
    s3_server.create_bucket("members")
    for file in tmp_path.glob("*/*.nc"):
        s3_server.put(f"members/{file.relative_to(tmp_path)}", file.read_bytes())
    options = {"options": {"s3://members/": s3_server.storage_options}, "allow": "any"}
    made = refshard_fs.concat("s3://members/{member}/{time:%Y%m%d}.nc", dims=DIMS, **options)
    found = xr.open_dataset(made, engine=RefShardBackend, storage_options=options).load()
    xr.testing.assert_equal(found.transpose(*expected["v"].dims), expected)


def test_command_takes_patterns(tmp_path: Path) -> None:
    expected = open_members(tmp_path).assign_coords(member=list(MEMBERS))
    url = str(tmp_path / "all.json")
    pattern = f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc"
    assert main(["concat", pattern, "-o", url, "--dims", "time,member"]) == 0
    xr.testing.assert_equal(load_dataset(url).transpose(*expected["v"].dims), expected)


@pytest.mark.parametrize(("dims", "version"), [(DIMS, VERSIONS[0]), (DIMS[::-1], VERSIONS[-1])])
def test_lazy_cube_of_members_and_days_has_both_dimensions(tmp_path: Path, dims: tuple[str, str], version: int) -> None:
    expected = open_members(tmp_path, zlib=version == 2).assign_coords(member=list(MEMBERS))
    pattern = f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc"
    made = refshard_fs.concat(pattern, dims=dims, lazy=True, zarr_format=version)
    url = str(tmp_path / "cube.refshard")
    made.save(url)
    assert len(made) == 6
    assert Path(url).stat().st_size < 6 * 400
    found = load_dataset(url)
    xr.testing.assert_equal(found.transpose(*expected["v"].dims), expected)
    fs = RefShardFileSystem(url)
    keys = fs.find("v")
    assert keys == RefShardFileSystem(refshard_fs.concat(pattern, dims=dims, zarr_format=version)).find("v")
    assert all(fs.exists(key) for key in keys)
    report = refshard_fs.check(fs, "full")
    assert not report.has_errors, report.findings


def test_chunk_of_a_lazy_cube_resolves_to_its_file(tmp_path: Path) -> None:
    open_members(tmp_path)
    fs = RefShardFileSystem(refshard_fs.concat(f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc", dims=DIMS, lazy=True))
    assert fs.resolve("v/2.1.0.0") == RefShardFileSystem(str(tmp_path / "r10/20240102.nc")).resolve("v/0.0.0")


def write_tile(path: Path, ys: Sequence[int], xs: Sequence[int], **storage: Any) -> str:
    data = np.array(ys, "f4")[:, None] * 10 + np.array(xs, "f4")
    ds = xr.Dataset({"v": (("y", "x"), data)}, coords={"y": list(ys), "x": list(xs)})
    encoding = {"v": {"chunksizes": (2, 3), **storage}}
    ds.to_netcdf(path, engine="h5netcdf", encoding=encoding)
    return str(path)


@pytest.mark.parametrize("lazy", [False, True])
def test_nested_list_of_tiles_equals_open_mfdataset(tmp_path: Path, lazy: bool) -> None:
    files = [
        [write_tile(tmp_path / f"{i}{j}.nc", (2 * i, 2 * i + 1), range(3 * j, 3 * j + 3), zlib=lazy and i == 1)]
        for i in range(2)
        for j in range(2)
    ]
    nested = [[files[0][0], files[1][0]], [files[2][0], files[3][0]]]
    cube = refshard_fs.concat(nested, dims=("y", "x"), lazy=lazy)
    expected = xr.open_mfdataset([name for row in nested for name in row], combine="by_coords", engine="h5netcdf")
    xr.testing.assert_equal(load_dataset(cube), expected.load())


def test_lazy_members_and_days_of_other_encodings_are_recoded(tmp_path: Path) -> None:
    rows = []
    for day in (1, 2):
        storage = {"zlib": True} if day == 2 else {"dtype": "f8"}
        rows.append([write_member(tmp_path, "r1", day, **storage), write_member(tmp_path, "r2", day, dtype="f8")])
    expected = xr.open_mfdataset(rows, combine="nested", concat_dim=["time", "member"], engine="h5netcdf").load()
    with pytest.raises(ManifestError, match="has the dimension 'member'"):
        refshard_fs.concat(rows, dims=DIMS, lazy=True)
    found = load_dataset(refshard_fs.concat(f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc", dims=DIMS, lazy=True))
    xr.testing.assert_equal(found["v"].drop_vars("member"), expected["v"].transpose(*found["v"].dims))


def test_times_and_members_in_file_names_make_a_lazy_cube(tmp_path: Path) -> None:
    for member in (1, 2):
        for day in (1, 3):
            ds = xr.Dataset({"v": (("y", "x"), np.full((2, 3), 10 * member + day, "f4"))})
            ds.to_netcdf(tmp_path / f"m{member}_{day:02d}.nc", engine="h5netcdf")
    pattern = f"{tmp_path}/m{{member:d}}_{{time:%d}}.nc"
    eager, lazy = (load_dataset(refshard_fs.concat(pattern, dims=DIMS, lazy=lazy)) for lazy in (False, True))
    xr.testing.assert_identical(lazy, eager)
    one = f"{tmp_path}/m1_{{time:%d}}.nc"
    eager, lazy = (load_dataset(refshard_fs.concat(one, "time", lazy=lazy)) for lazy in (False, True))
    xr.testing.assert_identical(lazy, eager)


def test_command_makes_a_lazy_cube_along_two_dimensions(tmp_path: Path) -> None:
    expected = open_members(tmp_path).assign_coords(member=list(MEMBERS))
    url = str(tmp_path / "cube.refshard")
    pattern = f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc"
    assert main(["concat", pattern, "-o", url, "--dims", "time,member", "--lazy"]) == 0
    xr.testing.assert_equal(load_dataset(url).transpose(*expected["v"].dims), expected)


def test_lazy_cube_of_several_dimensions_refuses_append(tmp_path: Path) -> None:
    open_members(tmp_path)
    pattern, url = f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc", str(tmp_path / "cube.refshard")
    refshard_fs.concat(pattern, dims=DIMS, lazy=True).save(url)
    with pytest.raises(ManifestError, match="along several dimensions"):
        refshard_fs.append(url, str(tmp_path / "r1/20240102.nc"), "time")


def test_files_of_other_chunks_are_a_lazy_cube_of_two_dimensions(tmp_path: Path) -> None:
    for member in (1, 2):
        for year, size in ((2001, 2), (2002, 4)):
            ds = xr.Dataset({"v": (("x",), np.arange(4, dtype="f4") + 100 * member + year)})
            path = tmp_path / f"r{member}_{year}.nc"
            ds.to_netcdf(path, engine="h5netcdf", encoding={"v": {"chunksizes": (size,)}})
    cube = refshard_fs.concat(f"{tmp_path}/r{{member:d}}_{{time:%Y}}.nc", dims=("member", "time"), lazy=True)
    values = np.arange(4) + 100 * np.array([1, 2])[:, None, None] + np.array([2001, 2002])[:, None]
    np.testing.assert_array_equal(load_dataset(cube)["v"].transpose("member", "time", "x"), values)
