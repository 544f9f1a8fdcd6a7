"""A program that runs beside the tests and cannot outlive them, even if they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Child"]

# A shell waits at our end of a pipe, which closes when this process dies, however that happens.
_GUARD = """
"$@" </dev/null & child=$!
exec 3<&0
{ read -r _ <&3; kill -9 $child; } & watch=$!
wait $child
kill -9 $watch
"""


_PATIENCE_SECONDS = 5.0


class Child:
    """Runs ``command`` from construction to ``stop``; what it prints goes to ``log``."""

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
        """The last lines of what it printed, to say why it failed."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])

    def stop(self) -> None:
        """Kill it: its data goes with it, and an object store takes ten seconds to end in order."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        try:
            self._guard.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            # A forked process still holds our end of the pipe.
            os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait()
