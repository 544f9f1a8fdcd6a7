"""Documents of unknown or wrong size are read up to the limit only."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs import ManifestError, ReferenceNotReachable, RefShardError, RefShardFileSystem
from refshard_fs.targets import answer
from tests.servers.endless import EndlessServer
from tests.support.memory import check_peak

pytestmark = pytest.mark.case(id="P26")

MIB = 1 << 20
MOST = MIB  # bytes that documents may have here
SLACK = 12 * MIB  # bytes that a server may have sent after the client stopped reading: buffers of both sockets

ARRAY: dict[str, Any] = {"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 0}
ARRAY |= {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}}, "codecs": [{"name": "bytes"}]}
ARRAY |= {"chunk_key_encoding": {"name": "default"}, "attributes": {}}
MAPPED = {"storage_transformers": [{"name": "chunk-manifest-json", "configuration": {"manifest": "./manifest.json"}}]}

# For each kind of document: its first bytes, its path, and a key of the source.
DOCUMENTS = {
    "refs.json": (b'{"version": 1, "refs": {"k": "v", ', "refs.json", "k"),
    "refs.json, compressed": (gzip.compress(b'{"version": 1, "refs": {"k": "v", '), "refs.json", "k"),
    "a map of keys": (b'{"name": "chunk-manifest-json", "configuration": {', "map.json", "k"),
    "a lazy concatenation": (b'{"refshard": "concat", "dim": "t", ', "join.json", "k"),
    "a snapshot": (b'{"refshard": "snapshot", ', "snapshot.json", "k"),
    "zarr.json": (b'{"zarr_format": 3, "node_type": "group", ', "set/zarr.json", "k"),
    ".zmetadata": (b'{"metadata": {".zgroup": {"zarr_format": 2}}, "record_size": 10, ', "set/.zmetadata", "k"),
    "info": (b'{"@type": "neuroglancer_multiscale_volume", ', "set/info", "k"),
    "meta/storage": (b'{"dflt": 0, ', "set/meta/storage", "k"),
    "__rootdirs__": (b'{"names": [', "set/__rootdirs__", "k"),
}


def open_fs(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, index_cache=False, max_manifest_bytes=MOST, **options)


@pytest.mark.parametrize("told", [None, 100], ids=["without a Content-Length", "longer than its Content-Length"])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_endless_document_is_read_up_to_the_limit(name: str, told: int | None) -> None:
    start, path, key = DOCUMENTS[name]
    with EndlessServer({f"/{path}": start}, told=told) as server:
        source = server.url + "/" + path.removesuffix("/" + path.partition("/")[2])
        with check_peak(8 * MIB), pytest.raises(RefShardError) as refused:
            open_fs(source).cat_file(key)
        assert server.sent < MOST + len(server.gets) * SLACK
        if told is None:
            assert isinstance(refused.value, ManifestError)
            assert f"max_manifest_bytes={MOST}" in str(refused.value)
            assert server.url in str(refused.value)


@pytest.mark.parametrize("name", ["zarr.json", ".zattrs", ".zarray", "manifest.json"])
def test_referenced_document_is_read_up_to_the_limit(name: str) -> None:
    with EndlessServer({f"/{name}": b"{"}) as server:
        refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}', f"a/{name}": [f"{server.url}/{name}"]}
        key = f"a/{name}"
        if name == "manifest.json":
            refs = {"a/zarr.json": {**ARRAY, **MAPPED}, key: [f"{server.url}/{name}"]}
            key = "a/c/0"
        with check_peak(8 * MIB), pytest.raises((ManifestError, ReferenceNotReachable)) as refused:
            open_fs(refs).cat_file(key)
        assert f"max_manifest_bytes={MOST}" in str(refused.value)
        assert f"{server.url}/{name}" in str(refused.value)
        assert server.sent < MOST + len(server.gets) * SLACK


def test_long_range_of_a_document_is_bounded() -> None:
    """The limit applies also if a reference states the length."""
    with EndlessServer({"/zarr.json": b"{"}) as server:
        refs = {"a/zarr.json": [f"{server.url}/zarr.json", 0, 10**12]}
        with check_peak(8 * MIB), pytest.raises(ManifestError, match=f"max_manifest_bytes={MOST}"):
            open_fs(refs).cat_file("a/zarr.json")
        assert server.gets == []


def test_documents_on_s3_are_read_up_to_the_limit() -> None:
    s3 = {"anon": True, "config_kwargs": {"retries": {"total_max_attempts": 1}}}
    with EndlessServer({"/bucket/a/.zattrs": b"{", "/bucket/a/zarr.json": b"{"}) as server:
        options = {**s3, "endpoint_url": server.url}
        for key in ("a/.zattrs", "a/zarr.json"):
            with check_peak(40 * MIB), pytest.raises((ManifestError, ReferenceNotReachable)) as refused:
                open_fs({key: [f"s3://bucket/{key}"]}, remote_options=options).cat_file(key)
            assert f"max_manifest_bytes={MOST}" in str(refused.value)
            assert f"s3://bucket/{key}" in str(refused.value)
        assert server.sent < MOST + len(server.gets) * SLACK


class Odd(AbstractFileSystem):
    """A filesystem of files of 16 MiB, whose `info` has the size ``told``."""

    protocol = "odd"
    told: int | None = 16 * MIB

    def __init__(self, told: int | None) -> None:
        super().__init__(skip_instance_cache=True)
        self.told = told
        self.given = 0

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return {"name": path, "type": "file", "size": self.told}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        data = bytes(16 * MIB)[start:end]
        self.given += len(data)
        return data

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        outer = self

        class File:
            def __enter__(self) -> File:
                return self

            def __exit__(self, *error: object) -> None:
                """Do nothing, since nothing is open."""

            def read(self, size: int) -> bytes:
                outer.given += size
                return bytes(size)

        return File()

    def open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:  # fsspec's wraps its files
        return self._open(path, mode)


@pytest.mark.parametrize("told", [None, 16 * MIB, 10], ids=["unknown", "right", "wrong"])
def test_documents_of_another_filesystem_obey_max_manifest_bytes(told: int | None) -> None:
    fs = Odd(told)
    with pytest.raises(ReferenceNotReachable, match=f"odd://a/.zattrs .*max_manifest_bytes={MOST}"):
        open_fs({"a/.zattrs": ["odd://a/.zattrs"]}, fs={"odd": fs}).cat_file("a/.zattrs")
    assert fs.given == {None: MOST + 1, 16 * MIB: 0, 10: 16 * MIB}[told]


def test_local_and_memory_documents_obey_max_manifest_bytes(tmp_path: Path) -> None:
    (tmp_path / ".zattrs").write_bytes(bytes(2 * MIB))
    MemoryFileSystem().pipe_file("/endless/.zattrs", bytes(2 * MIB))
    for url in (str(tmp_path / ".zattrs"), "memory://endless/.zattrs"):
        for name in (".zattrs", "zarr.json"):
            with pytest.raises((ManifestError, ReferenceNotReachable), match=f"max_manifest_bytes={MOST}"):
                open_fs({f"a/{name}": [url]}).cat_file(f"a/{name}")


def test_chunks_are_exempt_from_the_limit_of_documents(tmp_path: Path) -> None:
    (tmp_path / "chunk").write_bytes(bytes(2 * MIB))
    with EndlessServer({}, files={"/chunk": bytes(2 * MIB)}) as server:
        for url in (str(tmp_path / "chunk"), f"{server.url}/chunk"):
            assert open_fs({"a/0": [url]}).cat_file("a/0") == bytes(2 * MIB)


def test_endless_chunk_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer.MOST_UNSIZED == 8 << 30
    monkeypatch.setattr(answer, "MOST_UNSIZED", 4 * MIB)
    with EndlessServer({"/chunk": b"x"}) as server:
        with check_peak(20 * MIB), pytest.raises(ReferenceNotReachable, match="at most 4194304 bytes"):
            open_fs({"a/0": [f"{server.url}/chunk"]}).cat_file("a/0")
        assert server.sent < 4 * MIB + SLACK


def test_document_at_the_limit_is_read() -> None:
    text = json.dumps({"x": "y" * (MOST - 9)}).encode()
    assert len(text) == MOST
    with EndlessServer({}, files={"/.zattrs": text}) as server:
        assert open_fs({"a/.zattrs": [f"{server.url}/.zattrs"]}).cat_file("a/.zattrs") == text
