"""Decode stored chunks on trial, by zarr's own codecs: what fails here would fail for every reader."""

from __future__ import annotations

import importlib
from collections.abc import MutableMapping
from typing import Any

from refshard_fs import zarrmeta
from refshard_fs.encodings import check_blosc, is_blosc, unsafe
from refshard_fs.zarrmeta import ArrayMeta

__all__ = ["Trial", "zarr_version"]


def zarr_version() -> int | None:
    """Return the major version of the zarr that is installed, if any."""
    try:
        return int(importlib.import_module("zarr").__version__.split(".")[0])
    except ImportError:
        return None


class Trial:
    """One array without chunks, into which one after the other is put and read. Not thread-safe.

    Raises ValueError where the array's chunks cannot be tried: no zarr here reads it, they differ in shape, or decoding
    them may do harm.
    """

    def __init__(self, meta: ArrayMeta, version: int) -> None:
        harm = unsafe(meta)
        if harm is not None:
            raise ValueError(harm)
        if meta.chunks is None or meta.grid is None:
            raise ValueError("its chunks are of no one known shape")
        if meta.zarr_format == 2 and "shards" in meta.raw:
            raise ValueError("no zarr reads the shards of the version 2 prototype")
        self._chunks: tuple[int, ...] = meta.chunks
        self._grid, self._shape = meta.grid, meta.shape
        self._held: MutableMapping[str, Any] = {}
        self._version = version
        self._is_blosc = is_blosc(meta)
        name = ".zarray" if meta.zarr_format == 2 else "zarr.json"
        self._held[name] = self._packed(zarrmeta.dumps(dict(meta.raw)))
        zarr = importlib.import_module("zarr")
        try:
            store = self._held if version < 3 else zarr.storage.MemoryStore(self._held)
            self._array = zarr.open_array(store, mode="r")
        except Exception as e:  # whatever codecs and extensions raise: it is the answer
            raise ValueError(f"zarr {zarr.__version__} does not open it: {type(e).__name__}: {e}") from e

    def decode(self, tail: str, data: bytes) -> None:
        """Decode the chunk keyed ``tail``; ValueError, saying why, where that fails."""
        number = self._grid.number(tail)
        if number is None:
            return
        starts = [c * size for c, size in zip(self._grid.coords(number), self._chunks, strict=True)]
        ends = [min(s + size, n) for s, size, n in zip(starts, self._chunks, self._shape, strict=True)]
        if self._is_blosc:
            check_blosc(data)
        self._held[tail] = self._packed(data)
        try:
            self._array[tuple(map(slice, starts, ends))]
        except Exception as e:  # as above
            raise ValueError(f"{type(e).__name__}: {e}") from e
        finally:
            del self._held[tail]

    def _packed(self, data: bytes) -> Any:
        if self._version < 3:
            return data
        return importlib.import_module("zarr.core.buffer").default_buffer_prototype().buffer.from_bytes(data)
