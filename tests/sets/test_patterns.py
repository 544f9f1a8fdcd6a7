"""Files in a grid by their names: members, days, tiles; dimensions that the files have, and that they have not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.cli import main
from refshard_fs.sets.patterns import FileGrid, Pattern
from refshard_fs.sets.variables import NamedSet
from tests.support.joined_sets import VERSIONS

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
h5py = pytest.importorskip("h5py")
pytest.importorskip("zarr")

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent

MEMBERS = ("r1", "r2", "r10")


def written(folder: Path, member: str, day: int, **storage: Any) -> str:
    """Write a day of a member; its values tell both."""
    path = folder / member / f"202401{day:02d}.nc"
    path.parent.mkdir(exist_ok=True)
    data = np.full((1, 2, 3), 100 * int(member[1:]) + day, "f4") + np.arange(6).reshape(1, 2, 3) / 10
    time = xr.DataArray([day - 1], dims="time", attrs={"units": "days since 2024-01-01"})
    ds = xr.Dataset({"v": (("time", "y", "x"), data)}, coords={"time": time, "x": [1, 2, 3]})
    encoding = {"v": {"chunksizes": (1, 2, 3), **storage}, "time": {"_FillValue": None}, "x": {"_FillValue": None}}
    ds.to_netcdf(path, engine="h5netcdf", encoding=encoding)
    return str(path)


def grid(folder: Path, members: Sequence[str] = MEMBERS, days: Sequence[int] = (1, 2), **storage: Any) -> Any:
    files = [[written(folder, member, day, **storage) for member in members] for day in days]
    return xr.open_mfdataset(files, combine="nested", concat_dim=["time", "member"], engine="h5netcdf").load()


def of_xarray(fo: Any) -> Any:
    return xr.open_dataset(fo, engine=RefShardBackend).load()


DIMS = ("time", "member")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pattern_of_members_and_days_is_a_cube_with_both(tmp_path: Path, version: int) -> None:
    expected = grid(tmp_path, zlib=version == 2).assign_coords(member=list(MEMBERS))
    made = refshard_fs.concat(f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc", dims=DIMS, zarr_format=version)
    found = of_xarray(made)
    xr.testing.assert_equal(found.transpose(*expected["v"].dims), expected)
    assert all(isinstance(value, list) for key, value in made.references.items() if key.startswith("v/c"))


def test_numbers_sort_as_such_and_keep_their_kind(tmp_path: Path) -> None:
    expected = grid(tmp_path).assign_coords(member=[1, 2, 10])
    found = of_xarray(refshard_fs.concat(f"{tmp_path}/r{{member:d}}/{{time:%Y%m%d}}.nc", dims=DIMS))
    xr.testing.assert_equal(found.transpose(*expected["v"].dims), expected)


def test_a_pattern_of_one_dimension_puts_files_in_order(tmp_path: Path) -> None:
    expected = grid(tmp_path, members=["r1"], days=(2, 1)).isel(member=0).sortby("time")
    for lazy in (False, True):
        pattern = f"{tmp_path}/r1/{{time:%Y%m%d}}.nc"
        xr.testing.assert_equal(of_xarray(refshard_fs.concat(pattern, "time", lazy=lazy)), expected)  # type: ignore[call-overload]


def test_times_of_names_are_a_coordinate_where_files_have_none(tmp_path: Path) -> None:
    for day in (1, 3):
        ds = xr.Dataset({"v": (("y", "x"), np.full((2, 3), day, "f4"))})
        folder = tmp_path / "2024"
        folder.mkdir(exist_ok=True)
        ds.to_netcdf(folder / f"01{day:02d}T06.nc", engine="h5netcdf")
    found = of_xarray(refshard_fs.concat(f"{tmp_path}/{{time:%Y}}/{{time:%m%dT%H}}.nc", "time"))
    assert found["v"].dims == ("time", "y", "x")
    assert (
        found["time"].values.astype("M8[h]").tolist() == np.array(["2024-01-01T06", "2024-01-03T06"], "M8[h]").tolist()
    )
    assert found["v"][:, 0, 0].values.tolist() == [1, 3]


def test_a_file_that_is_not_there_is_named_or_missing(tmp_path: Path) -> None:
    files = grid(tmp_path)
    (tmp_path / "r2" / "20240102.nc").unlink()
    pattern = f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc"
    with pytest.raises(ManifestError, match="no file has time = 2024-01-02T00:00:00, member = r2: with join="):
        refshard_fs.concat(pattern, dims=DIMS)
    expected = files.assign_coords(member=list(MEMBERS))
    expected["v"] = expected["v"].where(~((expected["member"] == "r2") & (expected["time"].dt.day == 2)))
    made = refshard_fs.concat(pattern, dims=DIMS, join="outer")
    xr.testing.assert_equal(of_xarray(made).transpose(*expected["v"].dims), expected)
    report = refshard_fs.check(RefShardFileSystem(made), "full")
    assert not report.has_errors, report.findings


def test_files_that_are_named_otherwise_are_named_or_left_out(tmp_path: Path) -> None:
    expected = grid(tmp_path).assign_coords(member=list(MEMBERS))
    for name in ("20240199.nc", "notes.nc"):
        (tmp_path / "r1" / name).write_text("")
    pattern = f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc"
    with pytest.raises(ManifestError, match=r"r1/20240199\.nc, .*r1/notes\.nc are not named as .*on_error='skip'"):
        refshard_fs.concat(pattern, dims=DIMS)
    with pytest.warns(UserWarning, match=r"notes\.nc are not named"):
        made = refshard_fs.concat(pattern, dims=DIMS, on_error="skip")
    xr.testing.assert_equal(of_xarray(made).transpose(*expected["v"].dims), expected)


def test_two_files_have_not_the_same_place(tmp_path: Path) -> None:
    grid(tmp_path, members=["r1", "r2"], days=[1])
    with pytest.raises(ManifestError, match=r"r1/20240101\.nc and .*r2/20240101\.nc have the same place"):
        refshard_fs.concat(f"{tmp_path}/r*/{{time:%Y%m%d}}.nc", "time")


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("/{member}/{day:%Y%m%d}.nc", "the fields member, day, and the dimensions are"),
        ("/{member:03d}/{time:%Y%m%d}.nc", "'{member:03d}' in"),
        ("/{member}/{time:%Q}.nc", "'%Q'"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        refshard_fs.concat(pattern, dims=DIMS)


def test_a_pattern_on_s3(tmp_path: Path, s3_server: Any) -> None:
    expected = grid(tmp_path, members=["r1", "r2"]).assign_coords(member=["r1", "r2"])
    s3_server.create_bucket("members")
    for file in tmp_path.glob("*/*.nc"):
        s3_server.put(f"members/{file.relative_to(tmp_path)}", file.read_bytes())
    options = {"options": {"s3://members/": s3_server.storage_options}, "allow": "any"}
    made = refshard_fs.concat("s3://members/{member}/{time:%Y%m%d}.nc", dims=DIMS, **options)
    found = xr.open_dataset(made, engine=RefShardBackend, storage_options=options).load()
    xr.testing.assert_equal(found.transpose(*expected["v"].dims), expected)


def test_the_command_takes_patterns(tmp_path: Path) -> None:
    expected = grid(tmp_path).assign_coords(member=list(MEMBERS))
    url = str(tmp_path / "all.json")
    pattern = f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc"
    assert main(["concat", pattern, "-o", url, "--dims", "time,member"]) == 0
    xr.testing.assert_equal(of_xarray(url).transpose(*expected["v"].dims), expected)


# ------------------------------------------------------------------ lazily: documents within documents


@pytest.mark.parametrize(("dims", "version"), [(DIMS, VERSIONS[0]), (DIMS[::-1], VERSIONS[-1])])
def test_a_lazy_cube_of_members_and_days_has_both(tmp_path: Path, dims: tuple[str, str], version: int) -> None:
    expected = grid(tmp_path, zlib=version == 2).assign_coords(member=list(MEMBERS))
    pattern = f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc"
    made = refshard_fs.concat(pattern, dims=dims, lazy=True, zarr_format=version)
    url = str(tmp_path / "cube.refshard")
    made.save(url)
    assert len(made) == 6
    assert Path(url).stat().st_size < 6 * 400
    found = of_xarray(url)
    xr.testing.assert_equal(found.transpose(*expected["v"].dims), expected)
    fs = RefShardFileSystem(url)
    keys = fs.find("v")
    assert keys == RefShardFileSystem(refshard_fs.concat(pattern, dims=dims, zarr_format=version)).find("v")
    assert all(fs.exists(key) for key in keys)
    report = refshard_fs.check(fs, "full")
    assert not report.has_errors, report.findings


def test_a_lazy_cube_reads_no_more_files_than_a_chunk_lies_in(tmp_path: Path) -> None:
    grid(tmp_path)
    fs = RefShardFileSystem(refshard_fs.concat(f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc", dims=DIMS, lazy=True))
    assert fs.resolve("v/2.1.0.0") == RefShardFileSystem(str(tmp_path / "r10/20240102.nc")).resolve("v/0.0.0")


def tile(path: Path, ys: Sequence[int], xs: Sequence[int], **storage: Any) -> str:
    data = np.array(ys, "f4")[:, None] * 10 + np.array(xs, "f4")
    ds = xr.Dataset({"v": (("y", "x"), data)}, coords={"y": list(ys), "x": list(xs)})
    encoding = {"v": {"chunksizes": (2, 3), **storage}}
    ds.to_netcdf(path, engine="h5netcdf", encoding=encoding)
    return str(path)


@pytest.mark.parametrize("lazy", [False, True])
def test_tiles_are_a_mosaic(tmp_path: Path, lazy: bool) -> None:
    files = [
        [tile(tmp_path / f"{i}{j}.nc", (2 * i, 2 * i + 1), range(3 * j, 3 * j + 3), zlib=lazy and i == 1)]
        for i in range(2)
        for j in range(2)
    ]
    nested = [[files[0][0], files[1][0]], [files[2][0], files[3][0]]]
    cube = refshard_fs.concat(nested, dims=("y", "x"), lazy=lazy)  # type: ignore[call-overload]
    expected = xr.open_mfdataset([name for row in nested for name in row], combine="by_coords", engine="h5netcdf")
    xr.testing.assert_equal(of_xarray(cube), expected.load())


def test_lazy_tiles_and_days_of_other_encodings_are_recoded(tmp_path: Path) -> None:
    rows = []
    for day in (1, 2):
        storage = {"zlib": True} if day == 2 else {"dtype": "f8"}
        rows.append([written(tmp_path, "r1", day, **storage), written(tmp_path, "r2", day, dtype="f8")])
    expected = xr.open_mfdataset(rows, combine="nested", concat_dim=["time", "member"], engine="h5netcdf").load()
    with pytest.raises(ManifestError, match="has the dimension 'member'"):
        refshard_fs.concat(rows, dims=DIMS, lazy=True)
    found = of_xarray(refshard_fs.concat(f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc", dims=DIMS, lazy=True))
    xr.testing.assert_equal(found["v"].drop_vars("member"), expected["v"].transpose(*found["v"].dims))


def test_times_and_members_of_names_alone_are_a_lazy_cube(tmp_path: Path) -> None:
    for member in (1, 2):
        for day in (1, 3):
            ds = xr.Dataset({"v": (("y", "x"), np.full((2, 3), 10 * member + day, "f4"))})
            ds.to_netcdf(tmp_path / f"m{member}_{day:02d}.nc", engine="h5netcdf")
    pattern = f"{tmp_path}/m{{member:d}}_{{time:%d}}.nc"
    eager, lazy = (of_xarray(refshard_fs.concat(pattern, dims=DIMS, lazy=lazy)) for lazy in (False, True))  # type: ignore[call-overload]
    xr.testing.assert_identical(lazy, eager)
    one = f"{tmp_path}/m1_{{time:%d}}.nc"
    eager, lazy = (of_xarray(refshard_fs.concat(one, "time", lazy=lazy)) for lazy in (False, True))  # type: ignore[call-overload]
    xr.testing.assert_identical(lazy, eager)


def test_the_command_makes_a_lazy_cube_along_both(tmp_path: Path) -> None:
    expected = grid(tmp_path).assign_coords(member=list(MEMBERS))
    url = str(tmp_path / "cube.refshard")
    pattern = f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc"
    assert main(["concat", pattern, "-o", url, "--dims", "time,member", "--lazy"]) == 0
    xr.testing.assert_equal(of_xarray(url).transpose(*expected["v"].dims), expected)


def test_a_lazy_cube_along_several_dimensions_does_not_grow(tmp_path: Path) -> None:
    grid(tmp_path)
    pattern, url = f"{tmp_path}/{{member}}/{{time:%Y%m%d}}.nc", str(tmp_path / "cube.refshard")
    refshard_fs.concat(pattern, dims=DIMS, lazy=True).save(url)
    with pytest.raises(ManifestError, match="along several dimensions"):
        refshard_fs.append(url, str(tmp_path / "r1/20240102.nc"), "time")


# ------------------------------------------------------------------ dimensions of which each file has one value


def one_time(folder: Path, day: int) -> str:
    """Write a field of one time, which is a scalar, as are a height and an age; places have coordinates of two."""
    path = folder / f"day{day}.nc"
    places = (("y", "x"), np.arange(6.0).reshape(2, 3))
    time = np.datetime64("2024-01-01", "ns") + np.timedelta64(day, "D")
    coords = {"time": time, "since": time, "height": 2.0, "age": np.int32(day), "lat": places, "x": [1, 2, 3]}
    xr.Dataset({"v": (("y", "x"), np.full((2, 3), day, "f4"))}, coords=coords).to_netcdf(path, engine="h5netcdf")
    return str(path)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("lazy", [False, True])
def test_files_of_one_time_each_are_joined_as_by_xarray(tmp_path: Path, version: int, *, lazy: bool) -> None:
    files = [one_time(tmp_path, day) for day in range(4)]
    expected = xr.open_mfdataset(files, combine="nested", concat_dim="time", engine="h5netcdf").load()
    shuffled = [files[1], files[2], files[0]]
    made: Any = refshard_fs.concat(shuffled, "time", sort=True, zarr_format=version, lazy=lazy)  # type: ignore[call-overload]
    found = of_xarray(made)
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
    xr.testing.assert_equal(of_xarray(url), expected)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("lazy", [False, True])
def test_grib_files_of_one_field_are_a_cube_of_times_and_steps(tmp_path: Path, *, lazy: bool) -> None:
    pytest.importorskip("eccodes", exc_type=Exception)
    pytest.importorskip("cfgrib", exc_type=Exception)
    from tests.support.grib_messages import message

    files = [[str(tmp_path / f"{time}-{step}.grib2") for step in (0, 3)] for time in (0, 600, 1200)]
    for row, time in zip(files, (0, 600, 1200), strict=True):
        for file, step in zip(row, (0, 3), strict=True):
            Path(file).write_bytes(message(dataDate=20240101, dataTime=time, step=step))
    expected = xr.combine_nested(
        [
            [xr.load_dataset(file, engine="cfgrib", indexpath="", decode_timedelta=True) for file in row]
            for row in files
        ],
        ["time", "step"],
    )
    made: Any = refshard_fs.concat(files, dims=("time", "step"), lazy=lazy)  # type: ignore[call-overload]
    found = xr.open_dataset(made, engine=RefShardBackend, decode_timedelta=True).load()
    for name, variable in expected.variables.items():
        assert set(found[name].dims) == set(variable.dims)
        np.testing.assert_array_equal(found[name].transpose(*variable.dims).values, variable.values, err_msg=str(name))


def test_a_scalar_that_no_attribute_names_is_a_dimension_as_well(tmp_path: Path) -> None:
    for day in range(3):
        with h5py.File(tmp_path / f"{day}.h5", "w") as file:
            file["time"], file["v"] = np.int32(day), np.full((2, 3), day, "f4")
            file["time"].attrs["units"] = "days since 2024-01-01"
    found = of_xarray(refshard_fs.concat(f"{tmp_path}/*.h5", "time"))
    assert (
        found["time"].values.tolist() == np.arange("2024-01-01", "2024-01-04", dtype="M8[D]").astype("M8[ns]").tolist()
    )
    np.testing.assert_array_equal(found["v"].values[:, 1, 2], [0, 1, 2])


@pytest.mark.parametrize("lazy", [False, True])
def test_field_that_only_some_files_of_one_time_have_is_refused(tmp_path: Path, *, lazy: bool) -> None:
    files = [one_time(tmp_path, day) for day in range(2)]
    with h5py.File(files[1], "r+") as file:
        file["w"] = np.zeros((2, 3))
    with pytest.raises(ManifestError, match=r"has no variable 'w', which .* has along 'time'"):
        refshard_fs.concat(files, "time", lazy=lazy)  # type: ignore[call-overload]


def test_a_scalar_that_some_files_lack_is_no_dimension(tmp_path: Path) -> None:
    other = tmp_path / "other.nc"
    xr.Dataset({"v": (("y", "x"), np.zeros((2, 3), "f4"))}).to_netcdf(other, engine="h5netcdf")
    with pytest.raises(
        ManifestError,
        match=r"no variable has the dimension 'time'.*does not exist in set 1 .*other\.nc.*set 0 .*day1",
    ):
        refshard_fs.concat([one_time(tmp_path, 1), str(other)], "time")


def test_files_of_other_chunks_are_a_lazy_cube_of_two_dimensions(tmp_path: Path) -> None:
    for member in (1, 2):
        for year, size in ((2001, 2), (2002, 4)):
            ds = xr.Dataset({"v": (("x",), np.arange(4, dtype="f4") + 100 * member + year)})
            path = tmp_path / f"r{member}_{year}.nc"
            ds.to_netcdf(path, engine="h5netcdf", encoding={"v": {"chunksizes": (size,)}})
    cube = refshard_fs.concat(f"{tmp_path}/r{{member:d}}_{{time:%Y}}.nc", dims=("member", "time"), lazy=True)
    values = np.arange(4) + 100 * np.array([1, 2])[:, None, None] + np.array([2001, 2002])[:, None]
    np.testing.assert_array_equal(of_xarray(cube)["v"].transpose("member", "time", "x"), values)


def test_names_of_equal_numbers_have_one_order() -> None:
    names = [f"m{'0' * zeros}1" for zeros in range(8)]
    dims = ("member", "time")
    pattern = Pattern.of("{member}/{time:%Y}.nc", dims)
    assert pattern is not None
    for order in (names, names[::-1]):
        found, _ = FileGrid.by_names(pattern, [f"{name}/2024.nc" for name in order], dims)
        assert found.places["member"] == sorted(names)


# ----------------------------------------------------------------------------------------------------
# Scalars of files of one time each.


def granule(path: Path, number: int, kind: str, *, named: bool = False) -> str:
    """Write a file of one time, as those of GOES are, with a scalar that differs and one that does not."""
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
    [  # each with each of the others
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
    files = [granule(tmp_path / f"f{i:03}.nc", i, kind, named=named) for i in range(3)]
    sets: Any = {"class": "f[0-9][0-9]?.nc", "field": "f{time:d}.nc"}.get(how)
    sets = files if sets is None else str(tmp_path / sets)
    found = xr.open_dataset(refshard_fs.concat(sets, "time", lazy=lazy), engine="refshard").load()  # type: ignore[call-overload]
    each = [xr.load_dataset(file, engine="netcdf4") for file in files]
    assert found["all"].dims == ()
    assert str(found["all"].item()) == str(each[0]["all"].item())
    for name in ("scene", "v", "time"):
        assert found[name].dims == ("time", *each[0][name].dims)
        assert str(found[name].values.tolist()) == str(np.stack([ds[name].values for ds in each]).tolist())


def test_scalars_that_differ_get_a_dimension_of_names(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    for number in range(2):
        granule(tmp_path / f"f{number}.nc", number, "text")
    found = xr.open_dataset(refshard_fs.concat(str(tmp_path / "f{member:d}.nc"), dims=["member"]), engine="refshard")
    assert found["scene"].values.tolist() == ["n0", "n1"]
    assert found["time"].dims == found["scene"].dims == found["member"].dims
    assert found["all"].dims == ()


def test_scalars_are_decoded_once_or_twice_in_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        granule(tmp_path / f"f{number}.nc", number, "f4")
    decoded: list[str] = []
    decode = NamedSet.decode

    def watched(self: NamedSet, path: str, chunks: Any) -> Any:
        decoded.append(path)
        return decode(self, path, chunks)

    monkeypatch.setattr(NamedSet, "decode", watched)
    refshard_fs.concat(str(tmp_path / "f{member:d}.nc"), dims=["member"])
    assert max(map(decoded.count, set(decoded) - {"member"})) <= 4 * 9


def test_a_name_with_brackets_is_itself(tmp_path: Path) -> None:
    for name in ("a[1].nc", "a1.nc"):
        granule(tmp_path / name, 1, "f4")
    found = refshard_fs.concat(str(tmp_path / "a[1].nc"), "time")
    assert found.references["v/0.0"][0] == str(tmp_path / "a[1].nc")


def test_assets_have_the_order_in_which_they_are_given() -> None:
    files = [(name, {"asset": name}) for name in ("blue", "green", "red")]
    assert FileGrid.of(files, ["asset"], ["red", "blue", "green"]).files == {(0,): "red", (1,): "blue", (2,): "green"}
