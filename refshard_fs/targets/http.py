"""Read HTTP(S) objects by ranged GETs, with the options of fsspec's `HTTPFileSystem`.

Redirects are followed here, not by aiohttp, so that headers, cookies and credentials for one server never reach
another, and so that the location of an object can be remembered for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.http import get_client as plain_client
from multidict import CIMultiDict
from yarl import URL

from refshard_fs.core.model import Facts
from refshard_fs.errors import TargetNotAllowed, sanitize
from refshard_fs.security.admission import Access, describe_remedy
from refshard_fs.targets.answer import Answer, Target, make_range_headers, read_answer
from refshard_fs.targets.connections import Guard, Judge, close_with, drop_certificate, open_session
from refshard_fs.targets.failures import Unreadable
from refshard_fs.targets.logs import log_request

T = TypeVar("T")

_REDIRECTS = frozenset([301, 302, 303, 307, 308])
_MOST_REDIRECTS = 10
_REMEMBERED = 60.0  # seconds that a location is remembered; signed URLs in redirects are valid for longer
_LOCATIONS = 4096  # the most locations that are remembered
# Options for all servers, also for servers that the user did not name: they hold no credentials of a server (those in
# `proxy_auth` and `proxy_headers` are for the proxy).
_HARMLESS = frozenset(
    ["connector", "proxy", "proxy_auth", "proxy_headers", "ssl", "timeout", "trust_env", "verify_ssl"]
)
# A URL of only these characters is sent unchanged: its signature, or the server, may distinguish %2F from a slash.
_ENCODED_URL = re.compile(r"(?:[\w\-.~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*", re.ASCII)


class AsyncHttp(HTTPFileSystem):  # type: ignore[misc]  # fsspec has no types
    """fsspec's filesystem without its synchronous methods: they are not used here, and making them takes 1 ms."""

    mirror_sync_methods = False


class _Location(NamedTuple):
    """The URL from which an object is requested, valid ``until`` a time of the loop.

    With ``away``, a redirect led to a server other than the server in the object's own URL.
    """

    url: URL
    access: Access
    away: bool = False
    until: float | None = None


@contextlib.contextmanager
def _name_in_refusal(url: URL) -> Iterator[None]:
    """Name the requested ``url`` in the error if the guard of a connection refuses the server."""
    try:
        yield
    except aiohttp.ClientConnectorError as e:
        cause = getattr(e, "os_error", None)  # errors of certificates have none before aiohttp 3.13
        if isinstance(cause, TargetNotAllowed):
            raise TargetNotAllowed(str(url), cause.rule, describe_remedy(str(url))) from None
        raise


class HttpTarget(Target):
    """The objects of all HTTP servers, by URL.

    ``judge`` is the rule for a set from elsewhere (None: the set is the user's own); it is also applied to the URL of
    each redirect. ``access`` is the access that the rule has granted to the objects' own URLs.
    """

    patience = 60.0
    logs_requests = True

    def __init__(self, fs: HTTPFileSystem, judge: Judge | None = None, access: Access = Access.OWN) -> None:
        self.fs = fs
        self._judge = judge
        self._access = access
        options = dict(fs.kwargs)
        self._follows = options.pop("allow_redirects", True)
        self._headers = CIMultiDict({"Accept-Encoding": "identity"})
        self._home_headers = self._headers.copy()
        self._home_headers.update(fs.client_kwargs.get("headers") or {})
        own_headers = options.pop("headers", None) or {}
        if isinstance(own_headers, str | bytes):
            raise TypeError("expected a mapping for headers=, such as {'Authorization': 'Bearer ...'}, got a text")
        self._home_headers.update(own_headers)
        self._home_options: dict[str, Any] = {"allow_redirects": False, **options}
        self._away_options = {k: v for k, v in self._home_options.items() if k in _HARMLESS or k == "allow_redirects"}
        # aiohttp's trust_env= would also send the logins in ~/.netrc.
        self._asks_environment = fs.get_client is plain_client and not {"proxy", "trust_env"} & fs.client_kwargs.keys()
        self._sessions: dict[tuple[bool, Access], aiohttp.ClientSession] = {}  # sessions by `_Location.away` and access
        self._opening = asyncio.Lock()
        self._locations: dict[str, _Location] = {}

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        if stop is not None and stop <= start:
            return Answer(b"")
        now = asyncio.get_running_loop().time
        began = now()

        async def take(response: aiohttp.ClientResponse) -> Answer:
            return await read_answer(response, start, stop, most, inflates=True, waited=now() - began)

        return await self._request("GET", path, make_range_headers(start, stop, etag), take)

    async def get_facts(self, path: str) -> Facts:
        facts = await self._request("HEAD", path, {}, _read_facts)
        if facts is None:  # HEAD is refused, or its answer lacks the size: a range of one byte has it
            facts = (await self.read(path, 0, 1)).facts
        return facts

    async def close(self) -> None:
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.close()

    # Requests.
    async def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        take: Callable[[aiohttp.ClientResponse], Awaitable[T]],
    ) -> T:
        """Send a request, follow redirects, and return the result of ``take`` for the last answer."""
        home = location = self._find_location(path)
        while True:
            for _ in range(_MOST_REDIRECTS + 1):
                with (
                    _name_in_refusal(location.url),
                    log_request(method, str(location.url), headers.get("Range")) as log,
                ):
                    async with await self._send(method, location, headers) as response:
                        log.status = response.status
                        if response.status in _REDIRECTS and self._follows:
                            location = self._follow_redirect(home, location, response)
                            continue
                        if home.until is not None and response.status >= 300 and response.status not in (412, 416):
                            break  # the remembered location is outdated: ask the object's own server again
                        if location is not home and response.status < 300:
                            self._locations[path] = location
                        try:
                            return await take(response)
                        finally:
                            log.size = response.content.total_bytes
            else:
                raise Unreadable(
                    f"expected at most {_MOST_REDIRECTS} redirects, got more, the last to "
                    f"{sanitize(str(location.url))}: give the URL at the end of the redirects"
                )
            self._locations.pop(path, None)
            home = location = self._find_location(path)

    async def _send(self, method: str, location: _Location, headers: Mapping[str, str]) -> Any:
        """Send a request; return aiohttp's context manager for the response."""
        key = location.away, location.access
        session = self._sessions.get(key)
        if session is None:
            async with self._opening:
                session = self._sessions.get(key)
                if session is None:
                    session = self._sessions[key] = await self._open(*key)
        options = self._away_options if location.away else self._home_options
        if location.away:
            options = options | _make_bare_tls(options, session)
        if self._asks_environment and "proxy" not in options and (proxy := _find_proxy(location.url)) is not None:
            options = {**options, "proxy": proxy}
        all_headers = (self._headers if location.away else self._home_headers).copy()
        all_headers.update(headers)
        return session.request(method, location.url, headers=all_headers, **options)

    def _find_location(self, path: str) -> _Location:
        location = self._locations.get(path)
        if location is None or (location.until is not None and location.until < asyncio.get_running_loop().time()):
            if len(self._locations) >= _LOCATIONS:
                self._locations.clear()
            location = self._locations[path] = _Location(self._make_url(path), self._access)
        return location

    def _make_url(self, path: str) -> URL:
        if _ENCODED_URL.fullmatch(path) and "/." not in path:
            return URL(path, encoded=True)
        url: URL = self.fs.encode_url(path)
        return url

    def _follow_redirect(self, home: _Location, location: _Location, response: aiohttp.ClientResponse) -> _Location:
        """Return the location in the redirect ``response``; TargetNotAllowed if the rule refuses it."""
        where = response.headers.get("location", "")
        try:
            url = location.url.join(URL(where, encoded=where.isascii()))
        except ValueError as e:
            raise _make_redirect_error(response, where) from e
        if not where or url.scheme not in ("http", "https") or not url.host:
            raise _make_redirect_error(response, where)
        access = Access.OWN
        if self._judge is not None:
            judged, access = self._judge(str(url), None if location.away else str(location.url))
            url = URL(judged, encoded=True)
        # Once away, always away: a redirect back would let the server in between choose what our credentials fetch.
        away = location.away or url.origin() != home.url.origin()
        return _Location(url, access, away, asyncio.get_running_loop().time() + _REMEMBERED)

    # Sessions.

    def _list_proxies(self) -> frozenset[str]:
        """Return host and port of the proxies in the options, and in the environment if the options trust it."""
        client = self.fs.client_kwargs
        named = [self._home_options.get("proxy"), client.get("proxy")]
        if client.get("trust_env") or self._asks_environment:
            named += getproxies().values()
        parts = [urlsplit(str(proxy)) for proxy in named if proxy is not None]
        return frozenset(f"{part.hostname}:{part.port or 80}" for part in parts)

    async def _open(self, away: bool, access: Access) -> aiohttp.ClientSession:
        """Return a session for the servers in the objects' own URLs.

        With ``away``, it is for servers of redirects, and lacks the options that may hold credentials.
        """
        fs = self.fs
        if not away and fs.get_client is not plain_client:
            session: aiohttp.ClientSession = await fs.set_session()
            close_with(self, session)
            return session
        options = {name: value for name, value in fs.client_kwargs.items() if name != "headers"}
        home = self._sessions.get((False, self._access))
        if away:
            harmless = {name: value for name, value in options.items() if name in _HARMLESS}
            if home is not None and fs.get_client is not plain_client:
                # Use the user's connector for other servers too, without its cookies and headers.
                harmless = {name: getattr(home, name) for name in ("connector", "trust_env") if hasattr(home, name)}
                harmless["connector_owner"] = False
            elif home is not None and harmless == options:
                harmless["cookie_jar"] = home.cookie_jar  # it has only cookies of servers, none of the user
            options = harmless
        guard = None if self._judge is None else Guard(access is Access.OWN, self._list_proxies())
        if guard is not None and (away or not guard.own):  # the user's connector is for servers that the user named
            options = {name: value for name, value in options.items() if not name.startswith("connector")}
        return open_session(self, guard, **options)


def _make_bare_tls(options: Mapping[str, Any], session: aiohttp.ClientSession) -> dict[str, Any]:
    """Return the TLS option for the server of a redirect: the authorities of ``session``, but no client certificate.

    If a later aiohttp stores a connector's context elsewhere, use the system's authorities.
    """
    context = options.get("ssl", getattr(session.connector, "_ssl", True))
    return {"ssl": drop_certificate(context) if isinstance(context, ssl.SSLContext) else context}


def _find_proxy(url: URL) -> str | None:
    """Return the HTTP proxy for ``url`` in the environment or the settings of the system; None without one."""
    names = f"{url.scheme}_proxy", f"{url.scheme}_PROXY".upper(), "REQUEST_METHOD"
    proxy = _find_proxy_for(url.scheme, tuple(map(os.environ.get, names)))
    if proxy is None or not proxy.startswith(("http://", "https://")) or proxy_bypass(url.host or ""):
        return None
    return proxy


@lru_cache(maxsize=64)
def _find_proxy_for(scheme: str, variables: tuple[str | None, ...]) -> str | None:
    """Return the proxy for a scheme. The result is cached by the values of its ``variables`` in the environment.

    `getproxies` searches the whole environment, which takes a sixth of a request's CPU time.
    """
    return getproxies().get(scheme)


def _make_redirect_error(response: aiohttp.ClientResponse, where: str) -> Unreadable:
    return Unreadable(
        f"the server answered HTTP {response.status} with the Location {sanitize(where)!r}: expected an http or "
        "https URL"
    )


async def _read_facts(response: aiohttp.ClientResponse) -> Facts | None:
    """Return the facts in the answer to HEAD; None if the answer lacks the size."""
    if response.status == 404:
        raise FileNotFoundError("HTTP 404")
    headers = response.headers
    if response.status == 200 and response.content_length is not None and "Content-Encoding" not in headers:
        return Facts(response.content_length, headers.get("ETag"), headers.get("Last-Modified"))
    return None
