"""Announced data are fetched once, by few requests, and held until they are read, within the limit of memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fsspec.asyn import get_loop, sync

from refshard_fs import RefShardError, RefShardFileSystem, TargetNotAllowed
from refshard_fs.formats.hdf5.source import HDF5KeySpace
from refshard_fs.reading import fetch, prefetch
from tests.servers.http import RangeServer
from tests.support.chunked import CHUNK, Chunked


@pytest.fixture
def chunked(http_server: RangeServer) -> Chunked:
    return Chunked(http_server)


def open_fs(chunked: Chunked, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo=chunked.refs(), skip_instance_cache=True, max_gap=0, **options)


def test_announced_keys_are_fetched_together(chunked: Chunked) -> None:
    fs = open_fs(chunked)
    keys = chunked.keys([3, 4, 5, 90])
    fs.prefetch(keys)
    assert chunked.ranges == [(3, 6), (90, 91)]
    for i in (90, 4, 3, 5):
        assert fs.cat_file(f"a/{i}.0") == chunked.chunk(i)
    assert len(chunked.ranges) == 2
    assert fs.stats()["ahead_hits"] == 4


def test_distant_chunks_are_fetched_in_one_round(chunked: Chunked) -> None:
    numbers = range(0, 60, 2)
    keys = chunked.keys(numbers)
    chunked.server.latency = 0.5
    fs = RefShardFileSystem(chunked.refs(), skip_instance_cache=True, max_gap=-1)
    fs.prefetch(keys)
    assert chunked.server.log.peak == len(keys)
    assert fs.cat(keys) == {key: chunked.chunk(i) for i, key in zip(numbers, keys, strict=True)}


def test_prefetched_chunk_is_released_after_its_first_read(chunked: Chunked) -> None:
    fs = open_fs(chunked)
    fs.prefetch(["a/1.0"])
    fs.cat_file("a/1.0")
    fs.cat_file("a/1.0")
    assert len(chunked.ranges) == 2


@pytest.mark.parametrize(
    ("selection", "mode", "numbers"),
    [
        (np.s_[10:20], "numpy", range(10, 20)),
        (np.s_[::50], "numpy", range(0, 256, 50)),
        (7, "numpy", [7]),
        (([1, 200, 3], slice(0, 5)), "numpy", [1, 3, 200]),
        (([1, 200], [5, 6]), "orthogonal", [1, 200]),
        (slice(2, 4), "block", [2, 3]),
        (None, "numpy", range(256)),
    ],
)
def test_selection_fetches_exactly_its_chunks(chunked: Chunked, selection: Any, mode: Any, numbers: Any) -> None:
    fs = open_fs(chunked)
    fs.prefetch("a", selection, mode=mode)
    covered = [i for start, stop in chunked.ranges for i in range(start, stop)]
    assert covered == sorted(numbers)
    out = fs.cat(chunked.keys(list(numbers)))
    assert out == {key: chunked.chunk(i) for i, key in zip(numbers, chunked.keys(list(numbers)), strict=True)}
    assert chunked.fetched == len(list(numbers))


def test_announced_reads_start_no_read_ahead(chunked: Chunked) -> None:
    fs = open_fs(chunked)
    fs.prefetch("a", slice(0, 60))
    for key in chunked.keys(range(60)):
        fs.cat_file(key)
    assert chunked.fetched == 60


def test_other_chunk_is_read_while_announced_chunks_arrive(chunked: Chunked) -> None:
    fs = open_fs(chunked)
    fs.prefetch("a", slice(0, 10), wait=False)
    assert fs.cat_file("a/100.0") == chunked.chunk(100)
    assert fs.cat(chunked.keys(range(10))) == {k: chunked.chunk(i) for i, k in enumerate(chunked.keys(range(10)))}
    assert chunked.fetched == 11


def test_announcement_beyond_the_budget_is_fetched_in_waves(chunked: Chunked) -> None:
    fs = open_fs(chunked, max_memory=40 * CHUNK, max_block=10 * CHUNK)
    fs.prefetch("a", ...)
    assert 0 < chunked.fetched <= 40
    for i, key in enumerate(chunked.keys(range(256))):
        assert fs.cat_file(key) == chunked.chunk(i)
    assert chunked.fetched == 256
    assert len(chunked.ranges) == 26


@pytest.mark.parametrize("servers", [1, 3])
def test_announcement_larger_than_memory_is_read(servers: int) -> None:
    """The first parts of a range fill the memory, and must stay there until the other parts arrive."""
    size = 5 << 20
    data = random.Random(1).randbytes(size)

    async def read(urls: list[str]) -> None:
        keys = {f"k/{i}": [url, 0, size] for i, url in enumerate(urls)}
        fs = RefShardFileSystem(keys, asynchronous=True, skip_instance_cache=True, max_memory=4 << 20)
        await fs._prefetch([*keys])
        async with asyncio.timeout(60):
            assert [await fs._cat_file(key) for key in keys] == [data] * servers
        requests = fs.source.engine().fetcher.requests
        assert (requests.used, requests.active) == (0, 0)

    with contextlib.ExitStack() as stack:
        asyncio.run(read([stack.enter_context(RangeServer()).put("/x", data) for _ in range(servers)]))


def test_announcement_beyond_the_budget_is_read_in_random_order(chunked: Chunked) -> None:
    fs = open_fs(chunked, max_memory=40 * CHUNK, max_block=10 * CHUNK)
    fs.prefetch("a", ...)
    order = random.Random(4).sample(range(256), 256)
    for i in order:
        assert fs.cat_file(f"a/{i}.0") == chunked.chunk(i)


def test_reader_uses_an_announcement_from_a_thread(chunked: Chunked) -> None:
    fs = open_fs(chunked, asynchronous=True)

    async def read() -> list[bytes]:
        await fs._cat_file("a/.zarray")
        await asyncio.to_thread(fs.prefetch, "a", slice(0, 20))
        assert len(chunked.ranges) == 1
        return await asyncio.gather(*map(fs._cat_file, chunked.keys(range(20))))

    assert asyncio.run(read()) == [chunked.chunk(i) for i in range(20)]
    assert len(chunked.ranges) == 1


def test_threads_may_announce_and_read_at_once(chunked: Chunked) -> None:
    fs = open_fs(chunked)
    failed: list[object] = []

    def work(first: int) -> None:
        try:
            fs.prefetch("a", slice(first, first + 32))
            for i in range(first, first + 32):
                assert fs.cat_file(f"a/{i}.0") == chunked.chunk(i)
        except BaseException as e:  # shown by the assertion below
            failed.append(e)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 256, 32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert chunked.fetched == 256


def test_prefetch_leaves_errors_to_the_reads(chunked: Chunked) -> None:
    refs = chunked.refs()
    refs["a/3.0"] = [chunked.url + ".gone", 0, CHUNK]
    del refs["a/4.0"]
    fs = RefShardFileSystem(fo=refs, retries=0)
    fs.prefetch("a", slice(2, 6))
    out = fs.cat(chunked.keys([2, 3, 4, 5]), on_error="return")
    assert out["a/2.0"] == chunked.chunk(2)
    assert "a/3.0" in str(out["a/3.0"])
    assert isinstance(out["a/4.0"], FileNotFoundError)
    assert out["a/5.0"] == chunked.chunk(5)


def test_inline_and_local_data_may_be_announced(tmp_path: Any) -> None:
    (tmp_path / "x").write_bytes(b"0123")
    fs = RefShardFileSystem(fo={"k": "text", "x": [str(tmp_path / "x"), 1, 2]})
    fs.prefetch(["k", "x"])
    assert fs.cat(["k", "x"]) == {"k": b"text", "x": b"12"}


def test_invalid_announcement_is_an_error(chunked: Chunked) -> None:
    fs = open_fs(chunked)
    with pytest.raises(FileNotFoundError, match="no array 'b'"):
        fs.prefetch("b", 0)
    with pytest.raises(IndexError):
        fs.prefetch("a", 256)
    with pytest.raises(TypeError):
        fs.prefetch(["a/0.0"], 0)


def test_cancelled_prefetch_leaves_no_task_and_no_memory(http_server: RangeServer) -> None:
    chunked = Chunked(http_server)
    http_server.latency = 5

    async def announce() -> None:
        fs = open_fs(chunked, asynchronous=True)
        before = asyncio.all_tasks()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await fs._prefetch("a", ...)
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() - before == set()
        assert fs.source.engine().fetcher.requests.used == 0

    asyncio.run(announce())


def test_write_after_prefetch_is_read(chunked: Chunked) -> None:
    fs = open_fs(chunked, mode="a")
    fs.pipe_file("a/9.0", b"edited before")
    fs.prefetch(chunked.keys([3, 4, 9]))
    fs.pipe_file("a/3.0", b"new")
    fs.rm_file("a/4.0")
    assert (fs.cat_file("a/3.0"), fs.cat_file("a/9.0")) == (b"new", b"edited before")
    assert not fs.exists("a/4.0")
    with pytest.raises(FileNotFoundError):
        fs.cat_file("a/4.0")
    fs.discard()


def test_unread_announcement_expires(chunked: Chunked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "UNREAD_SECONDS", 0.4)

    async def announce() -> None:
        fs = open_fs(chunked, asynchronous=True, max_memory=40 * CHUNK, max_block=10 * CHUNK)
        await fs._prefetch("a", ...)
        requests = fs.source.engine().fetcher.requests
        assert requests.used > 0
        async with asyncio.timeout(10):
            while requests.used or requests.active:  # noqa: ASYNC110  # nothing changes when a timer begins
                await asyncio.sleep(0.01)
        assert chunked.fetched <= 40  # the other announced chunks are not fetched, although memory is free again
        await fs._prefetch(chunked.keys([200, 201]))
        fetched = chunked.fetched
        assert await fs._cat_file("a/200.0") == chunked.chunk(200)
        assert chunked.fetched == fetched

    asyncio.run(announce())


def test_announcement_in_use_does_not_expire(chunked: Chunked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "UNREAD_SECONDS", 0.3)

    async def read() -> None:
        fs = open_fs(chunked, asynchronous=True)
        keys = chunked.keys(range(40))
        await fs._prefetch(keys)
        for at, key in enumerate(keys):
            await asyncio.sleep(0.02)
            assert await fs._cat_file(key) == chunked.chunk(at)

    asyncio.run(read())
    assert chunked.fetched == 40


@pytest.mark.case(id="P31")
def test_refused_chunk_does_not_end_the_prefetch_of_others(http_server: RangeServer) -> None:
    url = http_server.put("/x", bytes(range(100)))
    refs: dict[str, Any] = {f"k{i}": [url, i * 10, 10] for i in range(10)}
    refs["bad"] = ["http://127.0.0.2:9/x", 0, 10]
    fs = RefShardFileSystem(http_server.put("/refs.json", json.dumps(refs).encode()), max_gap=-1)
    fs.prefetch(["k0", "bad", *list(refs)[1:10]])
    before = len(http_server.requests())
    assert [fs.cat_file(f"k{i}") for i in range(10)] == [bytes(range(i * 10, i * 10 + 10)) for i in range(10)]
    assert len(http_server.requests()) == before
    with pytest.raises(TargetNotAllowed):
        fs.cat_file("bad")


@pytest.mark.usefixtures("large_files")
def test_chunks_fetched_ahead_are_rarely_looked_up_again(
    http_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(1).random((128, 64, 64), "f4")
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file.create_dataset("v", data=values, chunks=(1, 64, 64))
    looked_up: list[str] = []
    make_lookups = HDF5KeySpace.make_lookups

    def counting(self: HDF5KeySpace, keys: Sequence[str]) -> Any:
        looked_up.extend(keys)
        return make_lookups(self, keys)

    monkeypatch.setattr(HDF5KeySpace, "make_lookups", counting)
    url = http_server.put("/x.nc", (tmp_path / "x.nc").read_bytes())
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    keys = [f"v/{step}.0.0" for step in range(128)]

    async def finish_lookups() -> None:
        await asyncio.gather(*fs.source.engine()._tasks)

    for first in range(0, 128, 8):
        some = keys[first : first + 8]
        read = fs.source.read_chunks(some, {})
        assert list(read) == [step.tobytes() for step in values[first : first + 8]]
        sync(get_loop(), finish_lookups)
    assert fs.stats()["ahead_hits"] >= 32
    assert len(looked_up) < 160


@pytest.fixture
def store(http_server: RangeServer) -> str:
    """Return the URL of a zarr store with 256 chunks; chunk 7 and every tenth one do not exist."""
    refs = Chunked(http_server).refs()
    for key, value in refs.items():
        if isinstance(value, str):
            http_server.put(f"/store/{key}", value.encode())
        elif (number := value[1] // CHUNK) % 10 and number != 7:
            http_server.put(f"/store/{key}", Chunked.chunk(number))
    return f"{http_server.url}/store"


def read_in_turn(fs: RefShardFileSystem, numbers: Sequence[int]) -> None:
    """Read chunks of the store one after the other, and check their bytes."""
    for i in numbers:
        if i % 10 == 0 or i == 7:
            with pytest.raises(FileNotFoundError):
                fs.cat_file(f"a/{i}.0")
        else:
            assert fs.cat_file(f"a/{i}.0") == Chunked.chunk(i)


def chunk_requests(server: RangeServer) -> list[str]:
    return [request.path for request in server.requests() if request.path.endswith(".0")]


def test_objects_fetched_ahead_are_requested_once(store: str, http_server: RangeServer) -> None:
    """Objects that do not exist are requested once, too."""
    http_server.latency = 0.02
    fs = RefShardFileSystem(store, skip_instance_cache=True)
    read_in_turn(fs, range(256))
    requests = chunk_requests(http_server)
    assert len(requests) == len(set(requests)) == 256
    assert fs.stats()["ahead_hits"] > 200
    assert fs.stats()["ahead_wasted"] == 0

    async def reserved() -> int:
        return fs.source.engine().fetcher.requests.used

    assert sync(get_loop(), reserved) == 0


def test_object_fetched_ahead_long_ago_is_read_again(
    store: str, http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = RefShardFileSystem(store, skip_instance_cache=True)
    read_in_turn(fs, range(1, 40))
    sync(get_loop(), asyncio.sleep, 0.1)
    assert "/store/a/41.0" in chunk_requests(http_server)
    monkeypatch.setattr(fetch, "FRESH", -1.0)
    http_server.put("/store/a/40.0", b"new")  # this chunk did not exist before
    assert fs.cat_file("a/40.0") == b"new"


@pytest.mark.parametrize("mode", ["r", "a"])
def test_writable_filesystems_fetch_no_objects_ahead(tmp_path: Path, store: str, mode: str) -> None:
    meta = {"zarr_format": 2, "shape": [256], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
    refs = {"a/.zarray": json.dumps({**meta, "filters": None, "compressor": None})}
    numbers = [i for i in range(100) if i % 10 and i != 7]
    chunks = {f"a/{place}": [f"{store}/a/{i}.0"] for place, i in enumerate(numbers)}
    (tmp_path / "refs.json").write_text(json.dumps({**refs, **chunks}))
    fs = RefShardFileSystem(str(tmp_path / "refs.json"), skip_instance_cache=True, mode=mode)
    assert [fs.cat_file(key) for key in chunks] == list(map(Chunked.chunk, numbers))
    assert (fs.stats()["ahead_hits"] == 0) == (mode == "a")


@pytest.mark.parametrize("kind", [503, 403, "reset", "hang_up"])
def test_reads_after_a_failed_prefetch_are_right_or_an_error(store: str, http_server: RangeServer, kind: Any) -> None:
    fs = RefShardFileSystem(store, skip_instance_cache=True, retries=0)
    read_in_turn(fs, range(1, 10))
    sync(get_loop(), asyncio.sleep, 0.1)
    http_server.fault(kind, path="/store/a/*", times=20)
    failures = 0
    for i in range(11, 120):
        with contextlib.suppress(FileNotFoundError):
            try:
                assert fs.cat_file(f"a/{i}.0") == Chunked.chunk(i)
            except (OSError, RefShardError) as e:
                if isinstance(e, FileNotFoundError):
                    assert i % 10 == 0
                failures += 1
    assert failures < 40


def test_object_larger_than_expected_is_read(store: str, http_server: RangeServer) -> None:
    large = random.Random(3).randbytes(3 << 20)
    for i in (50, 51, 52):
        http_server.put(f"/store/a/{i}.0", large)
    fs = RefShardFileSystem(store, skip_instance_cache=True)
    read_in_turn(fs, range(1, 50))
    assert [fs.cat_file(f"a/{i}.0") for i in (50, 51, 52)] == [large] * 3
    read_in_turn(fs, range(53, 60))
