"""Arrays as far as a selection needs to know them: which keys it touches. Their metadata is read once."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import join
from refshard_fs.core.selection import Mode, chunk_numbers
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.reading.engine import Request

__all__ = ["Arrays"]

METADATA = ("zarr.json", ".zarray")


class Arrays:
    """The arrays of one source, read by ``read``, or by ``read_now`` where that takes no event loop."""

    def __init__(
        self, read: Callable[[Request], Awaitable[bytes]], read_now: Callable[[Request], bytes | None]
    ) -> None:
        self._read = read
        self._read_now = read_now
        self._known: dict[str, ArrayMeta] = {}

    async def keys_of(self, array: str, selection: Any, mode: Mode) -> list[str]:
        """Return the keys of the chunks of ``array`` that ``selection`` touches.

        FileNotFoundError if there is no such array, ValueError if its chunks form no regular
        grid, IndexError if the selection does not fit.
        """
        meta = self._known.get(array)
        for name in METADATA:
            if meta is None:
                key = join(array, name)
                with contextlib.suppress(FileNotFoundError):
                    meta = zarrmeta.array_meta(zarrmeta.loads(await self._read(Request(key))), key)
        if meta is None:
            raise FileNotFoundError(f"there is no array {array!r}: 'refshard tree SOURCE' shows those that there are")
        self._known[array] = meta
        return _keys(array, meta, selection, mode)

    def keys_now(self, array: str, selection: Any, mode: Mode) -> list[str]:
        """Return the same at once; none where that takes an event loop, or where readers take parts of chunks."""
        meta = self._known.get(array) or self._meta_now(array)
        return [] if meta is None or _has_shards(meta) else _keys(array, meta, selection, mode)

    def clear(self) -> None:
        """Forget all metadata."""
        self._known.clear()

    def _meta_now(self, array: str) -> ArrayMeta | None:
        for name in METADATA:
            key = join(array, name)
            with contextlib.suppress(FileNotFoundError):
                data = self._read_now(Request(key))
                meta = None if data is None else zarrmeta.array_meta(zarrmeta.loads(data), key)
                if meta is not None:
                    self._known[array] = meta
                    return meta
        return None


def _keys(array: str, meta: ArrayMeta, selection: Any, mode: Mode) -> list[str]:
    if meta.chunks is None or meta.grid is None:
        raise ValueError(f"the chunks of {array!r} do not form a regular grid, so a selection does not tell keys")
    tail = meta.grid.tail
    return [join(array, tail(number)) for number in chunk_numbers(selection, meta.shape, meta.chunks, mode).tolist()]


def _has_shards(meta: ArrayMeta) -> bool:
    """Whether readers take parts of chunks: then a selection does not tell how many bytes of each will be read."""
    codecs = meta.raw.get("codecs") or ()
    return any(isinstance(codec, Mapping) and codec.get("name") == "sharding_indexed" for codec in codecs)
