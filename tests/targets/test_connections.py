"""Connections belong to an event loop: all readers of the loop share them, and they end with it."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import certifi
import pytest

from refshard_fs.errors import ReferenceNotReachable
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.targets import Pool, PoolOptions, connections
from refshard_fs.targets.connections import make_tls_context
from tests.servers.http import RangeServer
from tests.servers.tls import certificate, far_away
from tests.support.scripted_server import RIGHT, Script

NewLoop = Callable[[], asyncio.AbstractEventLoop]


def new_uvloop() -> asyncio.AbstractEventLoop:
    return pytest.importorskip("uvloop").new_event_loop()  # type: ignore[no-any-return]  # it has no types


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_uvloop], ids=["asyncio", "uvloop"])


def fs_of(server: RangeServer, **options: object) -> RefShardFileSystem:
    refs = {"k": [server.put("/data", b"0123456789"), 0, 5]}
    return RefShardFileSystem(refs, asynchronous=True, skip_instance_cache=True, **options)


def numbers(server: RangeServer) -> set[int]:
    return {request.connection for request in server.requests()}


def test_filesystems_of_one_loop_share_connections(http_server: RangeServer) -> None:
    async def use() -> None:
        for token in ("one", "two"):
            for options in ({"headers": {"Authorization": token}}, {"client_kwargs": {"auth": None, "headers": {}}}):
                fs = fs_of(http_server, remote_protocol="http", remote_options=options)
                assert await fs._cat_file("k") == b"01234"
                del fs
                gc.collect()
                await asyncio.sleep(0.01)

    asyncio.run(use())
    assert len(numbers(http_server)) == 1
    assert [r.headers.get("authorization") for r in http_server.requests()] == ["one", None, "two", None]


@LOOPS
@pytest.mark.parametrize("options", [{}, {"client_kwargs": {"cookies": {"a": "b"}}}], ids=["shared", "own session"])
def test_connections_are_closed_before_their_loop(new_loop: NewLoop, options: Any, http_server: RangeServer) -> None:
    fs = fs_of(http_server, remote_protocol="http", remote_options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # warnings about open sockets and transports fail the test
        with asyncio.Runner(loop_factory=new_loop) as runner:
            assert runner.run(fs._cat_file("k")) == b"01234"
        loop = new_loop()
        assert loop.run_until_complete(fs._cat_file("k")) == b"01234"
        loop.close()
        assert loop.is_closed()
        del loop
        gc.collect()
    assert len(numbers(http_server)) == 2


@LOOPS
def test_ended_loop_is_collected(new_loop: NewLoop, http_server: RangeServer) -> None:
    url = http_server.put("/data", b"0123456789")
    loops = []

    async def read() -> None:
        loop = asyncio.get_running_loop()
        loops.append(weakref.ref(loop))
        opened, path = Pool(PoolOptions(), loop).place(url)  # type: ignore[misc]  # it is not None
        assert (await opened.read(path, 0, 5)).data == b"01234"

    for _ in range(3):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(read())
    gc.collect()
    assert [ref() for ref in loops] == [None] * 3


def test_loop_may_be_closed_inside_another(http_server: RangeServer) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(fs_of(http_server)._cat_file("k"))

    async def close() -> None:
        loop.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # no loop is left to close the sockets properly
        asyncio.run(close())
        assert loop.is_closed()
        gc.collect()


def test_distant_server_with_tls_gets_one_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use() -> list[str]:
        context, authority = certificate(tmp_path, "far.example")
        server = await asyncio.start_server(Script([RIGHT] * 3).serve, "127.0.0.1", 0, ssl=context)
        async with far_away(server.sockets[0].getsockname()[1], 0.18) as (port, connected):

            async def resolve(self: Any, host: str, port: int = 0, family: Any = 0) -> list[dict[str, Any]]:
                place = {"hostname": host, "port": port, "family": 2, "proto": 6, "flags": 0}
                return [{**place, "host": f"127.0.0.{i}"} for i in (1, 2, 3)]

            monkeypatch.setattr(aiohttp.DefaultResolver, "resolve", resolve)
            options = {"ssl": make_tls_context(authority)}
            refs = {str(i): [f"https://far.example:{port}/x", 0, 5] for i in range(3)}
            fs = RefShardFileSystem(
                refs, remote_options=options, asynchronous=True, skip_instance_cache=True, retries=0
            )
            for key in refs:
                assert await fs._cat_file(key) == b"01234"
            server.close()
            return connected

    assert len(asyncio.run(use())) == 1


def test_unreachable_address_is_skipped(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(http_server.url.rsplit(":", 1)[1])

    async def resolve(self: Any, host: str, port: int = 0, family: Any = 0) -> list[dict[str, Any]]:
        place = {"hostname": host, "port": port, "family": 2, "proto": 6, "flags": 0}
        return [{**place, "host": f"127.0.0.{i}"} for i in (2, 3, 1)]

    monkeypatch.setattr(aiohttp.DefaultResolver, "resolve", resolve)
    http_server.put("/data", b"0123456789")
    url = f"http://several.example:{port}/data"

    async def use() -> None:
        refs = {str(i): [url, i, 5] for i in range(3)}
        fs = RefShardFileSystem(refs, asynchronous=True, skip_instance_cache=True, retries=0)
        for i in range(3):
            assert await fs._cat_file(str(i)) == b"0123456789"[i : i + 5]

    asyncio.run(use())
    assert len(numbers(http_server)) == 1


@pytest.mark.parametrize("known", [True, False], ids=["known to certifi", "unknown"])
def test_certifi_is_trusted_if_the_system_has_no_authorities(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, authority = certificate(tmp_path, "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nowhere"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "nowhere"))
    if known:
        monkeypatch.setattr(certifi, "where", lambda: authority)

    async def use() -> bytes:
        server = await asyncio.start_server(Script([RIGHT]).serve, "127.0.0.1", 0, ssl=context)
        refs = {"k": [f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/x", 0, 5]}
        try:
            return await RefShardFileSystem(refs, asynchronous=True, skip_instance_cache=True)._cat_file("k")
        finally:
            server.close()

    if known:
        assert asyncio.run(use()) == b"01234"
    else:
        with pytest.raises(ReferenceNotReachable, match="certificate"):
            asyncio.run(use())


def test_sockets_may_be_added_while_others_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event loop adds its sockets in its own thread, and counts the sockets of all loops."""
    monkeypatch.setattr(connections, "_sockets", weakref.WeakSet())
    address: Any = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def add(loop: asyncio.AbstractEventLoop) -> None:
        own = connections.LoopConnections(loop)
        for _ in range(20):
            opened = [own._make_socket(address) for _ in range(20)]
            for one in opened:
                one.close()

    loops = [asyncio.new_event_loop() for _ in range(4)]
    try:
        with ThreadPoolExecutor(len(loops)) as threads:
            list(threads.map(add, loops))
    finally:
        sys.setswitchinterval(interval)
        for loop in loops:
            loop.close()
