"""Pack shards by the package's encoder, a few chunks at a time, and read them by its reader."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refshard_fs.core import zarrmeta
from refshard_fs.sharding.known_shard_formats import unshard_metadata
from refshard_fs.sharding.layout import ShardLayout
from tests.support.shards_in_memory import ROOT, Files

Coords = tuple[int, ...]


def find_layout(doc: Mapping[str, Any], **options: Any) -> ShardLayout:
    found = unshard_metadata(doc, options)
    assert found is not None, "the array is not sharded"
    assert found.layout is not None, found.reason
    return found.layout


def pack_shards(
    layout: ShardLayout, shards: Mapping[str, bytes], chunks: Mapping[Coords, bytes | None]
) -> dict[str, bytes]:
    """Write ``chunks`` (None: delete), each shard in one step; return the new shards by key."""
    out = dict(shards)
    by_shard: dict[Coords, dict[Coords, bytes | None]] = {}
    for coords, data in chunks.items():
        cuts = [cut.find_shard(i) for cut, i in zip(layout.cuts, coords, strict=True)]
        by_shard.setdefault(tuple(n for n, _, _ in cuts), {})[tuple(place for _, place, _ in cuts)] = data
    for shard, changes in by_shard.items():
        key = layout.grid.encoding.encode(shard)
        lengths = tuple(map(len, layout.find_slot_ranges(shard)))
        parts = layout.rewrite(lengths, shards.get(key), changes)
        if parts is None:
            out.pop(key, None)
        else:
            out[key] = b"".join(parts)
    return out


def read_chunks(doc: Mapping[str, Any], shards: Mapping[str, bytes], **options: Any) -> dict[Coords, bytes]:
    """Return all chunks of the grid that the package reads from ``shards``."""
    name = "zarr.json" if doc["zarr_format"] == 3 else ".zarray"
    files = Files({f"{ROOT}/{name}": zarrmeta.dumps(doc), **{f"{ROOT}/{key}": data for key, data in shards.items()}})
    keyspace = files.open("zarr-hierarchy", shard_options=tuple(options.items()))
    grid = find_layout(doc, **options).grid
    out = {}
    for coords in itertools.product(*map(range, grid.counts)):
        data = files.read(keyspace, grid.encoding.encode(coords))
        if data is not None:
            out[coords] = data
    return out


def store(folder: Path, doc: Mapping[str, Any], shards: Mapping[str, bytes]) -> None:
    """Write an array's metadata and its shards below ``folder``."""
    name = "zarr.json" if doc["zarr_format"] == 3 else ".zarray"
    for key, data in {name: zarrmeta.dumps(doc), **shards}.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
