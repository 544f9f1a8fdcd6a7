"""A zarr store in the memory of each process, to measure zarr, xarray and dask without a filesystem."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

__all__ = ["PreloadedStore", "load_store"]


class PreloadedStore(MemoryStore):
    """A store of the files below ``path``. Its pickle contains only the path: another process reads the files again."""

    path: str

    def __reduce__(self) -> tuple[Any, ...]:
        return load_store, (self.path,)

    def __dask_tokenize__(self) -> object:
        return self.path


@cache
def load_store(path: str) -> PreloadedStore:
    """Return a store of the files below ``path``, which a process reads once."""
    buffer = default_buffer_prototype().buffer
    files = [file for file in Path(path).rglob("*") if file.is_file()]
    store = PreloadedStore(
        {str(file.relative_to(path)): buffer.from_bytes(file.read_bytes()) for file in files}, read_only=True
    )
    store.path = path
    return store
