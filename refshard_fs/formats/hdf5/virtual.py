"""Virtual datasets of HDF5 show values of other datasets, in the same file or in files beside it. No I/O here.

A mapping places a selection of a source dataset in the virtual dataset. A virtual dataset can be shown if its mappings
consist of whole chunks: then each of its chunks is a chunk of one source, as stored.
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
from refshard_fs.formats.hdf5.structure import HDF5Object, Superblock, Virtual, VirtualMapping

OWN: Final = "."  # the file name in a mapping that stands for the same file
MOST_SOURCES: Final = 1 << 16  # mappings in one dataset
UNLIMITED: Final = "it is a virtual dataset that grows with its sources: only mappings of a fixed extent are supported"

Box = tuple[tuple[int, int], ...]  # for each dimension: start and number of elements


# Parsing of mappings.


def parse_mappings(data: bytes, sizes: Sizes) -> tuple[VirtualMapping, ...]:
    """Parse the mappings of a virtual dataset. Raise ManifestError for kinds of mappings that are not supported."""
    fields = Fields(verify_checksum(data, "the mappings of a virtual dataset"), sizes)
    version, count = fields.unpack("BN")
    if version > 1:
        raise ManifestError(f"its mappings are of version {version}: expected 0 or 1")
    if count > min(MOST_SOURCES, len(data)):
        raise ManifestError(f"it has {count} mappings: at most {MOST_SOURCES} are supported")
    found: list[VirtualMapping] = []
    files: list[str] = []
    datasets: list[str] = []
    for _ in range(count):
        flags = fields.uint(1) if version else 0
        files.append(OWN if flags & 4 else _parse_name(fields, flags & 1, files))
        if "%b" in files[-1]:
            raise ManifestError(UNLIMITED)
        datasets.append(_parse_name(fields, flags & 2, datasets))
        found.append(VirtualMapping(files[-1], datasets[-1], _parse_selection(fields), _parse_selection(fields)))
    return tuple(found)


def _parse_name(fields: Fields, is_shared: int, known: Sequence[str]) -> str:
    """Parse the next name. A shared name is stored as the number of the mapping that has it."""
    if is_shared:
        number = fields.uint(fields.sizes.length)
        if number >= len(known):
            raise ValueError(f"a mapping shares the name of mapping {number}, which comes after it")
        return known[number]
    return fields.text()


def _parse_selection(fields: Fields) -> Box | None:
    """Parse a selection that is a box; None: all elements."""
    kind, version = fields.uint(4), fields.uint(4)
    if kind == 3:
        fields.take(8)
        return None
    if kind != 2 or not 1 <= version <= 3:
        raise ManifestError("one of its mappings selects points or nothing: only hyperslabs are supported")
    if version == 1:
        fields.take(8)
        rank, blocks = fields.uint(4), fields.uint(4)
        if blocks != 1 or rank > 32:
            raise ManifestError(f"one of its mappings selects {blocks} separate blocks: only one is supported")
        starts, ends = ([fields.uint(4) for _ in range(rank)] for _ in range(2))
        return tuple((start, end + 1 - start) for start, end in zip(starts, ends, strict=True))
    flags, width = fields.uint(1), 8
    if version == 2:
        fields.take(4)
    else:
        width = fields.uint(1)
    rank = fields.uint(4)
    if not flags & 1 or rank > 32 or width not in (2, 4, 8):
        raise ManifestError("one of its mappings selects irregular blocks, which are not supported")
    return tuple(_parse_hyperslab([fields.uint(width) for _ in range(4)], (1 << 8 * width) - 1) for _ in range(rank))


def _parse_hyperslab(hyperslab: Sequence[int], unlimited: int) -> tuple[int, int]:
    """Return the start of a regular hyperslab along a dimension, and its number of elements."""
    start, stride, count, block = hyperslab
    if unlimited in (count, block):
        raise ManifestError(UNLIMITED)
    if count != 1 and stride != block:
        raise ManifestError(f"a mapping has blocks of {block} elements with a stride of {stride}: expected one block")
    return start, count * block


def list_source_files(objects: Mapping[str, HDF5Object]) -> list[str]:
    """Return the names of other files in the mappings of virtual datasets."""
    layouts = [found.layout for found in objects.values() if isinstance(found.layout, Virtual)]
    return sorted({source.file for layout in layouts for source in layout.sources} - {OWN})


# Locating chunks.


class SourceChunks(NamedTuple):
    """Consecutive chunks of a virtual dataset, [first, last), which are chunks of the dataset ``chunks``.

    ``source`` is the first chunk in the source. ``axes`` maps each dimension of the source to one of the virtual
    dataset; None for a dimension with a single chunk.
    """

    chunks: DatasetChunks
    first: tuple[int, ...]
    last: tuple[int, ...]
    source: tuple[int, ...]
    axes: tuple[int | None, ...]


FindSource = Callable[[str, str], DatasetChunks]  # takes file and dataset; raises ManifestError if there is none


def resolve_mappings(found: HDF5Object, find: FindSource) -> tuple[HDF5Object, list[SourceChunks]]:
    """Return a dataset with the chunk shape and filters of its sources, and its parts; if not virtual, unchanged.

    Raises ManifestError if the mappings do not consist of whole chunks, or if the sources differ.
    """
    if not isinstance(found.layout, Virtual):
        return found, []
    parts: list[SourceChunks] = []
    cuts: set[tuple[Any, ...]] = set()
    for source in found.layout.sources:
        chunks = find(source.file, source.dataset)
        where = f"{source.dataset!r} of {source.file!r}"
        _check_kind(found, chunks.dataset, where)
        part, chunk = _map_chunks(source, chunks, found.shape or (), where)
        parts.append(part)
        cuts.add((chunk, chunks.dataset.filters))
    if len(cuts) != 1:
        raise ManifestError("it is a virtual dataset without sources, or its sources differ in chunk shape or filters")
    ((chunk, filters),) = cuts
    layout = msgspec.structs.replace(found.layout, chunk=chunk)
    return msgspec.structs.replace(found, layout=layout, filters=filters), parts


class VirtualChunks(DatasetChunks):
    """The chunks of a virtual dataset, which are chunks of other datasets."""

    def __init__(
        self,
        file: MetadataFile,
        superblock: Superblock,
        dataset: Dataset,
        grid: ChunkGrid,
        url: str,
        parts: list[SourceChunks],
    ) -> None:
        super().__init__(file, superblock, dataset, grid, url, {})
        self._parts = parts
        self.is_small_coordinate = False  # small coordinates are read from this file

    def prepare(self) -> Steps[None]:
        yield from ()

    def list_existing(self) -> Steps[list[Listed] | None]:
        if not self.fills_itself or self.grid.size > LISTABLE:
            return None
        found = yield from self.find_stored(range(self.grid.size))
        return self.list_written(np.array(sorted(found), np.uint64))

    def find_stored(self, numbers: Sequence[int]) -> Steps[dict[int, StoredChunk]]:
        wanted = np.array(sorted(set(numbers)), np.int64)
        counts = self.grid.counts[: len(self.dataset.chunk)]
        coords = np.array(np.unravel_index(wanted, counts or (1,))).T[:, : len(counts)]
        owners = np.full(len(wanted), -1)
        for number, part in enumerate(self._parts):  # if parts overlap, the last one counts
            owners[((coords >= part.first) & (coords < part.last)).all(axis=1)] = number
        many: list[Steps[dict[int, StoredChunk]]] = []
        theirs: list[tuple[SourceChunks, list[int], list[int]]] = []
        for number in np.unique(owners[owners >= 0]).tolist():
            part, places = self._parts[number], np.flatnonzero(owners == number)
            those = _number_sources(part, coords[places])
            theirs.append((part, wanted[places].tolist(), those))
            many.append(part.chunks.find_stored(those))
        found: dict[int, StoredChunk] = {}
        for (part, mine, those), stored in zip(theirs, (yield from run_together(many)), strict=True):
            unwritten = self._fill_of(part.chunks) if len(stored) < len(those) else None
            for ours, number in zip(mine, those, strict=True):
                chunk = stored.get(number, unwritten)
                if chunk is not None:
                    found[ours] = chunk
        return found

    def _fill_of(self, source: DatasetChunks) -> StoredChunk | None:
        """Return the fill value of an unwritten chunk in a source; None if it equals the fill value here."""
        values = source.fill_elements()
        if values == self.fill_elements():
            return None
        return StoredChunk(Inline(values), (1 << len(self.dataset.filters)) - 1)


def _number_sources(part: SourceChunks, coords: npt.NDArray[np.int64]) -> list[int]:
    """Return the numbers of the source's chunks at ``coords``."""
    counts = part.chunks.grid.counts
    found = np.zeros(len(coords), np.int64)
    for axis, (start, ours) in enumerate(zip(part.source, part.axes, strict=True)):
        place = start if ours is None else start + coords[:, ours] - part.first[ours]
        found = found * counts[axis] + place
    return [int(number) for number in found]


def _check_kind(found: HDF5Object, dataset: Dataset, where: str) -> None:
    """Raise ManifestError unless the source has the same elements, byte by byte, as the virtual dataset."""
    if dataset.datatype != found.datatype:
        raise ManifestError(f"it is a virtual dataset whose datatype differs from that of {where}")
    if dataset.object_codec or isinstance(dataset.layout, Virtual):
        raise ManifestError(f"it is a virtual dataset, and its source {where} has variable-length texts or is virtual")
    if dataset.filters and not getattr(dataset.layout, "whole_edges", True):
        raise ManifestError(f"it is a virtual dataset, and some chunks of its source {where} are not filtered")


def _map_chunks(
    source: VirtualMapping, chunks: DatasetChunks, shape: tuple[int, ...], where: str
) -> tuple[SourceChunks, tuple[int, ...]]:
    """Return the chunks of a mapping, and the shape of the virtual dataset's chunks."""
    theirs = chunks.dataset.outer_shape
    box = source.place or tuple((0, extent) for extent in shape)
    part = source.selection or tuple((0, extent) for extent in theirs)
    axes = _match_axes([size for _, size in part], [size for _, size in box]) if len(box) == len(shape) else None
    if axes is None or len(part) != len(theirs):
        raise ManifestError(f"it is a virtual dataset, and its mapping of {where} has another shape than its source")
    chunk = [1] * len(shape)
    begin: list[int] = []
    is_whole = all(start + size <= extent for (start, size), extent in zip(part, theirs, strict=True))
    for (start, _), axis, extent in zip(part, axes, chunks.dataset.chunk, strict=True):
        begin.append(start // extent)
        is_whole &= start % extent == 0
        if axis is None:
            is_whole &= extent == 1
        else:
            chunk[axis] = extent
    for (start, size), extent, whole in zip(box, chunk, shape, strict=True):
        end = start + size
        is_whole &= start % extent == 0 and (end == whole or (end < whole and end % extent == 0))
    if not is_whole:
        raise ManifestError(f"it is a virtual dataset, and its mapping of {where} does not consist of whole chunks")
    first = tuple(start // extent for (start, _), extent in zip(box, chunk, strict=True))
    last = tuple(math.ceil((start + size) / extent) for (start, size), extent in zip(box, chunk, strict=True))
    return SourceChunks(chunks, first, last, tuple(begin), tuple(axes)), tuple(chunk)


def _match_axes(theirs: Sequence[int], ours: Sequence[int]) -> list[int | None] | None:
    """Map each dimension of a source to one of ours, skipping dimensions of length 1; None if other lengths differ."""
    if list(theirs) == list(ours):
        return list(range(len(ours)))
    long = [axis for axis, size in enumerate(ours) if size != 1]
    if [size for size in theirs if size != 1] != [ours[axis] for axis in long]:
        return None
    left = iter(long)
    return [next(left) if size != 1 else None for size in theirs]
