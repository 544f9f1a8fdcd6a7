"""Decoded indexes kept in files, for all processes of one user: found by content, mapped into memory, never trusted.

A file is written aside and renamed into place, so that no reader sees a part of it; nobody changes it after that. The
name is a digest of what it was made from: of a source's URL nothing else is kept. What cannot be read, written or
believed is as if it were not there: the cache makes nothing fail.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

__all__ = ["CAPACITY", "IndexCache", "default_directory"]

CAPACITY: Final = 2 << 30  # bytes of all files together; the least recently used go first
SUFFIX: Final = ".refindex"
STALE: Final = 3600  # seconds after which an unfinished file is nobody's


def default_directory() -> Path | None:
    """Return the directory for this user's caches on this platform; None where there is none."""
    try:
        match sys.platform:
            case "win32":
                base = os.environ.get("LOCALAPPDATA")
                return Path(base) / "refshard_fs" / "Cache" if base else None
            case "darwin":
                return Path.home() / "Library" / "Caches" / "refshard_fs"
        given = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "refshard_fs"
    except RuntimeError:  # nobody's home
        return None


class IndexCache:
    """The files of one directory, which is made when it is first written to."""

    def __init__(self, directory: str | os.PathLike[str], capacity: int = CAPACITY) -> None:
        self.directory = Path(directory)
        self.capacity = capacity

    def get(self, name: str) -> mmap.mmap | None:
        """Return the file kept under ``name``, mapped; None if there is none that this user wrote."""
        try:
            descriptor = os.open(
                self._path(name), os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
            )
        except OSError:
            return None
        try:
            if hasattr(os, "getuid") and os.fstat(descriptor).st_uid != os.getuid():
                return None
            found = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # ValueError: it is empty
            return None
        finally:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            os.utime(self._path(name))  # used now
        return found

    def put(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Keep ``parts``, joined, under ``name``; to no effect where that is not possible."""
        with contextlib.suppress(OSError):
            self._write(name, parts)

    def discard(self, name: str) -> None:
        """Forget ``name``."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(name))

    def _path(self, name: str) -> Path:
        return self.directory / (name + SUFFIX)

    def _write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        pieces = list(parts)
        size = sum(memoryview(piece).nbytes for piece in pieces)
        if size > self.capacity:
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room(size)
        descriptor, aside = tempfile.mkstemp(".tmp", name[:16] + "-", self.directory)  # readable by this user alone
        try:
            with open(descriptor, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self._path(name))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise

    def _make_room(self, size: int) -> None:
        files = sorted(self._files(), key=lambda file: file[1])
        total = size + sum(length for _, _, length in files)
        for path, _, length in files:
            if total <= self.capacity:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
                total -= length

    def _files(self) -> Iterator[tuple[str, float, int]]:
        """Yield path, time of last use and size of each file; unfinished ones that somebody left go at once."""
        with os.scandir(self.directory) as entries:
            for entry in entries:
                try:
                    stat = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # another process was faster
                if entry.name.endswith(SUFFIX):
                    yield entry.path, stat.st_mtime, stat.st_size
                elif entry.name.endswith(".tmp") and time.time() - stat.st_mtime > STALE:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)
