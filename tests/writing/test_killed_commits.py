"""A writer that is killed at a step of a commit leaves the old state of the source, or the whole new state."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from tests.support.hierarchy_model import (
    FORMATS,
    make_array_document,
    make_group_document,
    make_path,
    open_for_writes,
    parse_model,
    read_keys,
)

SCRIPT = Path(__file__).parents[1] / "support/killed_commit.py"
LENGTHS = (9, 43, 47)  # of values in bytes: values of 9 bytes are inline; there are `length % 7 + 3` chunks
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL here")


def content(value: bytes) -> dict[str, Any]:
    count = len(value) % 7 + 3
    model = {"zarr.json": make_group_document(), "a/zarr.json": make_array_document((count,))}
    return parse_model(model | {f"a/c/{i}": value for i in range(count)})


@pytest.fixture(scope="module")
def writers() -> Iterator[subprocess.Popen[str]]:
    """Start `tests.support.killed_commit`, which runs commits in processes and kills them."""
    command = [sys.executable, str(SCRIPT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def write(writers: subprocess.Popen[str], path: Path, format: str, value: bytes, last: int) -> int | None:
    """Commit ``value`` in a process that is killed at step ``last``.

    Return the number of steps if the commit has fewer, so that the process was not killed.
    """
    assert writers.stdin is not None
    assert writers.stdout is not None
    writers.stdin.write(json.dumps([str(path), format, last, value.decode()]) + "\n")
    writers.stdin.flush()
    steps: int | None = json.loads(writers.stdout.readline())
    return steps


def begin(path: Path, format: str, value: bytes) -> None:
    fs = open_for_writes(path, format)
    count = len(value) % 7 + 3
    fs.pipe({"zarr.json": make_group_document(), "a/zarr.json": make_array_document((count,))})
    fs.pipe({f"a/c/{i}": value for i in range(count)})
    fs.commit()


def rounds(writers: subprocess.Popen[str], folder: Path, format: str, count: int, seed: int) -> None:
    """Kill ``count`` writers of one source, one after the other, at steps that are spread over a commit."""
    path = make_path(folder, format)
    now = b"value" * 8
    begin(path, format, now)
    steps = {}
    for length in LENGTHS:
        shutil.copytree(folder, folder.with_name(f"{folder.name}-{length}"))
        steps[length] = (
            write(writers, make_path(folder.with_name(f"{folder.name}-{length}"), format), format, b"v" * length, 10**6)
            or 0
        )
    chance = random.Random(seed)
    seen = set()
    for i in range(count):
        length = chance.choice(LENGTHS)
        value = str(i).encode().rjust(length, b"v")
        last = min(i * steps[length] // (count - 1), steps[length] - 1)
        write(writers, path, format, value, last)
        found = read_keys(RefShardFileSystem(str(path)))
        assert found in (content(now), content(value)), f"torn at step {last} of {steps[length]}"
        seen.add(found == content(value))
        now = value if found == content(value) else now
    assert seen == {True, False}, "some writers are killed before their state is committed, and some afterwards"
    write(writers, path, format, b"last" * 9, 10**6)
    assert read_keys(RefShardFileSystem(str(path))) == content(b"last" * 9)


@pytest.mark.parametrize("format", FORMATS)
def test_killed_commit_leaves_the_old_state_or_the_new(
    writers: subprocess.Popen[str], tmp_path: Path, format: str
) -> None:
    rounds(writers, tmp_path, format, 7, 1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("format", FORMATS)
def test_many_killed_commits_leave_the_old_state_or_the_new(
    writers: subprocess.Popen[str], tmp_path: Path, format: str
) -> None:
    rounds(writers, tmp_path, format, 70, 2)  # more than 20 for each of the three lengths
