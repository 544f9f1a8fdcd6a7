"""An HTTP server of bytes in memory and, optionally, of a directory, with faults on request.

In the test process::

    with RangeServer({"/a": b"0123"}) as server:
        fs.cat_file(f"{server.url}/a", start=1, end=3)
        assert [(r.start, r.stop) for r in server.requests("/a")] == [(1, 3)]

or in another process (``RangeServerProcess``, or ``python -m tests.servers.http --port 0 --dir DIR``, which
prints its port), controlled over HTTP: ``PUT /path`` stores, ``GET /__log__`` returns the log as JSON,
``GET /__clear__`` empties the log, ``GET /__set__?latency=0.05&bandwidth=1e6&total_bandwidth=`` sets limits of speed,
``GET /__fault__?kind=503&probability=0.01&seed=3`` adds a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import mmap
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, quote

from tests.servers.engine import HttpServer
from tests.servers.faults import Kind
from tests.servers.log import Request
from tests.servers.wire import Answer, Head, Resource, Unsatisfiable, answer_read, check_write, failure, resolve_range

__all__ = ["RangeServer"]


class RangeServer(HttpServer):
    """Serve ``files`` (path -> bytes), and other paths from ``directory``; PUT and DELETE change only ``files``.

    With ``listing``, a path of a folder that is not empty is answered with a page of links.
    """

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        directory: str | Path | None = None,
        listing: bool = False,
        latency: float = 0.0,
        bandwidth: float | None = None,
        total_bandwidth: float | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(latency=latency, bandwidth=bandwidth, total_bandwidth=total_bandwidth, port=port)
        self.directory = None if directory is None else Path(directory).resolve()
        self.listing = listing
        self._resources: dict[str, Resource] = {}
        for path, data in (files or {}).items():
            self.put(path, data)

    def put(self, path: str, data: bytes | bytearray | memoryview, *, modified: float | None = None) -> str:
        """Store ``data`` under ``path`` (decoded, with or without its leading slash); return its URL."""
        path = "/" + path.lstrip("/")
        self._resources[path] = Resource.of(data, modified)
        return self.url + quote(path)

    def delete(self, path: str) -> None:
        del self._resources["/" + path.lstrip("/")]

    def replace(self, path: str, data: bytes | None) -> None:
        if (old := self._find(path)) is not None:
            inverted = bytes(old.data).translate(bytes(range(255, -1, -1)))
            self.put(path, inverted if data is None else data, modified=old.modified + 2)

    def unlogged(self, path: str) -> bool:
        return path.startswith("/__")

    async def answer(self, head: Head, body: bytes, request: Request) -> Answer:
        if self.unlogged(head.path):
            return self._handle_control(head)
        match head.method:
            case "GET" | "HEAD":
                return self._read(head, request)
            case "PUT" | "DELETE":
                return self._write(head, body)
        return failure(405)

    def _read(self, head: Head, request: Request) -> Answer:
        resource = self._find(head.path)
        if resource is None:
            page = self._make_page(head.path) if self.listing else None
            if page is None:
                return _fit_to_method(head, failure(404, "NoSuchKey"))
            headers = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(page))}
            return _fit_to_method(head, Answer(200, headers, memoryview(page)))
        with contextlib.suppress(Unsatisfiable):  # `answer_read` answers 416
            request.start, request.stop = resolve_range(head.headers.get("range"), len(resource.data)) or (None, None)
        return _fit_to_method(head, answer_read(head, resource))

    def _write(self, head: Head, body: bytes) -> Answer:
        resource = self._find(head.path)
        if (refusal := check_write(head, resource)) is not None:
            return refusal
        match head.method:
            case "DELETE":
                self._resources.pop(head.path, None)
                return Answer(204, {})
        self.put(head.path, body)
        etag = self._resources[head.path].etag
        return Answer(201 if resource is None else 200, {"ETag": etag, "Content-Length": "0"})

    def _handle_control(self, head: Head) -> Answer:
        match head.path:
            case "/__log__":
                body = json.dumps([request.as_json() for request in self.requests()]).encode()
                headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
                return Answer(200, headers, memoryview(body))
            case "/__clear__":
                self.clear()
            case "/__fault__":
                given = dict(parse_qsl(head.query))
                kind = given.pop("kind")
                numbers: dict[str, Any] = {name: json.loads(value) for name, value in given.items()}
                self.fault(cast(Kind, kind) if not kind.isdigit() else int(kind), **numbers)
            case "/__set__":
                for name, value in parse_qsl(head.query, keep_blank_values=True):
                    match name:
                        case "latency":
                            self.latency = float(value or 0)
                        case "bandwidth":
                            self.bandwidth = float(value) if value else None
                        case "total_bandwidth":
                            self.total_bandwidth = float(value) if value else None
                        case _:
                            return failure(400)
            case _:
                return failure(404)
        return Answer(204, {})

    def _find(self, path: str) -> Resource | None:
        if (resource := self._resources.get(path)) is not None or self.directory is None:
            return resource
        file = (self.directory / path.lstrip("/")).resolve()
        if not file.is_relative_to(self.directory) or not file.is_file() or path.endswith("/"):
            return None
        with file.open("rb") as opened:
            stat = file.stat()
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) if stat.st_size else b""
        return Resource(memoryview(data), f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"', stat.st_mtime)

    def _make_page(self, path: str) -> bytes | None:
        """Return a page of links to the direct children of ``path``; None if it is not a folder."""
        folder = path if path.endswith("/") else path + "/"
        names = set()
        for known in list(self._resources):
            if known.startswith(folder):
                name, slash, _ = known[len(folder) :].partition("/")
                names.add(name + slash)
        if self.directory is not None:
            local = (self.directory / folder.lstrip("/")).resolve()
            if local.is_relative_to(self.directory) and local.is_dir():
                names |= {entry.name + "/" * entry.is_dir() for entry in local.iterdir()}
        if not names:
            return None
        links = "".join(
            f'<a href="{quote(folder + name)}">{html.escape(name)}</a><br>\n' for name in sorted(names) if name
        )
        return f"<!DOCTYPE html><html><body>\n{links}</body></html>\n".encode()


def _fit_to_method(head: Head, answer: Answer) -> Answer:
    """Return the answer for the request's method: for HEAD, without its body."""
    if head.method != "HEAD":
        return answer
    return Answer(answer.status, answer.headers, answer.body, whole=answer.whole, span=answer.span, discard=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.servers.http", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--dir", help="folder to serve")
    parser.add_argument("--listing", action="store_true", help="answer folders with a page of links")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds for a request")
    parser.add_argument("--bandwidth", type=float, help="bytes/s of each connection")
    parser.add_argument("--total-bandwidth", type=float, help="bytes/s of all connections")
    parser.add_argument("--until-eof", action="store_true", help="stop when standard input ends, as with the parent")
    options = parser.parse_args(arguments)
    server = RangeServer(
        directory=options.dir,
        listing=options.listing,
        latency=options.latency,
        bandwidth=options.bandwidth,
        total_bandwidth=options.total_bandwidth,
        port=options.port,
    )
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with server:
        print(server.port, flush=True)
        if options.until_eof:
            sys.stdin.read()
        else:
            ended.wait()


if __name__ == "__main__":
    main()
