"""A script that forks a process for each line it reads; the process commits, and kills itself at a step.

A line is JSON: path, format, number of the step (from 0), and the value that all chunks are to have. Each call that
changes something in the file system is a step; the process kills itself before it. The answer is the number of steps
in all, or null if the process was killed.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import refshard_fs.formats.kerchunk_parquet.partition
import refshard_fs.writing.commit  # imported before the forks, and not by each process
from tests.support.hierarchy_model import make_array_document, open_for_writes

STEPS = ("replace", "unlink", "remove", "rmdir", "fsync", "makedirs")


def commit_until(path: str, format: str, last: int, value: bytes) -> int:
    """Commit ``value``, and kill this process at the step ``last``; return the number of steps."""
    count = 0

    def stepping(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return call(*args, **kwargs)

        return step

    # The first two letters of an object's name are its directory. Make them different for all objects of a commit, so
    # that the number of steps is the same in each run.
    numbers = itertools.count()
    uuid.uuid4 = lambda: uuid.UUID(hex=f"{next(numbers) % 256:02x}{os.urandom(15).hex()}")
    fs = open_for_writes(Path(path), format)
    fs.find("")
    for name in STEPS:
        setattr(os, name, stepping(getattr(os, name)))
    shutil.rmtree = stepping(shutil.rmtree)
    fs.rm("a/c", recursive=True)
    fs.pipe_file("a/zarr.json", make_array_document((len(value) % 7 + 3,)))
    for i in range(len(value) % 7 + 3):
        fs.pipe_file(f"a/c/{i}", value)
    fs.commit()
    return count


def main() -> None:
    refshard_fs.formats.kerchunk_parquet.partition.require_pyarrow()
    for line in sys.stdin:
        path, format, last, value = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.write(write, str(commit_until(path, format, last, value.encode())).encode())
            os._exit(0)
        os.close(write)
        with open(read) as answer:
            steps = answer.read()
        _, status = os.waitpid(child, 0)
        assert (os.WTERMSIG(status) == signal.SIGKILL) if os.WIFSIGNALED(status) else steps, status
        print(json.dumps(int(steps) if steps else None), flush=True)


if __name__ == "__main__":
    main()
