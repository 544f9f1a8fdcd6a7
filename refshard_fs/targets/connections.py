"""Share HTTP connections within an event loop, close them before the loop closes, and check their addresses.

zarr and dask make a new filesystem for each task; with shared connections, it needs no TCP and TLS handshakes. A
connection keeps nothing of a request, so the next request may come from another filesystem, with other credentials.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import socket
import ssl
import threading
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

from refshard_fs.core.forks import call_in_child, fork_safe
from refshard_fs.errors import TargetNotAllowed
from refshard_fs.security.admission import INSIDE, Access, Network, describe_remedy, find_network, is_private


def count_permitted_connections() -> int:
    """Return how many connections this process may have: a third of the files that it may open.

    A closed connection disappears only in the loop's next round. Until then, new connections may take another third.
    """
    try:
        import resource
    except ImportError:  # Windows has no limit of this kind
        return 4096
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if soft == resource.RLIM_INFINITY else max(soft // 3, 16)


CONNECTING = aiohttp.ClientTimeout(total=None, sock_connect=20)  # `VersionedObject` bounds the time of an answer
_BUFFER = 1 << 18  # bytes of a body that aiohttp buffers; with fewer, it pauses long bodies often
ENDING = 1.0  # seconds that closing connections may take at the end of the process
_NO_URL = URL()
_COOKIES = 1024  # the most servers whose cookies a session keeps
KEEPALIVE = 15.0  # seconds that an idle connection is kept: servers close idle connections, too
_NAME = "_refshard_connections"  # the attribute of a loop that holds its connections


class LoopConnections:
    """The connections of one event loop, and other sessions that close with it. `of` makes instances."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._connectors: dict[Guard | None, aiohttp.TCPConnector] = {}
        # By identity, because instances of fsspec with the same options are equal.
        self._others: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> LoopConnections:
        """Return the connections of ``loop``, which runs in this thread."""
        known = getattr(loop, _NAME, None)
        if not isinstance(known, cls) or known not in _all:  # in a forked child they belong to the parent
            known = cls(loop)
            # Stored in the loop itself: a table by loop would keep it alive, or be found by a later loop's address.
            setattr(loop, _NAME, known)
            # asyncio has no other hook for the end of a loop, by `asyncio.run` or a bare `loop.close()`.
            loop.close = functools.partial(_close_loop, loop, loop.close, known)  # type: ignore[method-assign]
            _all.add(known)
        return known

    def get_connector(self, guard: Guard | None = None) -> aiohttp.TCPConnector:
        """Return the connector for connections that ``guard`` permits (None: all)."""
        connector = self._connectors.get(guard)
        if connector is None or connector.closed:
            resolver = None if guard is None else GuardedResolver(guard)
            connector = self._connectors[guard] = aiohttp.TCPConnector(
                limit=count_permitted_connections(),  # the engine limits the requests
                keepalive_timeout=KEEPALIVE,
                resolver=resolver,
                socket_factory=self._make_socket,
                ssl=_make_default_context(),
            )
        return connector

    def _make_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        self._make_room()
        new = socket.socket(*address[:3])
        with _adding:
            _sockets.add(new)
        return new

    def _make_room(self) -> None:
        """Close the idle connections if the process has reached its limit of connections."""
        with _adding:
            every = list(_sockets)
        if sum(known.fileno() >= 0 for known in every) < count_permitted_connections():
            return
        for connector in self._connectors.values():
            idle = list_idle(connector)
            for kept in idle.values():
                for protocol, *_ in kept:
                    protocol.close()
            idle.clear()

    def close_with_loop(self, holder: Any) -> None:
        """Close ``holder``, a session or an fsspec instance, when the loop closes, unless it is collected before."""
        self._others[id(holder)] = holder

    async def close(self) -> None:
        connectors = list(self._connectors.values())
        self._connectors.clear()
        self._cut_others()
        for connector in connectors:
            await connector.close()
        await asyncio.sleep(0)  # asyncio closes sockets in the next round of the loop

    def end(self) -> None:
        """Close everything at the end of the process: on the loop, if the loop still runs in its thread."""
        loop = self._loop()
        if loop is not None and loop.is_running():
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(self.close(), loop).result(ENDING)
        self.cut()

    def cut(self) -> None:
        """Close everything at once, without an event loop."""
        self._cut_others()
        for connector in self._connectors.values():
            close_now(connector)

    def _cut_others(self) -> None:
        for other in list(self._others.values()):
            close_connections(other)


_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # all sockets of our connectors, open and closed
_adding = fork_safe(threading.Lock())  # a WeakSet cannot be listed while another event loop's thread adds to it


def list_idle(connector: aiohttp.TCPConnector) -> dict[Any, Any]:
    """Return the idle connections of ``connector``, which the caller may close and remove.

    aiohttp has no public call for this. If a later version stores them elsewhere, they stay open until aiohttp closes
    them, after `KEEPALIVE` seconds.
    """
    idle: dict[Any, Any] = getattr(connector, "_conns", {})
    return idle


def close_now(connector: aiohttp.BaseConnector) -> None:
    """Close ``connector`` at once, without an event loop: aiohttp's public call needs a running loop.

    If a later version lacks this method, the connections close when they are collected, or with the process.
    """
    close = getattr(connector, "_close", None)
    if close is not None:
        close()


def _close_loop(loop: asyncio.AbstractEventLoop, close: Callable[[], None], connections: LoopConnections) -> None:
    """Close a loop, and its connections before it."""
    is_ours = connections in _all  # in a forked child they belong to the parent
    if is_ours and not loop.is_closed() and not loop.is_running():
        closing = connections.close()
        try:
            loop.run_until_complete(closing)
        except RuntimeError:  # another loop runs in this thread, and closes this one
            closing.close()
            connections.cut()
    close()


# The addresses that connections may lead to.


Judge = Callable[[str, str | None], tuple[str, Access]]  # takes a URL, and the URL that redirects to it


class Guard(NamedTuple):
    """The rule for the addresses of the host names that a set from elsewhere uses.

    If the user named the servers (``own``), they may be in a private network; but the address of a name must not change
    to a more private network after its first use. All other servers must be public. ``proxies`` (``host:port``) may be
    anywhere.
    """

    own: bool
    proxies: frozenset[str] = frozenset()

    def judge(self, host: str, port: int, addresses: Iterable[str]) -> None:
        """Raise TargetNotAllowed if one of the ``addresses`` of ``host`` breaks the rule."""
        name = host.lower().rstrip(".")
        if f"{name}:{port}" in self.proxies:
            return
        network, address = max((find_network(text.partition("%")[0]), text) for text in addresses)
        most = _first.setdefault((name, port), network) if self.own else Network.PUBLIC
        if network > most:
            rule = f"{INSIDE}, and {host} is {address}"
            if self.own:
                rule += ", but its address was outside that network at its first use"
            raise TargetNotAllowed(f"//{host}:{port}/", rule, describe_remedy(f"//{host}:{port}/"))

    async def judge_server(self, url: str) -> None:
        """Raise TargetNotAllowed if the server of ``url``, to which another library connects, breaks the rule.

        A name that does not resolve is left to that library: a proxy may resolve it.
        """
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        if not self.own and is_private(host):
            raise TargetNotAllowed(url, INSIDE, describe_remedy(url))
        with contextlib.suppress(socket.gaierror):
            infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self.judge(host, port, [str(info[4][0]) for info in infos])

    def resolve(self, host: str, port: int) -> str:
        """Return the first address of ``host``; raise TargetNotAllowed if one breaks the rule. The look-up blocks."""
        addresses = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        self.judge(host, port, addresses)
        return addresses[0]


# By name and port: the network of a server that the user named, at its first use.
_first: dict[tuple[str, int], Network] = {}


class GuardedResolver(AbstractResolver):
    """Resolve names as the system does, and refuse names with addresses that break the rule of ``guard``."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._resolver = aiohttp.DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        results = await self._resolver.resolve(host, port, family)
        self._guard.judge(host, port, [result["host"] for result in results])
        return results

    async def close(self) -> None:
        await self._resolver.close()


@functools.cache
def make_tls_context(bundle: str) -> ssl.SSLContext:
    """Return a TLS context that trusts only the authorities in the file or directory ``bundle``."""
    where = {"capath": bundle} if os.path.isdir(bundle) else {"cafile": bundle}
    return ssl.create_default_context(**where)  # type: ignore[arg-type]  # mypy compares the values with every parameter


def _make_default_context() -> ssl.SSLContext | bool:
    """Return the TLS context for servers: True means the system's authorities; without any, use certifi's."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or (paths.capath and os.listdir(paths.capath)):  # both are None if nothing is there
        return True
    if ssl.create_default_context().cert_store_stats()["x509_ca"]:  # Windows has authorities in a store, not in a file
        return True
    return make_tls_context(certifi.where())


@functools.lru_cache(maxsize=64)
def drop_certificate(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return a TLS context that trusts the same authorities, without a certificate of the client."""
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain.check_hostname = context.check_hostname
    plain.verify_mode = context.verify_mode
    plain.minimum_version, plain.maximum_version = context.minimum_version, context.maximum_version
    authorities = context.get_ca_certs(binary_form=True)
    if authorities:
        plain.load_verify_locations(cadata=b"".join(authorities))
    else:  # the authorities are in a directory, which OpenSSL reads when it verifies a server
        plain.load_default_certs()
    return plain


# Sessions.


class OriginCookies(aiohttp.CookieJar):
    """A cookie jar that sends a server's cookie only to the same scheme, host and port; the user's cookies to all.

    aiohttp's own jar sends a cookie to every port of a host, and to every host of the domain in the cookie, even if
    that is a public one such as ``co.uk``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of_origin: dict[URL, aiohttp.CookieJar] = {}

    def update_cookies(self, cookies: LooseCookies, response_url: URL = _NO_URL) -> None:
        if response_url.host:
            self._find_jar(response_url).update_cookies(cookies, response_url)
        else:
            super().update_cookies(cookies)

    def update_cookies_from_headers(self, headers: Sequence[str], response_url: URL) -> None:
        self._find_jar(response_url).update_cookies_from_headers(headers, response_url)

    def _find_jar(self, url: URL) -> aiohttp.CookieJar:
        if len(self._of_origin) >= _COOKIES:
            self._of_origin.clear()
        return self._of_origin.setdefault(url.origin(), aiohttp.CookieJar())

    def filter_cookies(self, request_url: URL = _NO_URL) -> BaseCookie[str]:
        cookies = super().filter_cookies(request_url)
        jar = self._of_origin.get(request_url.origin()) if request_url.host else None
        if jar is not None:
            cookies.update(jar.filter_cookies(request_url))
        return cookies


def open_session(owner: object, guard: Guard | None = None, **options: Any) -> aiohttp.ClientSession:
    """Return a session with aiohttp's ``options`` on the running loop; it is closed when ``owner`` is collected.

    The session shares the connections of the loop, unless ``options`` have a ``connector``. Cookies are never shared.
    """
    shared = "connector" not in options
    if shared:
        options["connector"] = LoopConnections.of(asyncio.get_running_loop()).get_connector(guard)
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
    """Return a session for a filesystem of fsspec; ``judge`` is called for each URL, also for URLs of redirects."""

    async def judge_and_send(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        judge(str(request.url), None)
        return await send(request)

    options.pop("loop", None)
    connector = LoopConnections.of(asyncio.get_running_loop()).get_connector(guard)
    return aiohttp.ClientSession(**options, connector=connector, connector_owner=False, middlewares=(judge_and_send,))


def close_with(owner: object, holder: Any) -> None:
    """Close the connections of ``holder`` when ``owner`` is collected, or the running loop closes."""
    loop = asyncio.get_running_loop()
    weakref.finalize(owner, _abandon, holder, weakref.ref(loop), os.getpid()).atexit = False
    LoopConnections.of(loop).close_with_loop(holder)


def close_connections(holder: Any) -> None:
    """Close the connections of ``holder`` at once: a session of aiohttp, or a filesystem or client that has one.

    fsspec's filesystems for HTTP and Google Storage store their session as ``_session``. If a later version stores it
    elsewhere, its connections close when the session is collected, with a warning.
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
        return  # a forked child would close its parent's sockets
    loop = loop_ref()
    if loop is not None and not loop.is_closed() and loop.is_running():
        loop.call_soon_threadsafe(close_connections, holder)  # the loop may run in another thread
    else:
        close_connections(holder)


_all: weakref.WeakSet[LoopConnections] = weakref.WeakSet()

# A forked child shares its parent's sockets, and must not close them: this list prevents their collection.
_orphans: list[object] = []


def _after_fork() -> None:
    _orphans.append([(connections, dict(connections._connectors), dict(connections._others)) for connections in _all])
    _all.clear()
    _sockets.clear()


call_in_child(_after_fork)


@atexit.register
def _at_exit() -> None:
    for connections in list(_all):  # the threads of their loops are about to stop
        connections.end()
