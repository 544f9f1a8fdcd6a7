"""Options and filesystem instances in the constructor's arguments take effect in the requests to servers."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import s3fs
from fsspec.implementations.http import HTTPFileSystem

from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer

zarr = pytest.importorskip("zarr")
FsspecStore = getattr(pytest.importorskip("zarr.storage"), "FsspecStore", None)

VALUES = np.arange(600, dtype="<i4")
DATA = VALUES.tobytes()


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    """Collect garbage after each test: a warning about an open resource then fails the test that left it open."""
    yield
    gc.collect()


def references(url: str) -> dict[str, Any]:
    array = {
        "zarr_format": 2,
        "shape": [600],
        "chunks": [100],
        "dtype": "<i4",
        "compressor": None,
        "filters": None,
        "order": "C",
        "fill_value": -1,
    }
    refs: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2}), "a/.zarray": json.dumps(array)}
    return refs | {f"a/{i}": [url, 400 * i, 400] for i in range(6)}


@pytest.fixture(scope="module")
def s3_url(s3_server: SeaweedServer) -> str:
    s3_server.create_bucket("through-fs")
    s3_server.put("through-fs/other/x", DATA)
    return s3_server.put("through-fs/x", DATA)


def read_all(fs: RefShardFileSystem) -> None:
    """Read all chunks by blocking calls, on an event loop, and through zarr."""
    expected = {f"a/{i}": DATA[400 * i : 400 * i + 400] for i in range(6)}
    assert fs.cat(list(expected)) == expected
    again = RefShardFileSystem(*fs.storage_args, **{**fs.storage_options, "asynchronous": True})

    async def read() -> list[bytes]:
        return await asyncio.gather(*(again._cat_file(key) for key in expected))

    assert asyncio.run(read()) == list(expected.values())
    if FsspecStore is None:
        array = zarr.open(fs.get_mapper(""), mode="r")["a"]
    else:
        array = zarr.open_group(FsspecStore(again, read_only=True), mode="r", zarr_format=2)["a"]
    np.testing.assert_array_equal(array[:], VALUES)


@pytest.mark.parametrize("fast_s3", [True, False])
@pytest.mark.parametrize("how", ["remote_options", "fs options", "options", "instance", "asynchronous instance"])
def test_s3_is_read_on_several_loops(s3_proxy: CountingProxy, s3_url: str, how: str, fast_s3: bool) -> None:
    options = {"key": "ak", "secret": SeaweedServer.secret, "endpoint_url": s3_proxy.url}
    given: dict[str, Any] = {
        "remote_options": {"remote_protocol": "s3", "remote_options": options},
        "fs options": {"fs": {"s3": options}},
        "options": {"options": {"s3://through-fs/": options}},
        "instance": {"fs": s3fs.S3FileSystem(**options, skip_instance_cache=True)},
        "asynchronous instance": {"fs": s3fs.S3FileSystem(**options, asynchronous=True, skip_instance_cache=True)},
    }[how]
    if how == "asynchronous instance" and not fast_s3:
        pytest.skip("then the instance reads by its own session, which only its owner may close")
    read_all(RefShardFileSystem(references(s3_url), fast_s3=fast_s3, **given))
    assert all("Credential=ak/" in r.headers["authorization"] for r in s3_proxy.requests())
    assert {"botocore" in r.headers["user-agent"].lower() for r in s3_proxy.requests()} == {not fast_s3}


@pytest.mark.parametrize("how", ["options", "instance", "asynchronous instance", "mapping"])
def test_http_is_read_on_several_loops(http_server: RangeServer, how: str) -> None:
    url = http_server.put("/x", DATA)
    options = {"headers": {"X-Secret": "1"}}
    given: dict[str, Any] = {
        "options": {"options": {http_server.url: options}},
        "instance": {"fs": HTTPFileSystem(**options, skip_instance_cache=True)},
        "asynchronous instance": {"fs": HTTPFileSystem(**options, asynchronous=True, skip_instance_cache=True)},
        "mapping": {"fs": {"http": HTTPFileSystem(**options, skip_instance_cache=True), "s3": {"anon": True}}},
    }[how]
    read_all(RefShardFileSystem(references(url), **given))
    assert {r.headers.get("x-secret") for r in http_server.requests()} == {"1"}


def test_memory_and_chained_urls_are_read_on_several_loops(http_server: RangeServer) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/through-fs/x", DATA)
    read_all(RefShardFileSystem(references("memory://through-fs/x")))
    read_all(RefShardFileSystem(references(f"simplecache::{http_server.put('/x', DATA)}")))


def test_credentials_of_one_prefix_are_not_sent_to_another(s3_proxy: CountingProxy, s3_url: str) -> None:
    client = {"endpoint_url": s3_proxy.url}
    fs = RefShardFileSystem(
        {"k": [s3_url, 0, 8], "other": ["s3://through-fs/other/x", 0, 8]},
        fs={"s3": {"anon": True, **client}},
        options={"s3://through-fs/other/": {"key": "ak", "secret": SeaweedServer.secret, **client}},
    )
    assert fs.cat(["k", "other"]) == {"k": DATA[:8], "other": DATA[:8]}
    assert {r.path: "authorization" in r.headers for r in s3_proxy.requests()} == {
        "/through-fs/x": False,
        "/through-fs/other/x": True,
    }


def test_errors_of_failed_reads_contain_no_secrets(s3_proxy: CountingProxy, s3_url: str) -> None:
    options = {"key": "ak", "secret": "very-secret", "token": "also-secret", "endpoint_url": s3_proxy.url}
    fs = RefShardFileSystem({"k": [s3_url, 0, 8]}, fs={"s3": options}, retries=0)
    with pytest.raises(RuntimeError) as caught:
        fs.cat_file("k")
    error: BaseException | None = caught.value
    while error is not None:
        assert "secret" not in f"{error!r} {error}"
        error = error.__cause__


@pytest.mark.parametrize("url", ["s3://", "memory:///", "file://", "simplecache::s3://"])
@pytest.mark.parametrize("format_", ["json", "parquet", "chunk-manifest"])
def test_save_to_a_url_without_a_place_is_refused(
    url: str, format_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"expected a URL with a bucket or a path, got '{url}'"):
        RefShardFileSystem({"a/0": "abc"}).save(url, format_)
    assert not list(tmp_path.iterdir())


def test_save_under_the_name_of_a_netcdf_file_is_refused(tmp_path: Path) -> None:
    fs = RefShardFileSystem({"a/0": "abc"})
    with pytest.raises(ValueError, match=r"got '.*/air.NC': save writes references, and no .nc file"):
        fs.save(f"{tmp_path}/air.NC")
    fs.save(f"{tmp_path}/air.nc", "json")
