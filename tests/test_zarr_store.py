"""zarr's stores over the filesystem: what zarr lists and reads is what the references say."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem

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
def test_groups_below_groups_are_listed_whatever_slashes_zarr_puts_before_paths(path: str) -> None:
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


# ---------------------------------------------------------------------------------------- zarr's own tests of stores


def in_a_loop(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine of a test as a test, in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(test(*args, **kwargs))

    return run


try:
    from zarr.core.buffer import Buffer, cpu
    from zarr.testing.store import StoreTests
except ImportError:  # of zarr 2

    class StoreTests:  # type: ignore[no-redef]
        def __class_getitem__(cls, item: Any) -> Any:
            return cls


class OfZarr(StoreTests):  # type: ignore[misc]
    """zarr's tests, its coroutines as functions; by another name, so that they are not collected twice."""


for _name, _test in inspect.getmembers(StoreTests, inspect.iscoroutinefunction):
    if _name.startswith("test_"):
        setattr(OfZarr, _name, in_a_loop(_test))


@pytest.mark.skipif(FsspecStore is None, reason="zarr 2 has no tests of stores")
class TestStoresOverSetsInMemory(OfZarr):
    """What zarr holds all stores to, with one over a set in memory: as it is with fsspec's ``reference``."""

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
        """zarr's own expects the copy to be equal, which stores over two such filesystems are not with either class."""
        store.fs.pipe_file("foo", b"1234")
        assert asyncio.run(pickle.loads(pickle.dumps(store)).fs._cat_file("foo")) == b"1234"
