"""Shards that are complete before the commit: put together at once, out of memory, and nowhere where others look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.edits import REMOVED, Spooled
from refshard_fs.sharding.nested import NestedLayout
from tests.shards.writers import IS_ZARR_2
from tests.writes.arrays import CHUNKS, FILL, QUIET, SHARDS, array, make_sharded, objects, opened, stored

pytestmark = QUIET


@pytest.fixture
def data() -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).integers(1, 1000, (21, 26)).astype("<i4")


@pytest.fixture
def fs(tmp_path: Path, kind: str, data: Any) -> RefShardFileSystem:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    return opened(tmp_path)


def edits(fs: RefShardFileSystem) -> list[Any]:
    assert fs._writer is not None
    return [change.edit for change in fs._writer.overlay.edits.changes().values()]


def held(fs: RefShardFileSystem) -> int:
    assert fs._writer is not None
    return fs._writer.overlay.spool.held


def no_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    def rewrite(*_: Any) -> None:
        raise AssertionError("a shard that is complete is not put together again")

    monkeypatch.setattr(NestedLayout, "rewrite", rewrite)


def test_a_complete_shard_is_one_object_before_the_commit(
    fs: RefShardFileSystem, tmp_path: Path, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = objects(tmp_path)
    seen = array(fs)
    for row in range(0, 8, 2):
        for column in range(0, 12, 3):
            assert held(fs) == (row * 2 + column // 3) * 24
            seen[row : row + 2, column : column + 3] = data[row : row + 2, column : column + 3] = row + column
    pieces = edits(fs)
    assert held(fs) == 0, "no chunk takes memory any more"
    assert all(isinstance(edit, Spooled) for edit in pieces)
    assert len({edit.file for edit in pieces}) == 1
    assert len({edit.offset for edit in pieces}) == 16
    assert objects(tmp_path) == before, "it is nowhere where others look"
    assert np.array_equal(seen[...], data)
    no_packing(monkeypatch)
    fs.commit()
    assert np.array_equal(stored(tmp_path)[...], data)


def test_shards_at_the_edge_are_complete_with_the_chunks_that_are_of_the_array(
    fs: RefShardFileSystem, tmp_path: Path, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    array(fs)[...] = data = data + 1
    assert held(fs) == 0
    no_packing(monkeypatch)
    fs.commit()
    assert np.array_equal(stored(tmp_path)[...], data)


def test_a_chunk_that_is_written_again_takes_the_place_of_what_was_put_together(
    fs: RefShardFileSystem, tmp_path: Path, data: Any
) -> None:
    seen = array(fs)
    seen[0:8, 0:12] = data[0:8, 0:12] = 4
    seen[0:2, 0:3] = data[0:2, 0:3] = 5
    assert np.array_equal(seen[...], data)
    fs.commit()
    assert np.array_equal(stored(tmp_path)[...], data)


def test_chunks_left_out_are_part_of_a_complete_shard(fs: RefShardFileSystem, tmp_path: Path, data: Any) -> None:
    if IS_ZARR_2:
        pytest.skip("zarr 2 writes chunks of nothing but the fill value too")
    seen = array(fs)
    data[0:8, 0:12] = FILL
    data[2:4, 3:6] = 6
    seen[0:8, 0:12] = data[0:8, 0:12]
    assert held(fs) == 0
    assert sum(edit is REMOVED for edit in edits(fs)) == 15
    fs.commit()
    assert np.array_equal(stored(tmp_path)[...], data)


def test_what_is_taken_back_leaves_nothing_of_a_complete_shard(
    fs: RefShardFileSystem, tmp_path: Path, data: Any
) -> None:
    seen = array(fs)
    seen[0, 0] = data[0, 0] = 7

    def fail() -> None:
        with fs.transaction:
            seen[0:8, 0:12] = 8
            raise KeyError("of the caller")

    with pytest.raises(KeyError):
        fail()
    assert np.array_equal(seen[...], data)
    fs.commit()
    assert np.array_equal(stored(tmp_path)[...], data)


def test_chunks_of_a_transaction_that_is_taken_back_take_no_memory(fs: RefShardFileSystem, data: Any) -> None:
    def fail() -> None:
        with fs.transaction:
            array(fs)[0:2, 0:3] = data[0:2, 0:3]
            assert held(fs) == 24
            raise KeyError("of the caller")

    with pytest.raises(KeyError):
        fail()
    assert held(fs) == 0


def test_an_array_that_grew_has_complete_shards_too(fs: RefShardFileSystem, tmp_path: Path, data: Any) -> None:
    seen = array(fs)
    with fs.transaction:
        seen[16:21, 0:12] = data[16:21, 0:12] = 3
        seen.resize((32, 26))
        more = np.arange(11 * 26).reshape(11, 26) + 1
        seen[21:] = more
    assert np.array_equal(stored(tmp_path)[...], np.concatenate([data, more]))


def test_a_complete_shard_is_put_beside_one_of_somebody_else(fs: RefShardFileSystem, tmp_path: Path, data: Any) -> None:
    seen = array(fs)
    seen[0:8, 0:12] = data[0:8, 0:12] = 2
    other = opened(tmp_path)
    array(other)[0:8, 12:24] = data[0:8, 12:24] = 1
    other.commit()
    fs.commit()
    assert np.array_equal(stored(tmp_path)[...], data)
