"""Connections of one event loop receive into one room, and none of them sees what another one received."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Any

import pytest

from refshard_fs.targets.answer import judge
from refshard_fs.targets.buffers import LARGE, Buffers
from refshard_fs.targets.exchange import ROOM, Connection, Origin


class Owner:
    """Keeps connections, and nothing else."""

    def __init__(self) -> None:
        self.room = bytearray(ROOM)
        self.kept: list[Connection] = []

    def put(self, connection: Connection) -> None:
        self.kept.append(connection)

    def lost(self, connection: Connection) -> None:
        pass


class Wire(asyncio.Transport):
    """Takes whatever is sent."""

    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def connected(owner: Owner) -> Connection:
    connection = Connection(asyncio.get_running_loop(), owner, Origin("h", 80, tls=False))
    connection.connection_made(Wire())
    return connection


def receive(connection: Connection, data: bytes) -> int:
    """Hand ``data`` to ``connection`` as an event loop does; return in how many turns."""
    turns = 0
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        del buffer
        connection.buffer_updated(size)
        data = data[size:]
        turns += 1
    return turns


def answer(body: bytes) -> bytes:
    size = len(body)
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Length: {size}\r\nContent-Range: bytes 0-{size - 1}/{size}\r\n\r\n"
    return head.encode() + body


def body_of(asked: asyncio.Future[Any]) -> bytes:
    body = asked.result()[1]
    return body.getvalue() if isinstance(body, BytesIO) else bytes(body)


@pytest.mark.parametrize(("size", "turns"), [(5, 1), (LARGE - 1, 1), (LARGE, 2)])
def test_a_small_body_is_received_with_its_head(size: int, turns: int) -> None:
    body = bytes(i % 251 for i in range(size))

    async def go() -> None:
        owner = Owner()
        connection = connected(owner)
        for n in range(1, 3):
            asked = connection.ask(b"", judge(0, size), Buffers(), size)
            assert receive(connection, answer(body)) == turns
            assert body_of(asked) == body
            assert owner.kept == [connection] * n

    asyncio.run(go())


@pytest.mark.parametrize("piece", [1, 7, 130, 5000])
def test_answers_that_come_in_pieces_and_in_turns_are_each_their_own(piece: int) -> None:
    bodies = [bytes((i * k) % 251 for i in range(9000)) for k in (1, 3, 5)]

    async def go() -> None:
        owner = Owner()
        connections = [connected(owner) for _ in bodies]
        asked = [connection.ask(b"", judge(0, 9000), Buffers(), 9000) for connection in connections]
        answers = [answer(body) for body in bodies]
        for start in range(0, max(map(len, answers)), piece):
            for connection, data in zip(connections, answers, strict=True):
                receive(connection, data[start : start + piece])
        assert [body_of(one) for one in asked] == bodies
        assert owner.kept == connections

    asyncio.run(go())


def test_a_body_longer_than_what_was_asked_for_is_read_no_further() -> None:
    async def go() -> None:
        owner = Owner()
        connection = connected(owner)
        asked = connection.ask(b"", judge(0, 5), Buffers(), 5)
        receive(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n0123456789")
        assert body_of(asked) == b"01234"
        assert owner.kept == []

    asyncio.run(go())


def test_the_wait_that_is_told_ends_with_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        loop = asyncio.get_running_loop()
        connection = connected(Owner())
        told = answer(bytes(9000))
        at = loop.time()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda: at)
            asked = connection.ask(b"", judge(0, 9000), Buffers(), 9000)
            for now, data in ((at + 1, told[:20]), (at + 3, told[20:500]), (at + 7, told[500:])):
                patch.setattr(loop, "time", lambda now=now: now)
                receive(connection, data)
        assert asked.result()[0][3] == pytest.approx(3)

    asyncio.run(go())
