"""Send s3fs's requests by HTTP sessions that follow no redirects: botocore signs a request for one host.

This is a separate module, because importing s3fs takes long.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import ssl
import threading
import weakref
from collections.abc import AsyncIterator
from functools import cache
from typing import TYPE_CHECKING, Any

import aiohttp
import botocore.exceptions as errors
from aiobotocore.awsrequest import AioAWSResponse
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from aiohttp.http_exceptions import BadStatusLine
from botocore.httpsession import ProxyConfiguration, get_cert_path
from botocore.loaders import create_loader
from multidict import CIMultiDict
from s3fs.core import S3FileSystem
from yarl import URL

from refshard_fs.errors import TargetNotAllowed
from refshard_fs.security.admission import describe_remedy
from refshard_fs.targets.connections import GuardedResolver, close_session, make_tls_context, open_session
from refshard_fs.targets.failures import Unreadable
from refshard_fs.targets.generic import run_in_thread
from refshard_fs.targets.logs import log_request

if TYPE_CHECKING:
    from refshard_fs.targets.connections import Guard


_READ_SIZE = 1 << 20  # bytes that one call reads from a file


@cache
def _make_loader(data_path: str | None) -> Any:
    """Return botocore's loader of its documents, which parses each once; ``data_path`` is the user's setting."""
    return create_loader(data_path)


def _make_session(options: dict[str, Any]) -> Any:
    session = AioSession(**options)
    session.register_component("data_loader", _make_loader(session.get_config_variable("data_path")))
    return session


_of_thread = threading.local()  # botocore's sessions are not thread-safe


def _find_anonymous_session(environment: tuple[tuple[str, str], ...]) -> Any:
    """Return this thread's session without credentials, made in this ``environment``: making one takes 17 ms."""
    if getattr(_of_thread, "environment", None) != environment:
        _of_thread.session, _of_thread.environment = _make_session({}), environment
    return _of_thread.session


class S3Client(S3FileSystem):  # type: ignore[misc]  # s3fs has no types
    """s3fs's filesystem without redirects; ``guard`` checks its endpoint (None: it may be anywhere).

    If the user's options have an ``http_session_cls`` other than aiobotocore's default, that class is used.
    """

    guard: Guard | None = None
    session: Any  # botocore's
    retries = 1  # tries of s3fs, because botocore tries again itself

    def __init__(self, *arguments: Any, config_kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        self.http_sessions: weakref.WeakSet[S3Session] = weakref.WeakSet()
        self._permitted: set[str] = set()  # endpoints that `guard` has permitted
        self._clients: weakref.WeakSet[Any] = weakref.WeakSet()
        config = dict(config_kwargs or {})
        self._is_ours = config.get("http_session_cls", AIOHTTPSession) is AIOHTTPSession
        if self._is_ours:
            # One class per filesystem, with the filesystem as attribute: botocore makes the sessions.
            config["http_session_cls"] = type("S3Session", (S3Session,), {"owner": weakref.ref(self)})
        super().__init__(*arguments, config_kwargs=config, **options)

    def set_retries(self, retries: int) -> None:
        """Set the number of botocore's further tries of each request, unless the user's options have one."""
        self.config_kwargs.setdefault("retries", {"max_attempts": retries})

    async def set_session(self, refresh: bool = False, kwargs: Any = None) -> Any:
        """Make botocore's client. botocore's own documents, 2 MB of JSON, are parsed once for all clients."""
        if self.session is None and self.anon and not self.kwargs:
            self.session = _find_anonymous_session(tuple(os.environ.items()))
        elif self.session is None:
            self.session = _make_session(self.kwargs)
        return await super().set_session(refresh, kwargs or {})

    async def get_s3(self, bucket: str | None = None) -> Any:
        """Return botocore's client for a bucket; s3fs asks for it before each request."""
        for name in (None, bucket):  # s3fs may look up a bucket's region with the client that is for no bucket
            client = await super().get_s3(name)
            await self._check(client, bucket)
        return client

    async def _check(self, client: Any, bucket: str | None) -> None:
        """Raise an error unless ``client`` sends its requests by an `S3Session`, to a permitted endpoint."""
        self._clients.add(client)
        if self._is_ours and len(self._clients) > len(self.http_sessions):
            raise Unreadable(
                "this version of aiobotocore ignores http_session_cls in its configuration: its requests would follow "
                "redirects with your credentials, so none was sent. Install another version of aiobotocore"
            )
        endpoint = str(client.meta.endpoint_url)
        if self.guard is not None and endpoint not in self._permitted:
            try:
                await self.guard.judge_server(endpoint)
            except TargetNotAllowed as e:
                url = f"s3://{bucket}/"
                raise TargetNotAllowed(
                    url, f"{e.rule}, where its endpoint {endpoint} is", describe_remedy(url)
                ) from None
            self._permitted.add(endpoint)

    async def close(self) -> None:
        """Close all clients, including their sessions of the user's class."""
        for client in list(self._clients):
            await client.close()

    def close_connections(self) -> None:
        """Close all connections at once; a later request opens others."""
        for session in list(self.http_sessions):
            session.close_now()


class S3Session(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore has no types
    """The HTTP session of a client of botocore, with the client's configuration. Redirects are returned, not followed.

    botocore makes it, because of its option ``http_session_cls``. The base class is aiobotocore's session only because
    s3fs reads the attribute that says whether that session is closed.
    """

    owner: weakref.ref[S3Client]

    def __init__(
        self,
        *,
        verify: bool | str = True,
        proxies: dict[str, str] | None = None,
        timeout: Any = None,
        max_pool_connections: int = 10,
        client_cert: str | tuple[str, str] | None = None,
        proxies_config: dict[str, Any] | None = None,
        connector_args: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        self.verify = verify
        connect, read = timeout if isinstance(timeout, list | tuple) else (timeout, timeout)
        self._timeout = aiohttp.ClientTimeout(sock_connect=connect, sock_read=read)
        self._connecting = {"limit": max_pool_connections, **(connector_args or {})}
        self._proxies = ProxyConfiguration(proxies=proxies)
        proxy = proxies_config or {}
        self._authorities = proxy.get("proxy_ca_bundle")
        self._certificates = [pair for pair in (client_cert, proxy.get("proxy_client_cert")) if pair is not None]
        self._http: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        owner = self.owner()
        self._guard = None if owner is None else owner.guard
        if owner is not None:
            owner.http_sessions.add(self)

    async def __aexit__(self, *error: Any) -> None:
        await super().__aexit__(*error)
        if self._http is not None:
            await self._http.close()

    def close_now(self) -> None:
        """Close all connections at once; the next request opens others."""
        if self._http is not None:
            close_session(self._http)

    async def send(self, request: Any) -> AioAWSResponse:
        """Send a prepared request of botocore, and return the answer; raise failures as botocore's errors."""
        url = request.url

        headers = CIMultiDict((name, _decode_text(value)) for name, value in request.headers.items())
        headers["Accept-Encoding"] = "identity"
        is_chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        if is_chunked:  # aiohttp sends this header itself
            del headers["Transfer-Encoding"]
        body = _read_parts(request.body) if isinstance(request.body, io.IOBase) else request.body
        try:
            with log_request(request.method, url, headers.get("Range")) as log:
                session = await self._get_session()
                response = await session.request(
                    request.method,
                    URL(url, encoded=True),
                    headers=headers,
                    data=body,
                    chunked=is_chunked or None,
                    proxy=self._proxies.proxy_url_for(url),
                    allow_redirects=False,
                )
                log.status = response.status
                fields = {name.decode().lower(): value.decode() for name, value in response.raw_headers}
                answer = AioAWSResponse(str(response.url), response.status, fields, response)
                if not request.stream_output:
                    log.size = len(await answer.content)
        except Exception as e:  # raised again as an error of botocore
            raise _convert_to_botocore_error(e, request) from e
        return answer

    async def _get_session(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._http is None or self._http.closed:
                options = dict(self._connecting)
                context = options.pop("ssl_context", None) or await run_in_thread(self._make_context)
                if self._guard is not None:
                    options["resolver"] = GuardedResolver(self._guard)
                self._http = open_session(
                    self,
                    connector=aiohttp.TCPConnector(ssl=context, **options),
                    timeout=self._timeout,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    skip_auto_headers={"Content-Type"},
                    auto_decompress=False,
                )
            return self._http

    def _make_context(self) -> ssl.SSLContext | bool:
        if self.verify is False and not self._certificates:
            return False
        if self._authorities is None and not self._certificates:
            return make_tls_context(get_cert_path(self.verify))
        context = ssl.create_default_context(cafile=get_cert_path(self.verify) or None)
        if self.verify is False:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self._authorities is not None:
            context.load_verify_locations(self._authorities)
        for pair in self._certificates:
            context.load_cert_chain(*((pair,) if isinstance(pair, str) else pair))
        return context


async def _read_parts(file: Any) -> AsyncIterator[bytes]:
    """Yield a file in parts. Given the file, aiohttp would close it, but botocore rewinds it for another try."""
    while part := await run_in_thread(lambda: file.read(_READ_SIZE)):
        yield part


def _decode_text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _convert_to_botocore_error(error: Exception, request: Any) -> Exception:
    """Return the error of botocore for ``error``: its class decides whether botocore and s3fs try again."""
    url = request.url
    known: Exception
    match error:
        case aiohttp.ClientConnectorError(os_error=TargetNotAllowed() as refusal):
            known = refusal
        case aiohttp.ClientSSLError():
            known = errors.SSLError(endpoint_url=url, error=error)
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            known = errors.ProxyConnectionError(proxy_url="", error=error)
        case (
            aiohttp.ServerDisconnectedError()
            | aiohttp.ClientPayloadError()
            | aiohttp.ClientResponseError()  # only for a malformed head: a status is never an error here
            | BadStatusLine()
        ):
            known = errors.ConnectionClosedError(error=error, request=request, endpoint_url=url)
        case aiohttp.ConnectionTimeoutError():
            known = errors.ConnectTimeoutError(endpoint_url=url, error=error)
        case TimeoutError():
            known = errors.ReadTimeoutError(endpoint_url=url, error=error)
        case aiohttp.ClientConnectionError() | socket.gaierror():
            known = errors.EndpointConnectionError(endpoint_url=url, error=error)
        case _:
            known = errors.HTTPClientError(error=error)
    return known
