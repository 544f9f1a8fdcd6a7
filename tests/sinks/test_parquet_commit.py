"""Readers of a parquet set see the state that they opened, or get an error, when others commit to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs import RefShardFileSystem, TargetChanged
from refshard_fs.formats.kerchunk_parquet import source
from refshard_fs.sinks import parquet_commit
from refshard_fs.stores.objects import Objects
from tests.servers.s3 import SeaweedServer

ARRAYS, CHUNKS, RECORD_SIZE = ("a", "b"), 5, 2

Open = Callable[..., RefShardFileSystem]


def make_document(chunks: int = CHUNKS) -> bytes:
    return json.dumps(
        {
            "zarr_format": 2,
            "shape": [chunks],
            "chunks": [1],
            "dtype": "|S4",
            "compressor": None,
            "filters": None,
            "fill_value": None,
            "order": "C",
        }
    ).encode()


def make_state(number: int) -> dict[str, bytes]:
    """Return all keys of a set in the state ``number``, which every value contains."""
    value = b"%04d" % number
    chunks = {f"{array}/{i}": value for array in ARRAYS for i in range(CHUNKS)}
    return {".zgroup": b'{"zarr_format":2}', ".zattrs": b'{"state":%d}' % number, **chunks} | {
        f"{array}/.zarray": make_document() for array in ARRAYS
    }


def check_state(fs: RefShardFileSystem) -> int:
    """Check that all values that a reader finds have the same state; return its number."""
    number = int(json.loads(fs.cat_file(".zattrs"))["state"])
    wanted = {key: value for key, value in make_state(number).items() if not key.split("/")[-1].startswith(".z")}
    first, *others = wanted
    assert fs.cat_file(first) == wanted[first]
    assert fs.cat(others) == {key: wanted[key] for key in others}
    return number


@pytest.fixture(params=["local", "memory", "s3"])
def open_fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens a set in the state 0, which `save` wrote."""
    name = uuid.uuid4().hex
    options: dict[str, Any] = {}
    match request.param:
        case "local":
            url = str(tmp_path / "set")
        case "memory":
            url = f"memory://{name}"
        case _:
            server: SeaweedServer = request.getfixturevalue("s3_server")
            server.create_bucket("generations")
            url, options = f"s3://generations/{name}", {"target_options": server.storage_options}
    made = RefShardFileSystem({key: value.decode() for key, value in make_state(0).items()})
    made.save(url, format="parquet", record_size=RECORD_SIZE, **options.get("target_options", {}))
    yield lambda mode="r", **how: RefShardFileSystem(url, mode=mode, skip_instance_cache=True, **options, **how)
    if request.param == "memory":
        MemoryFileSystem().rm(f"/{name}", recursive=True)


def commit(open_fs: Open, number: int) -> None:
    fs = open_fs("a")
    with fs.transaction:
        fs.pipe(make_state(number))


def test_readers_keep_the_state_they_opened(open_fs: Open) -> None:
    """Before the set changes, each reader has read only metadata, or one partition."""
    readers = []
    for number in range(4):
        if number:
            commit(open_fs, number)
        readers += [open_fs() for _ in range(2)]
        assert json.loads(readers[-1].cat_file(".zattrs")) == {"state": number}
        assert readers[-2].cat_file("a/0") == b"%04d" % number
    assert [check_state(fs) for fs in readers] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_evicted_partition_is_read_again_after_a_commit(open_fs: Open) -> None:
    """The listing reads all partitions, of which one is kept."""
    reader = open_fs(cache_size=1)
    listed = reader.ls("a", detail=False)
    commit(open_fs, 1)
    assert {reader.cat_file(key) for key in listed if not key.endswith(".zarray")} == {b"0000"}


def test_reader_of_a_resized_array_gets_an_error(open_fs: Open) -> None:
    reader = open_fs()
    assert reader.exists("a/.zarray")
    fs = open_fs("a")
    with fs.transaction:
        fs.pipe(
            {
                "a/.zarray": make_document(CHUNKS + 2),
                "a/6": b"0001",
                "b/.zarray": make_document(CHUNKS - 1),
                "b/0": b"0001",
            }
        )
        fs.rm("b/4")
    assert reader.ls("a", detail=False) == ["a/.zarray", *(f"a/{i}" for i in range(CHUNKS))]
    assert reader.cat_file("b/0") == b"0000"
    with pytest.raises(TargetChanged, match="a commit has changed the set since it was opened"):
        reader.cat_file("b/4")
    assert open_fs().cat_file("a/6") == b"0001"
    assert not open_fs().exists("b/4")


@pytest.mark.parametrize("again", [False, True])
def test_reader_of_a_removed_array_gets_an_error(open_fs: Open, again: bool) -> None:
    reader = open_fs()
    assert reader.exists("a/.zarray")
    fs = open_fs("a")
    with fs.transaction:
        fs.rm("a", recursive=True)
        fs.pipe({"a/.zarray": make_document(), "a/0": b"0001"} if again else {})
    with pytest.raises(TargetChanged, match="a commit has changed the set since it was opened"):
        reader.cat_file("a/4")
    reader.invalidate_cache()
    assert reader.find("a") == (["a/.zarray", "a/0"] if again else [])


def test_replaced_partitions_are_removed_later(open_fs: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards the set has only the files that other writers would make, and a late reader gets an error."""
    before = open_fs("r")
    assert before.exists("a/.zarray")
    commit(open_fs, 1)
    monkeypatch.setattr(parquet_commit, "KEPT", -1)
    monkeypatch.setattr(source, "KEPT", -1)
    commit(open_fs, 2)
    fs = open_fs("a")
    with fs.transaction:
        fs.rm("b", recursive=True)
    commit(open_fs, 3)
    with pytest.raises(TargetChanged):
        before.cat_file("a/0")
    assert check_state(open_fs()) == 3
    session = open_fs().source

    url = str(session.options.source)
    files = Objects(url, session.stores).find("")
    assert set(files) == {".zmetadata", *(f"{a}/refs.{number}.parq" for a in ARRAYS for number in range(3))}


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_readers_beside_killed_writers_see_whole_states(open_fs: Open, request: pytest.FixtureRequest) -> None:
    """At any step of the writer, new readers find one state."""
    if "memory" in request.node.name:
        pytest.skip("processes share no memory")
    fs = open_fs("a")
    options = {"url": fs.source.options.source, "options": fs.storage_options.get("target_options")}
    seen: set[int] = set()
    for kill in (False,) if "s3" in request.node.name else (False, True):
        writer = subprocess.Popen([sys.executable, "-m", "tests.sinks.test_parquet_commit", json.dumps(options)])
        try:
            for _ in range(12):
                seen.add(check_state(open_fs()))
                if writer.poll() is not None:
                    break
        finally:
            if kill:
                os.kill(writer.pid, signal.SIGKILL)
            assert writer.wait(60) == (-signal.SIGKILL if kill and writer.returncode else 0)
    assert check_state(open_fs()) in range(1, 100)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    more = {"target_options": given["options"]} if given["options"] else {}

    def open_again(mode: str = "r") -> RefShardFileSystem:
        return RefShardFileSystem(given["url"], mode=mode, skip_instance_cache=True, **more)

    start = check_state(open_again())
    for number in range(start + 1, start + 6):
        commit(open_again, number)
