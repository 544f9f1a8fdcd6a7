"""`refshard_fs.snapshot` requests the versions of targets, and pins the references to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

import refshard_fs
from refshard_fs import (
    SourceNotReachable,
    TargetChanged,
)
from tests.servers.http import RangeServer
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer
from tests.support.snapshots import STORE, open_source, overwrite, read_values

zarr = pytest.importorskip("zarr")


def test_targets_of_a_reference_set_are_pinned(tmp_path: Path) -> None:
    (tmp_path / "x.nc").write_bytes(b"0123")
    found = refshard_fs.snapshot({"a": [str(tmp_path / "x.nc"), 1, 2], "b": "inline"})
    assert open_source(found).cat_file("a") == b"12"
    overwrite(tmp_path / "x.nc", b"4567")
    with pytest.raises(TargetChanged):
        open_source(found).cat_file("a")


def test_objects_in_memory_are_pinned_by_size_and_time() -> None:
    MemoryFileSystem().pipe({f"/snapshots/{key}": data for key, data in STORE.items()})
    found = refshard_fs.snapshot("memory://snapshots")
    assert read_values(found).tolist() == list(b"abcd")
    MemoryFileSystem().pipe_file("/snapshots/a/0", b"xy")
    with pytest.raises(TargetChanged):
        open_source(found).cat_file("a/0")


def test_s3_listing_pins_chunks_without_requesting_them(s3_server: SeaweedServer, s3_proxy: CountingProxy) -> None:
    s3_server.create_bucket("snapshots")
    for key, data in STORE.items():
        s3_server.put(f"snapshots/store/{key}", data)
    options = {**s3_server.storage_options, "client_kwargs": {"endpoint_url": s3_proxy.url}}
    s3_proxy.log.clear()
    found = refshard_fs.snapshot("s3://snapshots/store", remote_protocol="s3", remote_options=options)
    requests = [r for r in s3_proxy.log.requests() if r.path.endswith(("a/0", "a/1", "today.txt"))]
    assert not requests, "the listing has size, ETag and time of chunks, so no chunk is requested"
    fs = open_source(found, remote_protocol="s3", remote_options=options)
    s3_proxy.log.clear()
    assert fs.cat_file("a/0") == b"ab"
    (request,) = s3_proxy.log.requests("*/a/0")
    assert request.headers["if-match"]
    s3_server.put("snapshots/store/a/1", b"xy")
    with pytest.raises(TargetChanged):
        fs.cat_file("a/1")


def test_error_names_the_unreachable_object(http_server: RangeServer) -> None:
    url = http_server.put("x", b"data")
    http_server.fault(403, "/x")
    with pytest.raises(SourceNotReachable, match=f"the current version of {url} cannot be read"):
        refshard_fs.snapshot({"a": [url, 0, 2]})
