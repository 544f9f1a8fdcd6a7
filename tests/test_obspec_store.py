"""The keys of a source as an obspec store behave like obstore's own store with the same objects."""

from __future__ import annotations

import asyncio
import base64
import pickle
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ObspecStore, RefShardFileSystem
from tests.servers.http import RangeServer

stores = pytest.importorskip("obstore.store")

OBJECTS = {"zarr.json": b"{}", "a/c/0": bytes(range(100)), "a/c/1": b"x", "a/zarr.json": b"{} ", "b.c/d": b"yz"}


@pytest.fixture(scope="module")
def both() -> tuple[ObspecStore, Any]:
    theirs = stores.MemoryStore()
    for path, data in OBJECTS.items():
        theirs.put(path, data)
    refs = {path: f"base64:{base64.b64encode(data).decode()}" for path, data in OBJECTS.items()}
    return ObspecStore(refs), theirs


def get_result(call: Any) -> Any:
    """Return the result of a call, or the type of its error."""
    try:
        return call()
    except Exception as e:  # the stores raise errors of different classes
        return FileNotFoundError if isinstance(e, FileNotFoundError) else ValueError


def read(store: Any, path: str, options: Any) -> Any:
    result = store.get(path, options=options) if options else store.get(path)
    return bytes(result.buffer()), tuple(result.range), result.meta["path"], result.meta["size"]


def read_async(store: Any, path: str, options: Any) -> Any:
    async def go() -> Any:
        result = await store.get_async(path, options=options)
        return bytes(await result.buffer_async()), tuple(result.range), result.meta["size"]

    return asyncio.run(go())


@pytest.mark.parametrize("seed", range(40))
def test_reads_equal_those_of_obstore(seed: int, both: tuple[ObspecStore, Any]) -> None:
    random = np.random.default_rng(seed)
    path = str(random.choice([*OBJECTS, "a/c/2", "a"]))
    start, length = int(random.integers(0, 120)), int(random.integers(0, 60))
    wanted = [None, (start, start + length), {"offset": start}, {"suffix": length + 1}][random.integers(4)]
    options = None if wanted is None else {"range": wanted}
    for reading in (read, read_async):
        ours, theirs = (
            get_result(lambda store=store, reading=reading: reading(store, path, options)) for store in both
        )
        assert ours == theirs, (path, options)
    starts, lengths = [min(start, len(OBJECTS.get(path, b"x")) - 1), 0], [length + 1, 1]  # else obstore panics
    ranges = [get_result(lambda s=s: [*map(bytes, s.get_ranges(path, starts=starts, lengths=lengths))]) for s in both]
    assert ranges[0] == ranges[1]
    one = [get_result(lambda s=s: bytes(s.get_range(path, start=start, end=start + length))) for s in both]
    assert one[0] == one[1]


@pytest.mark.parametrize("prefix", [None, "", "a", "a/", "a/c", "b.c", "b", "zarr.json", "gone"])
def test_listings_equal_those_of_obstore(prefix: str | None, both: tuple[ObspecStore, Any]) -> None:
    def list_paths(store: Any, **offset: str) -> Any:
        return sorted((meta["path"], meta["size"]) for part in store.list(prefix, **offset) for meta in part)

    def directory(store: Any) -> Any:
        found = store.list_with_delimiter(prefix)
        return sorted(found["common_prefixes"]), sorted(meta["path"] for meta in found["objects"])

    ours, theirs = both
    assert list_paths(ours) == list_paths(theirs)
    assert list_paths(ours, offset="a/c/0") == list_paths(theirs, offset="a/c/0")
    assert directory(ours) == directory(theirs)

    async def asynchronous() -> Any:
        return sorted([meta["path"] async for part in ours.list_async(prefix) for meta in part])

    assert asyncio.run(asynchronous()) == [path for path, _ in list_paths(theirs)]


def test_head_has_size_without_version(both: tuple[ObspecStore, Any]) -> None:
    ours, _ = both
    assert (ours.head("a/c/0")["size"], ours.head("a/c/0")["e_tag"]) == (100, None)
    with pytest.raises(FileNotFoundError):
        ours.head("a")
    with pytest.raises(Exception, match="if_match") as failed:
        ours.get("a/c/0", options={"if_match": "1"})
    assert type(failed.value).__name__ == "NotSupportedError", "as obspec names it"


def test_ranges_of_a_key_are_one_request(http_server: RangeServer) -> None:
    store = ObspecStore({"a": [http_server.put("/x", bytes(range(200))), 50, 100]})
    assert store.get_ranges("a", starts=[0, 20, 90], lengths=[5, 5, 5]) == [
        bytes(range(50, 55)),
        bytes(range(70, 75)),
        bytes(range(140, 145)),
    ]
    assert len(http_server.requests()) == 1


def test_unreadable_chunk_is_not_a_missing_key(http_server: RangeServer) -> None:
    store = ObspecStore({"a": [f"{http_server.url}/gone", 0, 10]}, retries=0)
    for call in (lambda: store.get("a"), lambda: store.get_range("a", start=0, length=1)):
        with pytest.raises(refshard_fs.ReferenceNotReachable):
            call()
    with pytest.raises(refshard_fs.ReferenceNotReachable):
        store.get_ranges("a", starts=[0], lengths=[1])


def test_keys_can_be_targets_of_another_set() -> None:
    inner = ObspecStore({"a/0": "abcdef"})
    outer = RefShardFileSystem({"b": ["keys://inner/a/0", 2, 3]}, options={"keys://inner": inner})
    assert outer.cat_file("b") == b"cde"


def test_store_is_pickled_and_compared() -> None:
    store = ObspecStore({"a": "b"})
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert copy.get_range("a", start=0, length=1) == b"b"
    assert store != ObspecStore({"a": "c"})
    with pytest.raises(TypeError, match="expected no options beside a filesystem, got shards"):
        ObspecStore(store.fs, shards="whole")


def test_virtualizarr_reads_keys_through_a_registry() -> None:
    manifests = pytest.importorskip("virtualizarr.manifests")
    protocols = pytest.importorskip("obspec_utils.protocols")
    registry = pytest.importorskip("obspec_utils.registry")
    readers = pytest.importorskip("obspec_utils.readers")
    keys = ObspecStore({"a/0": "abcdef"})
    assert isinstance(keys, protocols.ReadableStore)
    file = readers.BufferedStoreReader(keys, "a/0")
    file.seek(2)
    assert bytes(file.read(2)) == b"cd"
    zarr = pytest.importorskip("zarr", minversion="3.1")
    array = manifests.utils.create_v3_array_metadata((4,), np.dtype("u1"), (4,), dimension_names=["x"])
    chunks = manifests.ChunkManifest({"0": {"path": "keys://source/a/0", "offset": 1, "length": 4}})
    group = manifests.ManifestGroup(arrays={"v": manifests.ManifestArray(array, chunks)})
    store = manifests.ManifestStore(group, registry=registry.ObjectStoreRegistry({"keys://source": keys}))
    assert zarr.open_group(store, mode="r")["v"][:].tolist() == [*b"bcde"]
