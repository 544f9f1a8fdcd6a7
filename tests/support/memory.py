"""Assert limits of memory: bytes of Python's heap."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator

__all__ = ["check_peak"]


@contextlib.contextmanager
def check_peak(most: int) -> Iterator[None]:
    """Assert that the block takes at most ``most`` bytes of Python's heap."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
