"""Look-ups with equal needs share one read, but each of them can be cancelled or fail alone."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.core.keyspace import KeySpace, LookUp
from refshard_fs.core.model import Entry, Inline, Listed, Load, ParsedIndex, Raw, Span, Steps
from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.reading import loading
from refshard_fs.reading.engine import Engine
from refshard_fs.reading.loading import load
from refshard_fs.source.source import INDEXES
from tests.servers.http import RangeServer
from tests.support.loads import make_document, make_load, run_steps


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MANY", 1000)
    monkeypatch.setattr(loading, "PIECE", 5000)
    monkeypatch.setattr(loading, "REMOTE_PIECE", 20000)


def engine(url: str) -> Engine:
    fs = RefShardFileSystem(url, index_cache=False, asynchronous=True, skip_instance_cache=True)
    return fs.source.engine()


@pytest.mark.usefixtures("small_pieces")
def test_load_shared_by_tasks_runs_once(http_server: RangeServer) -> None:
    INDEXES.clear()
    data = make_document()
    url = http_server.put("/refs.json", data)
    http_server.latency = 0.01

    async def all_at_once() -> list[Any]:
        reader = engine(url)
        return await asyncio.gather(*(reader.need(make_load(data, url)) for _ in range(4)))

    found = asyncio.run(all_at_once())
    assert all(refs is found[0] for refs in found)
    assert http_server.bytes_sent == len(data)


@pytest.mark.usefixtures("small_pieces")
def test_cancelled_task_does_not_cancel_another(http_server: RangeServer) -> None:
    INDEXES.clear()
    data = make_document()
    url = http_server.put("/refs.json", data)
    http_server.latency = 0.05

    async def both() -> Any:
        reader = engine(url)
        first, second = (asyncio.ensure_future(reader.need(make_load(data, url))) for _ in range(2))
        await asyncio.sleep(0.03)
        first.cancel()
        return await second

    assert len(asyncio.run(both())) == 5002


@pytest.mark.usefixtures("small_pieces")
def test_error_reaches_both_tasks_and_is_not_cached(http_server: RangeServer) -> None:
    INDEXES.clear()
    good = make_document()
    url = http_server.put("/refs.json", good[:-9])

    async def both(data: bytes) -> list[Any]:
        reader = engine(url)
        return await asyncio.gather(*(reader.need(make_load(data, url)) for _ in range(2)), return_exceptions=True)

    assert [type(e) for e in asyncio.run(both(good[:-9]))] == [ManifestError] * 2
    http_server.put("/refs.json", good)
    assert [len(refs) for refs in asyncio.run(both(good))] == [5002] * 2


def test_error_of_several_lookups_has_the_frames_of_one(http_server: RangeServer) -> None:
    url = http_server.url + "/missing"

    def look_up() -> Steps[Any]:
        return (yield Load(Span(url, 0, 9), Raw()))

    async def fail(count: int) -> list[int]:
        errors = await engine(url).run_all([look_up() for _ in range(count)])
        return [len(traceback.extract_tb(error.__traceback__)) for error in errors if isinstance(error, Exception)]

    assert asyncio.run(fail(9)) == asyncio.run(fail(1)) * 9


def test_keys_in_a_damaged_index_are_looked_up_once(http_server: RangeServer) -> None:
    url = http_server.put("/index", bytes(9))

    class Shared(KeySpace):
        def lookup(self, key: str) -> Steps[Entry | None]:
            pytest.fail(f"{key} is looked up again")

        def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
            raise NotImplementedError

        def make_lookups(self, keys: Sequence[str]) -> list[LookUp]:
            return [LookUp(range(len(keys)), self.find_together())]

        def find_together(self) -> Steps[Any]:
            yield Load(Span(url, 0, 9), ParsedIndex(int))

    async def find() -> list[Any]:
        return await engine(url).find_all(Shared(), ["a", "b"])

    assert [type(error) for error in asyncio.run(find())] == [DamagedIndex] * 2


def test_long_decode_leaves_the_event_loop_free() -> None:
    class Slow:
        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self.loop = loop

        def decode(self, data: bytes) -> int:
            free = threading.Event()
            self.loop.call_soon_threadsafe(free.set)
            assert free.wait(60)
            return len(data)

    async def run() -> None:
        slow = Slow(asyncio.get_running_loop())
        await load(Load(Inline(bytes(loading.MANY + 1)), slow), read, run_steps)

    async def read(entry: Entry) -> bytes:
        assert isinstance(entry, Inline)
        return entry.data

    asyncio.run(run())


@pytest.mark.parametrize("where", ["local", "http"])
def test_damage_of_one_chunk_is_no_error_of_others(where: str, http_server: RangeServer, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((64, 8), "u1"), compression="zlib", rowsperstrip=8)
    with tifffile.TiffFile(path, mode="r+b") as tiff:
        offsets = tiff.pages[0].tags["StripOffsets"]
        offsets.overwrite([*offsets.value[:3], 10**8, *offsets.value[4:]])
    url = str(path) if where == "local" else http_server.put("/a.tif", path.read_bytes())
    fs = RefShardFileSystem(url)
    found = fs.cat([f"0/{number}.0" for number in range(8)], on_error="return")
    assert [key for key, value in found.items() if not isinstance(value, bytes)] == ["0/3.0"]
    assert "'0/3.0' exists, but" in str(found["0/3.0"])
    assert [finding.key for finding in refshard_fs.check(fs).findings] == ["0/3.0"]
