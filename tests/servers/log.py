"""The log of a server's requests and answers, which tests can read while it serves.

A request is in the log before the first byte of its answer is sent, and a piece of a body is counted before it is
sent. So when a client has received bytes, the log has counted them.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

__all__ = ["Log", "Request"]


@dataclass(slots=True)
class Request:
    """One request. Only the server's thread changes it; ``status`` is None and ``sent`` 0 until the answer."""

    method: str
    path: str
    """Percent-decoded, without the query."""
    query: str
    headers: dict[str, str]
    """Names in lower case."""
    connection: int
    """Counts the server's connections from 1: equal numbers mean a kept-alive connection."""
    time: float
    """Seconds, ``time.monotonic()`` of the server's process, when the head had arrived."""
    start: int | None = None
    """First byte of the requested range in the resource; None without a valid range."""
    stop: int | None = None
    """One past the last byte of the requested range, at most the size of the resource."""
    status: int | None = None
    sent: int = 0
    """Bytes of the body passed to the socket, as encoded on the wire."""
    fault: str | None = None
    """The kind of fault of this request's answer."""
    round: int = 0
    """One more than the largest round of the requests that were answered before this one came."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Log:
    """All requests since the last ``clear``, oldest first."""

    _requests: list[Request] = field(default_factory=list)
    _in_flight: int = 0
    _peak: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self._requests)

    def begin(self, request: Request) -> None:
        with self._lock:
            request.round = 1 + max((r.round for r in self._requests if r.status is not None), default=0)
            self._requests.append(request)
            self._in_flight += 1
            self._peak = max(self._peak, self._in_flight)

    def end(self) -> None:
        with self._lock:
            self._in_flight -= 1

    def clear(self) -> None:
        with self._lock:
            self._requests.clear()
            self._peak = self._in_flight

    def requests(self, path: str | None = None, method: str | None = None) -> list[Request]:
        """Return the requests whose path matches the glob ``path`` (``*`` matches ``/``, too), oldest first."""
        with self._lock:
            found = list(self._requests)
        return [
            request
            for request in found
            if (path is None or fnmatchcase(request.path, path)) and (method is None or request.method == method)
        ]

    @property
    def bytes_sent(self) -> int:
        return sum(request.sent for request in self.requests())

    @property
    def rounds(self) -> int:
        """The number of rounds of requests. All requests of a round must arrive within the server's latency."""
        return max((request.round for request in self.requests()), default=0)

    @property
    def peak(self) -> int:
        """The most requests that were in flight at one time."""
        with self._lock:
            return self._peak
