"""xarray's array of a `RefShardFileSystem`, whose selections are read and decoded in the thread that asks for them.

zarr's way takes several turns of an event loop and a thread for each selection, which is more than decoding the chunks
of a task takes. Source: xarray's "How to add a new backend", on ``BackendArray``.
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
from refshard_fs.cubes.recoding import ChunkDecoder
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading.plan import MIB, Unmade
from refshard_fs.reading.selection import GUARD, WORKERS

LARGE: Final = 16 * MIB  # bytes of chunks, decoded, above which zarr's pipeline reads a selection
ALONE: Final = 2 * MIB  # bytes above which threads decode for the main thread, beside which nobody else may be


class _Piece(NamedTuple):
    """The part of a dimension that one chunk has: its place in the chunk, and in the values."""

    chunk: int
    within: int | slice
    target: slice | None  # None where an integer takes the dimension away


class _Decoded(NamedTuple):
    """The stored values of a chunk, and what converts them to those that are shown, if these are others."""

    values: npt.NDArray[Any]
    convert: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None


class DirectArray(ZarrArrayWrapper):
    """Reads selections of integers and ascending slices at once, where they are of numbers and not large.

    All else goes zarr's way: other selections, codecs and types, and what is read while a source is opened.
    """

    __slots__ = ("_decoder", "_fs", "_is_open", "_meta", "_token")

    def __init__(self, array: Any, fs: RefShardFileSystem) -> None:
        super().__init__(array)
        self._fs = fs
        self._is_open = self.dtype.kind in "iuf" and array.ndim > 0
        self._meta: ArrayMeta | None = None
        self._decoder: ChunkDecoder | None = None
        self._token = object()  # chunks that are remembered are for this array alone: one opened later may have grown

    def __reduce__(self) -> Any:
        return DirectArray, (self._array, self._fs)

    def _getitem(self, key: Any) -> Any:
        meta = self._known()
        pieces = None if meta is None else _pieces(meta, key)
        if meta is None or pieces is None or not all(pieces):
            return super()._getitem(key)
        values = self._values(meta, pieces)
        return super()._getitem(key) if values is None else values

    def _known(self) -> ArrayMeta | None:
        """Return the array's metadata; None where zarr is to read."""
        if not self._is_open or GUARD.get() is not None:
            return None
        if self._meta is None:
            with contextlib.suppress(Exception):  # zarr meets it again, and says what is wrong
                meta = array_meta(loads(document_of(self._array)), self._array.path)
                self._decoder = None if meta is None else ChunkDecoder.of(meta)
                self._meta = meta
            self._is_open = self._decoder is not None
        return self._meta if self._is_open else None

    def _values(self, meta: ArrayMeta, pieces: Sequence[Sequence[_Piece]]) -> npt.NDArray[Any] | None:
        """Return the values of a selection; None where its chunks cannot be read or decoded here."""
        assert meta.grid is not None
        session = self._fs.source
        size = math.prod(map(len, pieces)) * math.prod(meta.chunks or ()) * self.dtype.itemsize
        if size > min(LARGE, session.memory // 8):
            return None
        chunks = list(product(*pieces))
        encode, path = meta.grid.encoding.encode, self._array.path
        keys = [join(path, encode([piece.chunk for piece in chunk])) for chunk in chunks]
        keyspace = session.opened()
        is_fixed = keyspace is not None and keyspace.url_of is None  # other processes may write objects of a hierarchy
        kept, token = session.decoded, self._token
        known = {key: values for key in keys if is_fixed and (values := kept.get((token, key))) is not None}
        unread = [key for key in keys if key not in known] if known else keys
        read = dict(zip(unread, session.read_chunks(unread, run_by_zarr()) if unread else (), strict=True))
        shape = tuple(last.target.stop for along in pieces if (last := along[-1]).target is not None)
        out: npt.NDArray[Any] = np.empty(shape, self.dtype)

        def fill(key: str, chunk: Sequence[_Piece]) -> npt.NDArray[Any] | None:
            found = known.get(key) or self._decoded(meta, read[key])
            if found is None:
                return None
            values, convert = found
            part = np.asarray(values[tuple(piece.within for piece in chunk)] if values.ndim else values, values.dtype)
            is_shared = key in known or (part.size < values.size and is_fixed)
            if is_shared and key in read:
                kept.put((token, key), found, values.nbytes)
            if convert is not None:
                try:
                    part = convert(part.reshape(-1)).reshape(part.shape)
                except ValueError:  # zarr meets it again, and names the chunk
                    return None
            if part.dtype != self.dtype:
                return None
            if len(chunks) == 1 and part.shape == shape and part.flags.writeable and not is_shared:
                return part
            out[tuple(piece.target for piece in chunk if piece.target is not None)] = part
            return out

        if size > ALONE and len(unread) > 1 and threading.current_thread() is threading.main_thread():
            with ThreadPoolExecutor(WORKERS) as pool:
                filled = list(pool.map(fill, keys, chunks))
        else:
            filled = list(map(fill, keys, chunks))
        return None if any(each is None for each in filled) else filled[0]

    def _decoded(self, meta: ArrayMeta, data: bytes | Unmade | None) -> _Decoded | None:
        """Return the values of a chunk, or the fill value of one that does not exist; None where zarr is to read."""
        try:
            if isinstance(data, Unmade):
                stored = data.array()
                if stored is not None:
                    return _Decoded(*stored)
                with contextlib.suppress(FileNotFoundError):
                    data = data.make()
            if data is None or isinstance(data, Unmade):
                is_known = meta.raw.get("fill_value") is not None
                return _Decoded(np.asarray(fill_of(meta, self.dtype), self.dtype)) if is_known else None
            assert self._decoder is not None, "`_known` returns no metadata without one"
            return _Decoded(self._decoder.decode(data))
        except ValueError:  # zarr meets it again, and names the chunk
            return None


def _pieces(meta: ArrayMeta, key: Any) -> list[list[_Piece]] | None:
    """Return the parts of each dimension of a selection; None if it is not of integers and ascending slices."""
    if meta.chunks is None or meta.grid is None or len(key) != len(meta.shape):
        return None
    out: list[list[_Piece]] = []
    for at, size, extent in zip(key, meta.chunks, meta.shape, strict=True):
        if isinstance(at, slice):
            start, stop, step = at.indices(extent)
            if step < 1:
                return None
            out.append(list(_along(range(start, stop, step), size)))
        elif isinstance(at, int | np.integer) and -extent <= at < extent:
            place = int(at) % extent
            out.append([_Piece(place // size, place % size, None)])
        else:
            return None
    return out


def _along(wanted: range, size: int) -> Iterator[_Piece]:
    """Yield the parts of ``wanted``, elements of a dimension, that each of its chunks of ``size`` elements has."""
    at = 0
    while at < len(wanted):
        chunk = wanted[at] // size
        last = min(-(-((chunk + 1) * size - wanted.start) // wanted.step), len(wanted))
        within = slice(wanted[at] - chunk * size, wanted[last - 1] - chunk * size + 1, wanted.step)
        yield _Piece(chunk, within, slice(at, last))
        at = last


def document_of(array: Any) -> bytes:
    """Return the metadata document of an array of zarr."""
    if not hasattr(array, "metadata"):  # zarr 2
        return bytes(array.store[array._key_prefix + ".zarray"])
    from zarr.core.buffer import default_buffer_prototype

    documents = array.metadata.to_buffer_dict(default_buffer_prototype())
    return bytes(next(documents[name].to_bytes() for name in ARRAY_DOCUMENTS if name in documents))


def run_by_zarr() -> Any:
    """Return what runs coroutines on the event loop that zarr reads on, whose connections are open; None of zarr 2."""
    try:
        from zarr.core.sync import sync
    except ImportError:
        return None
    return sync
