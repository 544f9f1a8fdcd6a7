"""Whole selections through our codec pipeline have the values of zarr's pipeline, in fewer and larger requests."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec.asyn
import numcodecs.registry
import numpy as np
import pytest

zarr = pytest.importorskip("zarr", minversion="3.1")

from fsspec.implementations.dirfs import DirFileSystem  # noqa: E402  # zarr may be absent
from hypothesis import HealthCheck, given, settings  # noqa: E402  # after importorskip
from hypothesis import strategies as st  # noqa: E402  # after importorskip
from numcodecs.abc import Codec  # noqa: E402  # after importorskip
from zarr.core.codec_pipeline import BatchedCodecPipeline  # noqa: E402  # after importorskip
from zarr.storage import FsspecStore, LocalStore, MemoryStore, WrapperStore  # noqa: E402  # after importorskip

from refshard_fs import (  # noqa: E402  # after importorskip
    ReferenceNotReachable,
    RefShardFileSystem,
    tune_zarr,
    zarr_pipeline,
)
from refshard_fs.reading import selection  # noqa: E402  # after importorskip
from refshard_fs.reading.immediate import Immediate  # noqa: E402  # after importorskip
from refshard_fs.reading.memory import Share  # noqa: E402  # after importorskip
from refshard_fs.zarr_pipeline import SelectionPipeline  # noqa: E402  # after importorskip
from tests.servers.http import RangeServer  # noqa: E402  # after importorskip
from tests.servers.process import RangeServerProcess  # noqa: E402  # after importorskip

CHUNK = 1000  # bytes
CHUNKS = 64


@pytest.fixture(autouse=True)
def _pipeline() -> Iterator[None]:
    with tune_zarr(None, pipeline=True):
        yield


def make_store(source: Any, **options: Any) -> FsspecStore:
    fs = RefShardFileSystem(source, asynchronous=True, skip_instance_cache=True, **options)
    return FsspecStore(fs, read_only=True, path="")


def make_references(url: str, **changes: Any) -> dict[str, Any]:
    """Return a reference set of one array of uncompressed chunks, which lie side by side in one file."""
    meta = {"zarr_format": 2, "shape": [CHUNKS * CHUNK], "chunks": [CHUNK], "dtype": "|u1", "order": "C"}
    document = json.dumps({**meta, "filters": None, "compressor": None, "fill_value": 7, **changes})
    return {"a/.zarray": document} | {f"a/{i}": [url, i * CHUNK, CHUNK] for i in range(CHUNKS)}


PAYLOAD = np.random.default_rng(0).integers(0, 255, CHUNKS * CHUNK, np.uint8).tobytes()


def open_array(source: Any, **options: Any) -> Any:
    array = zarr.open_array(make_store(source, **options), path="a", mode="r")
    assert type(array._async_array.codec_pipeline) is SelectionPipeline
    return array


def test_selection_of_adjacent_chunks_is_one_request(http_server: RangeServer) -> None:
    url = http_server.put("/x", PAYLOAD)
    array = open_array(make_references(url), readahead=0)
    with zarr.config.set({"async.concurrency": 1}):  # this limit of zarr does not apply to our requests
        assert bytes(array[:]) == PAYLOAD
    assert len(http_server.requests("/x")) == 1
    assert http_server.bytes_sent == len(PAYLOAD)


def test_points_are_fetched_in_parallel(http_server: RangeServer) -> None:
    url = http_server.put("/x", PAYLOAD)
    http_server.latency = 0.2
    array = open_array(make_references(url), readahead=0, max_gap=-1)
    points = np.arange(0, len(PAYLOAD), 2 * CHUNK)
    assert bytes(array.vindex[points]) == bytes(PAYLOAD[p] for p in points)
    assert len(http_server.requests("/x")) == CHUNKS // 2
    assert http_server.log.peak > 10


def test_nothing_beyond_the_selection_is_fetched(http_server: RangeServer) -> None:
    url = http_server.put("/x", PAYLOAD)
    array = open_array(make_references(url), readahead=0)
    for first in (12, 0, 24, 4, 28, 20, 8, 16):
        assert bytes(array[first * CHUNK : (first + 2) * CHUNK]) == PAYLOAD[first * CHUNK : (first + 2) * CHUNK]
    assert http_server.bytes_sent == 16 * CHUNK


def test_loop_over_chunks_is_read_ahead(http_server: RangeServer) -> None:
    url = http_server.put("/x", PAYLOAD)
    array = open_array(make_references(url))
    http_server.latency = 0.02
    for i in range(CHUNKS):
        assert bytes(array[i * CHUNK : (i + 1) * CHUNK]) == PAYLOAD[i * CHUNK : (i + 1) * CHUNK]
    assert len(http_server.requests("/x")) < CHUNKS // 4
    assert http_server.bytes_sent == len(PAYLOAD)


def test_whole_shards_are_fetched_in_parallel(http_server: RangeServer, tmp_path: Path) -> None:
    values = np.arange(64 * 64, dtype="<u4").reshape(64, 64)
    zarr.create_array(LocalStore(tmp_path), name="a", data=values, chunks=(4, 4), shards=(16, 16), compressors=None)
    for file in (p for p in tmp_path.rglob("*") if p.is_file()):
        http_server.put(f"/s/{file.relative_to(tmp_path)}", file.read_bytes())
    array = open_array(f"{http_server.url}/s", shards="whole")
    http_server.latency = 0.2
    with zarr.config.set({"async.concurrency": 1}):
        for selection in ((slice(None),) * 2, (slice(0, 64, 20), 3)):
            http_server.clear()
            assert (array[selection] == values[selection]).all()
            assert http_server.log.peak >= 4


def test_chunks_of_four_shards_take_at_most_eight_requests(http_server: RangeServer, tmp_path: Path) -> None:
    values = np.arange(64 * 64, dtype="<u4").reshape(64, 64)
    zarr.create_array(LocalStore(tmp_path), name="a", data=values, chunks=(4, 4), shards=(16, 16), compressors=None)
    for file in (p for p in tmp_path.rglob("*") if p.is_file()):
        http_server.put(f"/s/{file.relative_to(tmp_path)}", file.read_bytes())
    array = open_array(f"{http_server.url}/s")
    http_server.clear()
    assert (array[0:64:20, 3] == values[0:64:20, 3]).all()
    assert len(http_server.requests()) <= 8  # one round for four indexes, and one for four chunks


@pytest.mark.parametrize("wrap", ["path", "dirfs", "consolidated"])
def test_pipeline_is_used_for_wrapped_and_consolidated_stores(wrap: str, http_server: RangeServer) -> None:
    url = http_server.put("/x", PAYLOAD)
    refs = {f"g/{k}": v for k, v in make_references(url).items()} | {"g/.zgroup": '{"zarr_format": 2}'}
    if wrap == "consolidated":
        documents = {k.removeprefix("g/"): json.loads(v) for k, v in refs.items() if isinstance(v, str)}
        refs["g/.zmetadata"] = json.dumps({"zarr_consolidated_format": 1, "metadata": documents})
    fs: Any = RefShardFileSystem(refs, asynchronous=True, skip_instance_cache=True)
    if wrap == "dirfs":
        store = FsspecStore(DirFileSystem("g", fs, asynchronous=True), read_only=True, path="/")
    else:
        store = FsspecStore(fs, read_only=True, path="g")
    array = zarr.open_group(store, mode="r", use_consolidated=wrap == "consolidated")["a"]
    assert type(array._async_array.codec_pipeline) is SelectionPipeline
    assert bytes(array[:]) == PAYLOAD
    assert len(http_server.requests("/x")) == 1


@pytest.mark.parametrize("is_local", [True, False])
def test_slow_chunk_does_not_delay_decoding_of_others(
    is_local: bool, http_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of a selection are not assigned to threads beforehand: an idle thread takes the next chunk."""
    monkeypatch.setattr(selection, "WORKERS", 2)
    url = http_server.put("/x", PAYLOAD)
    if is_local:
        (tmp_path / "x").write_bytes(PAYLOAD)
        url = str(tmp_path / "x")
    others = threading.Semaphore(0)
    waited = []

    def take(number: int, data: bytes | None) -> None:
        if number == 0:  # wait until another thread has decoded all other chunks
            waited.extend(number for number in range(1, CHUNKS) if others.acquire(timeout=20))
        else:
            others.release()

    fs = RefShardFileSystem(make_references(url), readahead=0)
    keys = [f"a/{number}" for number in range(CHUNKS)]
    fsspec.asyn.sync(fs.loop, fs.source.read_selection, keys, take, chunk_size=CHUNK, threads=True)
    assert waited == list(range(1, CHUNKS))


@pytest.mark.parametrize("codec", [None, {"id": "zstd", "level": 1}], ids=["plain", "zstd"])
def test_selection_takes_no_more_than_its_result_and_max_memory(codec: dict[str, Any] | None) -> None:
    size, count, memory = 1 << 18, 128, 8 << 20
    meta = {"zarr_format": 2, "shape": [size * count], "chunks": [size], "dtype": "|u1", "order": "C", "filters": None}
    refs: dict[str, Any] = {"a/.zarray": json.dumps({**meta, "compressor": codec, "fill_value": 0})}
    values = np.random.default_rng(1).integers(0, 16, size, np.uint8)  # zstd compresses it to half its size
    chunk = values.tobytes() if codec is None else bytes(numcodecs.registry.get_codec(dict(codec)).encode(values))
    with RangeServerProcess() as server:  # in another process, so that its memory does not count
        url = server.put("/x", chunk * count)
        refs |= {f"a/{i}": [url, i * len(chunk), len(chunk)] for i in range(count)}
        array = open_array(refs, max_memory=memory)
        array[: 4 * size]
        tracemalloc.start()
        found = array[:]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (found.reshape(count, size) == values).all()
    assert peak < found.nbytes + memory


KEYS = [f"a/{number}" for number in range(CHUNKS)]
MEMORY = 16 * CHUNK


def read_in_threads(fs: RefShardFileSystem, *takes: Any) -> list[threading.Thread]:
    """Start to read the whole array once for each of ``takes``, each in a thread with a separate event loop."""
    threads = []
    for take in takes:
        reading = fs.source.read_selection(KEYS, take, chunk_size=CHUNK, threads=True)
        threads.append(threading.Thread(target=asyncio.run, args=(reading,), daemon=True))
        threads[-1].start()
    return threads


def test_max_memory_bounds_two_selections_together(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "WORKERS", 1)
    fs = RefShardFileSystem(make_references(http_server.put("/x", PAYLOAD)), readahead=0, max_memory=MEMORY)
    both_have_begun = threading.Barrier(2)
    lock = threading.Lock()
    held: list[int] = []  # bytes that were requested and are not decoded yet
    decoded: list[int] = []

    def take_of_one() -> Any:
        first = iter([True])

        def take(number: int, data: bytes | None) -> None:
            if next(first, False):
                both_have_begun.wait(20)
            with lock:
                asked = sum((r.stop or 0) - (r.start or 0) for r in http_server.requests("/x"))
                held.append(asked - sum(decoded))
                decoded.append(len(data or b""))

        return take

    for thread in read_in_threads(fs, take_of_one(), take_of_one()):
        thread.join(60)
    assert sum(decoded) == 2 * len(PAYLOAD)
    assert max(held) <= MEMORY + CHUNK  # one chunk of a selection is always permitted


def test_selection_begins_while_another_holds_all_memory(http_server: RangeServer) -> None:
    fs = RefShardFileSystem(make_references(http_server.put("/x", PAYLOAD)), readahead=0, max_memory=MEMORY)
    is_held, other_is_read = threading.Event(), threading.Event()
    waited = []

    def hold(number: int, data: bytes | None) -> None:
        is_held.set()
        waited.append(other_is_read.wait(20))

    (holder,) = read_in_threads(fs, hold)
    assert is_held.wait(20)
    taken: list[int] = []
    (other,) = read_in_threads(fs, lambda number, data: taken.append(number))
    other.join(20)
    assert sorted(taken) == list(range(CHUNKS))
    other_is_read.set()
    holder.join(20)
    assert len(waited) == CHUNKS
    assert all(waited)


def test_failed_selection_gives_its_memory_back(http_server: RangeServer) -> None:
    fs = RefShardFileSystem(make_references(http_server.put("/x", PAYLOAD)), readahead=0, max_memory=MEMORY)

    def fail(number: int, data: bytes | None) -> None:
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged") as failure:  # its traceback keeps the read's objects alive
        fsspec.asyn.sync(fs.loop, fs.source.read_selection, KEYS, fail, chunk_size=CHUNK, threads=True)
    assert fs.source.selections.used_bytes == 0
    assert failure.traceback


@pytest.mark.parametrize("shards", [True, False])
def test_full_memory_still_admits_one_chunk_at_a_time(
    shards: bool, http_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds also if zarr reads the parts of shards, or decodes a batch of chunks at once."""
    if not shards:
        monkeypatch.delattr(SelectionPipeline, "sync_transform", raising=False)
        monkeypatch.setattr(zarr_pipeline, "_decode_and_scatter", None)
    values = np.arange(64 * 64, dtype="<u4").reshape(64, 64)
    extra: dict[str, Any] = {"chunks": (4, 4), "shards": (16, 16)} if shards else {"chunks": (16, 16)}
    zarr.create_array(LocalStore(tmp_path), name="a", data=values, compressors=None, **extra)
    for file in (p for p in tmp_path.rglob("*") if p.is_file()):
        http_server.put(f"/s/{file.relative_to(tmp_path)}", file.read_bytes())
    fs = RefShardFileSystem(f"{http_server.url}/s", asynchronous=True, skip_instance_cache=True, shards="whole")
    array = zarr.open_array(FsspecStore(fs, read_only=True, path=""), path="a", mode="r")

    async def hold() -> Share:
        share = Share(fs.source.selections)
        share.take([fs.source.options.budget.memory])
        return share

    http_server.latency = 0.05
    where = (slice(0, 64, 20), 3)  # four shards, or chunks
    peaks = []
    for others in (fsspec.asyn.sync(fsspec.asyn.get_loop(), hold), None):
        http_server.clear()
        assert (array[where] == values[where]).all()
        peaks.append(http_server.log.peak)
        if others is not None:
            others.give_back(others.used)
    assert peaks[0] < 4 <= peaks[1]
    assert fs.source.selections.used_bytes == 0


DTYPES = ["|b1", "<i2", ">f4", "<f8", "<c8", "<M8[ns]", "|S3"]


@st.composite
def draw_arrays(draw: st.DrawFn) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Return arguments of ``create_array``, and values, of which some chunks are the fill value."""
    dimensions = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0 if i else 1, 9)) for i in range(dimensions))
    chunks = tuple(draw(st.integers(1, 5)) for _ in range(dimensions))
    dtype = draw(st.sampled_from(DTYPES))
    seed = draw(st.integers(0, 999))
    values = np.random.default_rng(seed).integers(0, 3, shape).astype("|S3" if dtype == "|S3" else "i8").astype(dtype)
    version = draw(st.sampled_from([2, 3]))
    options: dict[str, Any] = {"chunks": chunks, "zarr_format": version, "shape": shape, "dtype": values.dtype}
    if draw(st.booleans()):
        options["compressors"] = None
    if version == 2:
        options["order"] = draw(st.sampled_from("CF"))
        options["chunk_key_encoding"] = {"name": "v2", "separator": draw(st.sampled_from("./"))}
    elif dimensions > 1 and draw(st.booleans()):
        options["filters"] = [zarr.codecs.TransposeCodec(order=tuple(reversed(range(dimensions))))]
    return options, values


@st.composite
def draw_selections(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[str, Any]:
    kind = draw(st.sampled_from(["basic", "orthogonal", "points", "mask"]))
    if kind == "mask":
        return kind, np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, shape).astype(bool)
    if kind == "points" and shape and all(shape):
        count = draw(st.integers(1, 6))
        return kind, tuple(np.array([draw(st.integers(0, n - 1)) for _ in range(count)]) for n in shape)
    if kind == "orthogonal" and shape and all(shape):
        return kind, tuple(np.array(sorted({draw(st.integers(0, n - 1)) for _ in range(3)})) for n in shape)
    parts: list[Any] = []
    for n in shape:
        if n and draw(st.booleans()):
            parts.append(draw(st.integers(0, n - 1)))
        else:
            first = draw(st.integers(0, n))
            parts.append(slice(first, draw(st.integers(first, n)), draw(st.integers(1, 3))))
    return "basic", tuple(parts)


def take(array: Any, kind: str, selection: Any) -> Any:
    match kind:
        case "points":
            return array.vindex[selection]
        case "orthogonal":
            return array.oindex[selection]
        case "mask" if array.ndim:
            return array.get_mask_selection(selection)
    return array[...] if kind == "mask" else array[selection]


@pytest.mark.filterwarnings("ignore")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_values_equal_zarrs_pipeline(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    options, values = data.draw(draw_arrays())
    root = tmp_path_factory.mktemp("z")
    with tune_zarr(None, pipeline=False):
        try:
            made = zarr.create_array(LocalStore(root), name="a", **options)
        except (TypeError, ValueError):
            return  # no array of zarr's
        made[...] = values
        own = zarr.open_array(LocalStore(root), path="a", mode="r")
    array = open_array(str(root))
    for _ in range(4):
        kind, selection = data.draw(draw_selections(values.shape))
        expected, found = np.asarray(take(own, kind, selection)), np.asarray(take(array, kind, selection))
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", [2, 3])
def test_texts_and_structs_have_the_values_of_zarr(tmp_path: Path, version: Any) -> None:
    kinds = {
        "text": np.array(["a", "bc", "", "déf"] * 5, dtype=np.dtypes.StringDType()),
        "struct": np.array([(1, 2.5), (3, 4.5)] * 10, dtype=[("x", "<i4"), ("y", "<f8")]),
        "unicode": np.array(["a", "bcd"] * 10, dtype="<U3"),
    }
    for name, values in kinds.items():
        zarr.create_array(LocalStore(tmp_path), name=name, data=values, chunks=3, zarr_format=version)
    store = make_store(str(tmp_path))
    for name, values in kinds.items():
        array = zarr.open_array(store, path=name, mode="r")
        assert np.asarray(array[2:19]).tolist() == values[2:19].tolist()


def test_blocks_empty_and_scalar_arrays_are_read(tmp_path: Path) -> None:
    values = np.arange(20.0).reshape(4, 5)
    zarr.create_array(LocalStore(tmp_path), name="a", data=values, chunks=(3, 2))
    zarr.create_array(LocalStore(tmp_path), name="empty", shape=(0, 5), chunks=(3, 2), dtype="i4")
    zarr.create_array(LocalStore(tmp_path), name="one", data=np.array(5))
    store = make_store(str(tmp_path))
    array = zarr.open_array(store, path="a", mode="r")
    assert (array.blocks[1, 0:2] == values[3:, :4]).all()
    assert array[0:0].shape == (0, 5)
    assert zarr.open_array(store, path="empty", mode="r")[:].shape == (0, 5)
    assert zarr.open_array(store, path="one", mode="r")[...] == 5


def test_missing_chunks_are_the_fill_value(http_server: RangeServer) -> None:
    refs = make_references(http_server.put("/x", PAYLOAD))
    del refs["a/3"], refs["a/63"]
    found = bytes(open_array(refs)[:])
    assert found[3 * CHUNK : 4 * CHUNK] == found[63 * CHUNK :] == bytes([7]) * CHUNK
    assert found[: 3 * CHUNK] == PAYLOAD[: 3 * CHUNK]


def test_writes_to_a_hierarchy_are_read_and_committed(tmp_path: Path) -> None:
    values = np.arange(100, dtype="<i4").reshape(10, 10)
    zarr.create_array(LocalStore(tmp_path / "x"), name="a", data=values, chunks=(4, 4), fill_value=0)
    fs = RefShardFileSystem(str(tmp_path / "x"), mode="a", skip_instance_cache=True, asynchronous=True)
    array = zarr.open_array(FsspecStore(fs, path=""), path="a", mode="r+")
    array[3:7, 2:9] = 0
    array[0, 0] = 77
    values[3:7, 2:9] = 0
    values[0, 0] = 77
    assert (array[:] == values).all()
    asyncio.run(fs._commit()) if hasattr(fs, "_commit") else fs.commit()
    assert (zarr.open_array(LocalStore(tmp_path / "x"), path="a", mode="r")[:] == values).all()


@pytest.mark.parametrize("kind", [404, 403, 500, "short_body", "reset"])
def test_failure_names_its_key_and_other_chunks_are_read_later(kind: Any, http_server: RangeServer) -> None:
    url = http_server.put("/x", PAYLOAD)
    refs = make_references(url) | {"a/40": [http_server.put("/bad", PAYLOAD), 0, CHUNK]}
    array = open_array(refs, retries=0)
    http_server.fault(kind, "/bad")
    with pytest.raises(ReferenceNotReachable, match="a/40"):
        array[:]
    http_server.heal()
    assert bytes(array[: 40 * CHUNK]) == PAYLOAD[: 40 * CHUNK]
    assert bytes(array[40 * CHUNK : 41 * CHUNK]) == PAYLOAD[:CHUNK]


@pytest.mark.parametrize("how", ["decoded as they come", "decoded by zarr", "parts of shards"])
@pytest.mark.parametrize("kind", [404, 403, "short_body", "reset", "cancelled"])
def test_interrupted_selection_leaves_no_task_and_no_memory(
    kind: Any, how: str, http_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "decoded by zarr":
        monkeypatch.delattr(SelectionPipeline, "sync_transform", raising=False)
        monkeypatch.setattr(zarr_pipeline, "_decode_and_scatter", None)
    values = np.arange(32 * 32, dtype="<u4").reshape(32, 32)
    extra: dict[str, Any] = {"chunks": (2, 2), "shards": (8, 8)} if how == "parts of shards" else {"chunks": (8, 8)}
    zarr.create_array(LocalStore(tmp_path), name="a", data=values, **extra)
    refs: dict[str, Any] = {"a/zarr.json": (tmp_path / "a/zarr.json").read_text()}
    for file in (p for p in (tmp_path / "a/c").rglob("*") if p.is_file()):
        key = file.relative_to(tmp_path).as_posix()
        refs[key] = [http_server.put(key, file.read_bytes()), 0, file.stat().st_size]
    options: dict[str, Any] = {"shards": "whole", "retries": 0, "max_memory": 4 * 256, "skip_instance_cache": True}

    async def run() -> None:
        fs = RefShardFileSystem(refs, asynchronous=True, **options)
        store = FsspecStore(fs, read_only=True, path="")
        array = await zarr.api.asynchronous.open_array(store=store, path="a", mode="r")
        session, requests = fs.source, fs.source.engine().fetcher.requests
        before = asyncio.all_tasks()
        if kind == "cancelled":
            http_server.latency = 0.05
        else:
            http_server.fault(kind, "/a/c/2/1")
        reading = asyncio.ensure_future(array.getitem((slice(1, 31), slice(1, 31))))
        if kind == "cancelled":
            await asyncio.sleep(0.07)
            reading.cancel()
        with pytest.raises(asyncio.CancelledError if kind == "cancelled" else ReferenceNotReachable):
            await reading
        async with asyncio.timeout(20):
            while asyncio.all_tasks() - before or requests.active:  # noqa: ASYNC110  # nothing tells of the last turn
                await asyncio.sleep(0.001)
        assert requests.used == 0
        assert session.selections.used_bytes == 0
        http_server.heal()
        assert (np.asarray(await array.getitem(slice(None))) == values).all()

    asyncio.run(run())


@pytest.mark.parametrize("part", [slice(None), slice(30, 40), slice(20, 60)])
@pytest.mark.parametrize("kind", ["plain", "first", "shards"])
def test_error_of_an_undecodable_chunk_names_its_file(
    part: slice, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards: Any = {"shards": (10,), "chunks": (5,)} if kind == "shards" else {"chunks": (10,)}
    zarr.create_array(LocalStore(tmp_path), name="a", data=np.arange(100.0), **shards)
    damaged = tmp_path / "a/c/3"
    index = damaged.read_bytes()[-36:] if kind == "shards" else b""
    damaged.write_bytes(bytes(len(damaged.read_bytes()) - len(index)) + index)
    if kind == "first":  # simulate a zarr without a function that decodes one chunk
        monkeypatch.setattr(zarr_pipeline, "_decode_and_scatter", None)
    with pytest.raises(Exception, match=r".") as caught:
        open_array(str(tmp_path), shards="whole")[part]
    (note,) = caught.value.__notes__
    assert f"'a/c/3' ({damaged}" in note
    assert "refshard check" in note


def test_local_array_is_read_on_an_event_loop_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(1.0, 101.0)
    zarr.create_array(LocalStore(tmp_path), name="a", data=values, chunks=10)
    array = open_array(str(tmp_path))
    monkeypatch.setattr(Immediate, "take", lambda *_: None)
    assert (array[:] == values).all()


def test_several_failures_leave_no_unretrieved_error(
    http_server: RangeServer, caplog: pytest.LogCaptureFixture
) -> None:
    bad = http_server.put("/bad", PAYLOAD)
    array = open_array(make_references(bad), retries=0, max_gap=-1, readahead=0)
    http_server.fault(403, "/bad")
    with pytest.raises(ReferenceNotReachable):
        array[:]
    gc.collect()
    array[:0]
    assert "never retrieved" not in caplog.text


def test_cancelled_read_leaves_no_reading_task(http_server: RangeServer) -> None:
    url = http_server.put("/x", PAYLOAD)
    fs = RefShardFileSystem(make_references(url), asynchronous=True, skip_instance_cache=True)

    async def run() -> int:
        array = await zarr.api.asynchronous.open_array(
            store=FsspecStore(fs, read_only=True, path=""), path="a", mode="r"
        )
        await array.getitem(slice(0, 1))
        http_server.latency = 30
        task = asyncio.ensure_future(array.getitem(slice(CHUNK, None)))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        http_server.latency = 0
        assert bytes(await array.getitem(slice(CHUNK, None))) == PAYLOAD[CHUNK:]
        return len([t for t in asyncio.all_tasks() if t is not asyncio.current_task() and "read" in repr(t.get_coro())])

    assert asyncio.run(run()) == 0


def test_concurrent_threads_read_right_values(http_server: RangeServer) -> None:
    array = open_array(make_references(http_server.put("/x", PAYLOAD)))
    wrong: list[int] = []

    def read(seed: int) -> None:
        chance = np.random.default_rng(seed)
        for _ in range(20):
            first, last = sorted(chance.integers(0, len(PAYLOAD), 2))
            if bytes(array[first:last]) != PAYLOAD[first:last]:
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_arrays_of_other_stores_have_zarrs_own_pipeline(tmp_path: Path) -> None:
    class Wrapped(WrapperStore[Any]):
        pass

    zarr.create_array(LocalStore(tmp_path), name="a", data=np.arange(10), chunks=3)
    others = [LocalStore(tmp_path), MemoryStore(), Wrapped(LocalStore(tmp_path))]
    for store in others:
        array = zarr.create_array(store, name="b", data=np.arange(10), chunks=(3,), shards=(6,), overwrite=True)
        assert type(array._async_array.codec_pipeline) is BatchedCodecPipeline
        assert (array[:] == np.arange(10)).all()


class Added(Codec):
    """A codec whose `get_config` does not contain the number that it adds."""

    codec_id = "test_added"

    def __init__(self, number: int) -> None:
        self._number = number

    def encode(self, buf: Any) -> Any:
        raise NotImplementedError

    def decode(self, buf: Any, out: Any = None) -> Any:
        return np.frombuffer(buf, np.uint8) + np.uint8(self._number)


def test_arrays_with_different_codecs_do_not_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(numcodecs.registry.codec_registry, Added.codec_id, Added)
    meta = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "order": "C", "filters": None}
    refs = {".zgroup": '{"zarr_format": 2}'}
    for name, number in {"a": 1, "b": 10}.items():
        compressor = {"id": Added.codec_id, "number": number}
        refs[f"{name}/.zarray"] = json.dumps({**meta, "fill_value": 0, "compressor": compressor})
        refs[f"{name}/0"] = "AA"
    group = zarr.open_group(make_store(refs), mode="r")
    assert [group[name][:].tolist() for name in "ab"] == [[66, 66], [75, 75]]


def test_pickled_array_of_another_store_needs_no_refshard(tmp_path: Path) -> None:
    array = zarr.create_array(LocalStore(tmp_path), name="a", data=np.arange(10), chunks=3)
    assert b"refshard" not in pickle.dumps(array).replace(str(tmp_path).encode(), b"")


def test_pickled_array_is_read_in_another_process(tmp_path: Path) -> None:
    zarr.create_array(LocalStore(tmp_path), name="a", data=np.arange(10), chunks=3)
    code = "import pickle, sys; print(int(pickle.load(sys.stdin.buffer)[:].sum()))"
    found = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(open_array(str(tmp_path))), capture_output=True
    )
    assert found.stdout.strip() == b"45", found.stderr


def test_five_event_loops_in_turn_read_the_array(http_server: RangeServer) -> None:
    refs = make_references(http_server.put("/x", PAYLOAD))

    async def read() -> bytes:
        fs = RefShardFileSystem(refs, asynchronous=True, skip_instance_cache=True)
        store = FsspecStore(fs, read_only=True, path="")
        array = await zarr.api.asynchronous.open_array(store=store, path="a", mode="r")
        return bytes(await array.getitem(slice(None)))

    for _ in range(5):
        assert asyncio.run(read()) == PAYLOAD
    gc.collect()


def test_waiting_for_a_trial_before_its_start_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread must not join a trial that another thread has not started yet."""
    start, told = zarr_pipeline._Trial.start, list[object]()

    def ask_first(trial: Any) -> None:
        asking = threading.Thread(target=lambda: told.append(zarr_pipeline.wait_for_trial()))
        asking.start()
        asking.join()
        start(trial)

    monkeypatch.setattr(zarr_pipeline, "_trial", None)
    monkeypatch.setattr(zarr_pipeline, "TESTED", ())
    monkeypatch.setattr(zarr_pipeline._Trial, "start", ask_first)
    with zarr.config.set(zarr_pipeline.make_setting(False)):
        zarr_pipeline.install()
        assert zarr_pipeline.wait_for_trial() is None
    assert told == [None]


def test_tested_zarr_versions_need_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_pipeline, "_trial", None)
    with zarr.config.set(zarr_pipeline.make_setting(False)):
        zarr_pipeline.install()
        assert zarr_pipeline.is_set()
        assert zarr_pipeline._trial is None
