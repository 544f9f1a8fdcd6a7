"""Connections of our own: only a plain answer, complete and judged right by its head, is one; the rest is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest
from yarl import URL

from refshard_fs.fs import RefShardFileSystem
from refshard_fs.security.admission import Admission
from refshard_fs.targets import Answer, Pool, PoolOptions
from refshard_fs.targets.answer import answer_of, judge
from refshard_fs.targets.buffers import LARGE, Buffers
from refshard_fs.targets.failures import ConnectionLost, Incomplete, Unfit
from refshard_fs.targets.own_http import Direct, Reply, Unfamiliar, prepare
from tests.servers.http import RangeServer
from tests.targets.reading import Reader, with_pool

T = TypeVar("T")

RIGHT = b'HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/9\r\nETag: "x"\r\n\r\n01234'


class Script:
    """A server that answers the n-th request of all with the n-th of ``answers``; None hangs up."""

    def __init__(self, answers: Sequence[bytes | None]) -> None:
        self.answers = list(answers)
        self.heads: list[tuple[int, str]] = []  # connection and head of each request
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while self.answers:
                self.heads.append((number, (await reader.readuntil(b"\r\n\r\n")).decode()))
                answer = self.answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        writer.close()


def talk(script: Script, use: Callable[[Direct, str], Awaitable[T]]) -> T:
    async def go() -> T:
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
        direct = Direct(Buffers())
        try:
            return await use(direct, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x?y=%2F")
        finally:
            direct.connections.close()
            server.close()
            await asyncio.sleep(0.01)

    return asyncio.run(go())


async def ask(direct: Direct, url: str) -> Reply:
    request = prepare(URL(url, encoded=True), {"X-A": "1"})
    assert request is not None
    return await direct.get(request, {"Range": "bytes=0-4"}, judge(0, 5), 5)


def one(*answers: bytes | None) -> Answer:
    async def use(direct: Direct, url: str) -> Answer:
        return answer_of(await ask(direct, url), 0, 5)

    return talk(Script(answers), use)


def test_what_is_asked_is_spelled_as_given_and_one_connection_serves_many_requests() -> None:
    script = Script([RIGHT] * 3)

    async def use(direct: Direct, url: str) -> list[bytes]:
        return [bytes((await ask(direct, url)).body) for _ in range(3)]

    assert talk(script, use) == [b"01234"] * 3
    assert {number for number, _ in script.heads} == {1}
    lines = script.heads[0][1].split("\r\n")
    assert lines[0] == "GET /x?y=%2F HTTP/1.1"
    assert {"X-A: 1", "Range: bytes=0-4"} < set(lines)


def test_a_range_that_counts_from_the_end_is_held_against_the_size_that_is_told() -> None:
    async def end(direct: Direct, url: str) -> Answer:
        request = prepare(URL(url, encoded=True), {})
        assert request is not None
        return answer_of(await direct.get(request, {"Range": "bytes=-5"}, judge(-5, None), 5), -5, None)

    right = RIGHT.replace(b"0-4/9", b"4-8/9")
    short = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n0123"
    found = [talk(Script([answer]), end) for answer in (right, short)]
    assert [(answer.data, answer.size) for answer in found] == [(b"01234", 9), (b"0123", 4)]
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabcd01234"
    for wrong in (RIGHT, right.replace(b"/9", b"/*"), whole):
        with pytest.raises(Unfit):
            talk(Script([wrong]), end)


def test_where_the_manifest_came_from_needs_no_guard_and_other_hosts_do() -> None:
    url = "http://127.0.0.1:1/set.json"
    pool = PoolOptions(admission=Admission(source=url))

    async def directly(pool: Pool) -> list[bool]:
        target, _ = pool.place("http://127.0.0.1:1/x")  # type: ignore[misc]  # there is one
        return [target.target._location(at).direct is not None for at in (url, "http://host.example/x")]

    assert with_pool(pool, directly) == [True, False]


def test_an_answer_in_single_bytes_is_the_same() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for i in range(len(RIGHT)):
            writer.write(RIGHT[i : i + 1])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    script = Script([])
    script.serve = serve  # type: ignore[method-assign]  # another server for one test
    assert talk(script, ask).body == b"01234"


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT.replace(b"Content-Range:", b"content-range:"),
        RIGHT.replace(b"ETag: ", b"Content-Range: bytes 0-4/9\r\nX: "),
        RIGHT.replace(b'ETag: "x"', b"Content-Range:bytes 0-4/9 "),
    ],
)
def test_a_header_is_the_same_however_it_is_spelled(answer: bytes) -> None:
    found = one(answer)
    assert (found.data, found.size) == (b"01234", 9)


def test_a_connection_that_the_server_let_go_of_is_no_failure() -> None:
    script = Script([RIGHT, None, RIGHT])

    async def use(direct: Direct, url: str) -> list[bytes]:
        return [bytes((await ask(direct, url)).body) for _ in range(2)]

    assert talk(script, use) == [b"01234"] * 2
    assert [number for number, _ in script.heads] == [1, 1, 2]


def test_a_new_connection_without_an_answer_is_lost() -> None:
    with pytest.raises(ConnectionLost):
        one(None, None)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n0\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-4/9\r\n\r\n01234",
        b"HTTP/1.1 100 Continue\r\n\r\n" + RIGHT,
        b"HTTP/2 200\r\n\r\n",
        b"ICY 200 OK\r\nContent-Length: 1\r\n\r\n0",
        RIGHT.replace(b"ETag", b"Set-Cookie"),
        RIGHT.replace(b"ETag: ", b"Content-Length: 6\r\nX: "),
        RIGHT.replace(b"Length: 5", b"Length: +5"),
        RIGHT.replace(b"Length: 5", b"Length: 5, 5"),
        RIGHT.replace(b"ETag: ", b" folded: "),
        RIGHT.replace(b"ETag: ", b"Content-Range: bytes 1-5/9\r\nX: "),
        RIGHT.replace(b"ETag: ", b"content-range: bytes 1-5/9\r\nX: "),
        RIGHT.replace(b"ETag: ", b"E Tag: "),
        RIGHT.replace(b"ETag: ", b"X: " + b"x" * (1 << 15)),
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n012345678",
    ],
)
def test_what_is_not_plain_is_left_to_others(answer: bytes) -> None:
    with pytest.raises(Unfamiliar):
        one(answer, None)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (RIGHT[:-1], Incomplete),
        (RIGHT.replace(b"bytes 0-4/9", b"bytes 1-5/9"), Unfit),
        (RIGHT.replace(b"Content-Range: bytes 0-4/9", b"X: y"), Unfit),
        (RIGHT.replace(b"Length: 5", b"Length: 4"), Incomplete),
        (RIGHT.replace(b"Length: 5", b"Length: 6"), Unfit),
        (RIGHT.replace(b'ETag: "x"', b"Content-Encoding: gzip"), Unfit),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", FileNotFoundError),
    ],
)
def test_what_is_wrong_is_no_data(answer: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        one(answer)


def test_a_range_is_taken_out_of_a_whole_object_that_is_not_read_to_its_end() -> None:
    script = Script([b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n0123456789", RIGHT])

    async def use(direct: Direct, url: str) -> list[Answer]:
        return [answer_of(await ask(direct, url), 0, 5) for _ in range(2)]

    first, second = talk(script, use)
    assert (first.data, first.size) == (b"01234", 1_000_000)
    assert second.data == b"01234"
    assert [number for number, _ in script.heads] == [1, 2]


def test_bytes_behind_an_answer_end_the_connection() -> None:
    script = Script([RIGHT + b"HTTP/1.1 206 Forged\r\nContent-Length: 5\r\n\r\nwrong", RIGHT])

    async def use(direct: Direct, url: str) -> list[bytes]:
        return [bytes((await ask(direct, url)).body) for _ in range(2)]

    assert talk(script, use) == [b"01234"] * 2
    assert [number for number, _ in script.heads] == [1, 2]


@pytest.mark.parametrize(("size", "kind"), [(LARGE - 1, bytes), (LARGE, memoryview)])
def test_small_bodies_are_made_where_their_reader_finds_them(size: int, kind: type) -> None:
    body = bytes(i % 251 for i in range(size))
    head = f"HTTP/1.1 206 Partial\r\nContent-Length: {size}\r\nContent-Range: bytes 0-{size - 1}/{size}\r\n\r\n"

    async def use(direct: Direct, url: str) -> list[Reply]:
        request = prepare(URL(url, encoded=True), {})
        assert request is not None
        return [await direct.get(request, {}, judge(0, size), size) for _ in range(2)]

    for reply in talk(Script([head.encode() + body] * 2), use):
        assert type(reply.body) is kind
        assert reply.body == body


def test_a_connection_reset_amid_a_body_leaves_nothing_behind() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(RIGHT[:-2])
        await writer.drain()
        await asyncio.sleep(0.01)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    script = Script([])
    script.serve = serve  # type: ignore[method-assign]  # another server for one test
    with pytest.raises(Incomplete) as caught:
        talk(script, ask)
    cause = caught.value.__cause__
    assert cause is None or cause.__traceback__ is None
    gc.collect()


def test_a_cancelled_request_takes_its_connection_with_it() -> None:
    script = Script([b"HTTP/1.1 206 Partial", RIGHT])

    async def use(direct: Direct, url: str) -> bytes:
        task = asyncio.create_task(ask(direct, url))
        while not script.heads:  # noqa: ASYNC110  # the server is no task of ours
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return bytes((await ask(direct, url)).body)

    assert talk(script, use) == b"01234"
    assert [number for number, _ in script.heads] == [1, 2]


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://h/a b", {}),
        ("http://h/a\r\nX: y", {}),
        ("http://h/é", {}),
        ("http://user:pass@h/a", {}),
        ("ftp://h/a", {}),
        ("http://h/a", {"X": "a\r\nY: b"}),
        ("http://h/a", {"X\r\nY": "b"}),
        ("http://h/a", {"Host": "other"}),
        ("http://h/a", {"Range": "bytes=0-"}),
        ("http://h/a", {"X": "1", "x": "2"}),
    ],
)
def test_what_cannot_be_sent_as_it_is_is_not_sent(url: str, headers: dict[str, str]) -> None:
    assert prepare(URL(url, encoded=True), headers) is None


def test_a_header_of_one_request_cannot_hold_two() -> None:
    async def use(direct: Direct, url: str) -> None:
        request = prepare(URL(url, encoded=True), {})
        assert request is not None
        await direct.get(request, {"If-Match": 'x"\r\nX: y'}, judge(0, 5), 5)

    with pytest.raises(Unfamiliar):
        talk(Script([RIGHT]), use)


def test_a_server_that_is_not_plain_is_asked_in_the_general_way_from_then_on(http_server: RangeServer) -> None:
    data = bytes(range(200))
    url = http_server.put("/x", data)
    http_server.fault("chunked")

    async def read(opened: object, path: str) -> list[bytes]:
        return [(await opened.read(path, i, i + 5)).data for i in range(3)]  # type: ignore[attr-defined]

    assert Reader().run(url, read) == [data[i : i + 5] for i in range(3)]
    assert len(http_server.requests()) == 4  # the first one twice


def test_an_address_of_version_6_is_a_host_like_others() -> None:
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
