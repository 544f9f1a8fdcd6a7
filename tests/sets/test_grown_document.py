"""Documents of cubes that grow by pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import xarray as xr

import refshard_fs
from refshard_fs import ManifestError
from tests.support.growing_sets import write_day, write_target, write_variable
from tests.support.joined_sets import make_day_set

pytest.importorskip("zarr")


def test_files_of_different_variables_are_appended_together(tmp_path: Path) -> None:
    for name in "ab":
        write_variable(tmp_path, name, 0, 1)
    target = str(tmp_path / "cube.refshard")
    refshard_fs.cube(f"{tmp_path}/*.nc").save(target)
    for name in "ba":
        write_variable(tmp_path, name, 2, 3)
    assert refshard_fs.append(target, f"{tmp_path}/*.nc", "time") == 4
    assert refshard_fs.append(target, f"{tmp_path}/*.nc", "time") == 0
    found = xr.open_dataset(target, engine="refshard", decode_times=False)
    assert found["time"].values.tolist() == list(range(8))
    assert found["a"].values.tolist() == found["b"].values.tolist() == [0, 1, 10, 11, 20, 21, 30, 31]
    assert len(refshard_fs.cube(f"{tmp_path}/*.nc")) == len(json.loads(Path(target).read_text())["sets"]) * 2


def test_refused_append_of_variables_keeps_the_document(tmp_path: Path) -> None:
    for name in "ab":
        write_variable(tmp_path, name, 0)
    target = str(tmp_path / "cube.refshard")
    refshard_fs.cube(f"{tmp_path}/*.nc").save(target)
    before = Path(target).read_bytes()
    (new,) = write_variable(tmp_path, "a", 1)
    with pytest.raises(ManifestError, match="would have 4 elements of 'a' along 'time', and 2 of 'b'.*together"):
        refshard_fs.append(target, new, "time")
    with pytest.raises(ManifestError, match="differ in 'time'"):
        refshard_fs.append(target, [new, *write_variable(tmp_path, "b", 1, by=-5)], "time", any_order=True)
    both = str(tmp_path / "both.nc")
    xr.merge(map(xr.open_dataset, [new, *write_variable(tmp_path, "b", 1)])).to_netcdf(both, engine="h5netcdf")
    with pytest.raises(
        ManifestError, match="different variables \\('a', 'b'\\), and .*both.nc.* has variables of several"
    ):
        refshard_fs.append(target, both, "time")
    with pytest.raises(ManifestError, match="has none of these"):
        refshard_fs.append(target, write_variable(tmp_path, "c", 1), "time")
    assert Path(target).read_bytes() == before
    assert refshard_fs.append(target, write_variable(tmp_path, "a", 0), "time", on_duplicate="skip") == 0


def test_cube_of_a_selected_slice_can_grow(tmp_path: Path) -> None:
    cube = refshard_fs.open([write_day(tmp_path, n, n) for n in range(3)])
    cube.select(isel={"time": slice(0, 2)}, attrs={"t": {"units": "K"}}).save(f"{tmp_path}/part.refshard")
    assert refshard_fs.append(f"{tmp_path}/part.refshard", f"{tmp_path}/*.nc") == 1
    assert xr.open_dataset(f"{tmp_path}/part.refshard", engine="refshard")["t"].units == "K"


def test_cube_of_one_selected_element_refuses_append(tmp_path: Path) -> None:
    cube = refshard_fs.open([write_day(tmp_path, n, n) for n in range(3)])
    cube.select(isel={"time": 1}).save(f"{tmp_path}/day.refshard")
    with pytest.raises(ManifestError, match="append cannot extend .*shows only a selected part along 'time'"):
        refshard_fs.append(f"{tmp_path}/day.refshard", f"{tmp_path}/*.nc")


def test_append_of_a_set_without_a_url_to_a_document_is_refused(tmp_path: Path) -> None:
    url = write_target(tmp_path, "lazy", [make_day_set(0, 2)])
    with pytest.raises(TypeError, match="save a source in memory first"):
        refshard_fs.append(url, make_day_set(2, 2), "time")
