"""A reference set as a stream: its documents, then its chunks a partition at a time, whatever holds it. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from refshard_fs.core.columns import ABSENT, ChunkTable, Row
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.keyspace import place
from refshard_fs.core.model import Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet.source import ParquetKeySpace
from refshard_fs.references.partition import Partition
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import decode

__all__ = ["FlatStream", "ParquetStream", "ReferenceStream", "Respell"]

# Returns a URL as it is to be spelled in the set that is written.
Respell = Callable[[str | None], str | None]


class ReferenceStream(Protocol):
    """What a writer of references needs. Whatever is no chunk with a place in ``grids`` is a document."""

    def pins(self) -> dict[str, Any] | None:
        """Return the JSON value of the set's pins; None if it has none."""

    is_at_hand: bool  # whether going through it takes no reads

    @property
    def grids(self) -> Mapping[str, ChunkGrid]:
        """The chunk grids of all arrays, by path."""

    def documents(self) -> Iterator[tuple[str, Any]]:
        """Yield key and value of all documents, as version 0 JSON has them; data that is no text, as bytes."""

    def ranges(self, array: str, size: int) -> Steps[list[range]]:
        """Return the chunk numbers of the partitions of ``size`` rows that may hold chunks, ascending."""

    def partition(self, array: str, numbers: range) -> Steps[Partition]:
        """Return the references of chunks ``numbers``; a URL may be None, the default target."""


class FlatStream:
    """The stream of a set in columns."""

    is_at_hand = True

    def __init__(
        self,
        refs: ReferenceSet,
        respell: Respell,
        extras: Mapping[str, Mapping[int, Mapping[str, str]]] | None = None,
        *,
        pins_as_extras: bool = False,
    ) -> None:
        """Take a set, and what only chunk manifests can say of its chunks: with ``pins_as_extras``, pins too."""
        self.grids = refs.grids
        self._extras = extras or {}
        self._tables = refs.tables
        self._urls = [respell(url) for url in refs.urls]
        self._pins = refs.pins
        self._each_pin = refs.pins if pins_as_extras else None
        self._documents: list[tuple[str, Any]] = []
        self._inline: dict[str, dict[int, bytes]] = {}
        for key, value in refs.side.items():
            at = place(self.grids, key)
            if at is not None and not isinstance(value, Row):
                self._inline.setdefault(at.array, {})[at.number] = _data(key, value)
            else:
                self._documents.append((key, self._spelled(value) if isinstance(value, Row) else value))

    def documents(self) -> Iterator[tuple[str, Any]]:
        yield from self._documents

    def ranges(self, array: str, size: int) -> Steps[list[range]]:
        yield from ()
        table, stop = self._tables[array], self.grids[array].size
        places = {number // size for number in (*self._inline.get(array, ()), *self._extras.get(array, ()))}
        if table.numbers is not None:
            places.update(np.unique(table.numbers // np.uint64(size)).tolist())
        else:
            parts = range(-(-stop // size))
            places.update(i for i in parts if (table.targets[i * size : (i + 1) * size] != ABSENT).any())
        return [range(i * size, min((i + 1) * size, stop)) for i in sorted(places)]

    def partition(self, array: str, numbers: range) -> Steps[Partition]:
        yield from ()
        partition = _slice(self._tables[array], numbers, self._urls)
        inline = self._inline.get(array, {})
        there = {n - numbers.start: inline[n] for n in inline.keys() & numbers} if inline else {}
        partition.targets[list(there)] = ABSENT
        known = self._extras.get(array, {})
        extras = {n - numbers.start: known[n] for n in known.keys() & numbers} if known else {}
        if self._each_pin is not None:
            extras = {**_checks(self._each_pin, self._tables[array], numbers), **extras}
        return Partition(partition.urls, partition.targets, partition.offsets, partition.lengths, there, extras)

    def pins(self) -> dict[str, Any] | None:
        """Return the JSON value of the pins, if the set has any."""
        return None if self._pins is None else self._pins.spelled(self._urls)

    def _spelled(self, row: Row) -> list[Any]:
        return row.spelled(self._urls[row.target])


def _checks(pins: Pins, table: ChunkTable, numbers: range) -> dict[int, dict[str, str]]:
    """Return the ETags and times of the chunks ``numbers``, by their places among these."""
    found = {}
    for number in table.present(numbers.start, numbers.stop).tolist():
        row = table.row(number)
        pin = None if row is None else pins.pin(row.target)
        if pin is not None:
            facts = {"etag": pin.etag, "last_modified": pin.last_modified}
            found[number - numbers.start] = {name: value for name, value in facts.items() if value is not None}
    return {row: checks for row, checks in found.items() if checks}


def _data(key: str, value: Any) -> bytes:
    try:
        return decode(value)
    except ValueError as e:
        raise ManifestError(f"{key!r}: {e}") from e


def _slice(table: ChunkTable, numbers: range, urls: Sequence[str | None]) -> Partition:
    """Return the rows of a table for chunks ``numbers``, with a list of their own URLs; all are copies."""
    count = len(numbers)
    targets = np.full(count, ABSENT, np.uint32)
    offsets, lengths = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    rows: Any = slice(None)
    part = slice(numbers.start, numbers.stop)
    if table.numbers is not None:
        lo, hi = table.numbers.searchsorted(np.array([numbers.start, numbers.stop], np.uint64)).tolist()
        part = slice(lo, hi)
        rows = (table.numbers[part] - np.uint64(numbers.start)).astype(np.int64)
    targets[rows], offsets[rows], lengths[rows] = table.targets[part], table.offsets[part], table.lengths[part]
    there = targets != ABSENT
    used, codes = np.unique(targets[there], return_inverse=True)
    targets[there] = codes
    return Partition([urls[i] for i in used.tolist()], targets, offsets, lengths, {})


class ParquetStream:
    """The stream of a parquet set, of which a partition at a time is loaded."""

    is_at_hand = False

    def __init__(self, keyspace: ParquetKeySpace, respell: Respell) -> None:
        self.grids = keyspace.grids
        self._keyspace = keyspace
        self._respell = respell

    def pins(self) -> None:
        """A parquet set has none."""

    def documents(self) -> Iterator[tuple[str, Any]]:
        """Yield all metadata, and where that is zarr's version 2, the same consolidated."""
        metadata = self._keyspace.layout.metadata
        yield from metadata.items()
        old = {key: value for key, value in metadata.items() if not key.endswith("zarr.json")}
        if old and PARQUET not in metadata:
            yield PARQUET, {"metadata": old, "zarr_consolidated_format": 1}

    def ranges(self, array: str, size: int) -> Steps[list[range]]:
        stop, own = self.grids[array].size, self._keyspace.layout.record_size
        stored = yield from self._keyspace.stored(array, 0, stop)
        starts: dict[int, None] = {}
        for number in stored:
            last = min((number + 1) * own, stop) - 1
            starts.update(dict.fromkeys(range(number * own // size, last // size + 1)))
        return [range(i * size, min((i + 1) * size, stop)) for i in starts]

    def partition(self, array: str, numbers: range) -> Steps[Partition]:
        own = self._keyspace.layout.record_size
        count = len(numbers)
        urls: dict[str | None, int] = {}
        targets = np.full(count, ABSENT, np.uint32)
        offsets, lengths = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        inline: dict[int, bytes] = {}
        for number in range(numbers.start // own, (numbers.stop - 1) // own + 1):
            part = yield from self._keyspace.partition(array, number)
            if part is None:
                continue
            base = number * own  # of the part's rows; then of ours
            lo, hi = max(numbers.start - base, 0), min(numbers.stop - base, len(part))
            rows = slice(lo + base - numbers.start, hi + base - numbers.start)
            codes = np.array([urls.setdefault(self._respell(url), len(urls)) for url in part.urls], np.uint32)
            theirs = part.targets[lo:hi]
            there = theirs != ABSENT
            ours = np.full(hi - lo, ABSENT, np.uint32)
            ours[there] = codes[theirs[there]]
            targets[rows], offsets[rows], lengths[rows] = ours, part.offsets[lo:hi], part.lengths[lo:hi]
            inline.update((r + base - numbers.start, data) for r, data in part.inline.items() if lo <= r < hi)
        return Partition(list(urls), targets, offsets, lengths, inline)
