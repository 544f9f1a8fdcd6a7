"""Scripted answers of a server: the requested bytes are returned, and other answers are errors."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from refshard_fs.fs import RefShardFileSystem
from refshard_fs.targets import Answer, Pool, PoolOptions
from refshard_fs.targets.failures import ConnectionLost, HttpStatus, Incomplete, Unfit, Unreadable, convert_error
from tests.support.scripted_server import RIGHT, Script
from tests.support.target_reading import AT_ONCE

pytestmark = pytest.mark.case(id="P31")

T = TypeVar("T")
Ask = Callable[..., Awaitable[Answer]]

CHUNKED = RIGHT.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked").replace(
    b"01234", b"5\r\n01234\r\n0\r\n\r\n"
)


def talk(script: Script, use: Callable[[Ask], Awaitable[T]], host: str = "127.0.0.1") -> T:
    """Return the result of ``use(ask)``; ``ask`` requests a range from the server, by default bytes 0 to 5."""

    async def go() -> T:
        server = await asyncio.start_server(script.serve, host, 0)
        port = server.sockets[0].getsockname()[1]
        pool = Pool(PoolOptions({"http": {"headers": {"X-A": "1"}}}, retry=AT_ONCE), asyncio.get_running_loop())
        place = pool.place(f"http://{host}:{port}/x?y=%2F")
        assert place is not None
        target, path = place[0].target, place[1]

        async def ask(start: int = 0, stop: int | None = 5, etag: str | None = None) -> Answer:
            try:
                return await target.read(path, start, stop, etag)
            except Exception as e:  # as the engine converts every error of a target
                raise convert_error(e) from e

        try:
            return await use(ask)
        finally:
            await pool.close()
            server.close()
            await asyncio.sleep(0.01)

    return asyncio.run(go())


def one(*answers: bytes | None) -> Answer:
    return talk(Script(answers), lambda ask: ask())


async def twice(ask: Ask) -> list[bytes]:
    return [(await ask()).data for _ in range(2)]


def test_url_is_sent_unchanged_over_one_connection() -> None:
    script = Script([RIGHT] * 2)
    assert talk(script, twice) == [b"01234"] * 2
    assert {number for number, _ in script.heads} == {1}
    lines = script.heads[0][1].split("\r\n")
    assert lines[0] == "GET /x?y=%2F HTTP/1.1"
    assert {"X-A: 1", "Range: bytes=0-4", "Accept-Encoding: identity"} < set(lines)


def test_suffix_range_is_checked_against_the_size() -> None:
    right = RIGHT.replace(b"0-4/9", b"4-8/9")
    short = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n0123"
    found = [talk(Script([answer]), lambda ask: ask(-5, None)) for answer in (right, short)]
    assert [(answer.data, answer.size) for answer in found] == [(b"01234", 9), (b"0123", 4)]
    for wrong in (RIGHT, right.replace(b"/9", b"/*")):
        with pytest.raises(Unfit):
            talk(Script([wrong]), lambda ask: ask(-5, None))


def test_answer_in_single_bytes_is_parsed() -> None:
    assert talk(Script([RIGHT], piece=1), lambda ask: ask()).data == b"01234"


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT.replace(b"Content-Range:", b"content-range:"),
        RIGHT.replace(b'ETag: "x"', b"Content-Range:bytes 0-4/9 "),
        RIGHT.replace(b"ETag", b"Set-Cookie"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + RIGHT,
        CHUNKED,
    ],
)
def test_answer_with_other_headers_or_framing_is_parsed(answer: bytes) -> None:
    found = one(answer)
    assert (found.data, found.size) == (b"01234", 9)


WHOLE = RIGHT.replace(b"206 Partial Content", b"200 OK")


@pytest.mark.evidence(id="T7")
def test_requested_range_with_status_200_is_accepted() -> None:
    assert WHOLE.startswith(b"HTTP/1.1 200")
    assert (one(WHOLE).data, one(WHOLE).size) == (b"01234", 9)
    middle = WHOLE.replace(b"0-4/9", b"2-6/9")
    assert talk(Script([middle]), lambda ask: ask(2, 7)).data == b"01234"
    in_pieces = WHOLE.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked").replace(
        b"01234", b"5\r\n01234\r\n0\r\n\r\n"
    )
    assert one(in_pieces).data == b"01234"
    with pytest.raises(Incomplete):
        one(in_pieces.replace(b"5\r\n01234", b"4\r\n0123"))
    with pytest.raises(Unfit):
        one(in_pieces.replace(b"5\r\n01234", b"6\r\n012345"))
    for odd in (b"bytes 1-5/9", b"bytes 0-5/9", b"bytes 0-3/9", b"bytes 4-0/9", b"bytes 0-4/4", b"0-4"):
        with pytest.raises(Unfit):
            one(WHOLE.replace(b"bytes 0-4/9", odd))
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nContent-Range: bytes 0-8/9\r\n\r\n012345678"
    assert talk(Script([whole]), lambda ask: ask(2, 7)).data == b"23456"


def test_connection_is_used_again_after_a_chunked_answer() -> None:
    script = Script([CHUNKED, RIGHT])
    assert talk(script, twice) == [b"01234"] * 2
    assert [number for number, _ in script.heads] == [1, 1]


def test_cookie_is_sent_again_by_its_session() -> None:
    script = Script([RIGHT.replace(b'ETag: "x"', b"Set-Cookie: name=value"), RIGHT])
    assert talk(script, twice, "localhost") == [b"01234"] * 2
    assert ["Cookie: name=value" in head for _, head in script.heads] == [False, True]


def test_connection_closed_by_the_server_is_opened_again() -> None:
    script = Script([RIGHT, None, RIGHT])
    assert talk(script, twice) == [b"01234"] * 2
    assert [number for number, _ in script.heads] == [1, 1, 2]


def test_new_connection_without_an_answer_is_an_error() -> None:
    with pytest.raises(ConnectionLost):
        one(None, None)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (RIGHT[:-1], Incomplete),
        (RIGHT.replace(b"bytes 0-4/9", b"bytes 1-5/9"), Unfit),
        (RIGHT.replace(b"Content-Range: bytes 0-4/9", b"X: y"), Unfit),
        (RIGHT.replace(b"bytes 0-4/9", b"bytes 0-4/3"), Unfit),
        (RIGHT.replace(b"ETag:", b"Content-Range: bytes 1-5/9\r\nETag:"), Unfit),
        (RIGHT.replace(b"bytes 0-4/9", b"bytes 0-4/" + b"9" * 5000), Unfit),
        (RIGHT.replace(b"Length: 5", b"Length: 4"), (Incomplete, ConnectionLost)),
        (RIGHT.replace(b"Length: 5", b"Length: 6"), Unfit),
        (RIGHT.replace(b'ETag: "x"', b"Content-Encoding: gzip"), Unfit),
        (RIGHT.replace(b"Length: 5", b"Length: +5"), OSError),
        (RIGHT.replace(b"Length: 5", b"Length: 5, 5"), OSError),
        (RIGHT.replace(b"ETag: ", b"Content-Length: 6\r\nX: "), OSError),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n012345678", OSError),
        (b"HTTP/2 200\r\n\r\n", ConnectionLost),
        (b"ICY 200 OK\r\nContent-Length: 1\r\n\r\n0", OSError),
        (RIGHT.replace(b"ETag: ", b"X: " + b"x" * (1 << 15)), OSError),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", FileNotFoundError),
    ],
)
def test_damaged_answer_is_an_error(answer: bytes, error: Any) -> None:
    with pytest.raises(error):
        one(answer)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("status", ["101 Switching Protocols", "204 No Content", "304 Not Modified"])
def test_statuses_without_a_body_are_errors(status: str) -> None:
    """aiohttp shares one empty body among these answers, which reports its end only once."""

    async def thrice(ask: Ask) -> list[BaseException]:
        return [await anyhow(ask) for _ in range(3)]

    async def anyhow(ask: Ask) -> BaseException:
        with pytest.raises(OSError, match="HTTP") as caught:
            await ask()
        return caught.value

    answers = [f"HTTP/1.1 {status}\r\n\r\n".encode()] * 3
    assert {type(error) for error in talk(Script(answers, piece=1 << 20), thrice)} == {HttpStatus}


def test_range_is_cut_from_a_whole_answer_before_its_end() -> None:
    script = Script([b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n0123456789", RIGHT])

    async def use(ask: Ask) -> list[Answer]:
        return [await ask(), await ask()]

    first, second = talk(script, use)
    assert (first.data, first.size) == (b"01234", 1_000_000)
    assert second.data == b"01234"
    assert [number for number, _ in script.heads] == [1, 2]


def test_extra_bytes_after_an_answer_are_dropped() -> None:
    forged = RIGHT.replace(b"01234", b"wrong")
    script = Script([RIGHT + forged, RIGHT, RIGHT])
    assert talk(script, twice) == [b"01234"] * 2


@pytest.mark.parametrize("size", [1000, 5 << 20])
def test_body_of_an_answer_is_bytes(size: int) -> None:
    body = bytes(i % 251 for i in range(size))
    head = f"HTTP/1.1 206 Partial\r\nContent-Length: {size}\r\nContent-Range: bytes 0-{size - 1}/{size}\r\n\r\n"

    async def use(ask: Ask) -> list[Answer]:
        return [await ask(0, size) for _ in range(2)]

    for answer in talk(Script([head.encode() + body] * 2), use):
        assert type(answer.data) is bytes
        assert answer.data == body


def test_connection_reset_amid_a_body_is_an_error() -> None:
    with pytest.raises((Incomplete, ConnectionLost)):
        talk(Script([RIGHT[:-2]], reset=True), lambda ask: ask())
    gc.collect()


def test_cancelled_request_closes_its_connection() -> None:
    script = Script([b"HTTP/1.1 206 Partial", RIGHT])

    async def use(ask: Ask) -> bytes:
        task = asyncio.ensure_future(ask())
        while not script.heads:  # noqa: ASYNC110  # the server has no event to wait for
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await ask()).data

    assert talk(script, use) == b"01234"
    assert [number for number, _ in script.heads] == [1, 2]


def test_header_injection_is_refused() -> None:
    script = Script([RIGHT])
    with pytest.raises(Unreadable):
        talk(script, lambda ask: ask(etag='x"\r\nX: y'))
    assert script.heads == []


def test_ipv6_address_is_accepted_as_a_host() -> None:
    async def go() -> bytes:
        script = Script([RIGHT])
        try:
            server = await asyncio.start_server(script.serve, "::1", 0)
        except OSError:
            pytest.skip("this machine has no IPv6")
        fs = RefShardFileSystem(
            {"k": [f"http://[::1]:{server.sockets[0].getsockname()[1]}/x", 0, 5]},
            asynchronous=True,
            skip_instance_cache=True,
        )
        try:
            return await fs._cat_file("k")
        finally:
            server.close()

    assert asyncio.run(go()) == b"01234"
