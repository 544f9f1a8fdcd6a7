"""HTTP(S) objects, read by ranged GETs with the options, and in a session, of fsspec's `HTTPFileSystem`.

Redirects are followed here, not by aiohttp: what is meant for one server (headers, cookies,
credentials) goes to no other one, and where they lead is remembered for a while.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.http import get_client as plain_client
from yarl import URL

from refshard_fs.core.model import Facts, Listed
from refshard_fs.errors import TargetNotAllowed
from refshard_fs.security.admission import Admission, is_private
from refshard_fs.targets.answer import Answer, answer_of, failure_of, judge, range_header, read_answer
from refshard_fs.targets.buffers import Buffers
from refshard_fs.targets.closing import close_with
from refshard_fs.targets.failures import Unreadable
from refshard_fs.targets.own_http import Direct, Reply, Request, prepare

__all__ = ["AsyncHttp", "HttpTarget", "PublicResolver", "public_client", "public_connector"]

# ----------------------------------------------------------------------------------------------------
# HTTP connections that never lead into private networks, whatever a name resolves to at that moment.


class PublicResolver(AbstractResolver):
    """Resolves names as the system does, and refuses those of private addresses, but for the hosts in ``exempt``."""

    def __init__(self, exempt: frozenset[str]) -> None:
        self._exempt = exempt
        self._resolver = aiohttp.DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if host.lower().rstrip(".") not in self._exempt:
            private = [place["host"] for place in found if is_private(place["host"].partition("%")[0])]
            if private:
                rule = f"a manifest from elsewhere may not point into private networks, and {host} is {private[0]}"
                raise TargetNotAllowed(f"//{host}:{port}/", rule, f"Add 'https://{host}/' to allow= if you trust it")
        return found

    async def close(self) -> None:
        await self._resolver.close()


def public_connector(exempt: frozenset[str]) -> aiohttp.TCPConnector:
    """Return a connector that leads to public addresses only, and to the hosts in ``exempt``."""
    return aiohttp.TCPConnector(resolver=PublicResolver(exempt))


async def public_client(exempt: frozenset[str], **options: Any) -> aiohttp.ClientSession:
    """Return a session on such a connector: `HTTPFileSystem`'s ``get_client``."""
    return aiohttp.ClientSession(**{**options, "connector": public_connector(exempt)})


_REDIRECTS = frozenset([301, 302, 303, 307, 308])
_MOST_REDIRECTS = 10
_REMEMBERED = 60.0  # seconds; signed addresses that a server redirects to live longer
_LOCATIONS = 4096
_SECRET = frozenset(["headers", "auth", "cookies", "cookie_jar"])
# How long an answer may take is `Opened`'s matter, whose limits cost less than a timer for each.
_STALLED = aiohttp.ClientTimeout(total=None, sock_connect=20)


# A URL of these alone is sent as it is spelled: its signature, or the server, may tell %2F from a slash.
_SPELLED = re.compile(r"(?:[\w\-.~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*", re.ASCII)


class _Location(NamedTuple):
    """Where an object is to be asked for: ``away`` from the server that its URL names, until a time of the loop."""

    url: URL
    away: bool = False
    until: float | None = None
    direct: Request | None = None  # the same as a request of our own


class AsyncHttp(HTTPFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The same without the synchronous methods, which take a millisecond to make, and would not be used."""

    mirror_sync_methods = False


class HttpTarget:
    """The objects of all HTTP servers, by URL. ``admission`` judges each address that a redirect leads to, too."""

    most_retries = 1000
    patience = 60.0

    def __init__(self, fs: HTTPFileSystem, admission: Admission | None = None, buffers: Buffers | None = None) -> None:
        self.fs = fs
        self._buffers = Buffers() if buffers is None else buffers
        self._admission = Admission() if admission is None else admission
        self._session: aiohttp.ClientSession | None = None
        self._bare: aiohttp.ClientSession | None = None
        given = dict(fs.kwargs)
        self._follows = given.pop("allow_redirects", True)
        self._headers = {"Accept-Encoding": "identity"}
        self._own: dict[str, Any] = {"allow_redirects": False, "timeout": _STALLED, **given}
        if "timeout" not in given and ("timeout" in fs.client_kwargs or fs.get_client is not plain_client):
            del self._own["timeout"]
        self._own_headers = {**self._headers, **(self._own.pop("headers", None) or {})}
        self._foreign = {k: v for k, v in self._own.items() if k not in _SECRET and k != "params"}
        self._locations: dict[str, _Location] = {}
        self._direct: Direct | None = None
        self._is_guarded = isinstance(fs.get_client, functools.partial) and fs.get_client.func is public_client
        self._plain = self._is_plain()

    def _is_plain(self) -> bool:
        """Whether no option asks for more than headers, so that requests of our own are the same as aiohttp's."""
        fs = self.fs
        given = [of.get("headers") or {} for of in (fs.kwargs, fs.client_kwargs)]
        return (
            not set(fs.kwargs) - {"allow_redirects", "headers"}
            and not set(fs.client_kwargs) - {"headers"}
            and (fs.get_client is plain_client or self._is_guarded)
            and all(type(some) is dict and all(isinstance(v, str) for v in some.values()) for some in given)
        )

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        if stop is not None and stop <= start:
            return Answer(b"")
        headers: dict[str, str] = {}
        if start or stop is not None:
            headers["Range"] = range_header(start, stop)
        if etag is not None:
            headers["If-Match"] = etag
        if self._plain and (stop is not None or start < 0):
            found = await self._read_directly(path, start, stop, headers)
            if found is not None:
                return found
        async with await self._request("GET", path, headers) as response:
            inflates = self._session is not None and self._session.auto_decompress
            return await read_answer(response, start, stop, most, inflates=inflates)

    async def facts(self, path: str) -> Facts:
        async with await self._request("HEAD", path, {}) as response:
            if response.status in (404, 410):
                raise await failure_of(response)
            headers = response.headers
            if response.status == 200 and response.content_length is not None and "Content-Encoding" not in headers:
                return Facts(response.content_length, headers.get("ETag"), headers.get("Last-Modified"))
        # HEAD is refused or says nothing: one byte tells the size.
        answer = await self.read(path, 0, 1)
        return Facts(answer.size, answer.etag, answer.last_modified)

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        return None

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer | None:
        return None

    async def close(self) -> None:
        self._direct = None
        for session in (self._session, self._bare):
            if session is not None:
                await session.close()
        self._session = self._bare = None

    async def _read_directly(
        self, path: str, start: int, stop: int | None, headers: Mapping[str, str]
    ) -> Answer | None:
        """Return bytes ``[start, stop)`` by a request of our own; None where aiohttp is to ask."""
        location = self._location(path)
        request = location.direct
        if request is None:
            return None
        direct = self._direct
        if direct is None:
            direct = self._direct = Direct(self._buffers)
            close_with(self, direct.connections)
        reply = await direct.read(request, headers, judge(start, stop), (stop or 0) - start)
        if reply is None:
            return None
        if reply.status in _REDIRECTS and self._follows:
            async with await self._followed("GET", path, location, headers, reply) as response:
                return await read_answer(response, start, stop)
        return answer_of(reply, start, stop)

    def _location(self, path: str) -> _Location:
        location = self._locations.get(path)
        if location is None:
            if len(self._locations) >= _LOCATIONS:
                self._locations.clear()
            url = self._url(path)
            own = {**(self.fs.client_kwargs.get("headers") or {}), **self._own_headers} if self._plain else {}
            location = _Location(url, direct=prepare(url, own) if self._plain and self._is_known(url) else None)
            self._locations[path] = location
        return location

    def _is_known(self, url: URL) -> bool:
        """Whether no guard is needed: wherever the host of ``url`` may be, the user pointed there."""
        return not self._is_guarded or (url.raw_host or "").rstrip(".") in self._admission.own_hosts

    async def _request(self, method: str, path: str, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        location = self._location(path)
        if location.until is None:
            response = await self._send(method, location, headers)
            if response.status not in _REDIRECTS or not self._follows:
                return response
            return await self._followed(method, path, location, headers, response)
        if location.until > asyncio.get_running_loop().time():
            response = await self._send(method, location, headers)
            if response.status < 300 or response.status in (412, 416):
                return response
            response.release()
        del self._locations[path]  # ask the server itself again
        return await self._request(method, path, headers)

    def _url(self, path: str) -> URL:
        if _SPELLED.fullmatch(path) and "/." not in path:
            return URL(path, encoded=True)
        url: URL = self.fs.encode_url(path)
        return url

    async def _followed(
        self,
        method: str,
        path: str,
        home: _Location,
        headers: Mapping[str, str],
        response: aiohttp.ClientResponse | Reply,
    ) -> aiohttp.ClientResponse:
        location = home
        for _ in range(_MOST_REDIRECTS):
            where = response.headers.get("location", "")
            response.release()
            try:
                url = location.url.join(URL(where, encoded=where.isascii()))
            except ValueError as e:
                raise Unreadable("the server redirects to what is no URL") from e
            if not where or url.scheme not in ("http", "https") or not url.host:
                raise Unreadable("the server redirects to where no HTTP server is")
            url = URL(self._admission.admit(str(url))[0], encoded=True)
            # Never back among friends: the one in between chose where to go, and what for.
            away = location.away or url.origin() != home.url.origin()
            location = _Location(url, away, asyncio.get_running_loop().time() + _REMEMBERED)
            response = await self._send(method, location, headers)
            if response.status not in _REDIRECTS:
                if response.status < 300:
                    self._locations[path] = location
                return response
        response.release()
        raise Unreadable(f"the server redirects more than {_MOST_REDIRECTS} times")

    async def _send(self, method: str, location: _Location, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        if location.away:
            session = await self._stranger()
            return await session.request(method, location.url, headers={**self._headers, **headers}, **self._foreign)
        session = self._session or await self._open()
        return await session.request(method, location.url, headers={**self._own_headers, **headers}, **self._own)

    async def _open(self) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await self.fs.set_session()
        if self._session is None:
            self._session = session
            close_with(self, session)
        return session

    async def _stranger(self) -> aiohttp.ClientSession:
        """Return a session that carries nothing which was given for the first server."""
        given = self.fs.client_kwargs
        if not _SECRET.intersection(given):
            return self._session or await self._open()
        if self._bare is None:
            options = {k: v for k, v in given.items() if k not in _SECRET | {"connector"}}
            if self._admission.guards_networks:
                options["connector"] = public_connector(self._admission.own_hosts)
            self._bare = aiohttp.ClientSession(**options)
            close_with(self, self._bare)
        return self._bare
