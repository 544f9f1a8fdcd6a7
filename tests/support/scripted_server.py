"""A server that answers by a script, and a proxy that loses the answer to a PUT."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Sequence

from tests.servers.log import Request
from tests.servers.proxy import CountingProxy
from tests.servers.wire import Answer, Head, failure

RIGHT = b'HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/9\r\nETag: "x"\r\n\r\n01234'


class Script:
    """A server that answers its n-th request with the n-th of ``answers``; None closes the connection."""

    def __init__(self, answers: Sequence[bytes | None], *, piece: int = 1 << 20, reset: bool = False) -> None:
        self.answers = list(answers)
        self.piece = piece
        self.reset = reset
        self.heads: list[tuple[int, str]] = []  # connection and head of each request
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while self.answers:
                self.heads.append((number, (await reader.readuntil(b"\r\n\r\n")).decode()))
                answer = self.answers.pop(0)
                if answer is None:
                    break
                for i in range(0, len(answer), self.piece):
                    writer.write(answer[i : i + self.piece])
                    await writer.drain()
                    await asyncio.sleep(0)
            if self.reset:
                await asyncio.sleep(0.01)
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()


class Forgetful(CountingProxy):
    """A proxy that passes all requests on, and answers the first PUT with an error."""

    puts = 0

    async def answer(self, head: Head, body: bytes, request: Request) -> Answer:
        answer = await super().answer(head, body, request)
        self.puts += head.method == "PUT"
        return failure(503) if head.method == "PUT" and self.puts == 1 else answer
