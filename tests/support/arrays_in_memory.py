"""Make references to arrays with known keys."""

from __future__ import annotations

import json
from typing import Any


def make_array(chunks: list[int], dims: list[str], version: int = 2, **more: Any) -> dict[str, Any]:
    """Return the metadata documents of an array of 10 bytes along each dimension, by name."""
    shape = [10] * len(chunks)
    if version == 3:
        grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
        return {"zarr.json": {"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8",
                "chunk_grid": grid, "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
                "codecs": [{"name": "bytes"}], "dimension_names": dims, **more}}  # fmt: skip
    meta = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1", "order": "C", "fill_value": 0,
            "filters": None, "compressor": None}  # fmt: skip
    return {".zarray": {**meta, **more}, ".zattrs": {"_ARRAY_DIMENSIONS": dims}}


def make_references(**arrays: dict[str, Any]) -> dict[str, Any]:
    """Return references to ``arrays``, by path with ``__`` for a slash; each array's chunks lie in one object."""
    refs: dict[str, Any] = {}
    for name, documents in arrays.items():
        path = name.replace("__", "/")
        refs |= {f"{path}/{key}": json.dumps(document) for key, document in documents.items()}
        for number in range(4):
            tail = f"c/{number}" if "zarr.json" in documents else str(number)
            refs[f"{path}/{tail}"] = [f"s3://b/{path}", number * 3, 3]
    return refs
