"""Large buffers that are used again: memory that is new to a process costs it more than what is then read into it."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections import deque

import numpy as np

__all__ = ["Buffers", "LARGE", "SHARED"]

LARGE = 1 << 18  # bytes; smaller buffers are not worth keeping
KEPT = 1 << 26  # bytes that are kept of all
SLAB = 1 << 23  # bytes that are asked of the system at once, for several buffers
SHARE = SLAB // 4  # bytes of one of these, at most
_PAGE = 1 << 12
_HUGE = 1 << 21  # bytes of a huge page: it costs hardly more to come by than a small one

_Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class _Buffer(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Bytes of ours."""


class Buffers:
    """Buffers that nobody uses at the moment; thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._free: deque[_Buffer] = deque()  # oldest first
        self._size = 0
        self._slab = _NONE  # what is left of the last one

    def take(self, size: int) -> memoryview:
        """Return ``size`` writable bytes of any content."""
        with self.lock:
            for i, buffer in enumerate(self._free):
                if size <= len(buffer) <= 2 * size:
                    del self._free[i]
                    self._size -= len(buffer)
                    return buffer.data[:size]
            return self._new(size).data[:size]

    def give(self, data: object) -> None:
        """Take back what `take` returned, if it is that; whoever gives it must not read it any more."""
        if isinstance(data, memoryview) and isinstance(data.obj, _Buffer):
            size = len(data.obj)
            with self.lock:
                self._free.append(data.obj)
                self._size += size
                while self._size > KEPT:  # those that lie about longest are of a size that nobody wants
                    self._size -= len(self._free.popleft())

    def clear(self) -> None:
        """Keep nothing."""
        with self.lock:
            self._free.clear()
            self._size = 0
            self._slab = _NONE

    def _new(self, size: int) -> _Buffer:
        room = -(-max(size, 1) // _PAGE) * _PAGE
        if size > SHARE:
            return _memory(room).view(_Buffer)
        if room > len(self._slab):
            # Of what begins within a huge page, that much could not be one. Memory that nobody touches costs nothing.
            slab = _memory(SLAB + _HUGE)
            first = -slab.ctypes.data % _HUGE
            self._slab = slab[first : first + SLAB]
        buffer, self._slab = self._slab[:room].view(_Buffer), self._slab[room:]
        return buffer


def _memory(size: int) -> _Bytes:
    """Return ``size`` new bytes, in huge pages where the system has them."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(size, np.uint8)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as e:
        raise MemoryError(f"there is no memory for {size} bytes") from e
    with contextlib.suppress(OSError):  # a system may be built without
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


_NONE: _Bytes = np.empty(0, np.uint8)

SHARED = Buffers()  # by all event loops of the process


def _after_fork() -> None:
    SHARED.lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
