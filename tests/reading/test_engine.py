"""The engine reads keys over HTTP by few requests, and leaves no tasks or memory behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from typing import Any

import pytest
from fsspec.callbacks import Callback

from refshard_fs import ReferenceNotReachable, RefShardFileSystem
from refshard_fs.core.model import Load, Raw, Span
from refshard_fs.reading import prefetch
from refshard_fs.reading.dispatch import Block, Dispatch
from refshard_fs.reading.plan import MIB, Request
from refshard_fs.reading.readahead import ReadAhead
from tests.servers.http import RangeServer
from tests.support.chunked import CHUNK, Chunked
from tests.support.engine_reading import open_fs, select_options


@pytest.fixture
def chunked(http_server: RangeServer) -> Chunked:
    return Chunked(http_server)


@pytest.fixture
def fs(chunked: Chunked) -> RefShardFileSystem:
    return open_fs(chunked)


def morton(bits: int) -> list[int]:
    """Return the place in Morton order of each cell of a square with sides of ``2 ** bits`` cells."""
    side = 1 << bits
    return [
        sum(((row >> b & 1) << (2 * b + 1)) | ((column >> b & 1) << (2 * b)) for b in range(bits))
        for row in range(side)
        for column in range(side)
    ]


def test_keys_read_together_become_few_requests(chunked: Chunked, fs: RefShardFileSystem) -> None:
    keys = chunked.keys(range(100))
    out = fs.cat(keys)
    assert out == {key: chunked.chunk(i) for i, key in enumerate(keys)}
    assert chunked.ranges == [(0, 100)]
    stats = fs.stats()
    assert (stats["keys"], stats["requests"]) == (100, 1)
    assert stats["bytes_wanted"] == stats["bytes_fetched"] == 100 * CHUNK


def test_requests_have_at_most_max_block_bytes(chunked: Chunked) -> None:
    open_fs(chunked, max_block=20 * CHUNK).cat(chunked.keys(range(100)))
    assert chunked.ranges == [(i, i + 20) for i in range(0, 100, 20)]


def test_readers_of_one_key_share_a_request(chunked: Chunked, fs: RefShardFileSystem) -> None:
    async def read() -> list[bytes]:
        own = RefShardFileSystem(fo=fs.fo, asynchronous=True, skip_instance_cache=True)
        return await asyncio.gather(*[own._cat_file("a/7.0") for _ in range(5)])

    assert asyncio.run(read()) == [chunked.chunk(7)] * 5
    assert chunked.ranges == [(7, 8)]


def test_read_joins_the_request_that_holds_its_range(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    http_server.latency = 0.2

    async def read() -> None:
        fs = RefShardFileSystem(fo=chunked.refs(), asynchronous=True, skip_instance_cache=True)
        first = asyncio.create_task(fs._cat(chunked.keys([3, 4, 5])))
        await asyncio.sleep(0.05)
        inside = await fs._cat_file("a/4.0", start=10, end=20)
        assert inside == chunked.chunk(4)[10:20]
        await first

    asyncio.run(read())
    assert chunked.ranges == [(3, 6)]


def test_many_requests_in_one_batch_have_their_bytes_or_errors(chunked: Chunked) -> None:
    async def read() -> list[Any]:
        fs = RefShardFileSystem(fo=chunked.refs(), asynchronous=True, skip_instance_cache=True)
        keyspace, engine = await fs.source.keyspace(), fs.source.engine()
        assert engine.read_many(keyspace, [], []) == []
        requests = [Request("a/3.0"), Request("a/4.0", 1, 5), Request("a/999.0"), Request("a/5.0")]
        entries = [None, None, None, Span(chunked.url, 5 * CHUNK, 6 * CHUNK)]
        return await asyncio.gather(*engine.read_many(keyspace, requests, entries), return_exceptions=True)

    whole, part, missing, known = asyncio.run(read())
    assert (whole, part, known) == (chunked.chunk(3), chunked.chunk(4)[1:5], chunked.chunk(5))
    assert isinstance(missing, FileNotFoundError)
    assert chunked.ranges == [(3, 5), (5, 6)]


def test_far_ranges_stay_apart_and_near_ones_are_merged(chunked: Chunked) -> None:
    open_fs(chunked, max_gap=CHUNK).cat(chunked.keys([0, 2, 9]))
    assert chunked.ranges == [(0, 3), (9, 10)]


def test_large_range_is_fetched_in_parts(http_server: RangeServer) -> None:
    data = random.Random(1).randbytes(10 * MIB + 5)
    url = http_server.put("/large", data)
    fs = RefShardFileSystem(fo={"k": [url, 3, len(data) - 3]})
    assert fs.cat_file("k") == data[3:]
    asked = sorted((r.start, r.stop) for r in http_server.requests("/large"))
    assert len(asked) == 10
    assert asked[0][0] == 3
    assert asked[-1][1] == len(data)
    assert http_server.bytes_sent == len(data) - 3


def test_range_that_may_end_early_is_one_request(http_server: RangeServer) -> None:
    data = random.Random(1).randbytes(1000)
    span = Span(http_server.put("/short", data), 0, 64 * MIB, exact=False)

    async def read() -> bytes:
        fs = RefShardFileSystem(fo={}, asynchronous=True, skip_instance_cache=True)
        found: bytes = await fs.source.engine().need(Load(span, Raw()))
        return found

    assert asyncio.run(read()) == data
    assert len(http_server.requests("/short")) == 1


def test_range_outside_the_target_does_not_fail_other_ranges(chunked: Chunked) -> None:
    refs = chunked.refs()
    last = chunked.count - 1
    refs["beyond"] = [chunked.url, chunked.count * CHUNK - 10, 20]
    fs = RefShardFileSystem(fo=refs, retries=0)
    out = fs.cat([f"a/{last}.0", "beyond"], on_error="return")
    assert out[f"a/{last}.0"] == chunked.chunk(last)
    assert isinstance(out["beyond"], ReferenceNotReachable)


def test_missing_and_failing_keys_have_different_errors(chunked: Chunked) -> None:
    refs = chunked.refs()
    refs["gone"] = [chunked.url.replace("data.bin", "no.bin"), 0, 5]
    fs = RefShardFileSystem(fo=refs)
    out = fs.cat(["a/1.0", "gone", "a/999.0"], on_error="return")
    assert out["a/1.0"] == chunked.chunk(1)
    assert isinstance(out["gone"], ReferenceNotReachable)
    assert isinstance(out["a/999.0"], FileNotFoundError)


def test_key_larger_than_max_memory_is_copied_to_a_file(http_server: RangeServer, tmp_path: Any) -> None:
    data = random.Random(2).randbytes(20 * MIB)
    fs = RefShardFileSystem(fo={"k": [http_server.put("/large", data), 0, len(data)]}, max_memory=4 * MIB)
    fs.get_file("k", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == data
    assert http_server.bytes_sent == len(data)


def zarr_reads(fs: RefShardFileSystem, keys: list[str], together: int = 10) -> list[bytes]:
    """Read ``keys`` in order, ``together`` at a time, as zarr 3 does."""

    async def read() -> list[bytes]:
        slots = asyncio.Semaphore(together)
        own = RefShardFileSystem(fo=fs.fo, asynchronous=True, skip_instance_cache=True, max_gap=0, **select_options(fs))

        async def one(key: str) -> bytes:
            async with slots:
                data: bytes = await own._cat_file(key)
                return data

        return await asyncio.gather(*map(one, keys))

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("counts", "order"),
    [
        pytest.param([256], None, id="line"),
        pytest.param([16, 16], None, id="C"),
        pytest.param([16, 16], [(i % 16) * 16 + i // 16 for i in range(256)], id="Fortran"),
        pytest.param([16, 16], morton(4), id="Morton"),
    ],
)
def test_whole_array_takes_fewer_requests_than_chunks(
    http_server: RangeServer, counts: list[int], order: list[int] | None
) -> None:
    chunked = Chunked(http_server)
    http_server.latency = 0.005
    fs = RefShardFileSystem(fo=chunked.refs(counts, order))
    keys = [chunked.key(i, counts) for i in range(256)]
    expected = [chunked.chunk(i if order is None else order[i]) for i in range(256)]
    assert zarr_reads(fs, keys) == expected
    assert chunked.fetched == 256
    assert len(chunked.ranges) <= 160


@pytest.mark.parametrize(("seconds", "ahead"), [(0.001, 0), (0.02, 12), (0.05, 30)])
def test_slow_server_increases_readahead(
    http_server: RangeServer, seconds: float, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "MIB", 0)
    monkeypatch.setattr(prefetch, "BANDWIDTH", 1e7)
    monkeypatch.setattr(Dispatch, "find_latency", lambda self, url: seconds)
    chunked = Chunked(http_server)
    fs = RefShardFileSystem(fo=chunked.refs(), asynchronous=True, skip_instance_cache=True, max_gap=-1)

    async def read() -> None:
        keyspace, engine = await fs.source.keyspace(), fs.source.engine()
        keys = chunked.keys(range(0, 30, 3))
        entries = [Span(chunked.url, i * CHUNK, (i + 1) * CHUNK) for i in range(0, 30, 3)]
        asked = zip(keys, entries, strict=True)
        await asyncio.gather(*[engine.read(keyspace, Request(key), entry) for key, entry in asked])
        while engine.fetcher.requests.active or engine.fetcher.requests.has_queued:
            await engine.fetcher.requests.wait_for_change()

    asyncio.run(read())
    assert chunked.fetched == 10 + ahead


def test_loop_over_chunks_is_read_ahead_without_repeated_bytes(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    keys = chunked.keys(range(256))
    fs = RefShardFileSystem(fo=chunked.refs(), asynchronous=True, skip_instance_cache=True)

    async def read() -> None:
        for few in (keys[:5], keys[5:10]):
            await asyncio.gather(*map(fs._cat_file, few))
        for i in range(10, 256):
            assert await fs._cat_file(keys[i]) == chunked.chunk(i)
        assert fs.source.engine().fetcher.requests.used == 0

    asyncio.run(read())
    assert chunked.fetched == 256
    stats = fs.stats()
    assert (stats["keys"], stats["ahead_hits"]) == (256, 246)
    assert stats["bytes_wanted"] == stats["bytes_fetched"] == 256 * CHUNK


def test_bug_in_readahead_reaches_the_reader(chunked: Chunked, monkeypatch: pytest.MonkeyPatch) -> None:
    def observe(*_: Any, **__: Any) -> None:
        raise ArithmeticError("a bug")

    monkeypatch.setattr(ReadAhead, "observe", observe)
    with pytest.raises(ReferenceNotReachable, match="ArithmeticError: a bug"):
        zarr_reads(open_fs(chunked), chunked.keys(range(20)))


def test_loop_over_chunks_backwards_is_read_ahead(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    keys = chunked.keys(range(255, -1, -1))
    assert zarr_reads(open_fs(chunked), keys, together=1) == [chunked.chunk(i) for i in range(255, -1, -1)]
    assert chunked.fetched == 256
    assert len(chunked.ranges) <= 32


@pytest.mark.parametrize("together", [1, 10, 128])
def test_random_chunks_start_no_readahead(http_server: RangeServer, together: int) -> None:
    chunked = Chunked(http_server)
    chosen = sorted(random.Random(3).sample(range(0, 256, 2), 13))
    assert zarr_reads(open_fs(chunked), chunked.keys(chosen), together) == [chunked.chunk(i) for i in chosen]
    assert chunked.ranges == [(i, i + 1) for i in chosen]


def test_read_ahead_can_be_turned_off(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    zarr_reads(open_fs(chunked, readahead=0), chunked.keys(range(20)))
    assert chunked.fetched == 20


def test_keys_of_one_batch_start_no_readahead(chunked: Chunked, fs: RefShardFileSystem) -> None:
    fs.cat(chunked.keys(range(40)))
    assert chunked.fetched == 40


def test_missing_chunks_do_not_end_a_run(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    refs = chunked.refs()
    for i in range(0, 256, 5):
        del refs[f"a/{i}.0"]
    keys = [k for k in chunked.keys(range(256)) if k in refs]
    fs = RefShardFileSystem(fo=refs)

    async def read() -> None:
        own = RefShardFileSystem(fo=fs.fo, asynchronous=True, skip_instance_cache=True, max_gap=0)
        for first in range(0, 256, 8):
            some = chunked.keys(range(first, first + 8))
            out = await asyncio.gather(*map(own._cat_file, some), return_exceptions=True)
            for key, data in zip(some, out, strict=True):
                assert isinstance(data, FileNotFoundError) if key not in refs else isinstance(data, bytes)

    asyncio.run(read())
    assert chunked.fetched == len(keys)
    assert len(chunked.ranges) < len(keys) / 2


def test_failed_readahead_does_not_fail_reads(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    refs = chunked.refs()
    for i in range(40, 256):
        refs[f"a/{i}.0"] = [chunked.url.replace("data.bin", "gone.bin"), i * CHUNK, CHUNK]
    fs = RefShardFileSystem(fo=refs, retries=0)
    assert zarr_reads(fs, chunked.keys(range(40))) == [chunked.chunk(i) for i in range(40)]


def test_cancelled_read_leaves_no_task_and_no_memory(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    http_server.latency = 5

    async def read() -> None:
        fs = RefShardFileSystem(fo=chunked.refs(), asynchronous=True, skip_instance_cache=True)
        before = asyncio.all_tasks()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await asyncio.gather(*map(fs._cat_file, chunked.keys(range(10))))
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() - before == set()
        engine = fs.source.engine()
        assert (engine.fetcher.requests.used, engine.fetcher.requests.active) == (0, 0)

    asyncio.run(read())


@pytest.mark.parametrize("ticks", range(4))
def test_closed_engine_ends_waiting_reads(http_server: RangeServer, ticks: int) -> None:
    http_server.latency = 0.05
    refs = {"k": [http_server.put("/k", b"0123456789")]}

    async def read() -> None:
        fs = RefShardFileSystem(fo=refs, asynchronous=True, skip_instance_cache=True)
        keyspace, engine = await fs.source.keyspace(), fs.source.engine()
        futures = [engine.read(keyspace, Request("k", start)) for start in (-3, -5)]
        for _ in range(ticks):
            await asyncio.sleep(0)
        await engine.close()
        async with asyncio.timeout(10):
            await asyncio.gather(*futures, return_exceptions=True)
        assert engine.fetcher.requests.used == engine.fetcher.requests.active == 0

    asyncio.run(read())


def test_cancelled_read_does_not_cancel_another_of_its_key(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    http_server.latency = 0.2

    async def read() -> None:
        fs = RefShardFileSystem(fo=chunked.refs(), asynchronous=True, skip_instance_cache=True)
        one, other = (asyncio.create_task(fs._cat_file("a/3.0")) for _ in range(2))
        await asyncio.sleep(0.05)
        one.cancel()
        assert await other == chunked.chunk(3)

    asyncio.run(read())
    assert chunked.ranges == [(3, 4)]


def test_memory_is_released_after_all_reads(http_server: RangeServer) -> None:
    chunked = Chunked(http_server, 512)  # too large to be fetched whole

    async def read() -> None:
        fs = RefShardFileSystem(fo=chunked.refs(), asynchronous=True, skip_instance_cache=True)
        for key in chunked.keys(range(512)):
            await fs._cat_file(key)
        assert fs.source.engine().fetcher.requests.used == 0

    asyncio.run(read())


def test_resolve_locates_bytes_without_reading(chunked: Chunked, fs: RefShardFileSystem) -> None:
    assert fs.resolve("a/2.0") == (chunked.url, 2 * CHUNK, 3 * CHUNK)
    inline = fs.resolve(".zgroup")
    assert inline == b'{"zarr_format": 2}'
    with pytest.raises(FileNotFoundError):
        fs.resolve("a/999.0")
    assert chunked.ranges == []


def test_plan_equals_the_requests_of_a_read(chunked: Chunked, fs: RefShardFileSystem) -> None:
    keys = [*chunked.keys([0, 1, 2, 50]), ".zgroup"]
    planned = fs.plan(keys)
    assert chunked.ranges == []
    assert [(p.start // CHUNK, p.stop // CHUNK, p.keys) for p in planned] == [
        (0, 3, tuple(keys[:3])),
        (50, 51, (keys[3],)),
    ]
    fs.cat(keys)
    assert chunked.ranges == [(p.start // CHUNK, p.stop // CHUNK) for p in planned]


def test_block_cache_is_used_until_invalidated(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    fs = open_fs(chunked, block_cache=10 * CHUNK)
    for _ in range(3):
        assert fs.cat_file("a/5.0") == chunked.chunk(5)
    assert chunked.ranges == [(5, 6)]
    assert fs.stats()["cache_hits"] == 2
    fs.invalidate_cache()
    assert fs.cat_file("a/5.0") == chunked.chunk(5)
    assert len(chunked.ranges) == 2


def test_without_a_block_cache_a_chunk_is_read_again(chunked: Chunked, fs: RefShardFileSystem) -> None:
    fs.cat_file("a/5.0")
    fs.cat_file("a/5.0")
    assert len(chunked.ranges) == 2


def test_read_bytes_are_freed_without_garbage_collection(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    fs = open_fs(chunked)
    gc.collect()
    gc.disable()
    try:
        fs.prefetch(chunked.keys(range(100)))
        for key in chunked.keys(range(100)):
            fs.cat_file(key)
        kept = [o.data for o in gc.get_objects() if isinstance(o, Block) and o.data is not None]
    finally:
        gc.enable()
    assert kept == []


def test_request_leaves_a_debug_line(chunked: Chunked, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "refshard_fs"):
        open_fs(chunked).cat(chunked.keys([3, 4]))
    (line,) = [r.getMessage() for r in caplog.records if r.name == "refshard_fs.targets"]
    assert f"{chunked.url} bytes={3 * CHUNK}-{5 * CHUNK - 1}: 206, {2 * CHUNK} bytes" in line


def test_callbacks_count_keys_of_cat_and_bytes_of_get(http_server: RangeServer, tmp_path: Any) -> None:
    chunked = Chunked(http_server)
    cat, get = Callback(), Callback()
    open_fs(chunked).cat(chunked.keys(range(7)), callback=cat)
    assert (cat.size, cat.value) == (7, 7)
    data = bytes(9 * MIB)
    fs = RefShardFileSystem(fo={"k": [http_server.put("/large", data), 0, len(data)]})
    fs.get_file("k", str(tmp_path / "out"), callback=get)
    assert (get.size, get.value) == (len(data), len(data))
