"""The keys of chunk manifests: pending documents of the root, and metadata without the declaration of a manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import ManifestError, SourceNotReachable
from refshard_fs.formats.chunk_manifest.view import read_pending_edits
from tests.support.chunk_manifests import make_metadata, open_source, write


def make_root(**extension: Any) -> bytes:
    members = {"a": {"zarr_format": 3, "node_type": "group"}}
    inline = {"kind": "inline", "must_understand": False, "metadata": members, "refshard": extension}
    return json.dumps({"zarr_format": 3, "node_type": "group", "consolidated_metadata": inline}).encode()


def test_pending_edits_are_read_from_the_root_document() -> None:
    edits = read_pending_edits(make_root(pending=["a"], gone=["b/c"]), "zarr.json")
    assert edits is not None
    assert sorted(edits.list_changes()) == ["a/zarr.json", "b/c/zarr.json"]
    assert read_pending_edits(make_root(pending=[], gone=[]), "zarr.json") is None


@pytest.mark.parametrize(
    "extension",
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
def test_invalid_paths_of_pending_nodes_are_refused(extension: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match=r"zarr\.json"):
        read_pending_edits(make_root(**extension), "zarr.json")


def test_metadata_are_shown_without_the_transformer(tmp_path: Path) -> None:
    fs = open_source(str(write(tmp_path, {})))
    shown = json.loads(fs.cat_file("zarr.json"))
    assert shown == json.loads(json.dumps(make_metadata((4,), (2,), None)))
    assert fs.info("zarr.json")["size"] == len(fs.cat_file("zarr.json"))
    assert fs.cat_file("manifest.json") == b"{}"


def test_consolidated_metadata_lack_the_transformer(tmp_path: Path) -> None:
    array = make_metadata((4,), (2,), {"0": {"data": "ab"}})
    inner = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"x": array}}}
    root = {"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}
    root["consolidated_metadata"] = {"kind": "inline", "metadata": {"g": inner, "g/x": array, "x": array}}
    (tmp_path / "zarr.json").write_text(json.dumps(root))
    fs = open_source(str(tmp_path))
    assert b"storage_transformers" not in fs.cat_file("zarr.json")
    assert json.loads(fs.cat_file("zarr.json"))["attributes"] == {"a": 1}
    assert fs.cat_file("g/x/c/0") == fs.cat_file("x/c/0") == b"ab"


@pytest.mark.parametrize(
    "transformers",
    [
        [{"name": "other"}],
        [{"name": "chunk-manifest-json", "configuration": {"manifest": {}}}, {"name": "other"}],
        [{"name": "chunk-manifest-json"}],
        [{"name": "chunk-manifest-json", "configuration": {"manifest": 3}}],
    ],
)
def test_unsupported_transformers_are_shown_unchanged(tmp_path: Path, transformers: Any) -> None:
    text = json.dumps(make_metadata((4,), (2,)) | {"storage_transformers": transformers})
    (tmp_path / "zarr.json").write_text(text)
    assert open_source(str(tmp_path)).cat_file("zarr.json").decode() == text


def test_transformer_without_a_configuration_is_an_error(tmp_path: Path) -> None:
    doc = make_metadata((4,), (2,)) | {"storage_transformers": [{"name": "chunk-manifest-json"}]}
    (tmp_path / "zarr.json").write_text(json.dumps(doc))
    with pytest.raises(ManifestError, match="configuration"):
        open_source(str(tmp_path)).cat_file("c/0")


@pytest.mark.parametrize("other", [{"name": "other"}, {"configuration": {"chunks_per_shard": [2]}}])
def test_chunks_of_several_transformers_are_errors(tmp_path: Path, other: Any) -> None:
    several = [{"name": "chunk-manifest-json", "configuration": {"manifest": {"0": {"data": "ab"}}}}, other]
    (tmp_path / "zarr.json").write_text(json.dumps(make_metadata((4,), (2,)) | {"storage_transformers": several}))
    fs = open_source(str(tmp_path))
    with pytest.raises(ManifestError, match="none are supported"):
        fs.cat_file("c/0")


def test_chunks_beside_a_manifest_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, {"0": {"data": "ab"}})
    (tmp_path / "c").mkdir()
    (tmp_path / "c/1").write_bytes(b"no")
    fs = open_source(str(tmp_path))
    assert not fs.exists("c/1")
    assert fs.find("c") == ["c/0"]


def test_missing_manifest_is_not_a_missing_chunk(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(SourceNotReachable, match=r"manifest\.json"):
        open_source(str(tmp_path)).cat_file("c/0")


def test_reference_set_without_manifests_has_no_manifest_view() -> None:
    fs = open_source({"a/zarr.json": json.dumps(make_metadata((4,), (2,), None)), "a/c/0": "ab"})
    assert type(fs.source.open()).__name__ == "FlatKeySpace"
