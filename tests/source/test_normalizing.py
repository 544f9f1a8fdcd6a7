"""Sources of several forms, and keywords, become values that mean the same in every process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.source.normalizing import (
    collect_keywords,
    is_many_sources,
    list_sources,
    parse_options,
    resolve_source,
)


@pytest.mark.parametrize("collect", [iter, np.array, lambda paths: pd.Series([str(path) for path in paths])])
def test_iterables_of_paths_are_accepted_as_lists(collect: Callable[[list[Path]], Any], tmp_path: Path) -> None:
    refs = {".zgroup": '{"zarr_format": 2}', "t/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"]}'}
    refs["t/.zarray"] = (
        '{"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": null, '
        '"filters": null, "compressor": null}'
    )
    paths = [tmp_path / f"{day}.json" for day in range(2)]
    for path in paths:
        path.write_text(json.dumps({**refs, "t/0": path.stem}))
    options = {"concat": {"dim": "time"}}
    assert RefShardFileSystem(collect(paths), **options).cat_file("t/1") == b"1"
    assert len(refshard_fs.open(collect(paths), "time")) == len(refshard_fs.concat(collect(paths), "time", lazy=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("days/d?.nc", True), ("s3://b/d?.nc", True), ("file:///days/d?.nc", True), ("d[0-9].nc", True), ("d*", True),
        ("{m}/a.nc", True), ("https://h/a.nc?x", False), ("s3://b/a.nc?versionId=1", False), ("a.nc", False),
        ("zip://a*::s3://b/c.zip", False), ("data:text/plain,a?", False), ("a[1].nc", False),
    ],
)  # fmt: skip
def test_pattern_stands_for_many_sources(text: str, expected: bool) -> None:
    assert is_many_sources(text) == expected


def test_single_stac_item_is_a_list_of_one_item() -> None:
    item = {"type": "Feature", "assets": {}}
    assert list_sources(item) == [item]
    assert list_sources({"type": "FeatureCollection"}) == {"type": "FeatureCollection"}


def test_positional_arguments_become_keywords() -> None:
    assert collect_keywords(("s3://target", {"key": 1}), {"max_gap": 3}) == {
        "target": "s3://target",
        "ref_storage_args": {"key": 1},
        "max_gap": 3,
    }
    with pytest.raises(TypeError, match="too many positional arguments"):
        collect_keywords(("",) * 20, {})


def test_icechunk_prefix_chooses_the_format() -> None:
    assert resolve_source("icechunk::s3://b/repo", {}) == ("s3://b/repo", {"format": "icechunk"})


def test_options_of_a_local_path_have_its_absolute_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_options("a.nc", {"storage_options": {"max_gap": 3}}).source.fo == str(tmp_path / "a.nc")
