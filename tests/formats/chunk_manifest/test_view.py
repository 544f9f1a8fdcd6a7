"""What documents say of a commit under way is somebody else's word: nonsense in it is an error that says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refshard_fs.errors import ManifestError
from refshard_fs.formats.chunk_manifest.view import pending_edits
from refshard_fs.formats.kerchunk_parquet.source import Layout


def root(**ours: Any) -> bytes:
    members = {"a": {"zarr_format": 3, "node_type": "group"}}
    inline = {"kind": "inline", "must_understand": False, "metadata": members, "refshard": ours}
    return json.dumps({"zarr_format": 3, "node_type": "group", "consolidated_metadata": inline}).encode()


def test_pending_documents_are_those_of_the_root_and_gone_ones_are_none() -> None:
    edits = pending_edits(root(pending=["a"], gone=["b/c"]), "zarr.json")
    assert edits is not None
    assert sorted(edits.changes()) == ["a/zarr.json", "b/c/zarr.json"]
    assert pending_edits(root(pending=[], gone=[]), "zarr.json") is None


@pytest.mark.parametrize(
    "ours",
    [
        {"pending": ["../up"]},
        {"pending": ["a/../b"]},
        {"pending": [""]},
        {"pending": ["/a"]},
        {"pending": [5]},
        {"pending": ["unknown"]},
        {"pending": [], "gone": 5},
        {"pending": [], "gone": [None]},
    ],
)
def test_paths_that_are_none_are_refused(ours: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match=r"zarr\.json"):
        pending_edits(root(**ours), "zarr.json")


@pytest.mark.parametrize(
    "partitions",
    [
        {"a": {"0": "../refs.0.ab.parq"}},
        {"a": {"0": "sub/refs.0.ab.parq"}},
        {"a": {"0": "other.parq"}},
        {"a": {"0": 5}},
        {"a": {"-1": "refs.0.ab.parq"}},
        {"a": {"x": None}},
        {"a": []},
        [],
    ],
)
def test_only_files_of_partitions_can_be_named(partitions: Any) -> None:
    document = {"metadata": {}, "record_size": 1, "refshard": {"partitions": partitions}}
    with pytest.raises(ManifestError, match=r"\.zmetadata"):
        Layout(json.dumps(document).encode(), ".zmetadata")
