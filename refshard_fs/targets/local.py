"""Local files, read with ``pread`` on a bounded pool of open files: no thread hop, no seek, no buffer.

Not memory-mapped: measured, that saves a few microseconds of a chunk's ten or so, and a file
that is cut short while it is mapped ends the whole process.
"""

from __future__ import annotations

import math
import os
import stat
import threading
from collections import OrderedDict

from refshard_fs.model import Facts, Listed
from refshard_fs.targets.answer import OWN, Answer, hold
from refshard_fs.targets.draft import is_draft
from refshard_fs.targets.failures import Unreadable

__all__ = ["LocalTarget", "facts_of"]

OPEN_FILES = 64

Identity = tuple[int, int, int]  # inode, time of the last change in ns, size


def _identity(of: os.stat_result) -> Identity:
    return of.st_ino, of.st_mtime_ns, of.st_size


def _facts(identity: Identity) -> Facts:
    inode, changed, size = identity
    return Facts(size, f"{OWN}{inode:x}-{changed:x}-{size:x}", str(changed / 1e9))


def facts_of(found: os.stat_result) -> Facts:
    """Return what tells a version of a file from others."""
    return _facts(_identity(found))


def _listed(entry: os.DirEntry[str]) -> Listed:
    found = entry.stat()
    return Listed(entry.name, found.st_size, last_modified=str(found.st_mtime_ns / 1e9))


class _File:
    """An open descriptor; closed when the last reader lets go of it."""

    __slots__ = ("descriptor", "facts", "identity", "lock", "size")

    def __init__(self, path: str) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        self.identity = _identity(os.fstat(self.descriptor))
        self.facts = _facts(self.identity)
        self.size = self.identity[2]
        self.lock = threading.Lock()

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def _seek_and_read(file: _File, length: int, start: int) -> bytes:
    with file.lock:
        os.lseek(file.descriptor, start, os.SEEK_SET)
        return os.read(file.descriptor, length)


def _pread(file: _File, length: int, start: int) -> bytes:
    return os.pread(file.descriptor, length, start)


_read_at = _pread if hasattr(os, "pread") else _seek_and_read  # Windows has none


class LocalTarget:
    """The files of this machine; paths are as the operating system spells them."""

    most_retries = 0
    patience = math.inf

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _File] = OrderedDict()

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer:
        file = self._file(path)
        size = file.size
        if stop is None:
            hold(size, most)
        if start < 0:
            start = max(size + start, 0)
        length = (size if stop is None or stop > size else stop) - start
        data = b"" if length <= 0 else _read_at(file, length, start)
        if 0 < len(data) < length:
            data = _rest(file, data, start, length)
        facts = file.facts
        return Answer(data, size, facts.etag, facts.last_modified)

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        return self.read_now(path, start, stop, most)

    async def facts(self, path: str) -> Facts:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(path)
        return _facts(_identity(found))

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        with os.scandir(path) as entries:
            return tuple(
                Listed(e.name, None, True) if e.is_dir() else _listed(e)
                for e in sorted(entries, key=lambda e: e.name)
                if (e.is_dir() or e.is_file()) and not is_draft(e.name)
            )

    async def close(self) -> None:
        with self._lock:
            self._files.clear()

    def after_fork(self) -> None:
        """Be usable in a child, whichever thread held the lock; the descriptors have no position to share."""
        self._lock = threading.Lock()

    def _file(self, path: str) -> _File:
        found = os.stat(path)
        file = self._files.get(path)
        if file is not None and file.identity == (found.st_ino, found.st_mtime_ns, found.st_size):
            if len(self._files) > OPEN_FILES // 2:  # else none will have to go soon
                with self._lock:
                    if path in self._files:
                        self._files.move_to_end(path)
            return file
        if not stat.S_ISREG(found.st_mode):
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(path)
            raise Unreadable(f"{path} is a pipe or a device, not a file")  # to open it may wait for ever
        file = _File(path)
        with self._lock:
            self._files[path] = file
            self._files.move_to_end(path)
            while len(self._files) > OPEN_FILES:
                self._files.popitem(last=False)
        return file


def _rest(file: _File, data: bytes, start: int, length: int) -> bytes:
    """Return ``data`` with what is missing of it: one call returns at most 2 GiB on Linux."""
    parts = [data]
    got = len(data)
    while got < length and parts[-1]:
        parts.append(_read_at(file, length - got, start + got))
        got += len(parts[-1])
    return b"".join(parts)
