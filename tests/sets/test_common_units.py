"""Files whose times count from different days, with bounds: their cubes have xarray's instants."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError

xr = pytest.importorskip("xarray")
netCDF4 = pytest.importorskip("netCDF4")
pytest.importorskip("cftime")
pytest.importorskip("zarr")

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent

MONTHS = np.array([0, 31, 59, 90, 120])


def write_year(path: Path, number: int, **how: Any) -> str:
    """Write a year of monthly means as climate models do: the middle of each month, and its bounds."""
    edges = how.get("edges", MONTHS) / how.get("divisor", 1)
    middles = (edges[1:] + edges[:-1]) / 2
    count, dtype = len(middles), how.get("dtype", "f8")
    length = how.get("chunk", 1)
    kind = "NETCDF3_CLASSIC" if path.suffix == ".nc3" else "NETCDF4"
    storage = {} if path.suffix == ".nc3" else {"zlib": how.get("zlib", False), "chunksizes": (length, 2)}
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.createDimension("time", None)
        file.createDimension("bnds", 2)
        time = file.createVariable("time", dtype, ("time",))
        time.units = how.get("units", "days since {}-01-01").format(2001 + number)
        time.calendar = how.get("calendar", "noleap")
        time.bounds = "time_bnds"
        time[:] = middles
        bounds = file.createVariable("time_bnds", how.get("bounds", dtype), ("time", "bnds"), **storage)
        bounds[:] = np.stack([edges[:-1], edges[1:]], axis=1)
        if how.get("own_units"):
            bounds.units = time.units
        v = file.createVariable("v", "f4", ("time",), **({"chunksizes": (length,)} if storage else {}))
        v[:] = np.arange(count) + 100 * number
    return str(path)


KINDS: dict[str, dict[str, Any]] = {
    "noleap": {},
    "standard": {"calendar": "standard"},
    "gregorian by default": {"calendar": "gregorian", "zlib": True},
    "360_day": {"calendar": "360_day", "own_units": True},
    "whole numbers": {"edges": MONTHS * 2, "dtype": "i4", "calendar": "standard"},
    "hours since the middle of a day": {"units": "hours since {}-01-01 12:00:00", "calendar": "proleptic_gregorian"},
}


def check_equal(found: Any, files: list[str], dim: str = "time") -> None:
    each = [xr.load_dataset(file, engine="netcdf4") for file in files]
    expected = xr.concat(each, dim)
    xr.testing.assert_equal(found, expected)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("name", "suffix"), [*((name, ".nc") for name in KINDS), ("noleap", ".nc3"), ("whole numbers", ".nc3")]
)
def test_years_with_other_reference_dates_keep_their_times(tmp_path: Path, name: str, lazy: bool, suffix: str) -> None:
    files = [write_year(tmp_path / f"{i}{suffix}", i, **KINDS[name]) for i in range(2)]
    cube = refshard_fs.concat(files, "time", lazy=lazy)
    check_equal(xr.open_dataset(pickle.loads(pickle.dumps(cube)), engine=RefShardBackend).load(), files)


@pytest.mark.parametrize("lazy", [False, True])
def test_times_at_fractions_of_days_become_hours(tmp_path: Path, lazy: bool) -> None:
    files = [
        write_year(tmp_path / "0.nc", 0, dtype="i4", edges=MONTHS * 2, calendar="standard"),
        write_year(
            tmp_path / "1.nc", 1, dtype="i4", edges=MONTHS * 2, calendar="standard", units="days since {}-01-01 06:00"
        ),
    ]
    found = xr.open_dataset(
        refshard_fs.concat(files, "time", lazy=lazy),
        engine=RefShardBackend,
        decode_times=False,
    )
    assert found["time"].attrs["units"] == "hours since 2001-01-01"
    assert found["time"].dtype.kind == "i"
    check_equal(xr.decode_cf(found).load(), files)


@pytest.mark.parametrize("lazy", [False, True])
def test_hours_as_day_fractions_keep_their_instants(tmp_path: Path, lazy: bool) -> None:
    how = {"edges": np.arange(25), "divisor": 24, "calendar": "standard"}
    files = [write_year(tmp_path / f"{i}.nc", i, **how) for i in range(2)]
    found = xr.open_dataset(refshard_fs.concat(files, "time", lazy=lazy), engine=RefShardBackend)
    each = xr.concat([xr.load_dataset(file, engine="netcdf4") for file in files], "time")
    for name in ("time", "time_bnds"):
        apart = abs(found[name].values - each[name].values)
        assert apart.max() <= np.timedelta64(1, "us")
        minutes = found[name].values.astype("M8[s]").astype(int) % 1800
        assert not minutes.any()


@pytest.mark.parametrize("lazy", [False, True])
def test_bounds_of_different_chunks_are_joined(tmp_path: Path, lazy: bool) -> None:
    leap = np.append(MONTHS, 151)
    hows = [{"chunk": 1}, {"chunk": 1, "edges": leap}, {"chunk": 1, "bounds": "f4", "zlib": True}]
    files = [write_year(tmp_path / f"{i}.nc", i, **how) for i, how in enumerate(hows)]
    cube = refshard_fs.concat(files, "time", lazy=lazy)
    check_equal(xr.open_dataset(cube, engine=RefShardBackend).load(), files)


@pytest.mark.parametrize("lazy", [False, True])
def test_years_are_appended_in_the_units_of_the_set(tmp_path: Path, lazy: bool) -> None:
    files = [write_year(tmp_path / f"{i}.nc", i) for i in range(4)]
    url = str(tmp_path / ("cube.refshard" if lazy else "cube.json"))
    refshard_fs.concat(files[:1], "time", lazy=lazy).save(url)
    for file in files[1:]:
        assert refshard_fs.append(url, file, "time") == len(MONTHS) - 1
        with pytest.raises(ManifestError, match="already"):
            refshard_fs.append(url, file, "time")
    check_equal(xr.open_dataset(url, engine=RefShardBackend).load(), files)


@pytest.mark.parametrize("lazy", [False, True])
def test_year_in_the_units_of_the_first_file_is_appended(tmp_path: Path, lazy: bool) -> None:
    files = [write_year(tmp_path / f"{i}.nc", i) for i in range(2)]
    again = write_year(tmp_path / "2.nc", 0, edges=MONTHS + 800)  # in the first one's units
    url = str(tmp_path / ("cube.refshard" if lazy else "cube.json"))
    refshard_fs.concat(files, "time", lazy=lazy).save(url)
    refshard_fs.append(url, again, "time")
    check_equal(xr.open_dataset(url, engine=RefShardBackend).load(), [*files, again])


def test_eager_cube_of_years_holds_times_and_bounds(tmp_path: Path) -> None:
    files = [write_year(tmp_path / f"{i}.nc", i) for i in range(2)]
    refs = refshard_fs.concat(files, "time").references
    assert [refs[f"v/{i}"][0] for i in (0, 4)] == files
    assert isinstance(refs["time/0"], bytes)
    assert isinstance(refs["time_bnds/0.0"], bytes)


@pytest.mark.parametrize("lazy", [False, True])
def test_sort_and_duplicates_use_common_units(tmp_path: Path, lazy: bool) -> None:
    how = {"edges": np.arange(0, 366, 73), "calendar": "noleap"}
    files = [write_year(tmp_path / f"{i}.nc", i, **how) for i in (2, 0, 1)]
    cube = refshard_fs.concat(files, "time", sort=True, lazy=lazy)
    check_equal(xr.open_dataset(cube, engine=RefShardBackend).load(), [files[1], files[2], files[0]])
    shutil.copy(files[0], tmp_path / "copy.nc")
    with pytest.raises(ManifestError, match="overlap="):
        refshard_fs.concat([*files, str(tmp_path / "copy.nc")], "time", sort=True, lazy=lazy)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({}, {"calendar": "360_day"}, r"'time' .*calendar 'noleap' in .*0\.nc.* '360_day' in .*1\.nc"),
        ({}, {"units": "months since {}-01-01"}, r"'time' .*days since 2001.*0\.nc.*months since 2002.*1\.nc"),
    ],
)
def test_error_of_inconvertible_times_names_both_files(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], said: str, lazy: bool
) -> None:
    files = [write_year(tmp_path / f"{i}.nc", i, **how) for i, how in enumerate((one, other))]
    with pytest.raises(ManifestError, match=f"(?s){said}"):
        refshard_fs.concat(files, "time", lazy=lazy)


@pytest.mark.parametrize("lazy", [False, True])
def test_times_of_a_wider_type_are_appended(tmp_path: Path, lazy: bool) -> None:
    later = np.arange(5) * 2 + 4 * 10**9
    hows = [{"edges": np.arange(5) * 2, "dtype": "i4"}, {"edges": later, "dtype": "i8"}]
    hows.append({"edges": later + 10**7, "dtype": "u4"})
    how = {"units": "seconds since 2000-01-01", "calendar": "standard", "bounds": "i8"}
    files = [write_year(tmp_path / f"{i}.nc", i, **how, **own) for i, own in enumerate(hows)]
    url = str(tmp_path / ("cube.refshard" if lazy else "cube.json"))
    refshard_fs.concat(files[:1], "time", lazy=lazy).save(url)
    for file in files[1:]:
        refshard_fs.append(url, file, "time")
    check_equal(xr.open_dataset(url, engine=RefShardBackend).load(), files)


# Numbers that are not exact instants, and missing numbers.


def write_hours(path: Path, hours: Any, day: int, version: float = 0, **attributes: Any) -> str:
    """Write hours as float64 days since ``day``, which differs from file to file, as climate models do."""
    since = np.datetime64("2000-01-01") + np.timedelta64(day, "D")
    time = np.asarray(hours) / 24 - day
    attributes = {"units": f"days since {since}", "calendar": "standard", **attributes}
    ds = xr.Dataset({"time": ("time", time, attributes), "v": ("time", np.full(len(time), float(version)))})
    storage: dict[str, Any] = {"time": {"_FillValue": None}, "v": {"_FillValue": None, "chunksizes": (1,)}}
    ds.to_netcdf(path, engine="netcdf4", encoding=storage)
    return str(path)


@pytest.mark.parametrize("lazy", [False, True])
def test_hours_since_different_days_are_exact(tmp_path: Path, lazy: bool) -> None:
    files = [write_hours(tmp_path / f"{d}.nc", np.arange(24 * d, 24 * d + 24), d) for d in (0, 7, 55, 20000)]
    cube = refshard_fs.concat(files, "time", lazy=lazy)
    found = xr.open_dataset(cube, engine=RefShardBackend)["time"].values
    hours = np.concatenate([np.arange(24 * d, 24 * d + 24) for d in (0, 7, 55, 20000)])
    np.testing.assert_array_equal(found, np.datetime64("2000-01-01", "ns") + hours.astype("m8[h]"))


@pytest.mark.parametrize("day", [0, 7])
@pytest.mark.parametrize("overlap", ["first", "last"])
def test_equal_hours_of_two_files_are_joined(tmp_path: Path, overlap: str, day: int) -> None:
    a = write_hours(tmp_path / "a.nc", range(6), 0, 1)
    b = write_hours(tmp_path / "b.nc", np.array([3 * (1 + 2**-52), *range(4, 12)]), day, 2)  # 3 hours, but for rounding
    found = xr.open_dataset(refshard_fs.concat([a, b], "time", overlap=overlap), engine=RefShardBackend)
    assert found["v"].values.tolist() == ([1.0] * 6 + [2.0] * 6 if overlap == "first" else [1.0] * 3 + [2.0] * 9)


@pytest.mark.parametrize("day", [0, 7])
@pytest.mark.parametrize("lazy", [False, True])
def test_equal_hours_of_other_origin_are_appended_once(tmp_path: Path, lazy: bool, day: int) -> None:
    url = str(tmp_path / ("cube.refshard" if lazy else "cube.json"))
    refshard_fs.concat([write_hours(tmp_path / "a.nc", range(6), 0)], "time", lazy=lazy).save(url)
    again = write_hours(tmp_path / "b.nc", range(6), day)
    with pytest.raises(ManifestError, match="already"):
        refshard_fs.append(url, again, "time")
    assert refshard_fs.append(url, again, "time", on_duplicate="skip") == 0
    assert refshard_fs.append(url, write_hours(tmp_path / "c.nc", range(6, 9), day), "time") == 3
    assert len(np.unique(xr.open_dataset(url, engine=RefShardBackend)["time"].values)) == 9


def test_append_of_hours_in_a_gap_fills_the_gap(tmp_path: Path) -> None:
    files = [write_hours(tmp_path / f"{d}.nc", [10 * d, 10 * d + 1], d, d) for d in (0, 2, 5)]
    url = str(tmp_path / "cube.refshard")
    refshard_fs.concat([files[0], files[2]], "time", lazy=True, freq="1h").save(url)
    assert refshard_fs.append(url, files[1], "time") == 2
    found = xr.open_dataset(url, engine=RefShardBackend)["v"]
    assert found.sel(time="2000-01-01T20:00").item() == 2.0
    assert found.sizes["time"] == 52


@pytest.mark.parametrize("lazy", [False, True])
def test_equal_times_of_members_in_other_units_are_joined(tmp_path: Path, lazy: bool) -> None:
    files = []
    for member, (hours, day) in enumerate([(range(4), 0), (range(2, 6), 7)]):
        path = tmp_path / f"{member}.nc"
        with xr.open_dataset(write_hours(tmp_path / "t.nc", hours, day, member), decode_times=False) as ds:
            ds.expand_dims(member=[member]).to_netcdf(
                path, encoding={"v": {"chunksizes": (1, 1), "_FillValue": np.nan}}
            )
        files.append(str(path))
    cube = refshard_fs.concat(files, "member", join="outer", lazy=lazy)
    found = xr.open_dataset(cube, engine=RefShardBackend).load()
    each = [xr.load_dataset(file) for file in files]
    xr.testing.assert_equal(found, xr.concat(each, "member", join="outer"))


@pytest.mark.parametrize("lazy", [False, True])
def test_calendars_equal_since_1582_are_joined(tmp_path: Path, lazy: bool) -> None:
    names = ("standard", "proleptic_gregorian", "gregorian")
    files = [write_hours(tmp_path / f"{d}.nc", [24 * d], d, calendar=name) for d, name in enumerate(names)]
    cube = refshard_fs.concat(files, "time", lazy=lazy)
    found = xr.open_dataset(cube, engine=RefShardBackend)["time"].values
    np.testing.assert_array_equal(found, np.arange("2000-01-01", "2000-01-04", dtype="M8[D]").astype("M8[ns]"))
    early = write_hours(tmp_path / "early.nc", [-4_000_000], 3, calendar="proleptic_gregorian")
    with pytest.raises(ManifestError, match=r"'time' .*calendar 'standard' .*'proleptic_gregorian'"):
        refshard_fs.concat([files[0], early], "time", lazy=lazy)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("fills", [(-1, -1), (-1, -9), (None, -9)])
def test_missing_times_stay_missing_in_other_units(tmp_path: Path, lazy: bool, fills: tuple[Any, Any]) -> None:
    files = []
    for number, fill in enumerate(fills):
        files.append(str(tmp_path / f"{number}.nc"))
        with netCDF4.Dataset(files[-1], "w") as file:
            file.createDimension("time", None)
            time = file.createVariable("time", "f8" if fill is None else "i4", ("time",), fill_value=fill)
            time.units = f"hours since 2000-01-0{1 + number}"
            time[:] = np.ma.masked_equal([1, 99, 2], 99) if fill is not None else [1, np.nan, 2]
            file.createVariable("v", "f4", ("time",), chunksizes=(3,))[:] = np.arange(3) + 3 * number
    cube = refshard_fs.concat(files, "time", lazy=lazy)
    check_equal(xr.open_dataset(cube, engine=RefShardBackend).load(), files)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dim", ["time", "x"])
def test_missing_times_without_a_fill_value_stay_missing(tmp_path: Path, lazy: bool, dim: str) -> None:
    """xarray writes a missing time as the least integer, without a fill value."""
    files = []
    for number in range(2):
        files.append(str(tmp_path / f"{number}.nc"))
        times = np.array([f"2024-01-0{1 + number}", "NaT"], "M8[ns]")
        ds = xr.Dataset(
            {"v": (dim, np.arange(2.0) + number), "time": (dim, times)}, {"x": (dim, np.arange(2) + 2 * number)}
        )
        ds.to_netcdf(files[-1], encoding={"time": {"units": f"days since 202{number}-01-01"}})
    cube = refshard_fs.concat(files, dim, lazy=lazy)
    check_equal(xr.open_dataset(cube, engine=RefShardBackend).load(), files, dim)


def test_bounds_at_fractions_of_days_get_finer_units(tmp_path: Path) -> None:
    a = write_year(tmp_path / "0.nc", 0, edges=np.arange(4) * 2 + 1, calendar="standard")
    b = write_year(
        tmp_path / "1.nc", 0, edges=np.arange(72, 170, 24), calendar="standard", units="hours since 2001-01-04 12:30"
    )
    found = xr.open_dataset(refshard_fs.concat([a, b], "time", lazy=True), engine=RefShardBackend).load()
    check_equal(found, [a, b])


def test_unreadable_bounds_that_another_set_holds_are_an_error() -> None:
    def make_day(number: int, bounds: bytes | list[Any]) -> dict[str, Any]:
        encoding = {"zarr_format": 2, "dtype": "<f8", "order": "C", "fill_value": None, "filters": None}
        units = {"units": "days since 2001-01-01", "calendar": "standard"}
        return {
            "time/.zarray": {**encoding, "compressor": None, "shape": [1], "chunks": [1]},
            "time/.zattrs": {"_ARRAY_DIMENSIONS": ["time"], "bounds": "bnds", **units},
            "time/0": np.array([number + 0.5]).tobytes(),
            "bnds/.zarray": {**encoding, "compressor": None, "shape": [1, 2], "chunks": [1, 2]},
            "bnds/.zattrs": {"_ARRAY_DIMENSIONS": ["time", "n"]},
            "bnds/0.0": bounds,
        }

    days = [make_day(0, np.array([0.0, 1.0]).tobytes()), make_day(1, ["memory://no-bounds", 0, 16])]
    with pytest.raises(ManifestError, match="'bnds' of set 1 is stored in chunks, but other sets hold its values"):
        refshard_fs.concat(days, "time")
