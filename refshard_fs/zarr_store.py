"""`Store`: a source as a store of zarr 3, without fsspec's interface in between.

zarr hands whole selections to `refshard_fs.zarr_pipeline`, for this store as for zarr's `FsspecStore` over a
`RefShardFileSystem`. `Store.get_partial_values` reads all of its values together. The blocking methods use no event
loop if the bytes are on this machine.

Source: zarr-python's `zarr.abc.store`, and its tests of stores.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from zarr.abc import store as abc
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading.plan import Request
from refshard_fs.source import files

if TYPE_CHECKING:
    from zarr.core.buffer import Buffer, BufferPrototype


class Store(abc.Store):
    """Show a source as a store of zarr 3, for zarr's functions and for xarray's ``engine="zarr"``.

    ``source`` and ``options`` are the arguments of `RefShardFileSystem`; or ``source`` is a `RefShardFileSystem`. The
    store takes writes if the filesystem does (``mode="a"``), unless ``read_only``; ``store.fs.commit()`` saves them in
    the source.

    Two stores are equal if they show the same source, with the same options, and share uncommitted writes. Stores can
    be pickled. A chunk whose bytes cannot be read raises `ReferenceNotReachable`, so that zarr does not fill it.

    >>> import json, refshard_fs, zarr
    >>> meta = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> store = refshard_fs.Store({"a/.zarray": json.dumps(meta), "a/0": "abc"})
    >>> zarr.open_array(store, path="a", mode="r")[:].tolist()
    [97, 98, 99]
    """

    # With synchronous I/O zarr would read one chunk at a time; its coroutines pass all chunks of a selection.
    _supports_sync_io = False
    supports_listing = True

    def __init__(self, source: Any, *, read_only: bool | None = None, **options: Any) -> None:
        if isinstance(source, RefShardFileSystem):
            if options:
                raise TypeError(
                    f"expected no options beside a filesystem, got {', '.join(options)}: pass them when you make "
                    "the filesystem"
                )
            fs = source
        else:
            fs = RefShardFileSystem(source, asynchronous=True, **options)
        if read_only is False and fs.mode == "r":
            raise ValueError("read_only=False needs a source that is open for writing: pass mode='a' instead of 'r'")
        self.fs = fs
        super().__init__(read_only=fs.mode == "r" if read_only is None else read_only)

    def __repr__(self) -> str:
        return f"<Store of {self.fs!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and self.read_only == other.read_only and self.fs.is_alike(other.fs)

    __hash__ = None  # type: ignore[assignment]  # like zarr's own stores, because their contents may change

    def with_read_only(self, read_only: bool = False) -> Store:
        """Return a store of the same source that refuses writes (``read_only``), or takes them."""
        return type(self)(self.fs, read_only=read_only)

    @property
    def supports_writes(self) -> bool:
        """Whether the filesystem takes writes."""
        return self.fs.mode != "r"

    @property
    def supports_deletes(self) -> bool:
        """Whether the filesystem takes writes, and so removals."""
        return self.fs.mode != "r"

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: abc.ByteRequest | None = None
    ) -> Buffer | None:
        """Return the bytes of ``key``, or a range of them; None if the key does not exist."""
        await self._ensure_open()
        try:
            data = await self.fs._cat_file(key, *_make_bounds(byte_range))
        except FileNotFoundError:
            return None
        return prototype.buffer.from_bytes(data)

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: abc.ByteRequest | None = None
    ) -> Buffer | None:
        """Do what `get` does, as a blocking call."""
        try:
            data = self.fs.cat_file(key, *_make_bounds(byte_range))
        except FileNotFoundError:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, abc.ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Do what `get` does for several keys, and read them together."""
        await self._ensure_open()
        requests = [Request(self.fs._strip_protocol(key), *_make_bounds(span)) for key, span in key_ranges]
        out: list[Buffer | None] = []
        for data in await self.fs.source.read_all(requests):
            if isinstance(data, BaseException) and not isinstance(data, FileNotFoundError):
                raise data
            out.append(None if isinstance(data, BaseException) else prototype.buffer.from_bytes(data))
        return out

    async def exists(self, key: str) -> bool:
        """Return whether ``key`` exists; False for a directory."""
        return await self.fs._isfile(key)

    async def getsize(self, key: str) -> int:
        """Return the size of ``key`` in bytes, without reading them."""
        info = await self.fs._info(key)
        if info["type"] != "file":
            raise FileNotFoundError(key)
        return int(info["size"])

    def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        return self.list_prefix("")

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield all keys that begin with ``prefix``."""
        for key in await self.fs._find(prefix.rpartition("/")[0]):
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of the keys and directories directly below ``prefix``."""
        directory = self.fs._strip_protocol(prefix)
        stem = directory and directory + "/"
        with contextlib.suppress(FileNotFoundError):
            for path in await files.ls(self.fs.source, directory, detail=False):
                if path.startswith(stem):
                    yield path[len(stem) :]

    async def set(self, key: str, value: Buffer) -> None:
        """Write ``value`` to ``key``."""
        self._check_writable()
        await self._ensure_open()
        await self.fs._pipe_file(key, value.to_bytes())

    def set_sync(self, key: str, value: Buffer) -> None:
        """Do what `set` does, as a blocking call."""
        self._check_writable()
        self.fs.pipe_file(key, value.to_bytes())

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write ``value`` to ``key`` unless the key exists."""
        self._check_writable()
        with contextlib.suppress(FileExistsError):
            await self.fs._pipe_file(key, value.to_bytes(), mode="create")

    async def delete(self, key: str) -> None:
        """Remove ``key``, if it exists."""
        self._check_writable()
        with contextlib.suppress(FileNotFoundError):
            await self.fs._rm(key)

    def delete_sync(self, key: str) -> None:
        """Do what `delete` does, as a blocking call."""
        self._check_writable()
        with contextlib.suppress(FileNotFoundError):
            self.fs.source.wait(self.fs._rm, key)

    async def delete_dir(self, prefix: str) -> None:
        """Remove ``prefix`` and everything below it."""
        self._check_writable()
        with contextlib.suppress(FileNotFoundError):
            await self.fs._rm(prefix, recursive=True)


def _make_bounds(span: abc.ByteRequest | None) -> tuple[int | None, int | None]:
    """Return the bounds of zarr's byte range as those of a slice."""
    match span:
        case None:
            return None, None
        case RangeByteRequest():
            return span.start, span.end
        case OffsetByteRequest():
            return span.offset, None
        case SuffixByteRequest():
            return (-span.suffix, None) if span.suffix else (0, 0)
    raise ValueError(f"Unexpected byte_range, got {span!r}: expected a ByteRequest of zarr.abc.store")
