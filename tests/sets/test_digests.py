"""Small arrays that several sets repeat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from tests.support.joined_sets import VERSIONS, make_array, make_day_set

zarr = pytest.importorskip("zarr")


def make_day(
    day: dict[str, Any], name: str, values: np.ndarray[Any, Any], dims: list[str], version: int
) -> dict[str, Any]:
    """Return the references of a day, with an array whose bytes lie in an object of this day only."""
    out = make_array(name, values, values.shape, dims, version=version)
    for key, value in out.items():
        if isinstance(value, list):
            url = f"memory://own/{abs(hash(repr(day)))}/{key}"
            MemoryFileSystem().pipe_file(url, b"head" + MemoryFileSystem().cat_file(value[0]))
            out[key] = [url, 4, value[2]]
    return day | out


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("way", ["whole", "lazy", "append"])
def test_equal_repeated_arrays_are_taken_from_the_first_set(version: int, way: str, tmp_path: Path) -> None:
    bounds, crs = np.arange(10.0).reshape(5, 2), np.array(7, "<i4")
    days = [
        make_day(make_day(make_day_set(i, 2, version), "x_bnds", bounds, ["x", "nv"], version), "crs", crs, [], version)
        for i in (0, 2, 4)
    ]
    urls = [str(tmp_path / f"{number}.json") for number in range(3)]
    for url, refs in zip(urls, days, strict=True):
        RefShardFileSystem(refs).save(url)
    if way == "append":
        refshard_fs.concat(urls[:2], dim="time").save(url := str(tmp_path / "all.json"))
        refshard_fs.append(url, urls[2], dim="time")
        fs = RefShardFileSystem(url)
    else:
        fs = RefShardFileSystem(refshard_fs.concat(urls, dim="time", lazy=way == "lazy"))
    first = RefShardFileSystem(urls[0])
    for key in days[0]:
        if key.startswith(("crs", "x_bnds")):
            assert fs.cat_file(key) == first.cat_file(key)
    assert fs.resolve("crs/0" if version == 2 else "crs/c") == first.resolve("crs/0" if version == 2 else "crs/c")


@pytest.mark.parametrize("lazy", [False, True])
def test_repeated_arrays_in_other_encodings_compare_by_value(tmp_path: Path, lazy: bool) -> None:
    bounds = np.arange(10.0).reshape(5, 2)
    urls = [str(tmp_path / f"{number}.json") for number in range(4)]
    for number, copy in enumerate((bounds, bounds.astype(">f8"), bounds + 1, np.where(bounds > 8, np.nan, bounds))):
        RefShardFileSystem(make_day(make_day_set(2 * number, 2), "x_bnds", copy, ["x", "nv"], 2)).save(urls[number])
    fs = RefShardFileSystem(refshard_fs.concat(urls[:2], "time", lazy=lazy))
    np.testing.assert_array_equal(np.frombuffer(fs.cat_file("x_bnds/0.0")).reshape(5, 2), bounds)
    for other in urls[2:]:
        with pytest.raises(ManifestError, match="different values of 'x_bnds'"):
            refshard_fs.concat([urls[1], urls[0], other], "time", lazy=lazy)
    missing = make_day(make_day_set(2, 2), "x_bnds", bounds.astype(">f8"), ["x", "nv"], 2)
    missing["x_bnds/.zattrs"] = json.dumps({**json.loads(missing["x_bnds/.zattrs"]), "missing_value": 3.0})
    RefShardFileSystem(missing).save(urls[1])
    with pytest.raises(ManifestError, match="'x_bnds' has the"):
        refshard_fs.concat(urls[:2], "time", lazy=lazy)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dims", [("time", "x"), ("x", "time")])
def test_arrays_without_the_outer_dimension_are_compared(version: int, dims: tuple[str, str]) -> None:
    def part(time: int, x: int, more: int = 0) -> dict[str, Any]:
        bounds = np.arange(4.0).reshape(2, 2) + x + more
        return make_day(make_day_set(time, 2, version, 2, x), "x_bnds", bounds, ["x", "nv"], version)

    def join_parts(parts: dict[tuple[int, int], dict[str, Any]]) -> RefShardFileSystem:
        outer, inner = ((2, 4, 6), (0, 2)) if dims[0] == "time" else ((0, 2), (2, 4, 6))
        grid = [[parts[(a, b) if dims[0] == "time" else (b, a)] for b in inner] for a in outer]
        return RefShardFileSystem(refshard_fs.concat(grid, dims=dims))

    parts = {(time, x): part(time, x) for time in (2, 4, 6) for x in (0, 2)}
    fs = join_parts(parts)
    keys = ("x_bnds/0.0", "x_bnds/1.0") if version == 2 else ("x_bnds/c/0/0", "x_bnds/c/1/0")
    bounds = np.frombuffer(b"".join(fs.cat_file(key) for key in keys))
    np.testing.assert_array_equal(bounds, [0, 1, 2, 3, 2, 3, 4, 5])
    with pytest.raises(ManifestError, match="different bytes of 'x_bnds'.*same="):
        join_parts(parts | {(6, 2): part(6, 2, 1)})


def test_equal_arrays_without_dimension_names_are_merged() -> None:
    parts = [make_day(make_day_set(start, 2), "table", np.arange(6.0).reshape(2, 3), [], 2) for start in (0, 2)]
    for part in parts:
        del part["table/.zattrs"]
        for key in [key for key in part if key.startswith(("time", "air"))]:
            del part[key]
    fs = RefShardFileSystem(refshard_fs.concat(parts))
    assert np.frombuffer(fs.cat_file("table/0.0")).tolist() == [0, 1, 2, 3, 4, 5]


def test_unequal_arrays_are_refused_and_large_ones_not_read() -> None:
    one, two = make_day_set(0, 2), make_day_set(2, 2)
    with pytest.raises(ManifestError, match="different bytes of 'crs'.*same="):
        refshard_fs.concat(
            [make_day(one, "crs", np.array(7), [], 2), make_day(two, "crs", np.array(8), [], 2)], dim="time"
        )
    large = [make_day(part, "mask", np.ones((1 << 18, 5)), ["y", "x"], 2) for part in (one, two)]
    MemoryFileSystem().rm("/own", recursive=True)
    with pytest.raises(ManifestError, match="different references of 'mask'.*same="):
        refshard_fs.concat(large, dim="time")
    refshard_fs.concat(large, dim="time", same=["mask"])


def test_unreadable_arrays_cannot_be_compared() -> None:
    parts = [make_day(part, "crs", np.array(7), [], 2) for part in (make_day_set(0, 2), make_day_set(2, 2))]
    MemoryFileSystem().rm("/own", recursive=True)
    with pytest.raises(ManifestError, match="different references of 'crs'.*same="):
        refshard_fs.concat(parts, dim="time")


@pytest.mark.parametrize("version", VERSIONS)
def test_hierarchies_may_repeat_equal_small_arrays(version: int, tmp_path: Path) -> None:
    """Their chunks are whole objects, whose references have no length."""

    def hierarchy(start: int, crs: int) -> str:
        fs = RefShardFileSystem(make_day(make_day_set(start, 2, version), "crs", np.array(crs, "<i4"), [], version))
        place = tmp_path / f"{start}-{crs}.zarr"
        fs.get("", str(place), recursive=True)
        return str(place)

    first = hierarchy(0, 7)
    fs = RefShardFileSystem(refshard_fs.concat([first, hierarchy(2, 7)], dim="time"))
    chunk = "crs/0" if version == 2 else "crs/c"
    assert np.frombuffer(fs.cat_file(chunk), "<i4").tolist() == [7]
    with pytest.raises(ManifestError, match="different bytes of 'crs'"):
        refshard_fs.concat([first, hierarchy(2, 8)], dim="time")
