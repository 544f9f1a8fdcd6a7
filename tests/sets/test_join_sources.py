"""A filesystem of several sources shows the cube that joins them, with the keywords that are not for joining."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import refshard_fs
from refshard_fs import LazySet, RefShardFileSystem
from refshard_fs.sets.join_sources import join_if_many, join_sources
from tests.support.joined_sets import make_day_set


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    """A pattern that two sets match."""
    for day in range(2):
        RefShardFileSystem(make_day_set(2 * day, 2, 2)).save(str(tmp_path / f"{day}.json"))
    return f"{tmp_path}/*.json"


def test_join_sources_leaves_only_options_of_the_filesystem(pattern: str) -> None:
    given = {"concat": {"dim": "time"}, "target_options": {}, "max_gap": 3, "session": "x"}
    cube, left = join_sources(pattern, given)
    assert isinstance(cube, LazySet)
    assert len(cube) == 2
    assert left == {"max_gap": 3, "session": "x"}


def test_one_source_is_not_joined(pattern: str) -> None:
    assert join_if_many("a.json", {"max_gap": 3}) == ("a.json", {"max_gap": 3})
    assert isinstance(join_if_many(pattern, {})[0], LazySet)


@pytest.mark.parametrize("function", [refshard_fs.snapshot, lambda fo: refshard_fs.rebase(fo, {}, missing="ignore")])
def test_functions_of_one_source_join_a_pattern(function: Any, pattern: str) -> None:
    whole = RefShardFileSystem(function(pattern))
    assert whole.find("") == RefShardFileSystem(pattern).find("")


def test_arguments_of_a_cube_are_a_mapping(pattern: str) -> None:
    with pytest.raises(TypeError, match=r"concat='time': expected a mapping with arguments of refshard_fs.open"):
        RefShardFileSystem(pattern, concat="time")
