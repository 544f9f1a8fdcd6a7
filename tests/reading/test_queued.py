"""How many reads wait behind those that were asked for is counted exactly, or said to be unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import zarr
from packaging.version import Version

from refshard_fs.reading.prefetch import Queued


async def limited(func: Callable[[int], Awaitable[None]], count: int, limit: int) -> None:
    slots = asyncio.Semaphore(limit)

    async def run(number: int) -> None:
        async with slots:
            await func(number)

    await asyncio.gather(*map(run, range(count)))


@pytest.mark.parametrize(("count", "limit", "waiting"), [(512, 10, 502), (512, 128, 384), (10, 10, 0), (3, 10, 0)])
def test_tasks_that_wait_for_the_same_semaphore_are_counted(count: int, limit: int, waiting: int) -> None:
    queued = Queued()
    seen: list[int | None] = []

    async def read(number: int) -> None:
        queued.came()
        queued.asked()
        await asyncio.sleep(0)  # others come through in the same tick
        seen.append(queued.count())
        await asyncio.sleep(0)

    async def main() -> None:
        others = [asyncio.create_task(asyncio.sleep(60)) for _ in range(7)]
        await limited(read, count, limit)
        for task in others:
            task.cancel()

    asyncio.run(main())
    assert seen[0] == waiting
    assert seen[-1] == 0


def test_reads_that_came_are_not_counted_again_while_others_wait() -> None:
    queued = Queued()
    seen: list[int | None] = []

    async def read(number: int) -> None:
        queued.came()
        queued.asked()
        await asyncio.sleep(0)
        if number % 10 == 0:
            seen.append(queued.count())
        await asyncio.sleep(0)

    asyncio.run(limited(read, 50, 10))
    assert [n for n in seen if n is not None] == [40, 30, 20, 10, 0]


def test_tasks_of_the_same_kind_that_do_something_else_are_no_reads_that_follow_the_last() -> None:
    """As zarr's decoding of one chunk while it reads the next."""
    queued = Queued()
    seen: list[int | None] = []
    decoding: list[asyncio.Task[None]] = []

    async def decode(number: int) -> None:
        await asyncio.sleep(0)

    async def read(number: int) -> None:
        queued.came()
        queued.asked()
        await asyncio.sleep(0)
        seen.append(queued.count())
        decoding.append(asyncio.create_task(limited(decode, 30, 1)))
        await asyncio.sleep(0)

    asyncio.run(limited(read, 10, 3))
    assert seen[0] == 7
    assert seen[-1] == 0


def test_reads_that_have_passed_the_semaphore_and_not_come_yet_still_follow() -> None:
    """As with zarr, which makes a task within the task; with the last of them, a selection would seem to have ended."""
    queued = Queued()
    seen: list[tuple[int, int | None]] = []
    came = 0

    async def read(number: int) -> None:
        nonlocal came
        queued.came()
        queued.asked()
        came += 1
        await asyncio.sleep(0)
        seen.append((came, queued.count()))
        await asyncio.sleep(0)

    async def nested(number: int) -> None:
        await limited(read, 1, 1)

    asyncio.run(limited(nested, 57, 10))
    assert [count for _, count in seen] == [57 - came for came, _ in seen]


@pytest.mark.parametrize("waits", [True, False])
def test_all_tasks_are_gone_through_now_and_then_only(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    """They may be tens of thousands, after each read."""
    queued = Queued()
    looks: list[int] = []
    counts: list[int | None] = []
    all_tasks = asyncio.all_tasks

    def look() -> set[asyncio.Task[Any]]:
        looks.append(1)
        return all_tasks()

    async def read(number: int) -> None:
        queued.came()
        queued.asked()
        await asyncio.sleep(0)
        counts.append(queued.count())
        await asyncio.sleep(0)

    async def main() -> None:
        if waits:
            await limited(read, 4000, 10)
        else:
            slots = asyncio.Semaphore(10)

            async def enter(number: int) -> None:
                async with slots:
                    await read(number)

            async def run(number: int) -> None:  # whose semaphore is not seen from outside
                await enter(number)

            await asyncio.gather(*map(run, range(4000)))

    monkeypatch.setattr(asyncio, "all_tasks", look)
    asyncio.run(main())
    monkeypatch.undo()
    assert len(counts) == 4000
    assert counts[0] == (3990 if waits else 0)
    assert len(looks) < 200


def test_nothing_is_known_where_no_task_asks() -> None:
    queued = Queued()

    def ask(asked: asyncio.Event) -> None:
        queued.came()
        queued.asked()
        asked.set()

    async def main() -> None:
        asked = asyncio.Event()
        asyncio.get_running_loop().call_soon(ask, asked)
        await asked.wait()
        assert queued.count() is None

    asyncio.run(main())


def test_a_queue_that_has_failed_is_not_remembered() -> None:
    queued = Queued()
    counts: list[int | None] = []

    async def stop(number: int) -> None:
        queued.came()
        queued.asked()
        await asyncio.sleep(0)
        counts.append(queued.count())
        raise RuntimeError

    async def alone() -> None:
        queued.came()
        queued.asked()
        counts.append(queued.count())

    async def main() -> None:
        with pytest.raises(RuntimeError):
            await limited(stop, 50, 1)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        await asyncio.create_task(alone())

    asyncio.run(main())
    assert counts[0] == 49
    assert counts[-1] in (0, 1)  # what has passed the semaphore may yet come


@pytest.mark.skipif(
    Version(zarr.__version__) < Version("3"), reason="zarr 2 reads all chunks of a selection in one call"
)
def test_zarr_makes_a_task_of_each_chunk_that_it_will_read() -> None:
    """What the read-ahead knows depends on it: where this fails, it guesses again."""
    from zarr.storage import MemoryStore

    queued = Queued()
    counts: list[int | None] = []

    class Store(MemoryStore):
        async def get(self, key: str, *args: object, **kwargs: object) -> object:
            if key.startswith("c/") and not counts:
                queued.came()
                queued.asked()
                counts.append(-1)
                await asyncio.sleep(0)
                counts.append(queued.count())
            return await super().get(key, *args, **kwargs)  # type: ignore[arg-type]

    array = zarr.create_array(Store(), shape=(100,), chunks=(1,), dtype="u1", compressors=None)
    array[:] = 1
    counts.clear()
    with zarr.config.set({"async.concurrency": 10}):
        assert array[:].sum() == 100
    assert counts == [-1, 90]
