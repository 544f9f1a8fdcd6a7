"""Keep decoded indexes in files, within a limit, for all processes of one user.

Files are read into memory, not mapped: if a full disk, a sync tool or another host cuts a mapped file short, the
process ends with SIGBUS, and a private mapping does not prevent this.

A file is written under another name and then renamed, so that readers never see a part of it; it is never changed
later. Its name is a digest of the source's URL, version and options; the URL itself is not kept. The checksum covers
the name, so that a renamed file does not serve another source. Directories that other users may write to are not used,
nor are links and special files. A file that cannot be read or written, or fails its checksum, counts as absent.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from refshard_fs.core.checksums import crc32c

_MAGIC: Final = b"refindx4"
_END: Final = struct.Struct("<8sQQ")  # the end of a file: magic, length of the data before it, checksum
_PIECE: Final = 1 << 18  # bytes of a file that are checked at a time

CAPACITY: Final = 2 << 30  # bytes of all files together; the least recently used are deleted first
SUFFIX: Final = ".refindex"
_HAS_OWNERS: Final = hasattr(os, "getuid")  # Windows has another kind of permissions
SHARED: Final = 64  # a process may write 1/64 of the free bytes before it lists the files again: others write, too
STALE: Final = 3600  # seconds after which an unfinished file is deleted: its writer was killed


def find_default_directory() -> Path | None:
    """Return the directory for this user's caches on this platform; None if there is none."""
    try:
        match sys.platform:
            case "win32":
                base = os.environ.get("LOCALAPPDATA")
                return Path(base) / "refshard_fs" / "Cache" if base else None
            case "darwin":
                return Path.home() / "Library" / "Caches" / "refshard_fs"
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "refshard_fs"
    except RuntimeError:  # the user has no home directory
        return None


# Bytes that this process may write before it lists the files again, by directory and capacity.
_free: Final[dict[tuple[Path, int], int]] = {}


class IndexCache:
    """The cache in one directory, which is created by the first write.

    With ``everything``, callers keep all indexes, not only large ones.
    """

    def __init__(
        self, directory: str | os.PathLike[str], capacity: int = CAPACITY, *, everything: bool = False
    ) -> None:
        self.directory = Path(directory)
        self.capacity = capacity
        self.everything = everything

    def get(self, name: str) -> memoryview | None:
        """Return the data that `put` kept under ``name``; None if there is no undamaged file of this user."""
        path = self._make_path(name)
        try:
            if not is_private(self.directory):
                return None
            with open(path, "rb", buffering=0, opener=open_as_it_is) as file:
                found_stat = os.fstat(file.fileno())
                if not is_own_file(found_stat):
                    return None
                if found_stat.st_size > self.capacity:
                    return None
                found = _read_checked(file, found_stat.st_size, name)
        except OSError:
            return None
        if found is not None:
            with contextlib.suppress(OSError):
                os.utime(path)  # mark it as used now
        return found

    def put(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Keep ``parts``, joined, under ``name``; do nothing if this is not possible."""
        with contextlib.suppress(OSError):
            self._write(name, parts)

    def discard(self, name: str) -> None:
        """Delete the file of ``name``."""
        with contextlib.suppress(OSError):
            os.unlink(self._make_path(name))

    def _make_path(self, name: str) -> Path:
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
            os.replace(aside, self._make_path(name))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise

    def _make_room(self, size: int) -> None:
        known = (self.directory, self.capacity)
        _free[known] = _free.get(known, 0) - size
        if _free[known] >= 0:  # listing thousands of small files before each write would take minutes
            return
        total = delete_oldest(list(list_files(self.directory, SUFFIX, ".tmp")), self.capacity - size)
        _free[known] = max(self.capacity - size - total, 0) // SHARED


class KeptFile(NamedTuple):
    """A file of a cache."""

    path: str
    used: float  # time of its last use
    size: int


def list_files(directory: str | os.PathLike[str], suffix: str, draft: str) -> Iterator[KeptFile]:
    """Yield the files in a directory whose names end in ``suffix`` or ``draft``; delete drafts of killed writers."""
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # another process deleted it
            if entry.name.endswith(draft) and time.time() - found.st_mtime > STALE:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
            elif entry.name.endswith((suffix, draft)):
                yield KeptFile(entry.path, found.st_mtime, found.st_size)


def delete_oldest(files: Sequence[KeptFile], most: int) -> int:
    """Delete the least recently used ``files`` until ``most`` bytes remain at most; return the bytes that remain."""
    total = sum(file.size for file in files)
    for file in sorted(files, key=attrgetter("used")):
        if total <= most:
            break
        with contextlib.suppress(OSError):
            os.unlink(file.path)
            total -= file.size
    return total


def is_private(directory: str | os.PathLike[str]) -> bool:
    """Return whether only this user may write to ``directory``, and it is not a link."""
    found = os.lstat(directory)
    return stat.S_ISDIR(found.st_mode) and _is_ours(found) and not (_HAS_OWNERS and found.st_mode & 0o022)


def open_as_it_is(path: str, flags: int) -> int:
    """Open a file. A link raises OSError, and a pipe does not block."""
    return os.open(path, flags | _AS_IT_IS, 0o600)


def is_own_file(found: os.stat_result) -> bool:
    """Return whether ``found`` describes a plain file of this user."""
    return stat.S_ISREG(found.st_mode) and _is_ours(found)


_AS_IT_IS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def _is_ours(found: os.stat_result) -> bool:
    return not _HAS_OWNERS or found.st_uid == os.getuid()


def _read_checked(file: FileIO, size: int, name: str) -> memoryview | None:
    """Return the data of ``file``, of ``size`` bytes; None if its checksum is wrong."""
    data = memoryview(bytearray(size))
    check, got, length = crc32c(name.encode()), 0, size - _END.size
    while got < size:  # each piece is summed while it is in the processor's cache
        count = file.readinto(data[got : got + _PIECE])
        if not count:
            return None
        check = crc32c(data[got : min(got + count, max(length, 0))], check)
        got += count
    whole = length > 0 and data[length:] == _END.pack(_MAGIC, length, check)
    return data[:length].toreadonly() if whole else None
