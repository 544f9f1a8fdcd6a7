"""zarr lists and reads the references of a set through its stores over the filesystem."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer

zarr = pytest.importorskip("zarr")
FsspecStore = getattr(pytest.importorskip("zarr.storage"), "FsspecStore", None)

ARRAY = json.dumps(
    {
        "zarr_format": 2,
        "shape": [2],
        "chunks": [1],
        "dtype": "|u1",
        "order": "C",
        "fill_value": 9,
        "filters": None,
        "compressor": None,
    }
)
GROUP = '{"zarr_format": 2}'
REFS: dict[str, Any] = {
    ".zgroup": GROUP,
    "top/.zarray": ARRAY,
    "top/0": "a",
    "sub/.zgroup": GROUP,
    "sub/a/.zarray": ARRAY,
    "sub/a/0": "b",
    "sub/deep/.zgroup": GROUP,
    "sub/deep/a/.zarray": ARRAY,
    "sub/deep/a/1": "c",
}
MEMBERS = ["sub", "sub/a", "sub/deep", "sub/deep/a", "top"]


@pytest.mark.skipif(FsspecStore is None, reason="zarr 2 has no FsspecStore")
@pytest.mark.parametrize("path", ["", "/"])
def test_nested_groups_are_listed_with_or_without_a_slash(path: str) -> None:
    store = FsspecStore(RefShardFileSystem(REFS, asynchronous=True), read_only=True, path=path)
    group = zarr.open_group(store, mode="r")
    assert sorted(name for name, _ in group.members(max_depth=None)) == MEMBERS
    assert group["sub/deep/a"][:].tolist() == [9, ord("c")]


@pytest.mark.skipif(FsspecStore is not None, reason="zarr 3 takes no mapper of a synchronous filesystem")
def test_zarr_2_lists_and_reads_through_a_mapper() -> None:
    group = zarr.open(RefShardFileSystem(REFS).get_mapper(""), mode="r")
    found: list[str] = []
    group.visit(found.append)
    assert sorted(found) == MEMBERS
    assert group["sub/deep/a"][:].tolist() == [9, ord("c")]


def run_in_loop(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test that runs the coroutine ``test`` in a new event loop."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(test(*args, **kwargs))

    return run


try:
    from zarr.abc.store import RangeByteRequest, SuffixByteRequest
    from zarr.core.buffer import Buffer, cpu
    from zarr.testing.store import StoreTests
except ImportError:  # of zarr 2

    class StoreTests:  # type: ignore[no-redef]
        def __class_getitem__(cls, item: Any) -> Any:
            return cls


class OfZarr(StoreTests):  # type: ignore[misc]
    """zarr's tests of stores, with coroutines as functions. The name does not begin with Test: pytest ignores it."""


for _name, _test in inspect.getmembers(StoreTests, inspect.iscoroutinefunction):
    if _name.startswith("test_"):
        setattr(OfZarr, _name, run_in_loop(_test))


@pytest.mark.skipif(FsspecStore is None, reason="zarr 2 has no tests of stores")
class TestStoresOverSetsInMemory(OfZarr):
    """zarr's tests of stores, with a store over a set in memory; fsspec's ``reference`` passes the same tests."""

    store_cls = FsspecStore
    buffer_cls = None if FsspecStore is None else cpu.Buffer

    @pytest.fixture
    def store_kwargs(self) -> dict[str, Any]:
        return {"fs": RefShardFileSystem({}, asynchronous=True), "path": ""}

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> Any:
        return asyncio.run(FsspecStore.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> Any:
        return FsspecStore(**store_kwargs)

    async def set(self, store: Any, key: str, value: Buffer) -> None:
        await store.fs._pipe_file(key, value.to_bytes())

    async def get(self, store: Any, key: str) -> Buffer:
        return cpu.Buffer.from_bytes(await store.fs._cat_file(key))

    def test_store_repr(self, store: Any) -> None:
        assert str(store) == "<FsspecStore(RefShardFileSystem, )>"

    def test_store_supports_writes(self, store: Any) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: Any) -> None:
        assert store.supports_listing

    def test_serializable_store(self, store: Any) -> None:
        """zarr's test expects that the copy is equal. Stores over two such filesystems never are, with either class."""
        store.fs.pipe_file("foo", b"1234")
        assert asyncio.run(pickle.loads(pickle.dumps(store)).fs._cat_file("foo")) == b"1234"


@pytest.mark.skipif(FsspecStore is None, reason="zarr 2 has no such stores")
class TestStore(OfZarr):
    """zarr's tests of stores, with a store over a set that takes writes."""

    store_cls = None if FsspecStore is None else refshard_fs.Store
    buffer_cls = None if FsspecStore is None else cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, tmp_path: Path) -> Iterator[dict[str, Any]]:
        fs = RefShardFileSystem(str(tmp_path / "refs.json"), mode="a")
        yield {"source": fs}
        fs.discard()

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> Any:
        return asyncio.run(refshard_fs.Store.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> Any:
        return refshard_fs.Store(**store_kwargs)

    async def set(self, store: Any, key: str, value: Buffer) -> None:
        await store.fs._pipe_file(key, value.to_bytes())

    async def get(self, store: Any, key: str) -> Buffer:
        return cpu.Buffer.from_bytes(await store.fs._cat_file(key))

    def test_store_repr(self, store: Any) -> None:
        assert "refs.json" in str(store)

    def test_store_supports_writes(self, store: Any) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: Any) -> None:
        assert store.supports_listing


needs_zarr_3 = pytest.mark.skipif(FsspecStore is None, reason="zarr 2 has no such stores")


@needs_zarr_3
@pytest.mark.parametrize("written", [False, True], ids=["untouched", "written to"])
@pytest.mark.parametrize("options", [{}, {"mode": "a"}, {"mode": "w"}], ids=str)
def test_pickled_store_is_equal(tmp_path: Path, options: dict[str, Any], written: bool) -> None:
    (tmp_path / "refs.json").write_text(json.dumps(REFS))
    store = refshard_fs.Store(str(tmp_path / "refs.json"), **options)
    if written and options:
        store.fs.pipe_file("new", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert (copy.read_only, copy.fs.find("")) == (not options, store.fs.find(""))
    assert store != refshard_fs.Store(REFS)
    if options:
        assert store != store.with_read_only(True)
        store.fs.discard()


@needs_zarr_3
def test_store_of_a_url_takes_no_writes(tmp_path: Path) -> None:
    (tmp_path / "refs.json").write_text(json.dumps(REFS))
    store = refshard_fs.Store(str(tmp_path / "refs.json"))
    assert (store.read_only, store.supports_writes, store.supports_deletes) == (True, False, False)
    with pytest.raises(ValueError, match="read_only=False needs a source that is open for writing"):
        store.with_read_only(False)


@needs_zarr_3
def test_store_of_a_filesystem_takes_no_options() -> None:
    with pytest.raises(TypeError, match="no options beside a filesystem, got shards"):
        refshard_fs.Store(refshard_fs.Store(REFS).fs, shards="whole")


@needs_zarr_3
def test_store_shows_failed_reads_and_no_fill_values(http_server: RangeServer) -> None:
    url = f"{http_server.url}/gone"
    store = refshard_fs.Store({**REFS, "top/0": [url, 0, 1], "top/1": "c"}, retries=0)
    with pytest.raises(refshard_fs.ReferenceNotReachable):
        zarr.open_group(store, mode="r")["top"][:]
    with pytest.raises(refshard_fs.ReferenceNotReachable):
        store.get_sync("top/0")
    get = store.get_partial_values(cpu.buffer_prototype, [("top/0", None)])
    with pytest.raises(refshard_fs.ReferenceNotReachable):
        asyncio.run(get)


@needs_zarr_3
@pytest.mark.parametrize("shards", ["inner", "whole"])
def test_store_reads_in_the_requests_of_the_filesystem(shards: str, http_server: RangeServer, tmp_path: Path) -> None:
    made = zarr.create_array(str(tmp_path / "a.zarr"), shape=(40, 64), chunks=(2, 64), shards=(20, 64), dtype="u2")
    made[:] = np.random.default_rng(0).integers(0, 60000, (40, 64))
    for path in (tmp_path / "a.zarr").rglob("*"):
        if path.is_file():
            http_server.put(f"/a.zarr/{path.relative_to(tmp_path / 'a.zarr')}", path.read_bytes())
    counts = []
    for kind in (refshard_fs.Store, FsspecStore):
        fs = RefShardFileSystem(f"{http_server.url}/a.zarr", asynchronous=True, shards=shards, index_cache=False)
        store = refshard_fs.Store(fs) if kind is refshard_fs.Store else FsspecStore(fs, read_only=True, path="")
        array = zarr.open_array(store, mode="r")
        fs.invalidate_cache()
        http_server.log.clear()
        assert np.array_equal(array[3:33:3], made[3:33:3])
        counts.append((len(http_server.requests()), http_server.log.bytes_sent))
    assert counts[0] == counts[1]


@needs_zarr_3
def test_store_reads_ranges_of_keys_together(http_server: RangeServer) -> None:
    url = http_server.put("/x", bytes(range(200)))
    store = refshard_fs.Store({f"a/{i}": [url, 10 * i, 10] for i in range(20)})
    spans = [("a/0", None), ("a/3", RangeByteRequest(2, 4)), ("a/7", SuffixByteRequest(1)), ("a/x", None)]
    found = asyncio.run(store.get_partial_values(cpu.buffer_prototype, spans))
    assert [value and value.to_bytes() for value in found] == [bytes(range(10)), b"\x20\x21", b"\x4f", None]
    assert len(http_server.requests()) == 1


@needs_zarr_3
def test_writes_to_a_store_are_committed(tmp_path: Path) -> None:
    store = refshard_fs.Store(str(tmp_path / "refs.json"), mode="a")
    zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="i4")[:] = [1, 2, 3, 4]
    store.fs.commit()
    assert zarr.open_group(refshard_fs.Store(str(tmp_path / "refs.json")), mode="r")["a"][:].tolist() == [1, 2, 3, 4]


@needs_zarr_3
@pytest.mark.parametrize("kind", ["path of the filesystem", "path of the source"])
def test_upath_is_opened_by_zarr_or_as_a_source(kind: str, tmp_path: Path) -> None:
    upath = pytest.importorskip("upath")
    (tmp_path / "refs.json").write_text(json.dumps(REFS))
    path = upath.UPath(f"refshard::{tmp_path}/refs.json")
    if kind == "path of the source":
        path = refshard_fs.Store(upath.UPath(tmp_path / "refs.json"))
    elif tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 4):
        pytest.skip("this zarr takes no UPath but those of local files")
    assert zarr.open_group(path, mode="r")["sub/deep/a"][:].tolist() == [9, ord("c")]


@pytest.mark.skipif(FsspecStore is not None, reason="zarr 3 has such stores")
def test_store_needs_zarr_3() -> None:
    with pytest.raises(ImportError, match=r"Store needs .*pip install .*zarr"):
        refshard_fs.Store  # noqa: B018
