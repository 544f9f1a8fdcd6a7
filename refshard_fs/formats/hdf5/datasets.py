"""HDF5 datasets as zarr arrays: their metadata, and the entries of their chunks. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import UNWRITTEN, ArrayDescription, Chunks, FilledChunks, choose_chunks, encode_chunk
from refshard_fs.core.array_group import Contiguous as ContiguousChunks
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import Entry, Inline, Listed, Load, Packed, Raw, Span, Steps, run_together
from refshard_fs.core.zarrmeta import zarr_major
from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.formats.hdf5.chunk_index import NO_CHUNKS, ChunkSpace, Index, make_index
from refshard_fs.formats.hdf5.datatypes import heap_ids, objects
from refshard_fs.formats.hdf5.external import ExternalPieces
from refshard_fs.formats.hdf5.file import MetadataFile
from refshard_fs.formats.hdf5.filters import make_codecs
from refshard_fs.formats.hdf5.heaps import read_collections
from refshard_fs.formats.hdf5.netcdf4 import NetCDFVariable
from refshard_fs.formats.hdf5.structure import (
    SMALL,
    Chunked,
    Compact,
    Contiguous,
    ExternalFiles,
    HDF5Object,
    Superblock,
    Virtual,
)

TEXT: Final[dict[str, Any]] = {"id": "vlen-utf8"}
BYTES: Final[dict[str, Any]] = {"id": "vlen-bytes"}
ELEMENT: Final = "element_dtype"  # the attribute with the type of the elements of a sequence that is shown as bytes


class Dataset:
    """A dataset that can be shown as an array.

    ``chunk`` is the shape of its HDF5 chunks, or of the pieces that contiguous data are cut into.
    Raises ManifestError with the reason if the dataset cannot be shown.
    """

    def __init__(self, found: HDF5Object, variable: NetCDFVariable) -> None:
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
                    raise ValueError(f"{reason}: expected shape {found.shape}, {found.datatype.size} bytes")
                self.chunk = chunk
            case Compact() | Contiguous() | ExternalFiles():
                self.chunk = choose_chunks(found.shape, found.datatype.size)
                self.filters = ()
            case Virtual(chunk=chunk):
                self.chunk = chunk
            case _:
                raise ValueError(f"{found.path!r} has no data layout message")
        self.object_codec = self._find_object_codec() if self.datatype.shown is None else None
        self.codecs = make_codecs(self.filters, self.datatype, self.chunk)

    def _find_object_codec(self) -> dict[str, Any]:
        """Return the codec of texts or sequences. Raise ManifestError if zarr has none.

        zarr 3 has no sequences of numbers, so there these are their bytes.
        """
        inner = self.datatype.inner
        if inner.is_text:
            return TEXT
        if inner.kind != "vlen-sequence" or inner.base is None or inner.base.shown is None:
            raise ManifestError(f"its datatype is of the kind {inner.kind!r}, which zarr cannot hold")
        if (zarr_major() or 3) > 2:
            return BYTES
        return {"id": "vlen-array", "dtype": self._sequence_dtype.str}

    @property
    def _sequence_dtype(self) -> np.dtype[Any]:
        """The type of the elements of sequences."""
        base = self.datatype.inner.base
        assert base is not None
        assert base.shown is not None
        return base.shown

    def hold(self, elements: Sequence[Any]) -> npt.NDArray[Any]:
        """Return texts or sequences as `object_codec` encodes them."""
        held = np.empty(len(elements), object)
        if self.object_codec is TEXT:
            held[:] = elements
        else:
            arrays = [np.array(item, self._sequence_dtype) for item in elements]
            held[:] = [array.tobytes() for array in arrays] if self.object_codec is BYTES else arrays
        return held

    @property
    def count(self) -> int:
        """Number of elements of a chunk."""
        return math.prod(self.chunk)

    @property
    def raw_size(self) -> int:
        """Size of a chunk before filters, in bytes."""
        return self.count * self.datatype.size

    @property
    def is_small_coordinate(self) -> bool:
        """Whether it is an index coordinate of at most `SMALL` bytes: it is read at once and kept with the metadata."""
        variable = self.variable
        is_index = variable.dimensions == (variable.path.rpartition("/")[2],) and not self.object_codec
        return is_index and max(variable.shape[0], self.chunk[0]) * self.datatype.size <= SMALL

    def description(self) -> ArrayDescription:
        """Describe the array to zarr. An array datatype adds its dimensions after the dataset's."""
        variable, inner = self.variable, self.datatype.shape
        dtype = self.datatype.shown or np.dtype(object)
        codecs = self.codecs.shown if self.object_codec is None else (self.object_codec,)
        shape, chunks = variable.shape + inner, self.chunk + inner
        names, attributes = variable.dimensions, variable.attributes
        if self.object_codec is BYTES:
            attributes = {ELEMENT: self._sequence_dtype.str, **attributes}
        is_decoded = self.codecs.spelled is None and self.object_codec is None
        undone = tuple(used.name for used in self.codecs.filters) if is_decoded else ()
        fill = variable.fill_value
        return ArrayDescription(
            variable.path, shape, chunks, dtype, names, attributes, codecs, fill, file_codecs=undone
        )


class StoredChunk(NamedTuple):
    """A chunk as it lies in the file; ``mask`` has a bit for each filter that the chunk skips."""

    entry: Entry
    mask: int = 0


class DatasetChunks(FilledChunks):
    """The chunks of one dataset; many are found in the same rounds."""

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
            f"dataset {dataset.object.path!r}",
            grid,
            dataset.raw_size,
            fills_itself=dataset.variable.fills_itself,
        )
        self.dataset = dataset
        self._url = url
        self._file = file
        self._paths = paths
        self._pieces, self._index = _locate_data(file, superblock, dataset)
        self.is_small_coordinate = dataset.is_small_coordinate

    def entry(self, number: int) -> Steps[Entry | None]:
        (found,) = yield from self.entries((number,))
        return found

    def entries(self, numbers: Sequence[int]) -> Steps[Sequence[Entry | None]]:
        """Return the entries of chunks, found in the same rounds."""
        with self._name_damage():
            stored = yield from self.find_stored(numbers)
            if self.dataset.object_codec is not None:
                return (yield from self._encode_objects(numbers, stored, self.dataset.object_codec))
            found = [self._make_entry(number, stored.get(number)) for number in numbers]
            return (yield from self._read_now(found)) if self.is_small_coordinate else found

    @contextmanager
    def _name_damage(self) -> Iterator[None]:
        try:
            yield
        except RefShardError:
            raise
        except ValueError as e:
            raise DamagedIndex("", self._url, f"{self.where}: {e}") from e

    def prepare(self) -> Steps[None]:
        """Read what most users need next: the first node of the index, or all of a small coordinate."""
        if self.is_small_coordinate:
            yield from self.entries(range(self.grid.size))
        elif self._index is not None:
            yield from self._index.find(np.empty(0, np.uint64))

    def list_existing(self) -> Steps[list[Listed] | None]:
        if self._pieces is not None or (not self.fills_itself and self.grid.size <= UNWRITTEN):
            return None
        with self._name_damage():
            found = NO_CHUNKS if self._index is None else (yield from self._index.find(None))
        return self.list_written(found.numbers)

    def numbers_in_unread_blocks(self, number: int) -> Iterator[int]:
        numbers = [] if self._index is None else self._index.numbers_in_unread_blocks()
        return iter(sorted(numbers, key=lambda other: (other < number, other)))

    def find_stored(self, numbers: Sequence[int]) -> Steps[dict[int, StoredChunk]]:
        """Find the written chunks among ``numbers``."""
        if self._index is not None:
            wanted = np.unique(np.array(numbers, np.uint64))
            found = yield from self._index.find(wanted)
            columns = (column.tolist() for column in found)
            return {
                number: StoredChunk(self._file.part(address, size, "a chunk"), mask)
                for number, address, size, mask in zip(*columns, strict=True)
            }
        if self._pieces is None:
            return {}
        entries = yield from run_together([self._pieces.entry(number) for number in numbers])
        return {n: StoredChunk(entry) for n, entry in zip(numbers, entries, strict=True) if entry is not None}

    def _make_entry(self, number: int, stored: StoredChunk | None) -> Entry | None:
        if stored is None:
            return self.unwritten_entry()
        dataset = self.dataset
        mask = stored.mask
        if dataset.filters and not self._is_filtered(number):
            mask = (1 << len(dataset.filters)) - 1
        if not dataset.filters and stored.entry.size != dataset.raw_size:
            raise ValueError(f"chunk {number} has {stored.entry.size} bytes: expected {dataset.raw_size}")
        recipe = dataset.codecs.recipe(mask)
        match stored.entry:
            case Inline(data) if recipe is not None:
                return Inline(recipe.make(data))
            case Span() as source if recipe is not None:
                return Packed(source, recipe, recipe.made)
            case Packed() as piece if recipe is not None:  # this recipe pads it, too
                return msgspec.structs.replace(piece, recipe=recipe, made=recipe.made)
        return stored.entry

    def _is_filtered(self, number: int) -> bool:
        """Whether filters apply to a chunk. Writers may leave chunks that reach beyond the array unfiltered."""
        layout = self.dataset.layout
        if not isinstance(layout, Chunked) or layout.whole_edges:
            return True
        coords = self.grid.coords(number)
        cells = zip(coords, layout.shape, self.dataset.outer_shape, strict=False)
        return all((coord + 1) * chunk <= extent for coord, chunk, extent in cells)

    def _read_now(self, entries: Sequence[Entry | None]) -> Steps[Sequence[Entry | None]]:
        """Read ``entries`` and return them inline."""
        there = [self._file.use_read(entry) for entry in entries if entry is not None]
        data = iter((yield tuple(Load(entry, Raw()) for entry in there)) if there else ())
        return [None if entry is None else Inline(next(data)) for entry in entries]

    def encode_fill(self) -> bytes:
        return self.dataset.codecs.encode(self.fill_elements())

    def fill_elements(self) -> bytes:
        """Return the elements of a chunk full of the fill value."""
        self.check_size()
        size, fill = self.dataset.datatype.size, self.dataset.object.fill
        if fill is not None and len(fill) != size:
            raise ValueError(f"its fill value has {len(fill)} bytes: expected {size}, the size of an element")
        return (fill or bytes(size)) * self.dataset.count

    def _encode_objects(
        self, numbers: Sequence[int], stored: Mapping[int, StoredChunk], codec: Mapping[str, Any]
    ) -> Steps[list[Entry | None]]:
        """Encode chunks of texts or sequences, which lie in the global heap, for zarr's ``codec``."""
        shown = {
            number: self._make_entry(number, stored.get(number))
            for number in dict.fromkeys(numbers)
            if number in stored
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
            held = self.dataset.hold(objects(datatype, data, heap, self._paths, "replace"))
            made[number] = Inline(encode_chunk(held, [codec]))
        return [made.get(number) for number in numbers]


def _locate_data(file: MetadataFile, superblock: Superblock, dataset: Dataset) -> tuple[Chunks | None, Index | None]:
    """Return the pieces of a contiguous dataset or the chunk index; neither if nothing was written."""
    found = dataset.object
    match dataset.layout:
        case Compact(data):
            return _make_pieces(Inline(data), 0, dataset), None
        case ExternalFiles() as layout:
            how = dataset.outer_shape, dataset.chunk, dataset.datatype.size, found.path
            return ExternalPieces(layout, *how), None
        case Contiguous(None) | Virtual():
            return None, None
        case Contiguous(int(address), size):
            needed = math.prod(dataset.outer_shape) * dataset.datatype.size
            if size not in (-1, needed) and size < needed:
                raise ValueError(f"{found.path!r} has {size} bytes of data: expected {needed} for its elements")
            return _make_pieces(file.source, file.base + address, dataset), None
        case Chunked(address=None):
            return None, None
        case Chunked(kind=kind, address=int(address), parameters=parameters):
            space = _make_chunk_space(file, dataset)
            return None, make_index(
                file, space, kind, address, superblock.chunk_k if kind == "B-tree 1" else parameters
            )
    raise ManifestError(f"its data layout {dataset.layout} is not supported")


def _make_chunk_space(file: MetadataFile, dataset: Dataset) -> ChunkSpace:
    extents = zip(dataset.variable.shape, dataset.object.maxshape, dataset.chunk, strict=True)
    cells = [(-(-extent // c), None if most is None else -(-most // c)) for extent, most, c in extents]
    counts, most = tuple(count for count, _ in cells), tuple(limit for _, limit in cells)
    if any(limit is not None and limit < count for count, limit in cells):
        raise ValueError(f"{dataset.object.path!r} is larger than its maximum extent")
    return ChunkSpace(file.sizes, file.room(0), dataset.chunk, counts, most, dataset.raw_size, bool(dataset.filters))


def _make_pieces(source: Span | Inline, offset: int, dataset: Dataset) -> Chunks:
    return ContiguousChunks(
        source, offset, dataset.outer_shape, dataset.chunk, dataset.datatype.size, dataset.object.path
    )
