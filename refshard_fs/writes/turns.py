"""Writers of one process: how much is under way at a time, who writes which object, and which versions it put."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from refshard_fs.model import Facts

__all__ = ["Ours", "Room", "ours", "turn"]

REMEMBERED: Final = 1 << 14  # versions that this process wrote


class Room:
    """Lets in what weighs together no more than ``capacity``, and anything heavier alone."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._taken = 0
        self._changed = threading.Condition()

    def within(self, weight: int, job: Callable[[], None]) -> None:
        weight = min(weight, self._capacity)
        with self._changed:
            self._changed.wait_for(lambda: self._taken + weight <= self._capacity)
            self._taken += weight
        try:
            job()
        finally:
            with self._changed:
                self._taken -= weight
                self._changed.notify_all()


class Ours:
    """The versions of objects that this process put last: who has read an earlier one is in no conflict with these."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Facts] = OrderedDict()

    def put(self, url: str, facts: Facts) -> None:
        with self._lock:
            self._known[url] = facts
            self._known.move_to_end(url)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def clear(self) -> None:
        """Know of none, whichever thread held the lock."""
        self._lock = threading.Lock()
        self._known.clear()

    def update(self, made: Mapping[str, Facts | None]) -> None:
        """Take note of what was put, by URL, as far as it is known."""
        for url, facts in made.items():
            if facts is not None:
                self.put(url, facts)

    def get(self, url: str) -> Facts | None:
        return self._known.get(url)


ours = Ours()
_turns: weakref.WeakValueDictionary[str, _Turn] = weakref.WeakValueDictionary()
_turns_lock = threading.Lock()


class _Turn:
    def __init__(self) -> None:
        self.lock = threading.Lock()


@contextlib.contextmanager
def turn(url: str) -> Iterator[None]:
    """Wait until nobody else in this process writes the object at ``url``."""
    with _turns_lock:
        found = _turns.get(url)
        if found is None:
            found = _turns[url] = _Turn()
    with found.lock:
        yield


def _after_fork() -> None:
    global _turns_lock
    _turns_lock = threading.Lock()
    ours.clear()
    _turns.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
