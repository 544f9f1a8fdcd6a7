"""Time limits for what tasks await: `asyncio.timeout`, but that all of a loop's share one timer.

A request is over long before its limit. To set and cancel a timer for each would cost more
than all else that is done for a request here, and the loop would sift through them.
"""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

__all__ = ["Deadline", "Deadlines"]


class Deadlines:
    """The limits that hold on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._live: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf  # when the timer ends

    def at(self, when: float) -> Deadline:
        """Return a context whose body is cancelled at ``when``, a time of the loop, and leaves as TimeoutError."""
        return Deadline(self, when)

    def add(self, deadline: Deadline) -> None:
        self._live.add(deadline)
        if deadline.when < self._next:
            self._wait(deadline.when)

    def discard(self, deadline: Deadline) -> None:
        self._live.discard(deadline)

    def _wait(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = when
        self._timer = self._loop.call_at(when, self._end)

    def _end(self) -> None:
        now = self._loop.time()
        self._timer, self._next = None, math.inf
        for deadline in [d for d in self._live if d.when <= now]:
            self._live.discard(deadline)
            deadline.expire()
        if self._live:
            self._wait(min(d.when for d in self._live))


class Deadline:
    """One limit; ``passed`` tells whether it was reached."""

    __slots__ = ("_cancelling", "_owner", "_task", "passed", "when")

    def __init__(self, owner: Deadlines, when: float) -> None:
        self._owner = owner
        self.when = when
        self.passed = False

    def __enter__(self) -> Deadline:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a Deadline holds inside of a task only")
        self._task = task
        self._cancelling = task.cancelling()
        self._owner.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner.discard(self)
        # Somebody else's cancellation, made at the same time, stays one.
        if self.passed and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        self.passed = True
        self._task.cancel()
