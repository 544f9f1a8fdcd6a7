"""Connections belong to an event loop: every reader there uses them, and they end with it, or when nobody does."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from refshard_fs.fs import RefShardFileSystem
from refshard_fs.targets import connections
from refshard_fs.targets.connections import Connections
from refshard_fs.targets.exchange import Origin
from tests.servers.http import RangeServer


def fs_of(server: RangeServer, **options: object) -> RefShardFileSystem:
    refs = {"k": [server.put("/data", b"0123456789"), 0, 5]}
    return RefShardFileSystem(refs, asynchronous=True, skip_instance_cache=True, **options)


def numbers(server: RangeServer) -> set[int]:
    return {request.connection for request in server.requests()}


def test_filesystems_of_one_loop_share_connections_whatever_they_send(http_server: RangeServer) -> None:
    async def use() -> None:
        for token in ("one", "two"):
            fs = fs_of(http_server, remote_protocol="http", remote_options={"headers": {"Authorization": token}})
            assert await fs._cat_file("k") == b"01234"
            del fs
            gc.collect()
            await asyncio.sleep(0.01)

    asyncio.run(use())
    assert len(numbers(http_server)) == 1
    assert [request.headers["authorization"] for request in http_server.requests()] == ["one", "two"]


def test_connections_end_with_their_loop(http_server: RangeServer) -> None:
    seen: list[Connections] = []

    async def use() -> None:
        assert await fs_of(http_server)._cat_file("k") == b"01234"
        seen.append(Connections.of(asyncio.get_running_loop()))
        assert len(seen[-1]._live) == 1

    for _ in range(2):
        asyncio.run(use())
    assert [len(one._live) for one in seen] == [0, 0]
    assert len(numbers(http_server)) == 2


def test_connections_that_nobody_uses_are_closed_after_a_while(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_IDLE", 0.01)

    async def use() -> None:
        assert await fs_of(http_server)._cat_file("k") == b"01234"
        live = Connections.of(asyncio.get_running_loop())._live
        async with asyncio.timeout(10):
            while live:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)

    asyncio.run(use())


def test_a_loop_that_is_let_go_of_takes_its_connections_with_it(http_server: RangeServer) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(fs_of(http_server)._cat_file("k"))
    gc.collect()
    loop.run_until_complete(asyncio.sleep(0.01))
    assert not [one for one in connections._state.known.values() if one._loop is loop and one._live]
    loop.close()


def test_no_more_than_so_many_are_kept_for_one_server(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_KEPT", 2)
    url = http_server.put("/data", b"0123456789" * 1000)

    async def use() -> None:
        refs = {f"k{i}": [url, 1000 * i, 5] for i in range(8)}
        fs = RefShardFileSystem(refs, asynchronous=True, skip_instance_cache=True, max_gap=-1)
        assert set((await fs._cat(list(refs))).values()) == {b"01234"}
        assert len(Connections.of(asyncio.get_running_loop())._live) <= 2

    asyncio.run(use())


def test_an_address_that_does_not_answer_is_tried_once_by_each_of_many_that_connect(
    http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere, here = "192.0.2.1", "127.0.0.1"
    asked: list[str] = []
    port = int(http_server.url.rsplit(":", 1)[1])

    async def resolve(self: Connections, origin: Origin) -> list[str]:
        return [nowhere, here]

    monkeypatch.setattr(Connections, "_resolve", resolve)

    async def use() -> None:
        loop = asyncio.get_running_loop()
        connected = asyncio.Event()
        create = loop.create_connection

        async def create_connection(factory: Any, address: str, *args: Any, **options: Any) -> Any:
            asked.append(address)
            if address == here:
                return await create(factory, address, *args, **options)
            if asked.count(nowhere) > 1:
                await connected.wait()
            raise OSError("nobody is there")

        monkeypatch.setattr(loop, "create_connection", create_connection)
        known = Connections.of(loop)
        origin = Origin("host.example", port, tls=False)
        first, *others = (asyncio.create_task(known.connect(origin)) for _ in range(3))
        await first
        connected.set()
        assert all(connection.is_open for connection in await asyncio.gather(*others))

    asyncio.run(use())
    assert sorted(asked) == [here] * 3 + [nowhere] * 3
