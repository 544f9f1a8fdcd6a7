"""A local file that takes its place when it is whole: written aside, made durable, renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from refshard_fs.targets.local import draft_of

_HAS_OWNERS: Final = hasattr(os, "geteuid")  # Windows has rights of another kind


@contextlib.contextmanager
def replacing(path: str, *, check: Callable[[], object] | None = None, durable: bool = False) -> Iterator[BinaryIO]:
    """Give a file that becomes ``path`` when the block ends without an error, and else disappears.

    ``check()`` is called just before; what it raises leaves ``path`` as it was. ``durable``: the file, and its name,
    are on the disk before and after that. ``path`` is replaced even if it is a link: `path_to_write` resolves those.
    Nobody may read the draft who may not read the file that it replaces.
    """
    draft = draft_of(path)
    mode = 0o666 if _replaced(path) is None else 0o600  # of a new file, the umask decides
    try:
        with open(os.open(draft, _DRAFT_FLAGS, mode), "wb") as file:
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
    """Let ``draft`` have the mode and the group of ``path``, if that exists."""
    found = _replaced(path)
    if found is None:
        return
    mode = stat.S_IMODE(found.st_mode) & 0o777
    if _HAS_OWNERS and os.stat(draft).st_gid != found.st_gid:
        try:
            os.chown(draft, -1, found.st_gid)
        except PermissionError:
            mode &= 0o707  # it has another group than the file had, whose members were not meant
    os.chmod(draft, mode)


def _replaced(path: str) -> os.stat_result | None:
    """Return what is known of the file or folder at ``path``; None of a link, and if there is none."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if stat.S_ISLNK(found.st_mode) else found


def replace_directory(path: str, draft: str) -> None:
    """Let the directory ``draft``, which lies beside it, take the place of ``path``."""
    old = draft_of(path)
    _copy_mode(path, draft)
    os.rename(path, old)
    try:
        os.rename(draft, path)
    except BaseException:
        os.rename(old, path)
        raise
    shutil.rmtree(old)


def sync_file(path: str) -> None:
    """See that a file, or the names in a directory, are on the disk, where the platform lets one."""
    with contextlib.suppress(OSError):  # Windows opens no directories
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
