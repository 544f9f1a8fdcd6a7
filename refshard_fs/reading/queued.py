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
MANY = 1024  # tasks from which on they are not gone through for each that asks, where none waits:
SELDOM = 64  # but for one in so many times fewer


class Queued:
    """The reads that follow on the running loop; to be used from that loop only."""

    def __init__(self) -> None:
        self._asking: weakref.ref[asyncio.Task[Any]] | None = None
        self._semaphores: list[weakref.ref[asyncio.Semaphore]] = []  # that reads were seen to wait for
        self._left = 0  # of those reads, as many as have not come
        self._together = 0  # reads that came in this tick, none of which was known to follow
        self._passed = 0  # of the known ones, as many as may have gone past the semaphore and not come yet
        self._begins = False  # a call of which nothing is known yet
        self._rest = 0  # tasks that ask before reads that wait are looked for again

    def asked(self) -> None:
        """Take note of the running task: it asks for what is read next."""
        task = asyncio.current_task()
        self._asking = None if task is None else weakref.ref(task)
        self._rest -= self._rest > 0
        self._together = 0

    def came(self) -> None:
        """Take note that a read was asked for."""
        if self._left:
            self._left -= 1
        else:
            self._begins = True
            self._together += 1

    def count(self) -> int | None:
        """Return how many reads wait behind those of one selection; None if that is not known.

        Of several selections that are read at once it is the mean.
        """
        # The semaphores know it at once: to go through all tasks takes longer than to read, where they are thousands.
        if self._left:
            return self._waiting()
        if not self._begins or self._rest:
            return 0
        task = None if self._asking is None else self._asking()
        code = None if task is None else _code(task.get_coro())
        if code is None:
            return None
        self._begins, self._passed = False, 1 + self._together
        tasks = asyncio.all_tasks()
        found = {id(s): s for task in tasks if (s := _awaited(task, code)) is not None}
        self._semaphores = [weakref.ref(semaphore) for semaphore in found.values()]
        if not found and len(tasks) > MANY:
            self._rest = len(tasks) // SELDOM
        self._left = sum(map(_waiters, self._semaphores))
        return self._waiting()

    def _waiting(self) -> int:
        self._semaphores = [ref for ref in self._semaphores if ref() is not None]
        found = list(map(_waiters, self._semaphores))
        selections = sum(count > 0 for count in found)
        # Fewer may come: what the references hold is not asked for. Who has passed a semaphore keeps it alive.
        self._left = min(self._left, sum(found) + self._passed) if found else 0
        return -(-self._left // max(selections, 1))


def _waiters(semaphore: weakref.ref[asyncio.Semaphore]) -> int:
    # It has no public name. If this one goes, nothing is known to follow, and only what earlier calls read is a sign.
    return len(getattr(semaphore(), "_waiters", None) or ())


def _code(coroutine: object) -> object:
    return coroutine.cr_code if isinstance(coroutine, CoroutineType) else None


def _awaited(task: asyncio.Task[Any], code: object) -> asyncio.Semaphore | None:
    """Return the semaphore that ``task`` waits for, if it runs ``code``.

    Tasks that have not begun are those of a reader's other work: its own have got as far as the semaphore.
    """
    coroutine = task.get_coro()
    if not isinstance(coroutine, CoroutineType) or coroutine.cr_code is not code:
        return None
    entering = coroutine.cr_await
    if not isinstance(entering, CoroutineType) or entering.cr_code not in _ENTERING or entering.cr_frame is None:
        return None
    found = entering.cr_frame.f_locals.get("self")
    return found if isinstance(found, asyncio.Semaphore) else None
