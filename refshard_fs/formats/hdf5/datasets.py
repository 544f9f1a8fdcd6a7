"""Datasets of an HDF5 file as arrays of zarr: their metadata, and what their chunks are made of. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.array_group import UNWRITTEN, ArrayDescription, Chunks, check_unwritten, pieces
from refshard_fs.core.array_group import Contiguous as ContiguousChunks
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.keyspace import tails
from refshard_fs.core.model import Entry, Inline, Listed, Load, Packed, Parsed, Raw, Recipe, Span, Steps, together
from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.formats.hdf5.array_index import ExtensibleArray, FixedArray
from refshard_fs.formats.hdf5.chunk_index import BTree1, BTreeOfGrowing, Implicit, Index, Place, Single
from refshard_fs.formats.hdf5.datatypes import encode_vlen_utf8, heap_ids, recast, vlen_strings
from refshard_fs.formats.hdf5.file import MetadataFile
from refshard_fs.formats.hdf5.filters import codecs_of, recoded
from refshard_fs.formats.hdf5.heaps import GLOBAL, Collection, begun_collection
from refshard_fs.formats.hdf5.netcdf4 import Variable
from refshard_fs.formats.hdf5.structure import SMALL, Chunked, Compact, Contiguous, HDF5Object, Superblock, Virtual

MOST_FILL: Final = 1 << 26  # bytes of a chunk that was never written, where one has to be made
TEXT: Final = {"id": "vlen-utf8"}


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
        self.is_text = self.datatype.kind == "vlen-string"
        if self.datatype.shown is None and not self.is_text:
            raise ManifestError(f"its datatype is of the kind {self.datatype.kind}")
        self.codecs = codecs_of(self.filters, self.datatype, self.chunk)

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
        is_index = variable.dimensions == (variable.path.rpartition("/")[2],) and not self.is_text
        return is_index and max(variable.shape[0], self.chunk[0]) * self.datatype.size <= SMALL

    def description(self) -> ArrayDescription:
        """Return what zarr's metadata says of it; elements that are arrays add their dimensions."""
        variable, inner = self.variable, self.datatype.shape
        filters: tuple[Mapping[str, Any], ...]
        if self.is_text:
            dtype, compressor, filters = np.dtype(object), None, (TEXT,)
        else:
            assert self.datatype.shown is not None
            dtype, compressor, filters = self.datatype.shown, self.codecs.compressor, self.codecs.filters
        return ArrayDescription(
            variable.path,
            variable.shape + inner,
            self.chunk + inner,
            dtype,
            "C",
            compressor,
            variable.dimensions,
            variable.attributes,
            variable.fill_value,
            filters,
        )


class Stored(NamedTuple):
    """A chunk as it lies in the file, and which of its filters it skips."""

    entry: Entry
    mask: int = 0


class After(msgspec.Struct, frozen=True):
    """What ``second`` makes of what ``first`` makes."""

    first: Recipe
    second: Recipe

    def make(self, raw: bytes) -> bytes:
        return self.second.make(self.first.make(raw))


class DatasetChunks(Chunks):
    """The chunks of one dataset, of which many are found together."""

    def __init__(
        self,
        file: MetadataFile,
        superblock: Superblock,
        dataset: Dataset,
        grid: ChunkGrid,
        url: str,
    ) -> None:
        self.dataset = dataset
        self.grid = grid
        self._url = url
        self._file = file
        self._pieces, self._index = _layout(file, superblock, dataset)
        self._filled: Inline | None = None
        self.is_small_coordinate = dataset.is_small_coordinate

    def entry(self, number: int) -> Steps[Entry | None]:
        (found,) = yield from self.entries((number,))
        return found

    def entries(self, numbers: Sequence[int]) -> Steps[Sequence[Entry | None]]:
        """Return the entries of chunks, all of them found in the same rounds."""
        try:
            stored = yield from self.stored(numbers)
            if self.dataset.is_text:
                return (yield from self._texts(numbers, stored))
            found = [self._shown(number, stored.get(number)) for number in numbers]
            return (yield from self._read_now(found)) if self.is_small_coordinate else found
        except RefShardError:
            raise
        except ValueError as e:
            raise DamagedIndex("", self._url, f"dataset {self.dataset.object.path!r}: {e}") from e

    def prepare(self) -> Steps[None]:
        """Read what most users of the file ask for next: the index's first node; of a small coordinate, all."""
        try:
            if self.is_small_coordinate:
                yield from self.entries(range(self.grid.size))
            elif self._index is not None:
                yield from self._index.find(np.empty(0, np.uint64))
        except (RefShardError, ValueError, OSError):
            pass  # whoever reads it meets the same error

    def listed(self) -> Steps[list[Listed] | None]:
        is_whole = not self.dataset.variable.fills_itself
        if self._pieces is not None or (is_whole and self.grid.size <= UNWRITTEN):
            return None
        written = np.empty(0, np.uint64)
        try:
            if self._index is not None:
                written = (yield from self._index.find(None)).numbers
        except RefShardError:
            raise
        except ValueError as e:
            raise DamagedIndex("", self._url, f"dataset {self.dataset.object.path!r}: {e}") from e
        if is_whole:
            check_unwritten(self.dataset.object.path, self.grid, len(written))
            return None
        return [Listed(tail, None) for tail in tails(self.grid, written)]

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
            return None if self.dataset.variable.fills_itself else self._fill()
        dataset = self.dataset
        mask = stored.mask
        if dataset.filters and not self._is_filtered(number):
            mask = (1 << len(dataset.filters)) - 1
        recipe: Recipe | None = dataset.codecs.recipe
        if mask:
            recipe = recoded(dataset.filters, mask, dataset.codecs, dataset.datatype, dataset.chunk)
        if not dataset.filters and stored.entry.size != dataset.stored:
            raise ValueError(f"chunk {number} has {stored.entry.size} bytes, where {dataset.stored} are due")
        return stored.entry if recipe is None else _made(stored.entry, recipe)

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

    def _fill(self) -> Inline:
        if self._filled is None:
            dataset = self.dataset
            plain = self.fill_elements()
            if dataset.datatype.is_recast:
                plain = recast(dataset.datatype, plain).tobytes()
            self._filled = Inline(dataset.codecs.encode(plain))
        return self._filled

    def fill_elements(self) -> bytes:
        """Return a chunk's elements, all of them the fill value."""
        dataset = self.dataset
        size, fill = dataset.datatype.size, dataset.object.fill
        if dataset.stored > MOST_FILL:
            raise ValueError(f"a chunk of {dataset.stored} bytes was never written: they are too many to make")
        if fill is not None and len(fill) != size:
            raise ValueError(f"its fill value has {len(fill)} bytes, its elements {size}")
        return (fill or bytes(size)) * dataset.count

    # ------------------------------------------------------------------ texts

    def _texts(self, numbers: Sequence[int], stored: Mapping[int, Stored]) -> Steps[list[Entry | None]]:
        """Return chunks of texts as zarr's vlen-utf8 reads them; they lie in the global heap."""
        shown = {
            number: self._shown(number, stored.get(number)) for number in dict.fromkeys(numbers) if number in stored
        }
        entries = [entry for entry in shown.values() if entry is not None]
        read = yield tuple(Load(entry, Raw()) for entry in entries)
        raw: dict[int, bytes] = dict(zip(shown, read, strict=True))
        if not self.dataset.variable.fills_itself:
            missing = [number for number in dict.fromkeys(numbers) if number not in shown]
            raw |= dict.fromkeys(missing, self.fill_elements() if missing else b"")
        datatype = self.dataset.datatype
        addresses = sorted({address for data in raw.values() for address, _, _ in heap_ids(datatype, data)})
        collections = yield from together([self._collection(address) for address in addresses])
        heap = {
            (address, index): data
            for address, collection in zip(addresses, collections, strict=True)
            for index, data in collection.objects.items()
        }
        made = {number: Inline(encode_vlen_utf8(vlen_strings(datatype, data, heap))) for number, data in raw.items()}
        return [made.get(number) for number in numbers]

    def _collection(self, address: int) -> Steps[Collection]:
        length = min(GLOBAL, self._file.room(address))
        while True:
            entry = self._file.metadata(address, length, "a collection of the global heap")
            collection: Collection = yield Load(entry, Parsed(begun_collection, (self._file.sizes,)))
            if collection.size <= length:
                return collection
            length = collection.size


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
        case Chunked(address=int(address)) as layout:
            return None, _index(layout, address, _place(file, dataset), superblock)
    raise ManifestError(f"its layout {dataset.layout} is not known")


def _place(file: MetadataFile, dataset: Dataset) -> Place:
    extents = zip(dataset.variable.shape, dataset.object.maxshape, dataset.chunk, strict=True)
    cells = [(-(-extent // c), None if most is None else -(-most // c)) for extent, most, c in extents]
    counts, most = tuple(count for count, _ in cells), tuple(limit for _, limit in cells)
    if any(limit is not None and limit < count for count, limit in cells):
        raise ValueError(f"{dataset.object.path!r} is larger than its greatest extent")
    return Place(file, dataset.chunk, counts, most, dataset.stored, bool(dataset.filters))


def _index(layout: Chunked, address: int, place: Place, superblock: Superblock) -> Index:
    match layout.kind:
        case "B-tree 1":
            return BTree1(place, address, superblock.chunk_k)
        case "B-tree 2":
            return BTreeOfGrowing(place, address)
        case "single":
            size, mask = layout.parameters or (place.stored, 0)
            return Single(place, address, size, mask)
        case "implicit":
            return Implicit(place, address)
        case "fixed array":
            return FixedArray(place, address)
        case "extensible array" if place.most.count(None) == 1:
            return ExtensibleArray(place, address)
    raise ValueError(f"its chunk index is of the kind {layout.kind}, which its extents {place.most} do not have")


def _pieces(source: Span | Inline, offset: int, dataset: Dataset) -> Chunks:
    return ContiguousChunks(
        source, offset, dataset.outer_shape, dataset.chunk, dataset.datatype.size, dataset.object.path
    )


def _made(entry: Entry, recipe: Recipe) -> Entry:
    made: int | None = getattr(recipe, "made", None)
    match entry:
        case Inline(data):
            return Inline(recipe.make(data))
        case Span():
            return Packed(entry, recipe, made)
        case Packed():
            return Packed(entry.source, After(entry.recipe, recipe), made)
