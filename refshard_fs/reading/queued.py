"""How many reads wait behind those that were asked for, as the tasks of the event loop tell. No I/O here.

Who reads many chunks makes a task of each, and lets some of them at a time past a semaphore, as zarr does: the tasks
that wait there, and run the same coroutine as those that have come through, are the reads that follow.
"""

from __future__ import annotations

import asyncio
import weakref
from types import CoroutineType
from typing import Any

__all__ = ["Queued"]

_ENTERING = (asyncio.Semaphore.__aenter__.__code__, asyncio.Semaphore.acquire.__code__)
WITNESSES = 8  # of the tasks that wait: while one of them does, so do those behind it


class Queued:
    """The reads that follow on the running loop; to be used from that loop only."""

    def __init__(self) -> None:
        self._asking: weakref.ref[asyncio.Task[Any]] | None = None
        self._left = 0
        self._witnesses: list[weakref.ref[asyncio.Task[Any]]] = []

    def asked(self) -> None:
        """Take note of the running task: it asks for what is read next."""
        task = asyncio.current_task()
        self._asking = None if task is None else weakref.ref(task)

    def came(self, count: int) -> None:
        """Take note of ``count`` reads that were asked for."""
        self._left -= count

    def count(self) -> int | None:
        """Return how many reads wait, of whatever array; None if that is not known."""
        if self._left > 0 and any(_waits(witness()) for witness in self._witnesses):
            return self._left
        task = None if self._asking is None else self._asking()
        code = None if task is None else _code(task.get_coro())
        if code is None:
            return None
        waiting = [t for t in asyncio.all_tasks() if _code(t.get_coro()) is code and _waits(t)]
        self._left = len(waiting)
        self._witnesses = [weakref.ref(t) for t in waiting[:WITNESSES]]
        return self._left


def _code(coroutine: object) -> object:
    return coroutine.cr_code if isinstance(coroutine, CoroutineType) else None


def _waits(task: asyncio.Task[Any] | None) -> bool:
    """Whether ``task`` has not begun, or waits for a semaphore."""
    if task is None or task.done():
        return False
    coroutine = task.get_coro()
    if not isinstance(coroutine, CoroutineType) or coroutine.cr_running:
        return False
    awaited = coroutine.cr_await
    return awaited is None or _code(awaited) in _ENTERING
