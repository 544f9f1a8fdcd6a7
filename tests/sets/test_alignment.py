"""Sets that lack variables, or values of coordinates, that other sets have."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from tests.support.joined_sets import VERSIONS, make_array

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")
pytest.importorskip("h5netcdf")

from tests.support.outer_cubes import (  # noqa: E402  # xarray may be absent
    DIMS,
    check_values,
    list_in_turn,
    load_each,
    make_member_day,
    open_combined,
    versions,
    write_member_day,
)
from tests.support.xarray_loading import load_dataset  # noqa: E402  # xarray may be absent

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
folders = itertools.count()


@pytest.mark.parametrize(
    ("lacking", "version"),
    list_in_turn([(0, 0)], [(1, 0), (1, 1)], [(0, 0), (1, 0)]),
)
def test_outer_join_fills_variable_that_files_lack(
    tmp_path: Path, lacking: list[tuple[int, int]], version: int
) -> None:
    files = [
        [
            write_member_day(
                tmp_path / f"{day}{m}.nc", make_member_day(day, m, names=("v",) if (day, m) in lacking else ("v", "w"))
            )
            for m in range(2)
        ]
        for day in range(2)
    ]
    with pytest.raises(ManifestError, match=r"has no variable 'w'.*join='outer'"):
        refshard_fs.concat(files, dims=DIMS, lazy=True, zarr_format=version)
    cube = refshard_fs.concat(files, dims=DIMS, lazy=True, join="outer", zarr_format=version)
    check_values(cube, open_combined(files), tmp_path)


@pytest.mark.parametrize("name", TILES)
def test_coordinates_become_the_union_of_all_files(tmp_path: Path, name: str) -> None:
    expected = None
    for chunk in (1, 2, 3) if name in ("overlapping", "levels") else (2 + list(TILES).index(name) % 2,):
        folder, xs = tmp_path / f"chunks of {chunk}", iter(TILES[name])
        files = [
            [
                write_member_day(folder / f"{day}{m}.nc", make_member_day(day, m, next(xs)), chunk, zlib=bool(m))
                for m in range(2)
            ]
            for day in range(2)
        ]
        if expected is None:
            expected = open_combined(files)
            if name == "descending":
                expected = expected.sortby("x", ascending=False)
        cube = refshard_fs.concat(
            files, dims=DIMS, lazy=True, join="outer", zarr_format=VERSIONS[chunk % len(VERSIONS)]
        )
        check_values(cube, expected, folder)


@versions
def test_outer_join_of_different_levels_keeps_references(tmp_path: Path, version: int) -> None:
    levels = ((0, 1, 2, 5), (0, 5), (1, 5), (2,))
    files = [
        [write_member_day(tmp_path / f"{d}{m}.nc", make_member_day(d, m, levels[2 * d + m]), 1) for m in range(2)]
        for d in range(2)
    ]
    made = refshard_fs.concat(files, dims=DIMS, join="outer", zarr_format=version)
    xr.testing.assert_equal(load_dataset(made), open_combined(files))
    lazy = refshard_fs.concat(files, dims=DIMS, join="outer", lazy=True, zarr_format=version)
    one, other = RefShardFileSystem(lazy), RefShardFileSystem(made)
    assert one.find("v") == other.find("v")
    keys = [key for key in one.find("v") if not key.endswith((".zarray", ".zattrs", "zarr.json"))]
    assert len(keys) == 9
    assert [one.resolve(key) for key in keys] == [other.resolve(key) for key in keys]


def test_variables_and_levels_may_be_missing_together(tmp_path: Path) -> None:
    names = ((("v",), ("w", "v")), (("v", "w"), ("w",)))
    xs = (((0, 1), (0, 1, 2, 3)), ((2, 3), (4, 5)))
    files = [
        [write_member_day(tmp_path / f"{d}{m}.nc", make_member_day(d, m, xs[d][m], names[d][m])) for m in range(2)]
        for d in range(2)
    ]
    check_values(refshard_fs.concat(files, dims=DIMS, lazy=True, join="outer"), open_combined(files), tmp_path)


def test_outer_join_of_rows_of_unequal_lengths_equals_xarray(tmp_path: Path) -> None:
    rows = [[0, 1, 2], [1], [0, 3]]
    files = [
        [write_member_day(tmp_path / f"{d}{m}.nc", make_member_day(d, m)) for m in row] for d, row in enumerate(rows)
    ]
    expected = xr.combine_by_coords(load_each([file for row in files for file in row]), join="outer")
    check_values(refshard_fs.concat(files, dims=DIMS, lazy=True, join="outer"), expected, tmp_path)


def test_outer_join_refuses_arrays_without_the_joined_dimension(tmp_path: Path) -> None:
    files = []
    for day, xs in enumerate(((0, 1), (2, 3))):
        ds = make_member_day(day, 0, xs)
        ds["mask"] = ("x", np.zeros(2, "i4"))
        path = tmp_path / f"{day}.nc"
        ds.to_netcdf(path, engine="h5netcdf")
        files.append(str(path))
    with pytest.raises(ManifestError, match=r"'mask' of set 0 \(.*0\.nc\) lacks the dimension 'time', but has 'x'"):
        refshard_fs.concat(files, "time", lazy=True, join="outer")


def test_append_is_refused_if_coordinates_need_a_union(tmp_path: Path) -> None:
    url = str(tmp_path / "cube.refshard")
    days = [
        write_member_day(tmp_path / f"{d}.nc", make_member_day(d, 0, xs))
        for d, xs in enumerate(((0, 1), (2, 3), (0, 1, 2, 3)))
    ]
    refshard_fs.concat(days[:2], "time", lazy=True, join="outer").save(url)
    before = Path(url).read_bytes()
    with pytest.raises(ManifestError, match=r"append cannot extend .*cube\.refshard: its sets .*'x'. Make it anew"):
        refshard_fs.append(url, days[2], "time")
    assert Path(url).read_bytes() == before
    refshard_fs.concat(days[:1], "time", lazy=True, join="outer").save(url)
    with pytest.raises(ManifestError, match=r"1\.nc cannot be appended to .*\.refshard.*values of 'x' differ.*anew"):
        refshard_fs.append(url, days[1], "time")
    days = [
        write_member_day(tmp_path / f"n{d}.nc", make_member_day(d, 0, names=n))
        for d, n in enumerate((("v",), ("v", "w"), ("w",)))
    ]
    refshard_fs.concat(days[:2], "time", lazy=True, join="outer").save(url)
    assert refshard_fs.append(url, days[2], "time") == 1
    xr.testing.assert_equal(load_dataset(url), xr.concat(load_each(days), "time", join="outer"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"places": [[0, 2], [1, 2]]}, "end at most at 6"),
        ({"places": [[4, 4]]}, "end at most at 6"),
        ({"places": [[-2, 4]]}, "end at most at 6"),
        ({"places": [[10**30, 4]]}, "end at most at 6"),
        ({"places": [[0, 4], [4, 0]]}, "end at most at 6"),
        ({"places": [[1, 4]]}, "lies at .*: expected places on the borders of chunks"),
        ({"places": [[0, 2]]}, "expected the shape .*, found "),
        ({"places": "everywhere"}, "Expected `array`"),
        ({"unions": {"x": {"v": 0}}}, "its dimension 'x' is axis 0: expected 0 to"),
        ({"unions": {"x": {"v": 7}}}, "its dimension 'x' is axis 7: expected 0 to"),
        ({"unions": {}}, "has places along 'x': expected a dimension in unions"),
        ({"held": {"x": "base64:AAAA"}}, "expected .* bytes of 'x' for its chunk of .*, got 3"),
        ({"held": {"y": "base64:AAAA"}}, "holds the bytes of 'y': expected metadata of an array of one chunk"),
    ],
)
def test_document_with_invalid_places_of_a_set_is_refused(change: dict[str, Any], said: str) -> None:
    folder = f"memory://outer/{next(folders)}"
    one, other = Piece([0], 0, [0, 1, 2, 3, 4, 5], ["v"], (1, 2)), Piece([1], 0, [0, 1, 2, 5], ["v"], (1, 2))
    for number, piece in enumerate((one, other)):
        RefShardFileSystem(piece.make_references(2)).save(f"{folder}/{number}.json", "json")
    cube = refshard_fs.concat([f"{folder}/{i}.json" for i in range(2)], "time", lazy=True, join="outer")
    assert np.frombuffer(RefShardFileSystem(cube).cat_file("v/1.0.0"), "<f4").tolist() == [1010, 1011]
    document = json.loads(cube.document.dumps())
    assert document["sets"][1][3] == {"x": [[0, 3], [5, 1]]}
    document["sets"][1][3] = {"x": change.get("places", [[0, 4]])}
    del document["chunks"]
    document |= {name: value for name, value in change.items() if name != "places"}
    with pytest.raises(ManifestError, match=said):
        RefShardFileSystem(document, skip_instance_cache=True).cat_file("v/1.0.0")


class Piece(NamedTuple):
    """A set: its days, member, places along x, variables, and the lengths of its chunks along time and x."""

    days: list[int]
    member: int
    xs: list[int]
    names: list[str]
    chunks: tuple[int, int]

    def make_dataset(self) -> Any:
        shape = (len(self.days), 1, len(self.xs))
        fields = {}
        for k, name in enumerate(self.names):
            data = np.add.outer(np.array(self.days) * 10, np.array(self.xs)).reshape(shape)
            fields[name] = (("time", "member", "x"), (data + 1000 * (k + 1) + 100 * self.member).astype("f4"))
        return xr.Dataset(fields, coords={"time": self.days, "member": [self.member], "x": self.xs})

    def make_references(self, version: int) -> dict[str, Any]:
        ds = self.make_dataset()
        group = {"zarr.json": '{"zarr_format": 3, "node_type": "group"}'} if version == 3 else {}
        refs: dict[str, Any] = group or {".zgroup": '{"zarr_format": 2}'}
        for name, variable in ds.variables.items():
            shape = (self.chunks[0], 1, self.chunks[1]) if variable.ndim == 3 else variable.shape
            extra = {"fill_value": "NaN" if variable.ndim == 3 else -1}
            dims = list(variable.dims)
            refs |= make_array(name, variable.values, shape, dims, version=version, inline=True, **extra)
        return refs


@st.composite
def cubes(draw: st.DrawFn) -> tuple[list[list[Piece | None]], int]:
    """A grid of sets along time and member; None for missing sets."""
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


@settings(max_examples=8)
@given(cubes())
def test_random_gaps_give_the_values_of_xarray(cube: tuple[list[list[Piece | None]], int]) -> None:
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
            RefShardFileSystem(piece.make_references(version)).save(url, "json")
            expected_rows[-1].append(piece.make_dataset())
    expected = xr.combine_nested(expected_rows, ["time", "member"], join="outer", coords="minimal", compat="override")
    pattern = f"{folder}/{{member:d}}/{{time:%d}}.json"
    for dims in (DIMS, DIMS[::-1]):
        lazy = refshard_fs.concat(pattern, dims=dims, lazy=True, join="outer")
        found = load_dataset(pickle.loads(pickle.dumps(lazy)))
        assert set(found.variables) == set(expected.variables)
        for name, variable in expected.sortby("x").variables.items():
            mine = found.sortby("x")[name].transpose(*variable.dims)
            np.testing.assert_array_equal(mine.values, variable.values, err_msg=str(name))
        fs = RefShardFileSystem(lazy)
        keys = fs.find("")
        assert len(fs.cat(keys)) == len(keys) == len(set(keys))
        chunk_keys = {key for name in "vw" for key in keys if key.startswith(name + "/") and "z" not in key}
        assert all(fs.exists(key) for key in chunk_keys)
        assert {key for key in list_all_chunks(fs, keys) if fs.exists(key)} == chunk_keys


def list_all_chunks(fs: RefShardFileSystem, keys: Sequence[str]) -> Iterator[str]:
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
