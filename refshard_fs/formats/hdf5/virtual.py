"""Virtual datasets of HDF5: their values are those of other datasets, of the same file or of files beside it. No I/O.

A mapping says which part of which dataset stands where. A virtual dataset is shown where its mappings are of whole
chunks: then a chunk of it is a chunk of one source, as it lies there.
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
from refshard_fs.core.model import Inline, Listed, Steps, together
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.datasets import Dataset, DatasetChunks, Stored
from refshard_fs.formats.hdf5.file import Fields, MetadataFile, Sizes, verified
from refshard_fs.formats.hdf5.structure import HDF5Object, Source, Superblock, Virtual
from refshard_fs.security.policy import is_absolute, protocol_of

OWN: Final = "."  # how a mapping names the file that it is in
MOST_SOURCES: Final = 1 << 16  # mappings of one dataset
MOST_FILES: Final = 1000  # that the virtual datasets of a file name: each is opened
UNLIMITED: Final = "its virtual dataset grows with its sources: only mappings of a fixed extent are read"

Box = tuple[tuple[int, int], ...]  # of each dimension: where it starts, and how many elements it has


# ----------------------------------------------------------------------------------------------------
# What the mappings say.


def parse_mappings(data: bytes, sizes: Sizes) -> tuple[Source, ...]:
    """Return the mappings of a virtual dataset; ManifestError for those that are not read."""
    fields = Fields(verified(data, "the mappings of a virtual dataset"), sizes)
    version, count = fields.unpack("BN")
    if version > 1:
        raise ManifestError(f"its mappings are of version {version}; versions 0 and 1 are read")
    if count > min(MOST_SOURCES, len(data)):
        raise ManifestError(f"it has {count} mappings; up to {MOST_SOURCES} are read")
    found: list[Source] = []
    files: list[str] = []
    datasets: list[str] = []
    for _ in range(count):
        flags = fields.uint(1) if version else 0
        files.append(OWN if flags & 4 else _name(fields, flags & 1, files))
        datasets.append(_name(fields, flags & 2, datasets))
        found.append(Source(files[-1], datasets[-1], _selection(fields), _selection(fields)))
    return tuple(found)


def _name(fields: Fields, is_shared: int, known: Sequence[str]) -> str:
    """Return the next name; one that is shared is said by the number of the mapping that has it."""
    if is_shared:
        number = fields.uint(fields.sizes.length)
        if number >= len(known):
            raise ValueError(f"a mapping has the name of mapping {number}, which comes after it")
        return known[number]
    return fields.text()


def _selection(fields: Fields) -> Box | None:
    """Return a selection that is a box; None for all elements."""
    kind, version = fields.uint(4), fields.uint(4)
    if kind == 3:
        fields.take(8)
        return None
    if kind != 2 or not 1 <= version <= 3:
        raise ManifestError("a mapping of its is no hyperslab, but of single points or of nothing")
    if version == 1:
        fields.take(8)
        rank, blocks = fields.uint(4), fields.uint(4)
        if blocks != 1 or rank > 32:
            raise ManifestError(f"a mapping of its has {blocks} blocks apart from one another, not one")
        starts, ends = ([fields.uint(4) for _ in range(rank)] for _ in range(2))
        return tuple((start, end + 1 - start) for start, end in zip(starts, ends, strict=True))
    flags, width = fields.uint(1), 8
    if version == 2:
        fields.take(4)
    else:
        width = fields.uint(1)
    rank = fields.uint(4)
    if not flags & 1 or rank > 32 or width not in (2, 4, 8):
        raise ManifestError("a mapping of its has blocks that lie irregularly")
    return tuple(_extent([fields.uint(width) for _ in range(4)], (1 << 8 * width) - 1) for _ in range(rank))


def _extent(hyperslab: Sequence[int], unlimited: int) -> tuple[int, int]:
    """Return where a regular hyperslab starts along a dimension, and how many elements it has."""
    start, stride, count, block = hyperslab
    if unlimited in (count, block):
        raise ManifestError(UNLIMITED)
    if count != 1 and stride != block:
        raise ManifestError(f"a mapping of its has blocks of {block} elements, {stride} apart, not one whole block")
    return start, count * block


def files_named(objects: Mapping[str, HDF5Object]) -> list[str]:
    """Return the other files that virtual datasets name."""
    layouts = [found.layout for found in objects.values() if isinstance(found.layout, Virtual)]
    return sorted({source.file for layout in layouts for source in layout.sources} - {OWN})


def check_beside(name: str) -> None:
    """Raise ManifestError unless a file's name is that of one beside the file that names it, or below."""
    if "%b" in name:
        raise ManifestError(UNLIMITED)
    is_elsewhere = protocol_of(name) is not None or is_absolute(name) or {"..", ""} & set(name.split("/"))
    if is_elsewhere or set(name) & set("\\?#%"):
        raise ManifestError(f"it is a virtual dataset, and {name!r} does not lie beside its file: no others are opened")


# ----------------------------------------------------------------------------------------------------
# Where the chunks lie.


class Part(NamedTuple):
    """Chunks of a virtual dataset from ``first`` on to ``last``, which are those of ``chunks`` from ``source`` on.

    ``axes`` say of each dimension of the source which one of the virtual dataset it is; None: none, it has one chunk.
    """

    chunks: DatasetChunks
    first: tuple[int, ...]
    last: tuple[int, ...]
    source: tuple[int, ...]
    axes: tuple[int | None, ...]


FindSource = Callable[[str, str], DatasetChunks]  # by file and dataset; ManifestError, which says why there is none


def mapped(found: HDF5Object, find: FindSource) -> tuple[HDF5Object, list[Part]]:
    """Return a dataset, cut and filtered as its sources are, and where its chunks lie; any but a virtual one as it is.

    Raises ManifestError where the mappings are not of whole chunks, or the sources of several kinds.
    """
    if not isinstance(found.layout, Virtual):
        return found, []
    parts: list[Part] = []
    cuts: set[tuple[Any, ...]] = set()
    for source in found.layout.sources:
        chunks = find(source.file, source.dataset)
        where = f"{source.dataset!r} of {source.file!r}"
        _check_kind(found, chunks.dataset, where)
        part, chunk = _part(source, chunks, found.shape or (), where)
        parts.append(part)
        cuts.add((chunk, chunks.dataset.filters))
    if len(cuts) != 1:
        raise ManifestError("it is a virtual dataset whose sources are cut or encoded differently, or that has none")
    ((chunk, filters),) = cuts
    layout = msgspec.structs.replace(found.layout, chunk=chunk)
    return msgspec.structs.replace(found, layout=layout, filters=filters), parts


class VirtualChunks(DatasetChunks):
    """The chunks of a virtual dataset, which are those of others."""

    def __init__(
        self, file: MetadataFile, superblock: Superblock, dataset: Dataset, grid: ChunkGrid, url: str, parts: list[Part]
    ) -> None:
        super().__init__(file, superblock, dataset, grid, url, {})
        self._parts = parts
        self.is_small_coordinate = False  # which would be looked for in this file

    def prepare(self) -> Steps[None]:
        yield from ()

    def listed(self) -> Steps[list[Listed] | None]:
        if not self.fills_itself or self.grid.size > LISTABLE:
            return None
        found = yield from self.stored(range(self.grid.size))
        return self.listed_of(np.array(sorted(found), np.uint64))

    def stored(self, numbers: Sequence[int]) -> Steps[dict[int, Stored]]:
        wanted = np.array(sorted(set(numbers)), np.int64)
        counts = self.grid.counts[: len(self.dataset.chunk)]
        coords = np.array(np.unravel_index(wanted, counts or (1,))).T[:, : len(counts)]
        owners = np.full(len(wanted), -1)
        for number, part in enumerate(self._parts):  # where they overlap, the last one counts
            owners[((coords >= part.first) & (coords < part.last)).all(axis=1)] = number
        many: list[Steps[dict[int, Stored]]] = []
        theirs: list[tuple[Part, list[int], list[int]]] = []
        for number in np.unique(owners[owners >= 0]).tolist():
            part, places = self._parts[number], np.flatnonzero(owners == number)
            those = _numbers(part, coords[places])
            theirs.append((part, wanted[places].tolist(), those))
            many.append(part.chunks.stored(those))
        found: dict[int, Stored] = {}
        for (part, mine, those), stored in zip(theirs, (yield from together(many)), strict=True):
            unwritten = self._unwritten_of(part.chunks) if len(stored) < len(those) else None
            for ours, number in zip(mine, those, strict=True):
                chunk = stored.get(number, unwritten)
                if chunk is not None:
                    found[ours] = chunk
        return found

    def _unwritten_of(self, source: DatasetChunks) -> Stored | None:
        """Return what a chunk of a source is that was never written; None: the same as here."""
        values = source.fill_elements()
        if values == self.fill_elements():
            return None
        return Stored(Inline(values), (1 << len(self.dataset.filters)) - 1)


def _numbers(part: Part, coords: npt.NDArray[np.int64]) -> list[int]:
    """Return the numbers of the source's chunks that stand at ``coords``."""
    counts = part.chunks.grid.counts
    found = np.zeros(len(coords), np.int64)
    for axis, (start, ours) in enumerate(zip(part.source, part.axes, strict=True)):
        place = start if ours is None else start + coords[:, ours] - part.first[ours]
        found = found * counts[axis] + place
    return [int(number) for number in found]


def _check_kind(found: HDF5Object, dataset: Dataset, where: str) -> None:
    """Raise ManifestError where the elements of a source are not, byte by byte, those of the virtual dataset."""
    if dataset.datatype != found.datatype:
        raise ManifestError(f"it is a virtual dataset whose datatype is not that of {where}")
    if dataset.object_codec or isinstance(dataset.layout, Virtual):
        raise ManifestError(f"it is a virtual dataset, and {where} has texts in a heap, or is one as well")
    if dataset.filters and not getattr(dataset.layout, "whole_edges", True):
        raise ManifestError(f"it is a virtual dataset, and some chunks of {where} are not filtered")


def _part(source: Source, chunks: DatasetChunks, shape: tuple[int, ...], where: str) -> tuple[Part, tuple[int, ...]]:
    """Return the chunks that a mapping is of, and how it cuts the virtual dataset into chunks."""
    theirs = chunks.dataset.outer_shape
    box = source.place or tuple((0, extent) for extent in shape)
    part = source.selection or tuple((0, extent) for extent in theirs)
    axes = _axes([size for _, size in part], [size for _, size in box]) if len(box) == len(shape) else None
    if axes is None or len(part) != len(theirs):
        raise ManifestError(f"it is a virtual dataset, and its mapping of {where} is of another shape than its source")
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
        raise ManifestError(f"it is a virtual dataset, and its mapping of {where} is not of whole chunks")
    first = tuple(start // extent for (start, _), extent in zip(box, chunk, strict=True))
    last = tuple(math.ceil((start + size) / extent) for (start, size), extent in zip(box, chunk, strict=True))
    return Part(chunks, first, last, tuple(begin), tuple(axes)), tuple(chunk)


def _axes(theirs: Sequence[int], ours: Sequence[int]) -> list[int | None] | None:
    """Return which of our dimensions each of theirs is, where only those of one element differ; None if others do."""
    if list(theirs) == list(ours):
        return list(range(len(ours)))
    long = [axis for axis, size in enumerate(ours) if size != 1]
    if [size for size in theirs if size != 1] != [ours[axis] for axis in long]:
        return None
    left = iter(long)
    return [next(left) if size != 1 else None for size in theirs]
