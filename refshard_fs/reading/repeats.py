"""Tells of reads that fetch again what a block cache would have kept. It stands in for that cache, and keeps nothing.

What was fetched is remembered by a number of each range, the latest of them; bytes of this machine are not counted.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import OrderedDict
from typing import Final

from refshard_fs.core.model import Span
from refshard_fs.errors import CostlyPattern
from refshard_fs.security.policy import LOCAL, protocol_of

__all__ = ["Repeats"]

REMEMBERED: Final = 1 << 14  # ranges
MUCH: Final = 64 << 20  # bytes fetched again, from which on that is called costly
_NEAR: Final = (None, "memory", "data", *LOCAL)


class Repeats:
    """Counts the bytes of ranges that were fetched more than once; used by all event loops of a session."""

    def __init__(self) -> None:
        self.again = 0
        self._told = False
        self._known: OrderedDict[int, None] = OrderedDict()

    def get(self, span: Span) -> bytes | None:
        """Return None: nothing is kept."""
        return None

    def put(self, span: Span, data: bytes, weight: int) -> None:
        """Take note that the ``weight`` bytes of ``span`` came."""
        number = hash((span.url, span.start, span.stop))
        if number not in self._known:
            self._known[number] = None
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            return
        if protocol_of(span.url) in _NEAR:
            return
        self.again += weight
        if self.again >= MUCH and not self._told:
            self._told = True
            # Whoever makes an error of it is told by the loop: the read itself has gone well.
            asyncio.get_running_loop().call_soon(self._tell, span.url)

    def _tell(self, url: str) -> None:
        warnings.warn(
            f"{self.again >> 20} MiB were fetched that had been fetched before, the last of them from {url}: "
            "block_cache=, in bytes, keeps what was read",
            CostlyPattern,
            stacklevel=2,
        )
