"""Stores with obspec's methods are sources and targets, and their answers are checked."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.core.model import Facts
from refshard_fs.targets import PoolOptions, StoreFileSystem
from refshard_fs.targets.obspec import find_root_url
from tests.servers.http import RangeServer
from tests.support.target_reading import run_with_pool

stores = pytest.importorskip("obstore.store")
registry = pytest.importorskip("obspec_utils.registry")

DATA = bytes(i * 31 % 251 for i in range(3000))
RANGES = [(0, 10), (10, 2000), (2990, 3000), (0, 3000), (-7, None), (5, None), (0, None), (-9999, None), (9, 9)]
META = {"zarr_format": 2, "shape": [40], "chunks": [10], "dtype": "|u1", "order": "C", "fill_value": 0}
ARRAY = json.dumps({**META, "filters": None, "compressor": None})


def references(url: str) -> dict[str, Any]:
    return {"a/.zarray": ARRAY, **{f"a/{i}": [url, 20 * i, 10] for i in range(4)}}


class Result:
    def __init__(self, data: bytes, size: int) -> None:
        self.meta = {"path": "x", "size": size, "last_modified": datetime(2026, 1, 2, tzinfo=UTC), "e_tag": '"1"'}
        self._data = data

    def buffer(self) -> bytes:
        return self._data


class NotFoundError(Exception):
    """The name of obspec's error for a missing object."""


class Plain:
    """A store with the fewest methods: it blocks, and supports no ranges from the end."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.requests: list[Any] = []

    def get_range(self, path: str, **given: Any) -> bytes:
        raise NotImplementedError

    def get(self, path: str, *, options: dict[str, Any] | None = None) -> Result:
        wanted = (options or {}).get("range")
        self.requests.append(wanted)
        if path not in self.objects:
            raise NotFoundError(path)
        data = self.objects[path]
        match wanted:
            case None:
                return Result(data, len(data))
            case {"offset": start}:
                return Result(data[start:], len(data))
            case (start, stop) if start < len(data):
                return Result(data[start:stop], len(data))
        raise ValueError(f"bad range {wanted}")


def memory(objects: dict[str, bytes]) -> Any:
    store = stores.MemoryStore()
    for path, data in objects.items():
        store.put(path, data)
    return store


KINDS: dict[str, Callable[[Path, RangeServer], Any]] = {
    "memory": lambda folder, server: memory({"d/x y": DATA}),
    "local": lambda folder, server: stores.LocalStore(folder),
    "http": lambda folder, server: stores.HTTPStore(f"{server.url}/top", client_options={"allow_http": True}),
    "plain": lambda folder, server: Plain({"d/x y": DATA}),
}


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, http_server: RangeServer) -> Any:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x y").write_bytes(DATA)
    http_server.put("/top/d/x y", DATA)
    return KINDS[request.param](tmp_path, http_server)


@pytest.mark.evidence(id="T30")
def test_ranges_of_a_store_are_read(store: Any) -> None:
    fs = StoreFileSystem.of(store)
    prefix = find_root_url(store)
    options = PoolOptions(by_prefix={prefix: fs})
    url = prefix + ("d/x%20y" if prefix.startswith("http") else "d/x y")

    async def read(pool: Any) -> list[bytes]:
        object_, path = pool.place(url)
        return [(await object_.target.read(path, start, stop)).data for start, stop in RANGES]

    assert run_with_pool(options, read) == [DATA[start:stop] for start, stop in RANGES]


def test_facts_of_a_store_equal_the_facts_of_its_answers(store: Any) -> None:
    fs = StoreFileSystem.of(store)
    prefix = find_root_url(store)
    options = PoolOptions(by_prefix={prefix: fs})

    async def facts(pool: Any) -> list[Facts]:
        object_, path = pool.place(f"{prefix}d/x y")
        return [await object_.target.get_facts(path), (await object_.target.read(path, 3, 9)).facts]

    asked, came = run_with_pool(options, facts)
    assert asked == came
    assert (asked.size, asked.last_modified is not None) == (3000, True)


def test_chunks_in_an_obspec_store_are_read_by_merged_requests() -> None:
    plain = Plain({"x.bin": DATA})
    fs = RefShardFileSystem(references("s3://bucket/x.bin"), options={"s3://bucket": plain})
    assert fs.cat_ranges([f"a/{i}" for i in range(4)], None, None) == [DATA[20 * i : 20 * i + 10] for i in range(4)]
    assert plain.requests == [(0, 70)]


@pytest.mark.parametrize("kind", ["fs", "mapping", "registry"])
def test_set_reads_chunks_from_stores_given_as_fs(kind: str) -> None:
    bucket, other = memory({"x.bin": DATA}), memory({"x.bin": bytes(3000)})
    given = {
        "fs": bucket,
        "mapping": {"s3": bucket},
        "registry": registry.ObjectStoreRegistry(
            {"s3://bucket": other, "s3://bucket/inner": memory({"inner/x.bin": DATA})}
        ),
    }[kind]
    url = {"fs": "x.bin", "mapping": "s3://bucket/x.bin", "registry": "s3://bucket/inner/x.bin"}[kind]
    assert RefShardFileSystem(references(url), fs=given).cat_file("a/3") == DATA[60:70]


def test_path_in_a_store_equals_that_of_virtualizarrs_registry() -> None:
    for store in (stores.MemoryStore(), stores.S3Store("b", prefix="p/q"), stores.HTTPStore("https://h/p")):
        for url in ("s3://b/p/q/x", "s3://b/p/qq/x", "https://h/p/x/y", "https://h/x"):
            known = registry.ObjectStoreRegistry({url.rpartition("/")[0]: store})
            if not (getattr(store, "prefix", None) and "/qq/" in url):  # the registry cuts the name "qq" after "q"
                assert StoreFileSystem.of(store).path_of(url) == known.resolve(url)[1]


def test_source_in_a_store_refers_to_objects_beside_it(store: Any, tmp_path: Path, http_server: RangeServer) -> None:
    document = json.dumps({**references("d/x y")}).encode()
    (tmp_path / "refs.json").write_bytes(document)
    http_server.put("/top/refs.json", document)
    if isinstance(store, Plain):
        store.objects["refs.json"] = document
    elif isinstance(store, stores.MemoryStore):
        store.put("refs.json", document)
    fs = RefShardFileSystem((store, "refs.json"))
    assert fs.cat_file("a/2") == DATA[40:50]
    assert RefShardFileSystem(fs.fo, **fs.storage_options).cat_file("a/2") == DATA[40:50]


def test_hierarchy_in_a_memory_store_is_listed() -> None:
    store = memory({"h/a/.zarray": ARRAY.encode(), "h/.zgroup": b'{"zarr_format": 2}', "h/a/0": DATA[:10]})
    assert RefShardFileSystem((store, "h")).find("") == [".zgroup", "a/.zarray", "a/0"]
    inner = memory({"a/.zarray": ARRAY.encode(), ".zgroup": b'{"zarr_format": 2}'})
    assert RefShardFileSystem(inner).find("") == [".zgroup", "a/.zarray"]


@pytest.mark.evidence(id="T30")
def test_http_store_gets_the_same_request_as_our_client(http_server: RangeServer) -> None:
    url = http_server.put("/x.bin", DATA)
    counts = []
    for options in ({}, {http_server.url: stores.HTTPStore(http_server.url, client_options={"allow_http": True})}):
        http_server.log.clear()
        fs = RefShardFileSystem(references(url), options=options)
        assert [*fs.cat([f"a/{i}" for i in range(4)]).values()] == [DATA[20 * i : 20 * i + 10] for i in range(4)]
        counts.append([(request.method, request.headers["range"]) for request in http_server.requests()])
    assert counts[0] == counts[1] == [("GET", "bytes=0-69")]


def test_missing_object_of_a_store_is_not_a_missing_key() -> None:
    fs = RefShardFileSystem(references("s3://b/gone"), options={"s3://b": memory({})}, retries=0)
    with pytest.raises(refshard_fs.ReferenceNotReachable, match="FileNotFoundError: gone. The object was removed"):
        fs.cat_file("a/0")
    with pytest.raises(refshard_fs.NoSuchSource):
        RefShardFileSystem((memory({}), "gone.json")).ls("")


def test_changed_object_of_a_store_is_noticed() -> None:
    store = memory({"x": DATA})
    fs = RefShardFileSystem(references("s3://b/x"), options={"s3://b": store})
    fs.cat_file("a/0")
    store.put("x", DATA + b"more")
    with pytest.raises(refshard_fs.TargetChanged):
        fs.cat_file("a/3")


def test_set_in_a_store_may_not_read_local_files() -> None:
    document = json.dumps(references("file:///etc/hostname")).encode()
    store, other = memory({"refs.json": document}), stores.LocalStore()
    known = registry.ObjectStoreRegistry({"s3://b": store, "file://": other})
    for fs in (RefShardFileSystem((store, "refs.json")), RefShardFileSystem("s3://b/refs.json", fs=known)):
        with pytest.raises(refshard_fs.TargetNotAllowed):
            fs.cat_file("a/0")


def test_filesystem_over_a_store_is_pickled(http_server: RangeServer) -> None:
    url = http_server.put("/x.bin", DATA)
    web = stores.HTTPStore(http_server.url, client_options={"allow_http": True})
    fs = RefShardFileSystem(references(url), options={http_server.url: web})
    assert pickle.loads(pickle.dumps(fs)).cat_file("a/1") == DATA[20:30]


def test_stores_of_equal_names_stay_separate() -> None:
    """Bytes of one store are never returned for another, even if URLs and versions are equal."""
    shown = []
    for value in (b"1", b"2"):
        store = memory({"refs.json": json.dumps({"a": value.decode()}).encode()})
        shown.append(RefShardFileSystem("s3://b/refs.json", options={"s3://b": store}).cat_file("a"))
    assert shown == [b"1", b"2"]
