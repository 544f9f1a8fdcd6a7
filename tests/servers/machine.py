"""The metadata service of a virtual machine (EC2), from which botocore gets the credentials of the machine's role."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any, Self

from tests.servers.aws import Keys

__all__ = ["MachineMetadata"]

_TOKEN = "a-session-of-the-metadata-service"
_ROLES = "/latest/meta-data/iam/security-credentials/"


class MachineMetadata:
    """Serve within a ``with`` block; ``keys`` are the credentials of the role ``reader``, for six hours.

    As in version 2 of the service, a PUT returns a token, and a GET without the token gets no answer. ``asked`` lists
    the requests.
    """

    def __init__(self, keys: Keys) -> None:
        self.asked: list[str] = []
        expires = (datetime.now(UTC) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ")
        role = {"AccessKeyId": keys.key, "SecretAccessKey": keys.secret, "Token": keys.token, "Expiration": expires}
        answers = {_ROLES: b"reader", f"{_ROLES}reader": json.dumps({"Code": "Success", **role}).encode()}
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                asked.append(f"PUT {self.path}")
                self.answer(_TOKEN.encode() if self.path == "/latest/api/token" else None)

            def do_GET(self) -> None:
                asked.append(f"GET {self.path}")
                known = self.headers["x-aws-ec2-metadata-token"] == _TOKEN
                self.answer(answers.get(self.path) if known else None)

            def answer(self, data: bytes | None) -> None:
                self.send_response(404 if data is None else 200)
                self.send_header("Content-Length", str(len(data or b"")))
                self.end_headers()
                self.wfile.write(data or b"")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
