"""Targets that have moved: prefixes of all URLs are replaced, the longest first, and only at slashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.cli import main

REFS: dict[str, Any] = {
    ".zgroup": '{"zarr_format": 2}',
    "a": ["s3://old/x.nc", 0, 4],
    "b": ["s3://old/deep/x.nc"],
    "c": ["s3://older/x.nc", 1, 2],
}


@pytest.mark.parametrize("slash", ["", "/"])
def test_longest_prefix_applies_and_ends_at_a_slash(slash: str) -> None:
    new = refshard_fs.rebase(REFS, {f"s3://old{slash}": f"file:///data{slash}", f"s3://old/deep{slash}": "gs://b/c"})
    found = new.references
    assert found["a"] == ["file:///data/x.nc", 0, 4]
    assert found["b"] == ["gs://b/c/x.nc"]
    assert found["c"] == REFS["c"]
    assert len(new) == 4


def test_moved_target_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.nc").write_bytes(b"0123456")
    new = refshard_fs.rebase(REFS, {"s3://old/": tmp_path.as_uri()})
    assert RefShardFileSystem(new).cat_file("a") == b"0123"


def test_relative_urls_start_at_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "refs.json").write_text(json.dumps({"a": ["data/x.nc", 0, 4]}))
    new = refshard_fs.rebase(str(tmp_path / "refs.json"), {str(tmp_path): "s3://bucket"})
    assert new.references["a"] == ["s3://bucket/data/x.nc", 0, 4]


def test_empty_prefix_is_refused() -> None:
    with pytest.raises(ValueError, match="found an empty text"):
        refshard_fs.rebase(REFS, {"": "s3://x/"})


def test_command_writes_the_new_set(tmp_path: Path) -> None:
    source, destination = tmp_path / "a.json", tmp_path / "b.json"
    source.write_text(json.dumps(REFS))
    assert main(["rebase", str(source), str(destination), "--from", "s3://old/", "--to", "s3://new/"]) == 0
    assert RefShardFileSystem(str(destination)).references["a"] == ["s3://new/x.nc", 0, 4]


def test_rebase_command_needs_a_to_for_each_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "a.json"
    source.write_text(json.dumps(REFS))
    assert main(["rebase", str(source), str(tmp_path / "b.json"), "--from", "s3://old/"]) == 2
    assert "--to" in capsys.readouterr().err


def test_unused_prefix_is_an_error_that_names_it() -> None:
    for prefixes in ({"s3://ol": "gs://b"}, {"s3://old": "gs://b", "s3://new": "gs://c"}):
        last = [*prefixes][-1]
        with pytest.raises(ValueError, match=f"set's 3 URLs begins with '{last}': .* such as 's3://old/x.nc'"):
            refshard_fs.rebase(REFS, prefixes)
        new = refshard_fs.rebase(REFS, prefixes, missing="ignore").references
        assert new["c"] == REFS["c"]


def test_prefixes_that_are_not_a_mapping_are_refused() -> None:
    with pytest.raises(TypeError, match="prefixes='s3://old/'"):
        refshard_fs.rebase(REFS, "s3://old/")  # type: ignore[arg-type]  # the test passes a wrong type


def test_rebase_accepts_a_prefix_beside_a_longer_prefix() -> None:
    new = refshard_fs.rebase({"a": ["s3://old/deep/x"]}, {"s3://old": "gs://a", "s3://old/deep": "gs://b"})
    assert new.references["a"] == ["gs://b/x"]


def test_command_names_the_unused_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "refs.json").write_text(json.dumps(REFS))
    paths = [str(tmp_path / "refs.json"), str(tmp_path / "new.json")]
    assert main(["rebase", *paths, "--from", "s3://typo/", "--to", "gs://b"]) == 2
    assert "begins with 's3://typo/'" in capsys.readouterr().err
    assert not (tmp_path / "new.json").exists()


@pytest.mark.parametrize("url", ["file:///data/x.nc", "/data/x.nc", "local:///data/x.nc"])
@pytest.mark.parametrize("prefix", ["file:///data", "/data/", "local:///data/", "file:///", "/"])
def test_rebase_treats_a_path_like_its_file_url(url: str, prefix: str) -> None:
    new = refshard_fs.rebase({"a": [url, 0, 4], "b": ["/database/x"]}, {prefix: "s3://b/"}).references
    assert new["a"][0] == ("s3://b/x.nc" if "data" in prefix else "s3://b/data/x.nc")
    assert new["b"] == (["/database/x"] if "data" in prefix else ["s3://b/database/x"])


def test_lazy_document_can_be_rebased(tmp_path: Path) -> None:
    """Its parts have relative or absolute URLs, in memory or in a file; no file exists at the old URLs."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    for number in range(2):
        meta = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": None}
        refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps({**meta, "filters": None, "compressor": None}),
                "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}', "a/0": f"{number}!"}  # fmt: skip
        (old / f"{number}.json").write_text(json.dumps(refs))
    joined = refshard_fs.concat([str(old / f"{number}.json") for number in range(2)], "x", lazy=True)
    joined.save(str(tmp_path / "cube.refshard"))
    old.rename(new)
    for source in (joined, str(tmp_path / "cube.refshard")):
        moved = refshard_fs.rebase(source, {str(old): str(new)})
        assert isinstance(moved, refshard_fs.LazySet)
        assert RefShardFileSystem(moved).cat_file("a/1") == b"1!"
    with pytest.raises(ValueError, match="none of the set's 2 URLs begins with"):
        refshard_fs.rebase(joined, {"s3://elsewhere/": str(new)})


def test_error_says_that_set_without_urls_needs_no_rebase() -> None:
    refs = {"a/.zgroup": '{"zarr_format": 2}', "a/0": "base64:AAEC"}
    with pytest.raises(ValueError, match="no URL begins with 's3://old/': the set has no URLs"):
        refshard_fs.rebase(refs, {"s3://old/": "s3://new/"})
    assert refshard_fs.rebase(refs, {"s3://old/": "s3://new/"}, missing="ignore").references["a/0"] == "base64:AAEC"
