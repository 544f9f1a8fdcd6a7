"""What the process remembers between reads: a least-recently-used store, bounded in bytes and safe in threads."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, Final

from refshard_fs.core.checksums import crc32c
from refshard_fs.core.forks import fork_safe
from refshard_fs.core.model import Quota


class Cache:
    """Values by key, the least recently used dropped first when their weights pass ``capacity`` bytes.

    A value heavier than the capacity is not kept. Values are shared: they must not be changed.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = fork_safe(threading.Lock())
        self._items: OrderedDict[Hashable, tuple[Any, int, Quota | None]] = OrderedDict()
        self._members: dict[str, OrderedDict[Hashable, None]] = {}  # keys by the name of their quota
        self._weight = 0

    def get(self, key: Hashable, default: Any = None) -> Any:
        with self._lock:
            item = self._items.get(key)
            if item is None:
                return default
            self._items.move_to_end(key)
            if item[2] is not None:
                self._members[item[2].name].move_to_end(key)
            return item[0]

    def put(self, key: Hashable, value: Any, weight: int, quota: Quota | None = None) -> None:
        """Keep ``value``, ``weight`` bytes heavy, under ``key``; the least recently used of a full quota makes room."""
        with self._lock:
            self._drop(key)
            if weight > self.capacity:
                return
            self._items[key] = value, weight, quota
            self._weight += weight
            if quota is not None:
                members = self._members.setdefault(quota.name, OrderedDict())
                members[key] = None
                while len(members) > max(quota.most, 1):
                    self._drop(next(iter(members)))
            while self._weight > self.capacity:
                self._drop(next(iter(self._items)))

    def discard(self, key: Hashable) -> None:
        """Forget ``key``."""
        with self._lock:
            self._drop(key)

    def discard_where(self, is_stale: Callable[[Hashable], bool]) -> None:
        """Forget every key of which ``is_stale`` says so."""
        with self._lock:
            for key in [key for key in self._items if is_stale(key)]:
                self._drop(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._items.clear()
            self._members.clear()
            self._weight = 0

    def _drop(self, key: Hashable) -> None:
        item = self._items.pop(key, None)
        if item is not None:
            self._weight -= item[1]
            if item[2] is not None:
                members = self._members[item[2].name]
                del members[key]
                if not members:
                    del self._members[item[2].name]


# ----------------------------------------------------------------------------------------------------
# Decoded indexes kept in files, for all processes of one user: found by content, read into memory, never trusted.
#
# They are not mapped: a file that a full disk, a sync tool or another host of a network file system cuts short while it
# is mapped ends the process (SIGBUS), and a private mapping does not help.
#
# A file is written aside and renamed into place, so that no reader sees a part of it; nobody changes it after that. The
# name is a digest of what it was made from: of a source's URL nothing else is kept. It is in the checksum too, so that
# nobody who may rename files has one source served what was kept of another. A directory that others may write to is
# not used, nor is what is no plain file there. What cannot be read, written or believed is as if it were not there.


_MAGIC: Final = b"refindx4"
_END: Final = struct.Struct("<8sQQ")  # what a file ends with: magic, the length of what is before, and its checksum
_PIECE: Final = 1 << 18  # bytes of a file that are checked at a time

CAPACITY: Final = 2 << 30  # bytes of all files together; the least recently used go first
SUFFIX: Final = ".refindex"
_HAS_OWNERS: Final = hasattr(os, "getuid")  # Windows has rights of another kind
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
        files = sorted(self._files(), key=lambda file: file[1])
        total = size + sum(length for _, _, length in files)
        for path, _, length in files:
            if total <= self.capacity:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
                total -= length

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
