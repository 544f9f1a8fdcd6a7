"""Remove the drafts that killed writers left beside local files.

A writer locks its draft and keeps writing to it. The lock shows a process on this machine that its writer is still at
work. The time of the last write shows the same to other machines, which may share the disk but not the locks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from typing import Final

from refshard_fs.targets.local import is_draft

UNTOUCHED: Final = 3600.0  # seconds: a draft is stale if it is not locked, and has not changed for this time


def lock_draft(descriptor: int) -> None:
    """Lock a draft until ``descriptor`` is closed, if the platform and the disk support locks."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def lock_draft_directory(path: str) -> Iterator[None]:
    """Lock a draft that is a directory, during the ``with`` block."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows cannot open directories
        yield
        return
    try:
        lock_draft(descriptor)
        yield
    finally:
        os.close(descriptor)


def remove_stale_drafts(folder: str, name: str) -> None:
    """Remove the stale drafts of the file or directory ``name`` in ``folder``.

    With an empty ``name``, remove all stale drafts there. Errors of the disk are ignored.
    """
    with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in entries:
            if (not name or entry.name.startswith(name + ".")) and is_draft(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_stale(entry.path)


def _remove_if_stale(path: str) -> None:
    if os.path.islink(path) or time.time() - _find_last_change(path) < UNTOUCHED or not _is_unlocked(path):
        return
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _find_last_change(path: str) -> float:
    """Return the time of the last change of a file, or of anything in a directory."""
    times = [os.stat(path).st_mtime]
    for folder, _, names in os.walk(path):
        times += [os.lstat(os.path.join(folder, name)).st_mtime for name in (".", *names)]
    return max(times)


def _is_unlocked(path: str) -> bool:
    try:
        import fcntl
    except ImportError:
        return True  # Windows does not remove open files
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
