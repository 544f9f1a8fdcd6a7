"""Selections of elements in the mappings of virtual datasets: parse them, and pair their elements. No I/O here.

A box selects a set of coordinates along each axis. Its elements along an axis are numbered from 0, in ascending order
of their coordinates: these numbers are the ordinals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.file import Fields

Coordinates = npt.NDArray[np.int64]
Places = range | Coordinates  # ascending coordinates: a range takes no memory

UNLIMITED: Final = 1 << 62  # the size of a selection that grows with its source, along one axis
MOST_BLOCKS: Final = 1 << 20  # blocks of one irregular selection
_MOST_DIMENSIONS: Final = 32


# Coordinates along one axis.


class Hyperslab(NamedTuple):
    """``size`` elements along an axis: blocks of ``block`` elements begin every ``stride`` elements.

    The last block may be shorter.
    """

    start: int
    size: int
    block: int
    stride: int

    @property
    def end(self) -> int:
        """The coordinate after the last element."""
        return self.start + (self.size - 1) // self.block * self.stride + (self.size - 1) % self.block + 1

    def count_before(self, coordinates: Any) -> Any:
        """Return the number of elements before each of ``coordinates``."""
        row, within = np.divmod(coordinates - self.start, self.stride)
        return np.clip(row * self.block + np.minimum(within, self.block), 0, self.size)

    def locate(self, ordinals: Coordinates) -> Coordinates:
        """Return the coordinates of elements."""
        return self.start + ordinals // self.block * self.stride + ordinals % self.block

    def locate_run(self, ordinals: range) -> Places:
        """Return the coordinates of elements with consecutive ordinals."""
        if self.block == 1 or self.block >= self.size:
            step = self.stride if self.block == 1 else 1
            start = self.start + ordinals.start * step
            return range(start, start + len(ordinals) * step, step)
        return self.locate(np.arange(ordinals.start, ordinals.stop))

    def list_runs(self) -> tuple[Coordinates, Coordinates]:
        """Return the starts and the lengths of the blocks."""
        done = np.arange(0, self.size, self.block)
        return self.locate(done), np.minimum(self.block, self.size - done)

    @property
    def run_count(self) -> int:
        """The number of blocks."""
        return -(-self.size // self.block)

    def scale(self, extent: int) -> Hyperslab | None:
        """Return the selected chunks of ``extent`` elements. None if a block, except the last, has a part of a chunk.

        The last block may end within a chunk.
        """
        if self.start % extent or (self.size > self.block and (self.block % extent or self.stride % extent)):
            return None
        block = -(-self.block // extent)
        return Hyperslab(self.start // extent, -(-self.size // extent), block, max(self.stride // extent, block))


class Runs:
    """Elements along an axis in runs of different lengths or at different distances."""

    def __init__(self, starts: Coordinates, lengths: Coordinates) -> None:
        self._starts, self._lengths = starts, lengths
        self._offsets = np.concatenate(([0], np.cumsum(lengths)))  # ordinals at which the runs begin
        self.start, self.end = int(starts[0]), int(starts[-1] + lengths[-1])
        self.size, self.run_count = int(self._offsets[-1]), len(starts)

    def count_before(self, coordinates: Any) -> Any:
        """Return the number of elements before each of ``coordinates``."""
        run = np.maximum(np.searchsorted(self._starts, coordinates, "right") - 1, 0)
        return self._offsets[run] + np.clip(coordinates - self._starts[run], 0, self._lengths[run])

    def locate(self, ordinals: Coordinates) -> Coordinates:
        """Return the coordinates of elements."""
        run = np.searchsorted(self._offsets, ordinals, "right") - 1
        coordinates: Coordinates = self._starts[run] + ordinals - self._offsets[run]
        return coordinates

    def locate_run(self, ordinals: range) -> Places:
        """Return the coordinates of elements with consecutive ordinals."""
        return self.locate(np.arange(ordinals.start, ordinals.stop))

    def list_runs(self) -> tuple[Coordinates, Coordinates]:
        """Return the starts and the lengths of the runs."""
        return self._starts, self._lengths

    def scale(self, extent: int) -> Runs | None:
        """Return the selected chunks of ``extent`` elements; see `Hyperslab.scale`."""
        if (self._starts % extent).any() or (self._lengths[:-1] % extent).any():
            return None
        return Runs(self._starts // extent, -(-self._lengths // extent))


Axis = Hyperslab | Runs
Box = tuple[Axis, ...]  # for each axis


class Blocks:
    """Separate blocks that do not make a box.

    ``bounds``, of the shape (blocks, 2, axes), are the first coordinates of each block, and those after the last.
    """

    def __init__(self, bounds: Coordinates) -> None:
        self.bounds = bounds

    @property
    def size(self) -> int:
        """The number of elements."""
        return int((self.bounds[:, 1] - self.bounds[:, 0]).prod(axis=1).sum())


Selection = Box | Blocks | None  # None: all elements
NOTHING: Final[Box] = (Hyperslab(0, 0, 1, 1),)  # no elements


def select_all(size: int, start: int = 0) -> Hyperslab:
    """Select ``size`` elements without gaps."""
    return Hyperslab(start, size, max(size, 1), max(size, 1))


def clip(axis: Hyperslab, size: int) -> Hyperslab:
    """Return the first ``size`` elements of a selection that grows."""
    return select_all(size, axis.start) if size <= axis.block else axis._replace(size=size)


def count_elements(selection: Box | Blocks) -> int:
    """Return the number of selected elements."""
    return selection.size if isinstance(selection, Blocks) else math.prod(axis.size for axis in selection)


def list_ends(selection: Box | Blocks) -> list[int]:
    """Return the coordinate after the last element, for each axis."""
    if isinstance(selection, Blocks):
        ends: list[int] = selection.bounds[:, 1].max(axis=0).tolist()
        return ends
    return [axis.end for axis in selection]


# Parsing.


def parse_selection(fields: Fields) -> Selection:
    """Parse a selection; `NOTHING` if it has no elements. Raise ManifestError for a selection of an unknown kind."""
    kind, version = fields.read_uint(4), fields.read_uint(4)
    if kind in (0, 3):
        fields.take(8)
        return NOTHING if kind == 0 else None
    if kind != 2:
        found = "points" if kind == 1 else f"elements by the unknown kind {kind}"
        raise ManifestError(f"one of its mappings selects {found}: expected a hyperslab, or all elements")
    if not 1 <= version <= 3:
        raise ManifestError(f"one of its mappings has a hyperslab of version {version}: expected 1 to 3")
    flags = 0 if version == 1 else fields.read_uint(1)
    width = fields.read_uint(1) if version == 3 else 8 if flags & 1 else 4
    fields.take((8, 4, 0)[version - 1])
    rank = fields.read_uint(4)
    if not 1 <= rank <= _MOST_DIMENSIONS or width not in (2, 4, 8):
        found = f"a hyperslab of {rank} dimensions in numbers of {width} bytes"
        raise ManifestError(
            f"one of its mappings selects {found}: expected 1 to {_MOST_DIMENSIONS} dimensions, and 2, 4 or 8 bytes"
        )
    if not flags & 1:
        return _parse_blocks(fields, rank, width)
    unlimited = (1 << 8 * width) - 1
    numbers = [[fields.read_uint(width) for _ in range(4)] for _ in range(rank)]
    axes = [_parse_hyperslab(four, unlimited) for four in numbers]
    if sum(axis.size == UNLIMITED for axis in axes) > 1:
        raise ManifestError("one of its mappings grows along several axes: expected at most one")
    return tuple(axes) if all(axis.size for axis in axes) else NOTHING


def _parse_hyperslab(numbers: Sequence[int], unlimited: int) -> Hyperslab:
    """Return a regular hyperslab along one axis."""
    start, stride, count, block = numbers
    is_growing = unlimited in (count, block) and bool(count and block)
    last = 0 if is_growing or not count else (count - 1) * stride + block
    if (count > 1 and not block <= stride < UNLIMITED) or start + last > UNLIMITED:
        found = f"{count} blocks of {block} elements from {start} on with a stride of {stride}"
        limits = f"a stride of at least {block}, and coordinates of at most {UNLIMITED}"
        raise ManifestError(f"one of its mappings selects {found}: expected {limits}")
    if is_growing:
        return select_all(UNLIMITED, start) if block == unlimited else Hyperslab(start, UNLIMITED, block, stride)
    if count <= 1 or stride == block:
        return select_all(count * block, start)
    return Hyperslab(start, count * block, block, stride)


def _parse_blocks(fields: Fields, rank: int, width: int) -> Selection:
    """Parse a list of blocks: a box if they make one."""
    count = fields.read_uint(width)
    if count > MOST_BLOCKS:
        raise ManifestError(
            f"one of its mappings selects {count} separate blocks: expected at most {MOST_BLOCKS}, "
            'or a regular hyperslab (h5py writes these in files that are opened with libver="latest")'
        )
    numbers = np.frombuffer(fields.take(count * 2 * rank * width), f"<u{width}").reshape(count, 2, rank)
    if not count:
        return NOTHING
    if int(numbers.max()) >= UNLIMITED or (numbers[:, 1] < numbers[:, 0]).any():
        found = f"from {numbers[:, 0].tolist()[:4]} to {numbers[:, 1].tolist()[:4]}"
        raise ManifestError(f"one of its mappings selects blocks {found}: expected ascending coordinates")
    bounds = numbers.astype(np.int64)
    bounds[:, 1] += 1
    axes: list[Axis] = []
    places: list[npt.NDArray[np.intp]] = []  # for each axis, the number of each block's run
    for axis in range(rank):
        runs, place = np.unique(bounds[:, :, axis], axis=0, return_inverse=True)
        if (runs[1:, 0] < runs[:-1, 1]).any():
            return Blocks(bounds)
        axes.append(_join_runs(runs[:, 0], runs[:, 1]))
        places.append(place.reshape(-1))
    counts = [int(place.max()) + 1 for place in places]
    is_box = math.prod(counts) == count and len(np.unique(np.ravel_multi_index(places, counts))) == count
    return tuple(axes) if is_box else Blocks(bounds)


def _join_runs(starts: Coordinates, ends: Coordinates) -> Axis:
    """Return ascending runs along an axis as a hyperslab, if they are regular."""
    is_first = np.concatenate(([True], starts[1:] > ends[:-1]))
    starts, ends = starts[is_first], ends[np.concatenate((is_first[1:], [True]))]
    lengths, distances = ends - starts, np.diff(starts)
    if len(starts) == 1:
        return select_all(int(lengths[0]), int(starts[0]))
    if (lengths == lengths[0]).all() and (distances == distances[0]).all():
        return Hyperslab(int(starts[0]), int(lengths.sum()), int(lengths[0]), int(distances[0]))
    return Runs(starts, lengths)


# Pairs of elements.


class BoxPair(NamedTuple):
    """A box of a source, and the box of the virtual dataset that shows it.

    ``axes`` maps each axis of the source to one of the virtual dataset, or to None if the box has one element along it.
    """

    source: Box
    place: Box
    axes: tuple[int | None, ...]


def pair_selections(source: Box | Blocks, place: Box | Blocks, most: int) -> Iterator[BoxPair]:
    """Yield pairs of boxes that together pair the elements of two selections, each in C order.

    Raise ManifestError if the numbers of elements differ, or if selections of different shapes need more than ``most``
    pairs.
    """
    if not isinstance(source, Blocks) and not isinstance(place, Blocks):
        axes = _match_axes([axis.size for axis in source], [axis.size for axis in place])
        if axes is not None:
            yield BoxPair(source, place, axes)
            return
    counts = [count_elements(selection) for selection in (source, place)]
    if counts[0] != counts[1]:
        raise ManifestError(f"it selects {counts[0]} elements of the source, but {counts[1]} of the virtual dataset")
    (starts, lengths), (places, place_lengths) = _list_rows(source, most), _list_rows(place, most)
    offsets, place_offsets = (np.cumsum(each) - each for each in (lengths, place_lengths))
    cuts = np.union1d(offsets, place_offsets)
    if len(cuts) > most:
        raise _make_error(len(cuts), most)
    rows, place_rows = (np.searchsorted(each, cuts, "right") - 1 for each in (offsets, place_offsets))
    sizes = np.diff(np.append(cuts, counts[0])).tolist()
    starts, places = starts[rows], places[place_rows]
    starts[:, -1] += cuts - offsets[rows]
    places[:, -1] += cuts - place_offsets[place_rows]
    axes = (*[None] * (starts.shape[1] - 1), places.shape[1] - 1)
    for start, at, size in zip(starts.tolist(), places.tolist(), sizes, strict=True):
        yield BoxPair(_make_row(start, size), _make_row(at, size), axes)


def _match_axes(source_sizes: Sequence[int], sizes: Sequence[int]) -> tuple[int | None, ...] | None:
    """Map each axis of a source to an axis of the virtual dataset, or to None: then it has length 1.

    Return None if the lengths other than 1 differ.
    """
    if list(source_sizes) == list(sizes):
        return tuple(range(len(sizes)))
    long = [axis for axis, size in enumerate(sizes) if size != 1]
    if [size for size in source_sizes if size != 1] != [sizes[axis] for axis in long]:
        return None
    remaining = iter(long)
    return tuple(next(remaining) if size != 1 else None for size in source_sizes)


def _make_row(start: Sequence[int], size: int) -> Box:
    return (*[select_all(1, at) for at in start[:-1]], select_all(size, start[-1]))


def _make_error(count: int, most: int) -> ManifestError:
    return ManifestError(f"its selections differ in shape and have {count} rows: expected at most {most}")


def _list_rows(selection: Box | Blocks, most: int) -> tuple[Coordinates, Coordinates]:
    """Return the first coordinates and the lengths of the runs along the last axis, in C order."""
    boxes = [selection] if not isinstance(selection, Blocks) else [
        tuple(select_all(int(end - start), int(start)) for start, end in zip(*bounds, strict=True))
        for bounds in selection.bounds[: most + 1]
    ]  # fmt: skip
    counts = [math.prod(axis.size for axis in box[:-1]) * box[-1].run_count for box in boxes]
    if sum(counts) > most:
        raise _make_error(sum(counts), most)
    starts, lengths = map(np.concatenate, zip(*map(_list_rows_of_box, boxes), strict=True))
    order = np.lexsort(starts.T[::-1])
    starts, lengths = starts[order], lengths[order]
    are_in_row = (starts[1:, :-1] == starts[:-1, :-1]).all(axis=1)
    if (are_in_row & (starts[1:, -1] < starts[:-1, -1] + lengths[:-1])).any():
        raise ManifestError("the blocks of a selection overlap: expected separate blocks")
    return starts, lengths


def _list_rows_of_box(box: Box) -> tuple[Coordinates, Coordinates]:
    *above, last = box
    starts, lengths = last.list_runs()
    columns = [axis.locate(np.arange(axis.size)) for axis in above]
    grid = np.meshgrid(*columns, starts, indexing="ij")
    return np.stack([column.reshape(-1) for column in grid], axis=1), np.tile(
        lengths, math.prod(axis.size for axis in above)
    )
