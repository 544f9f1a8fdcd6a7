"""Steps that many look-ups take together, on whatever threads and event loops: each is taken once. No I/O here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from refshard_fs.core.forks import fork_safe
from refshard_fs.core.model import Need, Steps

T = TypeVar("T")


class _Shared(Generic[T]):
    """Steps under way. The first look-up that has the answer to their need goes on with it, for all."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._lock = fork_safe(threading.Lock())
        self._process = os.getpid()
        self._turn = 0
        self._need: Need | tuple[Need, ...] | None = None
        self._result: T
        self._error: Exception | None = None  # that the steps raised by themselves: everybody would meet it
        self.is_over = False

    @property
    def is_of_parent(self) -> bool:
        """Whether a thread of the process that forked this one may have been within the steps."""
        return self._process != os.getpid()

    def follow(self) -> Steps[tuple[T, ...]]:
        """Return the result in a tuple; an empty one if another look-up met an error, which need not be this one's."""
        with self._lock:
            if not self._turn and not self.is_over:
                self._advance(None)
        while True:
            with self._lock:
                if self.is_over:
                    return self._results()
                need, turn = self._need, self._turn
            assert need is not None, "steps that are not over need something"
            error: Exception | None = None
            try:
                answer = yield need
            except Exception as e:  # noqa: BLE001  # the steps may go on, as where a directory cannot be listed
                error = e
            with self._lock:
                if self._waits(turn):
                    self._advance(answer if error is None else error)
                elif error is not None and self._has_failed():
                    raise error

    def _waits(self, turn: int) -> bool:
        return self._turn == turn and not self.is_over

    def _has_failed(self) -> bool:
        """Whether an error that another look-up met has ended the steps."""
        return self.is_over and self._error is None and not hasattr(self, "_result")

    def _results(self) -> tuple[T, ...]:
        if self._error is not None:
            raise self._error
        return (self._result,) if hasattr(self, "_result") else ()

    def _advance(self, answer: Any) -> None:
        """Send the steps an answer, or raise an error in them."""
        try:
            self._need = self._steps.throw(answer) if isinstance(answer, Exception) else self._steps.send(answer)
        except StopIteration as stop:
            self._result = stop.value
            self.is_over = True
        except Exception as e:
            self.is_over = True
            if not isinstance(answer, Exception):
                self._error = e
            raise
        self._turn += 1


class Sharing:
    """Steps under way by what they are for. Thread-safe; a forked child begins anew."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._under_way: dict[Hashable, _Shared[Any]] = {}

    def once(self, what: Hashable, known: Callable[[], T | None], make: Callable[[], Steps[T]]) -> Steps[T]:
        """Return ``known()`` if it is not None, else what the steps ``make()`` return, taken once for all who ask.

        The steps see to it that ``known()`` returns their result.
        """
        while True:
            with self._lock:
                found = known()
                if found is not None:
                    return found
                shared = self._under_way.get(what)
                if shared is None or shared.is_of_parent:
                    shared = self._under_way[what] = _Shared(make())
            try:
                results: tuple[T, ...] = yield from shared.follow()
            finally:
                with self._lock:
                    if shared.is_over and self._under_way.get(what) is shared:
                        del self._under_way[what]
            if results:
                return results[0]
