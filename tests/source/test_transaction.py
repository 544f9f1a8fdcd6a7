"""Several processes write to one overlay, and a commit merges their writes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ConflictError, ReadOnlyError, RefShardFileSystem
from tests.support.hierarchy_model import make_array_document, make_group_document, open_for_writes
from tests.support.processes import run_in_process
from tests.support.written_arrays import KINDS, make_sharded, open_writable

SOURCES = {"json": "refs.json", "parquet": "refs.parq", "zarr-hierarchy": "store.zarr"}


@pytest.fixture
def fs(tmp_path: Path) -> RefShardFileSystem:
    fs = open_for_writes(tmp_path / "refs.json", "json")
    fs.pipe({"zarr.json": make_group_document(), "a/zarr.json": make_array_document((8,))})
    return fs


LARGE = b"0123456789" * 10


def test_writes_of_workers_are_seen_and_committed(tmp_path: Path, fs: RefShardFileSystem) -> None:
    fs.pipe_file("a/c/0", LARGE)
    run_in_process(
        fs,
        "assert fs.cat_file('a/c/0') == b'0123456789' * 10 and fs.exists('a/zarr.json')\n"
        "fs.pipe_file('a/c/1', b'x' * 50); fs.pipe_file('a/c/2', b'small')\n"
        "fs.rm_file('a/c/0'); assert fs.cat(['a/c/1', 'a/c/2']) == {'a/c/1': b'x' * 50, 'a/c/2': b'small'}\n"
        "assert not fs.exists('a/c/0')",
    )
    run_in_process(
        fs, "fs.pipe_file('a/c/3', b'once' * 9); fs.pipe_file('a/c/3', b'again' * 9); fs.cp_file('a/c/3', 'a/c/4')"
    )
    assert fs.exists("a/c/0")
    assert not fs.exists("a/c/3")
    fs.commit()
    for found in (fs, RefShardFileSystem(str(tmp_path / "refs.json"))):
        chunks = {key: found.cat_file(key) for key in found.find("a/c")}
        assert chunks == {"a/c/1": b"x" * 50, "a/c/2": b"small", "a/c/3": b"again" * 9, "a/c/4": b"again" * 9}
    assert fs.references["a/c/2"] == "small"
    left = [file for file in (tmp_path / "refs.json.data").rglob("*") if file.is_file()]
    assert sorted(file.read_bytes() for file in left) == [b"again" * 9, b"x" * 50]


def test_key_written_by_worker_and_parent_is_a_conflict(fs: RefShardFileSystem) -> None:
    fs.pipe_file("a/c/1", b"before")
    run_in_process(fs, "fs.pipe_file('a/c/1', b'x' * 50)")
    fs.pipe_file("a/c/1", b"after")
    with pytest.raises(ConflictError, match="'a/c/1'"):
        fs.commit()
    fs.discard()


def test_worker_cannot_commit_but_discards_its_writes(fs: RefShardFileSystem) -> None:
    run_in_process(
        fs,
        "from refshard_fs import ReadOnlyError\n"
        "fs.pipe_file('a/c/1', b'kept' * 10)\n"
        "try: fs.commit()\n"
        "except ReadOnlyError as e: assert 'another process' in str(e)\n"
        "else: raise AssertionError\n"
        "try:\n"
        "    with fs.transaction:\n"
        "        fs.pipe_file('a/c/2', b'gone' * 10)\n"
        "        raise ZeroDivisionError\n"
        "except ZeroDivisionError: pass\n"
        "assert not fs.exists('a/c/2') and fs.exists('a/c/1')\n",
    )
    fs.commit()
    assert fs.find("a/c") == ["a/c/1"]


def test_failed_transaction_discards_workers_writes(fs: RefShardFileSystem) -> None:
    run_in_process(fs, "fs.pipe_file('a/c/1', b'before' * 10)")

    def fail() -> None:
        with fs.transaction:
            run_in_process(fs, "fs.pipe({'a/c/2': b'within' * 10, 'a/c/3': b'small'})")
            fs.fork().pipe_file("a/c/4", LARGE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    fs.commit()
    assert fs.find("a/c") == ["a/c/1"]


def test_worker_with_mode_w_keeps_the_source(tmp_path: Path) -> None:
    fs = open_for_writes(tmp_path / "refs.json", "json", mode="w")
    fs.pipe_file("a", b"here")
    run_in_process(
        type(fs)(*fs.storage_args, **fs.storage_options),
        "assert fs.cat_file('a') == b'here'; fs.pipe_file('b', b'there')",
    )
    fs.commit()
    assert RefShardFileSystem(str(tmp_path / "refs.json")).cat(["a", "b"]) == {"a": b"here", "b": b"there"}


def _write(fs: RefShardFileSystem, number: int) -> None:
    fs.pipe_file(f"a/c/{number}", bytes([number]) * 64)
    os._exit(0 if fs.cat_file(f"a/c/{number}") == bytes([number]) * 64 else 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no os.fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_children_write_for_their_parent(fs: RefShardFileSystem) -> None:
    fs.exists("a/c/0")  # the source is open
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_write, args=(fs, number)) for number in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    fs.commit()
    assert {key: fs.cat_file(key) for key in fs.find("a/c")} == {f"a/c/{n}": bytes([n]) * 64 for n in range(3)}


def _save(fs: RefShardFileSystem, url: str) -> None:
    fs.save(url)
    os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore::refshard_fs.CostlyPattern")
def test_child_forked_during_a_write_is_not_blocked(tmp_path: Path) -> None:
    make_sharded(tmp_path / "store", np.ones((8, 12), "<i4"), (8, 12), (2, 3), KINDS[0])
    fs = open_writable(tmp_path / "store")
    key = next(key for key in fs.find("a") if key[-1].isdigit())
    fs.pipe_file(key, bytes(range(24)))
    assert fs._writer is not None
    overlay = fs._writer.overlay
    with overlay._guard, overlay.edits._lock, overlay.spool._lock:
        child = multiprocessing.get_context("fork").Process(target=_save, args=(fs, str(tmp_path / "saved.json")))
        child.start()
    child.join(30)
    child.kill()
    assert child.exitcode == 0
    fs.discard()
    assert RefShardFileSystem(str(tmp_path / "saved.json")).cat_file(key) == bytes(range(24))


@pytest.mark.parametrize("format", SOURCES)
def test_dask_workers_write_disjoint_regions_of_one_set(tmp_path: Path, format: str, dask_cluster: Any) -> None:
    xr = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    values = np.random.default_rng(1).random((8, 30, 20))
    dataset = xr.Dataset({"v": (("t", "y", "x"), values)}, coords={"t": np.arange(8)})
    path = tmp_path / SOURCES[format]
    fs = open_for_writes(path, format, record_size=3)
    _run(dask_cluster, fs, dataset)
    found: Any = xr.open_zarr(RefShardFileSystem(str(path)).get_mapper(), consolidated=False)
    assert found.load().identical(dataset)


def _run(cluster: Any, fs: RefShardFileSystem, dataset: Any) -> None:
    from distributed import Client

    with Client(cluster) as client:
        chunked = dataset.chunk({"t": 2})
        with fs.transaction:
            chunked.to_zarr(fs.get_mapper(), compute=False, consolidated=False)
            regions = [
                client.submit(_region, fs, dataset.isel(t=slice(start, start + 2)), start, pure=False)
                for start in range(0, 8, 2)
            ]
            client.gather(regions)


def _region(fs: RefShardFileSystem, part: Any, start: int) -> None:
    part.drop_vars("t").to_zarr(fs.get_mapper(), region={"t": slice(start, start + 2)}, consolidated=False)


def test_fork_takes_effect_when_merged(tmp_path: Path, fs: RefShardFileSystem) -> None:
    fs.pipe_file("a/c/0", LARGE)
    forks = [fs.fork() for _ in range(3)]
    for number, fork in enumerate(forks, start=1):
        run_in_process(
            fork,
            f"assert fs.cat_file('a/c/0') == b'0123456789' * 10; fs.pipe_file('a/c/{number}', b'{number}' * 50)\n"
            f"assert fs.exists('a/c/{number}') and not fs.exists('a/c/{number - 1 or 3}')",
        )
    fs.merge(forks[0], forks[2])
    assert fs.find("a/c") == ["a/c/0", "a/c/1", "a/c/3"]
    fs.commit()
    found = RefShardFileSystem(str(tmp_path / "refs.json"))
    assert found.find("a/c") == ["a/c/0", "a/c/1", "a/c/3"]
    fs.merge(forks[1])
    fs.commit()
    assert RefShardFileSystem(str(tmp_path / "refs.json")).cat_file("a/c/2") == b"2" * 50


def test_fork_is_isolated_from_origin_and_other_forks(fs: RefShardFileSystem) -> None:
    fork, other = fs.fork(), fs.fork()
    fork.pipe_file("a/c/0", LARGE)
    fs.pipe_file("a/c/1", LARGE)
    assert fork.exists("a/zarr.json")
    assert (fs.exists("a/c/0"), other.exists("a/c/0"), fork.exists("a/c/1")) == (False, False, False)
    copy = type(fork)(*fork.storage_args, **{**fork.storage_options, "asynchronous": True})
    assert copy.overlay == fork.overlay, "zarr makes such a copy for its own event loop"
    assert pickle.loads(pickle.dumps(fork)).exists("a/c/0")
    fs.merge()
    assert not fs.exists("a/c/0")
    with pytest.raises(ReadOnlyError, match="another process"):
        fork.commit()
    fs.merge(fork)
    assert fs.cat_file("a/c/0") == LARGE
    fs.discard()


def test_fork_may_write_its_keys_again_after_a_merge(fs: RefShardFileSystem) -> None:
    fork = fs.fork()
    for value in (b"1", b"2" * 50, b"3"):
        fork.pipe_file("a/c/0", value)
        fs.merge(fork)
        assert fs.cat_file("a/c/0") == value
    fs.pipe_file("a/c/0", b"4")
    fork.pipe_file("a/c/0", b"5")
    with pytest.raises(ConflictError, match="'a/c/0'"):
        fs.merge(fork)
    assert fs.cat_file("a/c/0") == b"4"
    fs.discard()


def test_forks_that_differ_on_a_key_are_a_conflict(fs: RefShardFileSystem) -> None:
    one, other = fs.fork(), fs.fork()
    one.pipe({"a/c/0": b"1", "a/c/1": LARGE})
    other.pipe({"a/c/0": b"2", "a/c/1": LARGE})
    with pytest.raises(ConflictError, match="'a/c/0'"):
        fs.merge(one, other)
    assert not fs.exists("a/c/1")
    fs.merge(one)
    with pytest.raises(ConflictError, match="'a/c/0'"):
        fs.merge(other)
    assert fs.cat_file("a/c/0") == b"1"
    fs.discard()


def test_merge_refuses_forks_of_other_filesystems(tmp_path: Path, fs: RefShardFileSystem) -> None:
    other = open_for_writes(tmp_path / "other.json", "json")
    for wrong in (other, other.fork(), fs):
        with pytest.raises(ValueError, match="expects forks of this filesystem"):
            fs.merge(wrong)
    with pytest.raises(ReadOnlyError):
        RefShardFileSystem({"k": "v"}).fork()
    fs.discard()


def test_discard_removes_the_objects_of_forks(tmp_path: Path, fs: RefShardFileSystem) -> None:
    fs.fork().pipe_file("a/c/0", LARGE)
    fs.pipe_file("a/c/1", LARGE)
    fs.discard()
    assert [file for file in (tmp_path / "refs.json.data").rglob("*") if file.is_file()] == []


@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize("format", SOURCES)
def test_xarray_writes_by_dask_workers(tmp_path: Path, format: str, forked: bool, dask_cluster: Any) -> None:
    xr, distributed = pytest.importorskip("xarray"), pytest.importorskip("distributed")
    pytest.importorskip("zarr")
    dataset = xr.Dataset({"v": (("t", "y"), np.random.default_rng(1).random((8, 30)))}, coords={"t": np.arange(8)})
    path = tmp_path / SOURCES[format]
    fs = open_for_writes(path, format, record_size=3)
    target = fs.fork() if forked else fs
    with distributed.Client(dask_cluster), fs.transaction:
        dataset.chunk({"t": 2}).to_zarr(target.get_mapper(), consolidated=False)
        if forked:
            fs.merge(target)
    found: Any = xr.open_zarr(RefShardFileSystem(str(path)).get_mapper(), consolidated=False)
    assert found.load().identical(dataset)


def test_pickled_fork_keeps_its_writes(tmp_path: Path) -> None:
    fs = open_for_writes(tmp_path / "refs.json", "json")
    fork = fs.fork()
    for number in range(2):  # each copy must have all earlier writes of the fork
        fork.pipe_file(f"a/{number}", b"%d" % number)
        again = pickle.loads(pickle.dumps(fork))
        script = "import pickle, sys; fs = pickle.load(sys.stdin.buffer); print(sorted(fs.cat('a', recursive=True)))"
        run = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(again), capture_output=True, check=True)
        assert run.stdout.decode().split() == str([f"a/{each}" for each in range(number + 1)]).split()
    fs.merge(fork)
    assert fs.cat("a", recursive=True) == {"a/0": b"0", "a/1": b"1"}
    fs.discard()
