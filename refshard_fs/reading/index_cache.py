"""Decoded indexes in files, for all processes of one user: found by content, read into memory, never trusted.

Files are not mapped: a file that a full disk, a sync tool or another host of a network file system cuts short while it
is mapped ends the process (SIGBUS), and a private mapping does not help.

A file is written aside and renamed into place, so that no reader sees a part of it; nobody changes it after that. Its
name is a digest of what the index was made from: of a source's URL nothing else is kept. The name is in the checksum,
too, so that nobody who may rename files has one source served what was kept of another. A directory that others may
write to is not used, nor is anything in it but plain files. A file that cannot be read, written or believed counts as
absent.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Final

from refshard_fs.core.checksums import crc32c

_MAGIC: Final = b"refindx4"
_END: Final = struct.Struct("<8sQQ")  # what a file ends with: magic, the length of what is before, and its checksum
_PIECE: Final = 1 << 18  # bytes of a file that are checked at a time

CAPACITY: Final = 2 << 30  # bytes of all files together; the least recently used go first
SUFFIX: Final = ".refindex"
_HAS_OWNERS: Final = hasattr(os, "getuid")  # Windows has rights of another kind
SHARED: Final = 64  # processes may write at a time: each takes this part of what is free before it looks again
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


_free: Final[dict[tuple[Path, int], int]] = {}  # bytes that this process may write before it looks, by directory


class IndexCache:
    """The files of one directory, which is made when it is first written to.

    With ``everything`` all indexes are to be kept there, else those that are worth it.
    """

    def __init__(
        self, directory: str | os.PathLike[str], capacity: int = CAPACITY, *, everything: bool = False
    ) -> None:
        self.directory = Path(directory)
        self.capacity = capacity
        self.everything = everything

    def get(self, name: str) -> memoryview | None:
        """Return what is kept under ``name``; None if nothing is that this user wrote, and that is whole."""
        path = self._path(name)
        try:
            if not is_private(self.directory):
                return None
            with open(path, "rb", buffering=0, opener=open_as_it_is) as file:
                found_stat = os.fstat(file.fileno())
                if not is_own_file(found_stat):
                    return None
                if found_stat.st_size > self.capacity:
                    return None
                found = _checked(file, found_stat.st_size, name)
        except OSError:
            return None
        if found is not None:
            with contextlib.suppress(OSError):
                os.utime(path)  # used now
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
        length = sum(memoryview(piece).nbytes for piece in pieces)
        size = length + _END.size
        if size > self.capacity:
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(self.directory):
            return
        self._make_room(size)
        descriptor, aside = tempfile.mkstemp(".tmp", name[:16] + "-", self.directory)  # readable by this user alone
        try:
            with open(descriptor, "wb") as file:
                check = crc32c(name.encode())
                for piece in pieces:
                    file.write(piece)
                    check = crc32c(memoryview(piece).cast("B"), check)
                file.write(_END.pack(_MAGIC, length, check))
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self._path(name))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise

    def _make_room(self, size: int) -> None:
        known = (self.directory, self.capacity)
        _free[known] = _free.get(known, 0) - size
        if _free[known] >= 0:  # to look at each of thousands of small files before each is written takes minutes
            return
        files = sorted(self._files(), key=lambda file: file[1])
        total = size + sum(length for _, _, length in files)
        for path, _, length in files:
            if total <= self.capacity:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
                total -= length
        _free[known] = max(self.capacity - total, 0) // SHARED

    def _files(self) -> Iterator[tuple[str, float, int]]:
        """Yield path, time of last use and size of each file, unfinished ones too; those that are old go at once."""
        with os.scandir(self.directory) as entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # another process was faster
                if entry.name.endswith(".tmp") and time.time() - found.st_mtime > STALE:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)
                elif entry.name.endswith((SUFFIX, ".tmp")):
                    yield entry.path, found.st_mtime, found.st_size


def is_private(directory: str | os.PathLike[str]) -> bool:
    """Whether nobody else may put files into ``directory``, or take it away by a link in its place."""
    found = os.lstat(directory)
    return stat.S_ISDIR(found.st_mode) and _is_ours(found) and not (_HAS_OWNERS and found.st_mode & 0o022)


def open_as_it_is(path: str, flags: int) -> int:
    """Open a file, and follow no link; a pipe is not waited for."""
    return os.open(path, flags | _AS_IT_IS, 0o600)


def is_own_file(found: os.stat_result) -> bool:
    """Whether this is a plain file of this user."""
    return stat.S_ISREG(found.st_mode) and _is_ours(found)


_AS_IT_IS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def _is_ours(found: os.stat_result) -> bool:
    return not _HAS_OWNERS or found.st_uid == os.getuid()


def _checked(file: FileIO, size: int, name: str) -> memoryview | None:
    """Return what is in ``file``, of ``size`` bytes, before its end; None if it is not as it was written."""
    data = memoryview(bytearray(size))
    check, got, length = crc32c(name.encode()), 0, size - _END.size
    while got < size:  # checked while it is in the processor's cache
        count = file.readinto(data[got : got + _PIECE])
        if not count:
            return None
        check = crc32c(data[got : min(got + count, max(length, 0))], check)
        got += count
    whole = length > 0 and data[length:] == _END.pack(_MAGIC, length, check)
    return data[:length].toreadonly() if whole else None
