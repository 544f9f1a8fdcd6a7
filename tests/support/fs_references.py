"""A reference set with every kind of reference to one target."""

from __future__ import annotations

from typing import Any

DATA = bytes(range(200))


ZARRAY = {"zarr_format": 2, "shape": [4, 6], "chunks": [2, 2], "dtype": "|u1"}


def make_v3_array(separator: str) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 6],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
    }


def make_refs(target: str) -> dict[str, Any]:
    out: dict[str, Any] = {
        ".zgroup": {"zarr_format": 2},
        "a/.zarray": ZARRAY,
        "ab/.zarray": {**ZARRAY, "dimension_separator": "/"},
        "g/v3/zarr.json": make_v3_array("/"),
        "g/dot/zarr.json": make_v3_array("."),
        "g/readme": "inline text",
        "whole": [target],
    }
    for i, j in [(0, 0), (0, 2), (1, 1)]:
        place = [target, 10 * i, 20 + j]
        out[f"a/{i}.{j}"] = out[f"ab/{i}/{j}"] = out[f"g/v3/c/{i}/{j}"] = out[f"g/dot/c.{i}.{j}"] = place
    return out
