"""Zarr hierarchies: local, in memory, and over HTTP, with and without listings and consolidated metadata."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import numpy as np
import pytest

from refshard_fs import NotListable, ReferenceNotReachable
from tests.servers.http import RangeServer
from tests.support.hierarchies import FILES, META, ZGROUP, open_hierarchy


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


def test_hierarchy_in_the_memory_filesystem_is_read() -> None:
    memory = fsspec.filesystem("memory")
    for name, data in FILES.items():
        memory.pipe_file(f"/hierarchy/{name}", data)
    fs = open_hierarchy("memory://hierarchy")
    assert fs.find("") == sorted(FILES)
    assert fs.cat_file("g/a/0") == b"12345678"
    memory.rm("/hierarchy", recursive=True)


def test_hierarchy_over_http_is_read_without_listings(server: RangeServer) -> None:
    fs = open_hierarchy(f"{server.url}/d")
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
    fs = open_hierarchy(f"{server.url}/d")
    assert [r["name"] for r in fs.ls("")] == [".zgroup", ".zmetadata", "g"]
    assert [r["name"] for r in fs.ls("g")] == ["g/.zgroup", "g/a"]
    with pytest.raises(NotListable):  # it is unknown which chunks exist
        fs.ls("g/a")


def test_http_lists_groups_from_consolidated_v3_metadata(http_server: RangeServer) -> None:
    array = {"zarr_format": 3, "node_type": "array", "shape": []}
    inner = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"a": array}}}
    doc = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"g": inner}}}
    http_server.put("/d/zarr.json", json.dumps(doc).encode())
    fs = open_hierarchy(f"{http_server.url}/d")
    assert [r["name"] for r in fs.ls("")] == ["g", "zarr.json"]
    assert [r["name"] for r in fs.ls("g")] == ["g/a", "g/zarr.json"]
    with pytest.raises(NotListable):
        fs.ls("g/a")


def test_keys_are_quoted_in_urls_that_keep_their_query(http_server: RangeServer) -> None:
    for name in ("a b", "100%", "q?x", "#1", "é"):
        http_server.put(f"/d/{name}", name.encode())
    http_server.put("/d/.zgroup", ZGROUP)
    fs = open_hierarchy(f"{http_server.url}/d?sig=s1")
    for name in ("a b", "100%", "q?x", "#1", "é"):
        assert fs.cat_file(name) == name.encode()
    assert {r.query for r in http_server.requests("/d/*")} == {"sig=s1"}


@pytest.mark.parametrize("status", [403, 500])
def test_hierarchy_is_read_if_its_directory_is_refused(server: RangeServer, status: int) -> None:
    server.fault(status, "/d")
    assert open_hierarchy(f"{server.url}/d", retries=0).cat_file("g/a/0") == b"12345678"


def test_chunk_that_cannot_be_read_is_an_error(server: RangeServer) -> None:
    fs = open_hierarchy(f"{server.url}/d", retries=0)
    fs.cat_file("g/a/.zarray")
    server.fault(503, "/d/g/a/1")
    with pytest.raises(ReferenceNotReachable):
        fs.cat_file("g/a/1")


def test_zarr_reads_a_hierarchy(folder: Path) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(open_hierarchy(folder).get_mapper(""), mode="r")
    assert np.array_equal(group["g/a"][...], np.frombuffer(b"12345678\0\0\0\0\0\0\0\0", "<i4"))
