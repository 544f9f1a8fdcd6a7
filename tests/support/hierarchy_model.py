"""Model a source as a dict: the expected content of a filesystem after any writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from refshard_fs import RefShardFileSystem

__all__ = [
    "FORMATS",
    "Grid",
    "make_array_document",
    "parse_model",
    "make_group_document",
    "make_path",
    "read_keys",
    "open_for_writes",
]

FORMATS = ("json", "parquet")

Grid = tuple[int, ...]


def make_path(folder: Path, format: str) -> Path:
    return folder / {"json": "refs.json", "parquet": "refs.parq"}[format]


def open_for_writes(path: Path, format: str, **options: Any) -> RefShardFileSystem:
    settings = {"format": format, "record_size": 4, "inline_threshold": 16, "mode": "a", **options}
    return RefShardFileSystem(str(path), **settings)


def make_group_document() -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()


def make_array_document(counts: Grid, title: int = 0) -> bytes:
    """Return the metadata of an array with one byte in each chunk."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(counts),
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * len(counts)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": {"title": title},
        }
    ).encode()


def read_keys(fs: RefShardFileSystem) -> dict[str, Any]:
    """Return all keys of a filesystem: metadata as objects, without consolidated copies, and other keys as bytes."""
    keys = [key for key in fs.find("") if not key.endswith(".zmetadata")]
    found: dict[str, Any] = {}
    for key, data in fs.cat(keys).items() if keys else ():
        found[key] = _parse_document(data) if key.endswith("zarr.json") else data
    return found


def _parse_document(data: bytes) -> Any:
    return {name: value for name, value in json.loads(data).items() if name != "consolidated_metadata"}


def parse_model(model: dict[str, bytes]) -> dict[str, Any]:
    return {key: _parse_document(data) if key.endswith("zarr.json") else data for key, data in model.items()}
