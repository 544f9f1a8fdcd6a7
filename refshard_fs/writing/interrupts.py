"""Commits that no signal cuts in two: what handlers raise (as Ctrl-C does) stops them where they can be undone.

Handlers run in the main thread, between any two instructions: pools would be left at work, locks unheld, and what is
known of a request would be lost. So a commit of the main thread is made in another one, for which the main one waits.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

__all__ = ["Stop", "to_its_end"]

T = TypeVar("T")


class Stop:
    """Whether a commit is to be stopped."""

    def __init__(self) -> None:
        self.is_set = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if so."""
        if self.is_set:
            raise KeyboardInterrupt


class _Work(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.made: list[T] = []
        self.error: BaseException | None = None
        self.has_ended = False
        self._ended: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        try:
            self.made.append(self._work())
        except BaseException as e:  # noqa: BLE001  # raised again, by who waits
            self.error = e
        self.has_ended = True
        self._ended.put(None)

    def wait(self) -> None:
        """Return when it has ended. Not by `Thread.join`: interrupted, that takes the thread for ended before 3.13."""
        if not self.has_ended:
            self._ended.get()


def to_its_end(work: Callable[[], T], stop: Stop) -> T:
    """Do ``work``; what is raised from outside of it meanwhile lets it ``stop``, and is raised when it has."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    under_way = _Work(work)
    thread = threading.Thread(target=contextvars.copy_context().run, args=(under_way.run,), name="refshard-commit")
    try:
        try:
            thread.start()
        except RuntimeError:  # none can be started when the interpreter ends
            return work()
        under_way.wait()
    except BaseException as e:
        stop.is_set = True
        while thread.ident is not None and not under_way.has_ended:
            with contextlib.suppress(KeyboardInterrupt):  # it was told to stop
                under_way.wait()
        if under_way.made:
            e.add_note("It is made all the same.")
        for note in getattr(under_way.error, "__notes__", ()):
            e.add_note(note)
        raise
    if under_way.error is not None:
        raise under_way.error
    return under_way.made[0]
