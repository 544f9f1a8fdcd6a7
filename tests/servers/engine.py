"""An HTTP/1.1 server in its own thread and event loop, with limits of speed, faults and a log.

A subclass defines the answers (``answer``). This module sends them, with faults. It uses raw sockets, because a
framework cannot send a reset, a wrong length, or single bytes slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, Unpack

from tests.servers.faults import Fault, FaultOptions, Kind
from tests.servers.log import Log, Request
from tests.servers.wire import Answer, End, Head, failure, parse_head

__all__ = ["HttpServer"]

_HEAD_LIMIT = 256 * 1024
_JOIN_BELOW = 64 * 1024
"""Bytes of a body below which head and body are sent by one system call."""


class HttpServer:
    """Serve ``answer`` on 127.0.0.1 within a ``with`` block.

    The attributes ``latency`` (seconds for a request), ``bandwidth`` (bytes/s of a connection) and ``total_bandwidth``
    (bytes/s of all connections) can be set at any time, and apply from the next sent piece on. With ``together``, no
    request is answered before this number of requests has arrived since the log was cleared. If the server itself
    fails, ``__exit__`` raises the error.
    """

    cannot: frozenset[Kind] = frozenset()
    """The kinds of faults that the subclass does not support."""

    def __init__(
        self,
        *,
        latency: float = 0.0,
        bandwidth: float | None = None,
        total_bandwidth: float | None = None,
        port: int = 0,
    ) -> None:
        self.latency = latency
        self.bandwidth = bandwidth
        self.total_bandwidth = total_bandwidth
        self.together = 0
        self.port = port
        self.log = Log()
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._connections = 0
        self._total_pace = _Pace()
        self._errors: list[BaseException] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._served: Future[None] | None = None
        self._stopping: asyncio.Event | None = None

    # Methods that a subclass defines.

    async def answer(self, head: Head, body: bytes, request: Request) -> Answer:
        """Return the right answer; it may set the requested range in ``request``."""
        raise NotImplementedError

    def replace(self, path: str, data: bytes | None) -> None:
        """Replace the bytes at ``path`` (None: by others), for the fault "replaced"."""
        raise NotImplementedError

    def unlogged(self, path: str) -> bool:
        """Return whether requests for ``path`` control the server: they are not logged, delayed or given faults."""
        return False

    def running(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a context in which the server runs, such as an open client session."""
        return contextlib.nullcontext()

    # Methods that tests use.

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def fault(self, kind: Kind | int, path: str | None = None, **options: Unpack[FaultOptions]) -> Fault:
        """Make requests for the glob ``path`` fail from now on; a number is an error status.

        A request gets the first fault that matches it. ``options`` are fields of `Fault`: after, times, probability,
        seed, method, retry_after, to, data, pause, piece.
        """
        match kind:
            case int(status):
                fault = Fault("status", path, status=status, **options)
            case _:
                fault = Fault(kind, path, **options)
        if fault.kind in self.cannot:
            raise ValueError(f"{type(self).__name__} cannot do {fault.kind!r}: it does not have the whole resource")
        with self._lock:
            self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def requests(self, path: str | None = None, method: str | None = None) -> list[Request]:
        """Return the logged requests whose path matches the glob ``path``, oldest first."""
        return self.log.requests(path, method)

    @property
    def bytes_sent(self) -> int:
        return self.log.bytes_sent

    def clear(self) -> None:
        """Empty the log; data and faults stay."""
        self.log.clear()

    def __enter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", self.port), backlog=1024)
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        started = threading.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{type(self).__name__}:{self.port}")
        self._served = self._thread.submit(lambda: asyncio.run(self._run(listener, started)))
        self._served.add_done_callback(lambda _: started.set())
        started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stopping is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)
        thread, served = self._thread, self._served
        self._loop = self._stopping = self._thread = self._served = None
        if thread is not None and served is not None:
            thread.shutdown()
            served.result()
        if self._errors:
            raise self._errors[0]

    # Methods that run in the event loop.

    async def _run(self, listener: socket.socket, started: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        self._loop, self._stopping = loop, asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        def forget(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._errors.append(error)

        def keep(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            task = asyncio.create_task(work)
            tasks.add(task)
            task.add_done_callback(forget)
            return task

        with listener:
            async with self.running():
                loop.add_reader(listener, self._accept, listener, keep)
                started.set()
                await self._stopping.wait()
                loop.remove_reader(listener)
                # The remaining tasks wait for bytes or for time, and no test needs their answers any more.
                ending = list(tasks)
                for task in ending:
                    task.cancel()
                await asyncio.gather(*ending, return_exceptions=True)

    def _accept(self, listener: socket.socket, keep: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        # This is not a coroutine: if it were cancelled while it accepts, nothing would close the accepted connection.
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections += 1
        # Close the socket here, too: a task that is cancelled before its first step never enters its ``with``.
        keep(self._serve(sock, self._connections)).add_done_callback(lambda _, sock=sock: sock.close())

    async def _serve(self, sock: socket.socket, number: int) -> None:
        """Answer the requests of one connection in order, until client or server closes it."""
        inbox = _Inbox(sock)
        pace = _Pace()
        with sock, contextlib.suppress(ConnectionError):
            while (raw := await inbox.read_head()) is not None:
                try:
                    head = parse_head(raw)
                    body = await inbox.read_body(head)
                except ValueError:
                    await self._send(sock, failure(400), None, pace)
                    return
                if self.unlogged(head.path):
                    await self._send(sock, await self.answer(head, body, _make_request(head, number)), None, pace)
                elif not await self._respond(sock, head, body, _make_request(head, number), pace):
                    return

    async def _respond(self, sock: socket.socket, head: Head, body: bytes, request: Request, pace: _Pace) -> bool:
        """Answer one logged request; return False if the connection has to be closed."""
        self.log.begin(request)
        try:
            fault = self._find_fault(head)
            request.fault = fault.kind if fault else None
            if self.latency:
                await asyncio.sleep(self.latency)
            while len(self.log) < self.together:  # noqa: ASYNC110  # other threads set it, and clear the log
                await asyncio.sleep(0.005)
            match fault:
                case Fault(kind="dropped"):
                    return False
                case Fault(kind="silent"):
                    # Read until the FIN or RST of the client, which has given up.
                    while await asyncio.get_running_loop().sock_recv(sock, 65536):
                        pass
                    return False
                case Fault(kind="replaced", data=data):
                    self.replace(head.path, data)
            answer = await self.answer(head, body, request)
            if fault:
                answer = fault.apply(answer)
            await self._send(sock, answer, request, pace)
        finally:
            self.log.end()
        match answer.end:
            case End.RST:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return answer.end is End.KEEP and head.headers.get("connection", "").lower() != "close"

    def _find_fault(self, head: Head) -> Fault | None:
        if not self._faults:
            return None
        with self._lock:
            return next((fault for fault in self._faults if fault.strikes(head)), None)

    async def _send(self, sock: socket.socket, answer: Answer, request: Request | None, pace: _Pace) -> None:
        loop = asyncio.get_running_loop()
        lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        first = f"HTTP/1.1 {answer.status} {_find_phrase(answer.status)}\r\n{lines}\r\n".encode("latin-1")
        body = memoryview(b"") if answer.discard else answer.body
        slow = bool(self.bandwidth or self.total_bandwidth or answer.pause)
        if request is not None:
            request.status = answer.status
        if len(body) <= _JOIN_BELOW and not slow:
            if request is not None:
                request.sent = len(body)
            await loop.sock_sendall(sock, first + body)
            return
        await loop.sock_sendall(sock, first)
        async for piece in self._iter_pieces(body, answer, pace) if slow else _iter_slices(body, answer.piece):
            if request is not None:
                request.sent += len(piece)
            await loop.sock_sendall(sock, piece)

    async def _iter_pieces(self, body: memoryview, answer: Answer, pace: _Pace) -> AsyncIterator[memoryview]:
        """Yield the body in pieces of about 10 ms, each when the limits of speed permit it."""
        at = 0
        while at < len(body):
            limits = [answer.piece] + [
                max(1, int(rate / 100)) for rate in (self.bandwidth, self.total_bandwidth) if rate
            ]
            piece = body[at : at + min(limits)]
            await asyncio.sleep(answer.pause)
            await pace.wait(len(piece), self.bandwidth)
            await self._total_pace.wait(len(piece), self.total_bandwidth)
            yield piece
            at += len(piece)


class _Pace:
    """A limit of speed: each piece waits until all earlier pieces would be sent at the rate."""

    def __init__(self) -> None:
        self._free_at = 0.0

    async def wait(self, size: int, rate: float | None) -> None:
        if not rate:
            return
        now = time.monotonic()
        self._free_at = max(now, self._free_at) + size / rate
        await asyncio.sleep(self._free_at - now)


class _Inbox:
    """The bytes that a client has sent and that are not read yet."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._bytes = bytearray()

    async def read_head(self) -> bytes | None:
        """Return the bytes before the next empty line; None if the client closed the connection."""
        while (end := self._bytes.find(b"\r\n\r\n")) < 0:
            if len(self._bytes) > _HEAD_LIMIT or not await self._receive():
                return None
        head = bytes(self._bytes[:end])
        del self._bytes[: end + 4]
        return head

    async def read_body(self, head: Head) -> bytes:
        """Read the request's body, by its Content-Length or its chunks; ValueError if these are malformed."""
        if head.headers.get("expect", "").lower() == "100-continue":
            await asyncio.get_running_loop().sock_sendall(self._sock, b"HTTP/1.1 100 Continue\r\n\r\n")
        if head.headers.get("transfer-encoding", "").lower() != "chunked":
            return await self._read_exactly(int(head.headers.get("content-length", "0")))
        body = bytearray()
        while size := int((await self._read_line()).partition(b";")[0], 16):
            body += await self._read_exactly(size)
            await self._read_line()
        while await self._read_line():
            pass
        return bytes(body)

    async def _read_line(self) -> bytes:
        while (end := self._bytes.find(b"\r\n")) < 0:
            await self._receive_or_fail()
        line = bytes(self._bytes[:end])
        del self._bytes[: end + 2]
        return line

    async def _read_exactly(self, size: int) -> bytes:
        while len(self._bytes) < size:
            await self._receive_or_fail()
        found = bytes(self._bytes[:size])
        del self._bytes[:size]
        return found

    async def _receive_or_fail(self) -> None:
        if not await self._receive():
            raise ConnectionResetError("the client left in the middle of a request")

    async def _receive(self) -> bool:
        data = await asyncio.get_running_loop().sock_recv(self._sock, 256 * 1024)
        self._bytes += data
        return bool(data)


async def _iter_slices(body: memoryview, size: int) -> AsyncIterator[memoryview]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


def _make_request(head: Head, connection: int) -> Request:
    return Request(
        method=head.method,
        path=head.path,
        query=head.query,
        headers=dict(head.headers),
        connection=connection,
        time=time.monotonic(),
    )


def _find_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
