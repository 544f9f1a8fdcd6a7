"""Count the requests for reads of a sharded array over HTTP: 10 shards of 10×10 inner chunks of 57,600 bytes."""

from __future__ import annotations

import asyncio
import random
import shutil
import warnings
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import DamagedIndex
from refshard_fs.reading.memory import Budget
from tests.servers.http import RangeServer
from tests.support.shard_writers import IS_ZARR_2, open_source

if IS_ZARR_2:
    pytest.skip("zarr 2 writes no shards of version 3", allow_module_level=True)

import zarr

SIDE = 120  # elements of four bytes along a chunk
CHUNK = SIDE * SIDE * 4
MIB = 1 << 20


class Counter:
    """Read an array over HTTP by zarr, through a new filesystem, and count the requests since `clear`."""

    def __init__(self, server: RangeServer, data: np.ndarray[Any, Any], **options: Any) -> None:
        self.server = server
        self.data = data
        self.fs = open_source(f"{server.url}/a", asynchronous=True, **options)
        self.array = zarr.open_array(zarr.storage.FsspecStore(self.fs, path=""), mode="r")
        server.clear()

    def read(self, *slices: slice) -> int:
        """Read ``slices``, check the values, and return the number of requests."""
        before = len(self.server.requests())
        assert np.array_equal(self.array[slices], self.data[slices])
        return len(self.server.requests()) - before

    def chunk(self, number: int) -> int:
        row, column = divmod(number, 10)
        return self.read(slice(row * SIDE, (row + 1) * SIDE), slice(column * SIDE, (column + 1) * SIDE))


@pytest.fixture(scope="module")
def data() -> np.ndarray[Any, Any]:
    return np.arange(100 * SIDE * 10 * SIDE, dtype="<u4").reshape(100 * SIDE, 10 * SIDE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data: np.ndarray[Any, Any]) -> Path:
    root = tmp_path_factory.mktemp("requests")
    written = zarr.create_array(
        str(root / "a"),
        shape=data.shape,
        shards=(10 * SIDE, 10 * SIDE),
        chunks=(SIDE, SIDE),
        dtype=data.dtype,
        compressors=None,
    )
    written[...] = data
    return root


@pytest.fixture
def counter(folder: Path, data: np.ndarray[Any, Any]) -> Iterator[Counter]:
    with RangeServer(directory=folder) as server:
        yield Counter(server, data)


def test_first_chunk_takes_two_requests_and_later_ones_one(counter: Counter) -> None:
    assert counter.chunk(437) == 2
    assert counter.chunk(437) <= 1
    assert counter.chunk(438) <= 1


def test_row_of_chunks_takes_few_requests(counter: Counter) -> None:
    assert counter.read(slice(0, SIDE), slice(None)) <= 4
    assert counter.server.log.bytes_sent <= 1.4 * MIB


def test_column_of_chunks_takes_few_requests(counter: Counter) -> None:
    assert counter.read(slice(0, 10 * SIDE), slice(0, SIDE)) <= 4
    assert counter.server.log.bytes_sent <= 1.4 * MIB


@pytest.mark.parametrize("concurrency", [10, 128])
def test_full_shard_takes_few_requests(counter: Counter, concurrency: int) -> None:
    with zarr.config.set({"async.concurrency": concurrency}):
        assert counter.read(slice(20 * SIDE, 30 * SIDE), slice(None)) <= 2
    assert counter.server.log.bytes_sent <= 1.1 * 100 * CHUNK


def test_column_through_all_shards_takes_two_rounds(counter: Counter) -> None:
    """One round for all indexes, and one for all chunks: zarr reads ten at a time, but passes the whole selection."""
    counter.server.latency = 0.05
    assert counter.read(slice(None), slice(0, SIDE)) <= 44
    assert counter.server.log.bytes_sent <= 1.5 * 100 * CHUNK
    requests = counter.server.requests()
    kinds = [kind for kind, _ in groupby("index" if r.sent == 1604 else "chunks" for r in requests)]
    assert kinds == ["index", "chunks"]


def test_reads_of_single_chunks_start_readahead(folder: Path, data: np.ndarray[Any, Any]) -> None:
    with RangeServer(directory=folder) as server:
        fs = open_source(f"{server.url}/a", asynchronous=True)

        async def column() -> None:  # the first read of a chunk also reads the metadata
            for row in range(100):
                chunk = data[row * SIDE : (row + 1) * SIDE, :SIDE]
                assert await fs._cat_file(f"c/{row}/0") == chunk.tobytes()

        asyncio.run(column())
        assert fs.stats()["ahead_hits"] > 50
        assert fs.stats()["ahead_wasted"] == 0


def test_next_column_reads_no_index(counter: Counter) -> None:
    counter.server.latency = 0.05
    counter.read(slice(None), slice(0, SIDE))
    counter.server.clear()
    assert counter.read(slice(None), slice(5 * SIDE, 6 * SIDE)) <= 30
    assert counter.server.log.bytes_sent <= 1.5 * 100 * CHUNK
    assert all(r.sent != 1604 for r in counter.server.requests())


@pytest.mark.parametrize("concurrency", [10, 128])
def test_several_whole_shards_are_read_with_their_indexes(counter: Counter, concurrency: int) -> None:
    """No bytes of the following shards are read."""
    counter.server.latency = 0.05
    with zarr.config.set({"async.concurrency": concurrency}):
        assert counter.read(slice(20 * SIDE, 50 * SIDE), slice(None)) <= 6
    requests = counter.server.requests()
    assert counter.server.log.peak == len(requests)
    whole = [i for i, r in enumerate(requests) if r.sent == 100 * CHUNK + 1604]
    assert len(whole) == 3
    assert counter.server.log.bytes_sent <= 1.05 * 300 * CHUNK


def test_random_chunks_read_each_index_once(counter: Counter) -> None:
    numbers = random.Random(1).sample(range(1000), 100)
    assert sum(map(counter.chunk, numbers)) <= 110
    assert sum(map(counter.chunk, numbers)) <= 100
    assert (
        counter.server.log.bytes_sent <= 200 * CHUNK + 10 * 1604 + Budget().memory // 2
    )  # which windows may fetch in vain


def test_random_chunks_are_fetched_exactly_without_readahead(folder: Path, data: np.ndarray[Any, Any]) -> None:
    with RangeServer(directory=folder) as server:
        counter = Counter(server, data, readahead=0)
        numbers = random.Random(1).sample(range(1000), 100)
        assert sum(map(counter.chunk, numbers)) <= 110
        assert sum(map(counter.chunk, numbers)) <= 100
        assert server.log.bytes_sent <= 200 * CHUNK + 10 * 1604


def test_many_keys_at_once_take_one_round_of_indexes(counter: Counter) -> None:
    fs = open_source(f"{counter.server.url}/a")
    fs.cat_file("zarr.json")
    counter.server.clear()
    keys = [f"c/{row}/3" for row in range(5, 100, 10)]
    found = fs.cat(keys)
    assert all(len(found[key]) == CHUNK for key in keys)
    assert len(counter.server.requests()) == 20
    kinds = [r.stop - r.start for r in counter.server.requests() if r.start is not None and r.stop is not None]
    assert sorted(kinds[:10]) == [1604] * 10  # all indexes before any chunk


def test_whole_shards_are_one_request_each(folder: Path, data: np.ndarray[Any, Any]) -> None:
    with RangeServer(directory=folder) as server:
        fs = open_source(f"{server.url}/a", shards="whole", asynchronous=True)
        array = zarr.open_array(zarr.storage.FsspecStore(fs, path=""), mode="r")
        server.clear()
        assert np.array_equal(array[: 10 * SIDE], data[: 10 * SIDE])
        assert len(server.requests()) == 1


def test_whole_shard_and_its_index_are_requested_together(counter: Counter) -> None:
    with zarr.config.set({"async.concurrency": 128}):
        assert counter.read(slice(20 * SIDE, 30 * SIDE), slice(None)) == 2
    data, index = sorted(counter.server.requests(), key=lambda r: r.start or 0)
    assert (data.start, data.stop) == (0, 100 * CHUNK + 1604)
    assert index.sent == 1604


def test_prefetch_with_a_damaged_shard_fetches_other_shards(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "a", tmp_path / "a")
    shard = tmp_path / "a/c/0/0"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with RangeServer(directory=tmp_path) as server:
        fs = open_source(f"{server.url}/a")
        keys = [f"c/{row}/3" for row in range(20)]
        fs.prefetch(keys)
        server.clear()
        for key in keys[10:]:
            _, start, stop = fs.resolve(key)
            assert fs.cat_file(key) == (tmp_path / "a/c/1/0").read_bytes()[start:stop]
        assert server.requests() == []
        with pytest.raises(DamagedIndex, match="checksum"):
            fs.cat_file(keys[0])


def test_cancelled_prefetch_of_whole_shards_frees_requests(counter: Counter) -> None:
    async def announce() -> None:
        fs = open_source(f"{counter.server.url}/a", asynchronous=True)
        await fs._cat_file("zarr.json")
        counter.server.latency = 5
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await fs._prefetch("", (slice(0, 20 * SIDE), slice(None)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert fs.source.engine().fetcher.requests.used == 0

    asyncio.run(announce())


@pytest.mark.parametrize("consolidates", [True, False])
@pytest.mark.parametrize("rows", [slice(None), slice(5, 6), slice(4, 8)])
def test_missing_shards_are_requested_once(tmp_path: Path, consolidates: bool, rows: slice) -> None:
    group = zarr.open_group(str(tmp_path / "g"), mode="w", zarr_format=3)
    array = group.create_array("a", shape=(12, 4), shards=(4, 4), chunks=(2, 2), dtype="i4", fill_value=7)
    array[:4] = 1
    if consolidates:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the specification of zarr 3 has no consolidated metadata
            zarr.consolidate_metadata(str(tmp_path / "g"))
    with RangeServer(directory=tmp_path) as server:
        fs = open_source(f"{server.url}/g", asynchronous=True)
        shown = zarr.open_group(zarr.storage.FsspecStore(fs, path=""), mode="r")["a"]
        server.clear()
        for _ in range(2):
            assert np.array_equal(shown[rows], array[rows])
            missing = [request.path for request in server.requests() if request.status == 404]
            assert sorted(missing) == sorted(set(missing))
            server.clear()
