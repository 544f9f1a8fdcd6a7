"""Snapshots: what was there is read, what changed fails as `TargetChanged`, wherever the references have been since."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import refshard_fs
from refshard_fs import (
    ManifestError,
    NotListable,
    ReferenceNotReachable,
    RefShardFileSystem,
    SourceNotReachable,
    TargetChanged,
)
from refshard_fs.cli import main
from tests.servers.http import RangeServer
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer

zarr = pytest.importorskip("zarr")
VERSIONS = [2] if zarr.__version__.startswith("2") else [2, 3]
ARRAY = {"shape": [4], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": 0, "filters": None}
STORE = {
    ".zgroup": b'{"zarr_format": 2}',
    "a/.zarray": json.dumps(ARRAY | {"zarr_format": 2, "compressor": None}).encode(),
    "a/0": b"ab",
    "a/1": b"cd",
    "notes/today.txt": b"sunny",
}
CONSOLIDATED = {
    "zarr_consolidated_format": 1,
    "metadata": {key: json.loads(STORE[key]) for key in (".zgroup", "a/.zarray")},
}


def opened(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, **options)


def written(path: Path, store: dict[str, bytes] = STORE) -> str:
    for key, data in store.items():
        (path / key).parent.mkdir(parents=True, exist_ok=True)
        (path / key).write_bytes(data)
    return str(path)


def changed(path: Path, data: bytes) -> None:
    """Write other bytes of the same size, a little later."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10_000_000))


def values(fo: Any) -> Any:
    if VERSIONS == [2]:
        return zarr.open_group(opened(fo).get_mapper(), mode="r")["a"][...]
    store = zarr.storage.FsspecStore(opened(fo, asynchronous=True), read_only=True, path="")
    return zarr.open_group(store, mode="r")["a"][...]


def test_every_key_is_there_and_small_metadata_is_in_the_set(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(written(tmp_path))
    fs = opened(found)
    assert {key: fs.cat_file(key) for key in fs.find("")} == STORE
    assert found.references["a/.zarray"] == STORE["a/.zarray"]
    assert found.references["a/0"] == [str(tmp_path / "a/0"), 0, 2]
    large = refshard_fs.snapshot(str(tmp_path), inline_threshold=40)
    assert large.references["a/.zarray"] == [str(tmp_path / "a/.zarray")]
    assert opened(large).cat_file("a/.zarray") == STORE["a/.zarray"]


def test_a_file_that_changes_later_fails_and_the_others_do_not(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(written(tmp_path))
    changed(tmp_path / "a/0", b"xy")
    fs = opened(found)
    with pytest.raises(TargetChanged, match=r"last modified \d{4}-\d\d-\d\d .*make the references anew"):
        fs.cat_file("a/0")
    assert fs.cat_file("a/1") == b"cd"
    (tmp_path / "a/1").write_bytes(b"longer")
    with pytest.raises(TargetChanged, match="size"):
        opened(found).cat_file("a/1")


def test_an_older_file_in_its_place_is_another_one_too(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(written(tmp_path))
    (tmp_path / "a/0").write_bytes(b"xy")
    os.utime(tmp_path / "a/0", (0, 0))
    with pytest.raises(TargetChanged):
        opened(found).cat_file("a/0")


def test_a_file_that_is_gone_is_no_missing_chunk(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(written(tmp_path))
    (tmp_path / "a/0").unlink()
    with pytest.raises(ReferenceNotReachable):
        opened(found).cat_file("a/0")
    with pytest.raises(ReferenceNotReachable):
        values(found)


def test_chunks_that_come_later_are_not_in_it(tmp_path: Path) -> None:
    written(tmp_path, {key: data for key, data in STORE.items() if key != "a/1"})
    found = refshard_fs.snapshot(str(tmp_path))
    (tmp_path / "a/1").write_bytes(b"cd")
    with pytest.raises(FileNotFoundError):
        opened(found).cat_file("a/1")


def saved_json(found: Any, folder: Path) -> Any:
    found.save(str(folder / "refs.json"))
    return str(folder / "refs.json")


def saved_compressed(found: Any, folder: Path) -> Any:
    import gzip

    path = saved_json(found, folder)
    (folder / "refs.json.gz").write_bytes(gzip.compress(Path(path).read_bytes()))
    return str(folder / "refs.json.gz")


def saved_again(found: Any, folder: Path) -> Any:
    opened(saved_json(found, folder)).save(str(folder / "again.json"))
    return str(folder / "again.json")


WAYS = {
    "itself": lambda found, folder: found,
    "pickle": lambda found, folder: pickle.loads(pickle.dumps(found)),
    "JSON": saved_json,
    "compressed JSON": saved_compressed,
    "JSON of JSON": saved_again,
    "concat": lambda found, folder: refshard_fs.concat([found]),
    "merge": lambda found, folder: refshard_fs.concat([found, {"b/x": "y"}]),
    "rebase": lambda found, folder: refshard_fs.rebase(found, {"s3://other": "s3://new"}, missing="ignore"),
}


@pytest.mark.parametrize("way", WAYS)
def test_pins_survive(way: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    found = WAYS[way](refshard_fs.snapshot(written(tmp_path / "store")), tmp_path / "out")
    assert opened(found).cat_file("a/0") == b"ab"
    changed(tmp_path / "store/a/0", b"xy")
    with pytest.raises(TargetChanged):
        opened(found).cat_file("a/0")
    assert opened(found).cat_file("a/1") == b"cd"


def test_pins_survive_the_json_form_of_a_filesystem(tmp_path: Path) -> None:
    fs = RefShardFileSystem.from_json(opened(refshard_fs.snapshot(written(tmp_path))).to_json())
    changed(tmp_path / "a/0", b"xy")
    with pytest.raises(TargetChanged):
        fs.cat_file("a/0")


def test_pins_survive_the_index_cache(tmp_path: Path) -> None:
    path = saved_json(refshard_fs.snapshot(written(tmp_path / "store")), tmp_path)
    first = opened(path, index_cache=str(tmp_path / "cache"))
    assert first.cat_file("a/0") == b"ab"
    first.invalidate_cache()
    changed(tmp_path / "store/a/0", b"xy")
    with pytest.raises(TargetChanged):
        opened(path, index_cache=str(tmp_path / "cache")).cat_file("a/0")


def test_chunk_manifests_hold_pins_natively(tmp_path: Path) -> None:
    store = {key: data for key, data in STORE.items() if not key.startswith("notes")}
    refshard_fs.snapshot(written(tmp_path / "store", store)).save(str(tmp_path / "out"), "chunk-manifest")
    entry = json.loads((tmp_path / "out/a/manifest.json").read_text())["0"]
    assert float(entry["last_modified"]) > 0
    os.utime(tmp_path / "store/a/0", (2e9, 2e9))
    with pytest.raises(TargetChanged):
        opened(str(tmp_path / "out")).cat_file("a/0")


def test_parquet_cannot_hold_pins_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    store = {key: data for key, data in STORE.items() if not key.startswith("notes")}
    found = refshard_fs.snapshot(written(tmp_path / "store", store))
    with pytest.raises(ManifestError, match="unpinned"):
        found.save(str(tmp_path / "out"), "parquet")
    assert not (tmp_path / "out").exists()
    found.unpinned().save(str(tmp_path / "out"), "parquet")
    assert opened(str(tmp_path / "out")).cat_file("a/0") == b"ab"


def test_a_target_that_moves_is_held_to_its_size_and_that_is_said(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(written(tmp_path / "old"))
    written(tmp_path / "new", STORE | {"a/1": b"longer"})
    with pytest.warns(UserWarning, match="3 targets that moved are held to sizes"):
        moved = refshard_fs.rebase(found, {str(tmp_path / "old"): str(tmp_path / "new")})
    assert opened(moved).cat_file("a/0") == b"ab"
    with pytest.raises(TargetChanged, match="size"):
        opened(moved).cat_file("a/1")


def test_other_readers_pass_over_the_pins(tmp_path: Path) -> None:
    store = {key: data for key, data in STORE.items() if not key.startswith("notes")}
    path = saved_json(refshard_fs.snapshot(written(tmp_path / "store", store)), tmp_path)
    document = json.loads(Path(path).read_text())
    assert document["refshard"]["pins"]["base"] == str(tmp_path / "store/a") + "/"
    assert document["refshard"]["pins"]["url"] == ["0", "1"]
    assert document["refshard"]["pins"]["size"] == [2, 2]
    theirs = fsspec.filesystem("reference", fo=path, skip_instance_cache=True)
    assert theirs.cat_file("a/0") == b"ab"


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"url": ["a"], "size": [1, 2]}, "1 url, 2 size"),
        ({"url": ["a"], "size": [-1]}, "whole number"),
        ({"url": "a"}, "malformed"),
        ([], "malformed"),
        ({"url": [], "colour": []}, "malformed"),
    ],
)
def test_malformed_pins_are_an_error_that_names_the_set(pins: Any, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        opened({"version": 1, "refs": {}, "refshard": {"pins": pins}}).ls("")


def test_pins_need_version_1() -> None:
    with pytest.raises(ManifestError, match="version 1"):
        opened({"a": ["memory://x"], "refshard": {"pins": {"url": []}}}).ls("")


def test_what_was_written_and_not_committed_is_in_it(tmp_path: Path) -> None:
    store = written(tmp_path / "s")
    fs = opened(store, mode="a")
    fs.pipe_file("a/1", b"new")
    fs.rm_file("notes/today.txt")
    now = opened(refshard_fs.snapshot(fs))
    assert now.find("") == [".zgroup", "a/.zarray", "a/0", "a/1"]
    assert now.cat_file("a/1") == b"new"
    changed(tmp_path / "s/a/0", b"AB")
    with pytest.raises(TargetChanged):
        now.cat_file("a/0")
    fs.discard()


def test_any_directory_will_do(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(written(tmp_path, {"x/y.bin": b"12", "z": b""}))
    fs = opened(found)
    assert {key: fs.cat_file(key) for key in fs.find("")} == {"x/y.bin": b"12", "z": b""}


def test_the_targets_of_a_reference_set_are_pinned(tmp_path: Path) -> None:
    (tmp_path / "x.nc").write_bytes(b"0123")
    found = refshard_fs.snapshot({"a": [str(tmp_path / "x.nc"), 1, 2], "b": "inline"})
    assert opened(found).cat_file("a") == b"12"
    changed(tmp_path / "x.nc", b"4567")
    with pytest.raises(TargetChanged):
        opened(found).cat_file("a")


def test_memory_is_pinned_by_size_and_time() -> None:
    MemoryFileSystem().pipe({f"/snapshots/{key}": data for key, data in STORE.items()})
    found = refshard_fs.snapshot("memory://snapshots")
    assert values(found).tolist() == list(b"abcd")
    MemoryFileSystem().pipe_file("/snapshots/a/0", b"xy")
    with pytest.raises(TargetChanged):
        opened(found).cat_file("a/0")


def test_http_tells_keys_by_consolidated_metadata_and_is_asked_for_that_version(http_server: RangeServer) -> None:
    for key, data in STORE.items():
        http_server.put(f"store/{key}", data)
    http_server.delete("store/a/1")
    http_server.put("store/.zmetadata", json.dumps(CONSOLIDATED).encode())
    found = refshard_fs.snapshot(f"{http_server.url}/store")
    assert sorted(found.references) == [".zgroup", ".zmetadata", "a/.zarray", "a/0"]
    http_server.log.clear()
    assert opened(found).cat_file("a/0") == b"ab"
    (request,) = http_server.log.requests()
    assert request.headers["if-match"]
    http_server.put("store/a/0", b"xy")
    with pytest.raises(TargetChanged):
        opened(found).cat_file("a/0")


def test_http_without_consolidated_metadata_cannot_tell_its_keys(http_server: RangeServer) -> None:
    for key, data in STORE.items():
        http_server.put(f"store/{key}", data)
    with pytest.raises(NotListable, match="cannot be listed"):
        refshard_fs.snapshot(f"{http_server.url}/store")


def test_s3_is_pinned_by_the_listing_and_asked_for_that_version(
    s3_server: SeaweedServer, s3_proxy: CountingProxy
) -> None:
    s3_server.create_bucket("snapshots")
    for key, data in STORE.items():
        s3_server.put(f"snapshots/store/{key}", data)
    options = {**s3_server.storage_options, "client_kwargs": {"endpoint_url": s3_proxy.url}}
    s3_proxy.log.clear()
    found = refshard_fs.snapshot("s3://snapshots/store", remote_protocol="s3", remote_options=options)
    asked = [r for r in s3_proxy.log.requests() if r.path.endswith(("a/0", "a/1", "today.txt"))]
    assert not asked, "listings tell all that is to be known of chunks"
    fs = opened(found, remote_protocol="s3", remote_options=options)
    s3_proxy.log.clear()
    assert fs.cat_file("a/0") == b"ab"
    (request,) = s3_proxy.log.requests("*/a/0")
    assert request.headers["if-match"]
    s3_server.put("snapshots/store/a/1", b"xy")
    with pytest.raises(TargetChanged):
        fs.cat_file("a/1")


@pytest.mark.skipif(3 not in VERSIONS, reason="zarr 2 has no shards")
def test_shards_become_references_to_inner_chunks(tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "store"), mode="w", zarr_format=3)
    array = group.create_array("a", shape=(8, 8), shards=(4, 4), chunks=(2, 2), dtype="<i2", fill_value=7)
    data = np.random.default_rng(0).integers(0, 99, (8, 8)).astype("<i2")
    data[:2, :2] = 7
    array[...] = data
    flat = refshard_fs.snapshot(str(tmp_path / "store"), shards="inner")
    assert "sharding_indexed" not in json.dumps(flat.references["a/zarr.json"].decode())
    assert "a/c/0/0" not in flat.references
    url, _, length = flat.references["a/c/0/1"]
    assert (url, bool(length)) == (str(tmp_path / "store/a/c/0/0"), True)
    path = saved_json(flat, tmp_path)
    np.testing.assert_array_equal(values(path), data)
    theirs = fsspec.filesystem("reference", fo=path, skip_instance_cache=True)
    assert theirs.cat_file("a/c/0/1") == opened(path).cat_file("a/c/0/1")
    changed(tmp_path / "store/a/c/0/0", (tmp_path / "store/a/c/0/0").read_bytes()[::-1])
    with pytest.raises(TargetChanged):
        opened(path).cat_file("a/c/0/1")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_is_read_as_before_until_it_changes(tmp_path: Path, version: int) -> None:
    options = {} if VERSIONS == [2] else {"zarr_format": version}
    group = zarr.open_group(str(tmp_path / "store"), mode="w", **options)
    data = np.arange(24, dtype="<i4").reshape(4, 6)
    if VERSIONS == [2]:
        group.create_dataset("a", data=data, chunks=(2, 3))
    else:
        group.create_array("a", data=data, chunks=(2, 3))
    found = refshard_fs.snapshot(str(tmp_path / "store"))
    np.testing.assert_array_equal(values(found), data)
    group["a"][...] = -data
    with pytest.raises(TargetChanged):
        values(found)


def test_a_check_says_what_has_changed(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(written(tmp_path))
    assert not refshard_fs.check(opened(found)).has_errors
    changed(tmp_path / "a/0", b"xy")
    report = refshard_fs.check(opened(found))
    assert [(f.kind, f.url) for f in report.findings if f.severity == "error"] == [("changed", str(tmp_path / "a/0"))]


def test_the_command_writes_a_pinned_set(tmp_path: Path) -> None:
    destination = str(tmp_path / "refs.json")
    assert main(["snapshot", written(tmp_path / "store"), destination]) == 0
    assert opened(destination).cat_file("notes/today.txt") == b"sunny"
    changed(tmp_path / "store/a/0", b"xy")
    with pytest.raises(TargetChanged):
        opened(destination).cat_file("a/0")


def test_an_object_that_cannot_be_asked_is_named(http_server: RangeServer) -> None:
    url = http_server.put("x", b"data")
    http_server.fault(403, "/x")
    with pytest.raises(SourceNotReachable, match=f"{url} cannot be asked what it is now"):
        refshard_fs.snapshot({"a": [url, 0, 2]})
