"""Connections let go of when their owner is: awaited where a loop still runs, and without it where none does.

fsspec has no way to say this. Its http and gcs instances keep a session, s3fs what made its client.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import weakref
from typing import Any

import aiohttp

from refshard_fs.targets.connections import Connections

__all__ = ["close_connections", "close_with"]


def close_with(owner: object, holder: Any) -> None:
    """See to it that when ``owner`` is collected, the connections of ``holder`` are closed; on a running loop."""
    weakref.finalize(owner, _abandon, holder, asyncio.get_running_loop(), os.getpid()).atexit = False
    _open[id(holder)] = holder


async def close_connections(holder: Any) -> None:
    """Close those of ``holder``: a session, or an fsspec instance, which opens new ones if it is used again."""
    if isinstance(holder, aiohttp.ClientSession):
        await holder.close()
        return
    session, creator = getattr(holder, "_session", None), getattr(holder, "_s3creator", None)
    if session is not None:
        holder._session = None
        await session.close()
    if creator is not None:
        holder._s3 = holder._s3creator = None
        await creator.__aexit__(None, None, None)


def _abandon(holder: Any, loop: asyncio.AbstractEventLoop, process: int) -> None:
    if process != os.getpid():
        return  # a forked child would take them from its parent
    if not loop.is_closed() and loop.is_running():
        if isinstance(holder, Connections):
            return  # others use them, or soon will
        # It may be another thread's.
        asyncio.run_coroutine_threadsafe(close_connections(holder), loop)
        return
    _cut(holder)


def _cut(holder: Any) -> None:
    if isinstance(holder, Connections):
        holder.close()
        return
    for session in _sessions(holder):
        if not session.closed and session.connector is not None:
            session.connector._close()  # nothing can be awaited any more


def _sessions(holder: Any) -> list[aiohttp.ClientSession]:
    if isinstance(holder, aiohttp.ClientSession):
        return [holder]
    client = getattr(holder, "_s3", None)
    http = getattr(getattr(client, "_endpoint", None), "http_session", None)
    found = [getattr(holder, "_session", None), *(getattr(http, "_sessions", None) or {}).values()]
    return [session for session in found if isinstance(session, aiohttp.ClientSession)]


_open: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id: fsspec's are equal too soon


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open.clear)


@atexit.register
def _at_exit() -> None:
    for holder in list(_open.values()):  # their loops' threads are about to stop, wherever they are
        _cut(holder)
