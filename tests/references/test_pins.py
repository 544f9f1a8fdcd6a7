"""Copies of a set and its JSON keep its pins, and malformed pins raise an error."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import fsspec
import pytest

import refshard_fs
from refshard_fs import (
    ManifestError,
    RefShardFileSystem,
    TargetChanged,
)
from tests.support.snapshots import STORE, open_source, overwrite, save_json, write_array

zarr = pytest.importorskip("zarr")


def save_compressed(found: Any, folder: Path) -> Any:
    import gzip

    path = save_json(found, folder)
    (folder / "refs.json.gz").write_bytes(gzip.compress(Path(path).read_bytes()))
    return str(folder / "refs.json.gz")


def save_again(found: Any, folder: Path) -> Any:
    open_source(save_json(found, folder)).save(str(folder / "again.json"))
    return str(folder / "again.json")


WAYS = {
    "itself": lambda found, folder: found,
    "pickle": lambda found, folder: pickle.loads(pickle.dumps(found)),
    "JSON": save_json,
    "compressed JSON": save_compressed,
    "JSON of JSON": save_again,
    "concat": lambda found, folder: refshard_fs.concat([found]),
    "merge": lambda found, folder: refshard_fs.concat([found, {"b/x": "y"}]),
    "rebase": lambda found, folder: refshard_fs.rebase(found, {"s3://other": "s3://new"}, missing="ignore"),
}


@pytest.mark.parametrize("way", WAYS)
def test_pins_survive_copies_and_conversions(way: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    found = WAYS[way](refshard_fs.snapshot(write_array(tmp_path / "store")), tmp_path / "out")
    assert open_source(found).cat_file("a/0") == b"ab"
    overwrite(tmp_path / "store/a/0", b"xy")
    with pytest.raises(TargetChanged):
        open_source(found).cat_file("a/0")
    assert open_source(found).cat_file("a/1") == b"cd"


def test_pins_survive_the_json_form_of_a_filesystem(tmp_path: Path) -> None:
    fs = RefShardFileSystem.from_json(open_source(refshard_fs.snapshot(write_array(tmp_path))).to_json())
    overwrite(tmp_path / "a/0", b"xy")
    with pytest.raises(TargetChanged):
        fs.cat_file("a/0")


def test_pins_survive_the_index_cache(tmp_path: Path) -> None:
    path = save_json(refshard_fs.snapshot(write_array(tmp_path / "store")), tmp_path)
    first = open_source(path, index_cache=str(tmp_path / "cache"))
    assert first.cat_file("a/0") == b"ab"
    first.invalidate_cache()
    overwrite(tmp_path / "store/a/0", b"xy")
    with pytest.raises(TargetChanged):
        open_source(path, index_cache=str(tmp_path / "cache")).cat_file("a/0")


def test_reference_filesystem_of_fsspec_ignores_pins(tmp_path: Path) -> None:
    store = {key: data for key, data in STORE.items() if not key.startswith("notes")}
    path = save_json(refshard_fs.snapshot(write_array(tmp_path / "store", store)), tmp_path)
    document = json.loads(Path(path).read_text())
    assert document["refshard"]["pins"]["base"] == str(tmp_path / "store/a") + "/"
    assert document["refshard"]["pins"]["url"] == ["0", "1"]
    assert document["refshard"]["pins"]["size"] == [2, 2]
    theirs = fsspec.filesystem("reference", fo=path, skip_instance_cache=True)
    assert theirs.cat_file("a/0") == b"ab"


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"url": ["a"], "size": [1, 2]}, "expected 1 values of size"),
        ({"url": ["a"], "size": [-1]}, "expected sizes from 0"),
        ({"url": "a"}, "malformed"),
        ([], "malformed"),
        ({"url": [], "colour": []}, "malformed"),
    ],
)
def test_malformed_pins_are_refused(pins: Any, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        open_source({"version": 1, "refs": {}, "refshard": {"pins": pins}}).ls("")


def test_pins_need_version_1() -> None:
    with pytest.raises(ManifestError, match='no "version": expected "version": 1'):
        open_source({"a": ["memory://x"], "refshard": {"pins": {"url": []}}}).ls("")
