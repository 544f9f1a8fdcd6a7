"""Virtual datasets of HDF5: their values lie in other datasets, in the same file or in other files. No I/O here.

A mapping places a selection of a source dataset in the virtual dataset. A virtual dataset is shown only if its mappings
consist of whole chunks, and all sources have the same chunk shape, filters and datatype: then each of its chunks is an
unchanged chunk of a source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import LISTABLE
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import Inline, Listed, Steps, run_together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.datasets import Dataset, DatasetChunks, StoredChunk
from refshard_fs.formats.hdf5.file import Fields, MetadataFile, Sizes, verify_checksum
from refshard_fs.formats.hdf5.structure import HDF5Object, Superblock, VirtualLayout, VirtualMapping

OWN: Final = "."  # in a mapping, the file name that means "this file"
MOST_SOURCES: Final = 1 << 16  # mappings of one dataset
UNLIMITED: Final = "it grows with its sources: only mappings of a fixed extent are supported"

Box = tuple[tuple[int, int], ...]  # for each dimension: start and number of elements


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
        mappings.append(VirtualMapping(files[-1], datasets[-1], _parse_selection(fields), _parse_selection(fields)))
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
    """Parse a selection. Return a box, or None for all elements; raise ManifestError for other selections."""
    kind, version = fields.read_uint(4), fields.read_uint(4)
    if kind == 3:
        fields.take(8)
        return None
    if kind != 2:
        found = {0: "nothing", 1: "points"}.get(kind, f"elements by the unknown kind {kind}")
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
        return tuple((start, end + 1 - start) for start, end in zip(starts, ends, strict=True))
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


def _parse_hyperslab(hyperslab: Sequence[int], unlimited: int) -> tuple[int, int]:
    """Return the start and the number of elements of a regular hyperslab along one dimension."""
    start, stride, count, block = hyperslab
    if unlimited in (count, block):
        raise ManifestError(UNLIMITED)
    if count != 1 and stride != block:
        stepped = f"{count} blocks of {block} elements with a stride of {stride}"
        raise ManifestError(f"one of its mappings selects {stepped}: only blocks without gaps are supported")
    return start, count * block


def list_source_files(objects: Mapping[str, HDF5Object]) -> list[str]:
    """Return the names of other files in the mappings of all virtual datasets, sorted."""
    layouts = [hdf5_object.layout for hdf5_object in objects.values() if isinstance(hdf5_object.layout, VirtualLayout)]
    return sorted({source.file for layout in layouts for source in layout.sources} - {OWN})


# Locating chunks.


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


def resolve_mappings(dataset: HDF5Object, find: FindSource) -> tuple[HDF5Object, list[SourceChunks]]:
    """Return a virtual dataset with the chunk shape and filters of its sources, and a box of chunks for each mapping.

    A dataset that is not virtual is returned unchanged, with an empty list. Raises ManifestError if the mappings do not
    consist of whole chunks, or if the sources differ in chunk shape, filters or datatype.
    """
    if not isinstance(dataset.layout, VirtualLayout):
        return dataset, []
    sources: list[SourceChunks] = []
    encodings: set[tuple[Any, ...]] = set()  # (chunk shape, filters) of the sources
    for source in dataset.layout.sources:
        chunks = find(source.file, source.dataset)
        label = f"{source.dataset!r} of {source.file!r}"
        _check_elements(dataset, chunks.dataset, label)
        source_chunks, chunk = _map_chunks(source, chunks, dataset.shape or (), label)
        sources.append(source_chunks)
        encodings.add((chunk, chunks.dataset.filters))
    if len(encodings) != 1:
        found = f"{len(encodings)} different ones" if encodings else "no sources"
        raise ManifestError(
            f"it is a virtual dataset: expected one chunk shape and filters in all sources, found {found}"
        )
    ((chunk, filters),) = encodings
    layout = msgspec.structs.replace(dataset.layout, chunk=chunk)
    return msgspec.structs.replace(dataset, layout=layout, filters=filters), sources


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
    if dataset.filters and not getattr(dataset.layout, "are_edges_filtered", True):
        raise ManifestError(
            f"it is a virtual dataset: expected filters on all chunks of {label}, found none at its edge"
        )


def _map_chunks(
    source: VirtualMapping, chunks: DatasetChunks, shape: tuple[int, ...], label: str
) -> tuple[SourceChunks, tuple[int, ...]]:
    """Return the chunks of a mapping, and the shape of a chunk in the virtual dataset."""
    source_shape = chunks.dataset.outer_shape
    box = source.place or tuple((0, extent) for extent in shape)
    selection = source.selection or tuple((0, extent) for extent in source_shape)
    axes = _match_axes([size for _, size in selection], [size for _, size in box]) if len(box) == len(shape) else None
    if axes is None or len(selection) != len(source_shape):
        raise ManifestError(
            f"it is a virtual dataset: expected boxes of one shape in its mapping of {label}, found "
            f"{[size for _, size in selection]} in the source (of {len(source_shape)} dimensions) and "
            f"{[size for _, size in box]} in the dataset (of {len(shape)})"
        )
    chunk = [1] * len(shape)
    begin: list[int] = []
    is_whole = all(start + size <= extent for (start, size), extent in zip(selection, source_shape, strict=True))
    for (start, _), axis, extent in zip(selection, axes, chunks.dataset.chunk, strict=True):
        begin.append(start // extent)
        is_whole &= start % extent == 0
        if axis is None:
            is_whole &= extent == 1
        else:
            chunk[axis] = extent
    for (start, size), extent, full_extent in zip(box, chunk, shape, strict=True):
        end = start + size
        is_whole &= start % extent == 0 and (end == full_extent or (end < full_extent and end % extent == 0))
    if not is_whole:
        raise ManifestError(f"it is a virtual dataset: expected whole chunks, of {chunk}, in its mapping of {label}")
    first_chunk = tuple(start // extent for (start, _), extent in zip(box, chunk, strict=True))
    end_chunk = tuple(math.ceil((start + size) / extent) for (start, size), extent in zip(box, chunk, strict=True))
    return SourceChunks(chunks, first_chunk, end_chunk, tuple(begin), tuple(axes)), tuple(chunk)


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
