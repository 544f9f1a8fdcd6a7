"""Grids of files by their coordinates."""

from __future__ import annotations

from pathlib import Path

import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.sets.file_grid import FileGrid
from refshard_fs.sets.patterns import Pattern

xr = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")

from tests.support.member_files import DIMS, MEMBERS, open_members  # noqa: E402  # xarray may be absent
from tests.support.xarray_loading import load_dataset  # noqa: E402  # xarray may be absent


def test_two_files_in_one_place_are_refused(tmp_path: Path) -> None:
    open_members(tmp_path, members=["r1", "r2"], days=[1])
    with pytest.raises(ManifestError, match=r"r1/20240101\.nc and .*r2/20240101\.nc have the same place"):
        refshard_fs.concat(f"{tmp_path}/r*/{{time:%Y%m%d}}.nc", "time")


def test_assets_have_the_order_of_the_argument() -> None:
    files = [(name, {"asset": name}) for name in ("blue", "green", "red")]
    assert FileGrid.of(files, ["asset"], ["red", "blue", "green"]).files == {(0,): "red", (1,): "blue", (2,): "green"}


def test_missing_file_of_a_grid_needs_join_outer(tmp_path: Path) -> None:
    files = open_members(tmp_path)
    (tmp_path / "r2" / "20240102.nc").unlink()
    pattern = f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc"
    with pytest.raises(ManifestError, match="no file has time = 2024-01-02T00:00:00, member = r2: with join="):
        refshard_fs.concat(pattern, dims=DIMS)
    expected = files.assign_coords(member=list(MEMBERS))
    expected["v"] = expected["v"].where(~((expected["member"] == "r2") & (expected["time"].dt.day == 2)))
    made = refshard_fs.concat(pattern, dims=DIMS, join="outer")
    xr.testing.assert_equal(load_dataset(made).transpose(*expected["v"].dims), expected)
    report = refshard_fs.check(RefShardFileSystem(made), "full")
    assert not report.has_errors, report.findings


def test_names_that_sort_as_equal_numbers_have_a_fixed_order() -> None:
    names = [f"m{'0' * zeros}1" for zeros in range(8)]
    dims = ("member", "time")
    pattern = Pattern.of("{member}/{time:%Y}.nc", dims)
    assert pattern is not None
    for order in (names, names[::-1]):
        found, _ = FileGrid.by_names(pattern, [f"{name}/2024.nc" for name in order], dims)
        assert found.places["member"] == sorted(names)
