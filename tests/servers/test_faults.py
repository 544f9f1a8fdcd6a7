"""The faults that the test servers inject: what a client gets for each kind, and to which requests they apply."""

from __future__ import annotations

import gzip

import pytest

from tests.servers.client import Reply, ask, raw
from tests.servers.faults import _TRANSFORMS, KINDS
from tests.servers.http import RangeServer
from tests.servers.proxy import CountingProxy

DATA = bytes(range(256)) * 4
GET = "GET /a HTTP/1.1\nHost: x\nRange: bytes=100-199\n\n"


@pytest.fixture
def server(http_server: RangeServer) -> RangeServer:
    http_server.put("/a", DATA)
    return http_server


def read(server: RangeServer) -> Reply:
    return ask(server.url, "/a", range="bytes=100-199")


def test_every_kind_of_fault_has_a_transform() -> None:
    assert set(_TRANSFORMS) == set(KINDS)


def test_ignored_range_gets_the_whole_with_status_200(server: RangeServer) -> None:
    server.fault("ignored_range")
    reply = read(server)
    assert (reply.status, reply.body, reply.headers["content-length"]) == (200, DATA, "1024")
    assert "content-range" not in reply.headers
    assert server.requests()[0].fault == "ignored_range"


def test_short_body_is_announced_with_its_own_length(server: RangeServer) -> None:
    server.fault("short_body")
    reply = read(server)
    assert (reply.status, reply.body, reply.headers["content-length"]) == (206, DATA[100:150], "50")
    assert reply.headers["content-range"] == "bytes 100-199/1024"
    assert server.bytes_sent == 50


def test_body_without_length_ends_with_the_connection(server: RangeServer) -> None:
    server.fault("unframed_body")
    received, end = raw(server.url, GET)
    head, _, body = received.partition(b"\r\n\r\n")
    assert (body, end) == (DATA[100:150], "fin")
    assert b"Content-Length" not in head
    assert b"Content-Range: bytes 100-199/1024" in head


@pytest.mark.parametrize(
    ("asked", "start", "stop", "padding"), [("100-199", 100, 216, 0), ("1000-1019", 1000, 1024, 12)]
)
def test_long_body_continues_beyond_the_range(
    server: RangeServer, asked: str, start: int, stop: int, padding: int
) -> None:
    server.fault("long_body")
    reply = ask(server.url, "/a", range=f"bytes={asked}")
    assert (reply.status, reply.body) == (206, DATA[start:stop] + bytes(padding))
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert reply.headers["content-range"] == f"bytes {asked}/1024"


def test_flipped_body_differs_in_one_bit(server: RangeServer) -> None:
    server.fault("flipped_body")
    reply = read(server)
    wrong = [got ^ right for got, right in zip(reply.body, DATA[100:200], strict=True) if got != right]
    assert (reply.status, [byte.bit_count() for byte in wrong]) == (206, [1])


@pytest.mark.parametrize(("asked", "sent", "start"), [("100-199", "99-198", 99), ("0-99", "1-100", 1)])
def test_wrong_content_range_is_of_another_offset(server: RangeServer, asked: str, sent: str, start: int) -> None:
    server.fault("wrong_content_range")
    reply = ask(server.url, "/a", range=f"bytes={asked}")
    assert (reply.status, reply.headers["content-range"]) == (206, f"bytes {sent}/1024")
    assert reply.body == DATA[start : start + 100]


@pytest.mark.parametrize(
    ("kind", "content_range"),
    [
        ("missing_content_range", None),
        ("wrong_total", "bytes 100-199/1025"),
        ("unknown_total", "bytes 100-199/*"),
    ],
)
def test_content_range_may_be_missing_or_of_another_total(
    server: RangeServer, kind: str, content_range: str | None
) -> None:
    [found] = [known for known in KINDS if known == kind]
    server.fault(found)
    reply = read(server)
    assert (reply.status, reply.body) == (206, DATA[100:200])
    assert reply.headers.get("content-range") == content_range


def test_chunked_answer_has_no_length(server: RangeServer) -> None:
    server.put("/big", DATA * 30)
    server.fault("chunked")
    server.fault("chunked", method="HEAD")
    reply = ask(server.url, "/big")
    assert (reply.status, reply.body, reply.headers["transfer-encoding"]) == (200, DATA * 30, "chunked")
    head = ask(server.url, "/big", method="HEAD")
    assert all("content-length" not in answer.headers for answer in (reply, head))


@pytest.mark.parametrize("status", [401, 403, 404, 416, 429, 500, 503])
def test_numeric_fault_sets_the_error_status(server: RangeServer, status: int) -> None:
    fault = server.fault(status)
    reply = read(server)
    assert reply.status == status
    assert b"<Code>" in reply.body
    assert ask(server.url, "/a", method="HEAD").status == status
    assert (fault.hits, [request.status for request in server.requests()]) == (2, [status] * 2)


def test_error_statuses_have_their_usual_headers(server: RangeServer) -> None:
    server.fault(429, times=1)
    server.fault(429, times=1, retry_after=0.25)
    server.fault(503, times=1, retry_after=3)
    server.fault(503, times=1)
    server.fault(401, times=1)
    assert [read(server).headers.get("retry-after") for _ in range(2)] == ["1", "0.25"]
    slow = read(server)
    assert (slow.headers["retry-after"], b"<Code>SlowDown</Code>" in slow.body) == ("3", True)
    assert "retry-after" not in read(server).headers
    assert read(server).headers["www-authenticate"].startswith("Basic")
    assert read(server).status == 206


@pytest.mark.parametrize(("kind", "expected"), [("reset", "reset"), ("hang_up", "fin")])
def test_connection_breaks_in_mid_body(server: RangeServer, kind: str, expected: str) -> None:
    [found] = [known for known in KINDS if known == kind]
    server.fault(found)
    received, end = raw(server.url, GET)
    head, _, body = received.partition(b"\r\n\r\n")
    assert (body, end) == (DATA[100:150], expected)
    assert b"Content-Length: 100" in head


def test_dropped_request_gets_no_answer(server: RangeServer) -> None:
    server.fault("dropped")
    assert raw(server.url, GET) == (b"", "fin")
    assert [request.status for request in server.requests()] == [None]


def test_silent_server_keeps_the_connection_open(server: RangeServer) -> None:
    server.fault("silent")
    assert raw(server.url, GET, timeout=0.2) == (b"", "timeout")
    assert [request.status for request in server.requests()] == [None]


def test_drip_brings_all_bytes_and_pauses_before_the_body(server: RangeServer) -> None:
    server.fault("drip", pause=0.001, piece=10, times=1)
    assert read(server).body == DATA[100:200]
    server.fault("drip", pause=3600)
    received, end = raw(server.url, GET, timeout=0.2)
    assert (received.startswith(b"HTTP/1.1 206 "), received.endswith(b"\r\n\r\n"), end) == (True, True, "timeout")


def test_redirect_has_its_status_and_location(server: RangeServer) -> None:
    server.fault("redirect", to=server.url + "/b?token=t")
    reply = read(server)
    assert (reply.status, reply.headers["location"], reply.body) == (302, server.url + "/b?token=t", b"")


def test_gzip_compresses_the_requested_range(server: RangeServer) -> None:
    server.fault("gzip")
    reply = read(server)
    assert (reply.status, reply.headers["content-encoding"]) == (206, "gzip")
    assert gzip.decompress(reply.body) == DATA[100:200]


def test_range_of_gzip_stored_is_one_of_compressed_bytes(server: RangeServer) -> None:
    server.fault("gzip_stored")
    stored = ask(server.url, "/a").body
    assert gzip.decompress(stored) == DATA
    reply = ask(server.url, "/a", range="bytes=10-19")
    assert (reply.status, reply.body, reply.headers["content-encoding"]) == (206, stored[10:20], "gzip")
    assert reply.headers["content-range"] == f"bytes 10-19/{len(stored)}"
    assert ask(server.url, "/a", range="bytes=1000-").status == 416


def test_replaced_file_has_other_bytes_and_another_etag(server: RangeServer) -> None:
    server.fault("replaced", after=2, times=1)
    first, second, third, fourth = (read(server) for _ in range(4))
    assert first == second
    assert third == fourth
    assert third.body == bytes(byte ^ 255 for byte in DATA[100:200])
    assert third.headers["etag"] != first.headers["etag"]
    assert third.headers["last-modified"] != first.headers["last-modified"]
    server.fault("replaced", times=1, data=b"new")
    assert ask(server.url, "/a", if_match=third.headers["etag"]).status == 412
    assert ask(server.url, "/a").body == b"new"


def test_fault_has_a_start_and_a_count(server: RangeServer) -> None:
    fault = server.fault(500, after=1, times=2)
    assert [read(server).status for _ in range(5)] == [206, 500, 500, 206, 206]
    assert fault.hits == 2


def test_fault_matches_by_path_and_method(server: RangeServer) -> None:
    server.put("/x/y/z", b"z")
    server.fault(403, "/x/*")
    server.fault(405, method="HEAD")
    assert [ask(server.url, path).status for path in ("/a", "/x/y/z")] == [200, 403]
    assert ask(server.url, "/a", method="HEAD").status == 405


def test_fault_is_applied_only_to_a_request_that_it_fits(server: RangeServer) -> None:
    ranged = server.fault("wrong_total", times=1)
    assert ask(server.url, "/a").status == 200
    assert ranged.hits == 0
    server.heal()
    cut = server.fault("hang_up", times=1)
    assert ask(server.url, "/a", method="HEAD").status == 200
    assert cut.hits == 0
    assert raw(server.url, GET)[0].endswith(DATA[100:150])


def test_first_matching_fault_is_applied_alone(server: RangeServer) -> None:
    server.fault(500, times=1)
    server.fault(503, times=1)
    assert [read(server).status for _ in range(3)] == [500, 503, 206]


def test_short_body_does_not_change_a_404_answer(server: RangeServer) -> None:
    server.fault("short_body")
    reply = ask(server.url, "/missing")
    assert (reply.status, len(reply.body)) == (404, int(reply.headers["content-length"]))


def test_equal_seeds_give_equal_random_faults(server: RangeServer) -> None:
    def statuses(seed: int) -> list[int]:
        server.heal()
        server.fault(500, probability=0.5, seed=seed)
        return [read(server).status for _ in range(20)]

    assert statuses(1) == statuses(1) != statuses(2)
    assert set(statuses(1)) == {206, 500}


def test_healed_server_answers_without_the_fault(server: RangeServer) -> None:
    server.fault(500)
    server.heal()
    assert read(server).status == 206


def test_unknown_and_impossible_kinds_of_fault_are_refused(server: RangeServer) -> None:
    with pytest.raises(ValueError, match="unknown fault 'gremlins'"):
        server.fault("gremlins")  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(ValueError, match="does not have the whole resource"):
        CountingProxy(server.url).fault("replaced")
