"""Snapshots: unchanged objects are read, changed ones are `TargetChanged`, also in copies of the references."""

from __future__ import annotations

import json
import os
from pathlib import Path

import fsspec
import numpy as np
import pytest

import refshard_fs
from refshard_fs import (
    ManifestError,
    NotListable,
    ReferenceNotReachable,
    TargetChanged,
)
from refshard_fs.cli import main
from tests.servers.http import RangeServer
from tests.support.snapshots import STORE, VERSIONS, open_source, overwrite, read_values, save_json, write_array

zarr = pytest.importorskip("zarr")
CONSOLIDATED = {
    "zarr_consolidated_format": 1,
    "metadata": {key: json.loads(STORE[key]) for key in (".zgroup", "a/.zarray")},
}


def test_snapshot_has_every_key_and_inline_metadata(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(write_array(tmp_path))
    fs = open_source(found)
    assert {key: fs.cat_file(key) for key in fs.find("")} == STORE
    assert found.references["a/.zarray"] == STORE["a/.zarray"]
    assert found.references["a/0"] == [str(tmp_path / "a/0"), 0, 2]
    large = refshard_fs.snapshot(str(tmp_path), inline_threshold=40)
    assert large.references["a/.zarray"] == [str(tmp_path / "a/.zarray")]
    assert open_source(large).cat_file("a/.zarray") == STORE["a/.zarray"]


def test_file_changed_later_is_an_error_for_its_keys(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(write_array(tmp_path))
    overwrite(tmp_path / "a/0", b"xy")
    fs = open_source(found)
    with pytest.raises(TargetChanged, match=r"last modified \d{4}-\d\d-\d\d .*make the references again"):
        fs.cat_file("a/0")
    assert fs.cat_file("a/1") == b"cd"
    (tmp_path / "a/1").write_bytes(b"longer")
    with pytest.raises(TargetChanged, match="size"):
        open_source(found).cat_file("a/1")


def test_file_replaced_by_an_older_file_is_target_changed(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(write_array(tmp_path))
    (tmp_path / "a/0").write_bytes(b"xy")
    os.utime(tmp_path / "a/0", (0, 0))
    with pytest.raises(TargetChanged):
        open_source(found).cat_file("a/0")


def test_removed_file_is_not_a_missing_chunk(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(write_array(tmp_path))
    (tmp_path / "a/0").unlink()
    with pytest.raises(ReferenceNotReachable):
        open_source(found).cat_file("a/0")
    with pytest.raises(ReferenceNotReachable):
        read_values(found)


def test_chunk_written_after_a_snapshot_is_not_in_it(tmp_path: Path) -> None:
    write_array(tmp_path, {key: data for key, data in STORE.items() if key != "a/1"})
    found = refshard_fs.snapshot(str(tmp_path))
    (tmp_path / "a/1").write_bytes(b"cd")
    with pytest.raises(FileNotFoundError):
        open_source(found).cat_file("a/1")


def test_chunk_manifests_hold_pins_natively(tmp_path: Path) -> None:
    store = {key: data for key, data in STORE.items() if not key.startswith("notes")}
    refshard_fs.snapshot(write_array(tmp_path / "store", store)).save(str(tmp_path / "out"), "chunk-manifest")
    entry = json.loads((tmp_path / "out/a/manifest.json").read_text())["0"]
    assert float(entry["last_modified"]) > 0
    os.utime(tmp_path / "store/a/0", (2e9, 2e9))
    with pytest.raises(TargetChanged):
        open_source(str(tmp_path / "out")).cat_file("a/0")


def test_parquet_refuses_pins(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    store = {key: data for key, data in STORE.items() if not key.startswith("notes")}
    found = refshard_fs.snapshot(write_array(tmp_path / "store", store))
    with pytest.raises(ManifestError, match="unpinned"):
        found.save(str(tmp_path / "out"), "parquet")
    assert not (tmp_path / "out").exists()
    found.unpinned().save(str(tmp_path / "out"), "parquet")
    assert open_source(str(tmp_path / "out")).cat_file("a/0") == b"ab"


def test_rebased_pins_compare_sizes_with_a_warning(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(write_array(tmp_path / "old"))
    write_array(tmp_path / "new", STORE | {"a/1": b"longer"})
    with pytest.warns(UserWarning, match="3 targets that moved are now checked only by size"):
        moved = refshard_fs.rebase(found, {str(tmp_path / "old"): str(tmp_path / "new")})
    assert open_source(moved).cat_file("a/0") == b"ab"
    with pytest.raises(TargetChanged, match="size"):
        open_source(moved).cat_file("a/1")


def test_snapshot_includes_uncommitted_writes(tmp_path: Path) -> None:
    store = write_array(tmp_path / "s")
    fs = open_source(store, mode="a")
    fs.pipe_file("a/1", b"new")
    fs.rm_file("notes/today.txt")
    now = open_source(refshard_fs.snapshot(fs))
    assert now.find("") == [".zgroup", "a/.zarray", "a/0", "a/1"]
    assert now.cat_file("a/1") == b"new"
    overwrite(tmp_path / "s/a/0", b"AB")
    with pytest.raises(TargetChanged):
        now.cat_file("a/0")
    fs.discard()


def test_snapshot_of_a_directory_without_arrays_has_its_files(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(write_array(tmp_path, {"x/y.bin": b"12", "z": b""}))
    fs = open_source(found)
    assert {key: fs.cat_file(key) for key in fs.find("")} == {"x/y.bin": b"12", "z": b""}


def test_http_store_with_consolidated_metadata_is_pinned(http_server: RangeServer) -> None:
    for key, data in STORE.items():
        http_server.put(f"store/{key}", data)
    http_server.delete("store/a/1")
    http_server.put("store/.zmetadata", json.dumps(CONSOLIDATED).encode())
    found = refshard_fs.snapshot(f"{http_server.url}/store")
    assert sorted(found.references) == [".zgroup", ".zmetadata", "a/.zarray", "a/0"]
    http_server.log.clear()
    assert open_source(found).cat_file("a/0") == b"ab"
    (request,) = http_server.log.requests()
    assert request.headers["if-match"]
    http_server.put("store/a/0", b"xy")
    with pytest.raises(TargetChanged):
        open_source(found).cat_file("a/0")


def test_http_store_without_listing_is_refused(http_server: RangeServer) -> None:
    for key, data in STORE.items():
        http_server.put(f"store/{key}", data)
    with pytest.raises(NotListable, match="cannot be listed"):
        refshard_fs.snapshot(f"{http_server.url}/store")


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
    path = save_json(flat, tmp_path)
    np.testing.assert_array_equal(read_values(path), data)
    theirs = fsspec.filesystem("reference", fo=path, skip_instance_cache=True)
    assert theirs.cat_file("a/c/0/1") == open_source(path).cat_file("a/c/0/1")
    overwrite(tmp_path / "store/a/c/0/0", (tmp_path / "store/a/c/0/0").read_bytes()[::-1])
    with pytest.raises(TargetChanged):
        open_source(path).cat_file("a/c/0/1")


@pytest.mark.parametrize("version", VERSIONS)
def test_snapshot_reads_until_the_store_changes(tmp_path: Path, version: int) -> None:
    options = {} if VERSIONS == [2] else {"zarr_format": version}
    group = zarr.open_group(str(tmp_path / "store"), mode="w", **options)
    data = np.arange(24, dtype="<i4").reshape(4, 6)
    if VERSIONS == [2]:
        group.create_dataset("a", data=data, chunks=(2, 3))
    else:
        group.create_array("a", data=data, chunks=(2, 3))
    found = refshard_fs.snapshot(str(tmp_path / "store"))
    np.testing.assert_array_equal(read_values(found), data)
    group["a"][...] = -data
    with pytest.raises(TargetChanged):
        read_values(found)


def test_check_reports_changed_targets(tmp_path: Path) -> None:
    found = refshard_fs.snapshot(write_array(tmp_path))
    assert not refshard_fs.check(open_source(found)).has_errors
    overwrite(tmp_path / "a/0", b"xy")
    report = refshard_fs.check(open_source(found))
    assert [(f.kind, f.url) for f in report.findings if f.severity == "error"] == [("changed", str(tmp_path / "a/0"))]


def test_command_writes_a_pinned_set(tmp_path: Path) -> None:
    destination = str(tmp_path / "refs.json")
    assert main(["snapshot", write_array(tmp_path / "store"), destination]) == 0
    assert open_source(destination).cat_file("notes/today.txt") == b"sunny"
    overwrite(tmp_path / "store/a/0", b"xy")
    with pytest.raises(TargetChanged):
        open_source(destination).cat_file("a/0")
