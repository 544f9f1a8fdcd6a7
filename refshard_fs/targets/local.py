"""Local files, read with ``pread`` on a bounded pool of open files: no thread hop, no seek, no buffer."""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict

from refshard_fs.model import Facts, Listed
from refshard_fs.targets.answer import Answer

__all__ = ["LocalTarget"]

OPEN_FILES = 64


class _File:
    """An open descriptor; closed when the last reader lets go of it."""

    __slots__ = ("descriptor", "etag", "size")

    def __init__(self, path: str) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        self.etag, self.size = _identity(os.fstat(self.descriptor))

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def _identity(of: os.stat_result) -> tuple[str, int]:
    return f"{of.st_ino:x}-{of.st_mtime_ns:x}-{of.st_size:x}", of.st_size


class LocalTarget:
    """The files of this machine; paths are as the operating system spells them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _File] = OrderedDict()

    def read_now(self, path: str, start: int, stop: int | None) -> Answer:
        file = self._file(path)
        first = max(file.size + start, 0) if start < 0 else start
        last = file.size if stop is None else min(stop, file.size)
        data = self._pread(file, first, max(last - first, 0))
        return Answer(data, file.size, file.etag)

    async def read(self, path: str, start: int, stop: int | None) -> Answer:
        return self.read_now(path, start, stop)

    async def facts(self, path: str) -> Facts:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(path)
        etag, size = _identity(found)
        return Facts(size, etag)

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        with os.scandir(path) as entries:
            return tuple(
                Listed(e.name, None, True) if e.is_dir() else Listed(e.name, e.stat().st_size)
                for e in sorted(entries, key=lambda e: e.name)
                if e.is_dir() or e.is_file()
            )

    async def close(self) -> None:
        with self._lock:
            self._files.clear()

    def _file(self, path: str) -> _File:
        etag, _ = _identity(os.stat(path))
        with self._lock:
            file = self._files.get(path)
            if file is not None and file.etag == etag:
                self._files.move_to_end(path)
                return file
        file = _File(path)
        with self._lock:
            self._files[path] = file
            self._files.move_to_end(path)
            if len(self._files) > OPEN_FILES:
                self._files.popitem(last=False)
        return file

    @staticmethod
    def _pread(file: _File, start: int, length: int) -> bytes:
        data = os.pread(file.descriptor, length, start)
        if len(data) == length or not data:
            return data
        parts = [data]  # Linux returns at most 2 GiB a call
        missing = length - len(data)
        while missing and data:
            data = os.pread(file.descriptor, missing, start + length - missing)
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)
