"""Commits that overwrite a hierarchy. Each number stands for a state; states differ in chunks, metadata and arrays."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

from refshard_fs import RefShardFileSystem
from tests.support.shard_codecs import LITTLE, make_sharding, make_version_3

__all__ = ["write_state", "check_partly_committed", "read_keys", "find_leftovers", "make_state", "make_values", "write"]

ROWS, WIDTH = 8, 4  # of the sharded array, of which two rows are a shard of four chunks
FILL = -1


def make_state(number: int) -> dict[str, Any]:
    """Return all keys of the hierarchy in the state ``number``: documents as objects, chunks as bytes."""
    chance = random.Random(number)
    length = chance.randint(4, 9)
    keys: dict[str, Any] = {
        "zarr.json": {"zarr_format": 3, "node_type": "group", "attributes": {"number": number}},
        "p/zarr.json": _make_metadata(length, number),
    }
    keys |= {f"p/c/{i}": _make_chunk(number, i) for i in range(length) if chance.random() < 0.8}
    for i in range(ROWS):
        keys |= {f"s/c/{i}/{j}": _make_chunk(number, 10 * i + j) for j in range(2) if chance.random() < 0.8}
    if number % 4:
        name = f"n{number % 3}"
        keys[f"{name}/zarr.json"] = _make_metadata(3, number)
        keys |= {f"{name}/c/{i}": _make_chunk(number, 100 + i) for i in range(3)}
    return keys


def make_values(number: int) -> dict[str, Any]:
    """Return the values of the arrays in a state."""
    keys = make_state(number)
    arrays = {key.partition("/")[0]: doc["shape"] for key, doc in keys.items() if key.endswith("/zarr.json")}
    made = {name: np.full(shape, FILL, "<i4") for name, shape in ({**arrays, "s": [ROWS, WIDTH]}).items()}
    for key, data in keys.items():
        match key.split("/"):
            case [name, "c", i]:
                made[name][2 * int(i) : 2 * int(i) + 2] = np.frombuffer(data, "<i4")
            case [name, "c", i, j]:
                made[name][int(i), 2 * int(j) : 2 * int(j) + 2] = np.frombuffer(data, "<i4")
    return made


def write_state(url: str, number: int, **options: Any) -> None:
    """Make the hierarchy in the state ``number``."""
    fs, path = fsspec.url_to_fs(
        url, **({"auto_mkdir": True} if "://" not in url else options.get("target_options", {}))
    )
    for name, data in _make_objects(number).items():
        fs.pipe_file(f"{path}/{name}", data)


@cache
def _make_objects(number: int) -> dict[str, bytes]:
    """Return the objects of the hierarchy in the state ``number``, by name; two commits write them."""
    url = f"memory://begun-{number}"
    fs = RefShardFileSystem(url, mode="a", format="zarr-hierarchy", skip_instance_cache=True)
    doc = make_version_3((ROWS, WIDTH), (2, WIDTH), [make_sharding([1, 2])], fill=FILL)
    fs.pipe_file("zarr.json", json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode())
    fs.pipe_file("s/zarr.json", json.dumps(doc).encode())
    fs.commit()
    again = RefShardFileSystem(url, mode="a", skip_instance_cache=True)
    write(again, number)
    again.commit()
    memory = fsspec.filesystem("memory")
    return {name.removeprefix(f"/begun-{number}/"): memory.cat_file(name) for name in memory.find(url)}


def write(fs: RefShardFileSystem, number: int) -> None:
    """Write the state ``number`` over the present state."""
    wanted = make_state(number)
    nodes = {key.partition("/")[0] for key in wanted} | {"s"}
    for name in {key.partition("/")[0] for key in fs.find("")} - nodes:
        fs.rm(name, recursive=True)
    for key in fs.find(""):
        if key not in wanted and key != "s/zarr.json":
            fs.rm_file(key)
    for key, data in wanted.items():
        fs.pipe_file(key, data if isinstance(data, bytes) else json.dumps(data).encode())


def read_keys(fs: RefShardFileSystem) -> dict[str, Any]:
    """Return all keys of a filesystem, in the form of `make_state`."""
    keys = [key for key in fs.find("") if key != "s/zarr.json"]
    read = fs.cat(keys)
    return {key: json.loads(data) if key.endswith("zarr.json") else data for key, data in read.items()}


def check_partly_committed(shown: dict[str, Any], old: int, new: int) -> None:
    """Assert that each key is that of the old or of the new state, and that the root's document was put last."""
    before, after = make_state(old), make_state(new)
    for key in before.keys() | after.keys() | shown.keys():
        assert shown.get(key) in (before.get(key), after.get(key)), f"{key} is neither old nor new"
    if shown["zarr.json"] == after["zarr.json"]:
        assert {key: shown.get(key) for key in after} == after, "metadata come after chunks, the root's last"
    elif shown.get("p/zarr.json") == after["p/zarr.json"]:
        chunks = {key for key in after if "/c/" in key}
        assert all(shown.get(key) == after[key] for key in chunks), "metadata come after chunks"


def find_leftovers(root: Path) -> list[str]:
    """Return the files below a local hierarchy that commits left and that are not keys."""
    names = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return [name for name in names if name.endswith(".tmp")]


def _make_chunk(number: int, place: int) -> bytes:
    return np.full(2, 1000 * number + place, "<i4").tobytes()


def _make_metadata(length: int, number: int) -> dict[str, Any]:
    return {**make_version_3((2 * length,), (2,), [LITTLE], fill=FILL), "attributes": {"number": number}}
