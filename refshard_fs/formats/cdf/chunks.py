"""Where the chunks of a CDF variable lie. No I/O here.

The records of a variable form a stream of bytes. Each VVR or CVVR holds a run of it; a chunk is a range of it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from refshard_fs.core.array_group import LISTABLE, MOST_FILL, ArrayDescription, FilledChunks, choose_chunks, make_entry
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import Entry, Inline, Listed, Packed, Span, Steps
from refshard_fs.formats.cdf.records import CVVR, GZIP, VVR, VXR, Records, Run, Variable
from refshard_fs.formats.cdf.values import Decompressed, Kind, Shown

BLOCK: Final = (
    32 << 10
)  # bytes of values in a compressed block that becomes a chunk (the library's have almost 64 KiB);
JOINED: Final = 256 << 10  # smaller ones are joined to chunks of this size
MOST_BLOCK: Final = 1 << 29  # bytes that are decompressed together
MOST_LEVELS: Final = 16  # levels of an index
_PREVIOUS: Final = 2  # missing records repeat the one before


class Layout(msgspec.Struct, frozen=True):
    """The division of a variable's values into chunks. ``shape`` and ``chunks`` have the order of axes in the file.

    Readers see the ``axes`` in another order if the file is column-major: chunks of one record have the ``order`` F; in
    others the axes are moved when they are read. Readers decompress chunks by gzip if they are ``is_compressed``.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    axes: tuple[int, ...]
    order: Literal["C", "F"]
    is_moved: bool
    is_compressed: bool

    def to_shown_order(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Return lengths of the file's axes in the order that readers see."""
        return tuple(lengths[axis] for axis in self.axes)


def layout_of(variable: Variable, kind: Kind, block: int, *, is_row_major: bool) -> Layout:
    """Return the division of a variable. If it is compressed, ``block`` records are compressed together."""
    first, rank = int(variable.varies), len(variable.shape)
    axes = tuple(range(rank)) if is_row_major else (*range(first), *reversed(range(first, rank)))
    shape = tuple(variable.shape[axis] for axis in axes)
    size = kind.stored.itemsize
    record = max(math.prod(shape[first:]) * size, 1)
    chunks, is_compressed = choose_chunks(shape, size), False
    if variable.compression and record <= MOST_FILL:
        count = max(min(block, variable.records), 1)
        if count * record < BLOCK and count < variable.records:
            count = min(count * (JOINED // (count * record)), variable.records)
        else:
            is_compressed = variable.compression == GZIP and kind.is_plain
        count = min(count, MOST_FILL // record)
        chunks = ((count,) if first else ()) + tuple(max(length, 1) for length in shape[first:])
    is_column_major = not is_row_major and sum(length > 1 for length in shape[first:]) > 1
    is_moved = is_column_major and first > 0 and chunks[0] > 1
    order: Literal["C", "F"] = "F" if is_column_major and not is_moved else "C"
    return Layout(shape, chunks, axes, order, is_moved, is_compressed and not is_moved)


class VariableChunks(FilledChunks):
    """The chunks of a variable. ``pad`` is a missing value; the index is read when the first chunk is looked up."""

    def __init__(
        self,
        records: Records,
        variable: Variable,
        kind: Kind,
        layout: Layout,
        array: ArrayDescription,
        grid: ChunkGrid,
        pad: bytes,
        *,
        fills_itself: bool,
    ) -> None:
        itemsize = kind.stored.itemsize
        self._size = math.prod(layout.chunks) * itemsize
        super().__init__(array.where, grid, self._size, fills_itself=fills_itself)
        self._records = records
        self._variable = variable
        self._layout = layout
        self._pad = pad
        self._strides = [itemsize * math.prod(layout.shape[axis + 1 :]) for axis in range(len(layout.shape))]
        self._record = math.prod(variable.lengths) * itemsize
        self._is_plain = kind.is_plain and not layout.is_moved
        axes = layout.axes if layout.is_moved else tuple(range(len(layout.axes)))
        self._decoded = None if layout.is_compressed else self._size // itemsize * kind.shown.itemsize
        self._recipe = Shown(kind, layout.chunks, axes, layout.is_compressed)
        self._runs: list[Run] | None = None
        self._inner: dict[Run, list[Run]] = {}  # runs below the runs that are indexes
        self._headers: dict[int, tuple[int, int]] = {}  # type, and bytes of values, of records by their offset

    def encode_fill(self) -> bytes:
        return self._recipe.fill(self._pad)

    def entry(self, number: int) -> Steps[Entry | None]:
        [found] = yield from self.entries([number])
        return found

    def entries(self, numbers: Sequence[int]) -> Steps[Sequence[Entry | None]]:
        ranges = [self._range(number) for number in numbers]
        yield from self._load(ranges)
        return [self._entry(start, stop) for start, stop in ranges]

    def _range(self, number: int) -> tuple[int, int]:
        """Return the range of chunk ``number`` in the stream of values."""
        start, size = 0, self._size
        coords = self.grid.coords(number)
        for coord, axis in zip(coords, self._layout.axes, strict=True):
            extent, chunk = self._layout.shape[axis], self._layout.chunks[axis]
            first = coord * chunk
            start += first * self._strides[axis]
            size = size // chunk * min(chunk, extent - first)
        return start, start + size

    def load_runs(self) -> Steps[list[Run]]:
        """Return the runs of records that the first level of the index has, ascending."""
        if self._runs is None:
            found = yield from self._records.read_runs(self._variable.index_at)
            self._runs = self._check_runs(found, 0, self._variable.records - 1)
        return self._runs

    def load_index(self) -> Steps[None]:
        """Read the whole index."""
        yield from self._load([(0, self._record * self._variable.records)])

    def _check_runs(self, runs: list[Run], first: int, last: int) -> list[Run]:
        runs = sorted(run for run in runs if run.first <= last)
        for before, run in zip([Run(0, first - 1, 0), *runs], runs, strict=False):
            if run.last < run.first or run.first <= before.last:
                raise self._records.damage_error(
                    f"{self.where}: its index has the records {run.first} to {run.last} twice"
                )
        return runs

    def _load(self, ranges: Sequence[tuple[int, int]]) -> Steps[None]:
        """Read the headers of all runs that the ``ranges`` take, and the parts of the index that lead to them."""
        runs = yield from self.load_runs()
        while True:
            wanted = dict.fromkeys(run for start, stop in ranges for run in self._find_runs(start, stop, runs))
            new = [run.at for run in wanted if run.at not in self._headers]
            self._headers.update(zip(new, (yield from self._records.read_headers(new)), strict=True))
            indexes = [run for run in wanted if self._headers[run.at][0] == VXR]
            if not indexes:
                return
            for index in indexes:
                found = yield from self._records.read_runs(index.at)
                self._inner[index] = self._check_runs(found, index.first, index.last)

    def _find_runs(self, start: int, stop: int, runs: Sequence[Run], level: int = 0) -> Iterator[Run]:
        """Yield the runs in a range of the stream, and some before it if missing records repeat them."""
        if level > MOST_LEVELS:
            raise self._records.damage_error(f"{self.where}: its index has more than {MOST_LEVELS} levels")
        if stop <= start:
            return
        first = bisect_left(runs, start // self._record, key=lambda run: run.last)
        end = bisect_right(runs, (stop - 1) // self._record, key=lambda run: run.first)
        for run in runs[max(first - 1, 0) if self._variable.sparse == _PREVIOUS else first : end]:
            if run in self._inner:
                yield from self._find_runs(start, stop, self._inner[run], level + 1)
            else:
                yield run

    def _entry(self, start: int, stop: int) -> Entry | None:
        parts: list[Entry] = []
        at, before = start, None
        for run in self._find_runs(start, stop, self._runs or ()):
            begin, end = run.first * self._record, min((run.last + 1) * self._record, stop)
            if at < begin:
                parts.append(self._fill_missing(at, begin, before))
                at = begin
            if at < end:
                parts.append(self._values(run, at - begin, end - at))
                at = end
            before = run
        if not parts and before is None:
            self._check_sparse(start)
            return self.unwritten_entry()
        if at < stop:
            parts.append(self._fill_missing(at, stop, before))
        [first, *others] = parts
        if not others and self._is_plain and first.size == self._size:
            if not self._layout.is_compressed:
                return first
            if isinstance(first, Packed) and isinstance(first.recipe, Decompressed) and first.start is None:
                return first.source  # the compressed bytes, as they are
        return self._join(parts, self._recipe, self._decoded)

    def _values(self, run: Run, offset: int, size: int) -> Entry:
        """Return values of a run: a part of the file if they are not compressed."""
        kind, length = self._headers[run.at]
        at = run.at + self._records.data_at(kind)
        count = (run.last - run.first + 1) * self._record
        if kind == VVR and offset + size <= length:
            return self._records.source.part(at + offset, size)
        if kind != CVVR or count > MOST_BLOCK:
            raise self._records.damage_error(
                f"{self.where}: its record at byte {at} has {length} bytes: expected {count} bytes of values"
            )
        recipe = Decompressed(self._variable.compression, count)
        whole = make_entry(self._records.source.part(at, length), recipe, count, self._records.url)
        return whole if size == count else whole.part(offset, size)

    def _fill_missing(self, start: int, stop: int, before: Run | None) -> Entry:
        """Return the values of records that are not in the file; ``before`` is the run before them."""
        self._check_sparse(start)
        if before is None or self._variable.sparse != _PREVIOUS:
            return Inline(self._pad * ((stop - start) // len(self._pad)))
        last = (before.last - before.first) * self._record
        size = min(stop - start, self._record)
        one = self._values(before, last + start % self._record, size)
        return one if size == stop - start else self._join([one], Repeated((stop - start) // size), stop - start)

    def _check_sparse(self, start: int) -> None:
        """Raise DamagedIndex for a missing record at ``start``, unless records of the variable may be missing."""
        if self._variable.varies and not self._variable.sparse:
            raise self._records.damage_error(
                f"{self.where}: its index lacks record {start // self._record}, and its records are not sparse"
            )

    def _join(self, parts: list[Entry], recipe: Shown | Repeated, size: int | None) -> Entry:
        spans = [span for part in parts for span in part.spans]
        if not spans:
            return Inline(recipe.make(b"".join([part.data for part in parts if isinstance(part, Inline)])))
        start = min(span.start for span in spans)
        source = self._records.source.part(start, max(span.stop or 0 for span in spans) - start)
        assert isinstance(source, Span)
        return Packed(source, recipe, size, parts=tuple(parts))

    def list_existing(self) -> Steps[list[Listed] | None]:
        runs = yield from self.load_runs()
        if self.grid.size > LISTABLE or not self.grid.size:
            return None  # too many to list, which is an error of the caller
        if self._variable.varies and not self._variable.sparse:
            return None  # all should be there
        if self._variable.sparse == _PREVIOUS and runs:
            runs = [Run(runs[0].first, self._variable.records - 1, 0)]
        counts = self.grid.counts[0] if self._variable.varies else 1
        step = self._layout.chunks[0] if self._variable.varies else 1
        is_written = np.zeros(counts, bool)
        for run in runs:
            is_written[run.first // step : run.last // step + 1] = True
        if is_written.all():
            return None
        inner = self.grid.size // counts
        return self.list_written(np.flatnonzero(np.repeat(is_written, inner)).astype(np.uint64))


class Repeated(msgspec.Struct, frozen=True):
    """Recipe: repeat a record ``count`` times."""

    count: int

    def make(self, raw: bytes) -> bytes:
        return raw * self.count
