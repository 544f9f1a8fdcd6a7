"""Differences between two sources, found in columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.tools.diff import compare
from tests.tools.test_surveying import SOURCES, meta


def source(shape: list[int], chunks: list[int], **more: Any) -> RefShardFileSystem:
    refs: dict[str, Any] = {"a/.zarray": json.dumps(meta(shape, chunks))}
    return RefShardFileSystem(refs | {key.replace("_", "/"): value for key, value in more.items()})


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_like_itself(shared_data: Path, name: str) -> None:
    path = str(shared_data / name)
    assert compare(RefShardFileSystem(path), RefShardFileSystem(path)).is_empty


def test_targets_are_compared_by_url_and_not_by_place() -> None:
    a = source([4], [2], a_0=["memory://x", 0, 2], a_1=["memory://y", 0, 2])
    b = source([4], [2], a_1=["memory://y", 0, 2], a_0=["memory://x", 0, 2])
    c = source([4], [2], a_0=["memory://y", 0, 2], a_1=["memory://x", 0, 2])
    assert compare(a, b).is_empty
    (changes,) = compare(a, c).keys
    assert (changes.changed, changes.some_changed) == (2, ("a/0", "a/1"))


def test_an_array_that_grew_keeps_its_chunks() -> None:
    refs = {f"a/{i}.{j}": ["memory://x", 10 * i + j, 1] for i in range(2) for j in range(2)}
    more = refs | {f"a/{i}.2": ["memory://x", 100 + i, 1] for i in range(2)}
    a = RefShardFileSystem({"a/.zarray": json.dumps(meta([2, 2], [1, 1])), **refs})
    b = RefShardFileSystem({"a/.zarray": json.dumps(meta([2, 3], [1, 1])), **more})
    found = compare(a, b)
    assert [(change.key, change.fields) for change in found.metadata_changed] == [("a/.zarray", ("shape",))]
    (changes,) = found.keys
    assert (changes.added, changes.removed, changes.changed) == (2, 0, 0)
    assert changes.some_added == ("a/0.2", "a/1.2")


def test_inline_bytes_are_compared() -> None:
    (changes,) = compare(source([4], [2], a_0="ab", a_1="cd"), source([4], [2], a_0="ab", a_1="cD")).keys
    assert changes.some_changed == ("a/1",)


def test_keys_that_are_no_chunks_are_compared() -> None:
    (changes,) = compare(source([4], [2], x="1", y="2"), source([4], [2], x="1", z="2")).keys
    assert (changes.path, changes.some_added, changes.some_removed) == (None, ("z",), ("y",))


def test_metadata_that_means_the_same_is_the_same() -> None:
    a = RefShardFileSystem({"a/.zarray": json.dumps(meta([4], [2]), indent=1)})
    assert compare(a, source([4], [2])).is_empty
