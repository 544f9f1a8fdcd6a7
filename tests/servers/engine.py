"""An HTTP/1.1 server in a thread and event loop of its own: connections, pace, faults and the log.

What is answered is the subclass's matter (``answer``); how the bytes travel, and how they fail to, is here.
Raw sockets, because a reset, a broken promise of length or a slow byte is what a framework prevents.
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
"""A small body leaves in one piece with its head: one packet, one system call."""


class HttpServer:
    """Serves ``answer`` on 127.0.0.1 from ``__enter__`` to ``__exit__``.

    ``latency`` (seconds per request), ``bandwidth`` (bytes/s per connection) and ``total_bandwidth``
    (bytes/s over all connections) are plain attributes; setting one holds from the next piece sent on. So is
    ``together``: no request is answered before so many have arrived, since the log was cleared.
    An error of the server's own, which no fault asked for, is raised by ``__exit__``.
    """

    cannot: frozenset[Kind] = frozenset()
    """Faults that need more than a subclass has."""

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

    # What a subclass defines.

    async def answer(self, head: Head, body: bytes, request: Request) -> Answer:
        """The right answer. May note in ``request`` which range was asked for."""
        raise NotImplementedError

    def replace(self, path: str, data: bytes | None) -> None:
        """Put other bytes under ``path``, for the fault of that name."""
        raise NotImplementedError

    def unlogged(self, path: str) -> bool:
        """Whether a path is the server's own: neither logged nor harmed nor delayed."""
        return False

    def running(self) -> contextlib.AbstractAsyncContextManager[None]:
        """What the subclass needs open in the server's loop."""
        return contextlib.nullcontext()

    # What tests use.

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def fault(self, kind: Kind | int, path: str | None = None, **options: Unpack[FaultOptions]) -> Fault:
        """Let requests for the glob ``path`` fail from now on; a number is an error status.

        Faults are tried in the order of their making, and a request meets one at most. ``options`` are
        those of ``Fault``: after, times, probability, seed, method, retry_after, to, data, pause, piece.
        """
        match kind:
            case int(status):
                fault = Fault("status", path, status=status, **options)
            case _:
                fault = Fault(kind, path, **options)
        if fault.kind in self.cannot:
            raise ValueError(f"{type(self).__name__} cannot do {fault.kind!r}: it does not hold the resource")
        with self._lock:
            self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Forget all faults."""
        with self._lock:
            self._faults.clear()

    def requests(self, path: str | None = None, method: str | None = None) -> list[Request]:
        """Logged requests whose path matches the glob ``path``, oldest first."""
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

    # The loop.

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
                # Whatever still runs waits for bytes or for time: nobody is left to want it.
                ending = list(tasks)
                for task in ending:
                    task.cancel()
                await asyncio.gather(*ending, return_exceptions=True)

    def _accept(self, listener: socket.socket, keep: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        # Not awaited: a connection that was accepted while that was cancelled would be nobody's.
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections += 1
        # A task that is cancelled before its first step never reaches its own ``with``.
        keep(self._serve(sock, self._connections)).add_done_callback(lambda _, sock=sock: sock.close())

    async def _serve(self, sock: socket.socket, number: int) -> None:
        """Answer one connection's requests in order, until either side ends it."""
        inbox = _Inbox(sock)
        pace = _Pace()
        with sock, contextlib.suppress(ConnectionError):
            while (raw := await inbox.head()) is not None:
                try:
                    head = parse_head(raw)
                    body = await inbox.body(head)
                except ValueError:
                    await self._send(sock, failure(400), None, pace)
                    return
                if self.unlogged(head.path):
                    await self._send(sock, await self.answer(head, body, _request(head, number)), None, pace)
                elif not await self._respond(sock, head, body, _request(head, number), pace):
                    return

    async def _respond(self, sock: socket.socket, head: Head, body: bytes, request: Request, pace: _Pace) -> bool:
        """Answer one logged request; False when the connection is to end."""
        self.log.begin(request)
        try:
            fault = self._strike(head)
            request.fault = fault.kind if fault else None
            if self.latency:
                await asyncio.sleep(self.latency)
            while len(self.log) < self.together:  # noqa: ASYNC110  # other threads set it, and clear the log
                await asyncio.sleep(0.005)
            match fault:
                case Fault(kind="dropped"):
                    return False
                case Fault(kind="silent"):
                    # Ends when the client gives up: its FIN or RST arrives here.
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

    def _strike(self, head: Head) -> Fault | None:
        if not self._faults:
            return None
        with self._lock:
            return next((fault for fault in self._faults if fault.strikes(head)), None)

    async def _send(self, sock: socket.socket, answer: Answer, request: Request | None, pace: _Pace) -> None:
        loop = asyncio.get_running_loop()
        lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        first = f"HTTP/1.1 {answer.status} {_phrase(answer.status)}\r\n{lines}\r\n".encode("latin-1")
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
        async for piece in self._pieces(body, answer, pace) if slow else _cut(body, answer.piece):
            if request is not None:
                request.sent += len(piece)
            await loop.sock_sendall(sock, piece)

    async def _pieces(self, body: memoryview, answer: Answer, pace: _Pace) -> AsyncIterator[memoryview]:
        """The body in pieces of about 10 ms each, every one at its time."""
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
    """Hands out sending time at a rate: each piece waits until those before it would have been through."""

    def __init__(self) -> None:
        self._free_at = 0.0

    async def wait(self, size: int, rate: float | None) -> None:
        if not rate:
            return
        now = time.monotonic()
        self._free_at = max(now, self._free_at) + size / rate
        await asyncio.sleep(self._free_at - now)


class _Inbox:
    """The bytes that a client sent and nobody has read yet."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._bytes = bytearray()

    async def head(self) -> bytes | None:
        """What stands before the next empty line; None when the client is done."""
        while (end := self._bytes.find(b"\r\n\r\n")) < 0:
            if len(self._bytes) > _HEAD_LIMIT or not await self._more():
                return None
        head = bytes(self._bytes[:end])
        del self._bytes[: end + 4]
        return head

    async def body(self, head: Head) -> bytes:
        """The request's body, by its Content-Length or its chunks. Raises ValueError where neither can be read."""
        if head.headers.get("expect", "").lower() == "100-continue":
            await asyncio.get_running_loop().sock_sendall(self._sock, b"HTTP/1.1 100 Continue\r\n\r\n")
        if head.headers.get("transfer-encoding", "").lower() != "chunked":
            return await self._exactly(int(head.headers.get("content-length", "0")))
        body = bytearray()
        while size := int((await self._line()).partition(b";")[0], 16):
            body += await self._exactly(size)
            await self._line()
        while await self._line():
            pass
        return bytes(body)

    async def _line(self) -> bytes:
        while (end := self._bytes.find(b"\r\n")) < 0:
            await self._need()
        line = bytes(self._bytes[:end])
        del self._bytes[: end + 2]
        return line

    async def _exactly(self, size: int) -> bytes:
        while len(self._bytes) < size:
            await self._need()
        found = bytes(self._bytes[:size])
        del self._bytes[:size]
        return found

    async def _need(self) -> None:
        if not await self._more():
            raise ConnectionResetError("the client left in the middle of a request")

    async def _more(self) -> bool:
        data = await asyncio.get_running_loop().sock_recv(self._sock, 256 * 1024)
        self._bytes += data
        return bool(data)


async def _cut(body: memoryview, size: int) -> AsyncIterator[memoryview]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


def _request(head: Head, connection: int) -> Request:
    return Request(
        method=head.method,
        path=head.path,
        query=head.query,
        headers=dict(head.headers),
        connection=connection,
        time=time.monotonic(),
    )


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
