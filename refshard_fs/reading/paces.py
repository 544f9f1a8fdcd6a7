"""How long servers take to answer: what one filesystem has seen of a server, the next one in the process knows.

An answer may come late for many reasons, but early for none: of the last few times the shortest counts.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from typing import Final

__all__ = ["SHARED", "Paces"]

REMEMBERED: Final = 256  # servers
FEW: Final = 4  # times


class Paces:
    """Seconds by server; thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._known: OrderedDict[str, deque[float]] = OrderedDict()

    def of(self, server: str) -> float | None:
        """Return the seconds that an answer of ``server`` took of late; None if that is not known."""
        with self.lock:
            known = self._known.get(server)
            return None if known is None else min(known)

    def note(self, server: str, seconds: float) -> None:
        """Take note that an answer of ``server`` takes ``seconds``."""
        with self.lock:
            self._known.setdefault(server, deque(maxlen=FEW)).append(seconds)
            self._known.move_to_end(server)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def clear(self) -> None:
        """Know nothing."""
        with self.lock:
            self._known.clear()


SHARED: Final = Paces()


def _after_fork() -> None:
    SHARED.lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
