"""Resolve the local path of a write. Links of other users, and links inside a hierarchy, are refused."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from refshard_fs.errors import sanitize

_HAS_OWNERS: Final = hasattr(os, "geteuid")  # Windows has no POSIX owners and modes
_MOST_LINKS: Final = 40  # links in a path: the limit of Linux


def resolve_path_to_write(path: str, root: str | None = None) -> str:
    """Return ``path`` with the links on the way to ``root`` resolved; ``path`` is ``root`` (the default) or below it.

    On the way to ``root``, links of the user and of the system are followed; a link of another user raises
    PermissionError, because that user would choose the file to overwrite. Below ``root`` every link raises
    PermissionError, because a downloaded hierarchy may contain links.
    """
    if not _HAS_OWNERS:
        return os.path.realpath(path)
    root = path if root is None else root
    place = _resolve(root)
    for step in path[len(root) :].split("/")[1:-1]:
        place = os.path.join(place, step)
        if os.path.islink(place):
            raise PermissionError(
                f"{sanitize(place)} is a symbolic link inside the hierarchy that is written to: expected a directory. "
                f"Nothing is written or removed behind links: to write there, open {sanitize(os.path.realpath(place))} "
                "itself"
            )
    return os.path.join(place, os.path.basename(path)) if path != root else place


def _resolve(path: str) -> str:
    """Return ``path`` with its links resolved; PermissionError at a link of another user."""
    place, links = "/", 0
    left = os.path.abspath(path).split("/")[::-1]
    while left:
        step = left.pop()
        if step in ("", "."):
            continue
        if step == "..":
            place = os.path.dirname(place)
            continue
        place = os.path.join(place, step)
        try:
            found = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISLNK(found.st_mode):
            continue
        target = os.readlink(place)
        if found.st_uid not in (0, os.geteuid()):
            raise PermissionError(
                f"{sanitize(place)} is a symbolic link of another user (number {found.st_uid}): writes follow only "
                f"links of yours and of the system. To write to its target, pass that path: {sanitize(target)}"
            )
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        place = "/" if target.startswith("/") else os.path.dirname(place)
        left += target.split("/")[::-1]
    return place
