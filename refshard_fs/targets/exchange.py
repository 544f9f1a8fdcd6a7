"""One connection that carries one plain HTTP/1.1 request at a time. Bodies are read in place, and only as much of them
as was judged right by the head. Whatever is not plain (other framing, interim answers, cookies) is `Unfamiliar`.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import NamedTuple, Protocol

from refshard_fs.targets.buffers import LARGE, Buffers
from refshard_fs.targets.failures import ConnectionLost, Incomplete

__all__ = ["Connection", "HEADER_NAME", "Judge", "Origin", "Owner", "ROOM", "Stale", "Told", "Unfamiliar"]

_HEAD = 1 << 14  # bytes of an answer's head; a longer one is unfamiliar
_MOST = 1 << 30  # bytes of a body for which room is made before they come
ROOM = _HEAD + LARGE  # bytes that are received before it is known what they are: a head, and a small body behind it

_STATUS = re.compile(r"HTTP/1\.([01]) ([2-5]\d\d)(?: .*)?", re.ASCII)
_LENGTH = re.compile(r"\d{1,18}", re.ASCII)
HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~\w]+", re.ASCII)

_RANGE = "\r\nContent-Range:"  # as nearly all servers spell it
_TWO = "two of what there can be one of"

_NOTHING = memoryview(b"")

Judge = Callable[[int, Mapping[str, str], int], int]
Told = tuple[int, Mapping[str, str], int, float]  # status, headers, length of the body, seconds until then
# The bytes of a BytesIO are taken later: while it is being written to, that would copy them.
_Received = tuple[Told, bytes | BytesIO | memoryview]


class Unfamiliar(Exception):
    """An answer, or a way to a server, that is left to the general client."""


class Stale(Exception):
    """A connection that was kept has ended before its next answer began."""


class Origin(NamedTuple):
    """A server."""

    host: str
    port: int
    tls: bool


class Owner(Protocol):
    """Who keeps connections."""

    @property
    def room(self) -> bytearray:
        """`ROOM` bytes of any content, which are used between two calls of the event loop only."""

    def put(self, connection: Connection) -> None:
        """Keep ``connection``, whose answer is complete, for the next request."""

    def lost(self, connection: Connection) -> None:
        """Note that ``connection`` is closed."""


class Connection(asyncio.BufferedProtocol):
    """One connection, and the answer that is being read from it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Owner, origin: Origin) -> None:
        self.origin = origin
        self.since = 0.0  # when it was put by
        self._loop = loop
        self._owner = owner
        self._room = memoryview(owner.room)
        self._transport: asyncio.Transport | None = None
        self._begun = b""  # of a head that has not arrived in one piece
        self._size = _HEAD  # bytes that are received together: a head, and the body that is expected if it is small
        self._used = False
        self._buffers: Buffers | None = None
        self._judge: Judge | None = None
        self._answer: asyncio.Future[_Received] | None = None
        self._told: Told | None = None  # by the answer whose body is being read
        self._body: memoryview | BytesIO = _NOTHING
        self._asked = 0.0  # when
        self._wanted = 0  # bytes of it
        self._got = 0
        self._keeps = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, head: bytes, judge: Judge, buffers: Buffers, size: int) -> asyncio.Future[_Received]:
        """Return a future of the answer to ``head``, the body of which, of some ``size``, may be in one of the
        ``buffers``.
        """
        assert self._transport is not None
        assert self._answer is None, "one request at a time"
        future = self._answer = self._loop.create_future()
        self._judge, self._buffers, self._begun, self._got = judge, buffers, b"", 0
        self._asked = self._loop.time()
        self._size = _HEAD + (size if size < LARGE else 0)
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
            begun = len(self._begun)
            if begun:
                self._room[:begun] = self._begun
            return self._room[begun : self._size]
        return (self._body.getbuffer() if isinstance(self._body, BytesIO) else self._body)[self._got :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # what nobody asked for
        elif self._told is not None:
            self._got += nbytes
            if self._got == self._wanted:
                self._finish(self._told, self._body)
        else:
            before = len(self._begun)
            filled = before + nbytes
            end = self._owner.room.find(b"\r\n\r\n", max(before - 3, 0), min(filled, _HEAD))
            if end >= 0:
                self._begin(filled, end)
            elif filled >= _HEAD:
                self._fail(Unfamiliar("a head without an end"))
            else:
                self._begun = bytes(self._room[:filled])

    def eof_received(self) -> None:
        """Let the transport close."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.lost(self)
        self._transport = None
        if self._told is not None:
            error: Exception = Incomplete(f"the answer ended after {self._got} of {self._told[2]} bytes")
        elif not self._begun and self._used:
            error = Stale()
        else:
            error = ConnectionLost("the server closed the connection before it had answered")
        # Frames of the event loop, which hold a view of the body, are of no use to anyone.
        error.__cause__ = None if exc is None else exc.with_traceback(None)
        self._fail(error)

    # ------------------------------------------------------------------ answers

    def _begin(self, filled: int, end: int) -> None:
        """Read the head, which ends at ``end`` of the ``filled`` bytes that have come, and make room for the body."""
        assert self._judge is not None
        assert self._buffers is not None
        try:
            status, headers, keeps = _parse(str(self._room[:end], "latin-1"))
            length = _length(headers)
            wanted = self._judge(status, headers, length)
            told = status, headers, length, self._loop.time() - self._asked
            if wanted > _MOST:
                raise Unfamiliar("a body that may be longer than there is memory")
            first = filled - end - 4
            self._keeps = keeps and wanted == length and first <= length
            if wanted <= first and wanted < LARGE:
                self._finish(told, bytes(self._room[end + 4 : end + 4 + wanted]))
                return
            # What is small is read into the bytes that the reader gets, which nobody else has seen yet.
            body = BytesIO(bytes(wanted)) if wanted < LARGE else self._buffers.take(wanted)
        except Exception as e:  # noqa: BLE001  # raised by `ask`
            self._fail(e)
            return
        self._body, self._wanted, self._got = body, wanted, min(first, wanted)
        begun = self._room[end + 4 : end + 4 + self._got]
        if isinstance(body, BytesIO):
            body.write(begun)
        else:
            body[: self._got] = begun
        if self._got == wanted:
            self._finish(told, body)
        else:
            self._told = told

    def _finish(self, told: Told, body: bytes | BytesIO | memoryview) -> None:
        future = self._answer
        self._answer = self._told = self._judge = None
        self._body = _NOTHING
        self._used, self._begun = True, b""
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


def _parse(text: str) -> tuple[int, Mapping[str, str], bool]:
    """Return status, headers and whether the connection may be kept, of a head."""
    start = text.find(_RANGE)
    if start < 0:
        return _parse_same(text)
    stop = text.find("\r\n", start + 2)
    own = text[start + len(_RANGE) : stop if stop >= 0 else len(text)].strip(" \t")
    status, headers, keeps = _parse_same(text[:start] + (text[stop:] if stop >= 0 else ""))
    if headers.get("content-range", own) != own:
        raise Unfamiliar(_TWO)
    return status, {**headers, "content-range": own}, keeps


@functools.lru_cache(maxsize=128)  # the answers of one object differ in their ranges, and once a second in a date
def _parse_same(text: str) -> tuple[int, Mapping[str, str], bool]:
    first, *lines = text.split("\r\n")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise Unfamiliar("another protocol, or an interim answer")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not HEADER_NAME.fullmatch(name):
            raise Unfamiliar("a header that is none")
        name, value = name.lower(), value.strip(" \t")
        if name in headers and headers[name] != value:
            if name in ("content-length", "content-range", "transfer-encoding"):
                raise Unfamiliar(_TWO)
            value = f"{headers[name]}, {value}"
        headers[name] = value
    keeps = match[1] == "1" and "close" not in headers.get("connection", "").lower()
    return int(match[2]), headers, keeps


def _length(headers: Mapping[str, str]) -> int:
    """Return the length of the body that ``headers`` announce."""
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or "set-cookie" in headers or not _LENGTH.fullmatch(length):
        raise Unfamiliar("another framing, or cookies")
    return int(length)
