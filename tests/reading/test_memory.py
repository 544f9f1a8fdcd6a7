"""All memory for reading a source is counted together, and stays within ``max_memory``."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.lru import LRU
from refshard_fs.reading.memory import Budget, Share, SharedBudget, SharedMemory
from refshard_fs.reading.selection import ANSWER
from tests.servers.process import RangeServerProcess

SIZE, COUNT, MEMORY = 1 << 18, 96, 8 << 20


def in_loop(use: Any) -> None:
    async def run() -> None:
        use()

    asyncio.run(run())


def test_shares_and_caches_have_one_bound_together() -> None:
    def use() -> None:
        cache: LRU[str, bytes] = LRU(40)
        memory = SharedMemory(100, [cache])
        one, other = Share(memory), Share(memory)
        assert one.take([30, 30]) == 2
        cache.put("a", b"", 40)
        assert memory.used_bytes == 100
        assert other.take([20, 20, 20]) == 2  # the cache is emptied
        assert (cache.weight, memory.used_bytes) == (0, 100)
        one.give_back(60)
        other.give_back(40)
        assert memory.used_bytes == 0

    in_loop(use)


def test_empty_share_may_exceed_the_bound() -> None:
    def use() -> None:
        memory = SharedMemory(100)
        one, other = Share(memory), Share(memory)
        assert one.take([100]) == 1
        assert other.take([70, 1]) == 1

    in_loop(use)


def test_request_with_reserved_memory_begins_if_memory_is_full() -> None:
    def use() -> None:
        budget = SharedBudget(Budget(memory=100))
        selection, dispatch = Share(budget), Share(budget)
        assert selection.take([100]) == 1
        dispatch.used = 10
        assert not budget.begin(dispatch, "host", 1, 100)
        assert budget.begin(dispatch, "host", 0, 100)

    in_loop(use)


@pytest.mark.parametrize("codec", [None, {"id": "zlib", "level": 1}], ids=["plain", "zlib"])
def test_total_memory_is_within_max_memory(codec: dict[str, Any] | None) -> None:
    """Count the memory of a selection, of an announcement, and of chunks that a loop reads in parts."""
    sync = pytest.importorskip("zarr.core.sync").sync
    zarr, numcodecs = pytest.importorskip("zarr"), pytest.importorskip("numcodecs")
    direct_array = pytest.importorskip("refshard_fs.direct_array")
    group_metadata = pytest.importorskip("refshard_fs.group_metadata")
    xr, indexing = pytest.importorskip("xarray"), pytest.importorskip("xarray.core.indexing")
    values = np.random.default_rng(1).integers(0, 16, (1, SIZE), np.uint8)
    chunk = values.tobytes() if codec is None else bytes(numcodecs.registry.get_codec(dict(codec)).encode(values))
    meta = {"zarr_format": 2, "shape": [COUNT, SIZE], "chunks": [1, SIZE], "dtype": "|u1", "order": "C"}
    refs: dict[str, Any] = {"a/.zarray": json.dumps({**meta, "compressor": codec, "filters": None, "fill_value": None})}
    with RangeServerProcess() as server:  # another process, so that its memory does not count
        url = server.put("/x", chunk * COUNT)
        refs |= {f"a/{i}.0": [url, i * len(chunk), len(chunk)] for i in range(COUNT)}
        fs = RefShardFileSystem(refs, asynchronous=True, max_memory=MEMORY, skip_instance_cache=True)
        array = zarr.open_array(zarr.storage.FsspecStore(fs, read_only=True, path=""), path="a", mode="r")
        node = group_metadata.ArrayNode("a", json.loads(refs["a/.zarray"]), {})
        steps = xr.Variable(("x", "y"), indexing.LazilyIndexedArray(direct_array.DirectArray.of(fs, node)))
        array[:4]  # import modules and open connections before the measurement
        tracemalloc.start()
        for step in range(COUNT // 2):
            steps[step, : SIZE // 2].load()
        held = tracemalloc.get_traced_memory()[0]
        sync(fs._prefetch([f"a/{i}.0" for i in range(COUNT)]))
        announced = tracemalloc.get_traced_memory()[0]
        found = array[:]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (found == values).all()
    assert fs.source.decoded.weight <= MEMORY // 8
    assert max(held, announced) < MEMORY + ANSWER
    assert peak < found.nbytes + MEMORY + ANSWER
