"""Iteration over the references of a parquet set loads one partition at a time."""

from __future__ import annotations

import itertools

import pytest

from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.parquet_sets import list_fetched, serve_set

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_iterating_references_loads_one_partition_at_a_time(http_server: RangeServer) -> None:
    refs = RefShardFileSystem(serve_set(http_server)).references
    first = list(itertools.islice(refs, 10))
    assert first == ["a/.zarray", ".zmetadata", *(f"a/{n}" for n in range(8))]
    assert len(list_fetched(http_server)) == 1
    assert "a/999" in refs
    assert "a/1000" not in refs
    assert 7 not in refs
    assert refs.get("b/0") is None
    assert len(list_fetched(http_server)) == 2
    assert len(refs) == 1002
    assert len(list_fetched(http_server)) == 20
    value = refs["a/3"]
    value[0] = "changed"
    assert refs["a/3"] != value
