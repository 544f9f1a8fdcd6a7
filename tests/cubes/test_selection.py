"""Selections of sources of all kinds equal xarray's with the same arguments."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import pytest

import refshard_fs
from refshard_fs import ReadOnlyError, RefShardFileSystem
from refshard_fs.cli.program import main
from tests.servers.http import RangeServer
from tests.support.arrays_in_memory import make_array, make_references

np = pytest.importorskip("numpy")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3")
pytest.importorskip("h5netcdf")

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent

CHUNKS = {"air": (5, 4, 8), "time_bnds": (5, 2), "lat2d": (4, 8), "area": (6, 8), "time": (5,)}


def make_dataset() -> Any:
    time, lat, lon = np.arange(20.0), np.linspace(10, 60, 6), np.arange(8.0)
    air = np.arange(20 * 6 * 8, dtype="f4").reshape(20, 6, 8)
    grid = np.arange(48.0).reshape(6, 8)
    about = {"grid_mapping": "crs", "cell_measures": "area: area", "units": "K"}
    ds = xr.Dataset(
        {
            "air": (("time", "lat", "lon"), air, about),
            "rain": (("time",), np.arange(20, dtype="i4")),
            "area": (("lat", "lon"), grid * 2),
            "crs": ((), np.int32(7)),
            "time_bnds": (("time", "nv"), np.stack([time, time + 1], 1)),
        },
        coords={
            "time": ("time", time, {"bounds": "time_bnds", "axis": "T"}),
            "lat": lat,
            "lon": lon,
            "lat2d": (("lat", "lon"), grid),
            "height": ((), 2.0),
        },
        attrs={"title": "all"},
    )
    for name, sizes in CHUNKS.items():
        ds[name].encoding["chunksizes"] = sizes
    return ds


def write_netcdf(folder: Path) -> RefShardFileSystem:
    path = folder / "all.nc"
    encoding = {name: {"chunksizes": sizes, "zlib": True} for name, sizes in CHUNKS.items()}
    make_dataset().drop_encoding().to_netcdf(path, engine="h5netcdf", encoding=encoding)
    return RefShardFileSystem(str(path))


def write_references(folder: Path, name: str) -> RefShardFileSystem:
    write_netcdf(folder).save(str(folder / name))
    return RefShardFileSystem(str(folder / name))


def write_hierarchy(folder: Path, version: int, **encoding: Any) -> RefShardFileSystem:
    path = str(folder / f"all{version}.zarr")
    how = {name: {"chunks": sizes} for name, sizes in CHUNKS.items()}
    how["air"] |= encoding
    make_dataset().drop_encoding().to_zarr(path, zarr_format=version, encoding=how, consolidated=version == 2)
    return RefShardFileSystem(path)


def write_cube(folder: Path) -> RefShardFileSystem:
    names = []
    for number, part in enumerate((slice(0, 10), slice(10, 20))):
        ds = make_dataset().isel(time=part).drop_encoding()
        names.append(str(folder / f"part{number}.nc"))
        encoding = {name: {"chunksizes": sizes} for name, sizes in CHUNKS.items()}
        ds.to_netcdf(names[-1], engine="h5netcdf", encoding=encoding)
    refshard_fs.concat(names, "time", lazy=True).save(str(folder / "cube.json"))
    return RefShardFileSystem(str(folder / "cube.json"))


SOURCES: dict[str, Callable[[Path], RefShardFileSystem]] = {
    "netcdf4": write_netcdf,
    "json": lambda folder: write_references(folder, "refs.json"),
    "parquet": lambda folder: write_references(folder, "refs.parquet"),
    "zarr2": lambda folder: write_hierarchy(folder, 2),
    "shards": lambda folder: write_hierarchy(folder, 3, shards=(10, 8, 8)),
    "cube": write_cube,
}
# The arguments of `select`, and the same in xarray.
WORDS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "drop": ({"drop": ["rain", "lat2d"]}, lambda ds: ds.drop_vars(["rain", "lat2d"])),
    "drop_air": ({"drop": "air"}, lambda ds: ds.drop_vars("air")),
    "keep": ({"keep": ["air"]}, lambda ds: ds[["air", "area", "crs"]]),
    "keep_bounds": ({"keep": "time_bnds"}, lambda ds: ds[["time_bnds"]]),
    "rename": (
        {"rename": {"rain": "pr", "lat": "y", "lat2d": "y2d"}},
        lambda ds: ds.rename(rain="pr", lat="y", lat2d="y2d"),
    ),
    "attrs": (
        {"attrs": {"": {"title": "some", "n": 1}, "air": {"units": None, "long_name": "Air"}}},
        lambda ds: add_attributes(ds),
    ),
    "borders": ({"isel": {"time": slice(5, 17)}}, lambda ds: ds.isel(time=slice(5, 17))),
    "within": (
        {"isel": {"time": slice(3, -2), "lat": slice(1, 6)}},
        lambda ds: ds.isel(time=slice(3, -2), lat=slice(1, 6)),
    ),
    "integer": ({"isel": {"time": 7, "lon": -1}}, lambda ds: ds.isel(time=7, lon=-1)),
    "scalar": ({"isel": {"time": 5, "lat": 0, "lon": 0}}, lambda ds: ds.isel(time=5, lat=0, lon=0)),
    "labels": (
        {"sel": {"time": slice(4.0, 11.0), "lat": 30.0}, "drop": "rain"},
        lambda ds: ds.sel(time=slice(4.0, 11.0), lat=30.0).drop_vars("rain"),
    ),
    "squeeze": (
        {"isel": {"time": slice(3, 4)}, "squeeze": True, "rename": {"time": "t"}},
        lambda ds: ds.isel(time=slice(3, 4)).squeeze().rename(time="t"),
    ),
    "assign": (
        {"assign": {"lon": np.arange(8) * 2, "mask": ("lon", ["sea"] * 8), "height": 3.5}},
        lambda ds: ds.assign_coords(lon=np.arange(8) * 2, mask=("lon", ["sea"] * 8), height=3.5),
    ),
    "nothing": ({"isel": {"time": slice(4, 4)}}, lambda ds: ds.isel(time=slice(4, 4))),
    "all": (
        {"keep": "air", "rename": {"time": "t"}, "isel": {"time": slice(10, None)}},
        lambda ds: ds[["air", "area", "crs"]].isel(time=slice(10, None)).rename(time="t"),
    ),
}


def add_attributes(ds: Any) -> Any:
    ds = ds.copy()
    ds.attrs = {"title": "some", "n": 1}
    attributes = {**ds["air"].attrs, "long_name": "Air"}
    attributes.pop("units")
    ds["air"].attrs = attributes
    return ds


def read(fs: RefShardFileSystem, **options: Any) -> Any:
    with xr.open_dataset(fs, engine=RefShardBackend, decode_times=False, **options) as ds:
        return ds.load()


@pytest.fixture(scope="module")
def write_source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RefShardFileSystem]:
    """Write each source once, in whatever order the tests need them."""
    return cache(lambda name: SOURCES[name](tmp_path_factory.mktemp(name)))


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, write_source: Callable[[str], RefShardFileSystem]) -> RefShardFileSystem:
    return write_source(request.param)


EVERYWHERE = ("drop_air", "rename", "within", "all", "integer", "assign")
CASES = [(source, words) for source in SOURCES for words in WORDS if source == "zarr2" or words in EVERYWHERE]


@pytest.mark.parametrize(("source", "words"), CASES, indirect=["source"])
def test_selection_equals_that_of_xarray(source: RefShardFileSystem, words: str, tmp_path: Path) -> None:
    arguments, same = WORDS[words]
    expected = same(read(source))
    selected = source.select(**arguments)
    xr.testing.assert_identical(read(selected), expected)
    if words in ("rename", "within", "all", "integer", "scalar", "assign"):
        selected.save(str(tmp_path / "saved.json"))
        xr.testing.assert_identical(read(RefShardFileSystem(str(tmp_path / "saved.json"))), expected)


def test_copies_of_selections_are_equal(source: RefShardFileSystem) -> None:
    selected, again = (source.select(keep="air", isel={"time": slice(5, 18)}) for _ in range(2))
    assert selected == again != source
    assert "a selection of" in repr(selected)
    for copy in (pickle.loads(pickle.dumps(selected)), fsspec.AbstractFileSystem.from_json(selected.to_json())):
        assert copy == selected
        xr.testing.assert_identical(read(copy), read(selected))


def test_listings_of_selections_agree_with_keys(source: RefShardFileSystem) -> None:
    selected = source.select(
        drop=["lat2d", "rain"], rename={"air": "t"}, isel={"time": slice(5, 18), "lat": slice(4, 6)}
    )
    keys = selected.find("", detail=True)
    arrays = {parts[0] for key in keys if len(parts := key.split("/")) > 1}
    assert arrays == {"t", "time", "lat", "lon", "area", "crs", "height", "time_bnds"}
    for key, info in keys.items():
        assert info["size"] in (None, len(selected.cat_file(key)))
        assert selected.info(key)["type"] == "file"
    assert not selected.exists("air")
    assert not selected.exists("t/9.0.0")
    assert not selected.exists("lat2d/0.0")


def test_selections_can_be_selected_again(source: RefShardFileSystem, tmp_path: Path) -> None:
    first = source.select(keep="air", isel={"time": slice(3, None)}, rename={"air": "wind"})
    second = first.select(isel={"time": slice(2, 9)}, rename={"time": "t"}, attrs={"wind": {"units": "m"}})
    expected = read(source)[["air", "area", "crs"]].isel(time=slice(5, 12)).rename(air="wind", time="t")
    expected["wind"].attrs["units"] = "m"
    xr.testing.assert_identical(read(second), expected)
    second.save(str(tmp_path / "second.parquet"))
    xr.testing.assert_identical(read(RefShardFileSystem(str(tmp_path / "second.parquet"))), expected)


def test_joined_selections_equal_the_source(source: RefShardFileSystem) -> None:
    parts = [source.select(keep="air", isel={"time": part}) for part in (slice(0, 10), slice(10, 20))]
    joined = RefShardFileSystem(refshard_fs.concat(parts, "time"))
    xr.testing.assert_identical(read(joined), read(source)[["air", "area", "crs"]])


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("consolidated", [True, False])
def test_groups_are_selected_with_their_metadata(tmp_path: Path, version: int, consolidated: bool) -> None:
    ozone = make_dataset()[["area"]].drop_vars(["lat", "lon", "lat2d", "height"])
    for group, ds in ((None, make_dataset()[["rain"]]), ("chem", ozone), ("chem/deep", ozone)):
        ds.drop_encoding().to_zarr(tmp_path / "t.zarr", group=group, mode="a", zarr_format=version, consolidated=False)
    if consolidated:
        with warnings.catch_warnings(action="ignore"):
            zarr.consolidate_metadata(str(tmp_path / "t.zarr"), zarr_format=version)
    source = RefShardFileSystem(str(tmp_path / "t.zarr"))
    selected = source.select(rename={"chem": "c", "lat": "y", "area": "a"}, isel={"lat": slice(1, 4), "time": slice(2)})
    expected = ozone.rename(lat="y", area="a").isel(y=slice(1, 4))
    for group in ("c", "c/deep"):
        xr.testing.assert_identical(read(selected, group=group), expected)
    assert read(selected).sizes == {"time": 2}
    assert {key.rpartition("/")[0] for key in source.select(keep="chem/area").find("chem")} >= {"chem", "chem/area"}


def test_concat_selects_from_each_set(tmp_path: Path) -> None:
    names = [str(tmp_path / f"{number}.nc") for number in (0, 1)]
    for number, name in enumerate(names):  # their variables "other" do not fit each other
        ds = make_dataset()[["rain"]].isel(time=slice(number * 10, number * 10 + 10)).drop_encoding()
        ds["other"] = ("y", np.zeros(number + 1))
        ds.to_netcdf(name, engine="h5netcdf")
    words: dict[str, Any] = {"keep": "rain", "rename": {"rain": "pr", "time": "t"}, "attrs": {"": {"title": None}}}
    expected = make_dataset()[["rain"]].rename(rain="pr", time="t")
    expected.attrs = {}
    for sets in (names, [RefShardFileSystem(name) for name in names]):
        joined = refshard_fs.concat(sets, "t", **words)
        xr.testing.assert_identical(read(RefShardFileSystem(joined)), expected)


def test_convert_and_concat_have_selection_options(tmp_path: Path) -> None:
    make_dataset().drop_encoding().to_netcdf(tmp_path / "all.nc", engine="h5netcdf")
    source, target = str(tmp_path / "all.nc"), str(tmp_path / "part.json")
    words = ["--keep", "rain", "--keep", "area", "--drop", "lat2d", "--rename", "rain=pr", "--isel", "time=5:-5"]
    assert main(["convert", source, target, *words]) == 0
    expected = make_dataset()[["rain", "area"]].drop_vars("lat2d").rename(rain="pr").isel(time=slice(5, -5))
    xr.testing.assert_identical(read(RefShardFileSystem(target)), expected)
    assert main(["concat", target, "-o", str(tmp_path / "both.json"), "--dim", "time", "--drop", "area"]) == 0
    found = read(RefShardFileSystem(str(tmp_path / "both.json")))
    xr.testing.assert_identical(found, expected.drop_vars("area"))
    assert main(["convert", source, target, "--drop", "nope"]) == 2
    words = ["--sel", "lat=20/45", "--isel", "time=3", "--assign", "lon=[0,1,2,3,4,5,6,9]", "--squeeze", "nope"]
    assert main(["convert", source, target, *words]) == 2
    assert main(["convert", source, target, *words[:-2]]) == 0
    expected = make_dataset().sel(lat=slice(20, 45)).isel(time=3).assign_coords(lon=[0, 1, 2, 3, 4, 5, 6, 9])
    xr.testing.assert_equal(read(RefShardFileSystem(target)), expected)


@pytest.mark.parametrize(("version", "tail"), [(2, ""), (3, "c/")])
def test_slices_at_chunk_borders_stay_references(version: int, tail: str) -> None:
    fs = RefShardFileSystem(make_references(a=make_array([3], ["x"], version)))
    selected = fs.select(isel={"x": slice(3, -2)})
    assert [selected.resolve(f"a/{tail}{n}") for n in (0, 1)] == [("s3://b/a", 3, 6), ("s3://b/a", 6, 9)]
    assert len([key for key in selected.find("a") if key.startswith(f"a/{tail}") and key[-1].isdigit()]) == 2
    within = fs.select(isel={"x": slice(4, 6)})  # without a codec, a range of a chunk is a range of its object
    assert within.resolve(f"a/{tail}0") == ("s3://b/a", 4, 6)


def test_selections_refuse_writes_and_uncommitted_sources() -> None:
    fs = RefShardFileSystem(make_references(a=make_array([3], ["x"])))
    with pytest.raises(ReadOnlyError):
        fs.select(keep="a").pipe_file("a/0", b"abc")
    with pytest.raises(ValueError, match="can only be read"):
        RefShardFileSystem(fs.fo, select=[{"keep": ["a"]}], mode="a")
    with pytest.raises(ValueError, match="select="):
        RefShardFileSystem(fs.fo, select=[{"kept": ["a"]}])
    fs.pipe_file("a/0", b"abc")
    with pytest.raises(ValueError, match="not committed"):
        fs.select(keep="a")


def test_hierarchies_without_listing_are_selected_over_http(http_server: RangeServer, tmp_path: Path) -> None:
    path = tmp_path / "all.zarr"
    make_dataset().drop_encoding().to_zarr(path, zarr_format=2, consolidated=True)
    for file in filter(Path.is_file, path.rglob("*")):
        http_server.put(f"all.zarr/{file.relative_to(path)}", file.read_bytes())
    source = RefShardFileSystem(f"{http_server.url}/all.zarr")
    read(source.select(drop=["air"]))
    before = len(http_server.requests())
    selected = source.select(keep="rain", isel={"time": slice(3, 9)})
    assert len(http_server.requests()) - before <= 6  # each document of the root, once
    xr.testing.assert_identical(read(selected), make_dataset()[["rain"]].isel(time=slice(3, 9)))
