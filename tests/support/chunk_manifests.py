"""Write hierarchies with chunk manifests as JSON, and open them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zarr

from refshard_fs import (
    RefShardFileSystem,
)
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding

needs_zarr_3 = pytest.mark.skipif(zarr.__version__.startswith("2."), reason="zarr 2 reads no version 3")


def open_source(fo: Any, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, skip_instance_cache=True, **options)


def make_metadata(
    shape: tuple[int, ...], chunks: tuple[int, ...], manifest: Any = "./manifest.json", **more: Any
) -> Any:
    doc = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 9,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
    }
    if manifest is not None:
        doc["storage_transformers"] = [{"name": "chunk-manifest-json", "configuration": {"manifest": manifest}}]
    return doc | more


def write(folder: Path, manifest: Any, shape: tuple[int, ...] = (4,), chunks: tuple[int, ...] = (2,)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zarr.json").write_text(json.dumps(make_metadata(shape, chunks)))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


GRID = ChunkGrid((4, 3), ChunkKeyEncoding("default", "/"))


def encode_manifest(manifest: Any) -> bytes:
    return json.dumps(manifest).encode()
