"""A reference that is longer than its uncompressed chunk is an error before anything is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.errors import ManifestError

LENGTH = 3 << 20
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def version_2(**members: Any) -> dict[str, Any]:
    doc = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i4", "order": "C", "fill_value": 0}
    return {**doc, "filters": None, "compressor": None, **members}


def version_3(codecs: list[Any], data_type: str = "int32") -> dict[str, Any]:
    grid = {"name": "regular", "configuration": {"chunk_shape": [2]}}
    doc = {"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": data_type, "chunk_grid": grid}
    return {**doc, "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": codecs, "attributes": {}}


def source(kind: str, doc: dict[str, Any], tmp_path: Path) -> str:
    """Write a set with one array ``a`` whose first chunk has `LENGTH` bytes; return its path."""
    data = tmp_path / "data"
    data.write_bytes(bytes(LENGTH))
    name, chunk = (".zarray", "0") if doc["zarr_format"] == 2 else ("zarr.json", "c/0")
    refs: dict[str, Any] = {f"a/{name}": json.dumps(doc), f"a/{chunk}": [str(data), 0, LENGTH]}
    if kind == "many":  # chunks are in columns, not by key
        doc = {**doc, "shape": [2000]}
        refs = {f"a/{name}": json.dumps(doc)} | {f"a/{i}": [str(data), 0, LENGTH if i == 0 else 8] for i in range(1000)}
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    if kind in ("json", "many"):
        return str(tmp_path / "refs.json")
    out = str(tmp_path / "out")
    if kind == "chunk-manifest":
        refs["zarr.json"] = '{"zarr_format": 3, "node_type": "group", "attributes": {}}'
    RefShardFileSystem(refs).save(out, format=kind)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize(
    ("kind", "doc"),
    [
        ("json", version_2()),
        ("json", version_3([BYTES])),
        ("many", version_2()),
        ("parquet", version_2()),
        ("chunk-manifest", version_3([{"name": "transpose", "configuration": {"order": [0]}}, BYTES])),
    ],
)
def test_a_reference_longer_than_its_chunk_is_refused(kind: str, doc: dict[str, Any], tmp_path: Path) -> None:
    fs = RefShardFileSystem(source(kind, doc, tmp_path))
    key = "a/0" if doc["zarr_format"] == 2 else "a/c/0"
    with pytest.raises(ManifestError, match=rf"'{key}'.*{LENGTH} bytes: expected at most 8"):
        fs.cat_file(key)
    with pytest.raises(ManifestError, match="expected at most 8"):
        fs.cat([key])


@pytest.mark.parametrize(
    "doc",
    [
        version_2(compressor={"id": "zlib", "level": 1}),
        version_2(filters=[{"id": "shuffle", "elementsize": 4}]),
        version_2(dtype="|O", filters=[{"id": "vlen-utf8"}]),
        version_2(shards=[2]),
        version_2(chunks=[1 << 20]),
        version_3([BYTES, {"name": "zstd"}]),
        version_3([BYTES], "string"),
    ],
)
def test_a_reference_of_unknown_size_is_read(doc: dict[str, Any], tmp_path: Path) -> None:
    fs = RefShardFileSystem(source("json", doc, tmp_path), shards="whole")
    assert len(fs.cat_file("a/0" if doc["zarr_format"] == 2 else "a/c/0")) == LENGTH
