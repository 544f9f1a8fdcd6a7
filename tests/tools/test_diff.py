"""Differences between two sources, found in columns."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.tools import diff
from refshard_fs.tools.diff import compare
from tests.support.tool_sources import SOURCES, make_metadata


def make_source(shape: list[int], chunks: list[int], **more: Any) -> RefShardFileSystem:
    refs: dict[str, Any] = {"a/.zarray": json.dumps(make_metadata(shape, chunks))}
    return RefShardFileSystem(refs | {key.replace("_", "/"): value for key, value in more.items()})


@pytest.mark.parametrize("name", SOURCES)
def test_source_equals_itself(shared_data: Path, name: str) -> None:
    path = str(shared_data / name)
    assert compare(RefShardFileSystem(path), RefShardFileSystem(path)).is_empty


def test_targets_are_compared_by_url_not_by_position() -> None:
    a = make_source([4], [2], a_0=["memory://x", 0, 2], a_1=["memory://y", 0, 2])
    b = make_source([4], [2], a_1=["memory://y", 0, 2], a_0=["memory://x", 0, 2])
    c = make_source([4], [2], a_0=["memory://y", 0, 2], a_1=["memory://x", 0, 2])
    assert compare(a, b).is_empty
    (changes,) = compare(a, c).keys
    assert (changes.changed, changes.some_changed) == (2, ("a/0", "a/1"))


def test_array_that_grew_keeps_its_chunks() -> None:
    refs = {f"a/{i}.{j}": ["memory://x", 10 * i + j, 1] for i in range(2) for j in range(2)}
    more = refs | {f"a/{i}.2": ["memory://x", 100 + i, 1] for i in range(2)}
    a = RefShardFileSystem({"a/.zarray": json.dumps(make_metadata([2, 2], [1, 1])), **refs})
    b = RefShardFileSystem({"a/.zarray": json.dumps(make_metadata([2, 3], [1, 1])), **more})
    found = compare(a, b)
    assert [(change.key, change.fields) for change in found.metadata_changed] == [("a/.zarray", ("shape",))]
    (changes,) = found.keys
    assert (changes.added, changes.removed, changes.changed) == (2, 0, 0)
    assert changes.some_added == ("a/0.2", "a/1.2")


def test_inline_bytes_are_compared() -> None:
    (changes,) = compare(make_source([4], [2], a_0="ab", a_1="cd"), make_source([4], [2], a_0="ab", a_1="cD")).keys
    assert changes.some_changed == ("a/1",)


def test_other_keys_are_compared() -> None:
    (changes,) = compare(make_source([4], [2], x="1", y="2"), make_source([4], [2], x="1", z="2")).keys
    assert (changes.path, changes.some_added, changes.some_removed) == (None, ("z",), ("y",))


def test_equivalent_metadata_is_equal() -> None:
    a = RefShardFileSystem({"a/.zarray": json.dumps(make_metadata([4], [2]), indent=1)})
    assert compare(a, make_source([4], [2])).is_empty


def make_dataset() -> Any:
    xr, np = pytest.importorskip("xarray"), pytest.importorskip("numpy")
    values = {"a": (("t", "x"), np.arange(200.0, dtype="f4").reshape(20, 10), {"units": "K"}), "s": ((), np.int32(3))}
    return xr.Dataset(values, {"t": ("t", np.arange(20)), "x": ("x", np.arange(10.0))}, {"title": "T"})


def write_convertible(kind: str, folder: Path) -> str:
    """Write a source of ``kind``, and return its path."""
    zarr, ds, path = pytest.importorskip("zarr"), make_dataset(), str(folder / "source")
    if kind.endswith("netcdf"):
        pytest.importorskip("h5netcdf")
        packed = (
            {"dtype": "i2", "scale_factor": ds.a.dtype.type(0.5), "_FillValue": -1} if kind == "packed netcdf" else {}
        )
        ds.to_netcdf(path, engine="h5netcdf", encoding={"a": {"chunksizes": (4, 5), "zlib": True, **packed}})
    elif kind == "json":
        text = json.dumps(
            {
                "a/.zarray": json.dumps(make_metadata([4], [2])),
                "a/0": "ab",
                "q/b/.zarray": json.dumps(make_metadata([4], [2])),
            }
        )
        Path(path).write_text(text)
    else:
        if zarr.__version__ < "3" and kind != "zarr 2":
            pytest.skip("zarr 2 writes no version 3")
        version = {} if zarr.__version__ < "3" else {"zarr_format": int(kind.split()[1])}
        shards = {"shards": (8, 10)} if kind.endswith("shards") else {}
        is_consolidated = kind != "zarr 3 shards"
        ds.to_zarr(path, consolidated=is_consolidated, encoding={"a": {"chunks": (4, 5), **shards}}, **version)
    return path


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("kind", ["zarr 2", "zarr 3", "zarr 3 shards", "netcdf", "packed netcdf", "json"])
def test_source_equals_its_converted_set(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = write_convertible(kind, tmp_path)
    kinds = {"json": "s.json", "parquet": "s.parquet", "chunk-manifest": "s.zarr"}
    for format, name in kinds.items():
        RefShardFileSystem(path).save(str(tmp_path / name), format=format)
        assert compare(RefShardFileSystem(path), RefShardFileSystem(str(tmp_path / name))).is_empty, name
        for other, again in (("json", "again.json"), ("parquet", "again.parquet")):
            target = str(tmp_path / f"{format}-{again}")
            RefShardFileSystem(str(tmp_path / name)).save(target, format=other)
            assert compare(RefShardFileSystem(target), RefShardFileSystem(path)).is_empty, (name, again)


def test_consolidated_metadata_that_differ_are_a_difference() -> None:
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(make_metadata([4], [2]))}
    same = {"metadata": {key: json.loads(text) for key, text in refs.items()}}
    other = {"metadata": {**same["metadata"], "a/.zarray": make_metadata([5], [2])}}
    plain, consolidated, stale = (
        RefShardFileSystem(refs | more)
        for more in ({}, {".zmetadata": json.dumps(same)}, {".zmetadata": json.dumps(other)})
    )
    assert compare(plain, consolidated).is_empty
    assert compare(plain, stale).metadata_added == (".zmetadata",)


def test_inline_data_is_compared_with_read_bytes(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"abcd")
    url = str(tmp_path / "data")
    a = make_source([4], [2], a_0=[url, 0, 2], a_1=[url, 2, 2])
    assert compare(a, make_source([4], [2], a_0="ab", a_1=[url, 2, 2])).is_empty
    (changes,) = compare(a, make_source([4], [2], a_0="xx", a_1=[url, 2, 2])).keys
    assert changes.some_changed == ("a/0",)


def test_comparing_large_sets_takes_less_than_8_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole columns of both would take 15 MB."""
    pytest.importorskip("pyarrow")
    count = 150_000
    refs = {f"a/{i}": ["memory://x", i, 1 + i % 7] for i in range(count)}
    a = RefShardFileSystem({"a/.zarray": json.dumps(make_metadata([count], [1])), **refs})
    del refs
    a.save(str(tmp_path / "b.parquet"), record_size=10_000)
    b = RefShardFileSystem(str(tmp_path / "b.parquet"), cache_size=2)
    assert a.exists("a/0")
    assert b.exists("a/0")
    monkeypatch.setattr(diff, "BLOCK", 10_000)
    tracemalloc.start()
    try:
        assert compare(a, b).is_empty
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
