"""Virtual datasets of HDF5: their values lie in other datasets, in the same file or in other files. No I/O here.

A mapping places a selection of a source dataset in the virtual dataset. If mappings consist of whole chunks, and all
sources have the same chunk shape and filters, each chunk of the virtual dataset is an unchanged chunk of a source.
Otherwise its chunks are joined from parts of the sources' chunks when they are read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import LISTABLE, choose_chunks, report_damage
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import Entry, Inline, Listed, Load, Raw, Steps, run_together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.datasets import Dataset, DatasetChunks, StoredChunk
from refshard_fs.formats.hdf5.file import Fields, MetadataFile, Sizes, verify_checksum
from refshard_fs.formats.hdf5.filters import FilterRecipe
from refshard_fs.formats.hdf5.structure import HDF5Object, Hyperslab, Superblock, VirtualLayout, VirtualMapping

OWN: Final = "."  # in a mapping, the file name that means "this file"
MOST_SOURCES: Final = 1 << 16  # mappings of one dataset
MOST_SECTIONS: Final = 4096  # parts of chunks that are joined to one
MOST_JOINED: Final = 1 << 30  # bytes of these chunks, decoded
UNLIMITED: Final = "it grows with its sources: only mappings of a fixed extent are supported"

Box = tuple[Hyperslab, ...]  # for each dimension
NOTHING: Final[Box] = (Hyperslab(0, 0, 0, 0),)  # no elements


# Parsing of mappings.


def parse_mappings(data: bytes, sizes: Sizes) -> tuple[VirtualMapping, ...]:
    """Parse the mappings of a virtual dataset. Raise ManifestError for mappings of an unsupported kind."""
    fields = Fields(verify_checksum(data, "the mappings of a virtual dataset"), sizes)
    version, count = fields.unpack("BN")
    if version > 1:
        raise ManifestError(f"its mappings are of version {version}: expected 0 or 1")
    if count > min(MOST_SOURCES, len(data)):
        raise ManifestError(f"it has {count} mappings: expected at most {min(MOST_SOURCES, len(data))}")
    mappings: list[VirtualMapping] = []
    files: list[str] = []
    datasets: list[str] = []
    for _ in range(count):
        flags = fields.read_uint(1) if version else 0
        files.append(OWN if flags & 4 else _parse_name(fields, flags & 1, files))
        if "%b" in files[-1]:
            raise ManifestError(UNLIMITED)
        datasets.append(_parse_name(fields, flags & 2, datasets))
        selection, place = _parse_selection(fields), _parse_selection(fields)
        if NOTHING not in (selection, place):
            mappings.append(VirtualMapping(files[-1], datasets[-1], selection, place))
    return tuple(mappings)


def _parse_name(fields: Fields, is_shared: int, names: Sequence[str]) -> str:
    """Parse the next name. In place of a shared name, the number of another mapping with the same name is stored."""
    if is_shared:
        number = fields.read_uint(fields.sizes.length)
        if number >= len(names):
            raise ValueError(
                f"a mapping shares the name of mapping {number}: expected the number of an earlier mapping"
            )
        return names[number]
    return fields.read_text()


def _parse_selection(fields: Fields) -> Box | None:
    """Parse a selection: a box, `NOTHING`, or None for all elements. Raise ManifestError for other selections."""
    kind, version = fields.read_uint(4), fields.read_uint(4)
    if kind in (0, 3):
        fields.take(8)
        return NOTHING if kind == 0 else None
    if kind != 2:
        found = "points" if kind == 1 else f"elements by the unknown kind {kind}"
        raise ManifestError(f"one of its mappings selects {found}: expected a hyperslab, or all elements")
    if not 1 <= version <= 3:
        raise ManifestError(f"one of its mappings has a hyperslab of version {version}: expected 1 to 3")
    if version == 1:
        fields.take(8)
        rank, blocks = fields.read_uint(4), fields.read_uint(4)
        if blocks != 1 or rank > 32:
            found = f"one of its mappings selects {blocks} separate blocks of {rank} dimensions"
            raise ManifestError(f"{found}: expected a single block of at most 32 dimensions")
        starts, ends = ([fields.read_uint(4) for _ in range(rank)] for _ in range(2))
        return tuple(_select_all(end + 1 - start, start) for start, end in zip(starts, ends, strict=True))
    flags, width = fields.read_uint(1), 8
    if version == 2:
        fields.take(4)
    else:
        width = fields.read_uint(1)
    rank = fields.read_uint(4)
    if not flags & 1 or rank > 32 or width not in (2, 4, 8):
        found = f"a hyperslab with flags {flags}, of {rank} dimensions in numbers of {width} bytes"
        expected = "expected a regular one (flag 1) of at most 32 dimensions, in 2, 4 or 8 bytes"
        raise ManifestError(f"one of its mappings selects {found}: {expected}")
    return tuple(
        _parse_hyperslab([fields.read_uint(width) for _ in range(4)], (1 << 8 * width) - 1) for _ in range(rank)
    )


def _select_all(size: int, start: int = 0) -> Hyperslab:
    return Hyperslab(start, size, size, size)


def _parse_hyperslab(hyperslab: Sequence[int], unlimited: int) -> Hyperslab:
    """Return a regular hyperslab along one dimension."""
    start, stride, count, block = hyperslab
    if unlimited in (count, block):
        raise ManifestError(UNLIMITED)
    if count > 1 and stride < block:
        found = f"{count} blocks of {block} elements with a stride of {stride}"
        raise ManifestError(f"one of its mappings selects {found}: expected a stride of at least {block}")
    if count <= 1 or stride == block:
        return _select_all(count * block, start)
    return Hyperslab(start, count * block, block, stride)


def list_source_files(objects: Mapping[str, HDF5Object]) -> list[str]:
    """Return the names of other files in the mappings of all virtual datasets, sorted."""
    layouts = [hdf5_object.layout for hdf5_object in objects.values() if isinstance(hdf5_object.layout, VirtualLayout)]
    return sorted({source.file for layout in layouts for source in layout.sources} - {OWN})


# Locating chunks.


class SourceBox(NamedTuple):
    """A box of elements of a source: it begins at ``start`` in the source, and at ``place`` in the virtual dataset.

    ``sizes`` has the length of the box along each dimension of the source. ``axes`` maps each dimension of the source
    to one of the virtual dataset, or to None if the box has only one element along it.
    """

    chunks: DatasetChunks
    start: tuple[int, ...]
    sizes: tuple[int, ...]
    place: tuple[int, ...]
    axes: tuple[int | None, ...]


class SourceChunks(NamedTuple):
    """A box of chunks of a virtual dataset, which are chunks of one source.

    ``chunks`` locates the chunks of the source. In chunk coordinates, the box is [first, last) in the virtual dataset,
    and begins at ``start`` in the source. ``axes`` maps each dimension of the source to one of the virtual dataset, or
    to None if the box has only one chunk along it.
    """

    chunks: DatasetChunks
    first: tuple[int, ...]
    last: tuple[int, ...]
    start: tuple[int, ...]
    axes: tuple[int | None, ...]


FindSource = Callable[[str, str], DatasetChunks]  # takes the names of file and dataset; may raise ManifestError


def resolve_mappings(dataset: HDF5Object, find: FindSource) -> tuple[HDF5Object, list[SourceChunks] | list[SourceBox]]:
    """Return a virtual dataset with its chunk shape and filters, and a box of chunks or elements for each mapping.

    A dataset that is not virtual is returned unchanged, with an empty list. Raises ManifestError if a source cannot be
    shown, or has another datatype.
    """
    if not isinstance(dataset.layout, VirtualLayout):
        return dataset, []
    sources: list[SourceChunks] = []
    boxes: list[SourceBox] = []
    encodings: set[tuple[Any, ...]] = set()  # (chunk shape, filters) of the sources
    for source in dataset.layout.sources:
        chunks = find(source.file, source.dataset)
        label = f"{source.dataset!r} of {source.file!r}"
        _check_elements(dataset, chunks.dataset, label)
        for box in _map_elements(source, chunks, dataset.shape or (), label, MOST_SOURCES - len(boxes)):
            boxes.append(box)
            if (whole := _map_chunks(box, dataset.shape or ())) is not None:
                sources.append(whole[0])
                encodings.add((whole[1], chunks.dataset.filters))
    are_whole = len(sources) == len(boxes) and len(encodings) == 1
    assert dataset.datatype is not None
    joined = (choose_chunks(dataset.shape or (), dataset.datatype.size), ())
    chunk, filters = encodings.pop() if are_whole else joined
    layout = msgspec.structs.replace(dataset.layout, chunk=chunk)
    return msgspec.structs.replace(dataset, layout=layout, filters=filters), sources if are_whole else boxes


class VirtualChunks(DatasetChunks):
    """The chunks of a virtual dataset, which are chunks of other datasets."""

    def __init__(
        self,
        file: MetadataFile,
        superblock: Superblock,
        dataset: Dataset,
        grid: ChunkGrid,
        url: str,
        sources: list[SourceChunks],
    ) -> None:
        super().__init__(file, superblock, dataset, grid, url, {})
        self._sources = sources
        self.is_small_coordinate = False  # only coordinates with values in this file are read when it is opened

    def prepare(self) -> Steps[None]:
        yield from ()

    def list_existing(self) -> Steps[list[Listed] | None]:
        if not self.fills_itself or self.grid.size > LISTABLE:
            return None
        stored = yield from self.find_stored_chunks(range(self.grid.size))
        return self.list_written(np.array(sorted(stored), np.uint64))

    def find_stored_chunks(self, numbers: Sequence[int]) -> Steps[dict[int, StoredChunk]]:
        sorted_numbers = np.array(sorted(set(numbers)), np.int64)
        counts = self.grid.counts[: len(self.dataset.chunk)]
        coords = np.array(np.unravel_index(sorted_numbers, counts or (1,))).T[:, : len(counts)]
        owners = np.full(len(sorted_numbers), -1)
        for number, source in enumerate(self._sources):  # if mappings overlap, the last one counts
            owners[((coords >= source.first) & (coords < source.last)).all(axis=1)] = number
        lookups: list[Steps[dict[int, StoredChunk]]] = []
        searches: list[tuple[SourceChunks, list[int], list[int]]] = []  # source, numbers in this dataset, in the source
        for number in np.unique(owners[owners >= 0]).tolist():
            source, rows = self._sources[number], np.flatnonzero(owners == number)
            source_numbers = _number_source_chunks(source, coords[rows])
            searches.append((source, sorted_numbers[rows].tolist(), source_numbers))
            lookups.append(source.chunks.find_stored_chunks(source_numbers))
        result: dict[int, StoredChunk] = {}
        for (source, own_numbers, source_numbers), stored in zip(
            searches, (yield from run_together(lookups)), strict=True
        ):
            unwritten = self._make_unwritten_chunk(source.chunks) if len(stored) < len(source_numbers) else None
            for own_number, source_number in zip(own_numbers, source_numbers, strict=True):
                chunk = stored.get(source_number, unwritten)
                if chunk is not None:
                    result[own_number] = chunk
        return result

    def _make_unwritten_chunk(self, source: DatasetChunks) -> StoredChunk | None:
        """Make a chunk of the source's fill value; None if the virtual dataset has the same fill value."""
        values = source.make_fill_elements()
        if values == self.make_fill_elements():
            return None
        return StoredChunk(Inline(values), (1 << len(self.dataset.filters)) - 1)


class JoinedChunks(VirtualChunks):
    """The chunks of a virtual dataset, joined from parts of chunks of other datasets."""

    def __init__(
        self,
        file: MetadataFile,
        superblock: Superblock,
        dataset: Dataset,
        grid: ChunkGrid,
        url: str,
        boxes: list[SourceBox],
    ) -> None:
        super().__init__(file, superblock, dataset, grid, url, [])
        self._boxes = boxes
        self._begins = np.array([box.place for box in boxes], np.int64)
        self._ends = self._begins + 1
        for end, box in zip(self._ends, boxes, strict=True):
            for size, axis in zip(box.sizes, box.axes, strict=True):
                if axis is not None:
                    end[axis] += size - 1

    def list_existing(self) -> Steps[list[Listed] | None]:
        yield from ()
        return None

    def find_entries(self, numbers: Sequence[int]) -> Steps[Sequence[Entry | None]]:
        with report_damage(self._url, self.where):
            return (yield from run_together([self._join(number) for number in numbers]))

    def _join(self, number: int) -> Steps[Entry]:
        """Return a chunk of the virtual dataset. If mappings overlap, the last one counts."""
        chunk, size = self.dataset.chunk, self.dataset.datatype.size
        coords = self.grid.coords(number)[: len(chunk)]
        first = [coord * extent for coord, extent in zip(coords, chunk, strict=True)]
        last = [min(at + extent, end) for at, extent, end in zip(first, chunk, self.dataset.outer_shape, strict=True)]
        elements = np.frombuffer(bytearray(self.make_fill_elements()), f"V{size}").reshape(chunk)
        boxes = np.flatnonzero(((self._begins < last) & (self._ends > first)).all(axis=1)).tolist()
        sections = [
            (self._boxes[box].chunks, section)
            for box in boxes
            for section in _cut_sections(self._boxes[box], first, last)
        ]
        if len(sections) > MOST_SECTIONS or sum(source.dataset.raw_size for source, _ in sections) > MOST_JOINED:
            raise ManifestError(
                f"{self._url}: {self.where}: chunk {number} is joined from {len(sections)} parts of its sources: "
                f"expected at most {MOST_SECTIONS}, from chunks of at most {MOST_JOINED} bytes in all. Read the sources"
            )
        numbers: dict[DatasetChunks, dict[int, None]] = {}
        for source, section in sections:
            numbers.setdefault(source, {})[section.number] = None
        found = yield from run_together([source.find_stored_chunks(list(own)) for source, own in numbers.items()])
        stored = {
            (source, own): chunk for source, chunks in zip(numbers, found, strict=True) for own, chunk in chunks.items()
        }
        answers = yield tuple(Load(chunk.entry, Raw()) for chunk in stored.values())
        raw = dict(zip(stored, answers, strict=True))
        decoded, plain = None, b""  # most sections lie in the same chunk as the section before
        for source, section in sections:
            place = source, section.number
            if place != decoded and place in stored:
                mask = source.find_mask(section.number, stored[place])
                plain = FilterRecipe(source.dataset.codecs, mask).decode_elements(raw[place])
            elif place != decoded:
                plain = source.make_fill_elements()
            decoded = place
            values = np.frombuffer(plain, f"V{size}").reshape(source.dataset.chunk)[section.source]
            elements[section.target] = values.reshape(elements[section.target].shape)
        return Inline(self.dataset.codecs.encode(elements.tobytes()))


def make_virtual_chunks(
    file: MetadataFile,
    superblock: Superblock,
    dataset: Dataset,
    grid: ChunkGrid,
    url: str,
    sources: Sequence[SourceChunks | SourceBox],
) -> VirtualChunks:
    """Return the chunks of a virtual dataset, given the result of `resolve_mappings`."""
    boxes = [source for source in sources if isinstance(source, SourceBox)]
    if boxes:
        return JoinedChunks(file, superblock, dataset, grid, url, boxes)
    whole = [source for source in sources if isinstance(source, SourceChunks)]
    return VirtualChunks(file, superblock, dataset, grid, url, whole)


class Section(NamedTuple):
    """A part of chunk ``number`` of a source, and its place in a chunk of the virtual dataset."""

    number: int
    source: tuple[slice, ...]
    target: tuple[slice, ...]


def _cut_sections(box: SourceBox, first: Sequence[int], last: Sequence[int]) -> Iterator[Section]:
    """Yield the sections of a mapping in the elements [first, last) of the virtual dataset.

    Elements beyond the end of the source keep the fill value.
    """
    dataset = box.chunks.dataset
    target = [slice(start - at, start - at + 1) for start, at in zip(box.place, first, strict=True)]
    ranges: list[tuple[int, int, int]] = []  # for each dimension of the source: begin, end, and begin in the chunk
    for start, size, axis, extent in zip(box.start, box.sizes, box.axes, dataset.outer_shape, strict=True):
        place, low, high = (box.place[axis], first[axis], last[axis]) if axis is not None else (0, 0, 1)
        begin, end = max(place, low), min(place + size, high, place + extent - start)
        if begin >= end:
            return
        ranges.append((start + begin - place, start + end - place, begin - low))
    mapped = set(box.axes)
    if any(axis not in mapped and not at <= box.place[axis] < last[axis] for axis, at in enumerate(first)):
        return
    steps = [
        range(begin // extent, -(-end // extent)) for (begin, end, _), extent in zip(ranges, dataset.chunk, strict=True)
    ]
    for coords in itertools.product(*steps):
        cuts: list[slice] = []
        for coord, (begin, end, at), extent, axis in zip(coords, ranges, dataset.chunk, box.axes, strict=True):
            low, high = max(begin, coord * extent), min(end, (coord + 1) * extent)
            cuts.append(slice(low - coord * extent, high - coord * extent))
            if axis is not None:
                target[axis] = slice(at + low - begin, at + high - begin)
        number = 0
        for coord, count in zip(coords, box.chunks.grid.counts, strict=False):
            number = number * count + coord
        yield Section(number, tuple(cuts), tuple(target))


def _number_source_chunks(source: SourceChunks, coords: npt.NDArray[np.int64]) -> list[int]:
    """Return the numbers of the source's chunks that are shown at ``coords`` of the virtual dataset's chunk grid."""
    counts = source.chunks.grid.counts
    numbers = np.zeros(len(coords), np.int64)
    for axis, (start, virtual_axis) in enumerate(zip(source.start, source.axes, strict=True)):
        coord = start if virtual_axis is None else start + coords[:, virtual_axis] - source.first[virtual_axis]
        numbers = numbers * counts[axis] + coord
    return [int(number) for number in numbers]


def _check_elements(virtual: HDF5Object, dataset: Dataset, label: str) -> None:
    """Raise ManifestError if the bytes of a source's chunks cannot be chunks of the virtual dataset."""
    if dataset.datatype != virtual.datatype:
        raise ManifestError(f"it is a virtual dataset: expected its datatype in {label}, too, found another one")
    if dataset.object_codec:
        raise ManifestError(
            f"it is a virtual dataset: expected elements of fixed length in {label}, found variable ones"
        )
    if isinstance(dataset.layout, VirtualLayout):
        raise ManifestError(f"it is a virtual dataset: expected stored values in {label}, found a virtual dataset")


def _map_elements(
    source: VirtualMapping, chunks: DatasetChunks, shape: tuple[int, ...], label: str, most: int
) -> Iterator[SourceBox]:
    """Yield the boxes of a mapping, one for each block.

    Raise ManifestError if its selections differ in shape, or have more than ``most`` blocks.
    """
    source_shape = chunks.dataset.outer_shape
    place = source.place or tuple(map(_select_all, shape))
    selection = source.selection or tuple(map(_select_all, source_shape))
    axes = _match_axes([slab.size for slab in selection], [slab.size for slab in place])
    if axes is None or len(place) != len(shape) or len(selection) != len(source_shape):
        raise ManifestError(
            f"it is a virtual dataset: expected boxes of one shape in its mapping of {label}, found "
            f"{[slab.size for slab in selection]} in the source (of {len(source_shape)} dimensions) and "
            f"{[slab.size for slab in place]} in the dataset (of {len(shape)})"
        )
    pairs = [
        (slab, place[axis] if axis is not None else _select_all(slab.size))
        for slab, axis in zip(selection, axes, strict=True)
    ]
    count = math.prod(sum(-(-slab.size // max(slab.block, 1)) for slab in pair) - 1 for pair in pairs)
    if count > most:
        raise ManifestError(
            f"it is a virtual dataset: its mapping of {label} has {count} blocks: expected at most {most}"
        )
    for combination in itertools.product(*(_cut_blocks(*pair) for pair in pairs)):
        begin = [slab.start for slab in place]
        for (_, at, _), axis in zip(combination, axes, strict=True):
            if axis is not None:
                begin[axis] = at
        start, sizes = ([piece[item] for piece in combination] for item in (0, 2))
        yield SourceBox(chunks, tuple(start), tuple(sizes), tuple(begin), tuple(axes))


def _cut_blocks(source: Hyperslab, place: Hyperslab) -> Iterator[tuple[int, int, int]]:
    """Yield the pieces of two hyperslabs without gaps in either: begin in the source, begin in the place, and size."""
    done = 0
    while done < source.size:
        (row, within), (row_at, within_at) = divmod(done, source.block), divmod(done, place.block)
        size = min(source.block - within, place.block - within_at)
        yield source.start + row * source.stride + within, place.start + row_at * place.stride + within_at, size
        done += size


def _map_chunks(box: SourceBox, shape: tuple[int, ...]) -> tuple[SourceChunks, tuple[int, ...]] | None:
    """Return the chunks of a mapping, and the shape of a chunk in the virtual dataset.

    Return None if the mapping does not consist of whole chunks.
    """
    source = box.chunks.dataset
    if source.filters and not getattr(source.layout, "are_edges_filtered", True):
        return None
    chunk, ends = [1] * len(shape), [start + 1 for start in box.place]
    begin: list[int] = []
    is_whole = all(
        start + size <= extent for start, size, extent in zip(box.start, box.sizes, source.outer_shape, strict=True)
    )
    for start, size, axis, extent in zip(box.start, box.sizes, box.axes, source.chunk, strict=True):
        begin.append(start // extent)
        is_whole &= start % extent == 0
        if axis is None:
            is_whole &= extent == 1
        else:
            chunk[axis], ends[axis] = extent, box.place[axis] + size
    for start, end, extent, full_extent in zip(box.place, ends, chunk, shape, strict=True):
        is_whole &= start % extent == 0 and (end == full_extent or (end < full_extent and end % extent == 0))
    if not is_whole:
        return None
    first_chunk = tuple(start // extent for start, extent in zip(box.place, chunk, strict=True))
    end_chunk = tuple(-(-end // extent) for end, extent in zip(ends, chunk, strict=True))
    return SourceChunks(box.chunks, first_chunk, end_chunk, tuple(begin), box.axes), tuple(chunk)


def _match_axes(source_sizes: Sequence[int], virtual_sizes: Sequence[int]) -> list[int | None] | None:
    """Map each dimension of a source to a dimension of the virtual dataset, or to None: then it has length 1.

    Returns None if the lengths other than 1 differ.
    """
    if list(source_sizes) == list(virtual_sizes):
        return list(range(len(virtual_sizes)))
    long = [axis for axis, size in enumerate(virtual_sizes) if size != 1]
    if [size for size in source_sizes if size != 1] != [virtual_sizes[axis] for axis in long]:
        return None
    remaining = iter(long)
    return [next(remaining) if size != 1 else None for size in source_sizes]
