"""Parse metadata of zarr arrays, v2 and v3, also sharded: grids and layouts are valid, or an error is raised."""

from __future__ import annotations

import contextlib
import json
from contextlib import nullcontext as set_up

from refshard_fs.core import zarrmeta
from refshard_fs.core.documents import DocumentIndex
from refshard_fs.errors import ManifestError
from refshard_fs.formats.chunk_manifest.entries import StripManifests
from refshard_fs.sharding.index import MAX_INDEX
from refshard_fs.sharding.view import Unshard
from tests.fuzz.parsers.json_references import _ARRAY, _ARRAY_3

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = True
WORDS = tuple(
    b"""
    "chunks" "shards" "shard_format" "morton_order" "indexed" "chunk_grid" "rectilinear" "chunk_shapes"
    "codecs" "order" "transpose" "crc32c" "sharding_indexed" "index_codecs" "index_location" "start"
    "chunk_shape" "storage_transformers" "chunk-manifest-json" "data_type" "node_type" "group"
    "consolidated_metadata" [2,2] [[4,2]] 4294967296 "dtype"
    """.split()
)
_UNSHARD, _UNMAPPED = Unshard(()), StripManifests()


def make_seeds() -> list[bytes]:
    inner = {"chunk_shape": [1, 2], "codecs": ["bytes", "crc32c"], "index_codecs": ["bytes"], "index_location": "start"}
    sharded = {**_ARRAY_3, "codecs": [{"name": "sharding_indexed", "configuration": inner}]}
    outer = {
        "chunk_shape": [2, 2],
        "codecs": sharded["codecs"],
        "index_codecs": [{"name": "bytes"}, {"name": "crc32c"}],
    }
    turned = [{"name": "transpose", "configuration": {"order": [1, 0]}}]
    nested = {**_ARRAY_3, "codecs": [*turned, {"name": "sharding_indexed", "configuration": outer}, "crc32c"]}
    ragged = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[[2, 2]], [2, 2]]}}
    transformers = [{"name": "chunk-manifest-json", "configuration": {"manifest": {"0.0": {"path": "x"}}}}]
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    group["consolidated_metadata"] = {"kind": "inline", "metadata": {"a": sharded, "b": _ARRAY_3}}
    documents: list[object] = [
        _ARRAY,
        {**_ARRAY, "shards": [2, 3], "shard_format": "indexed"},
        {**_ARRAY, "shards": [2, 2], "shard_format": "morton_order", "dimension_separator": "/"},
        _ARRAY_3,
        sharded,
        nested,
        {**sharded, "chunk_grid": ragged},
        {**_ARRAY_3, "storage_transformers": transformers},
        group,
        {"metadata": {"a/.zarray": _ARRAY, "b/zarr.json": sharded}, "zarr_consolidated_format": 1},
    ]
    return [json.dumps(document).encode() for document in documents]


def check_input(data: bytes) -> None:
    name = ".zmetadata" if b'"metadata"' in data[:40] else ("zarr.json", ".zarray")[len(data) % 2]
    for rewrite in (_UNSHARD, _UNMAPPED):
        document = DocumentIndex("", name, 0, rewrite).decode(data)
        assert isinstance(document.data, bytes)
        for known in list(document.arrays.values())[:4]:
            _check(known)
    try:
        doc = zarrmeta.loads(data)
    except ValueError:
        return
    with contextlib.suppress(ManifestError):
        if isinstance(doc, dict):
            zarrmeta.array_meta(doc, "it")
            for _, member in zarrmeta.iterate_consolidated_arrays(doc):
                zarrmeta.array_meta(member, "it")


def _check(known: object) -> None:
    grid = getattr(known, "grid", None)
    if grid is not None and grid.size:
        for number in {0, grid.size // 2, grid.size - 1}:
            assert grid.number(grid.tail(number)) == number
    layout = getattr(known, "layout", None)
    if layout is None or not layout.grid.size:
        return
    for number in {0, layout.grid.size - 1}:
        _, lengths, place = layout.split(layout.grid.coords(number))
        for level, slot in zip(layout.get_levels(lengths), layout.find_slots(place, lengths), strict=True):
            assert slot >= 0
            assert level.length <= MAX_INDEX + 4
