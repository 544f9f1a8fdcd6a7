"""References of consecutive chunks of one array: what a parquet file holds, and what writers take at a time. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refshard_fs.core.columns import ABSENT, WHOLE, Row, UInt32s, UInt64s

__all__ = ["Partition", "PartitionBuilder"]


class Partition:
    """References by row; immutable.

    A row's target is a place in ``urls`` (as written; None: the default target), ABSENT where the row has data in
    ``inline`` or there is no such chunk; its length may be WHOLE. ``extras`` hold what only chunk manifests can say of
    a row: checks, by name; or nothing, if it is empty on purpose.
    """

    __slots__ = ("_lengths", "_offsets", "_targets", "extras", "inline", "lengths", "offsets", "targets", "urls")

    def __init__(
        self,
        urls: Sequence[str | None],
        targets: UInt32s,
        offsets: UInt64s,
        lengths: UInt64s,
        inline: Mapping[int, bytes],
        extras: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        self.urls, self.inline = urls, inline
        self.extras = extras or {}
        self.targets, self.offsets, self.lengths = targets, offsets, lengths
        # Indexing a memoryview gives a Python int, five times faster than indexing the array.
        self._targets, self._offsets, self._lengths = targets.data, offsets.data, lengths.data

    def __len__(self) -> int:
        """Number of rows, whether their chunks exist or not."""
        return len(self.targets)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, roughly."""
        columns = self.targets.nbytes + self.offsets.nbytes + self.lengths.nbytes
        texts = sum(len(url or "") + 60 for url in self.urls)
        return columns + texts + sum(len(data) + 130 for data in self.inline.values())

    def value(self, row: int) -> Row | bytes | None:
        """Return the reference or data in ``row``, or None if there is no such chunk."""
        target = self._targets[row]
        if target == ABSENT:
            return self.inline.get(row) if self.inline else None
        length = self._lengths[row]
        return Row(target, self._offsets[row], None if length == WHOLE else length)

    def present(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Return the rows in ``[start, stop)`` whose chunks exist, ascending."""
        there = self.targets != ABSENT
        if self.inline:
            there[list(self.inline)] = True
        found: list[int] = (np.flatnonzero(there[start:stop]) + start).tolist()
        return found

    def sizes(self, rows: Sequence[int]) -> list[int | None]:
        """Return the lengths in bytes of ``rows``, which exist; None for whole targets."""
        out: list[int | None] = [None if length == WHOLE else length for length in self.lengths[rows].tolist()]
        if self.inline:
            for i, row in enumerate(rows):
                data = self.inline.get(row)
                if data is not None:
                    out[i] = len(data)
        return out


class PartitionBuilder:
    """Collects references of ``count`` consecutive chunks, of which none exists at first."""

    def __init__(self, count: int) -> None:
        self.targets = np.full(count, ABSENT, np.uint32)
        self.offsets, self.lengths = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        self.inline: dict[int, bytes] = {}
        self._codes: dict[str | None, int] = {}

    def code(self, url: str | None) -> int:
        """Return what the target column has for ``url``."""
        return self._codes.setdefault(url, len(self._codes))

    def put(self, rows: Any, urls: Sequence[str | None], targets: UInt32s, offsets: UInt64s, lengths: UInt64s) -> None:
        """Set ``rows`` (an index) to byte ranges of targets, which are places in ``urls``."""
        there = targets != ABSENT
        used, places = np.unique(targets[there], return_inverse=True)
        codes = np.array([self.code(urls[target]) for target in used.tolist()], np.uint32)
        own = np.full(len(targets), ABSENT, np.uint32)
        own[there] = codes[places]
        self.targets[rows] = own
        self.offsets[rows], self.lengths[rows] = offsets, lengths

    def finish(self, extras: Mapping[int, Mapping[str, str]] | None = None) -> Partition:
        """Return the partition, with the URLs that are used."""
        self.targets[list(self.inline)] = ABSENT
        there = self.targets != ABSENT
        used, places = np.unique(self.targets[there], return_inverse=True)
        self.targets[there] = places
        urls = list(self._codes)
        return Partition(
            [urls[code] for code in used.tolist()], self.targets, self.offsets, self.lengths, self.inline, extras
        )
