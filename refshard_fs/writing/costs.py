"""What writing shards costs, so as to tell of patterns that are costly, once each."""

from __future__ import annotations

import warnings
import weakref
from typing import Final

from refshard_fs.errors import CostlyPattern
from refshard_fs.session.overlay import Overlay

__all__ = ["Costs", "costs_of"]

OFTEN: Final = 3  # commits that rewrite one shard, from which on that is called costly


class Costs:
    """What commits of one overlay cost, so as to tell of costly patterns: once for each array and kind."""

    def __init__(self) -> None:
        self._rewritten: dict[str, int] = {}
        self._told: set[tuple[str, str]] = set()
        self._untold: list[str] = []

    def put(self, shard: str, array: str, chunks: int, *, read: bool) -> None:
        """Take note of a shard of which so many ``chunks`` were put, and whether it was ``read`` first."""
        times = self._rewritten[shard] = self._rewritten.get(shard, 0) + 1
        if times >= OFTEN:
            self._tell(
                array,
                "often",
                f"shard {shard!r} was written {times} times, once for each commit: "
                "write what belongs together within one `with fs.transaction:`",
            )
        if read:
            self._tell(
                array,
                "read",
                f"{chunks} chunks of shard {shard!r} were written, and the rest had to be read: "
                "writing whole shards in one commit takes no reads",
            )

    def _tell(self, array: str, kind: str, text: str) -> None:
        if (array, kind) not in self._told:
            self._told.add((array, kind))
            self._untold.append(f"array {array!r}: {text}")

    def tell(self) -> None:
        """Warn of what was noted; once the commit is made, and known to be: a warning may be an error to some."""
        while self._untold:
            warnings.warn(self._untold.pop(0), CostlyPattern, stacklevel=4)


_costs: weakref.WeakKeyDictionary[Overlay, Costs] = weakref.WeakKeyDictionary()


def costs_of(overlay: Overlay) -> Costs:
    """Return the one record of what the commits of ``overlay`` cost."""
    return _costs.setdefault(overlay, Costs())
