"""Synchronous and asynchronous calls, threads, processes and forks read the same bytes."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import random
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem

KEYS = 200
SIZE = 100


@pytest.fixture
def source(http_server: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    data = random.Random(0).randbytes(KEYS * SIZE)
    url = http_server.put("/x.bin", data)
    refs = {f"k/{i}": [url, i * SIZE, SIZE] for i in range(KEYS)}
    return refs, {f"k/{i}": data[i * SIZE : (i + 1) * SIZE] for i in range(KEYS)}


def read_all(fs: RefShardFileSystem, keys: list[str]) -> dict[str, bytes]:
    return {key: fs.cat_file(key) for key in keys}


def test_threads_share_one_instance(source: Any) -> None:
    refs, want = source
    fs = RefShardFileSystem(fo=refs)
    orders = [random.Random(i).sample(sorted(want), 50) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for got, keys in zip(pool.map(lambda keys: read_all(fs, keys), orders), orders, strict=True):
            assert got == {key: want[key] for key in keys}


def test_one_asynchronous_instance_serves_several_loops(source: Any) -> None:
    refs, want = source
    fs = RefShardFileSystem(fo=refs, asynchronous=True)

    async def read() -> list[bytes]:
        return await asyncio.gather(*(fs._cat_file(key) for key in want))

    for _ in range(3):
        assert asyncio.run(read()) == list(want.values())
    gc.collect()


def test_loops_in_threads_read_concurrently(source: Any) -> None:
    refs, want = source
    fs = RefShardFileSystem(fo=refs, asynchronous=True)
    failures: list[BaseException] = []

    def work() -> None:
        async def read() -> None:
            assert await fs._cat(list(want)) == want

        try:
            asyncio.run(read())
        except BaseException as e:  # handed to the test
            failures.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_prefetch_runs_on_the_loop_that_read_metadata(source: Any) -> None:
    refs, want = source
    fs = RefShardFileSystem(fo=refs | {".zgroup": '{"zarr_format":2}'}, asynchronous=True, skip_instance_cache=True)

    async def read() -> None:
        await fs._cat_file(".zgroup")
        await asyncio.to_thread(fs.prefetch, list(want)[:2], wait=False)
        assert list(fs.source._engines) == [asyncio.get_running_loop()]
        assert await fs._cat_file("k/0") == want["k/0"]

    asyncio.run(read())


def test_identical_and_overlapping_ranges_are_fetched_once(http_server: Any) -> None:
    data = bytes(range(250))
    url = http_server.put("/x.bin", data)
    fs = RefShardFileSystem(
        fo={"a": [url, 0, 100], "same": [url, 0, 100], "inner": [url, 10, 20], "over": [url, 50, 100]}
    )
    assert fs.cat(["a", "same", "inner", "over"]) == {
        "a": data[:100], "same": data[:100], "inner": data[10:30], "over": data[50:150]
    }  # fmt: skip
    assert [(r.start, r.stop) for r in http_server.requests("/x.bin")] == [(0, 150)]


def test_pickled_filesystem_reads_the_same(source: Any) -> None:
    refs, want = source
    fs = RefShardFileSystem(fo=refs, max_gap=7)
    fs.cat_file("k/0")
    again = pickle.loads(pickle.dumps(fs))
    assert read_all(again, list(want)[:5]) == dict(list(want.items())[:5])
    assert again == fs
    assert hash(again) == hash(fs)
    assert RefShardFileSystem.from_json(fs.to_json()).cat_file("k/7") == want["k/7"]


def test_spawned_processes_read_the_same_values(source: Any) -> None:
    refs, want = source
    fs = RefShardFileSystem(fo=refs)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        keys = list(want)
        halves = [keys[::2], keys[1::2]]
        got = pool.map(read_all, [fs, fs], halves)
        assert {k: v for part in got for k, v in part.items()} == want


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_reads_the_same(source: Any) -> None:
    refs, want = source
    fs = RefShardFileSystem(fo=refs)
    assert fs.cat_file("k/0") == want["k/0"]  # the parent's loop and connections exist
    reader, writer = os.pipe()
    lock = fs.source.stats._lock
    lock.acquire()  # as another thread may at the fork
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            is_right = read_all(fs, list(want)[:20]) == dict(list(want.items())[:20]) and fs.stats()["keys"] >= 20
            os.write(writer, b"+" if is_right else b"-")
        finally:
            os._exit(0)
    lock.release()
    os.close(writer)
    assert os.read(reader, 1) == b"+"
    os.close(reader)
    os.waitpid(pid, 0)
    assert fs.cat_file("k/1") == want["k/1"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_prefetches_and_reads(source: Any) -> None:
    refs, want = source
    keys = list(want)[:20]
    fs = RefShardFileSystem(fo=refs, block_cache=20_000, skip_instance_cache=True)
    fs.prefetch(keys)
    assert fs.cat(keys) == {key: want[key] for key in keys}
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            fs.prefetch(keys)
            os.write(writer, b"+" if fs.cat(keys) == {key: want[key] for key in keys} else b"-")
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"+"
    os.close(reader)
    os.waitpid(pid, 0)


def test_cancelling_a_read_spares_other_reads(http_server: Any) -> None:
    data = bytes(200)
    url = http_server.put("/x.bin", data)
    http_server.latency = 0.2
    fs = RefShardFileSystem(fo={"a": [url, 0, 100], "b": [url, 150, 50], "far": [url + "?2", 0, 1]}, asynchronous=True)

    async def run() -> None:
        first, second = (asyncio.ensure_future(fs._cat_file(key)) for key in ("a", "b"))
        await asyncio.sleep(0.05)
        first.cancel()
        assert await second == data[150:]
        lost = asyncio.ensure_future(fs._cat_file("a"))
        await asyncio.sleep(0.05)
        lost.cancel()
        await asyncio.sleep(0.05)
        mine = asyncio.current_task()
        assert [t for t in asyncio.all_tasks() if t is not mine and not t.done()] == []

    asyncio.run(run())
