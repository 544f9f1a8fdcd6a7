"""Bytes that are fetched again and again, and would be kept: who reads them is told once."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from refshard_fs import CostlyPattern, RefShardFileSystem
from refshard_fs.reading import repeats
from tests.servers.http import RangeServer


def opened(server: RangeServer, **options: Any) -> RefShardFileSystem:
    server.put("/x", bytes(range(256)) * 40)
    refs = {"a": [f"{server.url}/x", 0, 5000], "b": [f"{server.url}/x", 5000, 5000]}
    return RefShardFileSystem(refs, skip_instance_cache=True, **options)


@pytest.fixture(autouse=True)
def _little_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MUCH", 12_000)


def test_bytes_that_are_fetched_again_are_told_of_once(http_server: RangeServer) -> None:
    fs = opened(http_server)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(6):
            fs.cat_file("a")
    (warning,) = told
    assert warning.category is CostlyPattern
    assert "block_cache=" in str(warning.message)


def test_a_first_read_and_what_a_block_cache_keeps_are_told_nothing_of(http_server: RangeServer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fs = opened(http_server)
        fs.cat(["a", "b"])
        kept = opened(http_server, block_cache=1 << 20)
        for _ in range(6):
            kept.cat_file("a")
    assert fs._session._repeats.again == 0


def test_a_warning_that_is_made_an_error_does_not_spoil_the_read(http_server: RangeServer) -> None:
    fs = opened(http_server)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CostlyPattern)
        for _ in range(6):
            assert len(fs.cat_file("a")) == 5000
