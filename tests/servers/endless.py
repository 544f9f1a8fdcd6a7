"""An HTTP server that states no size, or a wrong size, and sends bodies without an end.

    with EndlessServer({"/set/zarr.json": b"{"}) as server:  # "{", and then spaces until the client disconnects
        ...
        server.sent  # bytes of bodies

A GET of a path in ``starts`` is answered with the bytes in ``starts`` and then with spaces, in chunks (RFC 9112, 7.1).
A HEAD of it has no length, or the length ``told``. Paths in ``files`` are answered correctly, without ranges.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

__all__ = ["EndlessServer"]

PIECE = b" " * 65536


class EndlessServer:
    """Serve on 127.0.0.1 within a ``with`` block."""

    def __init__(
        self, starts: Mapping[str, bytes], files: Mapping[str, bytes] | None = None, told: int | None = None
    ) -> None:
        self.sent = 0
        self.gets: list[str] = []
        outer, files = self, files or {}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

            def do_HEAD(self) -> None:
                path = self.path.partition("?")[0]
                if path in starts:
                    self.send_response(200)
                    if told is not None:
                        self.send_header("Content-Length", str(told))
                elif path in files:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(files[path])))
                else:
                    self.send_response(404)
                    self.send_header("Content-Length", "0")
                self.end_headers()
                self.close_connection = True

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                outer.gets.append(path)
                if path not in starts:
                    data = files.get(path)
                    self.send_response(404 if data is None else 200)
                    self.send_header("Content-Length", str(len(data or b"")))
                    self.end_headers()
                    self.wfile.write(data or b"")
                    return
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.close_connection = True
                with contextlib.suppress(OSError):  # the client disconnected
                    self._chunk(starts[path])
                    while True:
                        self._chunk(PIECE)

            def _chunk(self, data: bytes) -> None:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                outer.sent += len(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
