"""Large buffers that are used again: memory that is new to a process costs it more than what is then read into it."""

from __future__ import annotations

import os
import threading

__all__ = ["LARGE", "SHARED", "Buffers"]

LARGE = 1 << 18  # bytes; smaller buffers are not worth keeping
KEPT = 1 << 24  # bytes that are kept of all


class Buffers:
    """Buffers that nobody uses at the moment; thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._free: list[bytearray] = []
        self._size = 0

    def take(self, size: int) -> memoryview:
        """Return ``size`` writable bytes of any content."""
        with self.lock:
            for i, buffer in enumerate(self._free):
                if size <= len(buffer) <= 2 * size:
                    del self._free[i]
                    self._size -= len(buffer)
                    return memoryview(buffer)[:size]
        return memoryview(bytearray(size))

    def give(self, data: object) -> None:
        """Take back what `take` returned, if it is that; whoever gives it must not read it any more."""
        if isinstance(data, memoryview) and isinstance(data.obj, bytearray):
            size = len(data.obj)
            with self.lock:
                if size >= LARGE and self._size + size <= KEPT:
                    self._free.append(data.obj)
                    self._size += size

    def clear(self) -> None:
        """Keep nothing."""
        with self.lock:
            self._free.clear()
            self._size = 0


SHARED = Buffers()  # by all event loops of the process


def _after_fork() -> None:
    SHARED.lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
