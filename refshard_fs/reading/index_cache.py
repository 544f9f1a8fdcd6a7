"""Decoded indexes kept in files, for all processes of one user: found by content, mapped into memory, never trusted.

A file is written aside and renamed into place, so that no reader sees a part of it; nobody changes it after that. The
name is a digest of what it was made from: of a source's URL nothing else is kept. What cannot be read, written or
believed is as if it were not there: the cache makes nothing fail.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Final

__all__ = ["CAPACITY", "IndexCache", "default_directory"]

_MAGIC: Final = b"refindex"
_END: Final = struct.Struct("<8sQI")  # what a file ends with: magic, the length of what is before, its CRC-32
_STEP: Final = 1 << 18

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

    def get(self, name: str) -> memoryview | None:
        """Return what is kept under ``name``, mapped; None if nothing is that this user wrote, and that is whole."""
        path = self._path(name)
        try:
            with open(path, "rb", buffering=0) as file:
                stat = os.fstat(file.fileno())
                if hasattr(os, "getuid") and stat.st_uid != os.getuid():
                    return None
                length = _checked_length(file, stat.st_size)
                if not length:
                    return None
                found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return memoryview(found)[:length]

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
        size = check = 0
        for piece in pieces:
            size += memoryview(piece).nbytes
            check = zlib.crc32(piece, check)
        pieces.append(_END.pack(_MAGIC, size, check))
        size += _END.size
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


def _checked_length(file: FileIO, size: int) -> int | None:
    """Return the length of what is in ``file``, of ``size`` bytes, before its end; None if it is not as it was written.

    Reading leaves the pages of the file to the system's cache; a check of mapped memory would make them this process's.
    """
    file.seek(max(size - _END.size, 0))
    end = file.read(_END.size)
    if len(end) != _END.size:
        return None
    magic, length, check = _END.unpack(end)
    if magic != _MAGIC or length != size - _END.size:
        return None
    file.seek(0)
    buffer = memoryview(bytearray(_STEP))
    found = 0
    while length > 0:
        count = file.readinto(buffer[: min(_STEP, length)])
        if not count:
            return None
        found = zlib.crc32(buffer[:count], found)
        length -= count
    return size - _END.size if found == check else None
