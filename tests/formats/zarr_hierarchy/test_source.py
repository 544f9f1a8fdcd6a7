"""A zarr hierarchy as a source: local, in memory, over HTTP with and without listings and consolidated metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from refshard_fs import ManifestError, NotListable, ReferenceNotReachable, RefShardFileSystem, UnknownSource
from refshard_fs.core.hierarchy import Hierarchy
from refshard_fs.sharding.view import ShardView
from tests.servers.http import RangeServer

ZGROUP = b'{"zarr_format": 2}'
META = {
    "zarr_format": 2,
    "shape": [4],
    "chunks": [2],
    "dtype": "<i4",
    "compressor": None,
    "filters": None,
    "fill_value": 0,
    "order": "C",
}
ZARRAY = json.dumps(META).encode()
FILES = {".zgroup": ZGROUP, "g/.zgroup": ZGROUP, "g/a/.zarray": ZARRAY, "g/a/0": b"12345678", "g/a/.zattrs": b"{}"}


def opened(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.fixture
def server(http_server: RangeServer) -> RangeServer:
    for name, data in FILES.items():
        http_server.put("/d/" + name, data)
    return http_server


def test_a_local_folder_is_what_it_is(folder: Path) -> None:
    for fo in (folder, str(folder), f"file://{folder}", f"{folder}/"):
        fs = opened(fo)
        assert fs.find("") == sorted(FILES)
        for name, data in FILES.items():
            assert fs.cat_file(name) == data
            assert fs.info(name)["size"] == len(data)
        assert [r["name"] for r in fs.ls("g")] == ["g/.zgroup", "g/a"]


def test_a_directory_is_no_key(folder: Path) -> None:
    fs = opened(folder)
    assert fs.isdir("g/a")
    with pytest.raises(FileNotFoundError):
        fs.cat_file("g/a")
    with pytest.raises(FileNotFoundError):
        fs.cat_file("g/a/0/x")  # below a file
    with pytest.raises(FileNotFoundError):
        fs.cat_file("g/a/1")


@pytest.mark.parametrize(
    "key", ["../secret", "g/../../secret", "g/a/../../../secret", "..", ".", "g/./a/0", "/../secret"]
)
def test_no_key_leads_out_of_the_hierarchy(folder: Path, key: str) -> None:
    (folder.parent / "secret").write_bytes(b"secret")
    fs = opened(folder)
    with pytest.raises((FileNotFoundError, ValueError)):
        fs.cat_file(key)
    steps = Hierarchy(f"file://{folder}", listable=True).lookup(key)
    with pytest.raises(StopIteration) as stop:
        next(steps)
    assert stop.value.value is None


def test_any_fsspec_filesystem_will_do() -> None:
    memory = fsspec.filesystem("memory")
    for name, data in FILES.items():
        memory.pipe_file(f"/hierarchy/{name}", data)
    fs = opened("memory://hierarchy")
    assert fs.find("") == sorted(FILES)
    assert fs.cat_file("g/a/0") == b"12345678"
    memory.rm("/hierarchy", recursive=True)


def test_http_without_listing_reads_by_name(server: RangeServer) -> None:
    fs = opened(f"{server.url}/d")
    assert fs.cat_file("g/a/0") == b"12345678"
    assert not fs.exists("g/a/1")
    assert fs.isdir("g/a")
    assert not fs.isdir("g/b")
    with pytest.raises(NotListable, match="cannot be listed"):
        fs.ls("")
    assert isinstance(NotListable("x"), NotImplementedError)


def test_http_lists_groups_from_consolidated_metadata(server: RangeServer) -> None:
    doc = {"metadata": {".zgroup": {}, "g/.zgroup": {}, "g/a/.zarray": META, "g/a/.zattrs": {}}}
    server.put("/d/.zmetadata", json.dumps({"zarr_consolidated_format": 1, **doc}).encode())
    fs = opened(f"{server.url}/d")
    assert [r["name"] for r in fs.ls("")] == [".zgroup", ".zmetadata", "g"]
    assert [r["name"] for r in fs.ls("g")] == ["g/.zgroup", "g/a"]
    with pytest.raises(NotListable):  # its chunks: nobody knows which there are
        fs.ls("g/a")


def test_http_lists_groups_from_consolidated_metadata_of_version_3(http_server: RangeServer) -> None:
    array = {"zarr_format": 3, "node_type": "array", "shape": []}
    inner = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"a": array}}}
    doc = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"g": inner}}}
    http_server.put("/d/zarr.json", json.dumps(doc).encode())
    fs = opened(f"{http_server.url}/d")
    assert [r["name"] for r in fs.ls("")] == ["g", "zarr.json"]
    assert [r["name"] for r in fs.ls("g")] == ["g/a", "g/zarr.json"]
    with pytest.raises(NotListable):
        fs.ls("g/a")


def test_names_are_quoted_in_urls_and_queries_kept(http_server: RangeServer) -> None:
    for name in ("a b", "100%", "q?x", "#1", "é"):
        http_server.put(f"/d/{name}", name.encode())
    http_server.put("/d/.zgroup", ZGROUP)
    fs = opened(f"{http_server.url}/d?sig=s1")
    for name in ("a b", "100%", "q?x", "#1", "é"):
        assert fs.cat_file(name) == name.encode()
    assert {r.query for r in http_server.requests("/d/*")} == {"sig=s1"}


@pytest.mark.parametrize("status", [403, 500])
def test_a_server_that_refuses_the_directory_itself_still_serves_it(server: RangeServer, status: int) -> None:
    server.fault(status, "/d")
    assert opened(f"{server.url}/d", retries=0).cat_file("g/a/0") == b"12345678"


def test_a_page_about_the_directory_is_not_taken_for_the_source(server: RangeServer) -> None:
    server.put("/d", b"<!DOCTYPE html><html>Index of /d</html>")
    assert opened(f"{server.url}/d").cat_file("g/a/0") == b"12345678"
    server.put("/other", b"<!DOCTYPE html><html>Nothing</html>")
    with pytest.raises(UnknownSource, match="DOCTYPE"):
        opened(f"{server.url}/other").ls("")


def test_a_target_that_fails_is_no_missing_chunk(server: RangeServer) -> None:
    fs = opened(f"{server.url}/d", retries=0)
    fs.cat_file("g/a/.zarray")
    server.fault(503, "/d/g/a/1")
    with pytest.raises(ReferenceNotReachable):
        fs.cat_file("g/a/1")


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ("s3://b/a.zarr", "s3://b/a.zarr/k/0"),
        ("s3://b/a.zarr/", "s3://b/a.zarr/k/0"),
        ("memory://", "memory://k/0"),
        ("/data/a.zarr", "/data/a.zarr/k/0"),
        ("https://h/a.zarr?sig=1", "https://h/a.zarr/k/0?sig=1"),
        ("zip://::s3://b/a.zip", "zip://k/0::s3://b/a.zip"),
        ("zip::s3://b/a.zip", "zip://k/0::s3://b/a.zip"),
        ("zip://x/a.zarr::s3://b/a.zip", "zip://x/a.zarr/k/0::s3://b/a.zip"),
        ("simplecache::https://h/a.zarr", "simplecache::https://h/a.zarr/k/0"),
    ],
)
def test_where_a_key_lies(root: str, expected: str) -> None:
    with pytest.raises(StopIteration) as stop:
        next(Hierarchy(root, listable=True).lookup("k/0"))
    assert stop.value.value.url == expected


def test_format_names_it_where_nothing_tells(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/zarr.json").write_text("{}")
    with pytest.raises(UnknownSource, match="zarr-hierarchy"):
        opened(tmp_path).ls("")
    fs = opened(tmp_path, format="zarr-hierarchy")
    assert fs.cat_file("a/zarr.json") == b"{}"
    assert isinstance(fs.source.open(), ShardView)
    assert not isinstance(opened(tmp_path, format="zarr-hierarchy", shards="whole").source.open(), ShardView)


def test_zarr_reads_it(folder: Path) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(opened(folder).get_mapper(""), mode="r")
    assert np.array_equal(group["g/a"][...], np.frombuffer(b"12345678\0\0\0\0\0\0\0\0", "<i4"))


def test_what_no_url_leads_to_is_not_missing_and_is_not_written(folder: Path, server: RangeServer) -> None:
    """Before it was mended: An object of a hierarchy with `::` in its name was a missing key, and so filled: fsspec
    takes such a URL for a chain.
    """
    (folder / "a::b").write_bytes(b"x")
    fs = opened(folder, mode="a")
    with pytest.raises(ManifestError, match="'a::b': give it another name"):
        fs.cat_file("a::b")
    fs.pipe_file("c::d", b"x")
    with pytest.raises(ManifestError, match="'c::d': give it another name"):
        fs.commit()
    assert not (folder / "c::d").exists()
    fs.discard()
    server.put("/d/a::b", b"x")
    assert opened(f"{server.url}/d").cat_file("a::b") == b"x"
