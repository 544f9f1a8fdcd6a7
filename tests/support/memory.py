"""Limits of memory for code under test: bytes of Python's heap, not time."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator

__all__ = ["taking"]


@contextlib.contextmanager
def taking(most: int) -> Iterator[None]:
    """Hold what is done to ``most`` bytes of Python's memory."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
