"""References of consecutive chunks of one array, as they are written to a set piece by piece. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from refshard_fs.core.columns import ABSENT, WHOLE, Row, UInt32s, UInt64s

__all__ = ["Partition"]


class Partition:
    """References of consecutive chunks of one array; immutable.

    A row's target is a place in ``urls`` (as written; None: the default target), ABSENT where
    the row has data in ``inline`` or there is no such chunk; its length may be WHOLE. ``extras``
    hold what only chunk manifests can say of a row: checks, by name; or nothing, if it is empty
    on purpose.
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

    def present(self, start: int, stop: int) -> list[int]:
        """Return the rows in ``[start, stop)`` whose chunks exist, ascending."""
        there = self.targets[start:stop] != ABSENT
        if self.inline:
            rows = np.fromiter(self.inline, np.int64, len(self.inline))
            there[rows[(rows >= start) & (rows < stop)] - start] = True
        found: list[int] = (np.flatnonzero(there) + start).tolist()
        return found

    def sizes(self, rows: Sequence[int]) -> list[int | None]:
        """Return the lengths in bytes of ``rows``, which exist; None for whole targets."""
        lengths = self.lengths[rows]
        out: list[int | None] = lengths.tolist()
        for i in np.flatnonzero(lengths == WHOLE).tolist():
            out[i] = None
        if self.inline:
            for i, row in enumerate(rows):
                data = self.inline.get(row)
                if data is not None:
                    out[i] = len(data)
        return out

    def items(self) -> Iterator[tuple[int, Row | bytes]]:
        """Yield (row, reference or data) of each chunk that exists, ascending."""
        for row in self.present(0, len(self)):
            value = self.value(row)
            assert value is not None
            yield row, value
