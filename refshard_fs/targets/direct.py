"""Ranged GETs over connections of our own: plain HTTP/1.1 alone, at half the CPU of a general client.

A connection carries one request at a time and is kept for the next one. Bodies are read in place, and only as much of
them as was judged right by the head. Whatever is not plain (other framing, interim answers, cookies) is `Unfamiliar`,
and so is a server that no connection leads to: the general client is to ask, which knows it or says what is wrong.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import NamedTuple

from aiohttp.http import SERVER_SOFTWARE
from yarl import URL

from refshard_fs.targets.buffers import LARGE, Buffers
from refshard_fs.targets.failures import ConnectionLost, Incomplete

__all__ = ["Direct", "Origin", "Reply", "Request", "Unfamiliar", "prepare"]

_HEAD = 1 << 14  # bytes of an answer's head; a longer one is unfamiliar
_MOST = 1 << 30  # bytes of a body for which room is made before they come
_SHORT = 256  # characters of a header; longer ones are not remembered
_IDLE = 15.0  # seconds after which a connection is not used again: servers close theirs
_RESOLVED = 10.0  # seconds that addresses are remembered
_PATIENCE = 20.0  # seconds for a connection,
_NEXT = 0.3  # and where there are other addresses

_STATUS = re.compile(r"HTTP/1\.([01]) ([2-5]\d\d)(?: .*)?", re.ASCII)
_LENGTH = re.compile(r"\d{1,18}", re.ASCII)
_PRINTABLE = re.compile(r"[!-~]+")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~\w]+", re.ASCII)
_VALUE = re.compile(r"[\t -~]*")
_OURS = frozenset(
    ["connection", "content-length", "expect", "host", "if-match", "range", "te", "transfer-encoding", "upgrade"]
)

_NOTHING = memoryview(b"")

Judge = Callable[[int, Mapping[str, str], int], int]


class Unfamiliar(Exception):
    """An answer, or a way to a server, that is left to the general client."""


class Origin(NamedTuple):
    """A server."""

    host: str
    port: int
    tls: bool


class Request(NamedTuple):
    """A GET for one object but for its range: where to, and the head as far as it is always the same."""

    origin: Origin
    head: bytes


class Reply(NamedTuple):
    """An answer, the names of whose headers are in lower case, and as much of the body as was judged right."""

    status: int
    headers: Mapping[str, str]
    length: int
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
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            return None
        lines.append(f"{name}: {value}")
    if names & _OURS or len(names) < len(headers):
        return None
    return Request(Origin(host, url.port, url.scheme == "https"), "\r\n".join([*lines, ""]).encode())


class Direct:
    """The connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, buffers: Buffers) -> None:
        self._loop = loop
        self.buffers = buffers
        self._idle: dict[Origin, deque[_Connection]] = {}
        self._live: set[_Connection] = set()
        self._found: dict[Origin, tuple[float, asyncio.Task[list[str]]]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._unfamiliar: set[Origin] = set()

    async def read(self, request: Request, headers: Mapping[str, str], judge: Judge) -> Reply | None:
        """Return what `get` does; None where the general client is to ask, as it is from then on of that server."""
        if request.origin in self._unfamiliar:
            return None
        try:
            return await self.get(request, headers, judge)
        except Unfamiliar:
            self._unfamiliar.add(request.origin)
            return None

    async def get(self, request: Request, headers: Mapping[str, str], judge: Judge) -> Reply:
        """Return the answer to ``request`` with further ``headers``.

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
            connection = self._take(origin)
            if connection is None:
                connection = await self._connect(origin)
            try:
                told, body = await connection.ask(head, judge)
                return Reply(*told, body.getvalue() if isinstance(body, BytesIO) else body)
            except _Stale:  # nothing of an answer came: the server had let go of the connection
                continue
            except BaseException:
                connection.close()
                raise

    def close(self) -> None:
        """Let go of all connections."""
        if self._loop.is_closed():
            return
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for connection in list(self._live):
            connection.close()
        self._idle.clear()
        for _, task in self._found.values():
            task.cancel()
        self._found.clear()

    # ------------------------------------------------------------------ connections

    def _take(self, origin: Origin) -> _Connection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_open and self._loop.time() - connection.since < _IDLE:
                return connection
            connection.close()
        return None

    def put(self, connection: _Connection) -> None:
        """Keep ``connection``, whose answer is complete, for the next request."""
        connection.since = self._loop.time()
        self._idle.setdefault(connection.origin, deque()).append(connection)
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(_IDLE, self._sweep)

    def lost(self, connection: _Connection) -> None:
        """Note that ``connection`` is closed."""
        self._live.discard(connection)

    def _sweep(self) -> None:
        self._sweeping = None
        now = self._loop.time()
        for origin, idle in list(self._idle.items()):
            while idle and (now - idle[0].since >= _IDLE or not idle[0].is_open):
                idle.popleft().close()
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._sweeping = self._loop.call_later(_IDLE, self._sweep)
        else:
            self.buffers.clear()

    async def _connect(self, origin: Origin) -> _Connection:
        try:
            addresses = await self._addresses(origin)
            tls = await asyncio.to_thread(_context) if origin.tls else None
        except OSError as e:
            raise Unfamiliar from e
        for address in addresses:
            other = address != addresses[-1]
            try:
                async with asyncio.timeout(_NEXT if other else _PATIENCE):
                    _, connection = await self._loop.create_connection(
                        lambda: _Connection(self, origin),
                        address,
                        origin.port,
                        ssl=tls,
                        server_hostname=origin.host if tls is not None else None,
                    )
            except OSError as e:  # TimeoutError is one
                if not other:
                    raise Unfamiliar from e
                continue
            if address != addresses[0]:
                addresses.remove(address)
                addresses.insert(0, address)
            self._live.add(connection)
            return connection
        raise Unfamiliar

    async def _addresses(self, origin: Origin) -> list[str]:
        try:
            socket.inet_pton(socket.AF_INET6 if ":" in origin.host else socket.AF_INET, origin.host)
        except OSError:
            pass
        else:
            return [origin.host]
        found = self._found.get(origin)
        if found is None or found[0] < self._loop.time():
            found = self._loop.time() + _RESOLVED, self._loop.create_task(self._resolve(origin))
            self._found[origin] = found
        try:
            return await asyncio.shield(found[1])
        except OSError:
            self._found.pop(origin, None)
            raise

    async def _resolve(self, origin: Origin) -> list[str]:
        infos = await self._loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in infos))


_Head = tuple[int, Mapping[str, str], int]  # status, headers and the length of the body
# The bytes of a BytesIO are taken later: while it is being written to, that would copy them.
_Received = tuple[_Head, BytesIO | memoryview]


class _Stale(Exception):
    """A connection that was kept has ended before its next answer began."""


class _Connection(asyncio.BufferedProtocol):
    """One connection, and the answer that is being read from it."""

    def __init__(self, owner: Direct, origin: Origin) -> None:
        self.origin = origin
        self.since = 0.0  # when it was put by
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._room = bytearray(_HEAD)
        self._head = memoryview(self._room)
        self._filled = 0  # bytes of it
        self._used = False
        self._judge: Judge | None = None
        self._answer: asyncio.Future[_Received] | None = None
        self._told: _Head | None = None  # by the answer whose body is being read
        self._body: memoryview | BytesIO = _NOTHING
        self._wanted = 0  # bytes of it
        self._got = 0
        self._keeps = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, head: bytes, judge: Judge) -> asyncio.Future[_Received]:
        assert self._transport is not None
        assert self._answer is None, "one request at a time"
        future = self._answer = self._owner._loop.create_future()
        self._judge, self._filled, self._got = judge, 0, 0
        self._transport.write(head)
        return future

    def close(self) -> None:
        self._owner.lost(self)
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._told is None:
            return self._head[self._filled :]
        return (self._body.getbuffer() if isinstance(self._body, BytesIO) else self._body)[self._got :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # what nobody asked for
        elif self._told is not None:
            self._got += nbytes
            if self._got == self._wanted:
                self._finish(self._told)
        else:
            before, self._filled = self._filled, self._filled + nbytes
            end = self._room.find(b"\r\n\r\n", max(before - 3, 0), self._filled)
            if end >= 0:
                self._begin(end)
            elif self._filled == _HEAD:
                self._fail(Unfamiliar("a head without an end"))

    def eof_received(self) -> None:
        """Let the transport close."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.lost(self)
        self._transport = None
        if self._told is not None:
            error: Exception = Incomplete(f"the answer ended after {self._got} of {self._told[2]} bytes")
        elif self._filled == 0 and self._used:
            error = _Stale()
        else:
            error = ConnectionLost("the server closed the connection before it had answered")
        # Frames of the event loop, which hold a view of the body, are of no use to anyone.
        error.__cause__ = None if exc is None else exc.with_traceback(None)
        self._fail(error)

    # ------------------------------------------------------------------ answers

    def _begin(self, end: int) -> None:
        """Read the head, which ends at ``end``, and make room for the body."""
        assert self._judge is not None
        try:
            status, headers, keeps = _parse(str(self._head[:end], "latin-1"))
            length = _length(headers)
            wanted = self._judge(status, headers, length)
            if wanted > _MOST:
                raise Unfamiliar("a body that may be longer than there is memory")
            # What is small is read into the bytes that the reader gets, which nobody else has seen yet.
            body = BytesIO(bytes(wanted)) if wanted < LARGE else self._owner.buffers.take(wanted)
        except Exception as e:  # noqa: BLE001  # raised by `ask`
            self._fail(e)
            return
        first = self._filled - end - 4
        self._keeps = keeps and wanted == length and first <= length
        self._body, self._wanted, self._got = body, wanted, min(first, wanted)
        begun = self._head[end + 4 : end + 4 + self._got]
        if isinstance(body, BytesIO):
            body.write(begun)
        else:
            body[: self._got] = begun
        if self._got == wanted:
            self._finish((status, headers, length))
        else:
            self._told = status, headers, length

    def _finish(self, told: _Head) -> None:
        future, body = self._answer, self._body
        self._answer = self._told = self._judge = None
        self._body = _NOTHING
        self._used, self._filled = True, 0
        if self._keeps and self.is_open:
            self._owner.put(self)
        else:
            self.close()
        if future is not None and not future.done():
            future.set_result((told, body))

    def _fail(self, error: Exception) -> None:
        future, self._answer = self._answer, None
        self._told = self._judge = None
        self._body = _NOTHING
        self.close()
        if future is not None and not future.done():
            future.set_exception(error)


def _parse(text: str) -> tuple[int, dict[str, str], bool]:
    """Return status, headers and whether the connection may be kept, of a head."""
    first, *lines = text.split("\r\n")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise Unfamiliar("another protocol, or an interim answer")
    headers: dict[str, str] = {}
    for line in lines:
        name, value = _field(line) if len(line) < _SHORT else _field.__wrapped__(line)
        if name in headers and headers[name] != value:
            if name in ("content-length", "content-range", "transfer-encoding"):
                raise Unfamiliar("two of what there can be one of")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    keeps = match[1] == "1" and "close" not in headers.get("connection", "").lower()
    return int(match[2]), headers, keeps


@functools.lru_cache(maxsize=512)  # most lines are those of the answer before
def _field(line: str) -> tuple[str, str]:
    """Return the name, in lower case, and the value of a header."""
    name, colon, value = line.partition(":")
    if not colon or not _NAME.fullmatch(name):
        raise Unfamiliar("a header that is none")
    return name.lower(), value.strip(" \t")


def _length(headers: Mapping[str, str]) -> int:
    """Return the length of the body that ``headers`` announce."""
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or "set-cookie" in headers or not _LENGTH.fullmatch(length):
        raise Unfamiliar("another framing, or cookies")
    return int(length)


@functools.cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()
