"""Values that wait for their commit: in memory up to a bound, the rest in a temporary file."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Sequence
from typing import Final

import msgspec

from refshard_fs.core.model import Inline

__all__ = ["MEMORY", "Spool", "Spooled", "buffers"]

MEMORY: Final = 64 << 20  # bytes of edits that are held in memory
_FILE: Final = 256 << 20  # bytes of the first file; each further one takes twice as many, so that there are few
_AT_ONCE: Final = 1 << 30  # bytes; one call of some systems writes no more than about two of these


class _File:
    """A file without a name, only ever added to."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # it lives as long as this
        self.pid = os.getpid()
        self.end = 0

    def add(self, data: bytes | memoryview) -> int:
        """Write ``data`` at the end; return where it begins."""
        start = self.end
        self._file.seek(start)
        at = 0
        while at < len(data):
            at += self._file.write(memoryview(data)[at : at + _AT_ONCE]) or 0
        self.end = start + len(data)
        return start

    def view(self, start: int, stop: int) -> memoryview:
        """Return bytes mapped from the file: they take no memory."""
        first = start - start % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self._file.fileno(), stop - first, access=mmap.ACCESS_READ, offset=first)
        return memoryview(mapped)[start - first :]

    def __del__(self) -> None:
        self._file.close()


class Spooled(msgspec.Struct, frozen=True, eq=False):
    """``size`` bytes at ``offset`` of a file that is only ever added to."""

    file: _File
    offset: int
    size: int

    def read(self) -> bytes:
        """Return the bytes."""
        return bytes(_views([self])[0])


def _views(spooled: Sequence[Spooled]) -> list[memoryview]:
    """Return the bytes of each of ``spooled``, mapped from the file: they take no memory."""
    found = [memoryview(b"")] * len(spooled)
    by_file: dict[_File, list[int]] = {}
    for i, some in enumerate(spooled):
        if some.size:
            by_file.setdefault(some.file, []).append(i)
    for file, places in by_file.items():
        start = min(spooled[i].offset for i in places)
        mapped = file.view(start, max(spooled[i].offset + spooled[i].size for i in places))
        for i in places:
            offset = spooled[i].offset - start
            found[i] = mapped[offset : offset + spooled[i].size]
    return found


def buffers(edits: Sequence[Inline | Spooled]) -> list[bytes | memoryview]:
    """Return the bytes of each of ``edits``; those in a file stay there."""
    spooled = iter(_views([edit for edit in edits if isinstance(edit, Spooled)]))
    return [edit.data if isinstance(edit, Inline) else next(spooled) for edit in edits]


class Spool:
    """Takes the values of any thread until their commit: up to ``memory`` bytes in memory, the rest in a file.

    The file has no name, and goes with whoever refers to it, however the process ends.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory = memory
        self.in_memory = 0  # bytes
        self._lock = threading.Lock()
        self._file: _File | None = None  # of values
        self._room = _FILE  # bytes that it takes

    def keep(self, data: bytes, instead: object = None) -> Inline | Spooled:
        """Return an edit that has ``data``; it takes the place of ``instead``, if that is one in memory."""
        with self._lock:
            if isinstance(instead, Inline):
                self.in_memory = max(self.in_memory - len(instead.data), 0)
            if self.in_memory + len(data) <= self.memory:
                self.in_memory += len(data)
                return Inline(data)
            if self._file is not None and self._file.end >= self._room:
                self._file, self._room = None, 2 * self._room  # the file goes with the last value that refers to it
            if self._file is None or self._file.pid != os.getpid():  # a parent goes on writing to its own
                self._file = _File()
            return Spooled(self._file, self._file.add(data), len(data))

    def clear(self) -> None:
        """Begin anew. Values that somebody still refers to stay readable."""
        with self._lock:
            self.in_memory = 0
            self._file = None
            self._room = _FILE

    def after_fork(self) -> None:
        """Be usable in a child, whichever thread held a lock."""
        self._lock = threading.Lock()
