"""After an interrupted, cancelled or forked read, the same filesystem reads right bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fsspec import asyn
from fsspec.asyn import get_loop

from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.shard_writers import make_indexed_shard

KEYS, SIZE = 40, 100
DATA = random.Random(3).randbytes(KEYS * SIZE)
WANT = {f"k/{i}": DATA[i * SIZE : (i + 1) * SIZE] for i in range(KEYS)}
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.filterwarnings("default:an interrupt was lost"), pytest.mark.case(id="P33")]
LOST = 30  # seconds after which an interrupt is sent again: Python drops one that comes while it finalises an object


@pytest.fixture
def refs(http_server: RangeServer) -> dict[str, Any]:
    url = http_server.put("/x.bin", DATA)
    return {f"k/{i}": [url, i * SIZE, SIZE] for i in range(KEYS)}


def wait_for_requests(server: RangeServer, count: int, path: str = "/x.bin") -> None:
    """Wait until ``count`` requests have arrived."""
    end = time.monotonic() + 60
    while len(server.requests(path)) < count:
        assert time.monotonic() < end, "no request arrives"
        time.sleep(0.005)


# This program reads until it has been interrupted ``times`` times, and then reads all keys once, by the same instance.
READER = """
import faulthandler, json, signal, sys
from refshard_fs import RefShardFileSystem
faulthandler.register(signal.SIGUSR1)
fo, how, times = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
fs = RefShardFileSystem(fo, max_gap=-1, max_block=1, concurrency=4, retries=1)
def read(keys):
    if how == "cat_file":
        return {k: fs.cat_file(k) for k in keys}
    if how == "cat":
        return fs.cat(keys)
    if how == "cat_ranges":
        return dict(zip(keys, fs.cat_ranges(keys, [0] * len(keys), [None] * len(keys)), strict=True))
    if how == "mapper":
        return dict(fs.get_mapper("").getitems(keys))
    found = {}
    for k in keys:
        with fs.open(k) as file:
            found[k] = file.read(10) + file.read()
    return found
keys = [f"k/{i}" for i in range(40)]
for n in range(times):
    try:
        print("reading", flush=True)
        while True:
            read(keys)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    except RuntimeError as e:  # of `threading.Event.wait`, if the interrupt comes while it takes its lock again
        if not isinstance(e.__context__, KeyboardInterrupt):
            raise
        print("interrupted", flush=True)
print(json.dumps({k: v.hex() for k, v in read(keys).items()}), flush=True)
"""


def run_interrupted(
    server: RangeServer, fo: Any, how: str, path: str, pauses: list[float]
) -> tuple[dict[str, bytes], str]:
    """Run `READER`, and interrupt its reads after each of ``pauses``; return what it reads last, and its errors."""
    command = [sys.executable, "-c", READER, json.dumps(fo), how, str(len(pauses))]
    lost = False
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            for pause in pauses:
                assert process.stdout.readline().strip() == "reading", process.stderr.read()
                server.clear()
                wait_for_requests(server, 1, path)
                time.sleep(pause)
                process.send_signal(signal.SIGINT)
                if not select.select([process.stdout], [], [], LOST)[0]:
                    process.send_signal(signal.SIGUSR1)
                    lost = True
                    process.send_signal(signal.SIGINT)
                assert process.stdout.readline().strip() == "interrupted", process.stderr.read()
            server.latency = 0
            out, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    if lost:
        warnings.warn(f"an interrupt was lost; the process was here:\n{errors}", stacklevel=1)
    return {key: bytes.fromhex(text) for key, text in json.loads(out).items()}, errors


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT of POSIX")
@pytest.mark.parametrize("how", ["cat_file", "cat", "cat_ranges", "mapper", "open"])
def test_interrupted_filesystem_reads_right_bytes_again(
    how: str, refs: dict[str, Any], http_server: RangeServer
) -> None:
    http_server.latency = 0.1
    chance = random.Random(how)
    pauses = [chance.uniform(0, 0.15) for _ in range(2)]
    found, errors = run_interrupted(http_server, refs, how, "/x.bin", pauses)
    assert found == WANT
    assert "Traceback" not in errors


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT of POSIX")
def test_interrupted_opening_can_be_repeated(refs: dict[str, Any], http_server: RangeServer) -> None:
    pad = {"pad": "x" * 10_000}  # more than is read to recognise the source
    url = http_server.put("/refs.json", json.dumps({"version": 1, "refs": {**refs, **pad}}).encode())
    http_server.latency = 0.3
    found, errors = run_interrupted(http_server, url, "cat", "/refs.json", [0.1])
    assert found == WANT
    assert "Traceback" not in errors


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("readers", [1, 4])
def test_parent_and_child_read_after_a_fork_during_reads(
    readers: int, refs: dict[str, Any], http_server: RangeServer
) -> None:
    http_server.latency = 0.2
    fs = RefShardFileSystem(fo=refs, max_gap=-1, max_block=1, concurrency=8)
    results: list[Any] = [None] * readers

    def read(place: int) -> None:
        results[place] = fs.cat(list(WANT))

    threads = [threading.Thread(target=read, args=(place,)) for place in range(readers)]
    for thread in threads:
        thread.start()
    wait_for_requests(http_server, 8)
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            http_answers = fs.cat(list(WANT)[:8])
            os.write(theirs, b"+" if http_answers == dict(list(WANT.items())[:8]) else b"-")
        except BaseException as e:  # the parent gets it as a text, and fails
            os.write(theirs, repr(e).encode()[:500])
        finally:
            os._exit(0)
    os.close(theirs)
    try:
        assert os.read(ours, 500) == b"+"
    finally:
        os.close(ours)
        os.waitpid(pid, 0)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert results == [WANT] * readers
    assert fs.cat_file("k/1") == WANT["k/1"]


def test_threads_of_a_forked_child_share_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread makes the child's loop, another one that needs it must not get the parent's."""
    fs = RefShardFileSystem({"a": "x"})
    dead, found = fs.loop, []

    def new_loop() -> Any:
        if not found:
            found.append(dead)
            with ThreadPoolExecutor(1) as pool:
                found[0] = pool.submit(lambda: fs.loop).result()
        return get_loop()

    monkeypatch.setattr("refshard_fs.fs.get_loop", new_loop)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    asyn.loop[0] = None  # as fsspec does in a child
    assert fs.loop is found[0] is not dead


SHARD = {i: bytes([65 + i]) * 10 for i in range(8)}


def make_sharded_references(server: RangeServer) -> dict[str, Any]:
    """Return references to two shards of an array."""
    meta = {"zarr_format": 2, "shape": [80], "chunks": [10], "shards": [4], "dtype": "|u1", "fill_value": 0}
    found: dict[str, Any] = {"s/.zarray": json.dumps(meta)}
    for number in range(2):
        shard = make_indexed_shard({i: SHARD[4 * number + i] for i in range(4)}, 4)
        found[f"s/{number}"] = [server.put(f"/shard-{number}", shard), 0, len(shard)]
    return found


Read = Callable[[RefShardFileSystem], Awaitable[Any]]

OPERATIONS: dict[str, Read] = {
    "cat_file": lambda fs: fs._cat_file("k/7"),
    "cat": lambda fs: fs._cat(list(WANT)),
    "cat_ranges": lambda fs: fs._cat_ranges(list(WANT), [0] * KEYS, [10] * KEYS),
    "an index first": lambda fs: fs._cat_file("s/1"),
    "indexes first": lambda fs: asyncio.gather(*(fs._cat_file(f"s/{i}") for i in SHARD)),
    "its last bytes": lambda fs: fs._cat_file("whole", -3),
    "gathered": lambda fs: asyncio.gather(*(fs._cat_file(key) for key in WANT)),
}


def list_other_tasks() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]


@pytest.mark.parametrize("after", [0, 0.03, 0.12])
@pytest.mark.parametrize("how", OPERATIONS)
def test_cancelled_task_leaves_no_other_task_running(
    how: str, after: float, refs: dict[str, Any], http_server: RangeServer
) -> None:
    http_server.latency = 0.1
    more = {"whole": [http_server.put("/whole", b"all of it")], **make_sharded_references(http_server)}

    async def run() -> None:
        fs = RefShardFileSystem(
            fo={**refs, **more},
            asynchronous=True,
            skip_instance_cache=True,
            max_gap=-1,
            max_block=1,
            concurrency=8,
        )
        task = asyncio.ensure_future(OPERATIONS[how](fs))
        await asyncio.sleep(after)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):  # unless it ended before
            await task
        await asyncio.sleep(0.03)
        assert list_other_tasks() == []
        http_server.latency = 0
        assert await fs._cat(list(WANT)) == WANT
        assert await fs._cat_file("whole", -5) == b"of it"
        assert await fs._cat([f"s/{i}" for i in SHARD]) == {f"s/{i}": data for i, data in SHARD.items()}
        await asyncio.sleep(0.03)
        assert list_other_tasks() == []

    asyncio.run(run())


def test_cancelling_a_reader_at_opening_spares_other_readers(refs: dict[str, Any], http_server: RangeServer) -> None:
    pad = {"pad": "x" * 10_000}
    url = http_server.put("/refs.json", json.dumps({"version": 1, "refs": {**refs, **pad}}).encode())
    http_server.latency = 0.1

    async def run() -> None:
        fs = RefShardFileSystem(url, asynchronous=True, skip_instance_cache=True)
        first, second = (asyncio.ensure_future(fs._cat_file("k/3")) for _ in range(2))
        await asyncio.sleep(0.05)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await second == WANT["k/3"]
        lonely = RefShardFileSystem(url + "?again", asynchronous=True, skip_instance_cache=True)
        task = asyncio.ensure_future(lonely._cat_file("k/3"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await lonely._cat_file("k/4") == WANT["k/4"]
        await asyncio.sleep(0.05)
        assert list_other_tasks() == []

    asyncio.run(run())


def test_filesystem_reads_after_a_timeout_of_the_caller(refs: dict[str, Any], http_server: RangeServer) -> None:
    http_server.latency = 0.3

    async def run() -> None:
        fs = RefShardFileSystem(fo=refs, asynchronous=True, skip_instance_cache=True)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await fs._cat(list(WANT))
        assert await fs._cat(list(WANT)) == WANT
        assert list_other_tasks() == []

    asyncio.run(run())
