"""HDF5 datasets as zarr arrays: their metadata, and the entries of their chunks. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import (
    UNWRITTEN,
    ArrayDescription,
    Chunks,
    FilledChunks,
    choose_chunks,
    encode_chunk,
    report_damage,
)
from refshard_fs.core.array_group import Contiguous as ContiguousChunks
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import Entry, Inline, Listed, Load, Packed, Raw, Span, Steps, run_together
from refshard_fs.core.zarrmeta import zarr_major
from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.chunk_index import NO_CHUNKS, ChunkSpace, Index, make_index
from refshard_fs.formats.hdf5.datatypes import decode_objects, list_heap_ids
from refshard_fs.formats.hdf5.external import ExternalChunks
from refshard_fs.formats.hdf5.file import MetadataFile
from refshard_fs.formats.hdf5.filters import make_codecs
from refshard_fs.formats.hdf5.heaps import read_collections
from refshard_fs.formats.hdf5.netcdf4 import NetCDFVariable
from refshard_fs.formats.hdf5.structure import (
    SMALL,
    ChunkedLayout,
    CompactLayout,
    ContiguousLayout,
    ExternalFiles,
    HDF5Object,
    Superblock,
    VirtualLayout,
)

TEXT: Final[dict[str, Any]] = {"id": "vlen-utf8"}
BYTES: Final[dict[str, Any]] = {"id": "vlen-bytes"}
# An attribute of arrays whose sequences of numbers are shown as bytes: the dtype of these numbers.
ELEMENT: Final = "element_dtype"


class Dataset:
    """A dataset that can be shown as an array of zarr.

    ``chunk`` is the shape of its HDF5 chunks; for a virtual dataset, of its sources' chunks; for data without chunks,
    of the chunks into which they are cut.
    ``outer_shape`` is the dataset's shape, without the dimensions of an array datatype. The constructor raises
    ValueError with the reason if the dataset cannot be shown.
    """

    def __init__(self, hdf5_object: HDF5Object, variable: NetCDFVariable) -> None:
        assert hdf5_object.shape is not None
        assert hdf5_object.datatype is not None
        self.object = hdf5_object
        self.variable = variable
        self.layout = layout = hdf5_object.layout
        self.datatype = hdf5_object.datatype
        self.outer_shape = hdf5_object.shape
        self.filters = hdf5_object.filters
        match layout:
            case ChunkedLayout(chunk, itemsize):
                if len(chunk) != len(hdf5_object.shape) or itemsize != hdf5_object.datatype.size:
                    reason = f"{hdf5_object.path!r} has chunks of {chunk} elements of {itemsize} bytes"
                    expected = f"{len(hdf5_object.shape)} dimensions, elements of {hdf5_object.datatype.size} bytes"
                    raise ValueError(f"{reason}: expected {expected}")
                self.chunk = chunk
            case CompactLayout() | ContiguousLayout() | ExternalFiles():
                self.chunk = choose_chunks(hdf5_object.shape, hdf5_object.datatype.size)
                self.filters = ()
            case VirtualLayout(chunk=chunk):
                self.chunk = chunk
            case _:
                raise ValueError(f"{hdf5_object.path!r}: expected a data layout message, found none")
        self.object_codec = self._find_object_codec() if self.datatype.shown is None else None
        self.codecs = make_codecs(self.filters, self.datatype, self.chunk)

    def _find_object_codec(self) -> dict[str, Any]:
        """Return the codec of texts or sequences. Raise ManifestError if zarr has none.

        zarr-python 3 cannot read sequences of numbers, so it gets their bytes.
        """
        inner = self.datatype.inner
        if inner.is_text:
            return TEXT
        if inner.kind != "vlen-sequence" or inner.base is None or inner.base.shown is None:
            expected = "expected numbers, text, compounds of these, or sequences of numbers"
            raise ManifestError(f"its datatype is of the kind {inner.kind!r}, which zarr cannot hold: {expected}")
        if (zarr_major() or 3) > 2:
            return BYTES
        return {"id": "vlen-array", "dtype": self._sequence_dtype.str}

    @property
    def _sequence_dtype(self) -> np.dtype[Any]:
        """The data type of the elements of sequences."""
        base = self.datatype.inner.base
        assert base is not None
        assert base.shown is not None
        return base.shown

    def make_object_array(self, elements: Sequence[Any]) -> npt.NDArray[Any]:
        """Convert texts or sequences to an array of objects, which `object_codec` can encode."""
        objects_array = np.empty(len(elements), object)
        if self.object_codec is TEXT:
            objects_array[:] = elements
        else:
            arrays = [np.array(item, self._sequence_dtype) for item in elements]
            objects_array[:] = [array.tobytes() for array in arrays] if self.object_codec is BYTES else arrays
        return objects_array

    @property
    def count(self) -> int:
        """The number of elements of a chunk."""
        return math.prod(self.chunk)

    @property
    def raw_size(self) -> int:
        """The size of a chunk before filters, in bytes."""
        return self.count * self.datatype.size

    @property
    def is_small_coordinate(self) -> bool:
        """Whether the dataset has the name of its only dimension, and at most `SMALL` bytes: opening reads it whole.

        It is false for a virtual dataset: opening reads only values in the opened file.
        """
        variable = self.variable
        is_stored = not self.object_codec and not isinstance(self.layout, VirtualLayout)
        is_index = variable.dimensions == (variable.path.rpartition("/")[2],) and is_stored
        return is_index and max(variable.shape[0], self.chunk[0]) * self.datatype.size <= SMALL

    def describe(self) -> ArrayDescription:
        """Describe the array to zarr. The dimensions of an array datatype follow the dimensions of the dataset."""
        variable, inner = self.variable, self.datatype.shape
        dtype = self.datatype.shown or np.dtype(object)
        codecs = self.codecs.shown_codecs if self.object_codec is None else (self.object_codec,)
        shape, chunks = variable.shape + inner, self.chunk + inner
        names, attributes = variable.dimensions, variable.attributes
        if self.object_codec is BYTES:
            attributes = {ELEMENT: self._sequence_dtype.str, **attributes}
        is_decoded = self.codecs.codec_texts is None and self.object_codec is None
        filter_names = tuple(filter_.name for filter_ in self.codecs.filters) if is_decoded else ()
        fill = variable.fill_value
        return ArrayDescription(
            variable.path, shape, chunks, dtype, names, attributes, codecs, fill, file_codecs=filter_names
        )


class StoredChunk(NamedTuple):
    """The place of a chunk in the file; in ``mask``, bit N is set if the chunk skips filter N."""

    entry: Entry
    mask: int = 0


class OpenedFile(NamedTuple):
    """The file in which chunks are located."""

    metadata: MetadataFile
    superblock: Superblock
    url: str


class DatasetChunks(FilledChunks):
    """The chunks of one dataset. ``paths`` are the paths of objects by address: references are shown as paths."""

    are_found_together = True

    def __init__(self, opened: OpenedFile, dataset: Dataset, grid: ChunkGrid, paths: Mapping[int, str]) -> None:
        super().__init__(
            f"dataset {dataset.object.path!r}",
            grid,
            dataset.raw_size,
            fills_itself=dataset.variable.fills_itself,
        )
        self.dataset = dataset
        self._url = opened.url
        self._file = opened.metadata
        self._paths = paths
        self._contiguous, self._index = _locate_data(opened.metadata, opened.superblock, dataset)
        self.is_small_coordinate = dataset.is_small_coordinate

    def find_entry(self, number: int) -> Steps[Entry | None]:
        (entry,) = yield from self.find_entries((number,))
        return entry

    def find_entries(self, numbers: Sequence[int]) -> Steps[Sequence[Entry | None]]:
        """Return the entries of several chunks, which are located in the same rounds."""
        with report_damage(self._url, self.where):
            chunks = yield from self.find_stored_chunks(numbers)
            if self.dataset.object_codec is not None:
                return (yield from self._encode_objects(numbers, chunks, self.dataset.object_codec))
            entries = [self._make_entry(number, chunks.get(number)) for number in numbers]
            return (yield from self._read_now(entries)) if self.is_small_coordinate else entries

    def prepare(self) -> Steps[None]:
        """Read what most users need next: all chunks of a small coordinate, or the first block of a chunk index."""
        if self.is_small_coordinate:
            yield from self.find_entries(range(self.grid.size))
        elif self._index is not None:
            yield from self._index.find(np.empty(0, np.uint64))

    def list_existing(self) -> Steps[list[Listed] | None]:
        if self._contiguous is not None or (not self.fills_itself and self.grid.size <= UNWRITTEN):
            return None
        with report_damage(self._url, self.where):
            locations = NO_CHUNKS if self._index is None else (yield from self._index.find(None))
        return self.list_written(locations.numbers)

    def list_numbers_in_unread_blocks(self, number: int) -> Iterator[int]:
        numbers = [] if self._index is None else self._index.list_numbers_in_unread_blocks()
        return iter(sorted(numbers, key=lambda other: (other < number, other)))

    def find_stored_chunks(self, numbers: Sequence[int]) -> Steps[dict[int, StoredChunk]]:
        """Locate the chunks ``numbers``; the result has no item for a chunk that was never written."""
        if self._index is not None:
            sorted_numbers = np.unique(np.array(numbers, np.uint64))
            locations = yield from self._index.find(sorted_numbers)
            columns = (column.tolist() for column in locations)
            return {
                number: StoredChunk(self._file.locate(address, size, "a chunk"), mask)
                for number, address, size, mask in zip(*columns, strict=True)
            }
        if self._contiguous is None:
            return {}
        entries = yield from run_together([self._contiguous.find_entry(number) for number in numbers])
        return {number: StoredChunk(entry) for number, entry in zip(numbers, entries, strict=True) if entry is not None}

    def _make_entry(self, number: int, chunk: StoredChunk | None) -> Entry | None:
        if chunk is None:
            return self.make_unwritten_entry()
        dataset = self.dataset
        if not dataset.filters and chunk.entry.size != dataset.raw_size:
            raise ValueError(f"chunk {number} has {chunk.entry.size} bytes: expected {dataset.raw_size}")
        recipe = dataset.codecs.make_recipe(self.find_mask(number, chunk))
        match chunk.entry:
            case Inline(data) if recipe is not None:
                return Inline(recipe.make(data))
            case Span() as span if recipe is not None:
                return Packed(span, recipe, recipe.result_size)
            case Packed() as packed if recipe is not None:  # its recipe pads the chunk, and so does the new recipe
                return msgspec.structs.replace(packed, recipe=recipe, made=recipe.result_size)
        return chunk.entry

    def find_mask(self, number: int, chunk: StoredChunk) -> int:
        """Return the mask of the filters that a stored chunk skips."""
        is_filtered = not self.dataset.filters or self._is_filtered(number)
        return chunk.mask if is_filtered else (1 << len(self.dataset.filters)) - 1

    def _is_filtered(self, number: int) -> bool:
        """Return whether filters apply to a chunk. A file may leave chunks that reach beyond the array unfiltered."""
        layout = self.dataset.layout
        if not isinstance(layout, ChunkedLayout) or layout.are_edges_filtered:
            return True
        coords = self.grid.coords(number)
        axes = zip(coords, layout.shape, self.dataset.outer_shape, strict=False)
        return all((coord + 1) * chunk <= extent for coord, chunk, extent in axes)

    def _read_now(self, entries: Sequence[Entry | None]) -> Steps[Sequence[Entry | None]]:
        """Read ``entries`` and return them inline."""
        needs = [self._file.get_if_read(entry) for entry in entries if entry is not None]
        data = iter((yield tuple(Load(entry, Raw()) for entry in needs)) if needs else ())
        return [None if entry is None else Inline(next(data)) for entry in entries]

    def encode_fill(self) -> bytes:
        return self.dataset.codecs.encode(self.make_fill_elements())

    def make_fill_elements(self) -> bytes:
        """Return the bytes, before filters, of a chunk whose elements all are the fill value."""
        self.check_size()
        return self.fill_element * self.dataset.count

    @property
    def fill_element(self) -> bytes:
        """The bytes of an element that was never written; ValueError if the file's fill value has another size."""
        size, fill = self.dataset.datatype.size, self.dataset.object.fill
        if fill is not None and len(fill) != size:
            raise ValueError(f"its fill value has {len(fill)} bytes: expected {size}, the size of an element")
        return fill or bytes(size)

    def _encode_objects(
        self, numbers: Sequence[int], chunks: Mapping[int, StoredChunk], codec: Mapping[str, Any]
    ) -> Steps[list[Entry | None]]:
        """Read texts or sequences from the global heap, and encode them with zarr's ``codec`` to chunks."""
        entry_by_number = {
            number: self._make_entry(number, chunks.get(number))
            for number in dict.fromkeys(numbers)
            if number in chunks
        }
        entries = [entry for entry in entry_by_number.values() if entry is not None]
        answers = yield tuple(Load(entry, Raw()) for entry in entries)
        raw: dict[int, bytes] = dict(zip(entry_by_number, answers, strict=True))
        if not self.fills_itself:
            missing = [number for number in dict.fromkeys(numbers) if number not in entry_by_number]
            raw |= dict.fromkeys(missing, self.dataset.codecs.encode(self.make_fill_elements()) if missing else b"")
        datatype = self.dataset.datatype.inner
        addresses = [address for data in raw.values() for address, _, _ in list_heap_ids(datatype, data)]
        heap = yield from read_collections(self._file, addresses)
        encoded: dict[int, Inline] = {}
        for number, data in raw.items():
            elements = self.dataset.make_object_array(decode_objects(datatype, data, heap, self._paths, "replace"))
            encoded[number] = Inline(encode_chunk(elements, [codec]))
        return [encoded.get(number) for number in numbers]


def _locate_data(file: MetadataFile, superblock: Superblock, dataset: Dataset) -> tuple[Chunks | None, Index | None]:
    """Return (chunks of contiguous data, None), or (None, chunk index).

    The result is (None, None) if nothing was written, and for a virtual dataset.
    """
    hdf5_object = dataset.object
    match dataset.layout:
        case CompactLayout(data):
            return _cut_contiguous(Inline(data), 0, dataset), None
        case ExternalFiles() as layout:
            itemsize = dataset.datatype.size
            return ExternalChunks(layout, dataset.outer_shape, dataset.chunk, itemsize, hdf5_object.path), None
        case ContiguousLayout(None) | VirtualLayout():
            return None, None
        case ContiguousLayout(int(address), size):
            expected = math.prod(dataset.outer_shape) * dataset.datatype.size
            if size not in (-1, expected) and size < expected:
                raise ValueError(f"{hdf5_object.path!r} has {size} bytes of data: expected {expected} for its elements")
            return _cut_contiguous(file.source, file.base + address, dataset), None
        case ChunkedLayout(address=None):
            return None, None
        case ChunkedLayout(kind=kind, address=int(address), parameters=parameters):
            space = _make_chunk_space(file, dataset)
            return None, make_index(
                file, space, kind, address, superblock.chunk_k if kind == "B-tree 1" else parameters
            )
    found = f"its data layout is {dataset.layout!r}"
    raise ManifestError(f"{found}: expected compact, contiguous, chunked, external or virtual data")


def _make_chunk_space(file: MetadataFile, dataset: Dataset) -> ChunkSpace:
    extents = zip(dataset.variable.shape, dataset.object.maxshape, dataset.chunk, strict=True)
    cells = [(-(-extent // chunk), None if limit is None else -(-limit // chunk)) for extent, limit, chunk in extents]
    counts, limits = tuple(count for count, _ in cells), tuple(limit for _, limit in cells)
    if any(limit is not None and limit < count for count, limit in cells):
        found = f"{dataset.object.path!r} has the shape {dataset.variable.shape}"
        raise ValueError(f"{found}: expected at most its maximum shape {dataset.object.maxshape}")
    return ChunkSpace(
        file.sizes, file.count_bytes_after(0), dataset.chunk, counts, limits, dataset.raw_size, bool(dataset.filters)
    )


def _cut_contiguous(source: Span | Inline, offset: int, dataset: Dataset) -> Chunks:
    return ContiguousChunks(
        source, offset, dataset.outer_shape, dataset.chunk, dataset.datatype.size, dataset.object.path
    )
