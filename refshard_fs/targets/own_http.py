"""Ranged GETs over connections of our own: plain HTTP/1.1 alone, at half the CPU of a general client.

An answer that is not plain is `Unfamiliar`, and so is a server that no connection leads to: the general client is to
ask, which knows it or says what is wrong.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from io import BytesIO
from typing import NamedTuple

from aiohttp.http import SERVER_SOFTWARE
from yarl import URL

from refshard_fs.targets.buffers import Buffers
from refshard_fs.targets.connections import Connections
from refshard_fs.targets.exchange import HEADER_NAME, Judge, Origin, Stale, Unfamiliar

__all__ = ["Direct", "Origin", "Reply", "Request", "Unfamiliar", "prepare"]

_PRINTABLE = re.compile(r"[!-~]+")
_VALUE = re.compile(r"[\t -~]*")
_OURS = frozenset(
    ["connection", "content-length", "expect", "host", "if-match", "range", "te", "transfer-encoding", "upgrade"]
)


class Request(NamedTuple):
    """A GET for one object but for its range: where to, and the head as far as it is always the same."""

    origin: Origin
    head: bytes


class Reply(NamedTuple):
    """An answer, the names of whose headers are in lower case, which came after ``waited`` seconds, and as much of the
    body as was judged right.
    """

    status: int
    headers: Mapping[str, str]
    length: int
    waited: float
    body: bytes | memoryview

    def release(self) -> None:
        """Nothing is held."""


def prepare(url: URL, headers: Mapping[str, str]) -> Request | None:
    """Return the request for ``url`` with ``headers``; None if it is none that can be sent from here."""
    target, host = url.raw_path_qs, url.raw_host
    if url.scheme not in ("http", "https") or not host or not url.port or url.raw_user is not None:
        return None
    if not (_PRINTABLE.fullmatch(target) and _PRINTABLE.fullmatch(host)) or "%" in host:
        return None
    lines = [f"GET {target} HTTP/1.1", f"Host: {url.host_port_subcomponent}"]
    given = {"Accept": "*/*", "User-Agent": SERVER_SOFTWARE}
    names = {name.lower() for name in headers}
    for name, value in [*((n, v) for n, v in given.items() if n.lower() not in names), *headers.items()]:
        if not (HEADER_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            return None
        lines.append(f"{name}: {value}")
    if names & _OURS or len(names) < len(headers):
        return None
    return Request(Origin(host, url.port, url.scheme == "https"), "\r\n".join([*lines, ""]).encode())


class Direct:
    """Requests of one target, on the running event loop."""

    def __init__(self, buffers: Buffers) -> None:
        self.connections = Connections.of(asyncio.get_running_loop())
        self._buffers = buffers
        self._unfamiliar: set[Origin] = set()

    async def read(self, request: Request, headers: Mapping[str, str], judge: Judge, size: int) -> Reply | None:
        """Return what `get` does; None where the general client is to ask, as it is from then on of that server."""
        if request.origin in self._unfamiliar:
            return None
        try:
            return await self.get(request, headers, judge, size)
        except Unfamiliar:
            self._unfamiliar.add(request.origin)
            return None

    async def get(self, request: Request, headers: Mapping[str, str], judge: Judge, size: int) -> Reply:
        """Return the answer to ``request`` with further ``headers``; some ``size`` bytes are expected.

        ``judge`` is told status, headers and the length of the body, and returns how many
        bytes of it are wanted, or raises what is wrong.
        """
        lines = ""
        for name, value in headers.items():
            if not (value.isascii() and value.isprintable()):
                raise Unfamiliar("a value that is none")
            lines += f"{name}: {value}\r\n"
        head = request.head + lines.encode() + b"\r\n"
        origin = request.origin
        while True:
            connection = self.connections.take(origin) or await self.connections.connect(origin)
            try:
                told, body = await connection.ask(head, judge, self._buffers, size)
                return Reply(*told, body.getvalue() if isinstance(body, BytesIO) else body)
            except Stale:  # nothing of an answer came: the server had let go of the connection
                continue
            except BaseException:
                connection.close()
                raise
