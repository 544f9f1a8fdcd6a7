"""Datasets of an HDF5 file as arrays of zarr: their metadata, and what their chunks are made of. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.core.array_group import UNWRITTEN, ArrayDescription, Chunks, FilledChunks, encoded, pieces
from refshard_fs.core.array_group import Contiguous as ContiguousChunks
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import Entry, Inline, Listed, Load, Packed, Raw, Span, Steps, together
from refshard_fs.core.zarrmeta import zarr_major
from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.formats.hdf5.chunk_index import NOTHING, ChunkSpace, Index, index_of
from refshard_fs.formats.hdf5.datatypes import heap_ids, objects
from refshard_fs.formats.hdf5.file import MetadataFile
from refshard_fs.formats.hdf5.filters import codecs_of
from refshard_fs.formats.hdf5.heaps import read_collections
from refshard_fs.formats.hdf5.netcdf4 import Variable
from refshard_fs.formats.hdf5.structure import SMALL, Chunked, Compact, Contiguous, HDF5Object, Superblock, Virtual

TEXT: Final[dict[str, Any]] = {"id": "vlen-utf8"}


class Dataset:
    """A dataset that can be shown: its ``chunk`` is what the file stores, or a piece of contiguous elements.

    Raises ManifestError, which says why, for one that cannot.
    """

    def __init__(self, found: HDF5Object, variable: Variable) -> None:
        assert found.shape is not None
        assert found.datatype is not None
        self.object = found
        self.variable = variable
        self.layout = layout = found.layout
        self.datatype = found.datatype
        self.outer_shape = found.shape
        self.filters = found.filters
        match layout:
            case Chunked(chunk, itemsize):
                if len(chunk) != len(found.shape) or itemsize != found.datatype.size:
                    reason = f"{found.path!r} has chunks of {chunk} elements of {itemsize} bytes"
                    raise ValueError(f"{reason}, and its elements are {found.shape} of {found.datatype.size}")
                self.chunk = chunk
            case Compact() | Contiguous():
                self.chunk = pieces(found.shape, found.datatype.size)
                self.filters = ()
            case Virtual(chunk=chunk):
                self.chunk = chunk
            case _:
                raise ValueError(f"{found.path!r} has no data layout")
        self.object_codec = self._object_codec() if self.datatype.shown is None else None
        self.codecs = codecs_of(self.filters, self.datatype, self.chunk)

    def _object_codec(self) -> dict[str, Any]:
        """Return the codec of texts or sequences; ManifestError where zarr has none."""
        inner = self.datatype.inner
        if inner.is_text:
            return TEXT
        if inner.kind != "vlen-sequence" or inner.base is None or inner.base.shown is None:
            raise ManifestError(f"its datatype is of the kind {inner.kind}")
        if (zarr_major() or 3) > 2:
            raise ManifestError("its datatype is a variable-length sequence: zarr 2.18 shows it, zarr 3 has none such")
        return {"id": "vlen-array", "dtype": inner.base.shown.str}

    @property
    def count(self) -> int:
        """Elements of a chunk."""
        return math.prod(self.chunk)

    @property
    def stored(self) -> int:
        """Bytes of a chunk that no filter made smaller."""
        return self.count * self.datatype.size

    @property
    def is_small_coordinate(self) -> bool:
        """Whether it is an index of xarray's that is small enough to be read at once, and held as metadata is."""
        variable = self.variable
        is_index = variable.dimensions == (variable.path.rpartition("/")[2],) and not self.object_codec
        return is_index and max(variable.shape[0], self.chunk[0]) * self.datatype.size <= SMALL

    def description(self) -> ArrayDescription:
        """Return what zarr's metadata says of it; elements that are arrays add their dimensions."""
        variable, inner = self.variable, self.datatype.shape
        dtype = self.datatype.shown or np.dtype(object)
        codecs = self.codecs.shown if self.object_codec is None else (self.object_codec,)
        shape, chunks = variable.shape + inner, self.chunk + inner
        names, attributes = variable.dimensions, variable.attributes
        return ArrayDescription(variable.path, shape, chunks, dtype, names, attributes, codecs, variable.fill_value)


class Stored(NamedTuple):
    """A chunk as it lies in the file, and which of its filters it skips."""

    entry: Entry
    mask: int = 0


class DatasetChunks(FilledChunks):
    """The chunks of one dataset, of which many are found together."""

    def __init__(
        self,
        file: MetadataFile,
        superblock: Superblock,
        dataset: Dataset,
        grid: ChunkGrid,
        url: str,
        paths: Mapping[int, str],
    ) -> None:
        super().__init__(
            f"dataset {dataset.object.path!r}", grid, dataset.stored, fills_itself=dataset.variable.fills_itself
        )
        self.dataset = dataset
        self._url = url
        self._file = file
        self._paths = paths
        self._pieces, self._index = _layout(file, superblock, dataset)
        self.is_small_coordinate = dataset.is_small_coordinate

    def entry(self, number: int) -> Steps[Entry | None]:
        (found,) = yield from self.entries((number,))
        return found

    def entries(self, numbers: Sequence[int]) -> Steps[Sequence[Entry | None]]:
        """Return the entries of chunks, all of them found in the same rounds."""
        with self._damage_named():
            stored = yield from self.stored(numbers)
            if self.dataset.object_codec is not None:
                return (yield from self._objects(numbers, stored, self.dataset.object_codec))
            found = [self._shown(number, stored.get(number)) for number in numbers]
            return (yield from self._read_now(found)) if self.is_small_coordinate else found

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except RefShardError:
            raise
        except ValueError as e:
            raise DamagedIndex("", self._url, f"{self.where}: {e}") from e

    def prepare(self) -> Steps[None]:
        """Read what most users of the file ask for next: the index's first node; of a small coordinate, all."""
        if self.is_small_coordinate:
            yield from self.entries(range(self.grid.size))
        elif self._index is not None:
            yield from self._index.find(np.empty(0, np.uint64))

    def listed(self) -> Steps[list[Listed] | None]:
        if self._pieces is not None or (not self.fills_itself and self.grid.size <= UNWRITTEN):
            return None
        with self._damage_named():
            found = NOTHING if self._index is None else (yield from self._index.find(None))
        return self.listed_of(found.numbers)

    def numbers_in_unread_blocks(self, number: int) -> Iterator[int]:
        numbers = [] if self._index is None else self._index.numbers_in_unread_blocks()
        return iter(sorted(numbers, key=lambda other: (other < number, other)))

    # ------------------------------------------------------------------ as they are stored

    def stored(self, numbers: Sequence[int]) -> Steps[dict[int, Stored]]:
        """Return those of the chunks ``numbers`` that were written."""
        if self._index is not None:
            wanted = np.unique(np.array(numbers, np.uint64))
            found = yield from self._index.find(wanted)
            columns = (column.tolist() for column in found)
            return {
                number: Stored(self._file.part(address, size, "a chunk"), mask)
                for number, address, size, mask in zip(*columns, strict=True)
            }
        if self._pieces is None:
            return {}
        entries = yield from together([self._pieces.entry(number) for number in numbers])
        return {n: Stored(entry) for n, entry in zip(numbers, entries, strict=True) if entry is not None}

    def _shown(self, number: int, stored: Stored | None) -> Entry | None:
        if stored is None:
            return self.unwritten()
        dataset = self.dataset
        mask = stored.mask
        if dataset.filters and not self._is_filtered(number):
            mask = (1 << len(dataset.filters)) - 1
        if not dataset.filters and stored.entry.size != dataset.stored:
            raise ValueError(f"chunk {number} has {stored.entry.size} bytes, where {dataset.stored} are due")
        recipe = dataset.codecs.recipe(mask)
        match stored.entry:
            case Inline(data) if recipe is not None:
                return Inline(recipe.make(data))
            case Span() as source if recipe is not None:
                return Packed(source, recipe, recipe.made)
            case Packed(source) if recipe is not None:  # a piece that the recipe pads as well
                return Packed(source, recipe, recipe.made)
        return stored.entry

    def _is_filtered(self, number: int) -> bool:
        """Whether filters apply to a chunk: writers may leave out those that reach beyond the array."""
        layout = self.dataset.layout
        if not isinstance(layout, Chunked) or layout.whole_edges:
            return True
        coords = self.grid.coords(number)
        cells = zip(coords, layout.shape, self.dataset.outer_shape, strict=False)
        return all((coord + 1) * chunk <= extent for coord, chunk, extent in cells)

    def _read_now(self, entries: Sequence[Entry | None]) -> Steps[Sequence[Entry | None]]:
        """Return ``entries`` as their bytes."""
        there = [self._file.known(entry) for entry in entries if entry is not None]
        data = iter((yield tuple(Load(entry, Raw()) for entry in there)) if there else ())
        return [None if entry is None else Inline(next(data)) for entry in entries]

    # ------------------------------------------------------------------ those that were never written

    def filled(self) -> bytes:
        return self.dataset.codecs.encode(self.fill_elements())

    def fill_elements(self) -> bytes:
        """Return a chunk's elements, all of them the fill value."""
        self.check_size()
        size, fill = self.dataset.datatype.size, self.dataset.object.fill
        if fill is not None and len(fill) != size:
            raise ValueError(f"its fill value has {len(fill)} bytes, its elements {size}")
        return (fill or bytes(size)) * self.dataset.count

    # ------------------------------------------------------------------ texts and sequences

    def _objects(
        self, numbers: Sequence[int], stored: Mapping[int, Stored], codec: Mapping[str, Any]
    ) -> Steps[list[Entry | None]]:
        """Return chunks of texts or sequences as zarr's codec reads them; they lie in the global heap."""
        shown = {
            number: self._shown(number, stored.get(number)) for number in dict.fromkeys(numbers) if number in stored
        }
        entries = [entry for entry in shown.values() if entry is not None]
        read = yield tuple(Load(entry, Raw()) for entry in entries)
        raw: dict[int, bytes] = dict(zip(shown, read, strict=True))
        if not self.fills_itself:
            missing = [number for number in dict.fromkeys(numbers) if number not in shown]
            raw |= dict.fromkeys(missing, self.dataset.codecs.encode(self.fill_elements()) if missing else b"")
        datatype = self.dataset.datatype.inner
        addresses = [address for data in raw.values() for address, _, _ in heap_ids(datatype, data)]
        heap = yield from read_collections(self._file, addresses)
        made: dict[int, Inline] = {}
        for number, data in raw.items():
            elements = objects(datatype, data, heap, self._paths, "replace")
            held = np.empty(len(elements), object)
            held[:] = elements if codec is TEXT else [np.array(item, codec["dtype"]) for item in elements]
            made[number] = Inline(encoded(held, [codec]))
        return [made.get(number) for number in numbers]


def _layout(file: MetadataFile, superblock: Superblock, dataset: Dataset) -> tuple[Chunks | None, Index | None]:
    """Return the pieces of a dataset, or the index of its chunks; neither where nothing was written."""
    found = dataset.object
    match dataset.layout:
        case Compact(data):
            return _pieces(Inline(data), 0, dataset), None
        case Contiguous(None) | Virtual():
            return None, None
        case Contiguous(int(address), size):
            needed = math.prod(dataset.outer_shape) * dataset.datatype.size
            if size not in (-1, needed) and size < needed:
                raise ValueError(f"{found.path!r} has {size} bytes, and its elements take {needed}")
            return _pieces(file.source, file.base + address, dataset), None
        case Chunked(address=None):
            return None, None
        case Chunked(kind=kind, address=int(address), parameters=parameters):
            space = _chunk_space(file, dataset)
            return None, index_of(file, space, kind, address, superblock.chunk_k if kind == "B-tree 1" else parameters)
    raise ManifestError(f"its layout {dataset.layout} is not known")


def _chunk_space(file: MetadataFile, dataset: Dataset) -> ChunkSpace:
    extents = zip(dataset.variable.shape, dataset.object.maxshape, dataset.chunk, strict=True)
    cells = [(-(-extent // c), None if most is None else -(-most // c)) for extent, most, c in extents]
    counts, most = tuple(count for count, _ in cells), tuple(limit for _, limit in cells)
    if any(limit is not None and limit < count for count, limit in cells):
        raise ValueError(f"{dataset.object.path!r} is larger than its greatest extent")
    return ChunkSpace(file.sizes, file.room(0), dataset.chunk, counts, most, dataset.stored, bool(dataset.filters))


def _pieces(source: Span | Inline, offset: int, dataset: Dataset) -> Chunks:
    return ContiguousChunks(
        source, offset, dataset.outer_shape, dataset.chunk, dataset.datatype.size, dataset.object.path
    )
