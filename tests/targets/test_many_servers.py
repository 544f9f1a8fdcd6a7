"""Connections to many servers stay within the limit of the process."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
import pytest
from fsspec.asyn import get_loop
from fsspec.implementations.http import HTTPFileSystem

from refshard_fs import RefShardFileSystem
from refshard_fs.targets import connections
from tests.servers.http import RangeServer

pytestmark = pytest.mark.case(id="P30")


def count_idle() -> int:
    """Return the number of idle connections. Connections to servers of earlier tests may be closed: leave them out."""
    connectors = getattr(get_loop(), connections._NAME)._connectors.values()
    idle = [kept for connector in connectors for kept in connections.list_idle(connector).values()]
    return sum(protocol.is_connected() for kept in idle for protocol, *_ in kept)


def test_idle_connections_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "count_permitted_connections", lambda: 4)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(RangeServer()) for _ in range(12)]
        fs = RefShardFileSystem({f"k{i}": [server.put("/x", b"x"), 0, 1] for i, server in enumerate(servers)})
        for i in range(len(servers)):
            assert fs.cat_file(f"k{i}") == b"x"
            assert 0 < count_idle() <= 4


def test_many_servers_are_read_if_idle_connections_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "count_permitted_connections", lambda: 2)
    monkeypatch.setattr(connections, "list_idle", lambda connector: {})
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(RangeServer()) for _ in range(4)]
        fs = RefShardFileSystem({f"k{i}": [server.put("/x", b"x"), 0, 1] for i, server in enumerate(servers)})
        assert set(fs.cat([f"k{i}" for i in range(4)]).values()) == {b"x"}


def test_connector_closes_at_once_without_a_loop(http_server: RangeServer) -> None:
    """This fails if aiohttp renames its private attributes: then adapt `close_now` and `list_idle`."""

    async def opened() -> Any:
        connector = connections.LoopConnections.of(asyncio.get_running_loop()).get_connector()
        async with aiohttp.ClientSession(connector=connector, connector_owner=False) as session:
            await (await session.get(http_server.put("/x", b"x"))).read()
        assert sum(map(len, connections.list_idle(connector).values())) == 1
        return connector

    loop = asyncio.new_event_loop()
    connector = loop.run_until_complete(opened())
    connections.close_now(connector)
    assert connector.closed
    assert not connections.list_idle(connector)
    loop.close()


def test_connections_take_a_third_of_the_file_limit() -> None:
    resource = pytest.importorskip("resource")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connections.count_permitted_connections() == (4096 if soft == resource.RLIM_INFINITY else max(soft // 3, 16))


@pytest.mark.parametrize("kind", ["http", "gcs"])
def test_session_of_an_instance_is_closed(kind: str, http_server: RangeServer) -> None:
    """This fails if fsspec stores the session elsewhere: then adapt `close_connections`."""

    async def opened() -> aiohttp.ClientSession:
        if kind == "http":
            fs = HTTPFileSystem(asynchronous=True, skip_instance_cache=True)
            session: aiohttp.ClientSession = await fs.set_session()
        else:
            gcsfs = pytest.importorskip("gcsfs")
            fs = gcsfs.GCSFileSystem(token="anon", endpoint_url=http_server.url, asynchronous=True)
            session = await fs._set_session()
        assert not session.closed
        connections.close_connections(fs)
        return session

    assert asyncio.run(opened()).closed
