"""Connections belong to an event loop: all that read there share them, and they are closed before the loop is.

zarr and dask make a filesystem anew for each task; none of them waits for TCP and TLS again. Nothing of a request stays
with its connection, so the next one may be another filesystem's, with other credentials.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import socket
import ssl
import weakref
from collections.abc import Callable, Iterable, Sequence
from http.cookies import BaseCookie
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import certifi
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.typedefs import LooseCookies
from yarl import URL

from refshard_fs.core.forks import in_child
from refshard_fs.errors import TargetNotAllowed
from refshard_fs.security.admission import INSIDE, Access, Network, is_private, network_of, remedy


def most_open() -> int:
    """Return how many connections this process may have: a third of the files that it may open.

    Those that are closed for others are only gone in the loop's next round, when as many may have been opened: two
    thirds, and the rest is for all else.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 4096
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if soft == resource.RLIM_INFINITY else max(soft // 3, 16)


CONNECTING = aiohttp.ClientTimeout(total=None, sock_connect=20)  # how long an answer may take, `VersionedObject` bounds
_BUFFER = 1 << 18  # bytes of a body that are received before they are taken; fewer would stop long bodies often
ENDING = 1.0  # seconds that closing connections may take when the process ends
_NO_URL = URL()
_COOKIES = 1024  # servers whose cookies a session keeps
KEPT = 15.0  # seconds that a connection is kept which nobody uses: servers close theirs
_NAME = "_refshard_connections"  # the attribute of a loop that holds its connections


class LoopConnections:
    """The connections of one event loop, and what else is to be closed with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use `of`."""
        self._loop = weakref.ref(loop)
        self._connectors: dict[Guard | None, aiohttp.TCPConnector] = {}
        # By identity, for instances of fsspec that have the same options are equal.
        self._others: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> LoopConnections:
        """Return the connections of ``loop``, which is running here."""
        found = getattr(loop, _NAME, None)
        if not isinstance(found, cls) or found not in _all:  # the latter of a forked child
            found = cls(loop)
            # Held by the loop alone: nothing here keeps a loop alive, and a new loop at the same address has its own.
            setattr(loop, _NAME, found)
            # There is no other way to be told, however a loop ends: `asyncio.run` or a bare `loop.close()`.
            loop.close = functools.partial(_close_loop, loop, loop.close, found)  # type: ignore[method-assign]
            _all.add(found)
        return found

    def connector(self, guard: Guard | None = None) -> aiohttp.TCPConnector:
        """Return what leads anywhere, or where ``guard`` lets it."""
        connector = self._connectors.get(guard)
        if connector is None or connector.closed:
            resolver = None if guard is None else GuardedResolver(guard)
            connector = self._connectors[guard] = aiohttp.TCPConnector(
                limit=most_open(),  # else, how many requests are under way is the engine's to decide
                keepalive_timeout=KEPT,
                resolver=resolver,
                socket_factory=self._new_socket,
                ssl=_default_context(),
            )
        return connector

    def _new_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        self._make_room()
        made = socket.socket(*address[:3])
        _sockets.add(made)
        return made

    def _make_room(self) -> None:
        """Close the connections that nobody uses, if the process has as many as there may be."""
        if sum(known.fileno() >= 0 for known in list(_sockets)) < most_open():
            return
        for connector in self._connectors.values():
            idle = idle_of(connector)
            for kept in idle.values():
                for protocol, *_ in kept:
                    protocol.close()
            idle.clear()

    def close_too(self, holder: Any) -> None:
        """Close ``holder``, a session or an fsspec instance, with the loop if it is still there."""
        self._others[id(holder)] = holder

    async def close(self) -> None:
        connectors = list(self._connectors.values())
        self._connectors.clear()
        self._cut_others()
        for connector in connectors:
            await connector.close()
        await asyncio.sleep(0)  # sockets are closed in the next round of the loop

    def end(self) -> None:
        """Close all at the end of the process: on the loop, if that still runs in its thread."""
        loop = self._loop()
        if loop is not None and loop.is_running():
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(self.close(), loop).result(ENDING)
        self.cut()

    def cut(self) -> None:
        """Close what can be closed where nothing can be awaited any more."""
        self._cut_others()
        for connector in self._connectors.values():
            close_now(connector)

    def _cut_others(self) -> None:
        for other in list(self._others.values()):
            close_connections(other)


_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # that were opened here, some of which are closed


def idle_of(connector: aiohttp.TCPConnector) -> dict[Any, Any]:
    """Return the connections that ``connector`` keeps for later requests, to be closed and removed.

    aiohttp has no call for that. Where it keeps them in another way, it closes them itself after `KEPT` seconds.
    """
    found: dict[Any, Any] = getattr(connector, "_conns", {})
    return found


def close_now(connector: aiohttp.BaseConnector) -> None:
    """Close ``connector`` where nothing can be awaited; aiohttp's own call takes a running loop.

    Where aiohttp has no such method, its connections end with the process, or as they are collected.
    """
    close = getattr(connector, "_close", None)
    if close is not None:
        close()


def _close_loop(loop: asyncio.AbstractEventLoop, close: Callable[[], None], connections: LoopConnections) -> None:
    """Close a loop, its connections first."""
    if connections in _all and not loop.is_closed() and not loop.is_running():  # the first is not so in a forked child
        closing = connections.close()
        try:
            loop.run_until_complete(closing)
        except RuntimeError:  # it is closed from within another loop that runs in this thread
            closing.close()
            connections.cut()
    close()


# ---------------------------------------------------------------------------------------- where connections may lead


Judge = Callable[[str, str | None], tuple[str, Access]]  # of a URL, and of the one that redirects to it


class Guard(NamedTuple):
    """Where names may lead for a set from elsewhere, whatever asks for them, and with whose credentials.

    ``own``: they are servers that the user named, which may be in a private network, and stay where they were when they
    were first asked. All others are public. ``proxies`` (host and port) are wherever they are.
    """

    own: bool
    proxies: frozenset[str] = frozenset()

    def judge(self, host: str, port: int, addresses: Iterable[str]) -> None:
        """Raise TargetNotAllowed if ``host``, which has these addresses, is where it may not be."""
        name = host.lower().rstrip(".")
        if f"{name}:{port}" in self.proxies:
            return
        network, address = max((network_of(found.partition("%")[0]), found) for found in addresses)
        most = _first.setdefault((name, port), network) if self.own else Network.PUBLIC
        if network > most:
            rule = f"{INSIDE}, and {host} is {address}"
            if self.own:
                rule += ", which it was not when it was first asked"
            raise TargetNotAllowed(f"//{host}:{port}/", rule, remedy(f"//{host}:{port}/"))

    async def judge_server(self, url: str) -> None:
        """Do the same for the server of ``url``, which connections that are not ours lead to.

        A name that is not known here is left to whatever connects: maybe a proxy, which looks it up itself.
        """
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        if not self.own and is_private(host):
            raise TargetNotAllowed(url, INSIDE, remedy(url))
        with contextlib.suppress(socket.gaierror):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self.judge(host, port, [str(place[4][0]) for place in found])

    def find(self, host: str, port: int) -> str:
        """Return an address of ``host`` that may be connected to; the lookup blocks."""
        found = [str(place[4][0]) for place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        self.judge(host, port, found)
        return found[0]


# Where the servers that the user named were when they were first asked, by name and port.
_first: dict[tuple[str, int], Network] = {}


class GuardedResolver(AbstractResolver):
    """Resolves names as the system does, and refuses those that lead where they may not."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._resolver = aiohttp.DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        self._guard.judge(host, port, [place["host"] for place in found])
        return found

    async def close(self) -> None:
        await self._resolver.close()


@functools.cache
def in_context(bundle: str) -> ssl.SSLContext:
    """Return a context that trusts the authorities in the file, or directory, ``bundle`` alone."""
    where = {"capath": bundle} if os.path.isdir(bundle) else {"cafile": bundle}
    return ssl.create_default_context(**where)  # type: ignore[arg-type]  # mypy takes the values for any argument's


def _default_context() -> ssl.SSLContext | bool:
    """Return what connections are verified with: the system's authorities, or certifi's where there are none."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or (paths.capath and os.listdir(paths.capath)):  # None, where there is no such file
        return True
    if ssl.create_default_context().cert_store_stats()["x509_ca"]:  # Windows keeps them in no file
        return True
    return in_context(certifi.where())


@functools.lru_cache(maxsize=64)
def without_certificate(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return a context that trusts the same authorities and shows no certificate of the client's own."""
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain.check_hostname = context.check_hostname
    plain.verify_mode = context.verify_mode
    plain.minimum_version, plain.maximum_version = context.minimum_version, context.maximum_version
    authorities = context.get_ca_certs(binary_form=True)
    if authorities:
        plain.load_verify_locations(cadata=b"".join(authorities))
    else:  # they are in a directory, which is looked into when a server is verified
        plain.load_default_certs()
    return plain


# ---------------------------------------------------------------------------------------- sessions


class OriginCookies(aiohttp.CookieJar):
    """Cookies that go back to the scheme, host and port that set them, whatever domain they name; the user's, to all.

    Those of aiohttp go to every port of a host, and to all hosts of a domain, of which it knows no public ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of_origin: dict[URL, aiohttp.CookieJar] = {}

    def update_cookies(self, cookies: LooseCookies, response_url: URL = _NO_URL) -> None:
        if response_url.host:
            self._jar(response_url).update_cookies(cookies, response_url)
        else:
            super().update_cookies(cookies)

    def update_cookies_from_headers(self, headers: Sequence[str], response_url: URL) -> None:
        self._jar(response_url).update_cookies_from_headers(headers, response_url)

    def _jar(self, url: URL) -> aiohttp.CookieJar:
        if len(self._of_origin) >= _COOKIES:
            self._of_origin.clear()
        return self._of_origin.setdefault(url.origin(), aiohttp.CookieJar())

    def filter_cookies(self, request_url: URL = _NO_URL) -> BaseCookie[str]:
        found = super().filter_cookies(request_url)
        own = self._of_origin.get(request_url.origin()) if request_url.host else None
        if own is not None:
            found.update(own.filter_cookies(request_url))
        return found


def open_session(owner: object, guard: Guard | None = None, **options: Any) -> aiohttp.ClientSession:
    """Return a session of the running loop, with aiohttp's ``options``, that is closed when ``owner`` is collected.

    What it receives, and cookies, are its own; connections are those of the loop, unless there is a ``connector``.
    """
    shared = "connector" not in options
    if shared:
        options["connector"] = LoopConnections.of(asyncio.get_running_loop()).connector(guard)
        options["connector_owner"] = False
    if options.get("cookie_jar") is None:
        options["cookie_jar"] = OriginCookies()
    session = aiohttp.ClientSession(**{"timeout": CONNECTING, "read_bufsize": _BUFFER, **options})
    if shared:
        weakref.finalize(owner, session.detach)
    else:
        close_with(owner, session)
    return session


async def open_guarded(guard: Guard, judge: Judge, **options: Any) -> aiohttp.ClientSession:
    """Return a session for a filesystem of fsspec, which follows redirects itself: ``judge`` is asked of each."""

    async def judged(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        judge(str(request.url), None)
        return await send(request)

    options.pop("loop", None)
    connector = LoopConnections.of(asyncio.get_running_loop()).connector(guard)
    return aiohttp.ClientSession(**options, connector=connector, connector_owner=False, middlewares=(judged,))


def close_with(owner: object, holder: Any) -> None:
    """Close the connections of ``holder`` when ``owner`` is collected, or the running loop closes."""
    loop = asyncio.get_running_loop()
    weakref.finalize(owner, _abandon, holder, weakref.ref(loop), os.getpid()).atexit = False
    LoopConnections.of(loop).close_too(holder)


def close_connections(holder: Any) -> None:
    """Close the connections of ``holder`` at once: a session of aiohttp, or a filesystem or client that has one.

    The filesystems of fsspec for HTTP and Google Storage keep it as ``_session``. One that is kept elsewhere closes its
    connections when it is collected, with a warning.
    """
    close = getattr(holder, "close_connections", None)  # `S3Client` has several sessions
    if close is not None:
        close()
        return
    session = holder if isinstance(holder, aiohttp.ClientSession) else getattr(holder, "_session", None)
    if isinstance(session, aiohttp.ClientSession):
        close_session(session)


def close_session(session: aiohttp.ClientSession) -> None:
    """Close ``session`` at once, and its connections unless they are shared."""
    if session.connector is not None:
        if session.connector_owner:
            close_now(session.connector)
        session.detach()


def _abandon(holder: Any, loop_ref: weakref.ref[asyncio.AbstractEventLoop], process: int) -> None:
    if process != os.getpid():
        return  # a forked child would take them from its parent
    loop = loop_ref()
    if loop is not None and not loop.is_closed() and loop.is_running():
        loop.call_soon_threadsafe(close_connections, holder)  # it may be another thread's
    else:
        close_connections(holder)


_all: weakref.WeakSet[LoopConnections] = weakref.WeakSet()

# A forked child shares its parent's sockets: to close one there could take it from the parent.
_orphans: list[object] = []


def _after_fork() -> None:
    _orphans.append([(connections, dict(connections._connectors), dict(connections._others)) for connections in _all])
    _all.clear()
    _sockets.clear()


in_child(_after_fork)


@atexit.register
def _at_exit() -> None:
    for connections in list(_all):  # the threads of their loops are about to stop, wherever they are
        connections.end()
