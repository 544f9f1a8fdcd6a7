"""Chunks in the memory of each process that reads them: what zarr, and whoever uses it, cost by themselves."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

__all__ = ["HeldStore", "held_store"]


class HeldStore(MemoryStore):
    """A store that is pickled as the path of what it holds."""

    path: str

    def __reduce__(self) -> tuple[Any, ...]:
        return held_store, (self.path,)

    def __dask_tokenize__(self) -> object:
        return self.path


@cache
def held_store(path: str) -> HeldStore:
    """Return a store of the files below ``path``, read once in a process."""
    buffer = default_buffer_prototype().buffer
    files = [file for file in Path(path).rglob("*") if file.is_file()]
    store = HeldStore(
        {str(file.relative_to(path)): buffer.from_bytes(file.read_bytes()) for file in files}, read_only=True
    )
    store.path = path
    return store
