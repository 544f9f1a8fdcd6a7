"""Days, variables or tiles that a set lacks are shown as missing, or an error names them."""

from __future__ import annotations

from pathlib import Path

import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.cli import main

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")

from tests.support.gapped_files import lazy_or_not, load_all, write_days  # noqa: E402  # xarray may be absent
from tests.support.xarray_loading import load_dataset  # noqa: E402  # xarray may be absent


@lazy_or_not
def test_variable_that_a_file_lacks_is_missing_there(tmp_path: Path, lazy: bool) -> None:
    files = [
        write_days(tmp_path / f"{i}.nc", [2 * i, 2 * i + 1], names)
        for i, names in enumerate((("v", "w"), ("v",), ("w",)))
    ]
    with pytest.raises(ManifestError, match=r"2\.nc\) has no variable 'v'.*join='outer'"):
        refshard_fs.concat(files, "time", lazy=lazy)
    cube = refshard_fs.concat(files, "time", lazy=lazy, join="outer")
    xr.testing.assert_equal(load_dataset(cube), xr.concat(load_all(files), "time"))
    fs = RefShardFileSystem(cube)
    assert not fs.exists("w/2.0")
    report = refshard_fs.check(fs, "full")
    assert not report.has_errors, report.findings
    cube = refshard_fs.concat(files[1:], "time", lazy=lazy, join="outer")
    xr.testing.assert_equal(load_dataset(cube), xr.concat(load_all(files[1:]), "time"))


@lazy_or_not
def test_days_that_are_missing_are_filled_in(tmp_path: Path, lazy: bool) -> None:
    files = [write_days(tmp_path / f"{i}.nc", days) for i, days in enumerate(([0, 1], [3], [4, 5], [9]))]
    cube = refshard_fs.concat(files, "time", lazy=lazy, freq="1D")
    expected = xr.concat(load_all(files), "time").resample(time="1D").asfreq()
    found = load_dataset(cube)
    xr.testing.assert_equal(found, expected)
    assert found.sizes["time"] == 10


def test_outer_join_of_tiles_equals_xarray(tmp_path: Path) -> None:
    tiles = ([0, 1, 2, 3], [2, 3, 4, 5], [6, 7])
    files = [write_days(tmp_path / f"{i}.nc", [i], xs=xs) for i, xs in enumerate(tiles)]
    made = refshard_fs.concat(files, "time", join="outer")
    xr.testing.assert_equal(load_dataset(made), xr.concat(load_all(files), "time", join="outer"))
    assert len([key for key in made.references if key.startswith("v/") and "z" not in key]) == 5
    with pytest.raises(ManifestError, match="'x'"):
        refshard_fs.concat(files, "time")


def test_command_fills_gaps(tmp_path: Path) -> None:
    files = [write_days(tmp_path / f"{i}.nc", [2 * i], names) for i, names in enumerate((("v", "w"), ("v",)))]
    url = str(tmp_path / "all.json")
    assert main(["concat", *files, "-o", url, "--dim", "time", "--join", "outer", "--freq", "1D"]) == 0
    xr.testing.assert_equal(load_dataset(url), xr.concat(load_all(files), "time").resample(time="1D").asfreq())
