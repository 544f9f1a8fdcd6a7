"""Write hierarchies with sharded arrays, by zarr or like the prototype, and open arrays by zarr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from refshard_fs import RefShardFileSystem
from tests.support.shard_codecs import CRC, LITTLE, make_sharding, make_version_3
from tests.support.shard_writers import IS_ZARR_2, write_prototype

FILL = -1
SHARDS, CHUNKS = (8, 12), (2, 3)
KINDS = ["prototype"] if IS_ZARR_2 else ["end", "start", "nested", "checked", "prototype"]
QUIET = [
    pytest.mark.filterwarnings("ignore::refshard_fs.CostlyPattern"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
    pytest.mark.filterwarnings("ignore:Combining a .sharding_indexed. codec"),
]


def make_gappy_values() -> np.ndarray[Any, Any]:
    """Return values with zeros for some chunks of a shard, and for a whole shard, so that these are missing."""
    data = np.random.default_rng(7).integers(1, 1000, (21, 26)).astype("<i4")
    data[0:6, 0:9] = FILL
    data[8:16, 0:12] = FILL
    return data


def open_writable(url: Any, **options: Any) -> RefShardFileSystem:
    """Open a new filesystem that takes writes."""
    return RefShardFileSystem(str(url), mode="a", skip_instance_cache=True, **options)


def open_array(fs: RefShardFileSystem, path: str = "a", mode: str = "r+") -> Any:
    """Open the array at ``path`` through ``fs`` by zarr 2 or 3."""
    if IS_ZARR_2:
        return zarr.open_array(fs.get_mapper(path), mode=mode)
    store = zarr.storage.FsspecStore.from_mapper(fs.get_mapper(), read_only=mode == "r")
    return zarr.open_array(store, path=path, mode=mode)


def read_stored(root: Path, path: str = "a") -> Any:
    """Read the array by zarr from the files; no zarr reads the prototype, so a new filesystem reads it."""
    if (root / path / "zarr.json").exists():
        return zarr.open_array(str(root / path), mode="r")
    return open_array(RefShardFileSystem(str(root), skip_instance_cache=True), path, mode="r")


def make_group(root: Path, zarr_format: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    name = "zarr.json" if zarr_format == 3 else ".zgroup"
    doc = {"zarr_format": 3, "node_type": "group", "attributes": {}} if zarr_format == 3 else {"zarr_format": 2}
    (root / name).write_text(json.dumps(doc))


def make_sharded(root: Path, data: np.ndarray[Any, Any], shards: Any, chunks: Any, kind: str, path: str = "a") -> None:
    """Write ``data`` as a sharded array; ``kind`` is "end", "start", "nested", "checked" (v3) or "prototype" (v2)."""
    if kind == "prototype":
        make_group(root, 2)
        per_shard = [s // c for s, c in zip(shards, chunks, strict=True)]
        write_prototype(root / path, data, chunks, per_shard, fill=FILL)
        return
    make_group(root, 3)
    codecs = {
        "end": [make_sharding(list(chunks))],
        "start": [make_sharding(list(chunks), index=[LITTLE], at="start")],
        "nested": [make_sharding([2 * c for c in chunks], [make_sharding(list(chunks))])],
        "checked": [make_sharding(list(chunks)), CRC],
    }[kind]
    (root / path).mkdir(parents=True, exist_ok=True)
    (root / path / "zarr.json").write_text(json.dumps(make_version_3(data.shape, shards, codecs, fill=FILL)))
    open_array(fs := open_writable(root), path)[...] = data
    fs.commit()


def read_objects(root: Path, path: str = "a") -> dict[str, bytes]:
    """Return the files of an array, without metadata, by name."""
    files = [p for p in (root / path).rglob("*") if p.is_file() and p.name not in ("zarr.json", ".zarray", ".zattrs")]
    return {p.relative_to(root / path).as_posix(): p.read_bytes() for p in files}
