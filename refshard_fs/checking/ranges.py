"""The byte ranges that many keys point to, as columns: which are shared, overlap, or reach beyond their target. No I/O.

Millions of references are compared by sorting, not one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

import msgspec
import numpy as np

from refshard_fs.columns import WHOLE, ChunkTable, UInt64s
from refshard_fs.errors import ManifestError
from refshard_fs.keys import join
from refshard_fs.manifests.flat import FlatKeySpace
from refshard_fs.model import Entry, Inline, Packed, Pin, Span
from refshard_fs.survey.extents import Positions, Urls

__all__ = ["Keys", "Ranges", "Rows"]


class Keys(msgspec.Struct, frozen=True, eq=False):
    """Keys of one array, by their position: those of a table's chunks are spelled when they are asked for."""

    array: str
    table: ChunkTable | None
    names: list[str]
    numbers: UInt64s

    @classmethod
    def of_table(cls, array: str, table: ChunkTable) -> Keys:
        """Return the keys of the chunks that ``table`` has."""
        return cls(array, table, [], table.present())

    @classmethod
    def spelled(cls, array: str, names: list[str]) -> Keys:
        """Return whole keys that are at hand."""
        return cls(array, None, names, np.empty(0, np.uint64))

    def __len__(self) -> int:
        return len(self.names) if self.table is None else len(self.numbers)

    def key(self, position: int) -> str:
        """Return the key at ``position``."""
        if self.table is None:
            return self.names[position]
        return join(self.array, self.table.grid.tail(int(self.numbers[position])))


class Rows(NamedTuple):
    """Where some keys' bytes lie: ``stops`` are WHOLE where a range reaches to the end of its target."""

    keys: Keys
    targets: Positions
    starts: UInt64s
    stops: UInt64s


class Ranges:
    """Ranges of all keys, with the URLs that they point to; ``pins`` are what the source says of some of those."""

    def __init__(self) -> None:
        self.faults: dict[str, ManifestError] = {}  # of URLs that are none
        self.pins: dict[int, set[Pin]] = {}
        self._urls = Urls()
        self._rows: list[Rows] = []

    @property
    def urls(self) -> list[str]:
        """The URLs of all targets, by number."""
        return self._urls.all

    def add_flat(self, keyspace: FlatKeySpace) -> list[Keys]:
        """Take in the chunks that a reference set has in columns; the keys of each array."""
        resolved = np.fromiter((self._target(keyspace, i) for i in range(len(keyspace.urls))), np.int64)
        if keyspace.refs.pins is not None:
            for target, number in enumerate(resolved.tolist()):
                pin = keyspace.pin(target)
                if pin is not None:
                    self.pins.setdefault(number, set()).add(pin)
        found = []
        for array, table in keyspace.refs.tables.items():
            keys = Keys.of_table(array, table)
            found.append(keys)
            at = slice(None) if table.numbers is not None else keys.numbers
            lengths, starts = table.lengths[at], table.offsets[at]
            stops = np.where(lengths == WHOLE, np.uint64(WHOLE), starts + lengths)
            self._rows.append(Rows(keys, resolved[table.targets[at]], starts, stops))
        return found

    def add(self, entries: Iterable[tuple[str, Entry]]) -> None:
        """Take in the ranges of ``entries`` by key; what is inline, or made from ranges that others share, has none."""
        names, targets, starts, stops = [], [], [], []
        for key, entry in entries:
            match entry:
                case Span(url, start, stop, pin=pin) if start >= 0:
                    names.append(key)
                    targets.append(self._urls.id_of(url))
                    starts.append(start)
                    stops.append(WHOLE if stop is None or not entry.exact else stop)
                case Span(url, pin=pin) | Packed(Span(url, pin=pin)):
                    self._urls.id_of(url)
                case Inline():
                    continue
            if pin is not None:
                self.pins.setdefault(self._urls.id_of(url), set()).add(pin)
        columns = np.array(targets, np.int64), np.array(starts, np.uint64), np.array(stops, np.uint64)
        self._rows.append(Rows(Keys.spelled("", names), *columns))

    def settled(self) -> Columns:
        """Return all rows as columns."""
        rows = [row for row in self._rows if len(row.starts)]
        if not rows:
            rows = [Rows(Keys.spelled("", []), np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.uint64))]
        ends = list(accumulate(len(row.starts) for row in rows))
        return Columns(
            [row.keys for row in rows], ends, *map(np.concatenate, zip(*(row[1:] for row in rows), strict=True))
        )

    def _target(self, keyspace: FlatKeySpace, target: int) -> int:
        try:
            return self._urls.id_of(keyspace.url(target))
        except ManifestError as e:  # no URL, and no target= that it would stand for
            self.faults[""] = e
            return self._urls.id_of("")


class Columns(NamedTuple):
    """All rows, by position."""

    keys: list[Keys]
    ends: list[int]
    targets: Positions
    starts: UInt64s
    stops: UInt64s

    def key(self, position: int) -> str:
        """Return the key of the row at ``position``."""
        part = bisect_right(self.ends, position)
        return self.keys[part].key(position - (self.ends[part - 1] if part else 0))

    def users(self, targets: int) -> tuple[Positions, Positions]:
        """Return, for each of ``targets`` URLs, its first row (-1: none) and the number of its rows."""
        first = np.full(targets, -1, np.int64)
        first[self.targets[::-1]] = np.arange(len(self.targets) - 1, -1, -1)
        return first, np.bincount(self.targets, minlength=targets).astype(np.int64)

    def beyond(self, sizes: UInt64s) -> Positions:
        """Return the rows that reach beyond their target; ``sizes`` are WHOLE where unknown."""
        size = sizes[self.targets]
        over = np.where(self.stops == WHOLE, self.starts > size, self.stops > size)
        return np.flatnonzero(over & (size != WHOLE))

    def alike(self, sizes: UInt64s) -> tuple[Positions, Positions, Positions, Positions]:
        """Return the rows of the range of another row, and those that begin within another; each with that other row.

        Of rows that begin within several others, the one that begins last before counts.
        """
        stops = np.where(self.stops == WHOLE, sizes[self.targets], self.stops)
        there = np.flatnonzero((stops != WHOLE) & (stops > self.starts))
        order = there[np.lexsort((stops[there], self.starts[there], self.targets[there]))]
        targets, starts, ends = self.targets[order], self.starts[order], stops[order]
        same = (targets[1:] == targets[:-1]) & (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])
        again = np.flatnonzero(same) + 1
        distinct = np.flatnonzero(np.concatenate(([True], ~same))) if len(order) else np.empty(0, np.int64)
        near = (targets[distinct[1:]] == targets[distinct[:-1]]) & (starts[distinct[1:]] < ends[distinct[:-1]])
        within = np.flatnonzero(near)
        return order[again], order[again - 1], order[distinct[within + 1]], order[distinct[within]]
