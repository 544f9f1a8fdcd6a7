"""Columns of references, tables of the chunks of an array, and compact sequences of texts. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, NamedTuple, overload

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.keys import ChunkGrid

UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
Index = Any  # an index of numpy: a slice, positions or a mask

NO_TARGET = 2**32 - 1  # in the column of targets: the row has no reference
DENSE, SPARSE = 20, 28  # bytes for each chunk of the grid in a dense table, and for each existing chunk in a sparse one
WHOLE = 2**64 - 1  # in the column of lengths: to the end of the target


class Row(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One reference: a target, as an index into the set's URLs, and a byte range of it.

    ``length=None`` means up to the end of the target. In JSON a row is an array.
    """

    target: int
    offset: int
    length: int | None

    def to_json(self, url: str | None) -> list[Any]:
        """Return the reference to ``url`` as it is written in JSON sets: ``[url]``, or ``[url, offset, length]``."""
        return [url] if self.length is None and not self.offset else [url, self.offset, self.length]


class Ranges(NamedTuple):
    """References as columns of equal length."""

    targets: UInt32s
    offsets: UInt64s
    lengths: UInt64s

    @classmethod
    def make_absent(cls, count: int) -> Ranges:
        """Return ``count`` rows without a reference."""
        return cls(np.full(count, NO_TARGET, np.uint32), np.zeros(count, np.uint64), np.zeros(count, np.uint64))

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Ranges:
        """Convert rows to columns."""
        count = len(rows)
        return cls(
            np.fromiter((row.target for row in rows), np.uint32, count),
            np.fromiter((row.offset for row in rows), np.uint64, count),
            np.fromiter((WHOLE if row.length is None else row.length for row in rows), np.uint64, count),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Ranges]) -> Ranges:
        """Return the rows of all ``parts``."""
        return cls(*map(np.concatenate, zip(*(cls.make_absent(0), *parts), strict=True)))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.targets)

    @property
    def nbytes(self) -> int:
        """The size of the columns in bytes."""
        return sum(column.nbytes for column in self)

    def take(self, index: Index) -> Ranges:
        """Return the rows at ``index``."""
        return Ranges(self.targets[index], self.offsets[index], self.lengths[index])

    def put(self, index: Index, rows: Ranges) -> None:
        """Replace the rows at ``index``."""
        self.targets[index], self.offsets[index], self.lengths[index] = rows

    def get_row(self, place: int) -> Row | None:
        """Return the row at ``place``; None if it has no reference."""
        target = int(self.targets[place])
        if target == NO_TARGET:
            return None
        length = int(self.lengths[place])
        return Row(target, int(self.offsets[place]), None if length == WHOLE else length)


class Part(NamedTuple):
    """The references of some chunks of one array, and the numbers of these chunks, in any order."""

    numbers: npt.NDArray[np.unsignedinteger[Any]]
    ranges: Ranges

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, Row]]) -> Part:
        """Convert (chunk number, row) pairs to columns."""
        pairs = list(rows)
        numbers = np.fromiter((n for n, _ in pairs), np.uint64, len(pairs))
        return cls(numbers, Ranges.of([row for _, row in pairs]))


class PartsBuilder:
    """Collect rows of one array in columns that grow: joining many parts at the end would take twice the memory."""

    def __init__(self, grid: ChunkGrid) -> None:
        self._size = grid.size
        numbers = np.empty(0, np.uint32 if grid.size < 2**32 else np.uint64)
        self._columns: list[npt.NDArray[Any]] = [numbers, *Ranges.make_absent(0)]
        self._ends: list[tuple[int, int]] = []  # the order of each added part, and the row after its last row

    def add(self, order: int, part: Part) -> None:
        """Add the rows of ``part``. They replace rows of the same chunks with a lower ``order``."""
        start = self._ends[-1][1] if self._ends else 0
        stop = start + len(part.numbers)
        if stop > len(self._columns[0]):
            # Most arrays have a row for each chunk of the grid, and untouched memory costs nothing.
            room = min(4 * stop, self._size) if stop <= self._size else 2 * stop
            for i, column in enumerate(self._columns):
                self._columns[i] = np.empty(room, column.dtype)
                self._columns[i][:start] = column[:start]
        for column, added in zip(self._columns, (part.numbers, *part.ranges), strict=True):
            column[start:stop] = added
        self._ends.append((order, stop))

    def list_parts(self) -> list[tuple[int, Part]]:
        """Return the (order, rows) of each added part, by ascending order.

        The rows are views of the columns, and invalid after the next `add`.
        """
        starts = [0, *(stop for _, stop in self._ends)]
        parts = [
            (order, self._make_part(start, stop)) for start, (order, stop) in zip(starts, self._ends, strict=False)
        ]
        return sorted(parts, key=itemgetter(0))

    def finish(self) -> list[Part]:
        """Return the added parts by ascending order, as a single part if they were added in this order."""
        if any(first > second for (first, _), (second, _) in pairwise(self._ends)):
            return [part for _, part in self.list_parts()]
        return [self._make_part(0, self._ends[-1][1])]

    def _make_part(self, start: int, stop: int) -> Part:
        numbers, *ranges = (column[start:stop] for column in self._columns)
        return Part(numbers, Ranges(*ranges))


class ChunkTable:
    """An immutable table of the references of one array's chunks.

    Dense tables have a row for each chunk of the grid, sparse tables (with ascending ``numbers``) a row for each chunk
    that exists.
    """

    __slots__ = ("_lengths", "_offsets", "_targets", "grid", "numbers", "ranges")

    def __init__(self, grid: ChunkGrid, ranges: Ranges, numbers: UInt64s | None = None) -> None:
        self.grid = grid
        self.ranges = ranges
        self.numbers = numbers
        # Indexing a memoryview gives a Python int, five times faster than indexing the array.
        self._targets, self._offsets, self._lengths = (column.data for column in ranges)

    def check(self) -> None:
        """Raise ValueError unless each column has a row for each chunk; a dense table has all chunks of its grid."""
        sizes = {len(column) for column in self.ranges}
        chunks = self.grid.size if self.numbers is None else len(self.numbers)
        if sizes != {chunks}:
            raise ValueError(f"a table's columns have {sorted(sizes)} rows: expected {chunks}, a row for each chunk")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.grid, self.ranges, self.numbers)

    @classmethod
    def from_parts(cls, grid: ChunkGrid, parts: Sequence[Part]) -> ChunkTable:
        """Make a table of all ``parts``, dense if this takes less memory. The last row of a chunk is kept."""
        size = grid.size
        if len(parts) == 1 and len(parts[0].numbers) == size and is_ascending(parts[0].numbers):
            return cls(grid, parts[0].ranges)
        if size * DENSE <= sum(len(part.numbers) for part in parts) * SPARSE:
            dense = Ranges.make_absent(size)
            for part in parts:
                dense.put(part.numbers, part.ranges)
            return cls(grid, dense)
        numbers = np.concatenate([np.zeros(0, np.uint64), *(part.numbers for part in parts)]).astype(np.uint64)
        ranges = Ranges.concatenate([part.ranges for part in parts])
        if not is_ascending(numbers):
            order = np.argsort(numbers, kind="stable")
            order = order[np.append(numbers[order[1:]] != numbers[order[:-1]], True)]
            numbers, ranges = numbers[order], ranges.take(order)
        has_target = ranges.targets != NO_TARGET
        if not has_target.all():
            numbers, ranges = numbers[has_target], ranges.take(has_target)
        return cls(grid, ranges, numbers)

    def __len__(self) -> int:
        """Return the number of chunks that exist."""
        return int((self.ranges.targets != NO_TARGET).sum()) if self.numbers is None else len(self.numbers)

    @property
    def nbytes(self) -> int:
        """The size of the columns in bytes."""
        return len(self.ranges.targets) * (DENSE if self.numbers is None else SPARSE)

    def get_row(self, number: int) -> Row | None:
        """Return the reference of chunk ``number`` (within the grid), or None if the chunk does not exist."""
        numbers = self.numbers
        if numbers is not None:
            place = int(numbers.searchsorted(np.uint64(number)))
            if place == len(numbers) or numbers[place] != number:
                return None
            number = place
        target = self._targets[number]
        if target == NO_TARGET:
            return None
        length = self._lengths[number]
        return Row(target, self._offsets[number], None if length == WHOLE else length)

    def make_part(self, numbers: UInt64s | None = None) -> Part:
        """Return the rows of chunks ``numbers``, which must exist; by default, of all chunks that exist."""
        if numbers is None:
            numbers = self.list_present()
            if len(numbers) == self.ranges.rows:
                return Part(numbers, self.ranges)
        return Part(numbers, self.ranges.take(self._find_rows(numbers)))

    def _find_rows(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the rows of the chunks ``numbers``, which must exist."""
        return numbers if self.numbers is None else self.numbers.searchsorted(numbers)

    def list_present(self, start: int = 0, stop: int | None = None) -> UInt64s:
        """Return the numbers of all chunks that exist in ``[start, stop)``, ascending."""
        numbers = self.numbers
        if numbers is not None:
            if start == 0 and stop is None:
                return numbers
            first, last = numbers.searchsorted(np.array([start, stop or self.grid.size], np.uint64)).tolist()
            return numbers[first:last]
        found = np.flatnonzero(self.ranges.targets[start:stop] != NO_TARGET)
        return (found + start).astype(np.uint64) if start else found.view(np.uint64)

    def select_present(self, numbers: npt.NDArray[np.unsignedinteger[Any]]) -> list[int]:
        """Return the ``numbers`` (within the grid) whose chunks exist."""
        known = self.numbers
        exists = self.ranges.targets[numbers] != NO_TARGET if known is None else np.isin(numbers, known)
        return [int(number) for number in numbers[exists]]

    def get_sizes(self, numbers: UInt64s) -> list[int | None]:
        """Return the lengths in bytes of chunks ``numbers``, which must exist; None for whole targets."""
        lengths = self.ranges.lengths[self._find_rows(numbers)]
        out: list[int | None] = lengths.tolist()
        for i in np.flatnonzero(lengths == WHOLE):
            out[i] = None
        return out

    def iterate_rows(self) -> Iterator[tuple[int, Row]]:
        """Yield (number, reference) of each chunk that exists, ascending."""
        for number in self.list_present().tolist():
            row = self.get_row(number)
            if row is not None:
                yield number, row


def is_ascending(numbers: npt.NDArray[np.unsignedinteger[Any]]) -> bool:
    """Return whether each number is larger than the one before."""
    return bool((numbers[1:] > numbers[:-1]).all())


def find_distinct_codes(codes: UInt32s, count: int) -> tuple[list[int], npt.NDArray[np.int64]]:
    """Return the distinct ``codes`` in ascending order, and for each code its position among them.

    All codes are below ``count``.
    """
    if len(codes) <= 1:  # look-ups of one chunk
        return codes.tolist(), np.zeros(len(codes), np.int64)
    if count > 4 * len(codes):
        used, places = np.unique(codes, return_inverse=True)
        return used.tolist(), places
    occurs = np.zeros(count, bool)  # faster than sorting
    occurs[codes] = True
    return np.flatnonzero(occurs).tolist(), (occurs.cumsum() - 1)[codes]


def renumber(numbers: UInt64s, before: ChunkGrid, after: ChunkGrid) -> tuple[UInt64s, npt.NDArray[np.bool_]]:
    """Convert chunk numbers in the grid ``before`` to the grid ``after``, and return a mask of those inside it."""
    if before.counts[1:] == after.counts[1:]:
        return numbers, numbers < after.size
    new, inside = np.zeros(len(numbers), np.uint64), np.ones(len(numbers), np.bool_)
    if len(numbers):
        for coords, count in zip(np.unravel_index(numbers.astype(np.int64), before.counts), after.counts, strict=True):
            inside &= coords < count
            new = new * np.uint64(count) + coords.astype(np.uint64)
    return new, inside


# Many texts in two arrays: each takes its bytes and eight more.


_NONE = np.uint64(1 << 63)  # a bit in the column of ends that marks None
_DECODED = 1 << 16  # texts whose bytes are copied at a time
_SCATTERED = 64  # texts that are less than 1/64 of the bytes around them are copied one by one
_NO_TEXT = b"\xff"  # the bytes of None, which are not valid UTF-8


@lru_cache(1024)
def _make_single_end(length: int) -> npt.NDArray[np.uint64]:
    """Return the column of ends of a single text; cached, because 100,000 files have URLs of few different lengths."""
    ends = np.array([length], np.uint64)
    ends.flags.writeable = False
    return ends


class Texts(Sequence[str | None]):
    """An immutable sequence of texts or None: ``data`` has all texts, joined, and ``ends`` the end of each in it."""

    __slots__ = ("data", "ends")

    def __init__(self, data: npt.NDArray[np.uint8], ends: npt.NDArray[np.uint64]) -> None:
        self.data = data
        self.ends = ends

    @classmethod
    def of(cls, texts: Iterable[str | bytes | None]) -> Texts:
        """Make a sequence of ``texts``; bytes are UTF-8, in which lone surrogates are allowed."""
        not_none = (_NO_TEXT if text is None else text for text in texts)
        encoded = [text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass") for text in not_none]
        if len(encoded) == 1 and encoded[0] != _NO_TEXT:
            return cls(np.frombuffer(encoded[0], np.uint8), _make_single_end(len(encoded[0])))
        ends = np.fromiter(accumulate(map(len, encoded)), np.uint64, len(encoded))
        if _NO_TEXT in encoded:
            ends[[text == _NO_TEXT for text in encoded]] |= _NONE
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    @classmethod
    def concatenate(cls, parts: Sequence[Texts]) -> Texts:
        """Join the texts of all ``parts``."""
        shift = 0
        ends = [np.zeros(0, np.uint64)]
        for part in parts:
            ends.append(part.ends + np.uint64(shift))  # the mark of None, the highest bit, stays
            shift += len(part.data)
        return cls(np.concatenate([np.zeros(0, np.uint8), *(part.data for part in parts)]), np.concatenate(ends))

    def find_spans(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the offsets in ``data`` at which the texts begin, and at which they end."""
        stops = (self.ends & ~_NONE).view(np.int64)
        return np.concatenate(([0], stops))[:-1], stops

    def select(self, mask: npt.NDArray[np.bool_]) -> Texts:
        """Return the texts for which ``mask`` is true."""
        if mask.all():
            return self
        starts, stops = self.find_spans()
        sizes = stops - starts
        ends = sizes[mask].cumsum().view(np.uint64) | self.ends[mask] & _NONE
        return Texts(self.data[mask.repeat(sizes)], ends)

    @property
    def nbytes(self) -> int:
        """The size of the arrays in bytes."""
        return self.data.nbytes + self.ends.nbytes

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[str | None]: ...
    def __getitem__(self, index: int | slice) -> str | list[str | None] | None:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        place = range(len(self.ends))[index]
        stop = int(self.ends[place])
        if stop & int(_NONE):
            return None
        start = int(self.ends[place - 1]) & ~int(_NONE) if place else 0
        return self.data[start:stop].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str | None]:
        for first in range(0, len(self), _DECODED):
            yield from self.take(np.arange(first, min(first + _DECODED, len(self))))

    def take(self, places: npt.NDArray[np.int64]) -> list[str | None]:
        """Return the texts at ``places``."""
        starts, stops = self.find_spans()
        found: list[str | None] = []
        for first in range(0, len(places), _DECODED):
            part = places[first : first + _DECODED]
            is_none = self.list_none(part)
            begins, ends = starts[part], stops[part]
            offset, stop = int(begins.min()), int(ends.max())
            if is_none.all():
                found += [None] * len(part)
                continue
            if stop - offset > _SCATTERED * (int((ends - begins).sum()) + 1):
                found += map(self.__getitem__, part.tolist())
                continue
            data = self.data[offset:stop].tobytes()
            spans = zip((begins - offset).tolist(), (ends - offset).tolist(), strict=True)
            if data.isascii() and not is_none.any():  # half the time of cutting bytes and decoding each
                text = data.decode("ascii")
                found += [text[start:stop] for start, stop in spans]
            else:
                cut = zip(spans, is_none.tolist(), strict=True)
                found += [
                    None if missing else data[start:stop].decode("utf-8", "surrogatepass")
                    for (start, stop), missing in cut
                ]
        return found

    def list_none(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for each of ``places`` whether there is None in place of a text."""
        return (self.ends[places] & _NONE).astype(bool)

    def __repr__(self) -> str:
        return f"<{len(self)} texts>"
