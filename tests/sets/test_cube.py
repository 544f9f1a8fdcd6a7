"""Many files opened by one call: the dimension is found, and values equal those of xarray's own readers."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import refshard_fs
from refshard_fs.errors import ManifestError, RefShardError
from tests.servers.http import RangeServer
from tests.support.cube_files import DAYS, X, make_values, open_cube, write
from tests.support.unordered_days import combine_by_coords, write_days


def write_ensemble(folder: Path) -> None:
    for member in "ab":
        for year in (2000, 2001):
            time = pd.date_range(f"{year}-01-01", periods=3).as_unit("ns")
            ds = xr.Dataset({"t": (("time", "x"), make_values(3, seed=year + ord(member)))}, {"time": time, "x": X})
            write(ds, folder / member / f"tas_{year}.nc")


def test_sets_in_a_grid_of_coordinates_get_both_dimensions(tmp_path: Path) -> None:
    for member in (3, 7):
        for half in range(2):
            coordinates = {"member": [member], "time": DAYS[3 * half : 3 * half + 3], "x": X}
            ds = xr.Dataset({"t": (("member", "time", "x"), make_values(1, 3, seed=member + half))}, coordinates)
            write(ds, tmp_path / f"{member}_{1 - half}.nc")
    xr.testing.assert_equal(open_cube(f"{tmp_path}/*.nc"), combine_by_coords(tmp_path))


def test_field_of_files_ordered_by_a_coordinate_is_no_dimension(tmp_path: Path) -> None:
    write_ensemble(tmp_path)
    found = open_cube(f"{tmp_path}/{{member}}/tas_{{year}}.nc")
    expected = xr.concat(
        [combine_by_coords(tmp_path / m) for m in "ab"],
        xr.DataArray(np.array(["a", "b"]), dims="member", name="member"),
    )
    xr.testing.assert_equal(found, expected)


def test_files_of_a_folder_for_each_member_need_no_field(tmp_path: Path) -> None:
    write_ensemble(tmp_path)
    expected = open_cube(f"{tmp_path}/{{member}}/tas_{{year}}.nc")
    for pattern in ("{member}/*.nc", "{member}/tas_*.nc"):
        xr.testing.assert_equal(open_cube(f"{tmp_path}/{pattern}"), expected)
    (tmp_path / "b/tas_2000.nc").unlink()
    with pytest.raises(ManifestError, match="no file has member = b, number of the file = 1"):
        open_cube(f"{tmp_path}/{{member}}/*.nc")


def test_files_of_members_have_the_order_of_the_coordinate(tmp_path: Path) -> None:
    """Names of months, and a table with any order of files, need not have the order of the times."""
    for member in "ab":
        for number, month in enumerate(("jan", "feb", "mar")):
            ds = xr.Dataset({"t": ("time", [number, ord(member)])}, {"time": DAYS[2 * number : 2 * number + 2]})
            write(ds, tmp_path / member / f"{month}.nc")
    found = open_cube(f"{tmp_path}/{{member}}/{{month}}.nc")
    assert found["time"].values.tolist() == DAYS.values.tolist()
    assert found["t"].sel(member="b").values.tolist() == [0, 98, 1, 98, 2, 98]
    xr.testing.assert_equal(open_cube(f"{tmp_path}/{{member}}/*.nc"), found)
    rows = [
        (f"{tmp_path}/{m}/{n}.nc", {"member": m})
        for m, n in zip("ababab", ("feb", "jan", "jan", "mar", "mar", "feb"), strict=True)
    ]
    xr.testing.assert_equal(open_cube(rows), found)


def test_files_that_no_coordinate_tells_apart_are_refused(tmp_path: Path) -> None:
    for name in "cd":
        write(xr.Dataset({"t": ("x", make_values())}, {"x": X}), tmp_path / "a" / f"{name}.nc")
    with pytest.raises(ManifestError, match="c.nc, .*d.nc and others have the same place along member"):
        open_cube(f"{tmp_path}/{{member}}/*.nc")


def test_chunks_are_accepted_along_a_dimension_of_scalars(tmp_path: Path) -> None:
    for day in range(4):
        ds = xr.Dataset({"t": ("x", make_values())}, {"x": X, "time": DAYS[day]})
        write(ds, tmp_path / f"{day}.nc")
    assert refshard_fs.open(f"{tmp_path}/*.nc", chunks={"time": 2}).document.chunks == {"t": (2, 4)}


def make_pairs(rows: list[tuple[str, int]]) -> Any:
    return [(url, {"time": np.datetime64("2024-01-01") + np.timedelta64(day, "D")}) for url, day in rows]


def make_frame(rows: list[tuple[str, int]]) -> Any:
    return pd.DataFrame({"url": [url for url, _ in rows], "time": [DAYS[day] for _, day in rows]})


def make_items(rows: list[tuple[str, int]]) -> Any:
    return {
        "type": "FeatureCollection",
        "features": [
            {
                "type": "Feature",
                "properties": {"datetime": f"{DAYS[day].isoformat()}Z"},
                "assets": {"data": {"href": url}, "thumbnail": {"href": "https://example.com/none.png"}},
            }
            for url, day in rows
        ],
    }


@pytest.mark.parametrize("table", [make_pairs, make_frame, make_items])
def test_tables_of_urls_and_times_are_joined(table: Callable[[list[tuple[str, int]]], Any], tmp_path: Path) -> None:
    parts = [xr.Dataset({"a": ("x", make_values(seed=n))}, {"x": X}) for n in range(3)]
    for number, ds in enumerate(parts):
        write(ds, tmp_path / f"{number}.nc")
    rows = [(str(tmp_path / f"{number}.nc"), number) for number in (2, 0, 1)]
    arguments = {"assets": ["data"]} if table is make_items else {}
    xr.testing.assert_equal(open_cube(table(rows), **arguments), xr.concat(parts, pd.Index(DAYS[:3], name="time")))


def test_parquet_file_of_urls_or_items_is_a_table(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    parts = [xr.Dataset({"a": ("x", make_values(seed=n))}, {"x": X}) for n in range(4)]
    for number, ds in enumerate(parts):
        write(ds, tmp_path / f"{number}.nc")
    rows = [(str(tmp_path / f"{number}.nc"), number) for number in range(4)]
    frame = make_frame(rows).assign(band=["a", "b", "a", "b"], geometry=[b""] * 4)
    frame["time"] = DAYS[[0, 0, 1, 1]]
    frame.to_parquet(tmp_path / "scenes.parquet")
    found = open_cube(str(tmp_path / "scenes.parquet"))
    assert found["a"].dims == ("time", "band", "x")
    np.testing.assert_array_equal(found["a"], np.stack([ds["a"] for ds in parts]).reshape(2, 2, 4))
    items = [{"datetime": DAYS[n], "assets": {"data": {"href": url}}} for url, n in rows]
    pd.DataFrame(items).to_parquet(tmp_path / "items.parquet")
    xr.testing.assert_equal(open_cube(tmp_path / "items.parquet"), xr.concat(parts, pd.Index(DAYS[:4], name="time")))


# A part of a cube, by arguments and by `select`, from memory and from its document.


PARTS: dict[str, tuple[dict[str, Any], Callable[[xr.Dataset], Any]]] = {
    "range": ({"isel": {"time": slice(1, 3)}}, lambda ds: ds.isel(time=slice(1, 3))),
    "months": ({"sel": {"time": slice("2024-01-02", "2024-01-03")}}, lambda ds: ds.isel(time=slice(1, 3))),
    "day": ({"sel": {"time": "2024-01-03"}, "squeeze": True}, lambda ds: ds.isel(time=2)),
    "box": ({"sel": {"x": slice(1, 2)}, "isel": {"time": -1}}, lambda ds: ds.isel(time=-1).sel(x=slice(1, 2))),
    "member": ({"assign": {"member": 7}}, lambda ds: ds.assign_coords(member=7)),
}


@pytest.mark.parametrize("words", PARTS)
def test_selected_cube_equals_the_selection_of_xarray(words: str, tmp_path: Path) -> None:
    write_days(tmp_path)
    arguments, same = PARTS[words]
    expected = same(combine_by_coords(tmp_path))
    whole = refshard_fs.open(f"{tmp_path}/*.nc")
    whole.save(f"{tmp_path}/whole.refshard")
    parts = [
        refshard_fs.open(f"{tmp_path}/*.nc", **arguments),
        whole.select(**arguments),
        refshard_fs.open(f"{tmp_path}/whole.refshard", **arguments),
    ]
    parts[0].save(f"{tmp_path}/part.refshard")
    for part in (*parts, f"{tmp_path}/part.refshard"):
        xr.testing.assert_equal(xr.open_dataset(part, engine="refshard").load(), expected)
    assert [len(part) for part in parts] == [{"range": 2, "months": 2, "day": 1, "box": 1, "member": 4}[words]] * 3


def test_repr_of_a_cube_counts_sets_and_save_keeps_their_urls(tmp_path: Path) -> None:
    write_days(tmp_path)
    cube = refshard_fs.open(f"{tmp_path}/*.nc")
    assert repr(cube).startswith("<4 sets joined along time, time 4: ")
    refshard_fs.RefShardFileSystem(cube).save(f"{tmp_path}/cube.refshard")
    assert refshard_fs.open(f"{tmp_path}/cube.refshard").urls == cube.urls
    with pytest.raises(refshard_fs.ManifestError, match=r"joins sets.* another name, such as .*\.json"):
        refshard_fs.RefShardFileSystem(f"{tmp_path}/a.nc").save(f"{tmp_path}/a.refshard")
    with pytest.raises(refshard_fs.UnknownSource, match=r"To join its files, open .*/\*\.nc'"):
        refshard_fs.open(tmp_path)


def test_coords_argument_names_members_of_nested_lists(tmp_path: Path) -> None:
    write_ensemble(tmp_path)
    nested = [[str(tmp_path / member / f"tas_{year}.nc") for year in (2000, 2001)] for member in "ab"]
    names = xr.DataArray(["second", "first"], dims="member", name="member")
    expected = xr.concat([combine_by_coords(tmp_path / member) for member in "ab"], names)
    found = open_cube(nested, dims=("member", "time"), coords={"member": ["second", "first"]})
    xr.testing.assert_equal(found, expected)
    with pytest.raises(ValueError, match="has 1 values: expected 2"):
        open_cube(nested, dims=("member", "time"), coords={"member": [1]})


def test_on_error_decides_about_unreadable_files(tmp_path: Path) -> None:
    write_days(tmp_path, "abcd")
    for day in range(4):
        (tmp_path / f"{'abcd'[day]}.nc").rename(tmp_path / f"2024010{day + 1}.nc")
        ds = xr.Dataset({"t": ("x", make_values(seed=day))}, {"x": X})
        write(ds, tmp_path / f"m{day}.nc")
    for name in ("20240102.nc", "m1.nc"):
        (tmp_path / name).write_bytes(b"\x89HDF\r\n\x1a\n damaged")
    whole, members = f"{tmp_path}/2024*.nc", f"{tmp_path}/m{{member:d}}.nc"
    for source in (whole, members):
        with pytest.raises(refshard_fs.RefShardError, match=r"20240102|m1"):
            open_cube(source)
    with pytest.warns(UserWarning, match="20240102"):
        cube = refshard_fs.open(whole, on_error="skip")
    assert repr(cube).startswith("<3 sets joined along time, time 3, 1 set not read: ")
    report = refshard_fs.check(refshard_fs.RefShardFileSystem(cube))
    assert [(f.kind, Path(f.url).name) for f in report.findings] == [("lost-set", "20240102.nc")]
    with pytest.warns(UserWarning, match="20240102"):
        hole = refshard_fs.open(whole, on_error="hole", freq="1D")
    assert repr(hole).startswith("<3 sets joined along time, time 4, 1 gap, 1 set not read: ")
    with pytest.warns(UserWarning, match="m1"):
        found = open_cube(members, on_error="hole")
    assert np.isnan(found["t"]).all("x").values.tolist() == [False, True, False, False]
    with pytest.raises(ValueError, match="expected freq="):
        open_cube(whole, on_error="hole")
    hole.save(f"{tmp_path}/cube.refshard")
    ds = xr.Dataset({"t": (("time", "x"), make_values(1, seed=1))}, {"time": DAYS[1:2], "x": X})
    write(ds, tmp_path / "20240102.nc", time={"units": "days since 2024-01-02", "dtype": "f8"})
    assert refshard_fs.append(f"{tmp_path}/cube.refshard", whole) == 1
    assert repr(refshard_fs.open(f"{tmp_path}/cube.refshard")).startswith("<4 sets joined along time, time 4: ")


def test_save_logs_how_many_chunks_it_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("refshard_fs.source.collect.MAX_INLINE", 10)
    for part, days in enumerate((slice(0, 2), slice(2, 5))):
        ds = xr.Dataset({"t": (("time", "x"), make_values(5, seed=1)[days])}, {"time": DAYS[:5][days], "x": X})
        ds.to_netcdf(tmp_path / f"{part}.nc", engine="h5netcdf", encoding={"t": {"chunksizes": ds["t"].shape}})
    cube = refshard_fs.RefShardFileSystem(refshard_fs.open(f"{tmp_path}/*.nc"))
    cube.save(f"{tmp_path}/cube.json")
    assert "2 chunks, 96 B, are computed when they are read" in caplog.text
    assert "ends in .refshard" in caplog.text


def test_save_logs_copies_of_more_than_a_mebibyte(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for part, days in enumerate((slice(0, 2), slice(2, 5))):
        ds = xr.Dataset({"t": (("time", "x"), np.ones((5, 30_000))[days])}, {"time": DAYS[:5][days]})
        encoding = {"t": {"chunksizes": ds["t"].shape, "zlib": True}}
        ds.to_netcdf(tmp_path / f"{part}.nc", engine="h5netcdf", encoding=encoding)
    refshard_fs.RefShardFileSystem(f"{tmp_path}/*.nc").save(f"{tmp_path}/cube.json")
    assert "1.4 MiB, are computed when they are read" in caplog.text
    assert "copied to the set" in caplog.text


def test_encoding_says_how_sets_are_joined(tmp_path: Path) -> None:
    for day in range(3):
        write(xr.Dataset({"t": ("time", [1.0])}, {"time": DAYS[day : day + 1]}), tmp_path / f"{day}.nc")
    refshard_fs.open(f"{tmp_path}/*.nc").save(f"{tmp_path}/cube.refshard")
    for source in (f"{tmp_path}/*.nc", f"{tmp_path}/cube.refshard"):
        assert xr.open_dataset(source, engine="refshard").encoding["joined"] == "3 sets joined along time"


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_netcdf_copy_of_a_cube_is_not_larger_than_its_files(tmp_path: Path, engine: Any) -> None:
    pytest.importorskip({"netcdf4": "netCDF4"}.get(engine, engine))
    packing = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -9, "zlib": True, "complevel": 6, "shuffle": True}
    for month in range(2):
        t = np.arange(10)[:, None, None] + np.sin(np.arange(64) / 9)[:, None] + np.zeros(64)
        ds = xr.Dataset(
            {"t": (("time", "y", "x"), t)}, {"time": pd.date_range(f"2024-0{month + 1}-01", periods=10).as_unit("ns")}
        )
        ds.to_netcdf(tmp_path / f"{month}.nc", encoding={"t": {**packing, "chunksizes": (5, 64, 64)}})
    whole = xr.open_dataset(f"{tmp_path}/*.nc", engine="refshard")
    for part in (whole, whole.isel(x=slice(1, 60))):
        part.to_netcdf(tmp_path / "copy", engine=engine)
        sizes = [(tmp_path / name).stat().st_size for name in ("0.nc", "1.nc", "copy")]
        assert sizes[2] <= sum(sizes[:2])
        xr.testing.assert_equal(xr.open_dataset(tmp_path / "copy").load(), part.load())
    assert whole["t"].encoding["complevel"] == 6
    whole.to_zarr(tmp_path / "copy.zarr", consolidated=False)
    xr.testing.assert_equal(xr.open_zarr(tmp_path / "copy.zarr", consolidated=False).load(), whole)


# As the source of a filesystem.


def test_pattern_and_list_open_in_xarray(tmp_path: Path) -> None:
    write_days(tmp_path)
    expected = combine_by_coords(tmp_path)
    for source in (f"{tmp_path}/*.nc", [str(tmp_path / f"{name}.nc") for name in "abcd"], f"refshard::{tmp_path}/*.nc"):
        xr.testing.assert_equal(xr.open_dataset(source, engine="refshard").load(), expected)


def test_range_of_digits_is_a_pattern_unless_a_file_has_the_name(tmp_path: Path) -> None:
    for number in range(4):
        write(xr.Dataset({"v": ("x", [float(number)])}, {"x": [number]}), tmp_path / f"v{number}.nc")
    pattern = f"{tmp_path}/v[1-2].nc"
    assert open_cube(pattern)["x"].values.tolist() == [1, 2]
    assert refshard_fs.RefShardFileSystem(pattern).exists("v/1")
    (tmp_path / "v3.nc").rename(tmp_path / "v[1-2].nc")
    assert open_cube(pattern)["x"].values.tolist() == [3]  # a file of this name comes first


def test_pickled_pattern_keeps_its_files(tmp_path: Path) -> None:
    write_days(tmp_path)
    fs = fsspec.filesystem("refshard", fo=f"{tmp_path}/*.nc", concat={"keep": ["t"], "attrs": {"t": {"units": "K"}}})
    (tmp_path / "b.nc").rename(tmp_path / "gone")
    copy = pickle.loads(pickle.dumps(fs))
    assert copy == fs
    assert xr.open_dataset(copy, engine="refshard").sizes["time"] == 4


def test_filesystem_of_many_sources_is_read_only(tmp_path: Path) -> None:
    write_days(tmp_path)
    with pytest.raises(ValueError, match="mode='a' needs a single source"):
        fsspec.filesystem("refshard", fo=f"{tmp_path}/*.nc", mode="a")
    with pytest.raises(ValueError, match="needs several sources"):
        fsspec.filesystem("refshard", fo=f"{tmp_path}/a.nc", concat={"dim": "time"})


WELLS = [(row, column) for row in "AB" for column in (1, 2, 3)]


def write_plate(folder: Path, server: RangeServer, version: Any) -> list[tuple[str, dict[str, Any]]]:
    """Put an image of two resolutions for each of `WELLS` on ``server``; return URLs and places."""
    zarr = pytest.importorskip("zarr", "3")
    for row, column in WELLS:
        group = zarr.open_group(f"{folder}/plate.zarr/{row}/{column}/0", mode="w", zarr_format=version)
        scales = [{"axes": [{"name": name} for name in "yx"], "datasets": [{"path": "0"}, {"path": "1"}]}]
        group.attrs["multiscales" if version == 2 else "ome"] = scales if version == 2 else {"multiscales": scales}
        for level in (0, 1):
            names = {"dimension_names": ("y", "x")} if version == 3 else {}
            array = group.create_array(str(level), data=make_pixels(row, column)[:: 1 + level, :: 1 + level], **names)
            array.attrs.update({"_ARRAY_DIMENSIONS": ["y", "x"]} if version == 2 else {})
    put_files(folder, server)
    return [(f"{server.url}/plate.zarr/{row}/{column}/0", {"row": row, "column": column}) for row, column in WELLS]


def make_pixels(row: str, column: int) -> Any:
    return np.full((8, 8), ord(row) + column, "u1")


def put_files(folder: Path, server: RangeServer) -> None:
    for path in (each for each in folder.rglob("*") if each.is_file()):
        server.put(str(path.relative_to(folder)), path.read_bytes(), modified=1e9)


def check_wells(source: Any, server: RangeServer) -> None:
    with xr.open_dataset(source, engine="refshard", storage_options={"allow": [server.url]}) as ds:
        for row, column in WELLS:
            assert (ds["0"].sel(row=row, column=column).values == make_pixels(row, column)).all()


@pytest.mark.parametrize(("version", "documents", "again"), [(2, 2, 2), (3, 1, 1)])
@pytest.mark.parametrize("keep", ["0", "/0"])
def test_requests_for_ome_zarr_wells_are_bounded(
    tmp_path: Path, http_server: RangeServer, version: Any, documents: int, again: int, keep: str
) -> None:
    """Joining requests the root's four documents, as zarr does, and those of one array; reading, the array's again.

    A piece that a look-up opens while it is opened ahead may take another request.
    """
    urls = write_plate(tmp_path, http_server, version)
    labels = keep == "0"  # "0" may also be a label's, and "/0" may not
    cube = refshard_fs.open(urls, keep=[keep])
    assert len(http_server.requests()) == (4 + documents + labels) * len(WELLS)
    rows = 2 * labels  # the first image of each row is opened with its labels
    http_server.log.clear()
    check_wells(cube, http_server)
    assert len(http_server.requests()) <= (again + 1) * len(WELLS) + rows + 2
    cube.save(str(tmp_path / "plate.refshard"))
    http_server.log.clear()
    check_wells(tmp_path / "plate.refshard", http_server)
    others = 3 if version == 3 else 3 + 2  # root documents of the first image and, of version 2, of the first in row B
    assert len(http_server.requests()) <= (1 + again + 1) * len(WELLS) + rows + others + 2


@pytest.mark.parametrize(
    ("version", "changed"),
    [
        *[(2, {}), (2, {"dtype": "i1"}), (2, {"chunks": (4, 8)}), (2, {"zarr_format": 3})],
        *[(3, {}), (3, {"shape": (8, 7)}), (3, {"zarr_format": 2})],
    ],
)
def test_image_replaced_after_joining_is_noticed(
    tmp_path: Path, http_server: RangeServer, version: Any, changed: dict[str, Any]
) -> None:
    zarr = pytest.importorskip("zarr", "3")
    cube = refshard_fs.open(write_plate(tmp_path, http_server, version), keep=["0"])
    image = tmp_path / "plate.zarr/B/2/0"
    for path in (each for each in image.rglob("*") if each.is_file()):
        http_server.delete(str(path.relative_to(tmp_path)))
    shutil.rmtree(image)
    how: dict[str, Any] = {"dtype": "u1", "shape": (8, 8), "chunks": (8, 8), "zarr_format": version} | changed
    zarr.open_group(image, mode="w", zarr_format=how["zarr_format"])
    names = {"dimension_names": ("y", "x")} if how["zarr_format"] == 3 else {}
    zarr.create_array(image / "0", attributes={"_ARRAY_DIMENSIONS": ["y", "x"]}, **names, **how)[...] = 99
    put_files(tmp_path, http_server)
    with xr.open_dataset(cube, engine="refshard") as ds:
        assert (ds["0"].sel(row="B", column=3).values == make_pixels("B", 3)).all()
        if not changed:
            assert (ds["0"].sel(row="B", column=2).values == 99).all()
            return
        with pytest.raises(RefShardError):
            ds["0"].sel(row="B", column=2).load()


@pytest.mark.filterwarnings("ignore")  # zarr warns of what version 3 does not specify
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("types", [("S3", "S7"), ("U7", "U3"), ("S2", "U4"), ("U3", "f8")])
def test_texts_of_one_kind_are_joined_and_other_kinds_refused(
    tmp_path: Path, version: Any, types: tuple[str, str]
) -> None:
    zarr = pytest.importorskip("zarr", "3")
    urls = []
    for number, dtype in enumerate(types):
        urls.append(str(tmp_path / f"{number}.zarr"))
        group = zarr.open_group(urls[-1], mode="w", zarr_format=version)
        texts = np.array(["12", "3", "4"] if number else ["5", "é6" if dtype[0] == "U" else "6", "7"]).astype(dtype)
        for name, given in {"x": np.arange(3) + 3 * number, "name": texts}.items():
            names = {"dimension_names": ("x",)} if version == 3 else {}
            array = group.create_array(name, shape=3, chunks=(1,), dtype=given.dtype, **names)
            array[:2] = given[:2]  # the last text is missing: an empty one
            if name == "x":
                array[2:] = given[2:]
            array.attrs.update({"_ARRAY_DIMENSIONS": ["x"]} if version == 2 else {})
    if {dtype[0] for dtype in types} not in ({"S"}, {"U"}):
        with pytest.raises(ManifestError, match="hold the values of both|other than numbers|can be recoded"):
            refshard_fs.concat(urls, "x", lazy=True)
        return
    parts = [xr.open_zarr(url, chunks=None, consolidated=False) for url in urls]
    expected = xr.concat(parts, "x").load()
    with xr.open_dataset(refshard_fs.concat(urls, "x", lazy=True), engine="refshard") as ds:
        assert ds["name"].values.tolist() == expected["name"].values.tolist()
        assert ds["name"].dtype == expected["name"].dtype
    with xr.open_dataset(refshard_fs.concat(urls, "x"), engine="refshard") as ds:
        assert ds["name"].values.tolist() == expected["name"].values.tolist()


def test_unlimited_dimension_joins_files_without_coordinates(tmp_path: Path) -> None:
    for number in range(3):
        ds = xr.Dataset({"v": (("rec", "x"), np.full((2, 3), number))})
        ds.to_netcdf(tmp_path / f"{number}.nc", engine="h5netcdf", unlimited_dims=["rec"])
    found = xr.open_dataset(f"{tmp_path}/*.nc", engine="refshard")["v"].values
    np.testing.assert_array_equal(found[:, 0], [0, 0, 1, 1, 2, 2])
