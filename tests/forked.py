"""Runs scripts in processes that are forked from one, which has imported what they need: that takes seconds."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Forked"]

IMPORTED = (
    *("refshard_fs.fs", "xarray", "zarr", "h5netcdf", "h5py", "dask.array", "dask.dataframe", "kerchunk.hdf"),
    *("pyarrow.parquet", "matplotlib.backends.backend_agg", "matplotlib.figure", "refshard_fs.xarray_backend"),
)


class Forked:
    """Runs scripts, each in a process of its own, with warnings as errors."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-W", "error", str(Path(__file__))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(self, script: Path, arguments: list[str], folder: Path) -> tuple[int, str, str]:
        """Return the exit status of a script that runs in ``folder``, and what it printed, errors last."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, errors = folder / "stdout", folder / "stderr"
        print(json.dumps([str(script), arguments, str(folder)]), file=self._process.stdin, flush=True)
        status = self._process.stdout.readline()
        assert status, "the process that forks has ended"
        return int(status), out.read_text(), errors.read_text()


def _child(script: str, arguments: list[str], folder: str) -> None:
    os.chdir(folder)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def _serve() -> None:
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        request: list[Any] = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the threads of numpy's libraries
            child = os.fork()
        if not child:
            status = 1
            try:
                _child(*request)
                status = 0
            except BaseException:  # as an interpreter does
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
