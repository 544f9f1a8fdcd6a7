"""Filesystems of one process share sources, engines of event loops, and decoded indexes."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem, TargetChanged, TargetNotAllowed
from refshard_fs.core.model import Span
from refshard_fs.reading.fetch import Fetcher
from refshard_fs.source.settings import Settings
from refshard_fs.source.source import Source
from tests.servers.http import RangeServer

REFS = "/set/refs.json"
DATA = "/set/x.bin"


@pytest.fixture
def source(http_server: RangeServer) -> str:
    http_server.put(DATA, bytes(range(100)))
    return http_server.put(REFS, json.dumps({f"k/{i}": ["x.bin", i, 1] for i in range(100)}).encode())


def opened(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, index_cache=False, **options)


def gets(server: RangeServer, path: str) -> int:
    return sum(request.method == "GET" for request in server.requests(path))


def test_ended_event_loops_are_freed(source: str) -> None:
    fs = opened(source, asynchronous=True)
    loops = []

    async def read(number: int) -> bytes:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        return await fs._cat_file(f"k/{number}")

    for number in range(10):
        assert asyncio.run(read(number)) == bytes([number])
    gc.collect()
    assert sum(loop() is not None for loop in loops) <= 1


def test_closed_loops_are_dropped_at_the_next_read() -> None:
    fs = opened({"k": "data"}, asynchronous=True)
    loops = []
    for _ in range(5):
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(fs._info("k"))["size"] == 4
        loop.close()
        loops.append(weakref.ref(loop))
        del loop
    gc.collect()
    assert sum(loop() is not None for loop in loops) <= 1


def test_connections_are_closed_on_their_loop_when_process_ends(source: str) -> None:
    code = f"from refshard_fs import RefShardFileSystem as FS\nassert FS({source!r}).cat_file('k/9') == bytes([9])"
    out = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, check=True)
    assert "Non-thread-safe" not in out.stderr
    assert "unclosed" not in out.stderr


def test_copies_of_a_filesystem_open_its_source_once(source: str, http_server: RangeServer) -> None:
    data = pickle.dumps(opened(source))
    copies = [pickle.loads(data) for _ in range(20)]
    assert [copy.cat_file("k/1") for copy in copies] == [b"\x01"] * 20
    assert gets(http_server, REFS) <= 2  # its first bytes, and all of it
    assert copies[0].stats()["keys"] == 20
    assert len({copy.source for copy in copies}) == 1


def test_copy_derives_no_settings(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = opened(source)
    data = pickle.dumps(fs)
    monkeypatch.setattr(Settings, "of", lambda options: pytest.fail(f"derived settings from {options}"))
    assert pickle.loads(data).source is fs.source
    assert RefShardFileSystem(*fs.storage_args, **{**fs.storage_options, "asynchronous": True}).source is fs.source


def test_asynchronous_copy_shares_statistics(source: str) -> None:
    fs = opened(source)
    spelled = json.loads(fs.to_json()) | {"asynchronous": True}
    copy = RefShardFileSystem.from_json(json.dumps(spelled))
    assert copy.asynchronous
    assert asyncio.run(copy._cat_file("k/2")) == b"\x02"
    assert fs.stats()["keys"] == 1


def test_copy_with_another_allow_refuses_other_targets(source: str) -> None:
    fs = opened(source, allow="any")
    fs.cat_file("k/1")
    spelled = json.loads(fs.to_json()) | {"allow": ["s3://elsewhere/"]}
    with pytest.raises(TargetNotAllowed):
        RefShardFileSystem.from_json(json.dumps(spelled)).cat_file("k/1")


def test_new_filesystem_opens_the_current_source(tmp_path: Path) -> None:
    path = tmp_path / "refs.json"
    path.write_text('{"k": "old"}')
    first = opened(str(path))
    assert first.cat_file("k") == b"old"
    path.write_text('{"k": "what is new"}')
    assert pickle.loads(pickle.dumps(opened(str(path)))).cat_file("k") == b"what is new"
    assert pickle.loads(pickle.dumps(first)).cat_file("k") == b"old"


def test_invalidated_source_counts_bytes_of_several_arrays() -> None:
    source = opened({"k": "data"}).source
    for _ in range(2):
        source._mixed.put(Span("https://host/a", 0, 3), b"abc", 3)
        assert source.selections.used_bytes == 3
        source.invalidate()


def test_invalidation_keeps_the_indexes_of_other_sources(source: str, http_server: RangeServer) -> None:
    other = http_server.put("/other/refs.json", json.dumps({f"k/{i}": "other" for i in range(10_000)}).encode())
    assert opened(other).cat_file("k/1") == b"other"
    fs = opened(source)
    fs.cat_file("k/1")
    before = gets(http_server, "/other/refs.json")
    fs.invalidate_cache()
    assert opened(other).cat_file("k/2") == b"other"
    assert gets(http_server, "/other/refs.json") == before + 1  # a request for its first bytes and its version


@pytest.mark.parametrize("mode", ["r", "a"])
def test_one_array_can_be_invalidated(mode: str, http_server: RangeServer) -> None:
    meta = {"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1", "order": "C"}
    array = json.dumps(meta | {"fill_value": 0, "filters": None, "compressor": None}).encode()
    files = {".zgroup": b'{"zarr_format": 2}'}
    files |= {f"{name}/{key}": value for name in "ab" for key, value in ((".zarray", array), ("0", b"1"))}
    for name, value in files.items():
        url = http_server.put(f"/store/{name}", value)
    fs = opened(url.rpartition("/store/")[0] + "/store", format="zarr-hierarchy", mode=mode)
    assert fs.cat(["a/0", "b/0"]) == {"a/0": b"1", "b/0": b"1"}
    for name in "ab":
        http_server.put(f"/store/{name}/0", b"23")
    fs.invalidate_cache("a")
    assert fs.cat_file("a/0") == b"23"
    with pytest.raises(Exception, match="invalidate_cache"):  # the object has another version than before
        fs.cat_file("b/0")
    fs.invalidate_cache()
    assert fs.cat_file("b/0") == b"23"


@pytest.mark.parametrize("mode", ["r", "a"])
def test_indexes_of_rewritten_shards_are_invalidated(mode: str, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", minversion="3")

    def write(size: int) -> None:
        shape = {"shape": (8 * size,), "chunks": (size,), "shards": (8 * size,), "dtype": "u1", "compressors": None}
        zarr.create_array(tmp_path / "a.zarr", **shape, overwrite=True)[:] = size

    write(3)
    fs = opened(str(tmp_path / "a.zarr"), mode=mode)
    assert fs.cat_file("c/7") == b"\x03" * 3
    write(5)
    fs.invalidate_cache()
    assert fs.cat_file("c/7") == b"\x05" * 5


def test_local_chunks_are_read_without_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No chunk of the array was read before."""
    meta = {"zarr_format": 2, "shape": [40], "chunks": [4], "dtype": "|u1", "order": "C", "fill_value": 0}
    (tmp_path / "a").mkdir()
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "a/.zarray").write_text(json.dumps({**meta, "filters": None, "compressor": None}))
    for number in range(9):
        (tmp_path / f"a/{number}").write_bytes(bytes([number] * 4))
    fs = RefShardFileSystem(str(tmp_path), skip_instance_cache=True)
    fs.source.open()
    monkeypatch.setattr(Fetcher, "read", lambda *args: pytest.fail("the event loop reads a chunk"))
    read = fs.cat([f"a/{number}" for number in range(10)], on_error="return")
    assert isinstance(read.pop("a/9"), FileNotFoundError)
    assert read == {f"a/{number}": bytes([number] * 4) for number in range(9)}


def test_local_variables_are_loaded_without_an_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first read of a variable also reads the index of its chunks."""
    h5netcdf, xr = pytest.importorskip("h5netcdf"), pytest.importorskip("xarray")
    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"x": 100}
        for number in range(40):  # more than `MOST_PREPARED_INDEXES`
            variable = file.create_variable(f"v{number}", ("x",), "i4", chunks=(10,), compression="gzip")
            variable[:] = range(number, number + 100)
    with xr.open_dataset(tmp_path / "a.nc", engine="refshard") as ds:
        monkeypatch.setattr(Source, "wait", lambda *args: pytest.fail("a read uses the event loop"))
        assert [int(ds[f"v{number}"].values[7]) for number in range(40)] == list(range(7, 47))


def test_head_is_the_length_of_the_first_request(http_server: RangeServer) -> None:
    url = http_server.put("/refs.json", b'{"a/0": "x"}' + b" " * 100_000)
    assert RefShardFileSystem(url, head=5000, skip_instance_cache=True).cat_file("a/0") == b"x"
    first = next(request for request in http_server.requests("/refs.json") if request.method == "GET")
    assert first.headers["range"] == "bytes=0-4999"


def make_large_set(name: str) -> bytes:
    """Return a set of references that takes two requests to open."""
    return json.dumps({"version": 1, "refs": {f"{name}/{i}": "x" * 40 for i in range(5000)}}).encode()


def test_source_that_is_replaced_while_it_is_opened(http_server: RangeServer) -> None:
    url = http_server.put("refs.json", make_large_set("old"))
    http_server.fault("replaced", data=make_large_set("new"), after=1, times=1)
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    assert fs.cat_file("new/0") == b"x" * 40
    assert len(http_server.requests()) == 4


def test_source_replaced_at_each_opening_is_an_error(http_server: RangeServer) -> None:
    url = http_server.put("refs.json", make_large_set("a"))
    for number in range(20):
        http_server.fault("replaced", data=make_large_set(f"a{number}"), times=1)
    with pytest.raises(TargetChanged):
        RefShardFileSystem(url, skip_instance_cache=True).cat_file("a/0")
    assert len(http_server.requests()) == 6
