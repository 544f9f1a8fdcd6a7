"""Run Python programs in milliseconds, in forks of a process that has imported the packages.

`ForkServer.python` is a command that replaces ``[sys.executable]`` before ``-W ACTION``, ``-c PROGRAM`` or a script,
and their arguments. The program has the directory, the environment (except ``PYTHON*``) and the standard streams of
the command, and the command ends with the program's exit status.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
from pathlib import Path
from typing import Any, Self

import fsspec.config

__all__ = ["ForkServer"]

IMPORTED = (
    *("xarray", "zarr", "h5netcdf", "h5py", "dask.array", "dask.dataframe", "distributed", "kerchunk.hdf", "s3fs"),
    *("virtualizarr", "pyarrow.parquet", "matplotlib.pyplot", "matplotlib.backends.backend_agg"),
)


class ForkServer:
    """Within a ``with`` block, the command ``python`` runs programs in forks; without `os.fork`, as usual.

    Programs find ``imported`` imported; by default, all modules of this package and of those that it is used with.
    """

    def __init__(self, *imported: str) -> None:
        self.python = [sys.executable]
        self._imported = imported
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if not hasattr(os, "fork"):
            return self
        self._folder = tempfile.TemporaryDirectory(prefix="forks")
        path = str(Path(self._folder.name, "socket"))
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, path, *self._imported],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the process that forks has ended"
        self.python = [sys.executable, "-I", "-S", str(Path(__file__).with_name("forked_client.py")), path]
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # programs that hang, too
            self._process.communicate()
            self._folder.cleanup()


def _serve(path: str, *imported: str) -> None:
    """Fork for each connection to a socket, until standard input ends."""
    for name in imported or IMPORTED:
        with contextlib.suppress(ImportError, Warning):
            importlib.import_module(name)
    if not imported:
        import refshard_fs

        for module in pkgutil.walk_packages(refshard_fs.__path__, "refshard_fs."):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)  # libraries of numpy have started threads
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # this process does not wait for the forks that answer
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _answer(connection)
            connection.close()


def _answer(connection: socket.socket) -> None:
    """Run the program that a client requests in a new process, send its status to the client, and exit."""
    asked, received = b"", array.array("i")
    while not asked.endswith(b"\n"):
        text, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        asked += text
        received.extend(descriptors)
    child = os.fork()
    if not child:
        connection.close()
        for standard, descriptor in enumerate(received):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        os._exit(_run(**json.loads(asked)))
    _, status = os.waitpid(child, 0)
    connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _run(arguments: list[str], folder: str, environment: dict[str, str]) -> int:
    """Run a program as a new interpreter would, and return its exit status."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    fsspec.config.set_conf_env(fsspec.config.conf)
    action = "default"
    if arguments[0] == "-W":
        action = arguments[1]
        del arguments[:2]
    if action != "error":
        warnings.filters.remove(("error", None, Warning, None, 0))  # type: ignore[attr-defined]  # this is a list
        warnings.simplefilter(action, append=True)  # type: ignore[arg-type]  # an action
    status: Any = 0
    try:
        if arguments[0] == "-c":
            program = arguments.pop(1)
            sys.argv, sys.path[0] = arguments, ""
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(program, vars(sys.modules["__main__"]))
        else:
            sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as e:
        status = e.code or 0
    except BaseException:  # printed as by Python itself, which would exit with 1
        traceback.print_exc()
        status = 1
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # wait for threads, as an interpreter does at its end
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    _serve(*sys.argv[1:])
