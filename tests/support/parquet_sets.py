"""Make parquet reference sets as kerchunk writes them, with a table for each partition of an array."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.servers.http import RangeServer

pa = pytest.importorskip("pyarrow")


parquet = pytest.importorskip("pyarrow.parquet")


DATA = bytes(range(256)) * 4


def make_v2_array(shape: list[int], chunks: list[int], **more: Any) -> dict[str, Any]:
    codecs = {"compressor": None, "filters": None, "fill_value": 0, "order": "C"}
    return {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1", **codecs, **more}


def make_v3_array(shape: list[int], chunks: list[int], encoding: dict[str, Any]) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": encoding,
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
    }


def make_partition(rows: list[Any]) -> bytes:
    """Return a partition with rows in the form of JSON sets: None, bytes, [url] or [url, offset, size]."""
    spans = [row if isinstance(row, list) else [None] for row in rows]
    columns = {
        "path": pa.array([s[0] for s in spans], pa.string()),
        "offset": pa.array([s[1] if len(s) == 3 else 0 for s in spans], pa.int64()),
        "size": pa.array([s[2] if len(s) == 3 else 0 for s in spans], pa.int64()),
        "raw": pa.array([row if isinstance(row, bytes) else None for row in rows], pa.binary()),
    }
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out)
    return out.getvalue()


def make_files(metadata: Mapping[str, Any], record_size: int, partitions: Mapping[str, list[Any]]) -> dict[str, bytes]:
    out = {name: make_partition(rows) for name, rows in partitions.items()}
    return {".zmetadata": json.dumps({"metadata": metadata, "record_size": record_size}).encode(), **out}


def store(root: Path, content: Mapping[str, bytes]) -> str:
    for name, data in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return str(root)


ENCODINGS = {
    "v2/.": (make_v2_array([4, 6], [2, 2]), ".zarray", "{}.{}"),
    "v2 nested": (make_v2_array([4, 6], [2, 2], dimension_separator="/"), ".zarray", "{}/{}"),
    "v3": (make_v3_array([4, 6], [2, 2], {"name": "default"}), "zarr.json", "c/{}/{}"),
    "v3/.": (
        make_v3_array([4, 6], [2, 2], {"name": "default", "configuration": {"separator": "."}}),
        "zarr.json",
        "c.{}.{}",
    ),
    "v3 as v2": (
        make_v3_array([4, 6], [2, 2], {"name": "v2", "configuration": {"separator": "/"}}),
        "zarr.json",
        "{}/{}",
    ),
}


def serve_set(server: RangeServer, chunks: int = 1000, record_size: int = 50) -> str:
    url = server.put("/x.bin", DATA)
    partitions = {
        f"a/refs.{i}.parq": [[url, n % 900, 4] for n in range(i * record_size, (i + 1) * record_size)]
        for i in range(chunks // record_size)
    }
    for name, data in make_files({"a/.zarray": make_v2_array([chunks], [1])}, record_size, partitions).items():
        server.put(f"/set/{name}", data)
    return f"{server.url}/set"


def list_fetched(server: RangeServer) -> list[str]:
    return sorted(r.path for r in server.requests("/set/a/*", "GET") if r.status == 200)
