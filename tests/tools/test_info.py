"""The summary of a source, and its tree."""

from __future__ import annotations

import base64
import json

import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from refshard_fs.tools.info import make_tree, summarise

ZARRAY = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i2", "compressor": None, "fill_value": 0}
META = json.dumps(ZARRAY | {"filters": None, "order": "C"})
REFS = {
    ".zgroup": '{"zarr_format": 2}',
    "g/.zgroup": '{"zarr_format": 2}',
    "g/a/.zarray": META,
    "g/a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
    "g/a/0": ["memory://host/one", 0, 4],
    "g/a/1": "base64:" + base64.b64encode(bytes(4)).decode(),
    "g/b/.zarray": META,
    "g/b/1": ["memory://host/two"],
}


def test_summary_counts_chunks_bytes_and_targets() -> None:
    found = summarise(RefShardFileSystem(REFS))
    assert found.zarr_formats == (2,)
    assert found.groups == ("", "g")
    assert [(array.name, array.shape, array.present) for array in found.arrays] == [("g/a", (4,), 2), ("g/b", (4,), 1)]
    assert (found.keys, found.unsized) == (len(REFS), 1)
    assert found.inline_keys == len(REFS) - 2


def test_tree_stops_at_the_requested_depth() -> None:
    fs = RefShardFileSystem(REFS)
    whole = make_tree(fs)
    assert [node.path for node in whole.children] == ["g"]
    assert [(node.path, node.kind, node.dimensions) for node in whole.children[0].children] == [
        ("g/a", "array", ("x",)),
        ("g/b", "array", ()),
    ]
    assert make_tree(fs, depth=0).cut
    assert make_tree(fs, "g/a").shape == (4,)


def test_missing_path_and_broken_metadata_are_errors() -> None:
    with pytest.raises(FileNotFoundError):
        make_tree(RefShardFileSystem(REFS), "none")
    with pytest.raises(ManifestError, match="g/b/.zarray"):
        summarise(RefShardFileSystem(REFS | {"g/b/.zarray": "[]"}))
