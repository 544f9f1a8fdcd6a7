"""The loopback server of the benchmarks, in a process of its own, and the links that it imitates."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import NamedTuple

MB = 1_000_000


class Link(NamedTuple):
    """The delay of each request in seconds, and bytes a second of one connection, and of all connections together."""

    latency: float
    bandwidth: float | None
    line: float | None = None


class Server:
    """The loopback server in a new process; with the URL ``origin``, it passes requests on to that server."""

    def __init__(self, folder: str, origin: str | None = None) -> None:
        command = [sys.executable, "-m", "benchmarks.server", "--dir", folder]
        command += ["--origin", origin] if origin else []
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603  # our own
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    @classmethod
    def attach(cls, url: str) -> Server:
        """Return a client of the server at ``url``, which another process started and will close."""
        found = cls.__new__(cls)
        found.url = url
        return found

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path) as answer:  # noqa: S310  # loopback
            body: bytes = answer.read()
        return body

    def set_pace(self, link: Link) -> None:
        self.get(f"/__set__?latency={link.latency}&bandwidth={link.bandwidth or ''}&line={link.line or ''}")

    def read_counts(self) -> tuple[int, int]:
        """Return the number of requests, and of sent bytes, since the last ``/__clear__``."""
        log = json.loads(self.get("/__log__"))
        return len(log), sum(r["sent"] for r in log)

    def read_cpu(self) -> float:
        """Return the seconds of CPU that the server has taken."""
        return float(json.loads(self.get("/__cpu__")))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()  # type: ignore[union-attr]  # it is a pipe
