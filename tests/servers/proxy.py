"""A proxy before another server: it passes requests on, logs them, and can inject faults.

``Host`` and the path are passed on unchanged, so that a signature for the proxy's address stays valid.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import AsyncIterator
from http import HTTPStatus

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from tests.servers.engine import HttpServer
from tests.servers.log import Request
from tests.servers.wire import Answer, Head, failure

__all__ = ["CountingProxy"]

# These headers apply to one connection, and the proxy has another connection to the origin.
_OF_THE_HOP = frozenset(["connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect"])


class CountingProxy(HttpServer):
    """Forward requests to ``origin`` (``http://host:port``); answer 502 if the origin cannot be reached."""

    cannot = frozenset(["ignored_range", "gzip_stored", "replaced"])

    def __init__(
        self,
        origin: str,
        *,
        latency: float = 0.0,
        bandwidth: float | None = None,
        total_bandwidth: float | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(latency=latency, bandwidth=bandwidth, total_bandwidth=total_bandwidth, port=port)
        self.origin = origin.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            skip_auto_headers=["Accept", "Accept-Encoding", "User-Agent", "Content-Type"],
        ) as self._session:
            yield

    async def answer(self, head: Head, body: bytes, request: Request) -> Answer:
        assert self._session is not None, "the session is open while the server runs"
        headers = CIMultiDict((name, value) for name, value in head.headers.items() if name not in _OF_THE_HOP)
        url = URL(self.origin + head.target, encoded=True)
        try:
            async with self._session.request(
                head.method, url, headers=headers, data=io.BytesIO(body) if body else None, allow_redirects=False
            ) as response:
                found = await response.read()
        except aiohttp.ClientError:
            return failure(502)
        received = {name: value for name, value in response.headers.items() if name.lower() not in _OF_THE_HOP}
        if head.method != "HEAD" and response.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            received["Content-Length"] = str(len(found))
        span = _parse_span(response.headers.get("Content-Range"))
        if span is not None:
            request.start, request.stop = span
        return Answer(response.status, received, memoryview(found), span=span, discard=head.method == "HEAD")


def _parse_span(content_range: str | None) -> tuple[int, int] | None:
    """Return start and stop of a Content-Range: (10, 20) for ``bytes 10-19/100``."""
    if content_range is None:
        return None
    first, dash, last = content_range.removeprefix("bytes ").partition("/")[0].partition("-")
    return (int(first), int(last) + 1) if dash else None
