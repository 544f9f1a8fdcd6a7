"""Metadata of sharded arrays, in both versions of zarr."""

from __future__ import annotations

from typing import Any

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


CRC = {"name": "crc32c"}


def make_sharding(
    chunk_shape: Any, codecs: Any = (LITTLE,), index: Any = (LITTLE, CRC), at: str = "end"
) -> dict[str, Any]:
    configuration = {"chunk_shape": chunk_shape, "codecs": codecs, "index_codecs": index, "index_location": at}
    return {"name": "sharding_indexed", "configuration": configuration}


def make_version_3(shape: Any, shards: Any, codecs: Any, separator: str = "/", fill: int = 0) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shards)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": {},
    }


def make_version_2(shape: Any, chunks: Any, shards: Any, **more: Any) -> dict[str, Any]:
    return {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": list(chunks),
        "dtype": "<i4",
        "compressor": None,
        "filters": None,
        "fill_value": 0,
        "order": "C",
        "shards": list(shards),
        "shard_format": "indexed",
        **more,
    }
