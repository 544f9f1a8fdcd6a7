"""A small reference set for the tests of commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ARRAY = {
    "zarr_format": 2,
    "shape": [5],
    "chunks": [2],
    "dtype": "|u1",
    "order": "C",
    "fill_value": 0,
    "filters": None,
    "compressor": None,
}
V3_ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 4],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "bytes"}],
    "fill_value": 0,
}
REFS: dict[str, Any] = {
    ".zgroup": {"zarr_format": 2},
    "a/.zarray": ARRAY,
    "a/0": "ab",
    "a/1": ["data.bin", 3, 2],
    "a/7": "??",
    "b/c/zarr.json": V3_ARRAY,
    "b/c/c/1/0": ["data.bin", 0, 8],
}

Refs = Callable[..., str]
