"""After several requests near each other, the next requests to the file fetch more bytes."""

from __future__ import annotations

import random
import time
from pathlib import Path

import h5netcdf
import numpy as np
import pytest
import xarray as xr

from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading import fetch
from refshard_fs.reading.dispatch import Dispatch
from refshard_fs.reading.file_ahead import FREE, NEAR, SHARE, SURE, FileAhead
from refshard_fs.reading.memory import Budget
from refshard_fs.targets.versioned import SMALL_FILE
from tests.servers.faults import Kind
from tests.servers.http import RangeServer

SIZE = 1 << 30
COUNT = 110
VALUES = np.random.default_rng(1).normal(size=(4, 30, 40))


def extend(file: FileAhead, start: int, size: int = 1000) -> int:
    file.read += size
    return file.extend(start, start + size, SIZE, 0) - start - size


def test_requests_near_each_other_are_extended() -> None:
    file = FileAhead()
    assert [extend(file, 5000 * i) > 0 for i in range(SURE + 2)] == [False] * SURE + [True] * 2


def test_requests_far_from_each_other_are_not_extended() -> None:
    file, rng = FileAhead(), random.Random(1)
    assert not any(extend(file, rng.randrange(SIZE // NEAR) * 3 * NEAR) for _ in range(100))


def test_requests_in_two_parts_of_a_file_are_extended() -> None:
    file, places, more = FileAhead(), [0, SIZE // 2], []
    for i in range(10):
        more.append(extend(file, places[i % 2]))
        places[i % 2] += 3000 + more[-1]
    assert more[-2:] == [FREE, FREE]


@pytest.mark.parametrize("read", [0, 100 * FREE])
def test_extensions_stop_at_a_bound_of_unread_bytes(read: int) -> None:
    file = FileAhead()
    file.read = read
    unread = 0
    for i in range(100):
        stop = file.extend(i * NEAR, i * NEAR + 10, SIZE, unread)
        unread += stop - i * NEAR - 10
    assert unread <= max(FREE, read // SHARE)
    assert unread > 0


def test_requests_are_not_extended_beyond_the_end() -> None:
    file = FileAhead()
    for i in range(SURE + 1):
        stop = file.extend(5000 * i, 5000 * i + 10, 5000 * SURE + 300, 0)
    assert stop == 5000 * SURE + 300


@pytest.fixture(scope="module")
def many_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file of many variables that is too large to be read whole."""
    path = tmp_path_factory.mktemp("many") / "many.nc"
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"t": 4, "y": 30, "x": 40}
        for i in range(COUNT):
            file.create_variable(f"v{i}", ("t", "y", "x"), "f8", chunks=(1, 30, 40), compression="gzip")[:] = VALUES + i
    assert path.stat().st_size > SMALL_FILE
    return path


@pytest.fixture
def many(http_server: RangeServer, many_file: Path) -> str:
    """Return the URL of the file of many variables."""
    return http_server.put("many.nc", many_file.read_bytes())


def test_load_of_many_variables_takes_few_requests(http_server: RangeServer, many: str) -> None:
    with xr.open_dataset(many, engine="refshard") as ds:
        before = len(http_server.requests())
        ds.load()
    assert len(http_server.requests()) - before < COUNT // 3
    for i in range(COUNT):
        np.testing.assert_array_equal(ds[f"v{i}"].values, VALUES + i)


def test_load_fetches_bytes_between_metadata_once(http_server: RangeServer, many: str, many_file: Path) -> None:
    """Opening reads most of the file, because metadata lie between the chunks."""
    with xr.open_dataset(many, engine="refshard") as ds:
        opened = http_server.bytes_sent
        ds.load()
    size = many_file.stat().st_size
    assert opened > size // 2
    assert http_server.bytes_sent < 1.1 * size
    again = xr.open_dataset(many, engine="refshard", storage_options={"skip_instance_cache": True})
    http_server.clear()
    xr.testing.assert_identical(again.load(), ds)
    assert len(http_server.requests()) < COUNT // 6
    assert http_server.bytes_sent < 1.1 * size


def test_bytes_between_metadata_are_dropped_after_a_while(
    http_server: RangeServer, many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "SPARE_SECONDS", 0.1)
    with xr.open_dataset(many, engine="refshard", storage_options={"skip_instance_cache": True}) as ds:
        opened = http_server.bytes_sent
        time.sleep(0.3)
        ds.load()
    assert http_server.bytes_sent > 1.5 * opened


def test_unread_bytes_of_a_real_file_are_bounded(many: str) -> None:
    """Only the first chunk of each variable in the first half of the file is read: an eighth of all chunks."""
    stats = {}
    for readahead in (0, 64 << 20):
        fs = RefShardFileSystem(many, readahead=readahead, skip_instance_cache=True)
        fs.source.reads_small_files_whole = False  # else the bytes between metadata are kept, and need no requests
        for i in range(COUNT // 2):
            fs.cat_file(f"v{i}/0.0.0")
        stats[readahead] = fs.stats()
        fs.invalidate_cache()
    without, ahead = stats.values()
    assert without["requests"] > ahead["requests"]
    assert ahead["bytes_fetched"] - without["bytes_fetched"] <= max(FREE, ahead["bytes_wanted"] // SHARE)


@pytest.mark.parametrize("kind", ["long_body", "missing_content_range", "gzip"])
def test_requests_after_a_refused_extension_are_not_extended(http_server: RangeServer, kind: Kind) -> None:
    data = random.Random(1).randbytes(1 << 20)
    data += bytes(2 * (SURE + 4) * SMALL_FILE)  # more windows than twice the requests
    url = http_server.put("data", data)
    refs = {f"a{i}": [url, 30_000 * i, 1000] for i in range(SURE + 4)}
    fs = RefShardFileSystem({"version": 1, "refs": refs}, retries=0, skip_instance_cache=True)
    for i in range(SURE):
        fs.cat_file(f"a{i}")
    http_server.clear()
    http_server.fault(kind, times=1)
    for i in range(SURE, SURE + 3):
        assert fs.cat_file(f"a{i}") == data[30_000 * i : 30_000 * i + 1000]
    sizes = [(r.stop or 0) - (r.start or 0) for r in http_server.requests()]
    assert sizes[0] > 1000
    assert sizes[1:] == [1000] * 3


@pytest.mark.parametrize("option", ["readahead", "max_memory"])
def test_options_limit_how_far_requests_are_extended(http_server: RangeServer, option: str) -> None:
    size, step = 200_000, 70_000
    url = http_server.put("data", bytes(100 * step))
    refs = {f"a{i}": [url, step * i, 60_000] for i in range(100)}
    fs = RefShardFileSystem({"version": 1, "refs": refs}, skip_instance_cache=True, **{option: size})
    for i in range(100):
        fs.cat_file(f"a{i}")
    lengths = [(r.stop or 0) - (r.start or 0) for r in http_server.requests()]
    assert max(lengths) <= 60_000 + size


def put_chunks(server: RangeServer, files: int, chunks: int, size: int) -> dict[str, list[object]]:
    """Serve ``files`` files of ``chunks`` chunks, and return references to the chunks."""
    urls = [server.put(f"data{n}", np.arange(n, n + chunks * size // 8).tobytes()) for n in range(files)]
    return {f"{n}/{i}": [url, i * size, size] for n, url in enumerate(urls) for i in range(chunks)}


@pytest.mark.parametrize(
    ("chunks", "options", "requests"),
    [
        (100, {}, 4),  # a chunk, and three parts of the file at the same time
        (300, {}, 11),  # two chunks, and nine parts of three windows
        (100, {"readahead": 0}, 20),
        (100, {"max_memory": 4 << 20}, 20),  # less than a file may be kept
        (41 * SMALL_FILE // 30_000, {}, 20),  # half as many requests as windows would be needed
    ],
)
def test_window_around_random_reads_is_fetched_if_options_allow(
    http_server: RangeServer, chunks: int, options: dict[str, int], requests: int
) -> None:
    refs = put_chunks(http_server, 1, chunks, 30_000)
    fs = RefShardFileSystem({"version": 1, "refs": refs}, skip_instance_cache=True, **options)
    for i in random.Random(1).sample(range(0, chunks, 3), 20):  # no neighbours
        assert len(fs.cat_file(f"0/{i}")) == 30_000
    assert len(http_server.requests()) == requests


def test_windows_of_shuffled_reads_are_fetched_once(http_server: RangeServer) -> None:
    refs = put_chunks(http_server, 1, 400, 30_000)
    fs = RefShardFileSystem({"version": 1, "refs": refs}, skip_instance_cache=True)
    for i in random.Random(1).sample(range(400), 400):
        assert len(fs.cat_file(f"0/{i}")) == 30_000
    assert len(http_server.requests()) < 20
    assert http_server.bytes_sent < 1.05 * 400 * 30_000


@pytest.mark.parametrize("seed", range(2))
def test_window_leaves_out_chunks_that_were_read(http_server: RangeServer, seed: int) -> None:
    """A chunk of 30 kB is longer than the gaps over which ranges are merged."""
    refs = put_chunks(http_server, 1, 250, 30_000)
    fs = RefShardFileSystem({"version": 1, "refs": refs}, skip_instance_cache=True)
    for i in random.Random(seed).sample(range(250), 250):
        assert len(fs.cat_file(f"0/{i}")) == 30_000
    assert http_server.bytes_sent == 250 * 30_000
    assert len(http_server.requests()) <= 10


def test_window_of_batches_takes_few_requests(http_server: RangeServer) -> None:
    refs = put_chunks(http_server, 1, 34, 30_000)
    fs = RefShardFileSystem({"version": 1, "refs": refs}, skip_instance_cache=True)
    keys = random.Random(1).sample(list(refs), 34)
    for i in range(0, 34, 3):
        assert len(fs.cat(keys[i : i + 3])) == len(keys[i : i + 3])
    assert http_server.bytes_sent == 34 * 30_000
    assert len(http_server.requests()) <= 8


def test_window_leaves_out_gaps_between_chunks_that_were_read(http_server: RangeServer) -> None:
    url = http_server.put("data", bytes(110 * 50_000))
    refs = {f"a{i}": [url, i * 50_000, 25_000] for i in range(110)}
    fs = RefShardFileSystem({"version": 1, "refs": refs}, skip_instance_cache=True)
    for i in range(12):
        fs.cat([f"a{i}" for i in range(9 * i, 9 * i + 9)])
    assert len(http_server.requests()) <= 30


def test_chunks_that_are_read_twice_are_noted_once(http_server: RangeServer) -> None:
    refs = put_chunks(http_server, 1, 1000, 12_000)
    fs = RefShardFileSystem({"version": 1, "refs": refs}, skip_instance_cache=True)
    for key in refs:
        assert fs.cat_file(key) == fs.cat_file(key)
    assert http_server.bytes_sent <= 2 * 1000 * 12_000
    assert len(http_server.requests()) <= 60


def test_windows_are_larger_on_a_fast_link(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round takes as long as receiving 32 MiB: windows of 16 MiB are fetched from the second request on."""
    monkeypatch.setattr(Dispatch, "measure_round", lambda dispatch, url: 32 << 20)
    refs = put_chunks(http_server, 1, 1200, 40_000)  # 48 MB
    fs = RefShardFileSystem({"version": 1, "refs": refs}, skip_instance_cache=True)
    rounds = 0
    for i in random.Random(1).sample(range(1200), 40):
        before = len(http_server.requests())
        assert len(fs.cat_file(f"0/{i}")) == 40_000
        rounds += len(http_server.requests()) > before
    assert rounds <= 5
    assert http_server.bytes_sent <= 1200 * 40_000


def test_small_file_that_was_half_read_is_not_fetched_whole(http_server: RangeServer) -> None:
    refs = put_chunks(http_server, 1, 2, 30_000)
    fs = RefShardFileSystem({"version": 1, "refs": refs}, skip_instance_cache=True)
    for key in refs:
        fs.cat_file(key)
    assert http_server.bytes_sent == 60_000


@pytest.mark.parametrize("count", [4, 40])
def test_unread_bytes_of_small_files_are_bounded(http_server: RangeServer, count: int) -> None:
    """Of each file of 1 MB, ``count`` chunks of 10 kB are read."""
    refs = put_chunks(http_server, 10, 100, 10_000)
    stats = []
    for options in ({}, {"readahead": 0}):
        fs = RefShardFileSystem({"version": 1, "refs": refs}, skip_instance_cache=True, **options)
        orders = [random.Random(n).sample(range(100), count) for n in range(10)]
        for i in range(count):
            for n, order in enumerate(orders):
                fs.cat_file(f"{n}/{order[i]}")
        stats.append(fs.stats())
    whole, ranges = stats
    assert whole["requests"] < 0.95 * ranges["requests"]
    bound = max(min(40 * count * SMALL_FILE, Budget().memory // 2), ranges["bytes_wanted"] // SHARE)
    assert whole["bytes_fetched"] - ranges["bytes_fetched"] <= bound


def test_index_of_many_small_chunks_is_read_in_few_requests(http_server: RangeServer, tmp_path: Path) -> None:
    """The nodes of the index lie between the chunks, which are read later without further requests."""
    path = tmp_path / "tiny.nc"
    values = np.random.default_rng(1).integers(-(1 << 15), 1 << 15, (1000, 20, 120), np.int16)
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"t": 1000, "y": 20, "x": 120}
        file.create_variable("a", ("t", "y", "x"), "i2", chunks=(1, 20, 20))[:] = values
    url, size = http_server.put("tiny.nc", path.read_bytes()), path.stat().st_size
    assert size > SMALL_FILE
    with xr.open_dataset(url, engine="refshard") as ds:
        np.testing.assert_array_equal(ds["a"][:, 5, 50], values[:, 5, 50])
        assert len(http_server.requests()) < 20
        np.testing.assert_array_equal(ds["a"], values)
    assert len(http_server.requests()) < 25
    assert http_server.bytes_sent < 1.1 * size
