"""Requests to a host, and bytes in memory, stay within their limits, which all event loops share."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.chunked import CHUNK, Chunked
from tests.support.engine_reading import open_fs


@pytest.fixture
def chunked(http_server: RangeServer) -> Chunked:
    return Chunked(http_server)


@pytest.fixture
def fs(chunked: Chunked) -> RefShardFileSystem:
    return open_fs(chunked)


def test_concurrency_bounds_requests_in_flight(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    http_server.latency = 0.02
    open_fs(chunked, max_gap=-1, concurrency=5, readahead=0).cat(chunked.keys(range(0, 100, 2)))
    assert http_server.log.peak <= 5
    assert len(chunked.ranges) == 50


def test_max_memory_bounds_requests_in_flight(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    http_server.latency = 0.02
    open_fs(chunked, max_gap=-1, max_memory=3 * CHUNK).cat(chunked.keys(range(0, 60, 2)))
    assert http_server.log.peak <= 3


@pytest.mark.parametrize(("options", "most"), [({"max_memory": 3 * CHUNK}, 3), ({"concurrency": 3}, 3)])
def test_event_loops_share_the_bounds(http_server: RangeServer, options: dict[str, int], most: int) -> None:
    chunked = Chunked(http_server)
    http_server.latency = 0.02
    fs = open_fs(chunked, asynchronous=True, max_gap=-1, readahead=0, **options)
    begun = threading.Barrier(2, timeout=60)

    async def read(rows: range) -> dict[str, bytes]:
        begun.wait()
        return await fs._cat(chunked.keys(rows))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(asyncio.run, [read(range(0, 40, 2)), read(range(41, 80, 2))]))
    assert found[0] | found[1] == {key: chunked.chunk(int(key[2:-2])) for some in found for key in some}
    assert len(found[0] | found[1]) == 40
    assert http_server.log.peak <= most + 1, "a loop without any request may exceed the limit by one"


def test_stalled_loop_does_not_block_others(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    fs = open_fs(chunked, asynchronous=True, max_gap=-1, max_memory=4 * CHUNK)
    stopped = asyncio.new_event_loop()
    try:
        stopped.run_until_complete(fs._prefetch(chunked.keys(range(0, 20, 2))))
        keys = chunked.keys(range(1, 20, 2))
        assert asyncio.run(fs._cat(keys)) == {key: chunked.chunk(int(key[2:-2])) for key in keys}
    finally:
        stopped.run_until_complete(stopped.shutdown_asyncgens())
        stopped.close()


def test_range_larger_than_the_budget_is_read(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    fs = open_fs(chunked, max_memory=CHUNK // 2)
    assert fs.cat(chunked.keys([0, 100])) == {"a/0.0": chunked.chunk(0), "a/100.0": chunked.chunk(100)}
