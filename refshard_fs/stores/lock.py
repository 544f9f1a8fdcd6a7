"""Lock a local directory while a commit changes it.

An advisory lock belongs to the open file description, which a forked child shares. So the parent unlocks before it
closes the descriptor, and a child closes its copies at once: otherwise a child would keep the lock of a commit that
has ended, or of a parent that has died.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from refshard_fs.core.forks import call_in_child

_held: Final[set[int]] = set()  # descriptors of the directories that this process has locked


@contextlib.contextmanager
def hold_lock(folder: str) -> Iterator[None]:
    """Hold the lock of a local directory, and create the directory if it is missing. On Windows, nothing is locked."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # the process that held the lock has just removed the directory
            continue
        _held.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_open_at(descriptor, folder):
                yield
                return
        finally:
            if descriptor in _held:  # otherwise this is a forked child, which has closed it: the parent has the lock
                _held.discard(descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)


def _is_open_at(descriptor: int, folder: str) -> bool:
    """Return whether an open directory is still at ``folder``: the previous holder of the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False


def _after_fork() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


call_in_child(_after_fork)
