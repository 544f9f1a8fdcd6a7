"""Who holds the lock of a local directory, or of what is in memory, keeps all others out who ask for it.

An advisory lock belongs to an open file, which a forked process has as well: it is given up, not only closed, and the
child closes its own at once. So a child that lives on holds no lock of a commit that ended, or of a parent that died.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Iterator
from typing import Final

__all__ = ["HAS_LOCKS", "in_memory", "locked"]

HAS_LOCKS: Final = importlib.util.find_spec("fcntl") is not None  # Windows has none
_held: Final[set[int]] = set()  # descriptors of this process
_in_memory = threading.RLock()


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Hold the lock of a local directory, where the platform has such locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    _held.add(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor in _held:  # else it was closed: the lock is the parent's
            _held.discard(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


@contextlib.contextmanager
def in_memory() -> Iterator[None]:
    """Hold the lock of all that is in memory."""
    with _in_memory:
        yield


def _after_fork() -> None:
    global _in_memory
    _in_memory = threading.RLock()
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
