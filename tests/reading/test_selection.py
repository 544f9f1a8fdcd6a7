"""Selections on several event loops share a limit of memory, and give memory back after errors and cancellations."""

from __future__ import annotations

import asyncio
import base64
import gc
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from refshard_fs import ReferenceNotReachable, RefShardFileSystem
from refshard_fs.core.stats import Stats
from refshard_fs.reading import selection
from refshard_fs.reading.dispatch import Dispatch
from refshard_fs.reading.loading import Answers
from refshard_fs.reading.memory import Budget, Share, SharedBudget, SharedMemory
from refshard_fs.reading.selection import SelectionLimit
from tests.servers.http import RangeServer

CHUNK, CHUNKS = 1000, 64
DATA = random.Random(7).randbytes(CHUNK * CHUNKS)
KEYS = [f"a/{number}" for number in range(CHUNKS)]
MEMORY = 4 * CHUNK


def references(url: str) -> dict[str, Any]:
    return {key: [url, number * CHUNK, CHUNK] for number, key in enumerate(KEYS)}


def count_used(memory: SharedMemory) -> int:
    with memory._lock:
        return memory.used_bytes


async def wait_until(done: Callable[[], bool]) -> None:
    """Wait until ``done()`` is true: cancelled tasks need some turns of the loop to end."""
    async with asyncio.timeout(20):
        while not done():  # noqa: ASYNC110  # no event marks the last turn
            await asyncio.sleep(0.001)


def others() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@pytest.mark.parametrize("memory", [MEMORY, CHUNK // 2], ids=["four chunks", "less than a chunk"])
@pytest.mark.parametrize("threads", [True, False])
def test_failed_or_cancelled_selection_releases_its_memory(
    threads: bool, memory: int, http_server: RangeServer
) -> None:
    refs = references(http_server.put("/x", DATA)) | {"a/bad": [http_server.put("/bad", DATA), 0, CHUNK]}
    fs = RefShardFileSystem(refs, asynchronous=True, skip_instance_cache=True, max_memory=memory, retries=0, max_gap=-1)
    http_server.fault(403, "/bad")
    http_server.fault("reset", "/x", probability=0.01, seed=1)
    http_server.latency = 0.002
    wrong: list[object] = []

    async def read(chance: random.Random) -> None:
        """Read random chunks, until all are read, decoding fails, a request fails, or the task is cancelled."""
        numbers = chance.sample(range(CHUNKS), chance.randint(1, 24))
        keys = [KEYS[number] for number in numbers]
        ends = chance.choice(["whole", "decoding", "bad", "cancel", "cancel", "cancel twice"])
        if ends == "bad":
            keys.insert(chance.randint(0, len(keys)), "a/bad")
        found: dict[str, bytes | None] = {}
        after = chance.randint(0, len(keys) - 1)

        def take(number: int, data: bytes | None) -> None:
            if ends == "decoding" and len(found) >= after:
                raise ValueError("damaged")
            found[keys[number]] = data

        task = asyncio.ensure_future(fs.source.read_selection(keys, take, chunk_size=CHUNK, threads=threads))
        if ends.startswith("cancel"):
            await asyncio.sleep(chance.uniform(0, 0.02))
            task.cancel()
            if ends == "cancel twice":
                await asyncio.sleep(0)
                task.cancel()
        error = (await asyncio.gather(task, return_exceptions=True))[0]
        expected = (ValueError, ReferenceNotReachable, asyncio.CancelledError, type(None))
        if not isinstance(error, expected) or (error is None and len(found) != len(keys)):
            wrong.append((ends, error))
        wrong.extend(key for key, data in found.items() if data != DATA[KEYS.index(key) * CHUNK :][:CHUNK])

    async def run(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(6):
            await asyncio.gather(*(read(random.Random(chance.random())) for _ in range(4)))
        requests = fs.source.engine().fetcher.requests
        await wait_until(lambda: not others() and not requests.active)
        assert requests.used == 0

    def loop(seed: int) -> None:
        try:
            asyncio.run(run(seed))
        except BaseException as e:  # the assertion below shows it
            wrong.append(e)

    running = [threading.Thread(target=loop, args=(seed,), daemon=True) for seed in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(120)
    assert not any(thread.is_alive() for thread in running)
    assert wrong == []
    assert (count_used(fs.source.selections), count_used(fs.source._budget)) == (0, 0)


def test_decoding_may_read_by_the_same_filesystem(http_server: RangeServer) -> None:
    """A codec may read other keys while the selection that it decodes has filled the memory."""
    fs = RefShardFileSystem(references(http_server.put("/x", DATA)), skip_instance_cache=True, max_memory=CHUNK)
    found: dict[int, bytes] = {}

    def take(number: int, data: bytes | None) -> None:
        found[number] = fs.cat([KEYS[number], KEYS[0]])[KEYS[number]]

    async def run() -> None:
        async with asyncio.timeout(60):
            await fs.source.read_selection(KEYS, take, chunk_size=CHUNK, threads=True)

    asyncio.run(run())
    assert b"".join(found[number] for number in range(CHUNKS)) == DATA


def local(tmp_path: Path) -> RefShardFileSystem:
    (tmp_path / "x").write_bytes(DATA)
    return RefShardFileSystem(references(str(tmp_path / "x")), asynchronous=True, skip_instance_cache=True)


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
def test_local_chunks_are_not_read_once_a_selection_has_ended(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "WORKERS", 2)
    fs = local(tmp_path)
    taken: list[int] = []
    has_begun, may_go_on = threading.Event(), threading.Event()

    def take(number: int, data: bytes | None) -> None:
        taken.append(number)
        if ends == "failed" and number == 1:
            raise ValueError("damaged")
        has_begun.set()
        may_go_on.wait(20)

    async def run() -> None:
        task = asyncio.ensure_future(fs.source.read_selection(KEYS, take, chunk_size=CHUNK, threads=True))
        await asyncio.to_thread(has_begun.wait, 20)
        if ends == "cancelled":
            task.cancel()
        await asyncio.sleep(0.05)
        may_go_on.set()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert len(taken) <= 2


def test_reader_cancelled_twice_releases_its_memory(http_server: RangeServer) -> None:
    fs = RefShardFileSystem(references(http_server.put("/x", DATA)), asynchronous=True, skip_instance_cache=True)
    has_begun, may_go_on = threading.Event(), threading.Event()
    is_over = False
    late: list[int] = []

    def take(number: int, data: bytes | None) -> None:
        has_begun.set()
        may_go_on.wait(20)
        if is_over:
            late.append(number)

    async def run() -> None:
        nonlocal is_over
        task = asyncio.ensure_future(fs.source.read_selection(KEYS, take, chunk_size=CHUNK, threads=True))
        await asyncio.to_thread(has_begun.wait, 20)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(0.05, may_go_on.set)
        (error,) = await asyncio.gather(task, return_exceptions=True)
        is_over = True
        assert isinstance(error, asyncio.CancelledError)
        assert count_used(fs.source.selections) == 0  # although the error keeps the frames of the read alive

    asyncio.run(run())
    assert late == []


def test_selections_cancelled_twice_let_others_read() -> None:
    memory: SharedMemory = SharedMemory(MEMORY)

    async def run(chance: random.Random) -> None:
        together = SelectionLimit()

        async def read(size: int) -> None:
            async with together.reserve(memory, size):
                await asyncio.sleep(chance.choice([0, 0.001]))

        tasks = [asyncio.ensure_future(read(chance.randint(1, MEMORY))) for _ in range(20)]
        cancelled = chance.sample(tasks, 10)
        async with asyncio.timeout(20):
            for _ in range(2):
                for task in cancelled:
                    task.cancel()
                    await asyncio.sleep(0)
            found = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [error for task, error in zip(tasks, found, strict=True) if task not in cancelled]
        assert errors == [None] * 10

    for seed in range(20):
        asyncio.run(run(random.Random(seed)))


class Cycle:
    """An object that refers to itself, so that only the garbage collector frees it."""

    def __init__(self, held: object) -> None:
        self.held = held
        self.itself = self


def test_memory_released_in_garbage_collection_is_counted() -> None:
    """If a read is dropped with its event loop, the garbage collector ends it at any time, also inside a lock."""
    memory: SharedMemory = SharedMemory(MEMORY)

    async def drop(share: Share) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            share.give_back(share.used)

    async def run() -> tuple[Share, Share]:
        dropped, share = Share(memory), Share(memory)
        dropped.take([CHUNK])
        ended: Coroutine[Any, Any, None] = drop(dropped)
        ended.send(None)
        garbage = Cycle(ended)
        del ended, garbage
        share.take(collecting())
        return dropped, share

    def collecting() -> Iterator[int]:
        gc.collect()
        yield CHUNK

    done: list[Iterable[Share]] = []
    thread = threading.Thread(target=lambda: done.append(asyncio.run(run())), daemon=True)
    thread.start()
    thread.join(20)
    assert [[share.used for share in shares] for shares in done] == [[0, CHUNK]]


def test_cached_index_is_looked_up_once_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(zarr, "create_array"):
        pytest.skip("zarr 2 writes no shards")
    stored: dict[str, Any] = {}
    array = zarr.create_array(stored, shape=(40, 10), shards=(10, 10), chunks=(1, 10), dtype="u1", compressors=None)
    array[:] = values = np.arange(400, dtype="u1").reshape(40, 10)
    array[5] = 0  # the fill value: this chunk is not stored
    refs = {key: "base64:" + base64.b64encode(value.to_bytes()).decode() for key, value in stored.items()}
    fs = RefShardFileSystem(refs, asynchronous=True, skip_instance_cache=True)
    keys = [f"c/{row}/0" for row in range(40)]
    asked: list[object] = []
    get = Answers.get

    def counted(self: Answers, need: Any, *others: Any) -> Any:
        asked.append(need)
        return get(self, need, *others)

    def read() -> dict[int, bytes | None]:
        found: dict[int, bytes | None] = {}
        asyncio.run(fs.source.read_selection(keys, found.__setitem__, chunk_size=10, threads=False))
        return found

    first = read()
    monkeypatch.setattr(Answers, "get", counted)
    assert read() == first == {row: None if row == 5 else values[row].tobytes() for row in range(40)}
    assert len(asked) == 4


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the connection is dropped as well
def test_collecting_requests_of_a_closed_loop_does_not_block(http_server: RangeServer) -> None:
    """The garbage collector ends the requests, here inside a lock; they must not begin others on the closed loop."""
    refs = references(http_server.put("/x", DATA))
    fs = RefShardFileSystem(
        refs, asynchronous=True, skip_instance_cache=True, max_memory=MEMORY, concurrency=1, max_gap=-1, readahead=0
    )

    async def begin() -> None:
        await fs.source.prefetch(KEYS[:3], wait=True, on_progress=lambda count: None)
        http_server.fault("silent", "/x")
        begun = [asyncio.ensure_future(fs._cat_file(key)) for key in KEYS[10:12]]
        requests = fs.source.engine().fetcher.requests
        await wait_until(lambda: requests.active == 1 and bool(requests.find_host(refs[KEYS[0]][0]).urgent))
        assert not any(task.done() for task in begun)

    def work() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        loop.close()
        del loop
        with fs.source.stats._lock:
            gc.collect()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_waiting_loop_is_woken_by_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        shared = SharedBudget(Budget(requests=2, memory=MEMORY))
        here, there = (Dispatch(None, shared, Stats(), None) for _ in range(2))  # type: ignore[arg-type]  # not used
        for each in (here, there):
            assert shared.begin(each, each.find_host("http://host/x").name, 1, MEMORY)
        woken = asyncio.Event()
        ends = threading.Thread(target=end, args=(shared, there), daemon=True)

        def count_active(name: str) -> int:
            active = there.find_host("http://host/x").active
            if not ends.ident:
                ends.start()
                ends.join(0.5)  # long enough if `end` needs no lock
            return active

        monkeypatch.setattr(there, "count_active", count_active)
        monkeypatch.setattr(here, "pump", woken.set)
        assert not shared.begin(here, "http://host", 1, MEMORY)
        async with asyncio.timeout(20):
            await woken.wait()

    def end(shared: SharedBudget, dispatch: Dispatch) -> None:
        dispatch.find_host("http://host/x").active -= 1
        shared.wake(dispatch)

    asyncio.run(run())
