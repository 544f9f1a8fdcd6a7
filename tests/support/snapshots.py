"""Write a store for tests of snapshots, and change it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import (
    RefShardFileSystem,
)

zarr = pytest.importorskip("zarr")


ARRAY = {"shape": [4], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": 0, "filters": None}


STORE = {
    ".zgroup": b'{"zarr_format": 2}',
    "a/.zarray": json.dumps(ARRAY | {"zarr_format": 2, "compressor": None}).encode(),
    "a/0": b"ab",
    "a/1": b"cd",
    "notes/today.txt": b"sunny",
}


def open_source(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, **options)


def write_array(path: Path, store: dict[str, bytes] = STORE) -> str:
    for key, data in store.items():
        (path / key).parent.mkdir(parents=True, exist_ok=True)
        (path / key).write_bytes(data)
    return str(path)


def overwrite(path: Path, data: bytes) -> None:
    """Write other bytes of the same size, a little later."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10_000_000))


def save_json(found: Any, folder: Path) -> Any:
    found.save(str(folder / "refs.json"))
    return str(folder / "refs.json")


VERSIONS = [2] if zarr.__version__.startswith("2") else [2, 3]


def read_values(fo: Any) -> Any:
    if VERSIONS == [2]:
        return zarr.open_group(open_source(fo).get_mapper(), mode="r")["a"][...]
    store = zarr.storage.FsspecStore(open_source(fo, asynchronous=True), read_only=True, path="")
    return zarr.open_group(store, mode="r")["a"][...]
