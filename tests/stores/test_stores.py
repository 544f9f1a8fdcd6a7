"""Filesystems for writes have the same rules, credentials and connections as for reads."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import refshard_fs
from refshard_fs import RefShardError, RefShardFileSystem
from refshard_fs.targets import connections
from tests.servers.http import RangeServer
from tests.servers.kinds import KINDS

SECRET = "not-to-be-sent"
ARRAY = {"zarr_format": 2, "shape": [64], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
ARRAY |= {"filters": None, "compressor": None, "attributes": {}}
REFS: dict[str, Any] = {
    ".zgroup": '{"zarr_format": 2}',
    "t/.zarray": json.dumps(ARRAY),
    "t/.zattrs": '{"_ARRAY_DIMENSIONS": ["t"]}',
}
REFS |= {f"t/{i}": ["https://h/x", i, 1] for i in range(64)}
DATED = {**REFS, **{f"t/{i}": chr(i + 32) for i in range(64)}}

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of FTP servers, and of filesystems that fsspec keeps
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def elsewhere() -> Iterator[RangeServer]:
    with RangeServer() as server:
        yield server


@pytest.mark.parametrize("format", ["json", "parquet"])
@pytest.mark.parametrize("status", [301, 307, 308])
@pytest.mark.case(id="P16")
def test_signed_put_follows_no_redirect(status: int, format: Any, elsewhere: RangeServer) -> None:
    """Signature, session token and content stay with the endpoint that the user named."""
    pytest.importorskip("s3fs")
    with RangeServer() as server:
        for path in ("/bucket/x", "/bucket/x/t/refs.0.parq"):
            server.fault("redirect", path, to=f"{elsewhere.url}{path}", status=status)
        given = {"key": "AKIAOWN", "secret": "x", "token": SECRET, "endpoint_url": server.url}
        with pytest.raises(OSError):  # noqa: PT011  # the class depends on the client
            RefShardFileSystem(REFS).save("s3://bucket/x", format, **given)
        assert SECRET in repr([request.headers for request in server.requests()])
        assert elsewhere.requests() == []


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.case(id="P16")
def test_signed_commit_follows_no_redirect(status: int, elsewhere: RangeServer) -> None:
    pytest.importorskip("s3fs")
    with RangeServer() as server:
        server.put("/bucket/set.json", json.dumps({"version": 1, "refs": REFS}).encode())
        given = {"key": "AKIAOWN", "secret": "x", "token": SECRET, "endpoint_url": server.url}
        fs = RefShardFileSystem("s3://bucket/set.json", mode="a", target_options=given, retries=0, timeout=10)
        assert fs.exists("t/0")
        fs.pipe_file("small", b"s")
        server.fault("redirect", "/bucket/set.json", to=f"{elsewhere.url}/bucket/set.json", status=status)
        with pytest.raises((OSError, RefShardError)):
            fs.commit()
        assert elsewhere.requests() == []
        fs.discard()


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("name", ["h.zarr", "set.parq", "set.json"])
@pytest.mark.parametrize("kind", ["path", "memory"])
def test_allow_list_permits_writes_to_the_source(kind: str, name: str, slash: str, tmp_path: Path) -> None:
    """allow= is for other targets; the source itself and its data may always be written."""
    if name == "set.json" and slash:
        pytest.skip("a file")
    url = f"{'memory://' if kind == 'memory' else ''}{tmp_path}/{name}"
    format = {"h.zarr": "zarr-hierarchy", "set.parq": "parquet", "set.json": "json"}[name]
    for mode in ("w", "a"):
        fs = RefShardFileSystem(url + slash, mode=mode, format=format, allow=["s3://other/"], inline_threshold=16)
        fs.pipe({".zgroup": b'{"zarr_format": 2}', "t/.zarray": json.dumps(ARRAY).encode(), "t/1": mode.encode() * 99})
        fs.commit()
        assert RefShardFileSystem(url).cat_file("t/1") == mode.encode() * 99


def test_endpoint_that_redirects_writes_is_an_error(elsewhere: RangeServer) -> None:
    pytest.importorskip("s3fs")
    with RangeServer() as server:
        server.fault("redirect", to=f"{elsewhere.url}/bucket/x", status=301)
        given = {"key": "AKIAOWN", "secret": "x", "endpoint_url": server.url}
        with pytest.raises(OSError, match="redirects all requests"):
            RefShardFileSystem(REFS).save("s3://bucket/x", "json", **given)
        assert elsewhere.requests() == []


@pytest.mark.case(id="P16")
def test_write_to_a_web_server_is_refused(http_server: RangeServer, elsewhere: RangeServer) -> None:
    """A POST would follow redirects with the headers that are meant for the first server."""
    http_server.fault("redirect", to=f"{elsewhere.url}/x.json", status=307)
    headers = {"X-Api-Key": SECRET}
    for write in (
        lambda: RefShardFileSystem(REFS).save(f"{http_server.url}/x.json", headers=headers),
        lambda: RefShardFileSystem(REFS).save(f"{http_server.url}/x.parq", headers=headers),
        lambda: refshard_fs.concat([RefShardFileSystem(DATED)], dim="t").save(f"{http_server.url}/x.json"),
    ):
        with pytest.raises(OSError, match="cannot be written to"):
            write()
    assert SECRET not in repr([request.headers for request in elsewhere.requests()])
    assert [r.method for r in (*http_server.requests(), *elsewhere.requests()) if r.method not in ("GET", "HEAD")] == []


@pytest.mark.case(id="P14")
def test_host_that_becomes_private_gets_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for reads, the name of a public FTP server must not lead to a private address later."""
    with KINDS["ftp"](tmp_path) as served:
        served.put("set.json", json.dumps({"version": 1, "refs": REFS}).encode())
        port = served.url.rpartition(":")[2]
        known, asked = socket.getaddrinfo, list[str]()

        def found(host: Any, *given: Any, **more: Any) -> Any:
            if host == "store.example":
                asked.append(host)
                host = "127.0.0.1"
            return known(host, *given, **more)

        monkeypatch.setattr(socket, "getaddrinfo", found)
        fs = RefShardFileSystem(
            f"ftp://store.example:{port}/set.json", mode="w", target_options=served.options, retries=0
        )
        fs.pipe_file("small", b"s")
        monkeypatch.setitem(connections._first, ("store.example", int(port)), connections.Network.PUBLIC)
        with pytest.raises((OSError, RefShardError), match="private"):
            fs.commit()
        fs.discard()
        assert b'"t/0"' in (tmp_path / "set.json").read_bytes()


def test_parquet_set_is_written_over_one_ftp_connection(tmp_path: Path) -> None:
    """Several threads write the set, but the connection can transfer only one file at a time."""
    with KINDS["ftp"](tmp_path) as served:
        RefShardFileSystem(REFS).save(f"{served.url}/set.parq", record_size=2, **served.options)
        again = RefShardFileSystem(f"{served.url}/set.parq", target_options=served.options)
        assert {f"t/{i}": again.references[f"t/{i}"] for i in range(64)}.items() <= REFS.items()


def test_broken_connection_is_reopened_for_a_write(tmp_path: Path) -> None:
    with KINDS["ftp"](tmp_path) as served:
        ftp, _ = fsspec.core.url_to_fs(served.url, **served.options)
        fs = RefShardFileSystem(f"{served.url}/set.json", mode="w", options={f"{served.url}/": ftp})
        fs.pipe_file("small", b"s")
        ftp.ftp.sock.shutdown(socket.SHUT_RDWR)
        fs.commit()
        fs.pipe_file("small", b"t")
        ftp.ftp.sock.shutdown(socket.SHUT_RDWR)
        fs.commit()
        assert RefShardFileSystem(str(tmp_path / "set.json")).cat_file("small") == b"t"
