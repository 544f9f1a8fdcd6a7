"""HTTP targets: the requested bytes are returned, and wrong answers are errors."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import getproxies

import aiohttp
import pytest
from fsspec.implementations.http import HTTPFileSystem

from refshard_fs import CostlyPattern, RefShardFileSystem
from refshard_fs.core.model import Pin
from refshard_fs.core.stats import UNASKED
from refshard_fs.errors import SourceNotReachable, TargetChanged, TargetNotAllowed
from refshard_fs.security.admission import Admission
from refshard_fs.targets import Answer, Pool, PoolOptions, Retry, http
from refshard_fs.targets import answer as ranged
from refshard_fs.targets.failures import ConnectionLost, Denial, HttpStatus, Incomplete, Unfit, Unreadable
from refshard_fs.targets.http import HttpTarget
from tests.servers.http import RangeServer
from tests.servers.nginx import NginxServer
from tests.support.scripted_server import RIGHT, Script
from tests.support.target_reading import AT_ONCE, Reader, run_with_pool

pytestmark = pytest.mark.case(id="P16")

DATA = bytes(i * 31 % 251 for i in range(3000))
RANGES = [(0, 10), (10, 2000), (2990, 3000), (0, 3000), (-7, None), (5, None), (0, None), (-3000, None), (-9999, None)]


def expected(start: int, stop: int | None) -> bytes:
    return DATA[start:stop]


@pytest.mark.parametrize(("start", "stop"), RANGES)
def test_range_equals_a_slice(http_server: RangeServer, start: int, stop: int | None) -> None:
    url = http_server.put("/x", DATA)
    answer = Reader().answer(url, start, stop)
    assert answer.data == expected(start, stop)
    assert answer.size == 3000
    assert [r.method for r in http_server.requests()] == ["GET"]


def test_url_is_sent_unchanged(http_server: RangeServer) -> None:
    http_server.put("/a b/é%.nc", DATA)
    assert Reader().read(f"{http_server.url}/a b/é%25.nc", 1, 3) == DATA[1:3]
    assert Reader().read(f"{http_server.url}/a%20b/%C3%A9%25.nc?x=1&y=%2F", 1, 3) == DATA[1:3]
    assert http_server.requests()[-1].query == "x=1&y=%2F"


def test_range_beyond_the_end_gives_a_short_answer(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)

    async def read(opened: Any, path: str) -> Answer:
        answer: Answer = await opened.read(path, 2990, 4000)
        return answer

    answer = Reader().run(url, read)
    assert (answer.data, answer.size) == (DATA[2990:], 3000)
    with pytest.raises(Unfit, match="the object has 3000 bytes"):
        Reader().read(url, 2990, 4000)


@pytest.mark.parametrize(("start", "stop"), [(3000, 3010), (5000, None), (3000, None)])
def test_range_after_the_end_is_empty_and_has_the_size(http_server: RangeServer, start: int, stop: int | None) -> None:
    url = http_server.put("/x", DATA)

    async def read(opened: Any, path: str) -> Answer:
        return await opened.read(path, start, stop)

    answer = Reader().run(url, read)
    assert (answer.data, answer.size) == (b"", 3000)


@pytest.mark.parametrize(("start", "stop"), [(0, None), (-5, None), (0, 0)])
def test_empty_object_is_empty(http_server: RangeServer, start: int, stop: int | None) -> None:
    url = http_server.put("/x", b"")
    assert Reader().read(url, start, stop) == b""


@pytest.mark.parametrize(("start", "stop"), RANGES)
@pytest.mark.parametrize("kind", ["short_body", "unframed_body", "long_body", "hang_up", "reset", "dropped"])
def test_body_of_wrong_length_is_an_error(http_server: RangeServer, kind: Any, start: int, stop: int | None) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(kind)
    if (start, stop) == (0, None) and kind in ("short_body", "long_body", "unframed_body"):
        # Only a pin states the length of this whole object: without it, the end of the answer is the end.
        with pytest.raises((OSError, TargetChanged)):
            Reader().read(url, pin=Pin(size=3000))
        return
    with pytest.raises((Unfit, ConnectionLost)):
        Reader().read(url, start, stop)


@pytest.mark.parametrize(("start", "stop"), [r for r in RANGES if r != (0, None)])
@pytest.mark.parametrize("kind", ["wrong_content_range", "missing_content_range"])
def test_wrong_range_is_an_error(http_server: RangeServer, kind: Any, start: int, stop: int | None) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(kind)
    with pytest.raises(Unfit):
        Reader().read(url, start, stop)


@pytest.mark.parametrize(("start", "stop"), RANGES)
def test_range_is_cut_from_a_whole_answer(http_server: RangeServer, start: int, stop: int | None) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault("ignored_range")
    assert Reader().read(url, start, stop) == expected(start, stop)


def test_huge_whole_answer_is_not_read_to_its_end(http_server: RangeServer) -> None:
    data = bytes(64 << 20)
    url = http_server.put("/x", data)
    http_server.fault("ignored_range")
    assert Reader().read(url, 10, 20) == bytes(10)
    assert http_server.bytes_sent < len(data) // 2


@pytest.mark.evidence(id="T7")
def test_whole_answers_are_counted_and_warned_of_once(http_server: RangeServer) -> None:
    url = http_server.put("/x", bytes(UNASKED))
    http_server.fault("ignored_range")
    fs = RefShardFileSystem({f"a/{i}": [url, UNASKED - 10 + i, 1] for i in range(4)}, skip_instance_cache=True)
    with pytest.warns(CostlyPattern, match="ignores ranges") as warned:  # noqa: PT031  # only the first read warns
        for i in range(4):
            assert fs.cat_file(f"a/{i}") == b"\0"
    assert len(warned) == 1
    assert fs.stats()["bytes_wanted"] == 4
    assert http_server.bytes_sent - 4096 <= fs.stats()["bytes_fetched"] <= http_server.bytes_sent


@pytest.mark.parametrize(("start", "stop"), RANGES)
@pytest.mark.parametrize("kind", ["chunked", "drip"])
def test_unusual_framing_is_parsed(http_server: RangeServer, kind: Any, start: int, stop: int | None) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(kind, pause=0.0001, piece=500)
    assert Reader().read(url, start, stop) == expected(start, stop)


def test_range_of_unknown_total_is_accepted(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault("unknown_total")
    assert Reader().read(url, 5, 50) == DATA[5:50]
    assert Reader().read(url, -5) == DATA[-5:]
    with pytest.raises(Unfit):  # the total is needed to check that this is the last byte
        Reader().read(url, 5)


@pytest.mark.parametrize("status", [400, 416, 501])
def test_size_is_requested_once_without_suffix_ranges(http_server: RangeServer, status: int) -> None:
    url = http_server.put("/x", DATA)
    reader = Reader()
    for _ in range(2):
        http_server.fault(status, times=1)
        assert reader.read(url, -5) == DATA[-5:]
    assert [r.method for r in http_server.requests()] == ["GET", "HEAD", "GET", "GET", "GET"]


@pytest.mark.parametrize("kind", ["gzip", "gzip_stored"])
def test_compressed_answer_to_a_range_is_an_error(http_server: RangeServer, kind: Any) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(kind)
    with pytest.raises(Unfit, match="compressed"):
        Reader().read(url, 5, 50)


def test_whole_object_sent_compressed_is_inflated(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault("gzip")
    assert Reader().read(url) == DATA


def test_missing_object_is_file_not_found(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(404)
    for read in (lambda: Reader().read(url, 0, 5), lambda: Reader().read(url), lambda: Reader().get_facts(url)):
        with pytest.raises(FileNotFoundError):
            read()


@pytest.mark.parametrize(
    "status", [400, 401, 403, 405, 407, 408, 410, 412, 416, 418, 425, 429, 451, 500, 501, 503, 504]
)
def test_refusals_are_not_a_missing_object(http_server: RangeServer, status: int) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(status, method="GET")
    http_server.fault(status, method="HEAD")
    for read in (lambda: Reader().read(url, 0, 5), lambda: Reader().read(url), lambda: Reader().get_facts(url)):
        with pytest.raises((HttpStatus, TargetChanged)) as caught:
            read()
        assert not isinstance(caught.value, FileNotFoundError)
        assert "not satisfiable" not in str(caught.value)
        assert isinstance(caught.value, PermissionError) == (status in (401, 403, 407))


def test_size_is_read_by_get_if_head_is_refused(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    for refusal in (405, 403, 501):
        http_server.heal()
        http_server.fault(refusal, method="HEAD")
        assert Reader().get_facts(url).size == 3000


def test_get_facts_equals_the_facts_of_an_answer(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    facts = Reader().get_facts(url)
    answer = Reader().answer(url, 0, 1)
    assert facts == answer.facts
    assert facts.etag is not None


@pytest.mark.parametrize("fault", [500, 503, 429, "hang_up", "reset", "dropped", "short_body"])
def test_temporary_failures_are_retried(http_server: RangeServer, fault: Any) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(fault, times=2, retry_after=0.0)
    reader = Reader(retry=Retry(retries=3, timeout=60))
    assert reader.read(url, 10, 20) == DATA[10:20]
    assert reader.stats.snapshot()["retries"] >= 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 416])
def test_permanent_failures_are_not_retried(http_server: RangeServer, status: int) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(status)
    with pytest.raises((HttpStatus, FileNotFoundError)):
        Reader(retry=Retry(retries=3, timeout=60)).read(url, 10, 20)
    assert len(http_server.requests()) == 1


def test_retry_after_is_honoured(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(429, times=1, retry_after=1)
    assert Reader(retry=Retry(retries=1, timeout=60)).read(url, 10, 20) == DATA[10:20]
    first, second = http_server.requests()
    assert second.time - first.time >= 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3", 3),
        ("0", 0),
        ("1.5", 1.5),
        ("-1", None),
        ("nan", None),
        ("", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 40),
        ("Thu, 01 Jan 99999999999999999999 00:01:40 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(text: str, seconds: float | None) -> None:
    assert ranged._parse_retry_after(text, 60.0) == seconds


def test_retry_after_beyond_the_limit_is_an_error(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(503, retry_after=3600)
    with pytest.raises(HttpStatus, match="503"):
        Reader(retry=Retry(retries=3, timeout=60)).read(url, 10, 20)
    assert len(http_server.requests()) == 1


@pytest.mark.parametrize("kind", ["silent", "drip"])
def test_timeout_ends_an_endless_answer(http_server: RangeServer, kind: Any) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault(kind, pause=0.2) if kind == "drip" else http_server.fault(kind)
    with pytest.raises(TimeoutError, match=r"no answer after \d+\.\d s"):
        Reader(retry=Retry(retries=3, timeout=0.3)).read(url, 0, 2000)


def test_cancelled_read_is_not_retried(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault("silent")

    async def read(opened: Any, path: str) -> bool:
        task = asyncio.create_task(opened.read(path, 0, 10))
        while not http_server.requests():  # noqa: ASYNC110  # the server is in another thread
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert Reader(retry=Retry(retries=3, timeout=60)).run(url, read)
    assert len(http_server.requests()) == 1


def test_refused_connection_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionError):
        Reader().read(f"http://127.0.0.1:{port}/x", 0, 5)


@pytest.mark.parametrize(("code", "tries"), [(socket.EAI_NONAME, 1), (socket.EAI_AGAIN, 3)])
def test_name_that_is_not_resolved_is_an_error(monkeypatch: pytest.MonkeyPatch, code: int, tries: int) -> None:
    asked = []

    async def resolve(self: Any, host: str, *args: Any, **options: Any) -> Any:
        asked.append(host)
        raise socket.gaierror(code, "no such name")

    monkeypatch.setattr(aiohttp.DefaultResolver, "resolve", resolve)
    with pytest.raises((Unreadable, ConnectionLost)):
        Reader(retry=Retry(retries=2, timeout=60)).read("http://nowhere.invalid/x", 0, 5)
    assert len(asked) == tries


def test_error_says_that_the_object_was_replaced(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    reader = Reader()
    assert reader.read(url, 0, 5) == DATA[:5]
    http_server.put("/x", DATA[::-1])
    with pytest.raises(TargetChanged, match="replaced since it was first read"):
        reader.read(url, 0, 5)
    reader.versions.clear()
    assert reader.read(url, 0, 5) == DATA[::-1][:5]


def test_later_requests_require_the_first_version(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    reader = Reader()
    etag = reader.answer(url, 0, 5).facts.etag
    reader.read(url, 5, 10)
    assert [r.headers.get("if-match") for r in http_server.requests()] == [None, etag]


def test_manifest_may_pin_a_version(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    etag = Reader().answer(url, 0, 1).facts.etag
    assert etag is not None
    for pin in (Pin(etag=etag), Pin(etag=etag.strip('"')), Pin(size=3000), Pin(last_modified="2999-01-01T00:00:00Z")):
        assert Reader().read(url, 0, 5, pin) == DATA[:5]
    for pin in (Pin(etag='"other"'), Pin(size=2999), Pin(last_modified="1999-01-01T00:00:00Z")):
        with pytest.raises(TargetChanged, match="not the object that the manifest was made for"):
            Reader().read(url, 0, 5, pin)


def test_answer_with_another_size_is_target_changed(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    reader = Reader()
    reader.read(url, 0, 5)
    http_server.fault("wrong_total")
    with pytest.raises(TargetChanged, match="3000 bytes and is 3001"):
        reader.read(url, 0, 5)


@pytest.mark.evidence(id="T3")
def test_redirect_is_followed_and_remembered(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault("redirect", "/home", to=url)

    async def read(opened: Any, path: str) -> list[bytes]:
        return [(await opened.read(path, i, i + 5)).data for i in range(3)]

    assert Reader().run(http_server.url + "/home", read) == [DATA[i : i + 5] for i in range(3)]
    assert [r.path for r in http_server.requests()] == ["/home", "/x", "/x", "/x"]


def test_expired_redirect_is_requested_again(http_server: RangeServer) -> None:
    http_server.put("/a", DATA)
    http_server.put("/b", DATA)
    http_server.fault("redirect", "/home", to=http_server.url + "/a", times=1)
    http_server.fault("redirect", "/home", to=http_server.url + "/b")
    http_server.fault(403, "/a", after=1)

    async def read(opened: Any, path: str) -> list[bytes]:
        return [(await opened.read(path, i, i + 5)).data for i in range(2)]

    assert Reader().run(http_server.url + "/home", read) == [DATA[:5], DATA[1:6]]
    assert [r.path for r in http_server.requests()] == ["/home", "/a", "/a", "/home", "/b"]


def test_circular_redirects_are_an_error(http_server: RangeServer) -> None:
    http_server.fault("redirect", "/home", to="/away")
    http_server.fault("redirect", "/away", to="/home")
    with pytest.raises(Unreadable, match="at most 10 redirects"):
        Reader().read(http_server.url + "/home", 0, 5)
    assert len(http_server.requests()) < 20


@pytest.mark.parametrize("to", ["", "file:///etc/hostname", "ftp://127.0.0.1/x", "http://", "http://[::1"])
def test_redirect_without_a_server_is_an_error(http_server: RangeServer, to: str) -> None:
    http_server.fault("redirect", "/home", to=to)
    with pytest.raises(Unreadable):
        Reader().read(http_server.url + "/home", 0, 5)


def test_options_for_one_server_do_not_reach_another(http_server: RangeServer) -> None:
    with RangeServer({"/x": DATA}) as other:
        http_server.fault("redirect", "/home", to=other.url + "/x")
        options = {
            "headers": {"Authorization": "Bearer secret", "X-Api-Key": "secret"},
            "cookies": {"session": "secret"},
            "client_kwargs": {"headers": {"X-Also": "secret"}, "cookies": {"more": "secret"}},
        }
        assert Reader(by_prefix={http_server.url: options}).read(http_server.url + "/home", 2, 5) == DATA[2:5]
        (asked,) = http_server.requests()
        assert asked.headers["authorization"] == "Bearer secret"
        assert asked.headers["x-also"] == "secret"
        (followed,) = other.requests()
        assert "secret" not in str(followed.headers)
        assert followed.headers["range"] == "bytes=2-4"


@pytest.mark.parametrize("given", ["by the options", "by the client"])
def test_headers_of_the_users_client_do_not_reach_another_server(http_server: RangeServer, given: str) -> None:
    secret = {"headers": {"Authorization": "Bearer secret"}}

    async def get_client(**options: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(**secret, **options)

    with RangeServer({"/x": DATA}) as other:
        http_server.fault("redirect", "/home", to=other.url + "/x")
        options = {"get_client": get_client} if given == "by the client" else {"client_kwargs": secret}
        assert Reader(by_prefix={http_server.url: options}).read(http_server.url + "/home", 2, 5) == DATA[2:5]
        assert http_server.requests()[0].headers["authorization"] == "Bearer secret"
        assert "authorization" not in other.requests()[0].headers


def test_redirect_to_a_url_that_is_not_allowed_is_refused(http_server: RangeServer) -> None:
    http_server.put("/x", DATA)
    http_server.fault("redirect", "/home", to="/x")

    async def go() -> None:
        rule = Admission.of(None, [http_server.url + "/home"], (), ())
        target = HttpTarget(HTTPFileSystem(asynchronous=True, skip_instance_cache=True), rule.admit)
        try:
            with pytest.raises(TargetNotAllowed, match="/x"):
                await target.read(http_server.url + "/home", 0, 5)
        finally:
            await target.close()

    asyncio.run(go())
    assert [r.path for r in http_server.requests()] == ["/home"]


def test_options_of_the_filesystem_reach_the_server(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    Reader(by_protocol={"http": {"headers": {"X-A": "1"}, "params": {"q": "2"}}}).read(url, 0, 5)
    (request,) = http_server.requests()
    assert (request.headers["x-a"], request.query) == ("1", "q=2")


class Wrapper:
    """A client that wraps a session, like clients that retry requests."""

    def __init__(self, **options: Any) -> None:
        self._session = aiohttp.ClientSession(**options)

    def request(self, *args: Any, **options: Any) -> Any:
        return self._session.request(*args, **options)

    async def close(self) -> None:
        await self._session.close()


@pytest.mark.parametrize("to", ["/x", "http://localhost:{port}/x"])
def test_client_may_be_a_wrapper_of_a_session(http_server: RangeServer, to: str) -> None:
    async def get_client(**options: Any) -> Wrapper:
        return Wrapper(**options)

    http_server.put("/x", DATA)
    http_server.fault("redirect", "/home", to=to.format(port=http_server.port))
    reader = Reader(by_protocol={"http": {"get_client": get_client}})
    assert reader.read(http_server.url + "/home", 2, 5) == DATA[2:5]


def test_client_of_the_user_is_made_once(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    made = []

    async def get_client(**options: Any) -> aiohttp.ClientSession:
        await asyncio.sleep(0.01)
        made.append(aiohttp.ClientSession(**options))
        return made[-1]

    async def read(opened: Any, path: str) -> None:
        answers = await asyncio.gather(*(opened.read(path, i, i + 9) for i in range(8)))
        assert [answer.data for answer in answers] == [DATA[i : i + 9] for i in range(8)]

    Reader(by_protocol={"http": {"get_client": get_client}}).run(url, read)
    assert len(made) == 1


@pytest.mark.parametrize("how", ["of the environment", "of the options", "of the client"])
@pytest.mark.case(id="P14")
@pytest.mark.evidence(id="T6")
def test_proxy_may_have_a_private_name(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://data.example/x"
    script = Script([RIGHT])

    async def go() -> bytes:
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
        proxy = f"http://localhost:{server.sockets[0].getsockname()[1]}"
        options: dict[str, Any] = {"proxy": proxy}
        if how != "of the options":
            options = {"client_kwargs": options}
        if how == "of the environment":
            monkeypatch.setenv("HTTP_PROXY", proxy)
            monkeypatch.setenv("http_proxy", proxy)
            options = {"client_kwargs": {"trust_env": True}}
        rule = Admission.of("http://data.example/set.json", None, (), (url,))
        pool = Pool(PoolOptions(by_prefix={url: options}, admission=rule, retry=AT_ONCE), asyncio.get_running_loop())
        opened, path = pool.place(url)  # type: ignore[misc]  # it is not None
        try:
            return (await opened.read(path, 0, 5)).data
        finally:
            await pool.close()
            server.close()

    assert asyncio.run(go()) == b"01234"
    assert script.heads[0][1].startswith("GET http://data.example/x HTTP/1.1")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_answers_of_an_http_instance_are_checked(http_server: RangeServer, asynchronous: bool) -> None:
    url = http_server.put("/x", DATA)
    fs = HTTPFileSystem(headers={"X-A": "1"}, asynchronous=asynchronous, skip_instance_cache=True)
    reader = Reader(by_protocol={"http": fs})
    assert reader.read(url, 0, 5) == DATA[:5]
    assert http_server.requests()[0].headers["x-a"] == "1"
    http_server.fault("wrong_content_range")
    with pytest.raises(Unfit):
        reader.read(url, 0, 5)


def test_many_reads_share_connections(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)

    async def read(pool: Pool) -> None:
        place = pool.place(url)
        assert place is not None
        opened, path = place
        for _ in range(5):
            answers = await asyncio.gather(*(opened.read(path, i, i + 9) for i in range(8)))
            assert [a.data for a in answers] == [DATA[i : i + 9] for i in range(8)]

    run_with_pool(PoolOptions(retry=AT_ONCE), read)
    assert len({r.connection for r in http_server.requests()}) <= 8


def test_answers_of_nginx_are_read(nginx_server: Callable[[Path], NginxServer], tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(DATA)
    (tmp_path / "empty").write_bytes(b"")
    server = nginx_server(tmp_path)
    reader = Reader()
    for start, stop in RANGES:
        assert reader.read(f"{server.url}/x.bin", start, stop) == expected(start, stop)
    assert reader.get_facts(f"{server.url}/x.bin").size == 3000
    assert reader.read(f"{server.url}/empty", -5, None) == b""
    with pytest.raises(FileNotFoundError):
        reader.read(f"{server.url}/none", 0, 5)
    time.sleep(0.01)
    (tmp_path / "x.bin").write_bytes(DATA + b"more")
    with pytest.raises(TargetChanged):
        reader.read(f"{server.url}/x.bin", 0, 5)


def test_truncated_and_refused_answers_have_different_errors(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    http_server.fault("hang_up")
    with pytest.raises(Incomplete):
        Reader().read(url, 0, 2000)
    http_server.heal()
    http_server.fault(403)
    with pytest.raises(Denial, match=r"HTTP 403 Forbidden \(AccessDenied\)"):
        Reader().read(url, 0, 2000)


def test_proxy_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is searched for proxies only if its variables have changed: a search is slow."""
    scripts = [Script([RIGHT] * 5), Script([RIGHT])]
    searches = []
    monkeypatch.setattr(http, "getproxies", lambda: searches.append(1) or getproxies())

    async def go() -> None:
        pool = Pool(PoolOptions(retry=AT_ONCE), asyncio.get_running_loop())
        opened, path = pool.place("http://data.example/x")  # type: ignore[misc]  # it is not None
        for script, reads in zip(scripts, (5, 1), strict=True):
            server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            for _ in range(reads):
                assert (await opened.read(path, 0, 5)).data == b"01234"
            server.close()
        await pool.close()

    asyncio.run(go())
    assert [len(script.heads) for script in scripts] == [5, 1]
    assert len(searches) <= 2


def test_error_for_headers_given_as_a_text_hides_the_text(http_server: RangeServer) -> None:
    with pytest.raises(SourceNotReachable, match="expected a mapping for headers=, .* got a text") as caught:
        RefShardFileSystem(f"{http_server.url}/refs.json", target_options={"headers": "Bearer secret"}).ls("")
    assert "secret" not in str(caught.value)
