"""Support for forked children: free locks, and reset the state of modules."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

L = TypeVar("L")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def fork_safe(lock: L) -> L:
    """Make ``lock``, of `threading`, free in forked children, even if a thread of the parent holds it; return it."""
    _locks.add(lock)
    return lock


def call_in_child(reset: Callable[[], object]) -> None:
    """Call ``reset`` in each forked child, after locks are free; functions are called in the order of registration."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)


def _free_locks() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # `logging` and `threading` do the same with their locks


call_in_child(_free_locks)
