"""The next write removes the drafts of killed writers, but never the drafts of writers that are at work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.stores.stale_drafts import UNTOUCHED
from tests.support.parquet_sets import make_v2_array

SOURCE = {"a/.zarray": make_v2_array([3], [1]), "a/0": ["memory://x", 0, 1]}
NAMES = pytest.mark.parametrize("name", ["set.json", "set.parq", "set.zarr"])
WRITER = """
import glob, sys
from refshard_fs import RefShardFileSystem
from refshard_fs.references.stream import ReferenceStream
from refshard_fs.stores.objects import Objects
def stop_with_draft(of, name):
    call = getattr(of, name)
    def stop(*given):
        if glob.glob(sys.argv[1] + ".*.tmp"):
            print("at work", flush=True)
            sys.stdin.read()
        return call(*given)
    setattr(of, name, stop)
stop_with_draft(ReferenceStream, "partitions")
stop_with_draft(Objects, "put_all")
RefShardFileSystem({"a/.zarray": sys.argv[2], "a/0": ["memory://x", 0, 1]}).save(sys.argv[1], overwrite=True)
"""


def age(path: Path) -> None:
    """Change the times of a draft, and of all files in it, so that it is stale."""
    then = time.time() - UNTOUCHED - 10
    for found in (*path.rglob("*"), path):
        os.utime(found, (then, then))


def drafts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tmp"))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@NAMES
def test_drafts_stay_until_their_writer_is_killed(tmp_path: Path, name: str) -> None:
    if name.endswith("parq"):
        pytest.importorskip("pyarrow")
    fs = RefShardFileSystem(SOURCE)
    command = [sys.executable, "-c", WRITER, str(tmp_path / name), json.dumps(make_v2_array([300], [1]))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        try:
            assert writer.stdout.readline() == b"at work\n"
            (draft,) = drafts(tmp_path)
            age(draft)
            fs.save(str(tmp_path / name))
            assert drafts(tmp_path) == [draft], "its writer is at work"
        finally:
            writer.kill()
    fs.save(str(tmp_path / name), overwrite=True)
    assert drafts(tmp_path) == []


@NAMES
def test_recent_drafts_and_other_files_stay(tmp_path: Path, name: str) -> None:
    """A writer on another machine that shares the disk may be at work."""
    if name.endswith("parq"):
        pytest.importorskip("pyarrow")
    letters = "0123456789abcdef" * 2
    recent, other, mine = (tmp_path / n for n in (f"{name}.{letters}.tmp", f"other.{letters}.tmp", f"{name}.tmp"))
    for path in (recent, other, mine):
        path.write_text("x")
    age(other)
    age(mine)
    RefShardFileSystem(SOURCE).save(str(tmp_path / name))
    assert drafts(tmp_path) == sorted([recent, other, mine])


def test_parquet_commit_removes_old_drafts_of_partitions(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    url: Any = str(tmp_path / "set.parq")
    RefShardFileSystem(SOURCE).save(url)
    old, new = (tmp_path / "set.parq" / "a" / f"refs.0.parq.{letter * 32}.tmp" for letter in "ab")
    for path in (old, new):
        path.write_text("x")
    age(old)
    fs = RefShardFileSystem(url, mode="a")
    fs.pipe_file("a/1", b"1")
    fs.commit()
    assert (old.exists(), new.exists()) == (False, True)
