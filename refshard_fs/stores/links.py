"""Where a write to a local path goes: links of others, and links inside of what is written to, are not followed."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from refshard_fs.errors import told

_HAS_OWNERS: Final = hasattr(os, "geteuid")  # Windows has rights of another kind
_MOST_LINKS: Final = 40  # in a path, as on Linux


def path_to_write(path: str, root: str | None = None) -> str:
    """Return where a write to ``path`` goes; it is the directory ``root`` or below it (by default: just that path).

    Links of the user and of the system lead to ``root``. Raises PermissionError at a link of another user there, who
    would choose what is overwritten, and at any link below: a hierarchy may come from elsewhere, links included.
    """
    if not _HAS_OWNERS:
        return os.path.realpath(path)
    root = path if root is None else root
    place = _without_links(root)
    for step in path[len(root) :].split("/")[1:-1]:
        place = os.path.join(place, step)
        if os.path.islink(place):
            raise PermissionError(
                f"{told(place)} is a symbolic link inside of what is written to: expected a folder. Nothing is written "
                f"or removed behind it; open {told(os.path.realpath(place))} itself if you mean that"
            )
    return os.path.join(place, os.path.basename(path)) if path != root else place


def _without_links(path: str) -> str:
    """Return ``path`` with its links resolved, all of which are the user's or the system's."""
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
                f"{told(place)} is a symbolic link of another user (number {found.st_uid}), which is not followed in "
                f"writing. Give the path that it leads to, {told(target)}, if you mean that"
            )
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        place = "/" if target.startswith("/") else os.path.dirname(place)
        left += target.split("/")[::-1]
    return place
