"""A ``RangeServer`` in another process, so that it does not slow down the measured code."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from tests.servers.faults import Kind
from tests.servers.log import Request

__all__ = ["RangeServerProcess"]

_ROOT = Path(__file__).resolve().parents[2]


class RangeServerProcess:
    """Serve within a ``with`` block; the process ends with this process at the latest."""

    def __init__(self, *, directory: str | Path | None = None, latency: float = 0.0) -> None:
        self.directory = directory
        self.latency = latency
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def put(self, path: str, data: bytes) -> str:
        """Store ``data`` under ``path``, and return its URL."""
        target = quote("/" + path.lstrip("/"))
        self._ask("PUT", target, data)
        return self.url + target

    def set(self, **pace: float | None) -> None:
        """Set latency, bandwidth or total_bandwidth; None removes a limit."""
        self._ask(
            "GET", "/__set__?" + "&".join(f"{name}={'' if rate is None else rate}" for name, rate in pace.items())
        )

    def fault(self, kind: Kind | int, *, probability: float = 1.0, seed: int = 0) -> None:
        """Make requests fail from now on; a number is an error status, with Retry-After: 0."""
        more = "&retry_after=0" if isinstance(kind, int) else ""
        self._ask("GET", f"/__fault__?kind={kind}&probability={probability}&seed={seed}{more}")

    def requests(self) -> list[Request]:
        return [Request(**request) for request in json.loads(self._ask("GET", "/__log__"))]

    @property
    def bytes_sent(self) -> int:
        return sum(request.sent for request in self.requests())

    def clear(self) -> None:
        self._ask("GET", "/__clear__")

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.servers.http", "--until-eof", "--latency", str(self.latency)]
        if self.directory is not None:
            command += ["--dir", str(Path(self.directory).resolve())]
        self._process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None, "it is a pipe"
        first = self._process.stdout.readline()
        if not first:
            self.__exit__(None, None, None)
            raise RuntimeError("the server's process ended before it printed its port")
        self.port = int(first)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.communicate()
        self._process = None

    def _ask(self, method: str, target: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, target, body)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status >= 300:
            raise RuntimeError(f"{method} {target} was answered {response.status}: {answer[:200]!r}")
        return answer
