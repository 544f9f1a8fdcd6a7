"""Chunk manifests of arrays: entries become columns, paths are resolved, and zarr reads the arrays."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from refshard_fs import ManifestError, ReferenceNotReachable, check
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.formats.chunk_manifest.manifest import parse
from refshard_fs.tools.info import summarise
from tests.servers.http import RangeServer
from tests.support.chunk_manifests import GRID, encode_manifest, make_metadata, needs_zarr_3, open_source, write


def test_entries_become_columns() -> None:
    found = parse(
        encode_manifest(
            {
                "0.1": {"path": "x", "offset": 3, "length": 4},
                "3.2": {"path": "y"},
                "1.0": {},
                "2.0": {"data": "abc"},
                "2.1": {"data": "base64:" + base64.b64encode(b"\xff\0").decode()},
                "0.0": {"path": "x", "offset": 7, "etag": "e", "last_modified": "2024-01-01", "checksum": "md5:00"},
            }
        ),
        GRID,
        "m",
    )
    assert found.locate(1)[:3] == ("x", 3, 4)
    assert found.locate(11)[:3] == ("y", 0, None)
    assert found.locate(3) is None
    assert found.is_empty(3)
    assert not found.is_empty(4)
    assert found.locate(6).data == b"abc"
    assert found.locate(7).data == b"\xff\0"
    first = found.locate(0)
    assert (first.offset, first.length, first.checksum) == (7, None, "md5:00")
    assert (first.pin.etag, first.pin.last_modified) == ("e", "2024-01-01")
    assert found.locate(1).pin is None
    assert len(found) == 5


@pytest.mark.parametrize("key", ["0", ""])
def test_key_of_an_array_without_dimensions_is_0_or_empty(key: str) -> None:
    found = parse(encode_manifest({key: {"path": "x"}}), ChunkGrid((), ChunkKeyEncoding("default", "/")), "m")
    assert found.locate(0)[:3] == ("x", 0, None)


@pytest.mark.parametrize("key", ["", "0\0", "0\0001"])
def test_keys_that_are_not_coordinates_are_refused(key: str) -> None:
    with pytest.raises(ManifestError, match="not a chunk key"):
        parse(encode_manifest({"1": {"path": "x"}, key: {"path": "y"}}), ChunkGrid((4,), GRID.encoding), "m")


def test_large_manifest_takes_32_bytes_an_entry_at_most() -> None:
    grid = ChunkGrid((100, 1000), ChunkKeyEncoding("default", "/"))
    places = [(i, j) for i in range(100) for j in range(1000)]
    dense = {f"{i}.{j}": {"path": f"s3://b/{i}.nc", "offset": 9 * j, "length": 9} for i, j in places}
    found = parse(encode_manifest(dense), grid, "m")
    assert len(found) == 100_000
    assert found.nbytes < 32 * len(found)
    for i, j in ((0, 0), (0, 7), (99, 999)):
        assert found.locate(grid.number_of((i, j)))[:3] == (f"s3://b/{i}.nc", 9 * j, 9)
    sparse = parse(encode_manifest(dense), ChunkGrid((10**6, 1000), grid.encoding), "m")
    assert sparse.nbytes < 32 * len(sparse)


def test_info_distinguishes_empty_and_missing_chunks(tmp_path: Path) -> None:
    fs = open_source(str(write(tmp_path, {"0": {}})))
    assert fs.info("c/0") == {"name": "c/0", "size": 0, "type": "other", "empty": True}
    with pytest.raises(FileNotFoundError):
        fs.info("c/1")
    assert not fs.exists("c/0")
    assert not fs.isfile("c/0")
    assert fs.find("") == ["manifest.json", "zarr.json"]
    with pytest.raises(FileNotFoundError):
        fs.ls("c/0")


def test_missing_target_is_not_a_missing_chunk(tmp_path: Path) -> None:
    fs = open_source(str(write(tmp_path, {"0": {"path": "gone"}, "1": {"path": "gone", "offset": 1, "length": 1}})))
    for key in ("c/0", "c/1"):
        with pytest.raises(ReferenceNotReachable, match=key):
            fs.cat_file(key)


def test_error_of_damaged_manifest_names_file_and_chunk(tmp_path: Path) -> None:
    fs = open_source(str(write(tmp_path, {"0": {"path": "x", "offset": -4}})))
    with pytest.raises(ManifestError, match=r"manifest\.json.*'0'.*-4"):
        fs.cat_file("c/1")


def test_rewritten_manifest_is_read_again(tmp_path: Path) -> None:
    fs = open_source(str(write(tmp_path, {"0": {"data": "ab"}})))
    assert fs.cat_file("c/0") == b"ab"
    (tmp_path / "manifest.json").write_text('{"0": {"data": "long"}}')
    assert open_source(str(tmp_path)).cat_file("c/0") == b"long"


def test_relative_paths_start_at_base_url(tmp_path: Path) -> None:
    (tmp_path / "day.bin").write_bytes(b"ab")
    write(tmp_path / "s.zarr" / "x", {"0": {"path": "day.bin"}})
    (tmp_path / "s.zarr/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    fs = open_source(str(tmp_path / "s.zarr"), base_url=str(tmp_path))
    assert fs.cat_file("x/c/0") == b"ab"


@pytest.mark.parametrize("offset", [0, 3, 9, 10])
def test_range_without_a_length_ends_with_the_object(http_server: RangeServer, offset: int) -> None:
    data = b"0123456789"
    url = http_server.put("/raw", data)
    fs = open_source({"a/zarr.json": make_metadata((2,), (2,), {"0": {"path": url, "offset": offset}})})
    assert fs.cat_file("a/c/0", -4, None) == data[offset:][-4:]
    assert fs.cat_ranges(["a/c/0"] * 2, [-2, 0], [None, 2]) == [data[offset:][-2:], data[offset:][:2]]


def test_relative_paths_in_a_zip_file_name_members(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        archive.writestr("zarr.json", '{"zarr_format": 3, "node_type": "group"}')
        archive.writestr("x/zarr.json", json.dumps(make_metadata((8,), (2,))))
        manifest = {
            "0": {"path": "../raw.bin", "offset": 2, "length": 2},
            "1": {"path": "../deep/deflated.bin", "offset": 1, "length": 3},
            "2": {"path": "../../climbs"},
            "3": {"path": "../gone"},
        }
        archive.writestr("x/manifest.json", json.dumps(manifest))
        archive.writestr("raw.bin", b"0123456789")
        archive.writestr("deep/deflated.bin", b"abcdefgh", zipfile.ZIP_DEFLATED)
    fs = open_source(str(tmp_path / "s.zip"))
    assert fs.cat_file("x/c/0") == b"23"
    assert fs.cat_file("x/c/1") == b"bcd"
    with pytest.raises(ManifestError, match="climbs"):
        fs.cat_file("x/c/2")
    with pytest.raises(ReferenceNotReachable, match="gone"):
        fs.cat_file("x/c/3")


def test_relative_paths_in_a_reference_set_name_keys(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"0123456789")
    refs = {
        "zarr.json": '{"zarr_format": 3, "node_type": "group"}',
        "x/zarr.json": json.dumps(make_metadata((4,), (2,))),
        "x/manifest.json": json.dumps({"0": {"path": "../blob", "offset": 1, "length": 2}, "1": {"data": "zz"}}),
        "blob": [f"file://{tmp_path}/raw", 5, 4],
    }
    fs = open_source(refs)
    assert fs.cat_file("x/c/0") == b"67"
    assert fs.cat_file("x/c/1") == b"zz"
    assert fs.references["x/manifest.json"] == refs["x/manifest.json"]
    refs["x/zarr.json"] = [f"file://{tmp_path}/meta"]
    (tmp_path / "meta").write_text(json.dumps(make_metadata((4,), (2,))))
    assert open_source(refs).cat_file("x/c/1") == b"zz"


@needs_zarr_3
def test_zarr_reads_a_manifest_of_shards(tmp_path: Path) -> None:
    data = np.arange(64, dtype="u1").reshape(8, 8)
    zarr.create_array(tmp_path / "plain", data=data, chunks=(2, 2), shards=(4, 4), compressors=None, zarr_format=3)
    doc = json.loads((tmp_path / "plain/zarr.json").read_text())
    blob = b"gap"
    manifest: dict[str, Any] = {}
    for key in ("0.0", "0.1", "1.0"):
        shard = (tmp_path / "plain/c" / key.replace(".", "/")).read_bytes()
        sum_ = f"sha256:{hashlib.sha256(shard).hexdigest()}"
        manifest[key] = {"path": "shards.bin", "offset": len(blob), "length": len(shard), "checksum": sum_}
        blob += shard
    manifest["1.1"] = {}
    del manifest["1.0"]["checksum"]
    folder = tmp_path / "x"
    folder.mkdir()
    doc["storage_transformers"] = [{"name": "chunk-manifest-json", "configuration": {"manifest": "m.json"}}]
    (folder / "zarr.json").write_text(json.dumps(doc))
    (folder / "m.json").write_text(json.dumps(manifest))
    (folder / "shards.bin").write_bytes(blob)
    fs = open_source(str(folder))
    assert json.loads(fs.cat_file("zarr.json"))["chunk_grid"]["configuration"]["chunk_shape"] == [2, 2]
    assert fs.info("c/3/3")["empty"]
    assert len(fs.ls("c/0", detail=False)) == 4
    store = zarr.storage.FsspecStore(open_source(str(folder), asynchronous=True), path="")
    expected = data.copy()
    expected[4:, 4:] = 0
    assert np.array_equal(zarr.open_array(store, mode="r")[...], expected)
    (folder / "shards.bin").write_bytes(blob[:10] + b"\xff" + blob[11:])
    with pytest.raises(ReferenceNotReachable, match="sha256"):
        open_source(str(folder)).cat_file("c/0/0")


def test_filesystem_with_manifests_can_be_pickled(tmp_path: Path) -> None:
    fs = open_source(str(write(tmp_path, {"0": {"data": "ab"}, "1": {"path": "gone"}})))
    assert pickle.loads(pickle.dumps(fs)).cat_file("c/0") == b"ab"


@needs_zarr_3
@pytest.mark.parametrize(
    "codecs", [None, [], [{"id": "shuffle", "elementsize": 4}, {"id": "zlib", "level": 4}], "gzip"]
)
@pytest.mark.parametrize("data_type", ["int16", "float64", "bool", "complex64"])
def test_array_without_valid_codecs_is_read_by_key_not_by_zarr(codecs: Any, data_type: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a.zarr" / "temp", {"0": {"data": "abcd"}})
    doc = make_metadata((4,), (2,), codecs=codecs, data_type=data_type, fill_value=None)
    (folder / "zarr.json").write_text(json.dumps(doc))
    (tmp_path / "a.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    fs = open_source(str(tmp_path / "a.zarr"))
    assert fs.cat_file("temp/c/0") == b"abcd"
    group = zarr.open_group(zarr.storage.FsspecStore.from_mapper(fs.get_mapper(""), read_only=True), mode="r")
    with pytest.raises(Exception, match=r"not store how the chunks of array 'temp' are encoded.*into its zarr\.json"):
        group["temp"]


@pytest.mark.parametrize("codecs", [["bytes"], [{"name": "bytes"}], [{"name": "no such"}]])
def test_metadata_with_codecs_are_shown_unchanged(codecs: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "a.zarr", {"0": {"data": "abcd"}})
    (folder / "zarr.json").write_text(json.dumps(make_metadata((4,), (2,), codecs=codecs, fill_value=None)))
    shown = json.loads(open_source(str(folder)).cat_file("zarr.json"))
    assert (shown["codecs"], shown["fill_value"]) == (codecs, None)


@needs_zarr_3
def test_arrays_of_virtualizarr_1_are_refused(shared_data: Path) -> None:
    fs = open_source(str(shared_data / "manifests/virtualizarr-1.0.0/combined.zarr"))
    group = zarr.open_group(zarr.storage.FsspecStore.from_mapper(fs.get_mapper(""), read_only=True), mode="r")
    for name in ("qc", "temp"):
        with pytest.raises(Exception, match=f"did not store how the chunks of array '{name}' are encoded"):
            group[name]
        assert any(warning.startswith(f"{name}: its codecs are missing") for warning in summarise(fs).warnings)
    assert {f.key for f in check(fs).findings if f.kind == "metadata"} >= {"qc/zarr.json", "temp/zarr.json"}
