"""An array of xarray that reads and decodes small selections in the calling thread.

For each selection zarr takes several turns of an event loop and hands work to a thread, which costs more than decoding
the chunks of a task. Source: xarray's "How to add a new backend", on ``BackendArray``.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from xarray.backends.zarr import ZarrArrayWrapper

from refshard_fs.core.dtypes import fill_of
from refshard_fs.core.keys import join
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, ArrayMeta, array_meta, loads
from refshard_fs.cubes.chunk_codec import ChunkDecoder
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading.plan import MIB, Unmade
from refshard_fs.reading.selection import GUARD, WORKERS

LARGE: Final = 16 * MIB  # zarr's pipeline reads a selection whose chunks have more bytes than this after decoding
ALONE: Final = 2 * MIB  # above this, the main thread decodes with a pool; other threads may be dask's workers


class _ChunkSlice(NamedTuple):
    """The elements of a selection that lie in one chunk, along one dimension: ``within`` it, and in the result."""

    chunk: int
    within: int | slice
    target: slice | None  # None if an integer removes the dimension


class _ChunkValues(NamedTuple):
    """The stored values of a chunk, and the function that converts them to the shown values (None: they are equal)."""

    values: npt.NDArray[Any]
    convert: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None


class DirectArray(ZarrArrayWrapper):
    """Read small selections of numbers, by integers and ascending slices, in the calling thread.

    zarr reads everything else: other selections, codecs and data types, and all selections while a dataset is opened.
    """

    __slots__ = ("_decoder", "_fs", "_is_open", "_meta", "_token")

    def __init__(self, array: Any, fs: RefShardFileSystem) -> None:
        super().__init__(array)
        self._fs = fs
        self._is_open = self.dtype.kind in "iuf" and array.ndim > 0
        self._meta: ArrayMeta | None = None
        self._decoder: ChunkDecoder | None = None
        self._token = object()  # part of the keys of cached chunks: an array that is opened later may have grown

    def __reduce__(self) -> Any:
        return DirectArray, (self._array, self._fs)

    def _getitem(self, key: Any) -> Any:
        meta = self._find_meta()
        slices = None if meta is None else _split_selection(meta, key)
        if meta is None or slices is None or not all(slices):
            return super()._getitem(key)
        values = self._read_values(meta, slices)
        return super()._getitem(key) if values is None else values

    def _find_meta(self) -> ArrayMeta | None:
        """Return the array's metadata; None if zarr has to read the array."""
        if not self._is_open or GUARD.get() is not None:
            return None
        if self._meta is None:
            with contextlib.suppress(Exception):  # zarr fails in the same way, and reports it
                meta = array_meta(loads(document_of(self._array)), self._array.path)
                self._decoder = None if meta is None else ChunkDecoder.of(meta)
                self._meta = meta
            self._is_open = self._decoder is not None
        return self._meta if self._is_open else None

    def _read_values(self, meta: ArrayMeta, slices: Sequence[Sequence[_ChunkSlice]]) -> npt.NDArray[Any] | None:
        """Return the values of a selection; None if zarr has to read or decode its chunks."""
        assert meta.grid is not None
        source = self._fs.source
        size = math.prod(map(len, slices)) * math.prod(meta.chunks or ()) * self.dtype.itemsize
        if size > min(LARGE, source.memory // 8):
            return None
        chunks = list(product(*slices))
        encode, path = meta.grid.encoding.encode, self._array.path
        keys = [join(path, encode([along.chunk for along in chunk])) for chunk in chunks]
        keyspace = source.open_now()
        is_fixed = keyspace is not None and keyspace.url_of is None  # other processes may write objects of a hierarchy
        cache, token = source.decoded, self._token
        cached = {key: values for key in keys if is_fixed and (values := cache.get((token, key))) is not None}
        missing = [key for key in keys if key not in cached] if cached else keys
        encoded = dict(zip(missing, source.read_chunks(missing, run_by_zarr()) if missing else (), strict=True))
        shape = tuple(last.target.stop for along in slices if (last := along[-1]).target is not None)
        out: npt.NDArray[Any] = np.empty(shape, self.dtype)

        def fill(key: str, chunk: Sequence[_ChunkSlice]) -> npt.NDArray[Any] | None:
            decoded = cached.get(key) or self._decode(meta, encoded[key])
            if decoded is None:
                return None
            values, convert = decoded
            part = np.asarray(values[tuple(along.within for along in chunk)] if values.ndim else values, values.dtype)
            is_shared = key in cached or (part.size < values.size and is_fixed)
            if is_shared and key in encoded:
                cache.put((token, key), decoded, values.nbytes)
            if convert is not None:
                try:
                    part = convert(part.reshape(-1)).reshape(part.shape)
                except ValueError:  # zarr fails in the same way, and names the chunk
                    return None
            if part.dtype != self.dtype:
                return None
            if len(chunks) == 1 and part.shape == shape and part.flags.writeable and not is_shared:
                return part
            out[tuple(along.target for along in chunk if along.target is not None)] = part
            return out

        if size > ALONE and len(missing) > 1 and threading.current_thread() is threading.main_thread():
            with ThreadPoolExecutor(WORKERS) as pool:
                filled = list(pool.map(fill, keys, chunks))
        else:
            filled = list(map(fill, keys, chunks))
        return None if any(values is None for values in filled) else filled[0]

    def _decode(self, meta: ArrayMeta, data: bytes | Unmade | None) -> _ChunkValues | None:
        """Decode a chunk, or return the fill value for a chunk that does not exist; None if zarr has to decode it."""
        try:
            if isinstance(data, Unmade):
                stored = data.array()
                if stored is not None:
                    return _ChunkValues(*stored)
                with contextlib.suppress(FileNotFoundError):
                    data = data.make()
            if data is None or isinstance(data, Unmade):
                is_known = meta.raw.get("fill_value") is not None
                return _ChunkValues(np.asarray(fill_of(meta, self.dtype), self.dtype)) if is_known else None
            assert self._decoder is not None, "`_find_meta` returns None if there is no decoder"
            return _ChunkValues(self._decoder.decode(data))
        except ValueError:  # zarr fails in the same way, and names the chunk
            return None


def _split_selection(meta: ArrayMeta, key: Any) -> list[list[_ChunkSlice]] | None:
    """Split each dimension of a selection by chunks; return None unless it has only integers and ascending slices."""
    if meta.chunks is None or meta.grid is None or len(key) != len(meta.shape):
        return None
    out: list[list[_ChunkSlice]] = []
    for at, size, extent in zip(key, meta.chunks, meta.shape, strict=True):
        if isinstance(at, slice):
            start, stop, step = at.indices(extent)
            if step < 1:
                return None
            out.append(list(_split_range(range(start, stop, step), size)))
        elif isinstance(at, int | np.integer) and -extent <= at < extent:
            index = int(at) % extent
            out.append([_ChunkSlice(index // size, index % size, None)])
        else:
            return None
    return out


def _split_range(indices: range, size: int) -> Iterator[_ChunkSlice]:
    """Split ``indices`` along a dimension by its chunks of ``size`` elements."""
    at = 0
    while at < len(indices):
        chunk = indices[at] // size
        last = min(-(-((chunk + 1) * size - indices.start) // indices.step), len(indices))
        within = slice(indices[at] - chunk * size, indices[last - 1] - chunk * size + 1, indices.step)
        yield _ChunkSlice(chunk, within, slice(at, last))
        at = last


def document_of(array: Any) -> bytes:
    """Return the metadata document of a zarr array: ``.zarray`` or ``zarr.json``."""
    if not hasattr(array, "metadata"):  # zarr 2
        return bytes(array.store[array._key_prefix + ".zarray"])
    from zarr.core.buffer import default_buffer_prototype

    documents = array.metadata.to_buffer_dict(default_buffer_prototype())
    return bytes(next(documents[name].to_bytes() for name in ARRAY_DOCUMENTS if name in documents))


def run_by_zarr() -> Any:
    """Return zarr's function that runs a coroutine on zarr's event loop, where connections are open; None in zarr 2."""
    try:
        from zarr.core.sync import sync
    except ImportError:
        return None
    return sync
