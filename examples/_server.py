"""A file server on loopback that answers byte ranges, as object stores do, and counts requests and bytes."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class RangeServer:
    """A server of the files in ``folder``; ``requests`` and ``bytes`` count requests and sent bytes by path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def count(self, path: str, sent: int) -> None:
        with self._lock:
            self.requests[path] += 1
            self.bytes[path] += sent

    def reset_counters(self) -> None:
        """Set the counters back to zero."""
        with self._lock:
            self.requests.clear()
            self.bytes.clear()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[RangeServer]:
    """Serve the files of ``folder`` until the block ends."""
    server = RangeServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open, as between a reader and an object store
    disable_nagle_algorithm = True

    def __init__(self, owner: RangeServer, *args: object) -> None:
        self.owner = owner
        super().__init__(*args)  # type: ignore[arg-type]  # http.server passes request, address and server

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing; the counters have the requests."""

    def _answer(self, *, with_body: bool) -> None:
        name = unquote(urlsplit(self.path).path).lstrip("/")
        file = (self.owner.folder / name).resolve()
        if file == self.owner.folder and self.path.endswith("/"):  # a page of links, as a bucket lists its objects
            links = "".join(f'<a href="{one.name}">{one.name}</a>\n' for one in sorted(file.iterdir()))
            return self._send(name, HTTPStatus.OK, links.encode(), {"Content-Type": "text/html"}, with_body)
        if not file.is_relative_to(self.owner.folder) or not file.is_file():
            return self._send(name, HTTPStatus.NOT_FOUND, b"", {}, with_body)
        data = file.read_bytes()
        version = {"ETag": f'"{file.stat().st_mtime_ns:x}-{len(data):x}"'}
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        if wanted is None:
            return self._send(name, HTTPStatus.OK, data, version, with_body)
        first, last = wanted[1], wanted[2]
        start = int(first) if first else max(0, len(data) - int(last or 0))
        stop = min(int(last) + 1, len(data)) if first and last else len(data)
        if start >= stop:
            unmet = {"Content-Range": f"bytes */{len(data)}"}
            return self._send(name, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", unmet, with_body)
        where = {**version, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
        return self._send(name, HTTPStatus.PARTIAL_CONTENT, data[start:stop], where, with_body)

    def _send(self, name: str, status: HTTPStatus, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for header, value in {"Accept-Ranges": "bytes", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(header, value)
        self.owner.count(name, len(body) if with_body else 0)  # before the answer, so that the counters are complete
        self.end_headers()
        if with_body:
            self.wfile.write(body)
