"""Lazy cubes that show a part of a set: overlaps, gaps, and appended sets."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.cubes import document
from refshard_fs.cubes.document import ConcatDocument
from tests.support.joined_sets import VERSIONS, make_array
from tests.support.key_spaces import check

zarr = pytest.importorskip("zarr")


def make_days(values: list[int], version: int = 2, chunk: int = 1, add: int = 0) -> dict[str, Any]:
    """Return a set with a value for each day, and all times in one chunk."""
    times = np.array(values, "<i4")
    out: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'} if version == 2 else {}
    if version == 3:
        out["zarr.json"] = '{"zarr_format": 3, "node_type": "group", "attributes": {}}'
    out |= make_array("time", times, (len(values),), ["time"], version=version, inline=True)
    t = np.repeat(times[:, None] * 10 + add, 3, axis=1).astype("<f4")
    fill: Any = "NaN"
    return out | make_array("t", t, (chunk, 2), ["time", "x"], version=version, fill_value=fill)


def write_parts(folder: Path, parts: list[dict[str, Any]]) -> list[str]:
    paths = [str(folder / f"part{number}.json") for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        RefShardFileSystem(part, skip_instance_cache=True).save(path, "json")
    return paths


def read(fo: Any) -> tuple[list[int], list[float]]:
    store: Any
    if zarr.__version__.startswith("2"):
        store = RefShardFileSystem(fo, skip_instance_cache=True).get_mapper()
    else:
        fs = RefShardFileSystem(fo, asynchronous=True, skip_instance_cache=True)
        store = zarr.storage.FsspecStore(fs, read_only=True, path="")
    group = zarr.open_group(store, mode="r")
    assert (np.asarray(group["t"])[:, :1] == np.asarray(group["t"]))[~np.isnan(np.asarray(group["t"]))].all()
    return np.asarray(group["time"]).tolist(), np.asarray(group["t"])[:, 2].tolist()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlap", ["first", "last"])
def test_overlaps_equal_those_of_the_eager_cube(tmp_path: Path, version: int, overlap: Any) -> None:
    parts = [make_days([0, 1, 2, 3], version), make_days([2, 3, 4], version, add=1), make_days([4, 5], version, add=2)]
    names = write_parts(tmp_path, parts)
    lazy = refshard_fs.concat(names, "time", lazy=True, overlap=overlap, zarr_format=version)
    eager = refshard_fs.concat(names, "time", overlap=overlap, zarr_format=version)
    assert read(lazy) == read(eager)
    lazy.save(str(tmp_path / "all.refshard"))
    assert read(str(tmp_path / "all.refshard")) == read(eager)
    fs = RefShardFileSystem(lazy, skip_instance_cache=True)
    check(fs)
    assert sorted(fs.find("t")) == sorted(RefShardFileSystem(eager, skip_instance_cache=True).find("t"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("overlap", "expected"), [("first", [0, 10, 20, 31, 41, 51]), ("last", [0, 11, 21, 31, 41, 51])]
)
def test_overlap_that_divides_chunks_recuts_them(tmp_path: Path, version: int, overlap: Any, expected: Any) -> None:
    parts = [make_days([0, 1, 2], version, chunk=2), make_days([1, 2, 3, 4, 5], version, chunk=3, add=1)]
    lazy = refshard_fs.concat(write_parts(tmp_path, parts), "time", lazy=True, overlap=overlap, zarr_format=version)
    assert lazy.document.chunks
    assert read(lazy) == ([0, 1, 2, 3, 4, 5], expected)
    check(RefShardFileSystem(lazy, skip_instance_cache=True))


@pytest.mark.parametrize("chunk", [1, 2])
def test_gap_within_a_set_is_filled_with_missing_values(tmp_path: Path, chunk: int) -> None:
    names = write_parts(tmp_path, [make_days([0, 1, 2, 5], chunk=chunk), make_days([6, 9], chunk=chunk)])
    lazy = refshard_fs.concat(names, "time", lazy=True, freq=1)
    times, values = read(lazy)
    assert times == list(range(10))
    np.testing.assert_array_equal(values, [0, 10, 20, np.nan, np.nan, 50, 60, np.nan, np.nan, 90])
    check(RefShardFileSystem(lazy, skip_instance_cache=True))


@pytest.mark.parametrize("chunk", [1, 2])
def test_append_skips_or_replaces_elements_that_exist(tmp_path: Path, chunk: int) -> None:
    names = write_parts(
        tmp_path,
        [make_days([0, 1], chunk=chunk), make_days([1, 2, 3], chunk=chunk, add=1), make_days([2, 3, 4], add=2)],
    )
    url = str(tmp_path / "all.refshard")
    refshard_fs.concat(names[:1], "time", lazy=True).save(url)
    assert refshard_fs.append(url, names[1], "time", on_duplicate="skip") == 2
    assert read(url) == ([0, 1, 2, 3], [0, 10, 21, 31])
    assert refshard_fs.append(url, names[2], "time", on_duplicate="replace") == 1
    assert read(url) == ([0, 1, 2, 3, 4], [0, 10, 22, 32, 42])


def test_document_states_which_elements_of_a_set_are_used(tmp_path: Path) -> None:
    names = write_parts(tmp_path, [make_days([0, 1, 2]), make_days([2, 3])])
    document = refshard_fs.concat(names, "time", lazy=True, overlap="last").document
    assert [part.take for part in document.pieces] == [(0, 3), None]
    assert ConcatDocument.read(document.dumps(), "it") == document


@pytest.mark.parametrize("take", [[0, 1], [2, 3], [-1, 9]])
def test_document_with_an_invalid_range_of_elements_is_refused(take: list[int]) -> None:
    line = ["a.json", 2, None, {}, take]
    document = {"refshard": "concat", "dim": "t", "axes": {"a": 0}, "sets": [line]}
    with pytest.raises(ManifestError, match=r"a\.json|sets\[0\]"):
        ConcatDocument.read(json.dumps(document).encode(), "it")


def test_set_that_became_longer_is_refused_when_read(tmp_path: Path) -> None:
    names = write_parts(tmp_path, [make_days([0, 1, 2]), make_days([2, 3])])
    lazy = refshard_fs.concat(names, "time", lazy=True, overlap="last")
    RefShardFileSystem(make_days([0, 1, 2, 3]), skip_instance_cache=True).save(names[0], "json")
    with pytest.raises(ManifestError, match="shape"):
        read(lazy)


@pytest.mark.parametrize("chunk", [1, 2])
def test_overlapping_bounds_in_other_units_are_joined(tmp_path: Path, chunk: int) -> None:
    xr = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    paths, each = [], []
    for number, (start, units) in enumerate([(0, "days since 2024-01-01"), (2, "hours since 2024-01-02")]):
        times = np.datetime64("2024-01-01", "ns") + np.arange(start, start + 4) * np.timedelta64(1, "D")
        ds = xr.Dataset({"t": (("time", "x"), np.arange(8.0).reshape(4, 2) + 100 * number)}, {"time": times})
        ds["time"].attrs["bounds"] = "time_bnds"
        ds["time_bnds"] = ("time", "bnds"), np.stack([times, times + np.timedelta64(1, "D")], 1)
        ds["time"].encoding |= {"units": units, "dtype": "i4"}
        chunks = {"t": {"chunksizes": (chunk, 2), "zlib": number == 1}, "time_bnds": {"chunksizes": (chunk, 2)}}
        ds["time_bnds"].encoding |= {"units": units, "dtype": "i4"}
        paths.append(str(tmp_path / f"{number}.nc"))
        ds.to_netcdf(paths[-1], encoding=chunks, engine="netcdf4")
        each.append(xr.load_dataset(paths[-1]))
    for overlap, pieces in (("first", (slice(4), slice(2, 4))), ("last", (slice(2), slice(4)))):
        expected = xr.concat([ds.isel(time=some) for ds, some in zip(each, pieces, strict=True)], "time")
        lazy = refshard_fs.concat(paths, "time", lazy=True, overlap=overlap)
        xr.testing.assert_equal(xr.open_dataset(lazy, engine="refshard").load(), expected)


def make_large_document(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return the document of three sets, compressed as a document of many sets is."""
    monkeypatch.setattr(document, "PLAIN", 100)
    names = write_parts(folder, [make_days([day]) for day in range(3)])
    refshard_fs.concat(names, "time", lazy=True).save(str(folder / "all.refshard"))
    return (folder / "all.refshard").read_bytes()


def test_large_document_is_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_large_document(tmp_path, monkeypatch)
    assert b'"sets":[' in gzip.decompress(data)
    assert read(str(tmp_path / "all.refshard")) == ([0, 1, 2], [0, 10, 20])
    *_, new, after = write_parts(tmp_path, [make_days([day]) for day in range(5)])
    refshard_fs.append(str(tmp_path / "all.refshard"), new, dim="time")
    assert (tmp_path / "all.refshard").read_bytes()[:2] == b"\x1f\x8b"
    longer = refshard_fs.concat([str(tmp_path / "all.refshard"), after], "time", lazy=True)
    assert bytes(longer.content)[:2] == b"\x1f\x8b"  # type: ignore[arg-type]  # a document is bytes
    assert read(longer) == ([0, 1, 2, 3, 4], [0, 10, 20, 30, 40])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda data: data[:-9], "expected the end of its last"),
        (lambda data: data[:40] + b"\0\0\0\0" + data[44:], "Error"),
        (lambda data: gzip.compress(gzip.decompress(data) + b" " * 200_000), "max_manifest_bytes=100000"),
    ],
    ids=["cut", "damaged", "large"],
)
def test_damaged_compressed_document_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Any, said: str
) -> None:
    (tmp_path / "bad.refshard").write_bytes(harm(make_large_document(tmp_path, monkeypatch)))
    with pytest.raises(ManifestError, match=said):
        RefShardFileSystem(str(tmp_path / "bad.refshard"), max_manifest_bytes=100_000).ls("")
