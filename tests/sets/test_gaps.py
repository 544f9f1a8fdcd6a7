"""Sets that lack what others have: days, variables, tiles. What is missing is shown as missing, or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.cli import main

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent

UNITS = "days since 2024-01-01"


def written(
    path: Path,
    days: Sequence[float],
    names: Sequence[str] = ("v",),
    xs: Sequence[int] = (0, 1),
    fill: float | None = np.nan,
    units: str = UNITS,
    calendar: str | None = None,
    dtype: str = "f4",
) -> str:
    """Write daily fields, a chunk a day and two places; a number in them tells variable, day and place."""
    attributes = {"units": units} | ({} if calendar is None else {"calendar": calendar})
    data = np.add.outer(np.asarray(days) * 100, np.asarray(xs))
    arrays = {name: (("time", "x"), (data + 10 * k).astype(dtype)) for k, name in enumerate(names)}
    ds = xr.Dataset(arrays, coords={"time": ("time", np.asarray(days), attributes), "x": list(xs)})
    storage = {name: {"chunksizes": (1, 2), "_FillValue": fill} for name in names}
    ds.to_netcdf(path, engine="h5netcdf", encoding={**storage, "time": {"_FillValue": None}})
    return str(path)


def of_xarray(fo: Any) -> Any:
    return xr.open_dataset(fo, engine=RefShardBackend).load()


def each(files: Sequence[str]) -> list[Any]:
    return [xr.load_dataset(file, engine="h5netcdf") for file in files]


both = pytest.mark.parametrize("lazy", [False, True])


@both
def test_a_variable_that_a_file_lacks_is_missing_there(tmp_path: Path, lazy: bool) -> None:
    files = [
        written(tmp_path / f"{i}.nc", [2 * i, 2 * i + 1], names) for i, names in enumerate((("v", "w"), ("v",), ("w",)))
    ]
    with pytest.raises(ManifestError, match=r"2\.nc\) has no variable 'v'.*join='outer'"):
        refshard_fs.concat(files, "time", lazy=lazy)  # type: ignore[call-overload]
    cube = refshard_fs.concat(files, "time", lazy=lazy, join="outer")  # type: ignore[call-overload]
    xr.testing.assert_equal(of_xarray(cube), xr.concat(each(files), "time"))
    fs = RefShardFileSystem(cube)
    assert not fs.exists("w/2.0")
    report = refshard_fs.check(fs, "full")
    assert not report.has_errors, report.findings
    cube = refshard_fs.concat(files[1:], "time", lazy=lazy, join="outer")  # type: ignore[call-overload]
    xr.testing.assert_equal(of_xarray(cube), xr.concat(each(files[1:]), "time"))


@both
def test_days_that_are_missing_are_filled_in(tmp_path: Path, lazy: bool) -> None:
    files = [written(tmp_path / f"{i}.nc", days) for i, days in enumerate(([0, 1], [3], [4, 5], [9]))]
    cube = refshard_fs.concat(files, "time", lazy=lazy, freq="1D")  # type: ignore[call-overload]
    expected = xr.concat(each(files), "time").resample(time="1D").asfreq()
    found = of_xarray(cube)
    xr.testing.assert_equal(found, expected)
    assert found.sizes["time"] == 10


def test_files_that_are_recut_have_gaps_too(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{i}.nc", days) for i, days in enumerate(([0, 1, 2], [4], [8, 9]))]
    cube = refshard_fs.concat(files, "time", lazy=True, freq="1D", chunks={"time": 4})
    xr.testing.assert_equal(of_xarray(cube), xr.concat(each(files), "time").resample(time="1D").asfreq())


@pytest.mark.parametrize("chunks", [None, {"time": 3}])
def test_a_day_that_comes_late_takes_its_place_in_the_gap(tmp_path: Path, chunks: dict[str, int] | None) -> None:
    files = [written(tmp_path / f"{day}.nc", [day]) for day in (0, 1, 5, 6)]
    url = str(tmp_path / "cube.refshard")
    refshard_fs.concat(files, "time", lazy=True, freq="1D", chunks=chunks).save(url)  # type: ignore[attr-defined]
    for day in (3, 2, 4, 7):
        files.append(written(tmp_path / f"{day}.nc", [day]))
        assert refshard_fs.append(url, files[-1], "time") == 1
        expected = xr.concat(each(files), "time").sortby("time").resample(time="1D").asfreq()
        xr.testing.assert_equal(of_xarray(url), expected)
    for day in (2, 4, 5):
        with pytest.raises(ManifestError, match=f"has time = {day} days .* already"):
            refshard_fs.append(url, files[files.index(str(tmp_path / f"{day}.nc"))], "time")


@pytest.mark.parametrize(
    ("days", "how"),
    [
        ([1, 2], "error"),
        ([1, 2], "skip"),
        ([4, 5], "replace"),
        ([3, 2], "error"),
        ([2, 4], "skip"),
        ([6, 7, 2], "replace"),
    ],
)
def test_what_does_not_lie_within_one_gap_is_refused(tmp_path: Path, days: list[int], how: Any) -> None:
    files = [written(tmp_path / f"{day}.nc", [day]) for day in (0, 1, 5, 6)]
    url = tmp_path / "cube.refshard"
    refshard_fs.concat(files, "time", lazy=True, freq="1D").save(str(url))
    before = url.read_bytes()
    with pytest.raises(ManifestError, match=r"new\.nc.* has values in several gaps of .*: append one set for each gap"):
        refshard_fs.append(url, written(tmp_path / "new.nc", days), "time", on_duplicate=how)
    assert url.read_bytes() == before


def test_what_fills_a_gap_has_whole_chunks(tmp_path: Path) -> None:
    def two(name: str, first: int) -> str:
        path = tmp_path / name
        days = [first, first + 1]
        data = xr.DataArray(np.add.outer(days, [0.0, 0.5]), dims=("time", "x"))
        ds = xr.Dataset({"v": data}, coords={"time": ("time", days, {"units": UNITS}), "x": [0, 1]})
        ds.to_netcdf(path, engine="h5netcdf", encoding={"v": {"chunksizes": (2, 2), "_FillValue": np.nan}})
        return str(path)

    files = [two("0.nc", 0), two("6.nc", 6)]
    url = str(tmp_path / "cube.refshard")
    refshard_fs.concat(files, "time", lazy=True, freq="1D").save(url)
    with pytest.raises(ManifestError, match="'v'.* chunks of 2"):
        refshard_fs.append(url, two("3.nc", 3), "time")
    files.append(two("4.nc", 4))
    refshard_fs.append(url, files[-1], "time")
    expected = xr.concat(each(files), "time").sortby("time").resample(time="1D").asfreq()
    xr.testing.assert_equal(of_xarray(url), expected)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_gap_within_a_file_is_filled_in(tmp_path: Path, lazy: bool) -> None:
    files = [written(tmp_path / f"{i}.nc", days) for i, days in enumerate(([0, 1, 4], [5]))]
    made = refshard_fs.concat(files, "time", freq="D", lazy=lazy)  # type: ignore[call-overload]
    xr.testing.assert_equal(of_xarray(made), xr.concat(each(files), "time").resample(time="1D").asfreq())


@pytest.mark.parametrize(
    ("freq", "units", "days", "expected"),
    [
        ("6h", "hours since 2024-01-01", ([0, 6], [18]), [0, 6, 12, 18]),
        ("12h", UNITS, ([0.0, 0.5], [2.0]), [0.0, 0.5, 1.0, 1.5, 2.0]),
        ("MS", UNITS, ([0, 31], [91]), [0, 31, 60, 91]),
        ("2D", UNITS, ([3], [9]), [3, 5, 7, 9]),
    ],
)
def test_steps_of_any_length_are_filled_in(
    tmp_path: Path, freq: str, units: str, days: Any, expected: list[float]
) -> None:
    files = [written(tmp_path / f"{i}.nc", some, units=units) for i, some in enumerate(days)]
    fs = RefShardFileSystem(refshard_fs.concat(files, "time", freq=freq))
    dtype = "<i8" if isinstance(expected[0], int) else "<f8"
    assert np.frombuffer(fs.cat_file("time/0"), dtype).tolist() == expected


def test_steps_are_counted_in_calendars_of_models_but_not_months(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{i}.nc", some, calendar="360_day") for i, some in enumerate(([0], [2]))]
    fs = RefShardFileSystem(refshard_fs.concat(files, "time", freq="1D"))
    assert np.frombuffer(fs.cat_file("time/0"), "<i8").tolist() == [0, 1, 2]
    with pytest.raises(ManifestError, match="found '360_day'"):
        refshard_fs.concat(files, "time", freq="MS")


@pytest.mark.parametrize(
    ("freq", "said"),
    [
        ("2D", r"1\.nc\) has time = 3, which is not on the grid"),
        ("1h", "which int64 cannot hold"),
        ("fortnight", "expected a number of s, S, min"),
    ],
)
def test_what_is_not_regular_is_refused(tmp_path: Path, freq: str, said: str) -> None:
    files = [written(tmp_path / f"{i}.nc", some) for i, some in enumerate(([0], [3]))]
    with pytest.raises(ManifestError, match=said):
        refshard_fs.concat(files, "time", freq=freq)


def test_a_coordinate_is_not_filled_without_end(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{i}.nc", some) for i, some in enumerate(([0], [10**9]))]
    with pytest.raises(ManifestError, match=r"more than 16,777,216 values"):
        refshard_fs.concat(files, "time", freq="1D")


@both
def test_numbers_without_a_fill_value_have_no_gaps(tmp_path: Path, lazy: bool) -> None:
    files = [written(tmp_path / f"{i}.nc", some, fill=None, dtype="i4") for i, some in enumerate(([0], [3]))]
    with pytest.raises(ManifestError, match=r"'v' of .*0\.nc\) \(<i4\) has no fill value for its gaps"):
        refshard_fs.concat(files, "time", freq="1D", lazy=lazy)  # type: ignore[call-overload]


def test_floating_point_gets_a_fill_value_if_chunks_are_complete(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{i}.nc", some, fill=None) for i, some in enumerate(([0], [2]))]
    found = of_xarray(refshard_fs.concat(files, "time", freq="1D"))
    xr.testing.assert_equal(found, xr.concat(each(files), "time").resample(time="1D").asfreq())


def test_tiles_whose_coordinates_differ_lie_in_the_union(tmp_path: Path) -> None:
    tiles = ([0, 1, 2, 3], [2, 3, 4, 5], [6, 7])
    files = [written(tmp_path / f"{i}.nc", [i], xs=xs) for i, xs in enumerate(tiles)]
    made = refshard_fs.concat(files, "time", join="outer")
    xr.testing.assert_equal(of_xarray(made), xr.concat(each(files), "time", join="outer"))
    assert len([key for key in made.references if key.startswith("v/") and "z" not in key]) == 5
    with pytest.raises(ManifestError, match="'x'"):
        refshard_fs.concat(files, "time")


def test_tiles_that_do_not_meet_the_chunks_are_refused(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{i}.nc", [i], xs=xs) for i, xs in enumerate(([0, 1, 2, 3], [1, 2, 3, 4]))]
    with pytest.raises(ManifestError, match=r"'v' of .*1\.nc\) has 4 elements along 'x' in chunks of 2"):
        refshard_fs.concat(files, "time", join="outer")
    files = [written(tmp_path / f"{i}.nc", [i], xs=xs) for i, xs in enumerate(([0, 2, 4, 6], [1, 3]))]
    with pytest.raises(ManifestError, match="its chunks begin inside others"):
        refshard_fs.concat(files, "time", join="outer")


def test_the_command_fills_gaps(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{i}.nc", [2 * i], names) for i, names in enumerate((("v", "w"), ("v",)))]
    url = str(tmp_path / "all.json")
    assert main(["concat", *files, "-o", url, "--dim", "time", "--join", "outer", "--freq", "1D"]) == 0
    xr.testing.assert_equal(of_xarray(url), xr.concat(each(files), "time").resample(time="1D").asfreq())
