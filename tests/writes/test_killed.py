"""A process that is killed in mid-commit: each shard is the old one or the new, and the next commit works."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from tests.shards.test_packing import sharding, version_3
from tests.writes.arrays import opened

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills as POSIX does"),
    pytest.mark.filterwarnings("ignore::refshard_fs.CostlyPattern"),
]
ROWS = 12  # shards of four chunks of one row each, but for the last of them, which are written in part

# For each line that it reads, a child writes generation after generation, from the one after that number: each chunk is
# filled with it, and a line says when one is committed. The parent has imported all that takes time.
_WRITERS = textwrap.dedent(
    """
    import os, sys, warnings
    import numpy as np
    from refshard_fs import RefShardFileSystem
    from refshard_fs.writing import commit

    warnings.simplefilter("ignore")

    def write(root, generation, rows):
        fs = RefShardFileSystem(root, mode="a")
        while True:
            generation += 1
            with fs.transaction:
                for row in range(rows):
                    for column in range(3 if row % 3 else 4):
                        fs.pipe_file(f"a/c/{row}/{column}", np.full(2048, generation, "<i4").tobytes())
            print(generation, flush=True)

    for line in sys.stdin:
        child = os.fork()
        if not child:
            write(sys.argv[1], int(line), int(sys.argv[2]))
        print("child", child, flush=True)
        os.waitpid(child, 0)
        print("dead", flush=True)
    """
)


def rounds(tmp_path: Path, count: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}))
    doc = version_3((ROWS, 4 * 2048), (1, 4 * 2048), [sharding([1, 2048])])
    (tmp_path / "a" / "zarr.json").write_text(json.dumps(doc))
    command = [sys.executable, "-c", _WRITERS, str(tmp_path), str(ROWS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writers:
        _rounds(tmp_path, count, writers)


def _rounds(tmp_path: Path, count: int, writers: subprocess.Popen[str]) -> None:
    chance = random.Random(1)
    generation, rows, complete = 0, list[set[int]]([set()] * ROWS), False
    for _ in range(count):
        said = _killed(writers, generation, chance)
        fs = opened(tmp_path)
        found = [_values(fs, row) if fs.exists(f"a/c/{row}/0") else set[int]() for row in range(ROWS)]
        for values, before in zip(found, rows, strict=True):
            assert len(values) <= 1, "no shard is torn"
            allowed = {said, said + 1} if said is not None else {*before, generation + 1}
            assert values <= allowed, "what was committed is there, and nothing older"
        complete = complete or said is not None
        assert all(found) or not complete
        rows = found
        generation = max(generation + 1, *(value for values in rows for value in values), 0)
    fs = opened(tmp_path)
    for row in range(ROWS):
        fs.pipe_file(f"a/c/{row}/3", bytes(8192))
    fs.commit()
    assert list((tmp_path / "a").rglob("*.tmp")) == [], "what the killed left is gone"
    fs = opened(tmp_path)
    assert [_values(fs, row) for row in range(ROWS)] == rows
    assert all(fs.cat_file(f"a/c/{row}/3") == bytes(8192) for row in range(ROWS))


def _values(fs: RefShardFileSystem, row: int) -> set[int]:
    """The values of the chunks of a shard that every generation writes."""
    return {int(value) for column in range(3) for value in np.frombuffer(fs.cat_file(f"a/c/{row}/{column}"), "<i4")}


def _killed(writers: subprocess.Popen[str], generation: int, chance: random.Random) -> int | None:
    """Return the last generation that a child said was committed, when it was killed at some moment."""
    assert writers.stdin is not None
    assert writers.stdout is not None
    print(generation, file=writers.stdin, flush=True)
    child, said = 0, list[int]()
    patience = chance.randrange(3)
    while not child or len(said) < patience:
        match writers.stdout.readline().split():
            case ["child", number]:
                child = int(number)
            case [number]:
                said.append(int(number))
            case []:
                raise EOFError("the writers ended")
    time.sleep(chance.random() * 0.05)
    os.kill(child, signal.SIGKILL)
    while (line := writers.stdout.readline()) != "dead\n":
        said.append(int(line))
    return said[-1] if said else None


def test_twenty_killed_processes_tear_nothing(tmp_path: Path) -> None:
    rounds(tmp_path, 20)


@pytest.mark.slow
def test_two_hundred_killed_processes_tear_nothing(tmp_path: Path) -> None:
    rounds(tmp_path, 200)
