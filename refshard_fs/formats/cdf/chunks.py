"""Locate the chunks of a CDF variable. No I/O here.

The records of a variable are a stream of bytes. Each VVR or CVVR holds consecutive records, a run; a chunk is a range
of the stream.
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
from refshard_fs.formats.cdf.values import ConversionRecipe, DecompressionRecipe, Kind

# A compressed block of at least BLOCK bytes of values becomes a chunk. Blocks of the CDF library have almost 64 KiB.
BLOCK: Final = 32 << 10
JOINED: Final = 256 << 10  # bytes: smaller blocks are joined to chunks of at most this size
MOST_BLOCK: Final = 1 << 29  # the most bytes of a block after decompression
MOST_LEVELS: Final = 16  # the most levels of an index
_PREVIOUS: Final = 2  # value of `Variable.sparse`: a missing record repeats the record before it


class Layout(msgspec.Struct, frozen=True):
    """The division of a variable's values into chunks. ``shape`` and ``chunks`` have the order of axes in the file.

    ``axes`` has the numbers of the file's axes in the order that readers see. If the file is column-major, the two
    orders differ: then chunks of one record have the ``order`` F, and the axes of longer chunks are reordered while
    reading (``is_moved``). ``is_compressed``: zarr decompresses the chunks with gzip.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    axes: tuple[int, ...]
    order: Literal["C", "F"]
    is_moved: bool
    is_compressed: bool

    def convert_to_shown_order(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Convert lengths from the order of the file's axes to the order that readers see."""
        return tuple(lengths[axis] for axis in self.axes)


def choose_layout(variable: Variable, kind: Kind, block: int, *, is_row_major: bool) -> Layout:
    """Choose the chunks of a variable. ``block`` is the number of records that are compressed together."""
    first_axis, rank = int(variable.varies), len(variable.shape)
    axes = tuple(range(rank)) if is_row_major else (*range(first_axis), *reversed(range(first_axis, rank)))
    shape = tuple(variable.shape[axis] for axis in axes)
    size = kind.stored_dtype.itemsize
    record = max(math.prod(shape[first_axis:]) * size, 1)
    chunks, is_compressed = choose_chunks(shape, size), False
    if variable.compression and record <= MOST_FILL:
        count = max(min(block, variable.records), 1)
        if count * record < BLOCK and count < variable.records:
            count = min(count * (JOINED // (count * record)), variable.records)
        else:
            is_compressed = variable.compression == GZIP and kind.is_plain
        count = min(count, MOST_FILL // record)
        chunks = ((count,) if first_axis else ()) + tuple(max(length, 1) for length in shape[first_axis:])
    is_column_major = not is_row_major and sum(length > 1 for length in shape[first_axis:]) > 1
    is_moved = is_column_major and first_axis > 0 and chunks[0] > 1
    order: Literal["C", "F"] = "F" if is_column_major and not is_moved else "C"
    return Layout(shape, chunks, axes, order, is_moved, is_compressed and not is_moved)


class VariableChunks(FilledChunks):
    """The chunks of a variable. ``pad`` are the bytes of a missing value.

    The index is read when the first chunk is looked up, or, in a small file, on opening.
    """

    are_found_together = True

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
        itemsize = kind.stored_dtype.itemsize
        self._size = math.prod(layout.chunks) * itemsize
        super().__init__(array.where, grid, self._size, fills_itself=fills_itself)
        self._records = records
        self._variable = variable
        self._layout = layout
        self._pad = pad
        self._strides = [itemsize * math.prod(layout.shape[axis + 1 :]) for axis in range(len(layout.shape))]
        self._record_size = math.prod(variable.lengths) * itemsize
        self._is_plain = kind.is_plain and not layout.is_moved
        axes = layout.axes if layout.is_moved else tuple(range(len(layout.axes)))
        self._decoded_size = None if layout.is_compressed else self._size // itemsize * kind.shown_dtype.itemsize
        self._recipe = ConversionRecipe(kind, layout.chunks, axes, layout.is_compressed)
        self._runs: list[Run] | None = None
        self._inner_runs: dict[Run, list[Run]] = {}  # by run that is an index: the runs in it
        self._headers: dict[int, tuple[int, int]] = {}  # by offset of a record: its type, and bytes of its values

    def encode_fill(self) -> bytes:
        return self._recipe.make_fill(self._pad)

    def find_entry(self, number: int) -> Steps[Entry | None]:
        [entry] = yield from self.find_entries([number])
        return entry

    def find_entries(self, numbers: Sequence[int]) -> Steps[Sequence[Entry | None]]:
        ranges = [self._find_range(number) for number in numbers]
        yield from self._load_headers(ranges)
        return [self._make_entry(start, stop) for start, stop in ranges]

    def _find_range(self, number: int) -> tuple[int, int]:
        """Return the range of chunk ``number`` in the stream of values, in bytes."""
        start, size = 0, self._size
        coords = self.grid.coords(number)
        for coord, axis in zip(coords, self._layout.axes, strict=True):
            extent, chunk = self._layout.shape[axis], self._layout.chunks[axis]
            begin = coord * chunk
            start += begin * self._strides[axis]
            size = size // chunk * min(chunk, extent - begin)
        return start, start + size

    def load_runs(self) -> Steps[list[Run]]:
        """Return the runs in the first level of the index, sorted; read them if necessary."""
        if self._runs is None:
            runs = yield from self._records.read_runs(self._variable.index_offset)
            self._runs = self._check_runs(runs, 0, self._variable.records - 1)
        return self._runs

    def load_index(self) -> Steps[None]:
        """Read the whole index."""
        yield from self._load_headers([(0, self._record_size * self._variable.records)])

    def _check_runs(self, runs: list[Run], first: int, last: int) -> list[Run]:
        """Return the runs that begin at most at record ``last``, sorted; DamagedIndex if they overlap."""
        runs = sorted(run for run in runs if run.first <= last)
        for previous, run in zip([Run(0, first - 1, 0), *runs], runs, strict=False):
            if run.last < run.first or run.first <= previous.last:
                raise self._records.make_error(
                    f"{self.where}: its index lists records {run.first} to {run.last} after record {previous.last}: "
                    "expected each record once, in order"
                )
        return runs

    def _load_headers(self, ranges: Sequence[tuple[int, int]]) -> Steps[None]:
        """Read the headers of all runs in the ``ranges``, and the parts of the index that point to them."""
        runs = yield from self.load_runs()
        while True:
            needed_runs = dict.fromkeys(run for start, stop in ranges for run in self._find_runs(start, stop, runs))
            unread = [run.offset for run in needed_runs if run.offset not in self._headers]
            self._headers.update(zip(unread, (yield from self._records.read_headers(unread)), strict=True))
            indexes = [run for run in needed_runs if self._headers[run.offset][0] == VXR]
            if not indexes:
                return
            for index in indexes:
                inner_runs = yield from self._records.read_runs(index.offset)
                self._inner_runs[index] = self._check_runs(inner_runs, index.first, index.last)

    def _find_runs(self, start: int, stop: int, runs: Sequence[Run], level: int = 0) -> Iterator[Run]:
        """Yield the runs in a range of the stream.

        If missing records repeat the record before, also yield the run before the range.
        """
        if level >= MOST_LEVELS:
            raise self._records.make_error(
                f"{self.where}: its index is too deep: expected at most {MOST_LEVELS} levels"
            )
        if stop <= start:
            return
        begin = bisect_left(runs, start // self._record_size, key=lambda run: run.last)
        end = bisect_right(runs, (stop - 1) // self._record_size, key=lambda run: run.first)
        for run in runs[max(begin - 1, 0) if self._variable.sparse == _PREVIOUS else begin : end]:
            if run in self._inner_runs:
                yield from self._find_runs(start, stop, self._inner_runs[run], level + 1)
            else:
                yield run

    def _make_entry(self, start: int, stop: int) -> Entry | None:
        """Return the entry of a chunk, bytes ``start`` to ``stop`` of the stream; None if zarr fills the chunk."""
        parts: list[Entry] = []
        position, previous = start, None
        for run in self._find_runs(start, stop, self._runs or ()):
            begin, end = run.first * self._record_size, min((run.last + 1) * self._record_size, stop)
            if position < begin:
                parts.append(self._fill_missing(position, begin, previous))
                position = begin
            if position < end:
                parts.append(self._locate_values(run, position - begin, end - position))
                position = end
            previous = run
        if not parts and previous is None:
            self._check_sparse(start)
            return self.make_unwritten_entry()
        if position < stop:
            parts.append(self._fill_missing(position, stop, previous))
        [first_part, *other_parts] = parts
        if not other_parts and self._is_plain and first_part.size == self._size:
            if not self._layout.is_compressed:
                return first_part
            if (
                isinstance(first_part, Packed)
                and isinstance(first_part.recipe, DecompressionRecipe)
                and first_part.start is None
            ):
                return first_part.source  # zarr decompresses these bytes
        return self._pack_parts(parts, self._recipe, self._decoded_size)

    def _locate_values(self, run: Run, offset: int, size: int) -> Entry:
        """Return the entry of ``size`` bytes of values at ``offset`` in a run."""
        kind, stored_size = self._headers[run.offset]
        values_offset = run.offset + self._records.find_values_offset(kind)
        run_size = (run.last - run.first + 1) * self._record_size
        if kind == VVR and offset + size <= stored_size:
            return self._records.source.part(values_offset + offset, size)
        if kind != CVVR:
            raise self._records.make_error(
                f"{self.where}: the record at byte {run.offset} has the type {kind} and {stored_size} bytes of values: "
                f"expected the type {VVR} with {run_size} bytes, or the type {CVVR}"
            )
        if run_size > MOST_BLOCK:
            raise self._records.make_error(
                f"{self.where}: the block at byte {values_offset} has {run_size} bytes after decompression: expected "
                f"at most {MOST_BLOCK}"
            )
        recipe = DecompressionRecipe(self._variable.compression, run_size)
        entry = make_entry(self._records.source.part(values_offset, stored_size), recipe, run_size, self._records.url)
        return entry if size == run_size else entry.part(offset, size)

    def _fill_missing(self, start: int, stop: int, previous: Run | None) -> Entry:
        """Return the entry of records that are not in the file; ``previous`` is the run before them."""
        self._check_sparse(start)
        if previous is None or self._variable.sparse != _PREVIOUS:
            return Inline(self._pad * ((stop - start) // len(self._pad)))
        last_start = (previous.last - previous.first) * self._record_size
        size = min(stop - start, self._record_size)
        record = self._locate_values(previous, last_start + start % self._record_size, size)
        return (
            record
            if size == stop - start
            else self._pack_parts([record], RepetitionRecipe((stop - start) // size), stop - start)
        )

    def _check_sparse(self, start: int) -> None:
        """Raise DamagedIndex for a missing record at byte ``start``, unless records of the variable may be missing."""
        if self._variable.varies and not self._variable.sparse:
            raise self._records.make_error(
                f"{self.where}: expected record {start // self._record_size} in its index, found none (only a sparse "
                "variable may lack records)"
            )

    def _pack_parts(self, parts: list[Entry], recipe: ConversionRecipe | RepetitionRecipe, size: int | None) -> Entry:
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
            return None  # if they are too many to list, the caller raises
        if self._variable.varies and not self._variable.sparse:
            return None  # without gaps, each chunk exists
        if self._variable.sparse == _PREVIOUS and runs:
            runs = [Run(runs[0].first, self._variable.records - 1, 0)]
        counts = self.grid.counts[0] if self._variable.varies else 1
        step = self._layout.chunks[0] if self._variable.varies else 1
        is_written = np.zeros(counts, bool)
        for run in runs:
            is_written[run.first // step : run.last // step + 1] = True
        if is_written.all():
            return None
        chunks_per_row = self.grid.size // counts
        return self.list_written(np.flatnonzero(np.repeat(is_written, chunks_per_row)).astype(np.uint64))


class RepetitionRecipe(msgspec.Struct, frozen=True):
    """Repeat the bytes of a record ``count`` times."""

    count: int

    def make(self, raw: bytes) -> bytes:
        return raw * self.count
