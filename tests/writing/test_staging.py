"""The process that commits merges the writes of other processes; different writes of one key are a conflict."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from refshard_fs import ConflictError, RefShardFileSystem
from tests.support.hierarchy_model import make_array_document, make_group_document, open_for_writes
from tests.support.processes import run_in_process


@pytest.fixture
def fs(tmp_path: Path) -> RefShardFileSystem:
    fs = open_for_writes(tmp_path / "refs.json", "json")
    fs.pipe({"zarr.json": make_group_document(), "a/zarr.json": make_array_document((8,))})
    return fs


@pytest.mark.parametrize("name", ["日本" * 30, "x" * 218, "é" * 34, "a" * 200, "50% #1", "q?x", "T [K]", "..x"])
def test_workers_write_keys_of_odd_characters_and_lengths(tmp_path: Path, name: str) -> None:
    fs = open_for_writes(tmp_path / "refs.json", "json")
    fs.pipe_file("before", b"x")
    run_in_process(
        fs, f"fs.pipe({{'{name}/{name}': b'x' * 50, '{name}/0': b'small'}}); fs.refer('{name}', '/data', 0, 1)"
    )
    fs.commit()
    again = RefShardFileSystem(str(tmp_path / "refs.json"))
    assert again.references[name][1:] == [0, 1]
    assert again.cat([f"{name}/{name}", f"{name}/0"]) == {f"{name}/{name}": b"x" * 50, f"{name}/0": b"small"}


def test_uncommitted_edits_are_packed_once_for_all_copies(fs: RefShardFileSystem) -> None:
    for number in range(1000):
        fs.refer(f"a/c/{number}", "s3://bucket/of/a/long/name.nc", number * 100, 100)
    overlay = fs.source.ensure_transaction()
    assert overlay.copy() is overlay.copy()
    assert len(pickle.dumps(fs)) < 30_000
    fs.discard()


def test_key_written_differently_by_two_workers_is_a_conflict(fs: RefShardFileSystem) -> None:
    run_in_process(fs, "fs.pipe_file('a/c/1', b'x' * 50); fs.pipe_file('a/c/2', b'same' * 20)")
    run_in_process(fs, "fs.pipe_file('a/c/1', b'y' * 50); fs.pipe_file('a/c/2', b'same' * 20)")
    with pytest.raises(ConflictError, match="'a/c/1'"):
        fs.commit()
    assert not fs.exists("a/c/2")
    fs.discard()
    fs.pipe_file("zarr.json", make_group_document())
    fs.commit()
    assert fs.find("") == ["zarr.json"]


def test_removing_a_directory_with_new_keys_is_a_conflict(fs: RefShardFileSystem) -> None:
    fs.pipe_file("a/c/0", b"before")
    run_in_process(fs, "fs.rm('a/c', recursive=True)")
    fs.pipe_file("a/c/1", b"after")
    with pytest.raises(ConflictError, match="'a/c/1'"):
        fs.commit()
    assert fs.cat_file("a/c/1") == b"after"
    fs.discard()

    fs.pipe({"zarr.json": make_group_document(), "a/zarr.json": make_array_document((8,)), "a/c/0": b"before"})
    run_in_process(fs, "fs.pipe_file('a/c/1', b'x' * 50)")
    fs.rm("a/c", recursive=True)
    with pytest.raises(ConflictError, match="'a/c/1'"):
        fs.commit()
    fs.discard()
