"""A commit that overwrites a hierarchy and is killed at any step leaves the old state or the new, to every reader."""

from __future__ import annotations

import json
import random
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
from tests.shards.writers import IS_ZARR_2
from tests.writes.overwriting import begin, found, leftovers, state, values

SCRIPT = Path(__file__).with_name("killed_hierarchy.py")
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL here"),
    pytest.mark.filterwarnings("ignore::refshard_fs.CostlyPattern"),
]
Run = Callable[..., int | None]
ALL = 10**6  # steps: nobody is killed


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs what `tests.writes.killed_hierarchy` says, in a process that is killed at a step."""
    command = [sys.executable, str(SCRIPT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def run(path: Path, what: str, last: int, number: int = 0) -> int | None:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps([str(path), what, last, number]), file=process.stdin, flush=True)
            steps: int | None = json.loads(process.stdout.readline())
            return steps

        yield run
        assert process.stdin is not None
        process.stdin.close()


def seen(path: Path) -> dict[str, Any]:
    return found(RefShardFileSystem(str(path), skip_instance_cache=True))


def as_zarr_reads(path: Path, number: int) -> None:
    """See that zarr itself, without us, reads the values of a state from the files."""
    if IS_ZARR_2:
        return
    for name, expected in values(number).items():
        assert np.array_equal(zarr.open_array(str(path / name), mode="r")[...], expected), name
    assert zarr.open_group(str(path), mode="r").attrs["number"] == number


def rounds(run: Run, folder: Path, count: int | None, seed: int) -> None:
    """Kill writers at ``count`` steps that lie all over a commit (None: at each), and who recovers at others."""
    path = folder / "h.zarr"
    begin(str(path), 1)
    assert seen(path) == state(1)
    chance = random.Random(seed)
    trial = folder / "trial.zarr"
    shutil.copytree(path, trial)
    steps = run(trial, "commit", ALL, 2)
    assert steps is not None
    assert seen(trial) == state(2)
    as_zarr_reads(trial, 2)
    now, states = 1, set()
    for i in range(steps if count is None else count):
        last = i if count is None else min(i * steps // (count - 1), steps - 1)
        number = i + 3
        run(path, "commit", last, number)
        shown = seen(path)
        assert shown in (state(now), state(number)), f"torn at step {last} of {steps}"
        states.add(shown == state(number))
        now = number if shown == state(number) else now
        if chance.random() < 0.5:
            for _ in range(chance.randint(0, 3)):
                run(path, "recover", chance.randrange(40))
                assert seen(path) == state(now), "recovery changes nothing that readers see, wherever it is killed"
            run(path, "recover", ALL)
            assert all(name.endswith(".tmp") for name in leftovers(path)), "of one killed before there was a record"
            assert seen(path) == state(now)
            as_zarr_reads(path, now)
    assert states == {True, False}, "some are killed before the commit, and some after"
    run(path, "commit", ALL, 2)
    assert seen(path) == state(2)
    as_zarr_reads(path, 2)
    assert leftovers(path) == [], "what the killed left is gone"


def test_a_commit_killed_anywhere_leaves_the_old_state_or_the_new(run: Run, tmp_path: Path) -> None:
    rounds(run, tmp_path, 16, 1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 4))
def test_commits_killed_at_every_step_leave_the_old_state_or_the_new(run: Run, tmp_path: Path, seed: int) -> None:
    rounds(run, tmp_path, None, seed)
