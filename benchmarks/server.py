"""A loopback server that takes little CPU time: ranged GETs of files, with a delay and a limit of bandwidth.

    python -m benchmarks.server --dir DIR [--origin http://127.0.0.1:PORT]

The program prints its port, and serves until its standard input ends. With an origin, it passes requests without a body
on to that server. ``GET /__set__?latency=0.05&bandwidth=1e6&line=1e8`` sets the delay of each request in seconds, and
the bytes a second of each connection and of all connections together. ``/__log__`` returns the requests as JSON,
``/__clear__`` empties the log, and ``/__cpu__`` returns the seconds of CPU of the server. The server of the tests has
more features, but takes so much time for a request that benchmarks would measure the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import re
import sys
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__: list[str] = []

_RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)\r\n", re.IGNORECASE)
_PIECE = 1 << 16  # bytes that are sent at a time if the bandwidth is limited


class State:
    """The files of a server, the limits of its speed, and its log; all connections share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, memoryview | None] = {}
        self.latency = 0.0
        self.bandwidth: float | None = None
        self.line: float | None = None
        self.free = 0.0  # the time at which the line has sent all bytes so far
        self.log: list[dict[str, object]] = []
        self.connections = 0

    def get_file(self, path: str) -> memoryview | None:
        if path not in self.files:
            place = self.folder / path.lstrip("/")
            self.files[path] = None
            if place.is_file():
                with place.open("rb") as file:
                    empty = place.stat().st_size == 0
                    data = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    self.files[path] = memoryview(data)
        return self.files[path]

    def handle_control(self, path: str, query: str) -> bytes:
        match path:
            case "/__set__":
                given = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
                self.latency = float(given["latency"])
                self.bandwidth = float(given["bandwidth"]) if given.get("bandwidth") else None
                self.line = float(given["line"]) if given.get("line") else None
            case "/__clear__":
                self.log.clear()
            case "/__cpu__":
                return json.dumps(time.process_time()).encode()
            case _:
                return json.dumps(self.log).encode()
        return b""

    def compute_delay(self, size: int) -> float:
        """Return the seconds until ``size`` bytes of a connection are sent, after bytes of others on the same line."""
        now = time.monotonic()
        if self.line:
            self.free = max(self.free, now) + size / self.line
        return max(size / self.bandwidth if self.bandwidth else 0.0, self.free - now)


class Connection(asyncio.Protocol):
    """One connection, which answers one request at a time."""

    def __init__(self, state: State) -> None:
        self.state = state
        state.connections += 1
        self.number = state.connections
        self.inbox = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.inbox += data
        while (end := self.inbox.find(b"\r\n\r\n")) >= 0:
            head, self.inbox = self.inbox[: end + 2], self.inbox[end + 4 :]
            self.answer(head)

    def answer(self, head: bytes) -> None:
        method, target, _ = head[: head.index(b"\r\n")].decode().split(" ")
        path, _, query = target.partition("?")
        state = self.state
        if path.startswith("/__"):
            body = state.handle_control(path, query)
            self.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), memoryview(body))
            return
        entry: dict[str, object] = {"connection": self.number, "time": time.monotonic(), "sent": 0}
        state.log.append(entry)
        data = state.get_file(path)
        if data is None:
            lines, part = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", memoryview(b"")
        else:
            lines, part = make_answer(head, data)
        if method == "HEAD":
            part = part[:0]
        entry["sent"] = len(part)
        if state.latency:
            asyncio.get_running_loop().call_later(state.latency, self.send, lines, part)
        else:
            self.send(lines, part)

    def send(self, lines: bytes, part: memoryview) -> None:
        # `writelines` of Python 3.12 and 3.13 registers a closed socket: the next connection would hang.
        if self.transport is None or self.transport.is_closing():
            return
        if not part or not (self.state.bandwidth or self.state.line):
            self.transport.writelines([lines, part] if part else [lines])
            return
        self.transport.writelines([lines, part[:_PIECE]] if lines else [part[:_PIECE]])
        asyncio.get_running_loop().call_later(
            self.state.compute_delay(min(_PIECE, len(part))), self.send_rest, part[_PIECE:]
        )

    def send_rest(self, part: memoryview) -> None:
        if part:
            self.send(b"", part)


class ForwardingConnection(Connection):
    """One connection that passes its requests on to another server, and the answers back."""

    def __init__(self, state: State, host: str, port: int) -> None:
        super().__init__(state)
        self.origin = host, port
        self.there: asyncio.Transport | None = None
        self.entry: dict[str, Any] = {}
        self.sent = 0.0  # the time at which all bytes of the answer so far are sent

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.there is not None:
            self.there.close()

    def answer(self, head: bytes) -> None:
        if head.split(b" ", 2)[1].startswith(b"/__"):
            super().answer(head)
            return
        self.entry = {"connection": self.number, "time": time.monotonic(), "sent": 0}
        self.state.log.append(self.entry)
        asyncio.get_running_loop().create_task(self.forward(head + b"\r\n"))

    async def forward(self, head: bytes) -> None:
        loop = asyncio.get_running_loop()
        if self.state.latency:
            await asyncio.sleep(self.state.latency)
        if self.there is None or self.there.is_closing():
            self.there, _ = await loop.create_connection(partial(Origin, self), *self.origin)
        self.there.write(head)

    def relay(self, data: bytes) -> None:
        self.entry["sent"] += len(data)
        if self.transport is None:
            return
        if not self.state.bandwidth and not self.state.line:
            self.transport.write(data)
            return
        loop = asyncio.get_running_loop()
        self.sent = max(self.sent, loop.time()) + self.state.compute_delay(len(data))
        loop.call_at(self.sent, self.transport.write, data)


class Origin(asyncio.Protocol):
    """The connection to the other server."""

    def __init__(self, client: ForwardingConnection) -> None:
        self.client = client

    def data_received(self, data: bytes) -> None:
        self.client.relay(data)


def make_answer(head: bytes, data: memoryview) -> tuple[bytes, memoryview]:
    """Return the answer to the request ``head``: status and header lines, and the requested bytes of ``data``."""
    size = len(data)
    same = b'ETag: "%x"\r\nLast-Modified: %s\r\nAccept-Ranges: bytes\r\n\r\n' % (size, _MODIFIED)
    match = _RANGE.search(head)
    if match is None:
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % size + same, data
    first, last = match.groups()
    start = int(first) if first else max(size - int(last), 0)
    stop = min(int(last) + 1, size) if first and last else size
    if start >= stop:
        return b"HTTP/1.1 416 No\r\nContent-Length: 0\r\nContent-Range: bytes */%d\r\n" % size + same, data[:0]
    lines = b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n"
    return lines % (stop - start, start, stop - 1, size) + same, data[start:stop]


_MODIFIED = formatdate(usegmt=True).encode()


async def serve(folder: Path, origin: str | None) -> None:
    """Serve until the standard input ends."""
    loop, state = asyncio.get_running_loop(), State(folder)
    made: Callable[[], Connection] = partial(Connection, state)
    if origin is not None:
        address = urlsplit(origin)
        made = partial(ForwardingConnection, state, str(address.hostname), address.port or 80)
    server = await loop.create_server(made, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--origin")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.dir, arguments.origin))
