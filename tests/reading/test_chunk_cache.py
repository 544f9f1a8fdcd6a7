"""Chunks in the cache on disk are read by later processes, but only in the current version of their object."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

import refshard_fs
from refshard_fs import ReferenceNotReachable, RefShardFileSystem, TargetNotAllowed
from refshard_fs.core.model import Facts, Span
from refshard_fs.errors import CostlyPattern
from refshard_fs.reading import chunk_cache
from refshard_fs.reading.chunk_cache import ChunkCache
from refshard_fs.reading.index_cache import list_files
from refshard_fs.source.source import INDEXES
from tests.servers.http import RangeServer
from tests.servers.log import Request
from tests.servers.wire import Answer, Head
from tests.support.chunked import Chunked
from tests.support.threads import wait_for_writes

SPAN = Span("https://host/x", 0, 1000)
FACTS = Facts(10_000, '"1"')
BYTES = bytes(range(250)) * 4
HAS_OWNERS = hasattr(os, "getuid")


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    INDEXES.clear()
    yield
    wait_for_writes()


@pytest.fixture
def chunked(http_server: RangeServer) -> Chunked:
    return Chunked(http_server, 20)


def open_with_cache(fo: Any, folder: Path, **options: Any) -> RefShardFileSystem:
    """Wait until all ranges are on disk; return a filesystem as in another process: without indexes in memory."""
    wait_for_writes()
    INDEXES.clear()
    return RefShardFileSystem(fo, cache_dir=folder / "kept", skip_instance_cache=True, index_cache=False, **options)


def list_kept(folder: Path) -> list[Path]:
    wait_for_writes()
    return sorted((folder / "kept").glob("*/*"))


def wait_for_disk(data: bytes) -> bytes:
    """Wait until all ranges are on disk; return ``data``."""
    wait_for_writes()
    return data


def methods(server: RangeServer) -> list[str]:
    return [request.method for request in server.requests()]


def hdf5(scale: float) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as out:
        # The file is too large to be read whole.
        values = np.random.default_rng(1).integers(0, 1 << 15, (40, 40_000), "i2")
        made = out.create_dataset("v", data=values, chunks=(4, 40_000), compression="gzip", shuffle=True)
        made.attrs["scale_factor"] = scale
        made.dims[0].label = "t"
        out["t"] = np.arange(40.0) + 100 * scale
        out["t"].make_scale("t")
        made.dims[0].attach_scale(out["t"])
    return file.getvalue()


Made = tuple[Any, list[str]]


def of_references(server: RangeServer, folder: Path) -> Made:
    chunked = Chunked(server, 20)
    return chunked.refs(), chunked.keys(range(20))


def of_hdf5(server: RangeServer, folder: Path) -> Made:
    return server.put("/x.h5", hdf5(1.0)), [f"v/{number}.0" for number in range(10)]


def of_tiff(server: RangeServer, folder: Path) -> Made:
    tifffile = pytest.importorskip("tifffile")
    file = io.BytesIO()
    tifffile.imwrite(file, np.random.default_rng(1).integers(0, 1 << 16, (1200, 1200), "u2"), tile=(320, 320))
    return server.put("/x.tif", file.getvalue()), [f"0/{row}.{column}" for row in range(4) for column in range(4)]


def of_shards(server: RangeServer, folder: Path) -> Made:
    zarr = pytest.importorskip("zarr")
    if zarr.__version__.startswith("2."):
        pytest.skip("zarr 2 writes no shards")
    made = zarr.create_array(
        folder / "s.zarr", shape=(64, 64), chunks=(8, 8), shards=(32, 32), dtype="i4", fill_value=0
    )
    made[:] = np.arange(64 * 64).reshape(64, 64) + 1
    for path in (folder / "s.zarr").rglob("*"):
        if path.is_file():
            server.put(f"/s.zarr/{path.relative_to(folder / 's.zarr').as_posix()}", path.read_bytes())
    return f"{server.url}/s.zarr", [f"c/{row}/{column}" for row in range(4) for column in range(8)]


def of_cube(server: RangeServer, folder: Path) -> Made:
    urls = [server.put(f"/{number}.h5", hdf5(1.0 + number)) for number in range(2)]
    cube = refshard_fs.concat(urls, dim="t", lazy=True, allow=[server.url], index_cache=False)
    cube.save(str(folder / "cube.refshard"))
    return str(folder / "cube.refshard"), [f"v/{number}.0" for number in range(20)]


@pytest.mark.parametrize("make", [of_references, of_hdf5, of_tiff, of_shards, of_cube])
def test_chunks_on_disk_are_not_requested_by_a_new_filesystem(
    make: Callable[[RangeServer, Path], Made], http_server: RangeServer, tmp_path: Path
) -> None:
    source, keys = make(http_server, tmp_path)
    first = open_with_cache(source, tmp_path, allow="any").cat(keys)
    again = open_with_cache(source, tmp_path, allow="any")
    http_server.clear()
    again.cat([keys[0], keys[-1]])  # opens the source and its parts
    assert len(http_server.requests()) <= 16
    http_server.clear()
    assert again.cat(keys) == first
    assert not http_server.requests()
    assert again.stats()["disk_hits"] > 0
    assert again.stats()["disk_bytes"] > 5_000


def test_cached_whole_objects_cost_only_a_version_check(http_server: RangeServer, tmp_path: Path) -> None:
    """A chunk of a hierarchy is an object, whose version is requested, but whose bytes are read from the disk."""
    meta = {"zarr_format": 2, "shape": [8], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
    http_server.put("/z/.zarray", json.dumps({**meta, "filters": None, "compressor": None}).encode())
    for number in range(8):
        http_server.put(f"/z/{number}", bytes([number + 1]))
    keys = [str(number) for number in range(8)]
    open_with_cache(http_server.url + "/z", tmp_path).cat(keys)
    fs = open_with_cache(http_server.url + "/z", tmp_path)
    fs.cat_file(".zarray")
    http_server.delete("/z/7")
    http_server.clear()
    assert fs.cat(keys[:7]) == {key: bytes([int(key) + 1]) for key in keys[:7]}
    assert methods(http_server) == ["HEAD"] * 7
    with pytest.raises(FileNotFoundError):
        fs.cat_file("7")


def test_asynchronous_reader_uses_the_cache(chunked: Chunked, tmp_path: Path) -> None:
    keys = chunked.keys(range(20))

    async def read() -> tuple[Any, bytes]:
        fs = open_with_cache(chunked.refs(), tmp_path, asynchronous=True)
        return await fs._cat(keys), await fs._cat_file(keys[5], start=10, end=20)

    first = asyncio.run(read())
    wait_for_writes()
    chunked.server.clear()
    assert asyncio.run(read()) == first
    assert methods(chunked.server) == ["HEAD"]


def test_cached_chunks_are_not_read_ahead(chunked: Chunked, tmp_path: Path) -> None:
    keys = chunked.keys(range(20))
    open_with_cache(chunked.refs(), tmp_path).cat(keys)
    fs = open_with_cache(chunked.refs(), tmp_path)
    chunked.server.clear()
    fs.prefetch("a", slice(0, 10))
    assert [fs.cat_file(key) for key in keys] == [chunked.chunk(number) for number in range(20)]
    assert methods(chunked.server) == ["HEAD"]


def test_threads_share_the_cache(chunked: Chunked, tmp_path: Path) -> None:
    keys = chunked.keys(range(20))
    first = open_with_cache(chunked.refs(), tmp_path)
    fs = open_with_cache(chunked.refs(), tmp_path)
    errors: list[BaseException] = []

    def read(filesystem: RefShardFileSystem, seed: int) -> None:
        try:
            for number in np.random.default_rng(seed).permutation(20):
                assert filesystem.cat_file(keys[number]) == chunked.chunk(number)
        except BaseException as e:  # the assertion below fails with it
            errors.append(e)

    threads = [threading.Thread(target=read, args=((first, fs)[seed % 2], seed)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(list_kept(tmp_path)) == 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_child_reads_and_writes_the_cache(chunked: Chunked, tmp_path: Path) -> None:
    fs = open_with_cache(chunked.refs(), tmp_path)
    fs.cat_file("a/0.0")
    child = os.fork()
    if not child:
        status = 1
        try:
            status = (
                0 if [fs.cat_file(key) for key in ("a/0.0", "a/1.0")] == [chunked.chunk(0), chunked.chunk(1)] else 2
            )
            wait_for_writes()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list_kept(tmp_path)) == 2


@pytest.mark.parametrize("is_known", [False, True], ids=["asked", "asked-before"])
@pytest.mark.case(id="P25")
def test_changed_target_is_read_again(is_known: bool, chunked: Chunked, tmp_path: Path) -> None:
    keys = chunked.keys(range(20))
    first = open_with_cache(chunked.refs(), tmp_path).cat(keys)
    fs = open_with_cache(chunked.refs(), tmp_path)
    if is_known:  # the source then expects this version, also of bytes on disk
        fs.cat_file(keys[0])
    chunked.server.replace("/data.bin", None)
    if is_known:
        fs.invalidate_cache()
    assert all(fs.cat(keys)[key] != first[key] for key in keys)
    assert fs.stats()["requests"] > 0
    last = open_with_cache(chunked.refs(), tmp_path)
    assert last.cat_file(keys[3]) == bytes(255 - byte for byte in first[keys[3]])
    assert last.stats()["requests"] == 0


def test_pinned_target_that_changed_is_an_error(chunked: Chunked, tmp_path: Path) -> None:
    refshard_fs.snapshot(chunked.refs(), allow="any", index_cache=False).save(str(tmp_path / "refs.json"))
    keys = chunked.keys(range(20))
    open_with_cache(str(tmp_path / "refs.json"), tmp_path).cat(keys)
    fs = open_with_cache(str(tmp_path / "refs.json"), tmp_path)
    assert fs.cat_file(keys[1]) == chunked.chunk(1)
    assert fs.stats()["disk_hits"] == 1
    chunked.server.replace("/data.bin", None)
    with pytest.raises(ReferenceNotReachable, match="replaced|not the object"):
        open_with_cache(str(tmp_path / "refs.json"), tmp_path).cat_file(keys[1])


@pytest.mark.case(id="P25")
def test_replaced_shard_is_an_error_despite_its_index_in_memory(http_server: RangeServer, tmp_path: Path) -> None:
    """A new filesystem must request the shard's version, although the process has the shard's index in memory."""
    source, _ = of_shards(http_server, tmp_path)
    open_with_cache(source, tmp_path).cat_file("c/0/0")
    wait_for_writes()
    http_server.replace("/s.zarr/c/0/0", None)
    again = RefShardFileSystem(source, cache_dir=tmp_path / "kept", skip_instance_cache=True)
    with pytest.raises(ReferenceNotReachable):
        again.cat_file("c/0/0")


class Bare(RangeServer):
    """A server that sends only the headers ``told`` about the version of an object."""

    told: dict[str, str] = {}  # noqa: RUF012  # set by each test

    def _read(self, head: Head, request: Request) -> Answer:
        answer = super()._read(head, request)
        headers = {name: text for name, text in answer.headers.items() if name not in ("ETag", "Last-Modified")}
        return replace(answer, headers=headers | self.told)


OLD, NEW = "Wed, 01 Jan 2020 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"


@pytest.mark.parametrize(
    ("told", "is_kept"),
    [
        ({}, False),
        ({"ETag": 'W/"1"'}, False),
        ({"Last-Modified": NEW}, False),
        ({"Last-Modified": OLD}, True),
        ({"ETag": 'W/"1"', "Last-Modified": OLD}, True),
        ({"ETag": '"1"', "Last-Modified": NEW}, True),
        ({"ETag": '""'}, False),
    ],
)
def test_bytes_are_kept_only_with_an_unambiguous_version(told: dict[str, str], is_kept: bool, tmp_path: Path) -> None:
    with Bare() as server:
        server.told = told
        chunked = Chunked(server, 4)
        for _ in range(2):
            fs = open_with_cache(chunked.refs(), tmp_path)
            fs.cat(chunked.keys(range(4)))
        assert len(list_kept(tmp_path)) == 4 * is_kept
        assert fs.stats()["disk_hits"] == 4 * is_kept


def test_ignored_versions_disable_the_cache(chunked: Chunked, tmp_path: Path) -> None:
    fs = open_with_cache(chunked.refs(), tmp_path, options={chunked.server.url: {"versions": "ignore"}})
    fs.cat_file("a/0.0")
    assert not list_kept(tmp_path)


class Store(LocalFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """A filesystem that returns bytes without a version, but has a version in ``info``."""

    protocol = "store"
    root = ""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return cls.root + "/" + path.removeprefix("store://").rpartition("/")[2]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found = super().info(path)
        return {"name": path, "size": found["size"], "type": "file", "etag": f'"{found["mtime"]}"'}


def test_cached_ranges_of_generic_filesystems_check_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "root", str(tmp_path))
    (tmp_path / "x").write_bytes(BYTES)
    refs = {f"a/{number}": ["store://x", number * 100, 100] for number in range(10)}
    keys = [*refs]
    for changes, requests in ((False, 1), (False, 0), (True, 1), (False, 0)):
        if changes:
            (tmp_path / "x").write_bytes(BYTES[::-1])
            os.utime(tmp_path / "x", (1, 1))
        fs = open_with_cache(refs, tmp_path, fs={"store": Store(skip_instance_cache=True)})
        assert b"".join(fs.cat(keys).values()) == (tmp_path / "x").read_bytes()
        assert fs.stats()["requests"] == requests


@pytest.mark.parametrize("fast", [True, False])
def test_s3_objects_are_cached_with_versions(fast: bool, s3_server: Any, tmp_path: Path) -> None:
    bucket = f"kept-{str(fast).lower()}"
    s3_server.create_bucket(bucket)
    refs = {f"a/{number}": [f"s3://{bucket}/x", number * 100, 100] for number in range(10)}
    for data, requests in ((BYTES, 1), (BYTES, 0), (BYTES[::-1], 1), (BYTES[::-1], 0)):
        s3_server.put(f"{bucket}/x", data)
        fs = open_with_cache(refs, tmp_path, remote_options=s3_server.storage_options, fast_s3=fast)
        assert b"".join(fs.cat([*refs]).values()) == data
        assert fs.stats()["requests"] == requests


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def halve(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def make_flip(place: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)

    flip.__name__ = f"flip[{place}]"
    return flip


def exchange(path: Path) -> None:
    other = next(each for each in path.parent.parent.glob("*/*") if each != path)
    other.replace(path)


@pytest.mark.parametrize("harm", [empty, cut, halve, lengthen, make_flip(7), make_flip(-1), make_flip(-20), exchange])
@pytest.mark.case(id="P25")
def test_chunk_in_a_damaged_cache_file_is_fetched_again(
    harm: Callable[[Path], None], chunked: Chunked, tmp_path: Path
) -> None:
    key, other = chunked.keys([3, 4])
    open_with_cache(chunked.refs(), tmp_path).cat_file(key)
    (path,) = list_kept(tmp_path)
    good = path.read_bytes()
    open_with_cache(chunked.refs(), tmp_path).cat_file(other)
    wait_for_writes()
    harm(path)
    chunked.server.clear()
    assert open_with_cache(chunked.refs(), tmp_path).cat_file(key) == chunked.chunk(3)
    assert (3, 4) in chunked.ranges
    wait_for_writes()
    assert path.read_bytes() == good


def test_flipped_bit_in_a_cache_file_is_noticed(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path / "kept", 1 << 20)
    cache.put(SPAN, FACTS, BYTES)
    (path,) = list_kept(tmp_path)
    good = path.read_bytes()
    for place in range(0, len(good), 3):
        harmed = bytearray(good)
        harmed[place] ^= 1 << place % 8
        path.write_bytes(harmed)
        assert cache.get(SPAN, FACTS) is None
    path.write_bytes(good)
    assert cache.get(SPAN, FACTS) == BYTES


def count_used(folder: Path) -> int:
    """Stop writers, and return the bytes that all files take, in blocks of a disk."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with chunk_cache._writing, chunk_cache._lock_total(str(folder / chunk_cache.TOTAL)):
        return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.glob("*/*"))


WRITER = """
import sys, threading
from refshard_fs.core.model import Facts, Span
from refshard_fs.reading.chunk_cache import ChunkCache
cache, seed = ChunkCache(sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
for number in range(seed, seed + int(sys.argv[4])):
    cache.put(Span("https://host/x", number, number + 5000), Facts(10**9, '"1"'), bytes([number % 251]) * 5000)
"""


def writer(python: list[str], folder: Path, capacity: int, seed: int, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*python, "-c", WRITER, str(folder), str(capacity), str(seed), str(count)])


def test_two_writing_processes_share_one_bound_of_the_cache(tmp_path: Path, fast_python: list[str]) -> None:
    folder, capacity = tmp_path / "kept", 30 * 8192
    writers = [writer(fast_python, folder, capacity, seed, 100) for seed in (0, 1000)]
    most = 0
    while any(process.poll() is None for process in writers):
        most = max(most, count_used(folder))
    assert [process.wait() for process in writers] == [0, 0]
    assert 0 < max(most, count_used(folder)) <= capacity
    cache = ChunkCache(folder, capacity)
    spans = [Span("https://host/x", number, number + 5000) for seed in (0, 1000) for number in range(seed, seed + 100)]
    found = [cache.get(span, Facts(10**9, '"1"')) for span in spans]
    assert sum(data is not None for data in found) == len(list_kept(tmp_path)) > 10
    assert all(data in (None, bytes([span.start % 251]) * 5000) for span, data in zip(spans, found, strict=True))


def test_cache_bytes_limits_the_cache_of_a_filesystem(http_server: RangeServer, tmp_path: Path) -> None:
    url = http_server.put("/many", os.urandom(1 << 20))
    refs = {f"a/{n}": [url, n << 14, 1 << 14] for n in range(64)}
    for n in range(64):
        open_with_cache(refs, tmp_path, cache_bytes=200_000).cat_file(f"a/{n}")
    used = [path.stat().st_size for path in list_kept(tmp_path)]
    assert 0 < sum(used) <= 200_000


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes end in another way")
def test_draft_of_a_killed_writer_counts_and_is_deleted(tmp_path: Path) -> None:
    folder, capacity = tmp_path / "kept", 30 * 8192
    process = writer([sys.executable], folder, capacity, 0, 10**6)
    while count_used(folder) < capacity // 2:
        pass
    process.kill()
    process.wait()
    cache = ChunkCache(folder, capacity)
    draft = folder / "0" / f"x{chunk_cache.DRAFT}"  # like the draft of a writer that is killed while it writes
    draft.parent.mkdir(exist_ok=True)
    draft.write_bytes(bytes(10 * 8192))
    os.utime(draft, (time.time() - 100,) * 2)
    (folder / chunk_cache.TOTAL).write_bytes(b"")  # the total lacks the bytes of this draft
    for number in range(60):
        cache.put(Span("https://host/y", number, number + 5000), FACTS, bytes(5000))
        wait_for_writes()
        assert count_used(folder) <= capacity
    assert not draft.exists()  # the oldest file is deleted first
    draft.write_bytes(bytes(100))
    os.utime(draft, (1, 1))
    assert draft not in [Path(file.path) for file in list_files(draft.parent, chunk_cache.SUFFIX, chunk_cache.DRAFT)]
    assert not draft.exists()


def test_least_recently_read_files_are_evicted_first(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path / "kept", 10 * 4096)
    spans = [Span("https://host/x", number, number + 1000) for number in range(12)]
    for age, span in enumerate(spans[:10]):
        cache.put(span, FACTS, BYTES)
        wait_for_writes()
        path = max(list_kept(tmp_path), key=lambda path: path.stat().st_mtime)
        os.utime(path, (time.time() - 1000 + age,) * 2)
    assert cache.get(spans[0], FACTS) == BYTES  # now this file was read last
    cache.put(spans[10], FACTS, BYTES)
    wait_for_writes()
    there = [number for number, span in enumerate(spans) if cache.get(span, FACTS) is not None]
    assert there[0] == 0
    assert there[1:] == [*range(12 - len(there), 11)]
    assert len(there) >= 8


@pytest.mark.case(id="P25")
def test_only_the_owner_can_read_cache_files(chunked: Chunked, tmp_path: Path) -> None:
    open_with_cache(chunked.refs(), tmp_path).cat(chunked.keys(range(4)))
    paths = [tmp_path / "kept", *(tmp_path / "kept").rglob("*")] if list_kept(tmp_path) else []
    assert paths
    assert {oct(path.stat().st_mode & 0o777) for path in paths} == {"0o700", "0o600"}


@pytest.mark.parametrize("count", [0, 4000], ids=["in the first block", "in several"])
@pytest.mark.case(id="P25")
def test_cache_files_have_no_tokens(count: int, http_server: RangeServer, tmp_path: Path) -> None:
    """Files have no tokens of targets, and documents, which may contain tokens, are not kept."""
    chunked = Chunked(http_server, 4)
    refs = {key: [value[0] + "?token=hush", *value[1:]] if isinstance(value, list) else value
            for key, value in chunked.refs().items()}  # fmt: skip
    refs |= {f"b/{number}": [f"{chunked.url}?token=hush{number}", 0, 1] for number in range(count)}
    http_server.put("/refs.json", json.dumps(refs).encode())
    fs = open_with_cache(http_server.url + "/refs.json?token=hush", tmp_path)
    assert fs.cat_file("a/1.0") == chunked.chunk(1)
    assert len(list_kept(tmp_path)) == 1
    for path in (tmp_path / "kept").rglob("*"):
        assert "hush" not in path.name
        assert not path.is_file() or b"hush" not in path.read_bytes()


@pytest.mark.skipif(not HAS_OWNERS or os.name == "nt", reason="links take rights there that few have")
@pytest.mark.parametrize("what", ["link to a file", "link to a directory", "directory of others", "pipe"])
@pytest.mark.case(id="P25")
def test_links_pipes_and_shared_directories_are_not_used(what: str, chunked: Chunked, tmp_path: Path) -> None:
    key = chunked.keys([3])[0]
    open_with_cache(chunked.refs(), tmp_path).cat_file(key)
    (path,) = list_kept(tmp_path)
    if what == "link to a file":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif what == "link to a directory":
        (tmp_path / "kept").rename(tmp_path / "moved")
        (tmp_path / "kept").symlink_to(tmp_path / "moved")
    else:
        (tmp_path / "kept").chmod(0o770)
    fs = open_with_cache(chunked.refs(), tmp_path)
    if "directory" in what:
        with pytest.warns(CostlyPattern, match="cache_dir="):
            assert wait_for_disk(fs.cat_file(key)) == chunked.chunk(3)
    else:
        assert fs.cat_file(key) == chunked.chunk(3)
    assert fs.stats()["requests"] == 1


@pytest.mark.skipif(not HAS_OWNERS or os.getuid() != 0, reason="files of others are made by root")
@pytest.mark.case(id="P25")
def test_file_of_another_user_is_ignored(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path / "kept", 1 << 20)
    cache.put(SPAN, FACTS, BYTES)
    (path,) = list_kept(tmp_path)
    os.chown(path, 12345, 12345)
    assert cache.get(SPAN, FACTS) is None


@pytest.mark.case(id="P25")
def test_cached_chunk_outside_allow_is_refused(chunked: Chunked, tmp_path: Path) -> None:
    key = chunked.keys([3])[0]
    open_with_cache(chunked.refs(), tmp_path).cat_file(key)
    with pytest.raises(TargetNotAllowed):
        open_with_cache(chunked.refs(), tmp_path, allow=["https://elsewhere/"]).cat_file(key)


@pytest.mark.case(id="P25")
def test_cached_chunk_that_the_server_now_denies_is_an_error(chunked: Chunked, tmp_path: Path) -> None:
    key = chunked.keys([3])[0]
    open_with_cache(chunked.refs(), tmp_path).cat_file(key)
    chunked.server.fault(403, "/data.bin")
    with pytest.raises(ReferenceNotReachable, match="403"):
        open_with_cache(chunked.refs(), tmp_path).cat_file(key)


@pytest.mark.parametrize("what", ["file", "full"])
def test_unusable_cache_directory_does_not_stop_reading(
    what: str, chunked: Chunked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "file":
        (tmp_path / "kept").write_text("no directory")
    else:

        def full(path: str, flags: int) -> int:
            if path.endswith(chunk_cache.DRAFT):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return os.open(path, flags, 0o600)

        monkeypatch.setattr(chunk_cache, "open_as_it_is", full)
    fs = open_with_cache(chunked.refs(), tmp_path)
    with pytest.warns(CostlyPattern, match="chunks are not kept in cache_dir=.*(exists|No space)") as caught:
        assert [wait_for_disk(fs.cat_file(key)) for key in chunked.keys(range(5))] == [
            chunked.chunk(n) for n in range(5)
        ]
    assert len(caught) == 1
    assert not list_kept(tmp_path)
