"""The arguments of a filesystem get one form before fsspec stores and compares them."""

from __future__ import annotations

from pathlib import Path

import pytest

from refshard_fs import LazySet, RefShardFileSystem
from tests.support.joined_sets import make_day_set


def test_positional_and_named_arguments_are_stored_alike() -> None:
    for fs in (RefShardFileSystem({"a": "b"}, "s3://target"), RefShardFileSystem({"a": "b"}, target="s3://target")):
        assert len(fs.storage_args) == 1
        assert fs.storage_options["target"] == "s3://target"


def test_pattern_becomes_a_cube(tmp_path: Path) -> None:
    for day in range(2):
        RefShardFileSystem(make_day_set(2 * day, 2, 2)).save(str(tmp_path / f"{day}.json"))
    assert isinstance(RefShardFileSystem(f"{tmp_path}/*.json").fo, LazySet)


def test_filesystem_as_source_is_refused() -> None:
    fs = RefShardFileSystem({"k": "v"})  # has to_dict(), as a table has
    with pytest.raises(TypeError, match="for fo=, got RefShardFileSystem"):
        RefShardFileSystem(fs)
