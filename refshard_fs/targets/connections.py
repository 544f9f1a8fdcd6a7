"""The connections of one event loop, shared by all that reads there: kept for a while, and closed with the loop.

Nothing of a request stays with its connection, so the next one may be another filesystem's, with other credentials:
zarr and dask make a filesystem anew for each task, and none of them waits for TCP and TLS again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator

from refshard_fs.targets.buffers import SHARED
from refshard_fs.targets.exchange import ROOM, Connection, Origin, Unfamiliar

__all__ = ["Connections"]

_KEPT = 128  # connections to one server that nobody uses
_IDLE = 15.0  # seconds after which a connection is not used again: servers close theirs
_RESOLVED = 10.0  # seconds that addresses are remembered
_PATIENCE = 20.0  # seconds for a connection,
_NEXT = 0.3  # and where there are other addresses


class Connections:
    """Those of one event loop; to be used there only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use `of`."""
        self.room = bytearray(ROOM)
        self._loop = loop
        self._idle: dict[Origin, deque[Connection]] = {}
        self._live: set[Connection] = set()
        self._found: dict[Origin, tuple[float, asyncio.Task[list[str]]]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._keeper = _close_with_loop(self)
        with contextlib.suppress(StopIteration):
            self._keeper.__anext__().send(None)

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Connections:
        """Return those of ``loop``, which is running here."""
        with _state.lock:
            found = _state.known.get(id(loop))
            if found is None or found._loop is not loop:
                found = _state.known[id(loop)] = cls(loop)
            return found

    def take(self, origin: Origin) -> Connection | None:
        """Return a connection to ``origin`` that nobody uses, if there is one."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_open and self._loop.time() - connection.since < _IDLE:
                return connection
            connection.close()
        return None

    def put(self, connection: Connection) -> None:
        """Keep ``connection``, whose answer is complete, for the next request; close it where there are many."""
        idle = self._idle.setdefault(connection.origin, deque())
        if len(idle) >= _KEPT:
            connection.close()
            return
        connection.since = self._loop.time()
        idle.append(connection)
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(_IDLE, self._sweep)

    def lost(self, connection: Connection) -> None:
        """Note that ``connection`` is closed."""
        self._live.discard(connection)

    def close(self) -> None:
        """Close all."""
        if self._loop.is_closed():
            return
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for connection in list(self._live):
            connection.close()
        self._idle.clear()
        for _, task in self._found.values():
            task.cancel()
        self._found.clear()
        SHARED.clear()

    def _sweep(self) -> None:
        self._sweeping = None
        now = self._loop.time()
        for origin, idle in list(self._idle.items()):
            while idle and (now - idle[0].since >= _IDLE or not idle[0].is_open):
                idle.popleft().close()
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._sweeping = self._loop.call_later(_IDLE, self._sweep)
        else:
            SHARED.clear()

    async def connect(self, origin: Origin) -> Connection:
        """Return a new connection to ``origin``; Unfamiliar if there is none to be had."""
        try:
            addresses = await self._addresses(origin)
            tls = await asyncio.to_thread(_context) if origin.tls else None
        except OSError as e:
            raise Unfamiliar from e
        tried = tuple(addresses)  # others put the one that answers first meanwhile
        for address in tried:
            other = address != tried[-1]
            try:
                async with asyncio.timeout(_NEXT if other else _PATIENCE):
                    _, connection = await self._loop.create_connection(
                        lambda: Connection(self._loop, self, origin),
                        address,
                        origin.port,
                        ssl=tls,
                        server_hostname=origin.host if tls is not None else None,
                    )
            except OSError as e:  # TimeoutError is one
                if not other:
                    raise Unfamiliar from e
                continue
            if address != addresses[0]:
                addresses.remove(address)
                addresses.insert(0, address)
            self._live.add(connection)
            return connection
        raise Unfamiliar

    async def _addresses(self, origin: Origin) -> list[str]:
        try:
            socket.inet_pton(socket.AF_INET6 if ":" in origin.host else socket.AF_INET, origin.host)
        except OSError:
            pass
        else:
            return [origin.host]
        found = self._found.get(origin)
        if found is None or found[0] < self._loop.time():
            found = self._loop.time() + _RESOLVED, self._loop.create_task(self._resolve(origin))
            self._found[origin] = found
        try:
            return await asyncio.shield(found[1])
        except OSError:
            self._found.pop(origin, None)
            raise

    async def _resolve(self, origin: Origin) -> list[str]:
        infos = await self._loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in infos))


async def _close_with_loop(connections: Connections) -> AsyncGenerator[None, None]:
    """Close ``connections`` when their loop shuts down: it then closes the generators begun on it."""
    try:
        yield
    finally:
        connections.close()
        await asyncio.sleep(0)  # for sockets are closed in the next round of the loop


@functools.cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


class _State:
    """The connections of this process, by the identity of their loop."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: weakref.WeakValueDictionary[int, Connections] = weakref.WeakValueDictionary()


_state = _State()

# A forked child shares its parent's sockets: to close one there could take it from the parent.
_orphans: list[object] = []


def _after_fork() -> None:
    global _state
    _orphans.append(list(_state.known.values()))
    _state = _State()  # another thread of the parent may have held the lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
