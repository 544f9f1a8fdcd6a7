"""A plain HTTP client for the tests of the servers, which returns raw answers."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Reply", "ask", "raw"]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(url: str, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
    """Send one request on a new connection, and return the answer; ``if_match="..."`` sends the header If-Match."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
    finally:
        connection.close()


def raw(url: str, request: str, *, timeout: float = 30.0) -> tuple[bytes, str]:
    """Send ``request``; return all bytes until the connection ends, and how it ended: "fin", "reset" or "timeout".

    ``timeout`` bounds the time of the whole call in seconds, also if bytes arrive slowly.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    received = b""
    deadline = time.monotonic() + timeout
    with socket.create_connection((host, int(port)), timeout=timeout) as sock:
        sock.sendall(request.replace("\n", "\r\n").encode())
        try:
            while data := sock.recv(65536):
                received += data
                sock.settimeout(max(0.001, deadline - time.monotonic()))
        except ConnectionResetError:
            return received, "reset"
        except TimeoutError:
            return received, "timeout"
    return received, "fin"
