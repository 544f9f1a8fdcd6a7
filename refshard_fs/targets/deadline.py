"""A time limit for what a task awaits: `asyncio.timeout` at a third of its price, which every request pays."""

from __future__ import annotations

import asyncio
from types import TracebackType

__all__ = ["Deadline"]


class Deadline:
    """Cancels the body of its ``with`` at ``when``, a time of the running loop: that leaves as TimeoutError."""

    __slots__ = ("_cancelling", "_handle", "_task", "passed", "when")

    def __init__(self, when: float) -> None:
        self.when = when
        self.passed = False

    def __enter__(self) -> Deadline:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a Deadline holds inside of a task only")
        self._task = task
        self._cancelling = task.cancelling()
        self._handle = asyncio.get_running_loop().call_at(self.when, self._expire)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.cancel()
        # Somebody else's cancellation, made at the same time, stays one.
        if self.passed and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        self.passed = True
        self._task.cancel()
