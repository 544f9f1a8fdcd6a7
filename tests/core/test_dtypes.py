"""Lengths of references, fields of dtypes and fill values are checked before chunks are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.core.dtypes import parse_fill_value
from refshard_fs.core.zarrmeta import array_meta
from tests.support.blosc_sources import make_carray
from tests.support.shards_in_memory import Files

pytestmark = pytest.mark.case(id="P29")

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
def test_reference_longer_than_its_chunk_is_refused(kind: str, doc: dict[str, Any], tmp_path: Path) -> None:
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
def test_long_reference_is_read_if_its_chunk_may_be_that_long(doc: dict[str, Any], tmp_path: Path) -> None:
    fs = RefShardFileSystem(source("json", doc, tmp_path), shards="whole")
    assert len(fs.cat_file("a/0" if doc["zarr_format"] == 2 else "a/c/0")) == LENGTH


def test_padding_of_a_struct_becomes_fields() -> None:
    aligned = np.dtype([("a", "i1"), ("b", "<i4")], align=True)
    values = np.zeros(5, aligned)
    values["b"] = np.arange(5)
    files = Files(make_carray(values, 5))
    document = json.loads(files.read(files.open(), "data/.zarray") or b"")
    assert document["dtype"] == [["a", "|i1"], ["f1", "|V3"], ["b", "<i4"]]


NESTED = "[('a', [('b', [('c', 'u1', (999,))], (999,))], (999,))]"


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        (NESTED, "expected at most 65536 fields"),
        (str([(f"f{i}", "u1", (999,)) for i in range(70)]), "expected at most 65536 fields"),
        ("|V2000000000", "a fill value of 2000000000 bytes"),
    ],
    ids=["nested", "many", "long"],
)
def test_dtype_with_huge_metadata_is_refused(dtype: str, reason: str) -> None:
    files = make_carray(np.arange(0), 10, dtype=dtype, shape=[0], nbytes=0)
    with pytest.raises(ManifestError, match=reason):
        Files(files).open(zarr_format=3)


def test_titles_of_fields_are_left_out() -> None:
    files = make_carray(np.arange(0), 10, dtype="{'names': ['a'], 'formats': ['<i4'], 'titles': [b'x']}")
    document = json.loads(Files(files).read(Files(files).open(), "data/.zarray") or b"")
    assert document["dtype"] == [["a", "<i4"]]


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("<i4", 1.5), ("<f4", [0, 1]), ("<f4", {}), ("<U2", 12), ("<U2", True), ("<M8[s]", "3"), ("<M8[s]", 1.5)],
)
def test_fill_value_of_another_type_is_an_error(dtype: str, fill: Any) -> None:
    meta = array_meta(version_2(dtype=dtype, fill_value=fill), "a")
    assert meta is not None
    with pytest.raises(ValueError, match="its fill_value is .*: expected a value of"):
        parse_fill_value(meta, np.dtype(dtype))
