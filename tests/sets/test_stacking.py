"""Dimensions with one value in each file, from a scalar or from the file name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.sets.variables import NamedSet
from tests.support.joined_sets import VERSIONS

xr = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
pytest.importorskip("h5netcdf")
IS_ZARR_2 = pytest.importorskip("zarr").__version__ < "3"

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent
from tests.support.xarray_loading import load_dataset  # noqa: E402  # xarray may be absent


def write_one_time(folder: Path, day: int) -> str:
    """Write a field of one time: time, height and age are scalars, and places have coordinates of two dimensions."""
    path = folder / f"day{day}.nc"
    places = (("y", "x"), np.arange(6.0).reshape(2, 3))
    time = np.datetime64("2024-01-01", "ns") + np.timedelta64(day, "D")
    coords = {"time": time, "since": time, "height": 2.0, "age": np.int32(day), "lat": places, "x": [1, 2, 3]}
    xr.Dataset({"v": (("y", "x"), np.full((2, 3), day, "f4"))}, coords=coords).to_netcdf(path, engine="h5netcdf")
    return str(path)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("version", "lazy"), [(VERSIONS[0], False), (VERSIONS[-1], True)])
def test_files_of_one_time_are_joined_as_in_xarray(tmp_path: Path, version: int, *, lazy: bool) -> None:
    files = [write_one_time(tmp_path, day) for day in range(4)]
    expected = xr.open_mfdataset(files, combine="nested", concat_dim="time", engine="h5netcdf").load()
    shuffled = [files[1], files[2], files[0]]
    made: Any = refshard_fs.concat(shuffled, "time", sort=True, zarr_format=version, lazy=lazy)
    found = load_dataset(made)
    xr.testing.assert_equal(found, expected.isel(time=slice(3)))
    assert {name: found[name].dims for name in expected.variables} == {n: v.dims for n, v in expected.variables.items()}
    fs = RefShardFileSystem(made)
    keys = fs.find("")
    assert "time/c" not in keys  # the scalar's chunk in a file
    assert all(fs.exists(key) for key in keys)
    url = str(tmp_path / ("cube.refshard" if lazy else "cube.json"))
    made.save(url)
    assert refshard_fs.append(url, files[3], "time", zarr_format=version) == 1
    assert refshard_fs.append(url, files[3], "time", on_duplicate="skip", zarr_format=version) == 0
    xr.testing.assert_equal(load_dataset(url), expected)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("lazy", [False, True])
def test_grib_files_of_one_field_are_a_cube_of_times_and_steps(tmp_path: Path, *, lazy: bool) -> None:
    pytest.importorskip("eccodes", exc_type=Exception)
    pytest.importorskip("cfgrib", exc_type=Exception)
    from tests.support.grib_messages import make_message

    files = [[str(tmp_path / f"{time}-{step}.grib2") for step in (0, 3)] for time in (0, 600, 1200)]
    for row, time in zip(files, (0, 600, 1200), strict=True):
        for file, step in zip(row, (0, 3), strict=True):
            Path(file).write_bytes(make_message(dataDate=20240101, dataTime=time, step=step))
    expected = xr.combine_nested(
        [
            [xr.load_dataset(file, engine="cfgrib", indexpath="", decode_timedelta=True) for file in row]
            for row in files
        ],
        ["time", "step"],
    )
    made: Any = refshard_fs.concat(files, dims=("time", "step"), lazy=lazy)
    found = xr.open_dataset(made, engine=RefShardBackend, decode_timedelta=True).load()
    for name, variable in expected.variables.items():
        assert set(found[name].dims) == set(variable.dims)
        np.testing.assert_array_equal(found[name].transpose(*variable.dims).values, variable.values, err_msg=str(name))


def test_scalar_time_without_attributes_becomes_a_dimension(tmp_path: Path) -> None:
    for day in range(3):
        with h5py.File(tmp_path / f"{day}.h5", "w") as file:
            file["time"], file["v"] = np.int32(day), np.full((2, 3), day, "f4")
            file["time"].attrs["units"] = "days since 2024-01-01"
    found = load_dataset(refshard_fs.concat(f"{tmp_path}/*.h5", "time"))
    assert (
        found["time"].values.tolist() == np.arange("2024-01-01", "2024-01-04", dtype="M8[D]").astype("M8[ns]").tolist()
    )
    np.testing.assert_array_equal(found["v"].values[:, 1, 2], [0, 1, 2])


@pytest.mark.parametrize("lazy", [False, True])
def test_variable_in_only_some_files_is_refused(tmp_path: Path, *, lazy: bool) -> None:
    files = [write_one_time(tmp_path, day) for day in range(2)]
    with h5py.File(files[1], "r+") as file:
        file["w"] = np.zeros((2, 3))
    with pytest.raises(ManifestError, match=r"has no variable 'w', which .* has along 'time'"):
        refshard_fs.concat(files, "time", lazy=lazy)


def test_scalar_in_only_some_files_is_not_a_dimension(tmp_path: Path) -> None:
    other = tmp_path / "other.nc"
    xr.Dataset({"v": (("y", "x"), np.zeros((2, 3), "f4"))}).to_netcdf(other, engine="h5netcdf")
    with pytest.raises(
        ManifestError,
        match=r"no variable has the dimension 'time'.*set 0 .*day1.*does not exist in set 1 .*other\.nc.*leave this",
    ):
        refshard_fs.concat([write_one_time(tmp_path, 1), str(other)], "time")


def write_granule(path: Path, number: int, kind: str, *, named: bool = False) -> str:
    """Write a file of one time, like files of GOES, with a scalar that differs and one that does not."""
    netCDF4 = pytest.importorskip("netCDF4")
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 3)
        time = file.createVariable("time", "f8", ())
        time.units = "days since 2000-01-01"
        time[...] = number
        v = file.createVariable("v", "i2", ("x",), fill_value=-1)
        v.coordinates = "time scene" if named else "time"
        v[:] = np.arange(3) + number
        for name, value in (("scene", number), ("all", 7)):
            scalar = file.createVariable(name, {"text": str}.get(kind, kind), ())
            scalar[...] = f"n{value}" if kind == "text" else np.array(str(value) if kind == "S1" else value, kind)
    return str(path)


@pytest.mark.parametrize(
    ("lazy", "kind", "named", "how"),
    [  # each pair of kinds
        (True, "f4", True, "list"),
        (True, "f4", False, "class"),
        (False, "f4", True, "field"),
        (False, "S1", False, "list"),
        (False, "S1", False, "class"),
        (True, "S1", True, "field"),
        (False, "text", True, "list"),
        (True, "text", True, "class"),
        (False, "text", False, "field"),
    ],
)
def test_scalars_that_differ_get_the_dimension(tmp_path: Path, lazy: bool, kind: str, named: bool, how: str) -> None:
    xr = pytest.importorskip("xarray")
    files = [write_granule(tmp_path / f"f{i:03}.nc", i, kind, named=named) for i in range(3)]
    sets: Any = {"class": "f[0-9][0-9]?.nc", "field": "f{time:d}.nc"}.get(how)
    sets = files if sets is None else str(tmp_path / sets)
    found = xr.open_dataset(refshard_fs.concat(sets, "time", lazy=lazy), engine="refshard").load()
    each = [xr.load_dataset(file, engine="netcdf4") for file in files]
    assert found["all"].dims == ()
    assert str(found["all"].item()) == str(each[0]["all"].item())
    for name in ("scene", "v", "time"):
        assert found[name].dims == ("time", *each[0][name].dims)
        assert str(found[name].values.tolist()) == str(np.stack([ds[name].values for ds in each]).tolist())


@pytest.mark.parametrize(("version", "lazy"), [(VERSIONS[0], False), (VERSIONS[-1], True)])
@pytest.mark.parametrize("dtype", ["U", "S", "O"])
def test_text_scalars_of_stores_get_the_dimension(tmp_path: Path, dtype: str, version: Any, *, lazy: bool) -> None:
    stores = [str(tmp_path / f"{number}.zarr") for number in range(3)]
    for number, store in enumerate(stores):
        coords = {"time": number, "scene": ((), np.array(f"orbit{number}", dtype))}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr 3 warns of texts without a specification
            xr.Dataset({"v": ("x", np.arange(3.0) + number)}, coords).to_zarr(
                store, consolidated=False, **({} if version == 2 and IS_ZARR_2 else {"zarr_format": version})
            )
    found = load_dataset(refshard_fs.concat(stores, "time", lazy=lazy))
    assert found["scene"].dims == ("time",)
    assert [np.asarray(text).astype("U").item() for text in found["scene"].values] == ["orbit0", "orbit1", "orbit2"]


def test_scalars_that_differ_get_the_dimension_of_file_names(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    for number in range(2):
        write_granule(tmp_path / f"f{number}.nc", number, "text")
    found = xr.open_dataset(refshard_fs.concat(str(tmp_path / "f{member:d}.nc"), dims=["member"]), engine="refshard")
    assert found["scene"].values.tolist() == ["n0", "n1"]
    assert found["time"].dims == found["scene"].dims == found["member"].dims
    assert found["all"].dims == ()


def test_scalars_are_decoded_at_most_four_times_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        write_granule(tmp_path / f"f{number}.nc", number, "f4")
    decoded: list[str] = []
    decode = NamedSet.decode

    def note_path(self: NamedSet, path: str, chunks: Any) -> Any:
        decoded.append(path)
        return decode(self, path, chunks)

    monkeypatch.setattr(NamedSet, "decode", note_path)
    refshard_fs.concat(str(tmp_path / "f{member:d}.nc"), dims=["member"])
    assert max(map(decoded.count, set(decoded) - {"member"})) <= 4 * 9


def test_times_in_file_names_become_a_new_coordinate(tmp_path: Path) -> None:
    for day in (1, 3):
        ds = xr.Dataset({"v": (("y", "x"), np.full((2, 3), day, "f4"))})
        folder = tmp_path / "2024"
        folder.mkdir(exist_ok=True)
        ds.to_netcdf(folder / f"01{day:02d}T06.nc", engine="h5netcdf")
    found = load_dataset(refshard_fs.concat(f"{tmp_path}/{{time:%Y}}/{{time:%m%dT%H}}.nc", "time"))
    assert found["v"].dims == ("time", "y", "x")
    assert (
        found["time"].values.astype("M8[h]").tolist() == np.array(["2024-01-01T06", "2024-01-03T06"], "M8[h]").tolist()
    )
    assert found["v"][:, 0, 0].values.tolist() == [1, 3]


def test_coordinate_of_characters_does_not_get_the_new_dimension(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    for number in range(2):
        ds = xr.Dataset({"air": ("station", [1.0, 2.0])}, {"station": ["ab", "cde"], "time": number})
        ds.to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
    every = [xr.load_dataset(path) for path in sorted(tmp_path.glob("*.nc"))]
    expected = xr.concat(every, "time", data_vars="all", coords="minimal", compat="equals", join="exact")
    cube = refshard_fs.open(f"{tmp_path}/*.nc")
    xr.testing.assert_identical(xr.open_dataset(cube, engine="refshard").load(), expected)
    listed = refshard_fs.open([(path, {"day": day}) for day, path in enumerate(sorted(tmp_path.glob("*.nc")))])
    assert xr.open_dataset(listed, engine="refshard")["station"].dims == ("station",)


@pytest.mark.parametrize("units", [("days", "hours", "hours"), ("hours", "days", "minutes")])
def test_scalar_times_in_other_units_keep_their_instants(tmp_path: Path, units: tuple[str, ...]) -> None:
    for number, unit in enumerate(units):
        ds = xr.Dataset(
            {"air": ("x", [1.0, 2.0])}, {"time": np.datetime64("2000-01-01", "ns") + np.timedelta64(3 * number, "h")}
        )
        encoding = {"time": {"units": f"{unit} since 1850-01-01", "dtype": "f8" if unit == "days" and number else "i4"}}
        ds.to_netcdf(tmp_path / f"{number}.nc", engine="h5netcdf", encoding=encoding)
    each = [xr.load_dataset(path) for path in sorted(tmp_path.glob("*.nc"))]
    expected = xr.concat(each, "time", data_vars="all", coords="minimal", compat="equals", join="exact")
    for cube in (refshard_fs.open(f"{tmp_path}/*.nc"), refshard_fs.concat(f"{tmp_path}/*.nc", "time")):
        xr.testing.assert_equal(xr.open_dataset(cube, engine="refshard").load(), expected)
