"""A reference set as writers take it: its documents, then its chunks a partition at a time. No I/O here.

What a format cannot hold is a ManifestError that names the key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from refshard_fs.core.columns import ABSENT, WHOLE, Part, Ranges, Row
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.core.keyspace import place
from refshard_fs.core.model import Steps
from refshard_fs.errors import ManifestError
from refshard_fs.references.pins import Pins
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.references.values import decode
from refshard_fs.security.origins import Origins

# ----------------------------------------------------------------------------------------------------
# References of consecutive chunks of one array: what a parquet file holds, and what writers take at a time. No I/O.


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

    def part(self, start: int) -> Part:
        """Return the chunks that exist, the first row being number ``start``, with the bytes that each has."""
        lengths = self.ranges.lengths.copy()
        for row, data in self.inline.items():
            lengths[row] = len(data)
        rows = np.array(self.present(), np.uint64)
        places = np.zeros(len(rows), np.uint64)
        return Part(rows + np.uint64(start), Ranges(places.astype(np.uint32), places, lengths[rows]))


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


# Returns a URL as it is to be spelled in the set that is written.
Respell = Callable[[str | None], str | None]
# Runs the look-up that a function makes (again for each try), on behalf of a key, and returns its answer.
Run = Callable[[str, Callable[[], Steps[Any]]], Any]


class ReferenceStream(ABC):
    """What a writer of references needs. Whatever is no chunk with a place in ``grids`` is a document."""

    grids: Mapping[str, ChunkGrid]  # of all arrays, by path
    in_memory: bool  # whether no reads are needed to go through it
    origins: Origins  # which URLs sets of others named, as far as the set itself records it
    tell: Callable[[int], object] | None = None  # called with how many rows more were gone through

    @abstractmethod
    def pins(self) -> dict[str, Any] | None:
        """Return the JSON value of the set's pins; None if it has none."""

    @abstractmethod
    def documents(self) -> Iterator[tuple[str, Any]]:
        """Yield key and value of all documents, as version 0 JSON has them; data that is no text, as bytes."""

    @abstractmethod
    def places(self, array: str, size: int) -> Iterable[int]:
        """Return which of the partitions of ``size`` rows may hold chunks, ascending."""

    @abstractmethod
    def partition(self, array: str, numbers: range) -> Partition:
        """Return the references of chunks ``numbers``; a URL may be None, the default target."""

    def partitions(self, array: str, size: int, few: int = 0) -> Iterator[tuple[range, Partition]]:
        """Yield the chunk numbers and the references of the partitions of ``size`` rows that may hold chunks.

        Of an array with up to ``few`` partitions, there are all.
        """
        stop = self.grids[array].size
        count = -(-stop // size)
        for i in range(count) if count <= few else self.places(array, size):
            numbers = range(i * size, min((i + 1) * size, stop))
            partition = self.partition(array, numbers)
            if self.tell is not None:
                self.tell(len(numbers))
            yield numbers, partition


class FlatStream(ReferenceStream):
    """The stream of a set in columns."""

    in_memory = True

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
        self.origins = refs.origins
        self._extras = extras or {}
        self._tables = refs.tables
        self._urls = [respell(url) for url in refs.urls]
        self._pins = refs.pins
        self._each_pin = refs.pins if pins_as_extras else None
        self._documents: list[tuple[str, Any]] = []
        self._inline: dict[str, dict[int, bytes]] = {}
        for key, value in refs.side.items():
            at = place(self.grids, key)
            if at is None or isinstance(value, Row):
                document = value.spelled(self._urls[value.target]) if isinstance(value, Row) else value
                self._documents.append((key, document))
                continue
            try:
                self._inline.setdefault(at.array, {})[at.number] = decode(value)
            except ValueError as e:
                raise ManifestError(f"{key!r}: {e}") from e

    def pins(self) -> dict[str, Any] | None:
        return None if self._pins is None else self._pins.spelled(self._urls)

    def documents(self) -> Iterator[tuple[str, Any]]:
        yield from self._documents

    def places(self, array: str, size: int) -> list[int]:
        places = {number // size for number in (*self._inline.get(array, ()), *self._extras.get(array, ()))}
        places.update(np.unique(self._tables[array].present() // np.uint64(size)).tolist())
        return sorted(places)

    def partition(self, array: str, numbers: range) -> Partition:
        table = self._tables[array]
        part = table.part(table.present(numbers.start, numbers.stop))
        rows, targets = part.numbers.astype(np.int64) - numbers.start, part.ranges.targets
        builder = PartitionBuilder(len(numbers))
        builder.put(rows, self._urls, part.ranges)
        inline, extras = self._inline.get(array, {}), self._extras.get(array, {})
        builder.inline.update((n - numbers.start, inline[n]) for n in inline.keys() & numbers)
        checks = {} if self._each_pin is None else _checks(self._each_pin, rows.tolist(), targets.tolist())
        checks |= {n - numbers.start: dict(extras[n]) for n in extras.keys() & numbers}
        return builder.finish(checks)


def _checks(pins: Pins, rows: Sequence[int], targets: Sequence[int]) -> dict[int, dict[str, str]]:
    """Return the ETags and times of the targets of rows, by row."""
    found = {target: pins.pin(target) for target in set(targets)}
    versions = {target: pin.version for target, pin in found.items() if pin is not None and pin.version}
    return {row: versions[target] for row, target in zip(rows, targets, strict=True) if target in versions}


def check_representable(array: str, grid: ChunkGrid, numbers: range, partition: Partition) -> None:
    """Raise ManifestError for what a chunk manifest says and a JSON or parquet set cannot."""
    for row, extras in partition.extras.items():
        key = join(array, grid.tail(numbers.start + row))
        what = " and ".join(extras)
        raise ManifestError(
            f"{key!r} has {what}, which a reference set cannot hold: only format='chunk-manifest' can"
            if what
            else f"{key!r} is empty on purpose, which a reference set cannot say: only format='chunk-manifest' can"
        )
    targets, offsets, lengths = partition.ranges
    for row in np.flatnonzero((lengths == WHOLE) & (offsets > 0) & (targets != ABSENT)).tolist():
        raise open_end(join(array, grid.tail(numbers.start + row)), int(offsets[row]))


def open_end(key: str, offset: int) -> ManifestError:
    """Return the error that says that ``key`` reaches from within a target to its end."""
    return ManifestError(
        f"{key!r} begins at byte {offset} of its target and ends with it, which a reference set cannot say: give its "
        "length, or write it with format='chunk-manifest'"
    )
