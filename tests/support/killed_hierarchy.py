"""A script that forks a process for each line it reads; the process overwrites a hierarchy, and kills itself at a step.

A line is JSON: path, number of the step (from 0), and number of the state to write (see `overwriting`). Each call that
changes something in the file system is a step; the process kills itself before it. The answer is the number of steps
in all, or null if the process was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import refshard_fs.writing.commit  # noqa: F401  # imported before the forks, and not by each process
from refshard_fs import RefShardFileSystem
from tests.support.overwriting import write

STEPS = ("replace", "unlink", "remove", "rmdir", "fsync", "mkdir")


def run(path: str, last: int, number: int) -> int:
    """Write the state ``number``, and kill this process at the step ``last``; return the number of steps."""
    count = 0

    def stepping(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return call(*args, **kwargs)

        return step

    fs = RefShardFileSystem(path, mode="a")
    write(fs, number)
    for name in STEPS:
        setattr(os, name, stepping(getattr(os, name)))
    fs.commit()
    return count


def main() -> None:
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        read, write_end = os.pipe()
        child = os.fork()
        if not child:
            os.write(write_end, str(run(*json.loads(line))).encode())
            os._exit(0)
        os.close(write_end)
        with open(read) as answer:
            steps = answer.read()
        _, status = os.waitpid(child, 0)
        assert (os.WTERMSIG(status) == signal.SIGKILL) if os.WIFSIGNALED(status) else steps, status
        print(json.dumps(int(steps) if steps else None), flush=True)


if __name__ == "__main__":
    main()
