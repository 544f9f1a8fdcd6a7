"""Lazy cubes along several dimensions of which some is missing: files, variables, values of coordinates."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.sets.lazy_set import LazySet
from tests.support.joined_sets import VERSIONS, chunked

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
zarr = pytest.importorskip("zarr")

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent

DIMS = ("time", "member")
versions = pytest.mark.parametrize("version", VERSIONS)


def in_turn(*cases: Any) -> list[tuple[Any, int]]:
    """Return each case with one of the versions: they differ in the keys alone."""
    return list(zip(cases, itertools.cycle(VERSIONS), strict=False))


def dataset(
    day: int, member: int, xs: Sequence[float] = (0, 1, 2, 3), names: Sequence[str] = ("v",), since: str = "2024-01-01"
) -> Any:
    """Return a day of a member; each number tells variable, day, member and place."""
    shift = int((np.datetime64(since) - np.datetime64("2024-01-01")).astype(int))
    fields = {}
    for k, name in enumerate(names):
        data = np.array([[[10000 * (k + 1) + 1000 * member + 10 * day + x for x in xs]]], "f4")
        fields[name] = (("time", "member", "x"), data)
    time = xr.DataArray([day - shift], dims="time", attrs={"units": f"days since {since}"})
    return xr.Dataset(fields, coords={"time": time, "member": [member], "x": list(xs)})


def written(path: Path, ds: Any, chunk: int = 2, fill: float | None = np.nan, dtype: str = "f4", **storage: Any) -> str:
    path.parent.mkdir(exist_ok=True, parents=True)
    fields = {
        name: {"chunksizes": (1, 1, min(chunk, ds.sizes["x"])), "_FillValue": fill, "dtype": dtype, **storage}
        for name in ds.data_vars
    }
    whole = {name: {"_FillValue": None} for name in ds.coords}
    ds.to_netcdf(path, engine="h5netcdf", encoding={**fields, **whole})
    return str(path)


def of_xarray(fo: Any) -> Any:
    return xr.open_dataset(fo, engine=RefShardBackend).load()


def each(files: Any) -> Any:
    return [each(file) for file in files] if isinstance(files, list) else xr.load_dataset(files, engine="h5netcdf")


def checked(cube: Any, expected: Any, tmp_path: Path) -> RefShardFileSystem:
    """Have the cube, as it is and saved, the values that are expected, and all keys that it lists."""
    url = str(tmp_path / ("cube.refshard" if isinstance(cube, LazySet) else "cube.json"))
    cube.save(url)
    for fo in (cube, url):
        found = of_xarray(fo)
        xr.testing.assert_equal(found.transpose(*expected.dims), expected.transpose(*expected.dims))
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    keys = fs.find("")
    assert len(set(keys)) == len(keys)
    data = fs.cat(keys)
    assert [fs.info(key)["size"] in (None, len(data[key])) for key in keys] == [True] * len(keys)
    assert all(fs.exists(key) for key in keys)
    report = refshard_fs.check(fs, "full")
    assert not report.has_errors, report.findings
    return fs


def joined(files: Any) -> Any:
    return xr.combine_nested(each(files), concat_dim=list(DIMS), join="outer", compat="no_conflicts", coords="minimal")


# ------------------------------------------------------------------ files that are not there


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with three days of three members, and what they are together."""
    folder = tmp_path_factory.mktemp("full")
    files = [written(folder / f"m{m}/202401{day:02d}.nc", dataset(day - 1, m)) for day in range(1, 4) for m in range(3)]
    return folder, xr.combine_by_coords(each(files))


@pytest.mark.parametrize(
    ("case", "version"), in_turn(((0, 0), DIMS), ((0, 2), DIMS[::-1]), ((1, 1), DIMS[::-1]), ((2, 2), DIMS))
)
def test_a_file_that_is_not_there_is_missing_in_a_lazy_cube(
    full: tuple[Path, Any], tmp_path: Path, case: tuple[tuple[int, int], tuple[str, str]], version: int
) -> None:
    hole, dims = case
    shutil.copytree(full[0], tmp_path, dirs_exist_ok=True)
    expected = full[1].copy()
    (tmp_path / f"m{hole[1]}/202401{hole[0] + 1:02d}.nc").unlink()
    gone = (expected["time"] == expected["time"][hole[0]]) & (expected["member"] == hole[1])
    pattern = f"{tmp_path}/m{{member:d}}/{{time:%Y%m%d}}.nc"
    expected["v"] = expected["v"].where(~gone)
    cube = refshard_fs.concat(pattern, dims=dims, lazy=True, join="outer", zarr_format=version)
    fs = checked(cube, expected, tmp_path)
    assert len([key for key in fs.find("v") if not key.endswith((".zarray", ".zattrs", "zarr.json"))]) == 16
    eager = refshard_fs.concat(pattern, dims=dims, join="outer", zarr_format=version)
    xr.testing.assert_equal(of_xarray(eager), of_xarray(cube))


@versions
@pytest.mark.parametrize("kind", ["text", "number"])
def test_dimensions_of_names_have_holes(tmp_path: Path, kind: str, version: int) -> None:
    for member, day in itertools.product(range(3), range(1, 4)):
        ds = xr.Dataset({"v": (("y", "x"), np.full((2, 3), 10 * member + day, "f4"))})
        if (member, day) not in [(0, 1), (2, 3)]:
            ds.to_netcdf(tmp_path / f"m{member}_{day:02d}.nc", engine="h5netcdf")
    pattern = f"{tmp_path}/m{{member{':d' if kind == 'number' else ''}}}_{{time:%d}}.nc"
    eager = of_xarray(refshard_fs.concat(pattern, dims=DIMS, join="outer", zarr_format=version))
    assert int(eager["v"].isnull().sum()) == 12
    checked(refshard_fs.concat(pattern, dims=DIMS, lazy=True, join="outer", zarr_format=version), eager, tmp_path)


def test_hole_in_cube_along_three_dimensions_may_be_whole_row(tmp_path: Path) -> None:
    for member, day, run in itertools.product(range(2), range(1, 3), range(2)):
        ds = xr.Dataset({"v": (("x",), np.full(3, 100 * run + 10 * member + day, "f4"))})
        if (member, day) != (0, 1) and (member, day, run) != (1, 2, 1):
            ds.to_netcdf(tmp_path / f"m{member}_{day:02d}_{run}.nc", engine="h5netcdf")
    pattern = f"{tmp_path}/m{{member:d}}_{{time:%d}}_{{run:d}}.nc"
    dims = ("time", "member", "run")
    eager = of_xarray(refshard_fs.concat(pattern, dims=dims, join="outer"))
    assert int(eager["v"].isnull().sum()) == 9
    checked(refshard_fs.concat(pattern, dims=dims, lazy=True, join="outer"), eager, tmp_path)


def test_hole_has_time_of_files_beside_it_whatever_their_units(tmp_path: Path) -> None:
    for member, day in itertools.product(range(2), range(3)):
        if (member, day) not in [(0, 0), (1, 1)]:
            ds = dataset(day, member, since=f"2024-01-{day + 1:02d}")
            written(tmp_path / f"m{member}/{day + 1:02d}.nc", ds)
    expected = xr.combine_by_coords(each(list(map(str, tmp_path.glob("*/*.nc")))), join="outer")
    for dims in (DIMS, DIMS[::-1]):
        cube = refshard_fs.concat(f"{tmp_path}/m{{member:d}}/{{time:%d}}.nc", dims=dims, lazy=True, join="outer")
        checked(cube, expected, tmp_path)


def test_files_that_cannot_be_opened_are_holes(tmp_path: Path) -> None:
    files = [written(tmp_path / f"m{m}/202401{d:02d}.nc", dataset(d - 1, m)) for d in range(1, 4) for m in range(2)]
    expected = xr.combine_by_coords(each(files))
    for broken in (files[0], files[4], files[5]):
        Path(broken).write_bytes(b"nothing")
    pattern = f"{tmp_path}/m{{member:d}}/{{time:%Y%m%d}}.nc"
    expected = expected.isel(time=[0, 1])
    expected["v"] = expected["v"].where((expected["member"] == 1) | (expected["time"].dt.day == 2))
    for lazy in (True, False):
        with pytest.warns(UserWarning, match="left out"):
            cube = refshard_fs.concat(pattern, dims=DIMS, lazy=lazy, join="outer", on_error="skip")  # type: ignore[call-overload]
        xr.testing.assert_equal(of_xarray(cube).transpose(*expected.dims), expected)


# ------------------------------------------------------------------ variables that are not there


@pytest.mark.parametrize(
    ("lacking", "version"),
    in_turn([(0, 0)], [(1, 1)], [(0, 0), (0, 1)], [(1, 0), (1, 1)], [(0, 0), (1, 0)]),
)
def test_a_variable_that_files_lack_is_missing_there(
    tmp_path: Path, lacking: list[tuple[int, int]], version: int
) -> None:
    files = [
        [
            written(tmp_path / f"{day}{m}.nc", dataset(day, m, names=("v",) if (day, m) in lacking else ("v", "w")))
            for m in range(2)
        ]
        for day in range(2)
    ]
    with pytest.raises(ManifestError, match=r"has no variable 'w'.*join='outer'"):
        refshard_fs.concat(files, dims=DIMS, lazy=True, zarr_format=version)
    cube = refshard_fs.concat(files, dims=DIMS, lazy=True, join="outer", zarr_format=version)
    checked(cube, joined(files), tmp_path)


# ------------------------------------------------------------------ values of coordinates that are not there

TILES: dict[str, tuple[Sequence[float], ...]] = {
    "one after the other": ((0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3), (4, 5)),
    "overlapping": ((0, 1, 2, 3), (2, 3, 4, 5), (1, 2), (0, 1, 2)),
    "levels": ((0, 1, 2, 5), (0, 5), (1, 5), (2,)),
    "descending": ((9, 8, 7), (8, 7), (7, 6, 5, 4), (9, 4)),
    "both ways": ((0, 1, 2), (3, 2, 1), (5, 0), (4,)),
    "of several lengths": ((0, 1, 2, 3, 4), (5, 6, 7), (0, 1, 2, 3, 4, 5, 6, 7), (2, 4, 6)),
    "in the first row alone": ((0, 1), (2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
    "fractions": ((0.5, 1.5), (1, 2), (0.5, 1.5), (0, 1)),
}


@pytest.mark.parametrize("name", TILES)
def test_files_of_other_places_lie_in_the_union_of_all(tmp_path: Path, name: str) -> None:
    expected = None
    for chunk in (1, 2, 3):
        folder, xs = tmp_path / f"chunks of {chunk}", iter(TILES[name])
        files = [
            [written(folder / f"{day}{m}.nc", dataset(day, m, next(xs)), chunk, zlib=bool(m)) for m in range(2)]
            for day in range(2)
        ]
        if expected is None:
            expected = joined(files)
            if name == "descending":
                expected = expected.sortby("x", ascending=False)
        cube = refshard_fs.concat(
            files, dims=DIMS, lazy=True, join="outer", zarr_format=VERSIONS[chunk % len(VERSIONS)]
        )
        checked(cube, expected, folder)


@versions
def test_levels_that_a_file_lacks_are_references(tmp_path: Path, version: int) -> None:
    levels = ((0, 1, 2, 5), (0, 5), (1, 5), (2,))
    files = [
        [written(tmp_path / f"{d}{m}.nc", dataset(d, m, levels[2 * d + m]), 1) for m in range(2)] for d in range(2)
    ]
    made = refshard_fs.concat(files, dims=DIMS, join="outer", zarr_format=version)
    xr.testing.assert_equal(of_xarray(made), joined(files))
    lazy = refshard_fs.concat(files, dims=DIMS, join="outer", lazy=True, zarr_format=version)
    one, other = RefShardFileSystem(lazy), RefShardFileSystem(made)
    assert one.find("v") == other.find("v")
    keys = [key for key in one.find("v") if not key.endswith((".zarray", ".zattrs", "zarr.json"))]
    assert len(keys) == 9
    assert [one.resolve(key) for key in keys] == [other.resolve(key) for key in keys]


def test_everything_may_be_missing_at_once(tmp_path: Path) -> None:
    names = ((("v",), ("w", "v")), (("v", "w"), ("w",)))
    xs = (((0, 1), (0, 1, 2, 3)), ((2, 3), (4, 5)))
    files = [
        [written(tmp_path / f"{d}{m}.nc", dataset(d, m, xs[d][m], names[d][m])) for m in range(2)] for d in range(2)
    ]
    checked(refshard_fs.concat(files, dims=DIMS, lazy=True, join="outer"), joined(files), tmp_path)


def test_rows_of_several_lengths_lie_in_the_union_of_members(tmp_path: Path) -> None:
    rows = [[0, 1, 2], [1], [0, 3]]
    files = [[written(tmp_path / f"{d}{m}.nc", dataset(d, m)) for m in row] for d, row in enumerate(rows)]
    expected = xr.combine_by_coords(each([file for row in files for file in row]), join="outer")
    checked(refshard_fs.concat(files, dims=DIMS, lazy=True, join="outer"), expected, tmp_path)


def test_an_array_that_is_not_joined_has_no_place_in_a_union(tmp_path: Path) -> None:
    files = []
    for day, xs in enumerate(((0, 1), (2, 3))):
        ds = dataset(day, 0, xs)
        ds["mask"] = ("x", np.zeros(2, "i4"))
        path = tmp_path / f"{day}.nc"
        ds.to_netcdf(path, engine="h5netcdf")
        files.append(str(path))
    with pytest.raises(ManifestError, match=r"'mask' of set 0 \(.*0\.nc\) has the dimension 'x' and not 'time'"):
        refshard_fs.concat(files, "time", lazy=True, join="outer")


# ------------------------------------------------------------------ steps between those that there are


@versions
@pytest.mark.parametrize("dims", [DIMS, DIMS[::-1]])
def test_days_between_those_of_a_cube_are_filled_in(tmp_path: Path, dims: tuple[str, str], version: int) -> None:
    here = [(0, 0), (0, 1), (2, 0), (5, 1)]
    for day, member in here:
        written(tmp_path / f"m{member}/202401{day + 1:02d}.nc", dataset(day, member))
    files = list(map(str, tmp_path.glob("*/*.nc")))
    expected = xr.combine_by_coords(each(files), join="outer").resample(time="1D").asfreq()
    pattern = f"{tmp_path}/m{{member:d}}/{{time:%Y%m%d}}.nc"
    for lazy in (True, False):
        cube = refshard_fs.concat(pattern, dims=dims, lazy=lazy, join="outer", freq="1D", zarr_format=version)  # type: ignore[call-overload]
        checked(cube, expected, tmp_path)
    assert expected.sizes["time"] == 6


def test_rows_of_other_days_are_filled_in_together(tmp_path: Path) -> None:
    files = [[written(tmp_path / f"{m}{d}.nc", dataset(d, m)) for d in days] for m, days in enumerate(([0, 2], [5, 7]))]
    expected = xr.combine_by_coords(each([f for row in files for f in row]), join="outer").resample(time="1D").asfreq()
    for lazy in (True, False):
        cube = refshard_fs.concat(files, dims=("member", "time"), lazy=lazy, join="outer", freq="1D")  # type: ignore[call-overload]
        checked(cube, expected, tmp_path)


# ------------------------------------------------------------------ what stands for missing


@versions
def test_numbers_without_a_fill_value_get_one_or_are_refused(tmp_path: Path, version: int) -> None:
    def cube(dtype: str, **attributes: Any) -> Any:
        files = []
        for day, names in enumerate((("v",), ("v", "w"))):
            ds = dataset(day, 0, names=names)
            ds = ds.assign({name: ds[name].astype(dtype) for name in names})
            if dtype == "f4":
                ds["v"][..., 0] = np.nan
            for name in names:
                ds[name].attrs |= attributes
            files.append([written(tmp_path / f"{dtype}{day}.nc", ds, fill=None, dtype=dtype)])
        return files, lambda: refshard_fs.concat(files, dims=DIMS, lazy=True, join="outer", zarr_format=version)

    files, make = cube("f4")
    checked(make(), joined(files), tmp_path)
    files, make = cube("i4")
    with pytest.raises(ManifestError, match=r"'w' of .*i41\.nc.*\((<i4|int32)\) has no fill value for its gaps"):
        make()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("dtype", "fill"), [("i4", -1), ("f4", -9.0), ("f4", np.nan)])
def test_gaps_in_stores_of_xarray_are_what_store_says_is_missing(
    tmp_path: Path, dtype: str, fill: float, lazy: bool
) -> None:
    """xarray writes the attribute ``_FillValue`` to version 3, and leaves the array's own fill value at 0."""
    if 3 not in VERSIONS:
        pytest.skip("zarr 2 writes version 2 alone")
    parts = []
    for number in range(2):
        fields = {name: ("time", np.arange(2).astype(dtype)) for name in ("v", "w")[: 1 + number]}
        ds = xr.Dataset(fields, coords={"time": np.arange(2) + 2 * number})
        encoding = {name: {"_FillValue": fill, "chunks": (1,)} for name in fields}
        parts.append(str(tmp_path / f"{number}.zarr"))
        with zarr.config.set({"array.write_empty_chunks": True}):
            ds.to_zarr(parts[-1], encoding=encoding, zarr_format=3, consolidated=False)
    found = of_xarray(refshard_fs.concat(parts, "time", lazy=lazy, join="outer"))
    np.testing.assert_array_equal(found["w"].values, [np.nan, np.nan, 0, 1])
    np.testing.assert_array_equal(found["v"].values, [0, 1, 0, 1])


# ------------------------------------------------------------------ growing


def test_cube_of_unions_does_not_grow_and_one_of_variables_does(tmp_path: Path) -> None:
    url = str(tmp_path / "cube.refshard")
    days = [written(tmp_path / f"{d}.nc", dataset(d, 0, xs)) for d, xs in enumerate(((0, 1), (2, 3), (0, 1, 2, 3)))]
    refshard_fs.concat(days[:2], "time", lazy=True, join="outer").save(url)
    before = Path(url).read_bytes()
    with pytest.raises(ManifestError, match=r"cube\.refshard.*'x'.*make it anew"):
        refshard_fs.append(url, days[2], "time")
    assert Path(url).read_bytes() == before
    refshard_fs.concat(days[:1], "time", lazy=True, join="outer").save(url)
    with pytest.raises(ManifestError, match=r"1\.nc has other values of 'x' than .*cube\.refshard.*make it anew"):
        refshard_fs.append(url, days[1], "time")
    days = [written(tmp_path / f"n{d}.nc", dataset(d, 0, names=n)) for d, n in enumerate((("v",), ("v", "w"), ("w",)))]
    refshard_fs.concat(days[:2], "time", lazy=True, join="outer").save(url)
    assert refshard_fs.append(url, days[2], "time") == 1
    xr.testing.assert_equal(of_xarray(url), xr.concat(each(days), "time", join="outer"))


# ------------------------------------------------------------------ documents that are damaged, or somebody's


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"places": [[0, 2], [1, 2]]}, "expected places below 6 as runs"),
        ({"places": [[4, 4]]}, "expected places below 6 as runs"),
        ({"places": [[-2, 4]]}, "expected places below 6 as runs"),
        ({"places": [[10**30, 4]]}, "expected places below 6 as runs"),
        ({"places": [[0, 4], [4, 0]]}, "expected places below 6 as runs"),
        ({"places": [[1, 4]]}, "lies at .*: expected places on the borders of chunks"),
        ({"places": [[0, 2]]}, "expected the shape .*, found "),
        ({"places": "everywhere"}, "Expected `array`"),
        ({"unions": {"x": {"v": 0}}}, "expected another axis than 0 for 'x'"),
        ({"unions": {"x": {"v": 7}}}, "expected another axis than 7 for 'x'"),
        ({"unions": {}}, "have no dimension 'x'"),
        ({"held": {"x": "base64:AAAA"}}, "it holds 3 bytes of 'x'"),
        ({"held": {"y": "base64:AAAA"}}, "it holds 'y', which its metadata do not show"),
    ],
)
def test_document_with_places_of_other_sets_is_refused(change: dict[str, Any], said: str) -> None:
    folder = f"memory://outer/{next(folders)}"
    one, other = Piece([0], 0, [0, 1, 2, 3, 4, 5], ["v"], (1, 2)), Piece([1], 0, [0, 1, 2, 5], ["v"], (1, 2))
    for number, piece in enumerate((one, other)):
        RefShardFileSystem(piece.references(2)).save(f"{folder}/{number}.json", "json")
    cube = refshard_fs.concat([f"{folder}/{i}.json" for i in range(2)], "time", lazy=True, join="outer")
    assert np.frombuffer(RefShardFileSystem(cube).cat_file("v/1.0.0"), "<f4").tolist() == [1010, 1011]
    document = json.loads(cube.document.dumps())
    assert document["sets"][1][3] == {"x": [[0, 3], [5, 1]]}
    document["sets"][1][3] = {"x": change.get("places", [[0, 4]])}
    del document["chunks"]
    document |= {name: value for name, value in change.items() if name != "places"}
    with pytest.raises(ManifestError, match=said):
        RefShardFileSystem(document, skip_instance_cache=True).cat_file("v/1.0.0")


# ------------------------------------------------------------------ whatever is missing


class Piece(NamedTuple):
    """A set: its days, member, places along x, variables, and the lengths of its chunks along time and x."""

    days: list[int]
    member: int
    xs: list[int]
    names: list[str]
    chunks: tuple[int, int]

    def dataset(self) -> Any:
        shape = (len(self.days), 1, len(self.xs))
        fields = {}
        for k, name in enumerate(self.names):
            data = np.add.outer(np.array(self.days) * 10, np.array(self.xs)).reshape(shape)
            fields[name] = (("time", "member", "x"), (data + 1000 * (k + 1) + 100 * self.member).astype("f4"))
        return xr.Dataset(fields, coords={"time": self.days, "member": [self.member], "x": self.xs})

    def references(self, version: int) -> dict[str, Any]:
        ds = self.dataset()
        group = {"zarr.json": '{"zarr_format": 3, "node_type": "group"}'} if version == 3 else {}
        refs: dict[str, Any] = group or {".zgroup": '{"zarr_format": 2}'}
        for name, variable in ds.variables.items():
            shape = (self.chunks[0], 1, self.chunks[1]) if variable.ndim == 3 else variable.shape
            extra = {"fill_value": "NaN" if variable.ndim == 3 else -1}
            dims = list(variable.dims)
            refs |= chunked(name, variable.values, shape, dims, version=version, inline=True, **extra)
        return refs


@st.composite
def cubes(draw: st.DrawFn) -> tuple[list[list[Piece | None]], int]:
    """A grid of sets along time and member, some of which are not there."""
    version = draw(st.sampled_from(VERSIONS))
    size = draw(st.integers(1, 2))
    lengths = [size * draw(st.integers(1, 2)) for _ in range(draw(st.integers(1, 3)))]
    rows: list[list[Piece | None]] = []
    members = draw(st.integers(1, 3))
    for number, length in enumerate(lengths):
        start = sum(lengths[:number])
        row: list[Piece | None] = []
        for member in range(members):
            xs = draw(st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True))
            names = draw(st.lists(st.sampled_from("vw"), min_size=1, max_size=2, unique=True))
            xs = draw(st.sampled_from([xs, sorted(xs), sorted(xs, reverse=True)]))
            chunks = (draw(st.sampled_from([1, size])), draw(st.integers(1, 3)))
            piece = Piece(list(range(start, start + length)), member, xs, names, chunks)
            row.append(piece if draw(st.integers(0, 3)) or not member or not number else None)
        rows.append(row)
    return rows, version


@settings(max_examples=15)
@given(cubes())
def test_whatever_is_missing_lazy_cube_has_values_of_xarray(cube: tuple[list[list[Piece | None]], int]) -> None:
    rows, version = cube
    folder = f"memory://outer/{next(folders)}"
    expected_rows = []
    for number, row in enumerate(rows):
        expected_rows.append([])
        for member, piece in enumerate(row):
            if piece is None:
                days = next(p.days for p in row if p is not None)
                expected_rows[-1].append(xr.Dataset(coords={"time": days, "member": [member]}))
                continue
            url = f"{folder}/{member}/{number + 1:02d}.json"
            RefShardFileSystem(piece.references(version)).save(url, "json")
            expected_rows[-1].append(piece.dataset())
    expected = xr.combine_nested(expected_rows, ["time", "member"], join="outer", coords="minimal", compat="override")
    pattern = f"{folder}/{{member:d}}/{{time:%d}}.json"
    for dims in (DIMS, DIMS[::-1]):
        lazy = refshard_fs.concat(pattern, dims=dims, lazy=True, join="outer")
        found = of_xarray(pickle.loads(pickle.dumps(lazy)))
        assert set(found.variables) == set(expected.variables)
        for name, variable in expected.sortby("x").variables.items():
            mine = found.sortby("x")[name].transpose(*variable.dims)
            np.testing.assert_array_equal(mine.values, variable.values, err_msg=str(name))
        fs = RefShardFileSystem(lazy)
        keys = fs.find("")
        assert len(fs.cat(keys)) == len(keys) == len(set(keys))
        chunk_keys = {key for name in "vw" for key in keys if key.startswith(name + "/") and "z" not in key}
        assert all(fs.exists(key) for key in chunk_keys)
        assert {key for key in every_chunk(fs, keys) if fs.exists(key)} == chunk_keys


def every_chunk(fs: RefShardFileSystem, keys: Sequence[str]) -> Iterator[str]:
    """Yield the keys of all chunks that arrays of three dimensions may have."""
    for name in "vw":
        if f"{name}/zarr.json" in keys:
            doc = json.loads(fs.cat_file(f"{name}/zarr.json"))
            counts = [
                -(-n // c) for n, c in zip(doc["shape"], doc["chunk_grid"]["configuration"]["chunk_shape"], strict=True)
            ]
            yield from (f"{name}/c/" + "/".join(map(str, at)) for at in np.ndindex(*counts))
        elif f"{name}/.zarray" in keys:
            doc = json.loads(fs.cat_file(f"{name}/.zarray"))
            counts = [-(-n // c) for n, c in zip(doc["shape"], doc["chunks"], strict=True)]
            yield from (f"{name}/" + ".".join(map(str, at)) for at in np.ndindex(*counts))


folders = itertools.count()
