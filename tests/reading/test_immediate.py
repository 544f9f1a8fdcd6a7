"""Local data are read without an event loop, and small ranges that lie together by one system call."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.callbacks import Callback

from refshard_fs import RefShardFileSystem
from refshard_fs.core.model import Span
from refshard_fs.errors import ReferenceNotReachable, TargetChanged
from refshard_fs.reading import immediate
from refshard_fs.reading.engine import Engine
from refshard_fs.reading.plan import Limits
from refshard_fs.targets import local
from tests.servers.http import RangeServer

DATA = bytes(range(256)) * 40
COUNT = 100
KEYS = [f"a/{i}" for i in range(COUNT)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.bin"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Return a list to which each read of a local file adds its start and length."""
    seen: list[tuple[int, int]] = []
    read_at = local._read_at

    def counted(file: Any, length: int, start: int) -> bytes:
        seen.append((start, length))
        return read_at(file, length, start)

    monkeypatch.setattr(local, "_read_at", counted)
    return seen


def references(file: Path) -> dict[str, Any]:
    return {key: [str(file), 100 * i, 100] for i, key in enumerate(KEYS)}


def test_each_of_many_keys_takes_one_read_and_no_engine(
    file: Path, reads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(immediate, "TOUCHING", Limits(gap=0))
    fs = RefShardFileSystem(references(file))
    monkeypatch.setattr(Engine, "read", None)
    apart = KEYS[::-3]
    assert fs.cat(apart) == {key: DATA[100 * i : 100 * i + 100] for i, key in enumerate(KEYS) if key in apart}
    assert fs.cat_ranges(["a/1", "a/2"], [None, -7], [3, None]) == [DATA[100:103], DATA[293:300]]
    assert sorted(reads) == sorted([(100 * int(key[2:]), 100) for key in apart] + [(100, 3), (293, 7)])


def test_small_adjacent_keys_out_of_order_are_read_together(file: Path, reads: list[tuple[int, int]]) -> None:
    references_of = references(file) | {"same": [str(file), 250, 200], "far": [str(file), 9990, 100]}
    fs = RefShardFileSystem(references_of)
    keys = ["a/4", "far", "a/2", "same", "none", "a/3"]
    found = fs.cat(keys, on_error="return")
    assert isinstance(found.pop("none"), FileNotFoundError)
    assert found == {"a/4": DATA[400:500], "far": DATA[9990:10090], "a/2": DATA[200:300], "same": DATA[250:450]} | {
        "a/3": DATA[300:400]
    }
    assert sorted(reads) == [(200, 300), (9990, 100)]
    counts = fs.stats()
    assert (counts["keys"], counts["requests"]) == (5, 2)
    assert (counts["bytes_wanted"], counts["bytes_fetched"]) == (600, 400)


def test_range_beyond_the_end_fails_alone_in_its_batch(file: Path) -> None:
    end = len(DATA)
    fs = RefShardFileSystem({"fits": [str(file), end - 10, 10], "longer": [str(file), end - 5, 10]})
    found = fs.cat(["fits", "longer"], on_error="return")
    assert found["fits"] == DATA[-10:]
    assert "got 5 of 10" in str(found["longer"])


def test_inline_data_counts_no_request(file: Path) -> None:
    fs = RefShardFileSystem(references(file) | {"text": "12345"})
    for _ in range(7):
        for key in KEYS:
            fs.cat_file(key)
    fs.cat_file("text")
    counts = fs.stats()
    assert (counts["keys"], counts["requests"]) == (7 * COUNT + 1, 7 * COUNT)
    assert counts["bytes_wanted"] == counts["bytes_fetched"] == 7 * COUNT * 100


def test_stats_count_each_key_that_threads_read(file: Path) -> None:
    fs = RefShardFileSystem(references(file))
    threads = [threading.Thread(target=lambda: [fs.cat_file(key) for key in KEYS]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fs.stats()["keys"] == 8 * COUNT


def test_each_of_many_keys_has_its_bytes_or_error(file: Path, http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    references_of = {
        "near": [str(file), 1, 4],
        "far": [url, 2, 5],
        "text": "abc",
        "short": [str(file), len(DATA) - 3, 7],
        "lost": [str(file) + ".none"],
    }
    fs = RefShardFileSystem(references_of)
    told = Callback()
    keys = ["far", "none", "near", "short", "text", "lost"]
    found = fs.cat(keys, on_error="return", callback=told)
    assert [found[key] for key in ("far", "near", "text")] == [DATA[2:7], DATA[1:5], b"abc"]
    assert isinstance(found["none"], FileNotFoundError)
    assert "got 3 of 7" in str(found["short"])
    assert isinstance(found["lost"], ReferenceNotReachable)
    assert (told.size, told.value) == (6, 6)


def test_replaced_file_is_an_error_for_later_keys(file: Path) -> None:
    fs = RefShardFileSystem(references(file))
    assert fs.cat_file("a/3") == DATA[300:400]
    other = file.with_name("other")
    other.write_bytes(DATA[::-1])
    os.replace(other, file)
    with pytest.raises(TargetChanged):
        fs.cat_file("a/3")
    assert {type(error) for error in fs.cat(KEYS, on_error="return").values()} == {TargetChanged}


@pytest.mark.parametrize("together", [False, True])
def test_slow_files_are_read_side_by_side_on_a_loop(
    file: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    monkeypatch.setattr(immediate, "TOUCHING", Limits(gap=-1))
    read_at = local._read_at
    under_way = peak = 0

    def slow(file: Any, length: int, start: int) -> bytes:
        nonlocal under_way, peak
        under_way += 1
        peak = max(peak, under_way)
        time.sleep(0.005)
        under_way -= 1
        return read_at(file, length, start)

    monkeypatch.setattr(local, "_read_at", slow)

    async def read() -> list[bytes]:
        fs = RefShardFileSystem(references(file), asynchronous=True, skip_instance_cache=True)
        if together:
            found = await fs._cat(KEYS)
            return [found[key] for key in KEYS]
        return await asyncio.gather(*map(fs._cat_file, KEYS))

    assert asyncio.run(read()) == [DATA[100 * i : 100 * i + 100] for i in range(COUNT)]
    assert peak > 1


def test_second_error_of_a_selection_is_not_logged(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()  # tasks of earlier tests, whose loops are closed, are logged when they are collected
    caplog.clear()
    met = threading.Barrier(2, timeout=60)  # both threads then raise an error

    def take(number: int, data: bytes | None) -> None:
        met.wait()
        raise ValueError(str(number))

    async def read() -> None:
        fs = RefShardFileSystem(references(file), asynchronous=True, skip_instance_cache=True)
        await fs.source.read_selection(KEYS[:2], take, chunk_size=100, threads=True)

    with pytest.raises(ValueError, match="[01]"):
        asyncio.run(read())
    gc.collect()
    assert not caplog.records


def test_find_all_drops_entries_unless_it_keeps_them(tmp_path: Path) -> None:
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    source = RefShardFileSystem(str(tmp_path)).source
    keyspace, reader, entry = source.open(), source._get_immediate(), Span("memory://x", 0, 1)
    reader.remember_place(keyspace, "a/0", entry)
    found = [reader.find_all(keyspace, ["a/0"], keeps=keeps)[0] for keeps in (True, True, False, False)]
    assert [place is not None and place.value == entry for place in found] == [True, True, True, False]
