"""Loads: once in a process, whoever asks and on whichever loop; off the loop; piece by piece."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.model import Entry, Inline, Load, Pin, Span, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.kerchunk_json.source import JsonIndex
from refshard_fs.reading import loading
from refshard_fs.reading.engine import Engine
from refshard_fs.reading.loading import load
from refshard_fs.source.source import INDEXES
from tests.servers.http import RangeServer

ARRAY = {"zarr_format": 2, "shape": [5000], "chunks": [1], "dtype": "|u1", "compressor": None, "fill_value": 0}
ARRAY |= {"order": "C", "filters": None}


def document(count: int = 5000) -> bytes:
    refs: dict[str, Any] = {"a/.zarray": json.dumps(ARRAY), "c": "text"}
    return json.dumps({**refs, **{f"a/{i}": ["s3://b/x", i, 1] for i in range(count)}}).encode()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MANY", 1000)
    monkeypatch.setattr(loading, "PIECE", 5000)
    monkeypatch.setattr(loading, "REMOTE_PIECE", 20000)


class Reads:
    """A source that tells what was read of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.spans: list[tuple[int, int | None]] = []

    async def __call__(self, entry: Entry) -> bytes:
        assert isinstance(entry, Span)
        self.spans.append((entry.start, entry.stop))
        return self.data[entry.start : entry.stop]


async def drive(steps: Steps[Any]) -> Any:
    raise AssertionError("expected an index of one read")


def need(data: bytes, url: str = "/refs.json") -> Load:
    return Load(Span(url, pin=Pin(None, None, len(data))), JsonIndex(url))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(("url", "step"), [("/refs.json", 5000), ("https://host/refs.json", 20000)])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_large_source_is_read_in_pieces(url: str, step: int, compress: Any) -> None:
    data = compress(document())
    reads = Reads(data)
    refs, weight = asyncio.run(load(need(data, url), reads, drive))
    assert len(refs) == 5002
    assert weight == refs.nbytes
    assert reads.spans == [(at, min(at + step, len(data))) for at in range(0, len(data), step)] or len(data) <= step


def engine(url: str) -> Engine:
    fs = RefShardFileSystem(url, index_cache=False, asynchronous=True, skip_instance_cache=True)
    return fs.source.engine()


@pytest.mark.usefixtures("small_pieces")
def test_a_load_that_several_tasks_want_is_done_once(http_server: RangeServer) -> None:
    INDEXES.clear()
    data = document()
    url = http_server.put("/refs.json", data)
    http_server.latency = 0.01

    async def all_at_once() -> list[Any]:
        reader = engine(url)
        return await asyncio.gather(*(reader.need(need(data, url)) for _ in range(4)))

    found = asyncio.run(all_at_once())
    assert all(refs is found[0] for refs in found)
    assert http_server.bytes_sent == len(data)


@pytest.mark.usefixtures("small_pieces")
def test_the_rest_go_on_when_one_of_them_gives_up(http_server: RangeServer) -> None:
    INDEXES.clear()
    data = document()
    url = http_server.put("/refs.json", data)
    http_server.latency = 0.05

    async def both() -> Any:
        reader = engine(url)
        first, second = (asyncio.ensure_future(reader.need(need(data, url))) for _ in range(2))
        await asyncio.sleep(0.03)
        first.cancel()
        return await second

    assert len(asyncio.run(both())) == 5002


@pytest.mark.usefixtures("small_pieces")
def test_an_error_reaches_everybody_and_is_not_remembered(http_server: RangeServer) -> None:
    INDEXES.clear()
    good = document()
    url = http_server.put("/refs.json", good[:-9])

    async def both(data: bytes) -> list[Any]:
        reader = engine(url)
        return await asyncio.gather(*(reader.need(need(data, url)) for _ in range(2)), return_exceptions=True)

    assert [type(e) for e in asyncio.run(both(good[:-9]))] == [ManifestError] * 2
    http_server.put("/refs.json", good)
    assert [len(refs) for refs in asyncio.run(both(good))] == [5002] * 2


def test_a_long_decode_leaves_the_event_loop_free() -> None:
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
        await load(Load(Inline(bytes(loading.MANY + 1)), slow), read, drive)

    async def read(entry: Entry) -> bytes:
        assert isinstance(entry, Inline)
        return entry.data

    asyncio.run(run())


def test_a_manifest_is_parsed_once_by_all_filesystems_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    INDEXES.clear()
    path = tmp_path / "refs.json"
    path.write_bytes(document())
    fs = RefShardFileSystem(str(path), index_cache=False)
    assert fs.cat("c") == b"text"
    monkeypatch.delattr(JsonIndex, "decode")
    monkeypatch.delattr(JsonIndex, "decoder")
    again = RefShardFileSystem(str(path), index_cache=False)
    assert again.cat("c") == b"text"

    async def read() -> Any:
        other = RefShardFileSystem(str(path), index_cache=False, asynchronous=True)
        return await other._cat_file("c")

    assert asyncio.run(read()) == b"text"


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "refs.json"
    for text in ("one", "two"):
        path.write_text(json.dumps({"a": text}))
        assert RefShardFileSystem(str(path)).cat("a") == text.encode()


@pytest.mark.usefixtures("small_pieces")
def test_pieces_of_a_remote_source_make_the_same_set(http_server: Any) -> None:
    INDEXES.clear()
    http_server.put("/refs.json", document())
    fs = RefShardFileSystem(http_server.url + "/refs.json", index_cache=False)
    assert fs.references["a/4999"] == ["s3://b/x", 4999, 1]
    assert len(fs.references) == 5002


def test_memory_filesystems_work_as_sources() -> None:
    INDEXES.clear()
    fsspec.filesystem("memory").pipe_file("/refs-of-loading.json", document())
    assert len(RefShardFileSystem("memory://refs-of-loading.json", index_cache=False).references) == 5002
