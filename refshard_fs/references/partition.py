"""References of consecutive chunks of one array: what a parquet file holds, and what writers take at a time. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from refshard_fs.core.columns import ABSENT, WHOLE, Ranges, Row

__all__ = ["Partition", "PartitionBuilder"]


class Partition(msgspec.Struct, frozen=True):
    """References by row.

    A row's target is a place in ``urls`` (as written; None: the default target), ABSENT where the row has data in
    ``inline`` or there is no such chunk; its length may be WHOLE. ``extras`` hold what only chunk manifests can say of
    a row: checks, by name; or nothing, if it is empty on purpose.
    """

    urls: Sequence[str | None]
    ranges: Ranges
    inline: Mapping[int, bytes]
    extras: Mapping[int, Mapping[str, str]] = {}

    def __len__(self) -> int:
        """Number of rows, whether their chunks exist or not."""
        return self.ranges.rows

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, roughly."""
        texts = sum(len(url or "") + 60 for url in self.urls)
        return self.ranges.nbytes + texts + sum(len(data) + 130 for data in self.inline.values())

    def value(self, row: int) -> Row | bytes | None:
        """Return the reference or data in ``row``, or None if there is no such chunk."""
        found = self.ranges.row(row)
        return self.inline.get(row) if found is None else found

    def present(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Return the rows in ``[start, stop)`` whose chunks exist, ascending."""
        there = self.ranges.targets != ABSENT
        there[list(self.inline)] = True
        found: list[int] = (np.flatnonzero(there[start:stop]) + start).tolist()
        return found

    def sizes(self, rows: Sequence[int]) -> list[int | None]:
        """Return the lengths in bytes of ``rows``, which exist; None for whole targets."""
        out: list[int | None] = [None if length == WHOLE else length for length in self.ranges.lengths[rows].tolist()]
        if self.inline:
            for i, row in enumerate(rows):
                data = self.inline.get(row)
                if data is not None:
                    out[i] = len(data)
        return out


class PartitionBuilder:
    """Collects references of ``count`` consecutive chunks, of which none exists at first."""

    def __init__(self, count: int) -> None:
        self.ranges = Ranges.absent(count)
        self.inline: dict[int, bytes] = {}
        self._codes: dict[str | None, int] = {}

    def code(self, url: str | None) -> int:
        """Return what the target column has for ``url``."""
        return self._codes.setdefault(url, len(self._codes))

    def put(self, rows: Any, urls: Sequence[str | None], ranges: Ranges) -> None:
        """Set ``rows`` (an index) to byte ranges, whose targets are places in ``urls``."""
        there = ranges.targets != ABSENT
        used, places = np.unique(ranges.targets[there], return_inverse=True)
        codes = np.array([self.code(urls[target]) for target in used.tolist()], np.uint32)
        targets = np.full(ranges.rows, ABSENT, np.uint32)
        targets[there] = codes[places]
        self.ranges.put(rows, ranges._replace(targets=targets))

    def finish(self, extras: Mapping[int, Mapping[str, str]] | None = None) -> Partition:
        """Return the partition, with the URLs that are used."""
        targets = self.ranges.targets
        targets[list(self.inline)] = ABSENT
        there = targets != ABSENT
        used, places = np.unique(targets[there], return_inverse=True)
        targets[there] = places
        urls = list(self._codes)
        return Partition([urls[code] for code in used.tolist()], self.ranges, self.inline, extras or {})
