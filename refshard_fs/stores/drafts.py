"""Replace local files atomically: write a draft beside the file, sync it, rename it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from refshard_fs.errors import sanitize
from refshard_fs.stores.stale_drafts import lock_draft
from refshard_fs.targets.local import make_draft_name

_HAS_OWNERS: Final = hasattr(os, "geteuid")  # Windows has no POSIX owners and modes


@contextlib.contextmanager
def replace_file(path: str, *, check: Callable[[], object] | None = None, durable: bool = False) -> Iterator[BinaryIO]:
    """Yield a draft that replaces ``path`` when the block ends without an error, and is removed otherwise.

    ``check()`` runs just before the rename; if it raises, ``path`` stays as it was. ``durable`` syncs the content
    before the rename, and the directory after it. A link at ``path`` is replaced, not followed: `resolve_path_to_write`
    resolves links. The draft is never readable by users who may not read the file that it replaces.
    """
    draft, replaced = make_draft_name(path), _find_status_of_replaced(path)
    if replaced is not None and stat.S_ISDIR(replaced.st_mode):
        raise IsADirectoryError(
            f"{sanitize(path)} is a directory: expected the path of a file to write, for example one in that directory"
        )
    mode = 0o666 if replaced is None else 0o600  # the umask decides the mode of a new file
    try:
        with open(os.open(draft, _DRAFT_FLAGS, mode), "wb") as file:
            lock_draft(file.fileno())
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        _copy_mode(path, draft)
        if check is not None:
            check()
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise
    if durable:
        sync_file(os.path.dirname(path) or ".")


_DRAFT_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def _copy_mode(path: str, draft: str) -> None:
    """Copy the mode and the group of ``path`` to ``draft``, unless ``path`` is a link, or does not exist."""
    found = _find_status_of_replaced(path)
    if found is None:
        return
    mode = stat.S_IMODE(found.st_mode) & (0o7777 if stat.S_ISDIR(found.st_mode) else 0o777)
    if _HAS_OWNERS and os.stat(draft).st_gid != found.st_gid:
        try:
            os.chown(draft, -1, found.st_gid)
        except PermissionError:
            mode &= 0o707  # the draft keeps another group, whose members had no rights to the file
    os.chmod(draft, mode)


def _find_status_of_replaced(path: str) -> os.stat_result | None:
    """Return the status of the file or directory at ``path``; None for a link, and if nothing exists."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if stat.S_ISLNK(found.st_mode) else found


def replace_directory(path: str, draft: str) -> None:
    """Replace the directory ``path`` by ``draft``, a directory beside it."""
    _copy_mode(path, draft)
    if _exchange(path, draft):
        shutil.rmtree(draft)
        return
    old = make_draft_name(path)
    os.rename(path, old)
    try:
        os.rename(draft, path)
    except BaseException:
        os.rename(old, path)
        raise
    shutil.rmtree(old)


def _exchange(one: str, other: str) -> bool:
    """Exchange two directories in one step, so that a killed process leaves both; return False if not possible."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    arguments = _HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE
    return rename is not None and rename(*arguments) == 0


_HERE: Final = -100  # AT_FDCWD
_RENAME_EXCHANGE: Final = 2


def sync_file(path: str) -> None:
    """Write a file, or the names in a directory, to the disk, if the platform supports this."""
    with contextlib.suppress(OSError):  # Windows cannot open directories
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
