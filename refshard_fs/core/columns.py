"""References of one array as columns, addressed by a chunk's number in the grid: 20 to 28 bytes each. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, compress
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.keys import ChunkGrid

__all__ = ["ABSENT", "ChunkTable", "DENSE", "Part", "Row", "SPARSE", "Shared", "Tables", "UInt32s", "UInt64s", "WHOLE"]

UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]

ABSENT = 2**32 - 1  # in the target column: no such chunk
DENSE, SPARSE = 20, 28  # bytes per chunk of the grid, and per chunk there is
FEW = 64  # rows that are looked at before all others
PATH = 200  # bytes that a path takes in dictionaries, roughly
WHOLE = 2**64 - 1  # in the length column: to the end of the target


class Row(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One reference: a target's place in the set's URLs, and a byte range; ``length=None`` reaches to the target's end.

    It is written as an array.
    """

    target: int
    offset: int
    length: int | None

    def spelled(self, url: str | None) -> list[Any]:
        """Return the reference to ``url`` as JSON sets have it; they have none from within a target to its end."""
        return [url] if self.length is None and not self.offset else [url, self.offset, self.length]


class Part(NamedTuple):
    """Some rows of a table, in any order."""

    numbers: npt.NDArray[np.unsignedinteger[Any]]
    targets: UInt32s
    offsets: UInt64s
    lengths: UInt64s

    @classmethod
    def none(cls) -> Part:
        """Return no rows."""
        return cls.from_rows(())

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, Row]]) -> Part:
        """Return (chunk number, row) pairs as columns."""
        pairs = list(rows)
        numbers = np.fromiter((n for n, _ in pairs), np.uint64, len(pairs))
        targets = np.fromiter((r.target for _, r in pairs), np.uint32, len(pairs))
        offsets = np.fromiter((r.offset for _, r in pairs), np.uint64, len(pairs))
        lengths = np.fromiter((WHOLE if r.length is None else r.length for _, r in pairs), np.uint64, len(pairs))
        return cls(numbers, targets, offsets, lengths)

    def rows(self) -> Iterator[Row]:
        """Yield the rows without their numbers."""
        for target, offset, length in zip(
            self.targets.tolist(), self.offsets.tolist(), self.lengths.tolist(), strict=True
        ):
            yield Row(target, offset, None if length == WHOLE else length)


class ChunkTable:
    """Where the chunks of one array lie; immutable.

    Dense tables hold a row for each chunk of the grid, sparse ones (``numbers`` given,
    ascending) a row for each chunk there is. The columns may be those of many tables: see `cut`.
    """

    __slots__ = ("_all", "_lengths", "_offsets", "_start", "_stop", "_targets", "grid")

    def __init__(
        self, grid: ChunkGrid, targets: UInt32s, offsets: UInt64s, lengths: UInt64s, numbers: UInt64s | None = None
    ) -> None:
        self.grid = grid
        self._all = targets, offsets, lengths, numbers
        self._start, self._stop = 0, len(targets)
        # Indexing a memoryview gives a Python int, five times faster than indexing the array.
        self._targets, self._offsets, self._lengths = targets.data, offsets.data, lengths.data

    def cut(self, grid: ChunkGrid, start: int, stop: int) -> ChunkTable:
        """Return the table of another array, of ``grid``, that has the rows from ``start`` to ``stop`` of this one."""
        table = ChunkTable.__new__(ChunkTable)
        table.grid, table._all, table._start, table._stop = grid, self._all, start, stop
        table._targets, table._offsets, table._lengths = self._targets, self._offsets, self._lengths
        return table

    @property
    def targets(self) -> UInt32s:
        return self._all[0][self._start : self._stop]

    @property
    def offsets(self) -> UInt64s:
        return self._all[1][self._start : self._stop]

    @property
    def lengths(self) -> UInt64s:
        return self._all[2][self._start : self._stop]

    @property
    def numbers(self) -> UInt64s | None:
        """The chunks there are, of a sparse table; None for a dense one."""
        numbers = self._all[3]
        return None if numbers is None else numbers[self._start : self._stop]

    def check(self) -> None:
        """Raise ValueError unless the columns are equally long, and those of a dense table as long as its grid."""
        _, offsets, lengths, numbers = self._all
        count = len(self.targets)
        if not len(offsets) == len(lengths) == count == (self.grid.size if numbers is None else len(numbers)):
            raise ValueError(f"a table's columns have {count}, {len(offsets)} and {len(lengths)} rows")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.grid, self.targets, self.offsets, self.lengths, self.numbers)

    @classmethod
    def from_parts(cls, grid: ChunkGrid, parts: list[Part]) -> ChunkTable:
        """Return the table of all ``parts``, dense where that is smaller; the last row of a chunk wins."""
        size = grid.size
        if size * DENSE <= sum(len(part.numbers) for part in parts) * SPARSE:
            dense = cls(grid, np.full(size, ABSENT, np.uint32), np.zeros(size, np.uint64), np.zeros(size, np.uint64))
            for part in parts:
                numbers = part.numbers
                dense.targets[numbers], dense.offsets[numbers] = part.targets, part.offsets
                dense.lengths[numbers] = part.lengths
            return dense
        numbers, targets, offsets, lengths = map(np.concatenate, zip(*parts, strict=True)) if parts else Part.none()
        if len(numbers) > 1 and not (numbers[1:] > numbers[:-1]).all():
            order = np.argsort(numbers, kind="stable")
            order = order[np.append(numbers[order[1:]] != numbers[order[:-1]], True)]
            numbers, targets, offsets, lengths = numbers[order], targets[order], offsets[order], lengths[order]
        there = targets != ABSENT
        if not there.all():
            numbers, targets, offsets, lengths = numbers[there], targets[there], offsets[there], lengths[there]
        return cls(grid, targets, offsets, lengths, numbers.astype(np.uint64, copy=False))

    def __len__(self) -> int:
        """Number of chunks that exist."""
        return self._stop - self._start if self._all[3] is not None else int((self.targets != ABSENT).sum())

    def __bool__(self) -> bool:
        """Whether any chunk exists."""
        if self._all[3] is not None:
            return self._stop > self._start
        targets = self.targets
        return bool((targets[:FEW] != ABSENT).any() or (targets[FEW:] != ABSENT).any())

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the columns take."""
        return (self._stop - self._start) * (DENSE if self._all[3] is None else SPARSE)

    def row(self, number: int) -> Row | None:
        """Return the reference of chunk ``number`` (within the grid), or None if there is no such chunk."""
        if self._all[3] is not None:
            numbers = self._all[3][self._start : self._stop]
            index = int(numbers.searchsorted(np.uint64(number)))
            if index == len(numbers) or numbers[index] != number:
                return None
            number = index
        number += self._start
        target = self._targets[number]
        if target == ABSENT:
            return None
        length = self._lengths[number]
        return Row(target, self._offsets[number], None if length == WHOLE else length)

    def present(self, start: int = 0, stop: int | None = None) -> UInt64s:
        """Return the numbers of all chunks that exist (of ``start`` to ``stop``), ascending."""
        numbers = self.numbers
        if numbers is not None:
            if start == 0 and stop is None:
                return numbers
            first, last = numbers.searchsorted(np.array([start, stop or self.grid.size], np.uint64)).tolist()
            return numbers[first:last]
        found = np.flatnonzero(self.targets[start:stop] != ABSENT)
        return (found + start).astype(np.uint64) if start else found.view(np.uint64)

    def existing(self, numbers: npt.NDArray[np.unsignedinteger[Any]]) -> list[int]:
        """Return those of ``numbers`` (within the grid) that are chunks there are."""
        known = self.numbers
        there = self.targets[numbers] != ABSENT if known is None else np.isin(numbers, known)
        return [int(number) for number in numbers[there]]

    def sizes(self, numbers: UInt64s) -> list[int | None]:
        """Return the lengths in bytes of chunks ``numbers``, which exist; None for whole targets."""
        known = self.numbers
        index = numbers if known is None else known.searchsorted(numbers)
        lengths = self.lengths[index]
        out: list[int | None] = lengths.tolist()
        for i in np.flatnonzero(lengths == WHOLE):
            out[i] = None
        return out

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Yield (number, reference) of each chunk that exists, ascending."""
        for number in self.present().tolist():
            row = self.row(number)
            if row is not None:
                yield number, row


class Shared(NamedTuple):
    """Tables that are rows of common ones: the rows from ``starts`` to ``stops``, of the dense one or of the other."""

    places: dict[str, int]  # by path
    grids: Mapping[str, ChunkGrid]
    made: tuple[ChunkTable, ChunkTable]
    dense: npt.NDArray[np.bool_]
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]

    def table(self, path: str) -> ChunkTable | None:
        """Return the table of an array that is one of these."""
        place = self.places.get(path)
        if place is None:
            return None
        base = self.made[0 if self.dense[place] else 1]
        return base.cut(self.grids[path], int(self.starts[place]), int(self.stops[place]))


class Tables(Mapping[str, ChunkTable]):
    """The tables of all arrays by path: their own, or shared ones, which are made when they are asked for."""

    __slots__ = ("own", "shared")

    def __init__(self, own: dict[str, ChunkTable], shared: Shared) -> None:
        self.own = own
        self.shared = shared

    def __len__(self) -> int:
        return len(self.own) + len(self.shared.places)

    def __iter__(self) -> Iterator[str]:
        return chain(self.shared.places, self.own)

    def __contains__(self, path: object) -> bool:
        return path in self.own or path in self.shared.places

    def __getitem__(self, path: str) -> ChunkTable:
        table = self.get(path)
        if table is None:
            raise KeyError(path)
        found: ChunkTable = table
        return found

    def get(self, path: str, default: Any = None) -> Any:
        """Return the table of an array."""
        table = self.own.get(path)
        if table is None:
            table = self.shared.table(path)
        return default if table is None else table

    def grid(self, path: str) -> ChunkGrid | None:
        """Return the grid of an array, without its table."""
        table = self.own.get(path)
        if table is not None:
            return table.grid
        return self.shared.grids[path] if path in self.shared.places else None

    def full(self) -> Iterator[str]:
        """Yield the arrays that have chunks."""
        yield from (path for path, table in self.own.items() if table)
        shared = self.shared
        there = shared.stops > shared.starts
        rows = shared.made[0].targets != ABSENT
        before = np.concatenate((np.zeros(1, np.int64), rows.cumsum()))
        bounds = np.where(shared.dense, shared.starts, 0), np.where(shared.dense, shared.stops, 0)
        there &= ~shared.dense | (before[bounds[1]] > before[bounds[0]])
        yield from compress(shared.places, there.tolist())

    @property
    def nbytes(self) -> int:
        """Bytes of memory that all columns take, and the paths of those that share them."""
        shared = self.shared
        rows = sum(table.nbytes for table in shared.made) + PATH * len(shared.places)
        return rows + sum(table.nbytes for table in self.own.values())

    def count(self) -> int:
        """Return how many chunks there are in all tables."""
        return sum(map(len, self.own.values())) + sum(map(len, self.shared.made))
