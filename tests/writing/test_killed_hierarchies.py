"""If a commit that overwrites a hierarchy is killed, each object is whole, and the next commit completes the state."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from refshard_fs import RefShardFileSystem
from tests.support.overwriting import (
    check_partly_committed,
    find_leftovers,
    make_state,
    make_values,
    read_keys,
    write_state,
)
from tests.support.shard_writers import IS_ZARR_2

SCRIPT = Path(__file__).parents[1] / "support/killed_hierarchy.py"
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL here"),
    pytest.mark.filterwarnings("ignore::refshard_fs.CostlyPattern"),
]
Run = Callable[..., int | None]
NEVER = 10**6  # a step that no commit reaches, so that the process is not killed


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Return a function that runs `tests.support.killed_hierarchy` in a process that is killed at a step."""
    command = [sys.executable, str(SCRIPT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def run(path: Path, last: int, number: int) -> int | None:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps([str(path), last, number]), file=process.stdin, flush=True)
            steps: int | None = json.loads(process.stdout.readline())
            return steps

        yield run
        assert process.stdin is not None
        process.stdin.close()


def seen(path: Path) -> dict[str, Any]:
    return read_keys(RefShardFileSystem(str(path), skip_instance_cache=True))


def check_with_zarr(path: Path, number: int) -> None:
    """Check that zarr, without this package, reads the values of a state from the files."""
    if IS_ZARR_2:
        return
    for name, expected in make_values(number).items():
        assert np.array_equal(zarr.open_array(str(path / name), mode="r")[...], expected), name
    assert zarr.open_group(str(path), mode="r").attrs["number"] == number


def rounds(run: Run, folder: Path, count: int | None, number: int) -> None:
    """Kill writers of a state at ``count`` steps that are spread over a commit; None means at each step."""
    begun = folder / "begun.zarr"
    write_state(str(begun), 1)
    path = folder / "h.zarr"
    shutil.copytree(begun, path)
    steps = run(path, NEVER, number)
    assert steps is not None
    assert seen(path) == make_state(number)
    check_with_zarr(path, number)
    for last in range(steps) if count is None else [i * (steps - 1) // (count - 1) for i in range(count)]:
        shutil.rmtree(path)
        shutil.copytree(begun, path)
        ended = run(path, last, number)
        if ended is not None:  # the number of steps varies, because threads put objects: this commit had fewer
            assert ended <= last
            assert seen(path) == make_state(number)
            continue
        check_partly_committed(seen(path), 1, number)
        assert run(path, NEVER, number) is not None
        assert seen(path) == make_state(number), f"incomplete after a kill at step {last} of {steps}"
        check_with_zarr(path, number)
        assert find_leftovers(path) == [], "the next commit removes the files that killed writers left"


def test_next_commit_finishes_a_killed_commit(run: Run, tmp_path: Path) -> None:
    rounds(run, tmp_path, 10, 2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [3, 4])
def test_next_commit_finishes_a_commit_killed_at_each_step(run: Run, tmp_path: Path, number: int) -> None:
    rounds(run, tmp_path, None, number)
