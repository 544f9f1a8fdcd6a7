"""How many reads wait behind those that were asked for, as the tasks of the event loop tell. No I/O here.

Who reads many chunks makes a task of each, and lets some of them at a time past a semaphore, as zarr does: the tasks
that wait there, and run the same coroutine as those that have come through, are the reads that follow.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from types import CoroutineType
from typing import Any

__all__ = ["Queued"]

_NEW, _WAITS = object(), object()
_ENTERING = (asyncio.Semaphore.__aenter__.__code__, asyncio.Semaphore.acquire.__code__)
WITNESSES = 8  # of the tasks that wait: while one of them does, so do those behind it


class Queued:
    """The reads that follow on the running loop; to be used from that loop only."""

    def __init__(self) -> None:
        self._asking: weakref.ref[asyncio.Task[Any]] | None = None
        self._left = 0
        self._begins = False  # a call of which nothing is known yet
        self._witnesses: list[weakref.ref[asyncio.Task[Any]]] = []

    def asked(self) -> None:
        """Take note of the running task: it asks for what is read next."""
        task = asyncio.current_task()
        self._asking = None if task is None else weakref.ref(task)

    def came(self) -> None:
        """Take note that a read was asked for."""
        if self._left:
            self._left -= 1
        else:
            self._begins = True

    def count(self) -> int | None:
        """Return how many reads wait, of whatever array; None if that is not known."""
        if self._left:
            if not any(_state(witness()) is _WAITS for witness in self._witnesses):
                self._left = min(self._left, sum(state is not None for _, state in self._family()))
            return self._left
        if not self._begins:
            return 0
        task = None if self._asking is None else self._asking()
        if task is None or _code(task.get_coro()) is None:
            return None
        self._begins = False
        # Tasks that have not begun are those of a reader's other work: its own have got as far as the semaphore.
        waiting = [task for task, state in self._family() if state is _WAITS]
        self._left = len(waiting)
        self._witnesses = [weakref.ref(task) for task in waiting[:WITNESSES]]
        return self._left

    def _family(self) -> Iterator[tuple[asyncio.Task[Any], object]]:
        """Yield the tasks that run what the asking one runs, and whether they wait."""
        asking = None if self._asking is None else self._asking()
        code = None if asking is None else _code(asking.get_coro())
        for task in asyncio.all_tasks() if code is not None else ():
            if _code(task.get_coro()) is code:
                yield task, _state(task)


def _code(coroutine: object) -> object:
    return coroutine.cr_code if isinstance(coroutine, CoroutineType) else None


def _state(task: asyncio.Task[Any] | None) -> object:
    """Return _NEW or _WAITS if ``task`` has not begun, or waits for a semaphore; else None."""
    coroutine = None if task is None or task.done() else task.get_coro()
    if not isinstance(coroutine, CoroutineType) or coroutine.cr_running:
        return None
    if coroutine.cr_await is None:
        return _NEW
    return _WAITS if _code(coroutine.cr_await) in _ENTERING else None
