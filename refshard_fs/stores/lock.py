"""The lock of a local directory, for commits.

An advisory lock belongs to an open file, which a forked process has as well: it is given up, not only closed, and the
child closes its own at once. So a child that lives on holds no lock of a commit that ended, or of a parent that died.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from refshard_fs.core.forks import in_child

_held: Final[set[int]] = set()  # descriptors of this process


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Hold the lock of a local directory, which is made if there is none, where the platform has such locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # who held the lock has just removed it
            continue
        _held.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, folder):
                yield
                return
        finally:
            if descriptor in _held:  # else it was closed: the lock is the parent's
                _held.discard(descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)


def _is_at(descriptor: int, folder: str) -> bool:
    """Whether an open directory is the one at ``folder``: who had its lock before may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False


def _after_fork() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


in_child(_after_fork)
