"""A local file that takes its place when it is whole: written aside, made durable, renamed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from typing import BinaryIO

__all__ = ["is_draft", "replacing", "sync_file"]

_DRAFT = re.compile(r"\.[0-9a-f]{32}\.tmp$")


def is_draft(path: str) -> bool:
    """Whether ``path`` is a file that has not taken its place: of a writer who is at it, or who was killed."""
    return path.endswith(".tmp") and _DRAFT.search(path) is not None


@contextlib.contextmanager
def replacing(path: str, *, check: Callable[[], object] | None = None, durable: bool = False) -> Iterator[BinaryIO]:
    """Give a file that becomes ``path`` when the block ends without an error, and else disappears.

    ``check()`` is called just before; what it raises leaves ``path`` as it was. ``durable``: the file, and its name,
    are on the disk before and after that.
    """
    draft = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open(draft, "xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if os.path.exists(path):
            shutil.copymode(path, draft)
        if check is not None:
            check()
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise
    if durable:
        sync_file(os.path.dirname(path) or ".")


def sync_file(path: str) -> None:
    """See that a file, or the names in a directory, are on the disk, where the platform lets one."""
    with contextlib.suppress(OSError):  # Windows opens no directories
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
