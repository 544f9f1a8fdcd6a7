"""The HTTP server of the tests: ranges, conditions, listings, its log, its limits of speed, and its own process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest

from tests.servers.client import ask, raw
from tests.servers.http import RangeServer
from tests.servers.process import RangeServerProcess
from tests.servers.wire import Head, Resource, Unsatisfiable, answer_read, parse_head, resolve_range

DATA = bytes(range(256)) * 4


@pytest.fixture
def server(http_server: RangeServer) -> RangeServer:
    http_server.put("/a", DATA)
    return http_server


@pytest.mark.parametrize(
    ("header", "span"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-4", (2, 5)),
        ("bytes=2-", (2, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=8-99", (8, 10)),
        ("Bytes=8-9", (8, 10)),
        (None, None),
        ("bytes=4-2", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
        ("bytes=0-1,4-5", None),
        ("lines=0-1", None),
    ],
)
def test_range_header_is_resolved_and_clamped(header: str | None, span: tuple[int, int] | None) -> None:
    assert resolve_range(header, 10) == span


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-12", "bytes=-0"])
def test_range_without_bytes_of_the_data_is_unsatisfiable(header: str) -> None:
    with pytest.raises(Unsatisfiable):
        resolve_range(header, 10)


RESOURCE = Resource.of(b"0123456789", modified=1_000_000_000)
DATE, EARLIER = "Sun, 09 Sep 2001 01:46:40 GMT", "Sun, 09 Sep 2001 01:46:39 GMT"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"range": "bytes=0-3"}, 206),
        ({"range": "bytes=10-"}, 416),
        ({"if-match": RESOURCE.etag}, 200),
        ({"if-match": f'"x", {RESOURCE.etag}'}, 200),
        ({"if-match": "*"}, 200),
        ({"if-match": '"x"'}, 412),
        ({"if-match": '"x"', "range": "bytes=0-3"}, 412),
        ({"if-match": RESOURCE.etag, "if-unmodified-since": EARLIER}, 200),
        ({"if-unmodified-since": DATE}, 200),
        ({"if-unmodified-since": EARLIER}, 412),
        ({"if-none-match": RESOURCE.etag}, 304),
        ({"if-none-match": '"x"'}, 200),
        ({"if-none-match": '"x"', "if-modified-since": DATE}, 200),
        ({"if-modified-since": DATE}, 304),
        ({"if-modified-since": EARLIER}, 200),
        ({"if-range": RESOURCE.etag, "range": "bytes=0-3"}, 206),
        ({"if-range": DATE, "range": "bytes=0-3"}, 206),
        ({"if-range": '"x"', "range": "bytes=0-3"}, 200),
        ({"if-range": EARLIER, "range": "bytes=0-3"}, 200),
        ({"if-range": '"x"', "range": "bytes=10-"}, 200),
    ],
)
def test_conditions_are_checked_in_the_order_of_rfc_9110(headers: Mapping[str, str], status: int) -> None:
    assert answer_read(Head("GET", "/a", headers), RESOURCE).status == status


def test_whole_resource_comes_with_its_validators(server: RangeServer) -> None:
    reply = ask(server.url, "/a")
    assert (reply.status, reply.body) == (200, DATA)
    assert reply.headers["content-length"] == "1024"
    assert reply.headers["accept-ranges"] == "bytes"
    assert reply.headers["etag"].startswith('"')
    assert reply.headers["last-modified"].endswith("GMT")
    assert "content-range" not in reply.headers


@pytest.mark.parametrize(("asked", "start", "stop"), [("10-19", 10, 20), ("1000-", 1000, 1024), ("-5", 1019, 1024)])
def test_range_is_answered_and_logged(server: RangeServer, asked: str, start: int, stop: int) -> None:
    reply = ask(server.url, "/a", range=f"bytes={asked}")
    assert (reply.status, reply.body) == (206, DATA[start:stop])
    assert reply.headers["content-range"] == f"bytes {start}-{stop - 1}/1024"
    [request] = server.requests("/a")
    assert (request.method, request.start, request.stop, request.status) == ("GET", start, stop, 206)
    assert (request.sent, server.bytes_sent) == (stop - start, stop - start)
    assert request.headers["range"] == f"bytes={asked}"


def test_unsatisfiable_range_tells_the_size(server: RangeServer) -> None:
    reply = ask(server.url, "/a", range="bytes=1024-")
    assert (reply.status, reply.headers["content-range"]) == (416, "bytes */1024")
    assert b"InvalidRange" in reply.body


def test_head_has_the_headers_of_get_and_no_body(server: RangeServer) -> None:
    got, head = ask(server.url, "/a"), ask(server.url, "/a", method="HEAD")
    assert (head.status, head.headers, head.body) == (200, got.headers, b"")
    assert [request.sent for request in server.requests(method="HEAD")] == [0]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_missing_path_is_404(server: RangeServer, method: str) -> None:
    assert ask(server.url, "/b", method=method).status == 404


def test_empty_resource_is_served(server: RangeServer) -> None:
    server.put("/empty", b"")
    assert (ask(server.url, "/empty").status, ask(server.url, "/empty").body) == (200, b"")
    assert ask(server.url, "/empty", range="bytes=0-").status == 416


def test_path_is_percent_decoded_and_query_ignored(server: RangeServer) -> None:
    url = server.put("/f é/%20#?", b"odd")
    reply = ask(server.url, url.removeprefix(server.url) + "?X-Signature=s")
    assert reply.body == b"odd"
    [request] = server.requests()
    assert (request.path, request.query) == ("/f é/%20#?", "X-Signature=s")


def test_replacing_a_resource_changes_its_etag(server: RangeServer) -> None:
    before = ask(server.url, "/a").headers["etag"]
    server.put("/a", b"other")
    after = ask(server.url, "/a")
    assert after.body == b"other"
    assert after.headers["etag"] != before
    assert ask(server.url, "/a", if_match=before).status == 412


def test_put_respects_conditions_and_delete_removes(server: RangeServer) -> None:
    def put(body: bytes, **headers: str) -> int:
        return ask(server.url, "/new", method="PUT", body=body, **headers).status

    assert put(b"1", if_match="*") == 412
    assert put(b"1", if_none_match="*") == 201
    assert put(b"2", if_none_match="*") == 412
    etag = ask(server.url, "/new").headers["etag"]
    assert put(b"3", if_match=etag) == 200
    assert put(b"4", if_match=etag) == 412
    assert ask(server.url, "/new").body == b"3"
    assert ask(server.url, "/new", method="DELETE").status == 204
    assert ask(server.url, "/new").status == 404
    assert ask(server.url, "/new", method="POST").status == 405


def test_request_body_may_be_chunked_or_wait_for_100_continue(server: RangeServer) -> None:
    head = "PUT /c HTTP/1.1\nHost: x\nConnection: close\n"
    received, end = raw(server.url, head + "Transfer-Encoding: chunked\n\n3\nabc\n2;x=y\nde\n0\n\n")
    assert received.startswith(b"HTTP/1.1 201 ")
    assert end == "fin"
    assert ask(server.url, "/c").body == b"abcde"
    received, _ = raw(server.url, head + "Expect: 100-continue\nContent-Length: 3\n\nxyz")
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    assert ask(server.url, "/c").body == b"xyz"


def test_invalid_request_gets_400_and_closes(server: RangeServer) -> None:
    received, end = raw(server.url, "nonsense\n\n")
    assert received.startswith(b"HTTP/1.1 400 ")
    assert end == "fin"
    with pytest.raises(ValueError, match="SPDY"):
        parse_head(b"GET / SPDY/3")


def test_files_outside_the_directory_are_not_served(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    served = tmp_path / "served"
    (served / "sub").mkdir(parents=True)
    (served / "sub" / "x").write_bytes(b"0123456789")
    (served / "empty").write_bytes(b"")
    (served / "way-out").symlink_to(tmp_path / "secret")
    with RangeServer(directory=served) as server:
        assert ask(server.url, "/sub/x", range="bytes=2-4").body == b"234"
        assert ask(server.url, "/empty").body == b""
        before = ask(server.url, "/sub/x").headers["etag"]
        (served / "sub" / "x").write_bytes(b"changed")
        assert ask(server.url, "/sub/x").body == b"changed"
        assert ask(server.url, "/sub/x").headers["etag"] != before
        assert [ask(server.url, path).status for path in ("/../secret", "/way-out", "/%2e%2e/secret", "/sub")] == [
            404
        ] * 4


def test_listing_links_to_direct_children(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "on disk&").write_bytes(b"x")
    (tmp_path / "d" / "folder").mkdir()
    with RangeServer({"/d/at hand": b"", "/d/deep/er/x": b"", "/e": b""}, directory=tmp_path, listing=True) as server:
        page = ask(server.url, "/d/").body.decode()
        links = [part.partition('"')[0] for part in page.split('href="')[1:]]
        assert links == ["/d/at%20hand", "/d/deep/", "/d/folder/", "/d/on%20disk%26"]
        assert ask(server.url, "/nothing/").status == 404


def test_log_is_filtered_and_cleared(server: RangeServer) -> None:
    server.put("/x/y", b"12345")
    ask(server.url, "/a")
    ask(server.url, "/x/y")
    ask(server.url, "/x/y", method="HEAD")
    assert [request.path for request in server.requests()] == ["/a", "/x/y", "/x/y"]
    assert [request.method for request in server.requests("/x/*")] == ["GET", "HEAD"]
    assert server.bytes_sent == 1024 + 5
    server.clear()
    assert (server.requests(), server.bytes_sent) == ([], 0)


def test_bytes_are_in_the_log_once_the_client_has_them(server: RangeServer) -> None:
    big = server.put("/big", bytes(3_000_000))
    for _ in range(20):
        server.clear()
        assert len(ask(server.url, big.removeprefix(server.url)).body) == 3_000_000
        assert server.bytes_sent == 3_000_000


def test_connection_is_kept_alive(server: RangeServer) -> None:
    async def read_twice() -> None:
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                async with session.get(server.url + "/a", headers={"Range": "bytes=0-9"}) as response:
                    assert await response.read() == DATA[:10]

    asyncio.run(read_twice())
    first, second = server.requests()
    assert first.connection == second.connection


def test_latency_delays_requests_in_parallel(server: RangeServer) -> None:
    server.latency = 0.1

    async def read_together() -> None:
        async with aiohttp.ClientSession() as session:

            async def read(start: int) -> bytes:
                async with session.get(server.url + "/a", headers={"Range": f"bytes={start}-{start}"}) as response:
                    return await response.read()

            assert await asyncio.gather(*map(read, range(8))) == [DATA[start : start + 1] for start in range(8)]

    asyncio.run(read_together())
    assert server.log.peak == 8
    server.latency = 3600
    assert raw(server.url, "GET /a HTTP/1.1\nHost: x\n\n", timeout=0.2) == (b"", "timeout")


@pytest.mark.parametrize("limit", ["bandwidth", "total_bandwidth"])
def test_bandwidth_is_not_exceeded(server: RangeServer, limit: str) -> None:
    setattr(server, limit, 100_000)
    assert ask(server.url, "/a").body == DATA
    setattr(server, limit, 1)
    received, end = raw(server.url, "GET /a HTTP/1.1\nHost: x\n\n", timeout=1.5)
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"Content-Length: 1024" in head
    assert DATA.startswith(body)
    assert (end, len(body) < len(DATA)) == ("timeout", True)


def test_total_bandwidth_limits_three_connections_together(server: RangeServer) -> None:
    server.total_bandwidth = 0.001
    readers = [
        threading.Thread(target=raw, args=(server.url, "GET /a HTTP/1.1\nHost: x\n\n"), kwargs={"timeout": 0.3})
        for _ in range(3)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [request.status for request in server.requests()] == [200] * 3
    assert server.bytes_sent == 0


def test_server_stops_while_a_client_waits(server: RangeServer) -> None:
    with RangeServer({"/a": b"x"}, latency=60) as slow:
        waiting = threading.Thread(target=raw, args=(slow.url, "GET /a HTTP/1.1\nHost: x\n\n"))
        waiting.start()
        while not slow.requests():
            time.sleep(0.001)
    waiting.join(10)
    assert not waiting.is_alive()
    with pytest.raises(ConnectionRefusedError):
        ask(slow.url, "/a")


def test_error_of_the_server_is_raised_at_exit() -> None:
    class Broken(RangeServer):
        def unlogged(self, path: str) -> bool:
            raise ZeroDivisionError(path)

    def visit() -> None:
        with Broken() as server:
            assert raw(server.url, "GET /a HTTP/1.1\nHost: x\n\n") == (b"", "fin")

    with pytest.raises(ZeroDivisionError):
        visit()


def test_server_process_serves_files_logs_and_obeys_settings(tmp_path: Path) -> None:
    (tmp_path / "on-disk").write_bytes(b"on disk")
    with RangeServerProcess(directory=tmp_path) as server:
        server.put("/a b", DATA)
        server.clear()
        assert ask(server.url, "/a%20b", range="bytes=3-5").body == DATA[3:6]
        assert ask(server.url, "/on-disk").body == b"on disk"
        first, second = server.requests()
        assert (first.path, first.start, first.stop, first.status, first.sent) == ("/a b", 3, 6, 206, 3)
        assert second.sent == 7
        server.clear()
        assert server.requests() == []
        server.set(latency=3600, bandwidth=1e6, total_bandwidth=None)
        assert raw(server.url, "GET /on-disk HTTP/1.1\nHost: x\n\n", timeout=0.2) == (b"", "timeout")
        server.set(latency=0)
        assert ask(server.url, "/on-disk").body == b"on disk"
        with pytest.raises(RuntimeError, match="400"):
            server.set(colour=1)
