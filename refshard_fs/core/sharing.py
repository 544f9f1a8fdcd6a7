"""Share steps between look-ups on any threads and event loops, so that the steps run only once. No I/O here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.model import Need, Steps

T = TypeVar("T")


class _SharedSteps(Generic[T]):
    """Steps that several look-ups follow. The first look-up with the answer to a need continues the steps for all."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._lock = fork_safe(threading.Lock())
        self._process = os.getpid()
        self._turn = 0
        self._need: Need | tuple[Need, ...] | None = None
        self._result: T
        self._error: Exception | None = None  # an error of the steps themselves, which each look-up raises
        self.is_over = False

    @property
    def is_of_parent(self) -> bool:
        """Whether these steps belong to the parent of a forked process, where a thread may be running them."""
        return self._process != os.getpid()

    def follow(self) -> Steps[tuple[T, ...]]:
        """Return the result in a tuple; an empty tuple if another look-up's read failed: the caller may retry."""
        with self._lock:
            if not self._turn and not self.is_over:
                self._advance(None)
        while True:
            with self._lock:
                if self.is_over:
                    return self._get_results()
                need, turn = self._need, self._turn
            assert need is not None, "unfinished steps have a need"
            error: Exception | None = None
            try:
                answer = yield need
            except Exception as e:  # noqa: BLE001  # the steps may handle the error, for example if a listing fails
                error = e
            with self._lock:
                if self._is_at(turn):
                    self._advance(answer if error is None else error)
                elif error is not None and self._has_failed():
                    raise error

    def _is_at(self, turn: int) -> bool:
        """Return whether the steps are not over, and no other look-up has continued them since ``turn``."""
        return self._turn == turn and not self.is_over

    def _has_failed(self) -> bool:
        """Return whether a failed read of another look-up has ended the steps."""
        return self.is_over and self._error is None and not hasattr(self, "_result")

    def _get_results(self) -> tuple[T, ...]:
        if self._error is not None:
            raise self._error
        return (self._result,) if hasattr(self, "_result") else ()

    def _advance(self, answer: Any) -> None:
        """Send ``answer`` to the steps, or raise it in them if it is an error."""
        try:
            self._need = self._steps.throw(answer) if isinstance(answer, Exception) else self._steps.send(answer)
        except StopIteration as stop:
            self._result = stop.value
            self.is_over = True
        except Exception as e:  # other look-ups that wait for the result raise an error of the steps, too
            self.is_over = True
            if not isinstance(answer, Exception):
                self._error = e
            raise
        self._turn += 1


class Sharing:
    """The steps that are running, by a key. Thread-safe; a forked child does not share steps of its parent."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._under_way: dict[Hashable, _SharedSteps[Any]] = {}

    def run_once(self, key: Hashable, known: Callable[[], T | None], make: Callable[[], Steps[T]]) -> Steps[T]:
        """Return ``known()`` if it is not None; else run the steps ``make()``, once for all concurrent callers.

        ``key`` identifies the steps. The steps must store their result, so that ``known()`` returns it later.
        """
        while True:
            with self._lock:
                found = known()
                if found is not None:
                    return found
                shared = self._under_way.get(key)
                if shared is None or shared.is_of_parent:
                    shared = self._under_way[key] = _SharedSteps(make())
            try:
                results: tuple[T, ...] = yield from shared.follow()
            finally:
                with self._lock:
                    if shared.is_over and self._under_way.get(key) is shared:
                        del self._under_way[key]
            if results:
                return results[0]
