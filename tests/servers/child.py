"""Run a program beside the tests. It ends with this process, even if this process is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Child", "ChildServer"]

# A shell reads a pipe whose other end this process holds. The pipe closes when this process ends in any way, and then
# the shell kills the program.
_GUARD = """
"$@" </dev/null & child=$!
exec 3<&0
{ read -r _ <&3; kill -9 $child; } & watch=$!
wait $child
kill -9 $watch
"""


_PATIENCE_SECONDS = 5.0  # the longest time that `Child.stop` waits
_STARTS = 3  # tries to start a server


class Child:
    """A process that runs ``command`` from construction to ``stop``; its output is written to ``log``."""

    def __init__(
        self, command: Sequence[str | Path], *, cwd: Path, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self._guard = subprocess.Popen(
                ["sh", "-c", _GUARD, "guard", *map(str, command)],
                cwd=cwd,
                env={"PATH": os.environ.get("PATH", os.defpath), **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self._guard.poll() is None

    def printed(self) -> str:
        """Return the last lines of its output, for errors."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])

    def stop(self) -> None:
        """Kill the process. Its data are removed anyway, and an object store takes ten seconds to end by itself."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        try:
            self._guard.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            # A forked process still holds this end of the pipe open.
            os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait()


class ChildServer:
    """A program that serves within a ``with`` block, with a folder that is removed at the end.

    A subclass starts the program in ``_start``, which raises RuntimeError if the program does not answer.
    """

    name: str

    def __init__(self) -> None:
        self._child: Child | None = None
        self._folder: Path | None = None

    def _start(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        for attempt in range(1, _STARTS + 1):
            try:
                self._start()
                return self
            except RuntimeError:
                # Another process may have taken one of the free ports.
                self._stop()
                if attempt == _STARTS:
                    raise
            except BaseException:  # Ctrl-C, too, must not leave the child
                self._stop()
                raise
        raise AssertionError("unreachable")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _new_folder(self) -> Path:
        self._folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        return self._folder

    def _run(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        assert self._folder is not None
        self._child = Child(command, cwd=self._folder, log=self._folder / "printed.log", environment=environment)

    def _await(self, is_up: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until ``is_up`` returns True; after ``seconds``, RuntimeError with the output of the program."""
        assert self._child is not None
        deadline = time.monotonic() + seconds
        # If the program has ended, another process may answer at its port.
        while not (is_up() and self._child.alive):
            if not self._child.alive or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self._child.printed()}")
            time.sleep(0.02)

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._child = self._folder = None
