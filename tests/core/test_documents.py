"""A view rewrites the metadata of some arrays, in single and consolidated documents, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs.core.keyspace import find_chunk
from tests.support.shard_writers import (
    open_array,
    open_source,
    write_prototype,
)
from tests.support.sharded_views import CHUNKS, DATA, SHARDS, count_reads, list_shards


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_prototype(tmp_path / "a", DATA, CHUNKS, SHARDS)
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "a" / ".zattrs").write_text('{"units":   "K"}\n')
    return tmp_path


def test_array_whose_metadata_is_a_reference_is_read(folder: Path) -> None:
    names = [".zarray", *list_shards(folder)]
    refs = {f"a/{name}": [f"file://{folder}/a/{name}"] for name in names}
    assert np.array_equal(open_array(refs, "a")[...], DATA)
    assert open_source(refs).exists("a/6.0")  # a chunk key, before any metadata was requested


def test_unsharded_arrays_keep_their_metadata_byte_for_byte(tmp_path: Path) -> None:
    text = '{"zarr_format":2,   "shape": [4], "chunks": [2], "dtype":"<i4", "fill_value": NaN}'
    (tmp_path / ".zarray").write_text(text)
    (tmp_path / "0").write_bytes(b"12345678")
    fs = open_source(tmp_path)
    assert fs.cat_file(".zarray").decode() == text
    assert fs.cat_file("0") == b"12345678"
    assert find_chunk(fs.source.open().grids, "1") == ("", 1)


def test_consolidated_metadata_of_version_2_is_rewritten(folder: Path) -> None:
    array_meta = json.loads((folder / "a/.zarray").read_text())
    doc = {
        "zarr_consolidated_format": 1,
        "metadata": {".zgroup": {"zarr_format": 2}, "a/.zarray": array_meta, "a/.zattrs": {"x": [1, "é"]}},
    }
    (folder / ".zmetadata").write_text(json.dumps(doc, indent=1))
    fs = open_source(folder)
    shown = json.loads(fs.cat_file(".zmetadata"))
    assert shown["metadata"]["a/.zarray"] == json.loads(fs.cat_file("a/.zarray"))
    assert {**shown["metadata"], "a/.zarray": array_meta} == doc["metadata"]
    assert fs.info(".zmetadata")["size"] == len(fs.cat_file(".zmetadata"))


@pytest.mark.parametrize("is_set", [False, True])
def test_own_document_overrides_outdated_consolidated_metadata(folder: Path, is_set: bool) -> None:
    """Consolidated metadata may be older than the array, and describe it without shards.

    The array's own document decides, even if the consolidated metadata are read later.
    """
    before = json.loads((folder / "a/.zarray").read_text())
    plain = {name: value for name, value in before.items() if name not in ("shards", "shard_format")}
    doc = {"zarr_consolidated_format": 1, "metadata": {"a/.zarray": plain, "a/.zattrs": {}, "b/.zarray": plain}}
    (folder / ".zmetadata").write_text(json.dumps(doc))
    fo: Any = folder
    if is_set:
        fo = {f"a/{name}": [f"file://{folder}/a/{name}"] for name in list_shards(folder)}
        fo |= {name: (folder / name).read_text() for name in (".zmetadata", "a/.zarray")}
    fs = open_source(fo)
    array = json.loads(fs.cat_file("a/.zarray"))
    key = next(key for key in fs.find("a") if not key.endswith((".zarray", ".zattrs")))
    chunk = fs.cat_file(key)
    again = open_source(fo)
    assert json.loads(again.cat_file("a/.zarray")) == array != before
    assert json.loads(again.cat_file(".zmetadata")) == doc
    assert again.cat_file(key) == chunk
    assert again.find("a") == fs.find("a")


def test_v3_consolidated_metadata_of_a_subgroup_is_rewritten() -> None:
    sharded = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "int8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [2], "codecs": ["bytes"]}}],
    }
    plain = {**sharded, "codecs": ["bytes"]}
    inner = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"s": sharded}}, "x": 1}
    root = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {},
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": {"g": inner, "p": plain}},
    }
    shard = b"\x01\x02\x03\x04"
    fs = open_source({"zarr.json": json.dumps(root), "g/s/zarr.json": json.dumps(sharded), "g/s/c/0": shard.decode()})
    shown = json.loads(fs.cat_file("zarr.json"))
    seen = shown["consolidated_metadata"]["metadata"]["g"]["consolidated_metadata"]["metadata"]["s"]
    assert seen == json.loads(fs.cat_file("g/s/zarr.json"))
    assert seen["chunk_grid"]["configuration"]["chunk_shape"] == [2]
    assert seen["codecs"] == ["bytes"]
    assert shown["consolidated_metadata"]["metadata"]["p"] == plain


def test_damaged_metadata_is_shown_unchanged(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_bytes(b'{"sharding_indexed": ')
    assert open_source(tmp_path).cat_file("zarr.json") == b'{"sharding_indexed": '


def test_listings_of_groups_and_arrays_read_no_index(tmp_path: Path) -> None:
    for n in range(3):
        write_prototype(tmp_path / f"g/a{n}", DATA, CHUNKS, SHARDS, separator="/")
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    fs = open_source(tmp_path)
    assert [row["name"] for row in fs.ls("g")] == ["g/a0", "g/a1", "g/a2"]
    assert count_reads(fs, lambda: fs.ls("g")) == 0
    assert (
        count_reads(fs, lambda: fs.ls("g/a0")) == 1
    )  # the metadata, because a listing has the size of the rewritten document
