"""An array of xarray that looks up, reads and decodes whole selections without zarr.

For each selection, zarr takes several turns of an event loop and hands work to a thread, which costs more than decoding
the chunks of a task. zarr reads arrays whose codecs, data types or extensions numpy and numcodecs do not decode,
selections of points with slices, and chunks that cannot be decoded, for its error. Source: xarray's "How to add a new
backend", on ``BackendArray``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product, repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr
from xarray.backends import BackendArray
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core.indexing import BasicIndexer, OuterIndexer, VectorizedIndexer

from refshard_fs.core.dtypes import parse_fill_value
from refshard_fs.core.keys import join
from refshard_fs.core.model import ChunkPart, Entry, Packed, iterate_batches
from refshard_fs.core.zarrmeta import ArrayMeta, array_meta, list_codec_documents, requires_extension
from refshard_fs.cubes.chunk_codec import ChunkDecoder
from refshard_fs.errors import ManifestError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.group_metadata import ArrayNode
from refshard_fs.reading.plan import KIB, MIB, SMALL, UnmadeBytes
from refshard_fs.reading.selection import GUARD, TOGETHER, WORKERS
from refshard_fs.tuning import hook_zarr

LARGE: Final = 16 * MIB  # larger selections (bytes after decoding) are read on an event loop, and decoded meanwhile
COPIED: Final = 4 * MIB  # bytes (after decoding) that are read at a time of a large selection of local chunks
ALONE: Final = 2 * MIB  # the main thread decodes larger selections by a pool
NEAR: Final = 256 * KIB  # bytes: the largest array that is read before other arrays, not together with them
IN_PLACE: Final = 128 * KIB  # bytes: smaller selections are copied to the result, since a further look-up takes longer
SWAPPED: Final = 512 * KIB  # bytes that are read at a time if their order has to be swapped
SHARED: Final = 64 * KIB  # bytes: chunks smaller than this are decoded by one thread, since threads wait for the GIL
# Parts of a chunk are read, by one or several reads, if each of these reads saves so many bytes: copying or fetching
# so many takes as long as a read.
SPARED: Final = MIB
SPARED_HERE: Final = 48 * KIB  # the same on this machine, where a read takes 12 µs

Within = int | slice | npt.NDArray[np.intp]


class _ChunkSlice(NamedTuple):
    """The elements of a selection in one chunk along one dimension: their positions in the chunk and in the result."""

    chunk: int
    within: Within
    target: slice | npt.NDArray[np.intp] | None  # None if an integer removes the dimension

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest position in the chunk."""
        within = self.within
        if isinstance(within, slice):
            positions = range(within.start, within.stop, within.step)
            return positions[0], positions[-1]
        return (within, within) if isinstance(within, int) else (int(within.min()), int(within.max()))

    def move_back(self, first: int) -> _ChunkSlice:
        """Return the same elements, for values that begin at the position ``first`` of the chunk."""
        within = self.within
        if isinstance(within, slice):
            return self._replace(within=slice(within.start - first, within.stop - first, within.step))
        return self._replace(within=within - first)


class _PartialReads:
    """The reads of parts of chunks. A chunk that is read again is read whole: a loop will read the rest of it.

    While a loop goes over steps of an array, each chunk is read whole at once.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._last: set[str] = set()  # the keys of the last selection
        self._loops = False  # whether the last selection read chunks of the selection before it

    def add(self, keys: Iterable[str]) -> set[str]:
        """Note a selection of ``keys``; return the keys of which a part may be read."""
        keys = set(keys)
        is_repeated = not self._last.isdisjoint(keys)
        unread = set() if is_repeated or self._loops else keys - self._seen
        self._last, self._loops = keys, is_repeated
        self._seen |= unread
        return unread


class _ChunkValues(NamedTuple):
    """The stored values of a chunk, and the function that converts them to the shown values (None: they are equal)."""

    values: npt.NDArray[Any]
    convert: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None
    box: tuple[int, ...] | None = None  # where `values` begin in the chunk, if they are a part of it
    steps: int | None = None  # the axis along which `values` has only the selected positions


def _convert(part: npt.NDArray[Any], chunk: _ChunkValues, key: str) -> npt.NDArray[Any]:
    """Convert a ``part`` of the stored values of a chunk to the shown values."""
    if chunk.convert is None:
        return part
    try:
        return chunk.convert(part.reshape(-1)).reshape(part.shape)
    except ValueError as e:
        raise _NotDecoded(key) from e


class _NotDecoded(ValueError):
    """Raised for a chunk or a selection that must be left to zarr; if zarr fails too, its error names the chunk."""


class DirectArray(BackendArray):
    """Read selections by integers, slices and arrays of positions along each dimension, and selections of points."""

    __slots__ = (
        "_by_zarr",
        "_decoder",
        "_fill_value",
        "_fs",
        "_node",
        "_parts",
        "_token",
        "dtype",
        "meta",
        "shape",
    )

    def __init__(self, fs: RefShardFileSystem, node: ArrayNode, meta: ArrayMeta, decoder: ChunkDecoder) -> None:
        # In version 3, a codec has the byte order, not the data type.
        stored = decoder.dtype if meta.zarr_format == 2 else decoder.dtype.newbyteorder("<")
        # The copy into the result converts numbers to the machine's byte order; xarray would make another copy.
        self.dtype = stored.newbyteorder("=") if stored.kind in "biufc" else stored
        self.shape = meta.shape
        self.meta = meta
        self._fs, self._node, self._decoder = fs, node, decoder
        self._fill_value = np.asarray(parse_fill_value(meta, stored), stored).astype(self.dtype)
        self._token = object()  # part of the keys of cached chunks: an array that is opened later may have grown
        self._parts = _PartialReads()
        self._by_zarr: ZarrArrayWrapper | None = None  # made when zarr has to read a selection

    @classmethod
    def of(cls, fs: RefShardFileSystem, node: ArrayNode) -> DirectArray | None:
        """Return the array of ``node``; None if only zarr can read it."""
        meta = array_meta(node.document, node.path)
        if (
            meta is not None
            and meta.zarr_format == 3
            and (requires_extension(meta.raw) or meta.raw.get("fill_value") is None)
        ):
            return None  # zarr raises an error for invalid metadata
        decoder = None if meta is None or meta.grid is None else ChunkDecoder.of(meta)
        if decoder is None or decoder.dtype.hasobject:  # the type of texts of variable length depends on zarr's version
            return None
        with contextlib.suppress(ValueError):  # the fill value is not one of the data type
            return None if meta is None else cls(fs, node, meta, decoder)
        return None

    def __reduce__(self) -> Any:
        return DirectArray.of, (self._fs, self._node)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, VectorizedIndexer) and (box := _Box.of(key.tuple)) is not None:
            return box.arrange(self[OuterIndexer(box.along)])
        with contextlib.suppress(_NotDecoded):
            selection = self._select(key)
            parts = self._choose_parts(selection)
            is_small, is_plain = self._is_small(selection, parts), self._decoder.is_plain
            is_filled = is_plain and selection.out.nbytes >= IN_PLACE and self._fs.source.is_local
            entries = None
            if GUARD.get() is None and (is_filled or not is_small):
                entries = self._fs.source.find_here(selection.keys)
            numbers: Sequence[int] = range(len(selection.keys))
            if is_filled and entries is not None:
                numbers = [n for n in numbers if not self._read_in_place(selection, n, entries[selection.keys[n]])]
            if is_small:
                return self._read_now(selection, parts, numbers, entries)
            if entries is not None:  # an event loop, and its threads for requests, would take longer than the reads
                size = self._chunk_size
                threads = 1 if is_plain else min(_count_threads(), self._fs.source.memory // size)
                together = max(COPIED // size, threads, 1)
                out = selection.out
                for some in iterate_batches(numbers, together):
                    out = self._read_now(selection, parts, some, entries)  # of one chunk, another array
                return out
            return self._fs.source.wait(self._read, selection)
        return np.asarray(self._open_by_zarr()[key], self.dtype)

    async def async_getitem(self, key: Any) -> Any:
        """Return the values of a selection, for callers on an event loop."""
        if isinstance(key, VectorizedIndexer) and (box := _Box.of(key.tuple)) is not None:
            return box.arrange(await self.async_getitem(OuterIndexer(box.along)))
        with contextlib.suppress(_NotDecoded):
            selection = self._select(key)
            parts = self._choose_parts(selection)
            if parts and self._is_small(selection, parts):
                return await asyncio.to_thread(self._read_now, selection, parts, range(len(selection.keys)))
            return await self._read(selection)
        return np.asarray(await self._open_by_zarr().async_getitem(key), self.dtype)

    @property
    def is_near(self) -> bool:
        """Whether the array is small, and has all its bytes on this machine."""
        if math.prod(self.shape) * self.dtype.itemsize > NEAR:
            return False
        return self._fs.source.find_here(self._select(BasicIndexer((slice(None),) * len(self.shape))).keys) is not None

    def _open_by_zarr(self) -> ZarrArrayWrapper:
        if self._by_zarr is None:
            self._by_zarr = ZarrArrayWrapper(open_by_zarr(self._fs, self._node))
        return self._by_zarr

    def _select(self, key: Any) -> _Selection | _Points:
        """Return the chunks of a selection."""
        if isinstance(key, VectorizedIndexer):
            if not key.tuple or any(isinstance(at, slice) for at in key.tuple):
                raise _NotDecoded("zarr reads points with slices")
            return _Points(self.meta, key.tuple, self._node.path, self.dtype)
        return _Selection(self.meta, key.tuple, self._node.path, self.dtype)

    def _choose_parts(self, selection: _Selection | _Points) -> dict[str, Entry]:
        """Return, by key, the ranges of uncompressed chunks that suffice for a selection; none for other chunks."""
        if self._chunk_size <= SPARED_HERE or not self._decoder.is_plain:
            return {}
        numbers = {key: number for number, key in enumerate(selection.keys)}

        def choose(key: str, is_here: bool) -> ChunkPart | None:
            return self._choose_part(selection, numbers[key], SPARED_HERE if is_here else SPARED)

        unread = self._parts.add(selection.keys)
        keys = [key for key in selection.keys if key in unread and choose(key, True) is not None]
        return self._fs.source.find_parts(keys, choose)

    def _choose_part(self, selection: _Selection | _Points, number: int, spared: int) -> ChunkPart | None:
        """Return the bytes of an uncompressed chunk that suffice for a selection; None if all bytes are to be read.

        Parts are returned only if each read of a part saves at least ``spared`` bytes.
        """
        size, itemsize = self._chunk_size, self.dtype.itemsize
        if size <= spared:
            return None
        low, high = selection.find_box(number)
        steps = selection.find_steps(number)
        if steps is not None:
            axis, positions = steps
            first, step = self._locate(low), math.prod((self.meta.chunks or ())[axis + 1 :])
            length = (self._locate([*low[: axis + 1], *high[axis + 1 :]]) - first + 1) * itemsize
            if size - length * len(positions) >= spared * len(positions):
                starts = [(first + (at - positions[0]) * step) * itemsize for at in positions]
                return ChunkPart(starts, length, size)
        start, stop = self._locate(low) * itemsize, (self._locate(high) + 1) * itemsize
        return ChunkPart([start], stop - start, size) if size - (stop - start) >= spared else None

    def _locate(self, at: Sequence[int]) -> int:
        """Return the number of an element of a chunk, in C order."""
        number = 0
        for position, size in zip(at, self.meta.chunks or (), strict=True):
            number = number * size + position
        return number

    def _is_small(self, selection: _Selection | _Points, parts: Mapping[str, Entry]) -> bool:
        """Return whether to read a selection in the calling thread; never while `GUARD` limits an opening."""
        size = (len(selection.keys) - len(parts)) * self._chunk_size
        size += sum(part.size or 0 for part in parts.values())
        return size <= min(LARGE, self._fs.source.memory // 8) and GUARD.get() is None

    @property
    def fill_value(self) -> Any:
        """The fill value as a scalar of numpy; None if the metadata do not state one."""
        return None if self.meta.raw.get("fill_value") is None else self._fill_value[()]

    @property
    def _chunk_size(self) -> int:
        return math.prod(self.meta.chunks or ()) * self.dtype.itemsize

    async def _read(self, selection: _Selection | _Points) -> npt.NDArray[Any]:
        """Read a selection on the running event loop; decode chunks as they arrive."""
        source, out = self._fs.source, selection.out
        keys = selection.keys
        kept, is_fixed = self._find_decoded(keys)
        numbers = [number for number, key in enumerate(keys) if key not in kept]

        def take(place: int, data: bytes | None) -> None:
            number = numbers[place]
            decoded = self._decode(data)
            part = selection.part(number, decoded.values)
            if is_fixed and (part.size < decoded.values.size or not source.is_local):
                source.decoded.put((self._token, keys[number]), decoded, decoded.values.nbytes)
            selection.put_part(number, part, out)

        async def read() -> None:
            takes_threads = bool(list_codec_documents(self.meta)) and (len(numbers) > 1 or self._chunk_size >= SMALL)
            missing = [keys[number] for number in numbers]
            await source.read_selection(missing, take, chunk_size=self._chunk_size, threads=takes_threads)

        for number, key in enumerate(keys):
            if key in kept:
                selection.put_part(number, _convert(selection.part(number, kept[key].values), kept[key], key), out)
        if not numbers:
            return out
        together = TOGETHER.get()
        async with contextlib.AsyncExitStack() as stack:
            if together is not None:
                size = len(numbers) * self._chunk_size
                await stack.enter_async_context(together.reserve(source.selections, size))
            await read()
        return out

    def _find_decoded(self, keys: Sequence[str]) -> tuple[dict[str, _ChunkValues], bool]:
        """Return the chunks among ``keys`` that are kept decoded, and whether decoded chunks may be kept."""
        source = self._fs.source
        keyspace = source.open_now()
        if keyspace is None or keyspace.may_be_rewritten:
            return {}, False
        found = ((key, source.decoded.get((self._token, key))) for key in keys)
        return {key: values for key, values in found if values is not None}, True

    def _read_in_place(self, selection: _Selection | _Points, number: int, entry: Entry | None) -> bool:
        """Read the selected elements of an uncompressed local chunk into the result; return False if they cannot be.

        They must be contiguous both in the chunk and in the result.
        """
        room = selection.find_room(number)
        if room is None or not room.flags.c_contiguous or not room.nbytes:
            return False
        low, high = selection.find_box(number)
        first, itemsize = self._locate(low), room.itemsize
        if self._locate(high) - first + 1 != room.size:
            return False
        values = room.reshape(-1)
        swaps = self._decoder.dtype.newbyteorder("=") == self.dtype != self._decoder.dtype
        step = max(SWAPPED // itemsize, 1) if swaps else values.size
        for at in range(0, values.size, step):  # swap the bytes of values while they are in the processor's cache
            some = values[at : at + step]
            part = ChunkPart([(first + at) * itemsize], some.nbytes, self._chunk_size)
            if not self._fs.source.read_into(part, entry, some.view(np.uint8).data):
                return False
            if swaps:
                some.byteswap(inplace=True)
        return True

    def _read_now(
        self,
        selection: _Selection | _Points,
        parts: Mapping[str, Entry],
        numbers: Sequence[int],
        entries: Mapping[str, Entry | None] | None = None,
    ) -> npt.NDArray[Any]:
        """Read and decode the chunks ``numbers`` of a selection in this thread; return the result of the selection.

        An event loop is used only for bytes that need it. ``entries``: the entries of all chunks, if they are known.
        """
        source, keys = self._fs.source, [selection.keys[number] for number in numbers]
        cached, is_fixed = self._find_decoded(keys)
        missing = [key for key in keys if key not in cached] if cached else keys
        encoded = dict(zip(missing, source.read_chunks(missing, parts, entries) if missing else (), strict=True))
        out = selection.out

        def fill(number: int) -> npt.NDArray[Any]:
            key = selection.keys[number]
            found = encoded.get(key)
            if key in parts and key in encoded:
                decoded = self._decode_part(found, selection, number, parts[key])
            else:
                decoded = cached.get(key) or self._decode(found)
            values, _, box, steps = decoded
            part = selection.part(number, values, box, steps)
            will_be_kept = is_fixed and box is None and (part.size < values.size or not source.is_local)
            is_shared = key in cached or will_be_kept
            if is_shared and key in encoded:
                source.decoded.put((self._token, key), decoded, values.nbytes)
            part = _convert(part, decoded, key)
            if len(selection.keys) == 1 and selection.fills(part) and not is_shared:
                return part
            selection.put_part(number, part, out)
            return out

        size = len(missing) * self._chunk_size
        if size > ALONE and len(missing) > 1 and _count_threads() > 1 and self._takes_threads(encoded):
            with ThreadPoolExecutor(WORKERS) as pool:
                filled = list(pool.map(fill, numbers))
        else:
            filled = [fill(number) for number in numbers]
        return filled[0] if filled else out

    def _takes_threads(self, encoded: Mapping[str, bytes | UnmadeBytes | None]) -> bool:
        """Return whether to decode chunks in several threads: one is as fast for small chunks, and for mere copies."""
        if self._chunk_size < SHARED:
            return False
        kinds = (type(data.plan.window) for data in encoded.values() if isinstance(data, UnmadeBytes))
        return not self._decoder.is_plain or Packed in kinds

    def _decode_part(
        self, data: bytes | UnmadeBytes | None, selection: _Selection | _Points, number: int, entry: Entry
    ) -> _ChunkValues:
        """Return the elements of a chunk whose bytes `_choose_part` chose, given these bytes and their ``entry``."""
        data = data.make() if isinstance(data, UnmadeBytes) else data
        if data is None:
            return self._decode(None)
        low, high = selection.find_box(number)
        shape = [last - first + 1 for first, last in zip(low, high, strict=True)]
        sizes = self.meta.chunks or ()
        strides = [self.dtype.itemsize * math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
        steps = selection.find_steps(number) if isinstance(entry, Packed) else None
        if steps is None:
            return _ChunkValues(np.ndarray(shape, self._decoder.dtype, data, 0, strides), None, tuple(low))
        axis, positions = steps
        shape[axis], strides[axis] = len(positions), len(data) // len(positions)
        values = np.ndarray(shape, self._decoder.dtype, data, 0, strides)
        return _ChunkValues(values, None, tuple(low), axis)

    def _decode(self, data: bytes | UnmadeBytes | None) -> _ChunkValues:
        """Decode a chunk, or return the fill value for a chunk that does not exist."""
        try:
            if isinstance(data, UnmadeBytes):
                stored = data.array()
                if stored is not None:  # a selection may have dropped axes of length 1, and a cube added one
                    return _ChunkValues(stored[0].reshape(self.meta.chunks or ()), stored[1])
                unmade, data = data, None
                with contextlib.suppress(FileNotFoundError):
                    data = unmade.make()
            if data is None:
                return _ChunkValues(self._fill_value)
            return _ChunkValues(self._decoder.decode(data))
        except ValueError as e:
            raise _NotDecoded(str(e)) from e


def _count_threads() -> int:
    """Return how many threads decode the chunks of this thread: threads other than the main one may be dask's."""
    return WORKERS if threading.current_thread() is threading.main_thread() else 1


def find_direct_array(variable: xr.Variable) -> DirectArray | None:
    """Return the array that xarray reads for ``variable``; None if there is none."""
    array: Any = getattr(variable, "_data", None)
    while array is not None and not isinstance(array, DirectArray):
        array = getattr(array, "array", None)
    return array


class _Box(NamedTuple):
    """A selection of points that is a box: positions along each dimension, and the order of these in the result.

    xarray selects points if a part of a transposed array is read: 500 x 500 x 4 elements are a million points.
    """

    along: tuple[slice | npt.NDArray[np.intp], ...]
    order: tuple[int, ...]  # the dimensions of more than one position, in the order of the result
    shape: tuple[int, ...]

    @classmethod
    def of(cls, key: Sequence[Any]) -> _Box | None:
        """Return the box of an indexer with arrays of positions; None if it is not a box."""
        arrays = [_drop_repetitions(np.asarray(positions)) for positions in key]
        if not all(positions.dtype.kind in "iu" for positions in arrays):
            return None
        ndim = max((positions.ndim for positions in arrays), default=0)
        axes: dict[int, int] = {}  # axis of the result: dimension of the array
        for dimension, positions in enumerate(arrays):
            varying = [axis + ndim - positions.ndim for axis, length in enumerate(positions.shape) if length != 1]
            if len(varying) > 1 or any(axis in axes for axis in varying):
                return None
            axes |= dict.fromkeys(varying, dimension)
        shape = np.broadcast_shapes(*(np.shape(positions) for positions in key))
        if math.prod(shape) != math.prod(positions.size for positions in arrays):
            return None  # positions are repeated
        return cls(tuple(map(_to_slice, arrays)), tuple(axes[axis] for axis in sorted(axes)), shape)

    def arrange(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the elements of the box, as they lie in the array, in the order and the shape of the result."""
        others = [axis for axis in range(values.ndim) if axis not in self.order]
        return values.transpose([*self.order, *others]).reshape(self.shape)


def _drop_repetitions(positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Shorten each axis along which the positions are the same to the length 1."""
    for axis, length in enumerate(positions.shape):
        first = positions.take([0], axis) if length > 1 else positions
        if length > 1 and (positions.strides[axis] == 0 or (positions == first).all()):
            positions = first
    return positions


def _to_slice(positions: npt.NDArray[Any]) -> slice | npt.NDArray[np.intp]:
    """Return positions as a slice, if they ascend in equal steps and none counts from the end."""
    flat = positions.reshape(-1)
    step = int(flat[1]) - int(flat[0]) if flat.size > 1 else 1
    if flat.size and flat[0] >= 0 and step > 0 and (np.diff(flat) == step).all():
        return slice(int(flat[0]), int(flat[-1]) + 1, step)
    return flat


class _Selection:
    """The chunks that a selection touches, and where their elements lie in the result ``out``."""

    def __init__(self, meta: ArrayMeta, key: Sequence[Any], path: str, dtype: np.dtype[Any]) -> None:
        assert meta.grid is not None, "`DirectArray.of` leaves such arrays to zarr"
        assert meta.chunks is not None, "`ChunkDecoder.of` leaves such arrays to zarr"
        counts = map(_count_positions, key, meta.shape)
        # Before the chunks are listed: metadata may state any shape.
        self.out: npt.NDArray[Any] = np.empty([count for count in counts if count is not None], dtype)
        slices = [_split(at, *along) for at, *along in zip(key, meta.chunks, meta.shape, strict=True)]
        self._chunks = list(product(*slices))
        self._has_arrays = any(isinstance(at.within, np.ndarray) for along in slices for at in along[:1])
        encode = meta.grid.encoding.encode
        self.keys = [join(path, encode([along.chunk for along in chunk])) for chunk in self._chunks]

    def find_room(self, number: int) -> npt.NDArray[Any] | None:
        """Return the part of the result that a chunk fills in its own order; None if that part is not a slice."""
        if self._has_arrays:
            return None
        targets = [at.target for at in self._chunks[number] if at.target is not None]
        return self.out[(*targets, ...)]  # an ellipsis, because () alone would return a copy

    def find_box(self, number: int) -> tuple[list[int], list[int]]:
        """Return the least and the greatest positions of elements in a chunk, along each dimension."""
        bounds = [at.bounds for at in self._chunks[number]]
        return [low for low, _ in bounds], [high for _, high in bounds]

    def find_steps(self, number: int) -> tuple[int, Sequence[int]] | None:
        """Return the first axis along which a chunk has several selected positions, and these.

        None if there is no such axis, or if its positions do not ascend.
        """
        for axis, at in enumerate(self._chunks[number]):
            if isinstance(at.within, int):
                continue
            if isinstance(at.within, slice):
                positions: Sequence[int] = range(at.within.start, at.within.stop, at.within.step)  # it ascends
                ascends = True
            else:
                positions = at.within.tolist()
                ascends = bool((np.diff(at.within) > 0).all())
            if len(positions) > 1:
                return (axis, positions) if ascends else None
        return None

    def part(
        self,
        number: int,
        values: npt.NDArray[Any],
        begin: tuple[int, ...] | None = None,
        steps: int | None = None,
    ) -> npt.NDArray[Any]:
        """Return the selected elements of the ``values`` of a chunk; one value stands for all elements.

        The values may be a part of the chunk, from the positions ``begin`` on, with only the selected positions along
        the axis ``steps``.
        """
        if not values.ndim:
            return values
        chunk = self._chunks[number]
        if begin is not None:
            chunk = tuple(at.move_back(first) for at, first in zip(chunk, begin, strict=True))
        if steps is not None:
            every = chunk[steps]._replace(within=slice(0, values.shape[steps], 1))
            chunk = (*chunk[:steps], every, *chunk[steps + 1 :])
        if not self._has_arrays:
            return np.asarray(values[tuple([at.within for at in chunk])], values.dtype)
        part = values[tuple(slice(None) if isinstance(at.within, np.ndarray) else at.within for at in chunk)]
        kept = [at.within for at in chunk if at.target is not None]
        for axis, within in enumerate(kept):
            if isinstance(within, np.ndarray):
                part = part.take(within, axis)
        return np.asarray(part, values.dtype)

    def put_part(self, number: int, part: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Copy the elements that `part` returned to the result."""
        targets: list[Any] = [at.target for at in self._chunks[number] if at.target is not None]
        if self._has_arrays:
            axes = [np.arange(at.start, at.stop) if isinstance(at, slice) else at for at in targets]
            out[np.ix_(*axes)] = part
        else:
            out[tuple(targets)] = part

    def fills(self, part: npt.NDArray[Any]) -> bool:
        """Return whether the elements ``part`` of the only chunk can be returned as the result."""
        is_equal = part.shape == self.out.shape and part.dtype == self.out.dtype
        return not self._has_arrays and is_equal and part.flags.writeable


class _Points:
    """The chunks of a selection of points, with the same methods as `_Selection`.

    ``key`` has an array of positions for each dimension of the array; together, they have the shape of the result.
    """

    def __init__(self, meta: ArrayMeta, key: Sequence[Any], path: str, dtype: np.dtype[Any]) -> None:
        assert meta.grid is not None, "`DirectArray.of` leaves such arrays to zarr"
        assert meta.chunks is not None, "`ChunkDecoder.of` leaves such arrays to zarr"
        positions = np.broadcast_arrays(*key)
        self.out: npt.NDArray[Any] = np.empty(positions[0].shape, dtype)
        counts = [-(-extent // size) for size, extent in zip(meta.chunks, meta.shape, strict=True)]
        numbers = np.zeros(self.out.size, np.intp)  # each point's chunk, numbered in C order
        within: list[npt.NDArray[Any]] = []
        for at, size, extent, count in zip(positions, meta.chunks, meta.shape, counts, strict=True):
            if at.size and not -extent <= at.min() <= at.max() < extent:
                raise IndexError(
                    f"expected positions of a dimension of {extent} elements, got {at.min()} to {at.max()}"
                )
            chunks, rest = np.divmod(at.ravel() % max(extent, 1), size)
            numbers = numbers * count + chunks
            within.append(rest)
        order = np.argsort(numbers, kind="stable")
        firsts = np.flatnonzero(np.diff(numbers[order])) + 1
        self._targets = np.split(order, firsts) if order.size else []  # the points in each chunk
        self._within = within
        chosen = [int(numbers[target[0]]) for target in self._targets]
        encode = meta.grid.encoding.encode
        self.keys = [join(path, encode([int(at) for at in np.unravel_index(number, counts)])) for number in chosen]

    def find_room(self, number: int) -> None:
        """Return None: the points in a chunk need not lie together in the result."""

    def find_box(self, number: int) -> tuple[list[int], list[int]]:
        """Return the least and the greatest positions of elements in a chunk, along each dimension."""
        target = self._targets[number]
        within = [at[target] for at in self._within]
        return [int(at.min()) for at in within], [int(at.max()) for at in within]

    def find_steps(self, number: int) -> None:
        """Return None: the points in a chunk need not lie along an axis."""

    def part(
        self,
        number: int,
        values: npt.NDArray[Any],
        begin: tuple[int, ...] | None = None,
        steps: int | None = None,
    ) -> npt.NDArray[Any]:
        """Return the selected elements of the ``values`` of a chunk; see `_Selection.part`."""
        if not values.ndim:
            return values
        target = self._targets[number]
        at = [within[target] - first for within, first in zip(self._within, begin or repeat(0), strict=False)]
        return np.asarray(values[tuple(at)], values.dtype)

    def put_part(self, number: int, part: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Copy the elements that `part` returned to the result."""
        out.reshape(-1)[self._targets[number]] = part  # `out` is contiguous

    def fills(self, part: npt.NDArray[Any]) -> bool:
        """Return whether the elements ``part`` of the only chunk can be returned as the result: never."""
        return False


def _count_positions(at: Any, extent: int) -> int | None:
    """Return the length of the result along a dimension of ``extent`` elements; None if an integer removes it."""
    if isinstance(at, slice):
        return len(range(*at.indices(extent)))
    return None if isinstance(at, int | np.integer) else len(at)


def _split(at: Any, size: int, extent: int) -> list[_ChunkSlice]:
    """Split an index along a dimension of ``extent`` elements by its chunks of ``size`` elements."""
    if isinstance(at, slice):
        indices = range(*at.indices(extent))
        if indices.step > 0:
            return list(_split_range(indices, size))
        at = np.arange(indices.start, indices.stop, indices.step)
    if isinstance(at, int | np.integer):
        if not -extent <= at < extent:
            expected = f"expected {-extent} to {extent - 1}"
            raise IndexError(f"index {at} is out of bounds for a dimension of {extent} elements: {expected}")
        chunk, within = divmod(int(at) % extent, size)
        return [_ChunkSlice(chunk, within, None)]
    return list(_split_positions(np.asarray(at), size, extent))


def _split_range(indices: range, size: int) -> Iterator[_ChunkSlice]:
    """Split ascending ``indices`` along a dimension by its chunks of ``size`` elements."""
    at = 0
    while at < len(indices):
        chunk = indices[at] // size
        last = min(-(-((chunk + 1) * size - indices.start) // indices.step), len(indices))
        within = slice(indices[at] - chunk * size, indices[last - 1] - chunk * size + 1, indices.step)
        yield _ChunkSlice(chunk, within, slice(at, last))
        at = last


def _split_positions(positions: npt.NDArray[Any], size: int, extent: int) -> Iterator[_ChunkSlice]:
    """Split ``positions`` along a dimension, in any order, by its chunks of ``size`` elements."""
    if positions.size and not -extent <= positions.min() <= positions.max() < extent:
        wrong = positions.min() if positions.min() < -extent else positions.max()
        raise IndexError(f"expected positions from {-extent} to {extent - 1} along a dimension, got {wrong}")
    chunks, within = np.divmod(positions % max(extent, 1), size)
    for chunk in np.unique(chunks).tolist():
        target = np.flatnonzero(chunks == chunk)
        yield _ChunkSlice(chunk, within[target], target)


def open_by_zarr(fs: RefShardFileSystem, node: ArrayNode) -> Any:
    """Open an array with the installed version of zarr, without reading its metadata again where zarr allows it."""
    import zarr

    if zarr.__version__.startswith("2."):
        return zarr.open_array(fs.get_mapper(""), path=node.path, mode="r")
    from zarr.storage import FsspecStore, StorePath

    hook_zarr()  # here, since the array's pipeline is made without a read of metadata
    store = FsspecStore(fs, read_only=True, path="")
    document = {**node.document, "attributes": node.attributes}
    try:
        return zarr.Array.from_dict(StorePath(store, node.path), document)
    except KeyError as e:
        raise ManifestError(f"{node.path}: its metadata have no member {e}, which zarr needs") from e
