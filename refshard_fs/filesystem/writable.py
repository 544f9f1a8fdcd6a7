"""The half of the fsspec interface that changes something: writes, copies, removals."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable
from glob import has_magic
from operator import index
from typing import TYPE_CHECKING, Any

from fsspec.asyn import get_loop, sync
from fsspec.callbacks import DEFAULT_CALLBACK

from refshard_fs.errors import redacted
from refshard_fs.filesystem.savable import Savable
from refshard_fs.filesystem.written_file import WrittenFile
from refshard_fs.model import Inline, Span
from refshard_fs.overlay import Base, Overlay
from refshard_fs.shards.view import ShardView
from refshard_fs.writes.destination import waits
from refshard_fs.writes.staging import StagedValues
from refshard_fs.writes.values import Values, never

if TYPE_CHECKING:
    from refshard_fs.writes.assembly import Assembly

__all__ = ["Writable"]


class Writable(Savable):
    """Keys take bytes, and references, and go."""

    _values: Values | None

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Let ``path`` hold ``value``."""
        key = self._key(path)
        overlay = self._writing(f"write {key!r}")
        data = bytes(value)
        writer = self._writer(overlay)
        if mode == "overwrite" and key and writer is not None and writer.write_now(key, data):
            base = overlay.base
            if writer.keeps(key) and overlay.worker is None and base is not None:
                _assembly_of(overlay).written(key, base.keyspace, self._look)
            return
        sync(self.loop or get_loop(), self._pipe_file, path, data, mode=mode)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        key = self._key(path)
        overlay = self._writing(f"write {key!r}")
        if not key:
            raise IsADirectoryError("the root is a directory")
        if mode == "create" and await self._exists(key):
            raise FileExistsError(key)
        writer = await self._opened_writer(overlay)
        await writer.write(key, bytes(value))
        await self._filled(overlay, writer, key)

    async def _filled(self, overlay: Overlay, writer: Values, key: str) -> None:
        """Have the shard put together that ``key`` was the last chunk of, if it was."""
        base = overlay.base
        if writer.keeps(key) and overlay.worker is None and base is not None:
            await _assembly_of(overlay).written_later(key, base.keyspace, self._session.look)

    async def _put_file(
        self, lpath: str, rpath: str, mode: str = "overwrite", callback: Any = DEFAULT_CALLBACK, **kwargs: Any
    ) -> None:
        self._writing(f"write {rpath!r}")
        data = await asyncio.to_thread(_read, lpath)
        if data is None:
            return
        callback.set_size(len(data))
        await self._pipe_file(rpath, data, mode=mode)
        callback.relative_update(len(data))

    async def _cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Let ``path2`` refer to the bytes of ``path1``: those of objects are not copied."""
        source, key = self._key(path1), self._key(path2)
        overlay = self._writing(f"write {key!r}")
        if await self._isdir(source):
            return
        found = await self._session.find(source)
        writer = self._writer(overlay)
        if writer is not None and writer.keeps(key):
            await self._pipe_file(key, await self._cat_file(source))
            return
        match found:
            case Span(optional=False, pin=None) as span if (
                span.stop is None and not span.start
            ) or span.size is not None:
                await (await self._opened_writer(overlay)).refer(key, span)
            case Inline(data):
                await self._pipe_file(key, data)
            case _:
                await self._pipe_file(key, await self._cat_file(source))

    async def _rm(
        self,
        path: str | Iterable[str],
        recursive: bool = False,
        batch_size: int | None = None,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        overlay = self._writing(f"remove {path!r}")
        for name in [path] if isinstance(path, str) else list(path):
            if maxdepth is not None or has_magic(name):
                keys = await self._expand_path(name, recursive=recursive, maxdepth=maxdepth)
                for key in [key for key in keys if await self._isfile(key)]:
                    await self._remove(overlay, key)
                continue
            key = self._key(name)
            kind = (await self._info(key))["type"]
            if kind != "directory":
                await self._remove(overlay, key)
            elif recursive:
                await (await self._opened_writer(overlay)).remove_below(key)
            else:
                raise IsADirectoryError(f"{key!r} is a directory: recursive=True removes it")

    async def _rm_file(self, path: str, **kwargs: Any) -> None:
        await self._rm(path)

    async def _remove(self, overlay: Overlay, key: str) -> None:
        writer = await self._opened_writer(overlay)
        await writer.remove(key)
        await self._filled(overlay, writer, key)

    async def _touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        if truncate or not await self._exists(path):
            await self._pipe_file(path, b"")

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Let ``path`` be empty; without ``truncate``, only if there is none."""
        sync(self.loop or get_loop(), self._touch, path, truncate=truncate)

    async def _mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Do nothing: a directory is there when there is something in it."""
        self._writing(f"make {path!r}")

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._writing(f"make {path!r}")

    async def _rmdir(self, path: str) -> None:
        """Do nothing but check: a directory with nothing in it is none."""
        self._writing(f"remove {path!r}")
        if await self._ls(path, detail=False):
            raise OSError(f"{path!r} is not empty")

    def refer(self, path: str, url: str, offset: int = 0, length: int | None = None) -> None:
        """Let ``path`` hold ``length`` bytes at ``offset`` of the object at ``url``; without them, all of it.

        Nothing is read. TargetNotAllowed where ``url`` may not be pointed to, ReadOnlyError without a ``mode``.

        >>> import fsspec, refshard_fs
        >>> fs = refshard_fs.RefShardFileSystem("memory://made.json", mode="w")
        >>> with fs.transaction:
        ...     fs.refer("a/0", "s3://bucket/x.nc", 100, 50)
        >>> refshard_fs.RefShardFileSystem("memory://made.json", remote_protocol="s3").resolve("a/0")
        ('s3://bucket/x.nc', 100, 150)
        """
        key = self._key(path)
        overlay = self._writing(f"write {key!r}")
        start, size = index(offset), None if length is None else index(length)
        if min(start, size or 0) < 0 or start + (size or 0) >= 2**63:
            raise ValueError(f"{key!r} cannot be {length} bytes at {offset} of {redacted(url)}")
        span = Span(self._respelling()(url) or url, start, None if size is None else start + size)
        if overlay.worker is None and overlay.base is not None:
            overlay.put(key, span)
        else:
            sync(self.loop or get_loop(), self._refer, key, span)

    async def _refer(self, key: str, span: Span) -> None:
        await (await self._opened_writer(self._writing(f"write {key!r}"))).refer(key, span)

    def _open_to_write(self, path: str, mode: str) -> WrittenFile:
        key = self._key(path)
        self._writing(f"write {key!r}")
        before = b""
        match mode.replace("b", "").replace("+", ""):
            case "w":
                pass
            case "x":
                if self.exists(key):
                    raise FileExistsError(key)
            case "a" | "r":
                with contextlib.suppress(FileNotFoundError):
                    before = self.cat_file(key)
            case other:
                raise ValueError(f"mode {other!r} is none that a file can be opened with")
        return WrittenFile(self, key, before, at_end="a" in mode)

    def _writer(self, overlay: Overlay) -> Values | None:
        """Return what writes values; None before the source has been opened, for its format decides where they go."""
        return None if overlay.base is None else self._writer_over(overlay, overlay.base)

    def _writer_over(self, overlay: Overlay, base: Base) -> Values:
        options = self._write_options
        staged = overlay.worker is not None
        if self._values is None or isinstance(self._values, StagedValues) != staged:
            store = None if options.data_url is None else self._store()
            self._values = (StagedValues if staged else Values)(overlay, options, store)
        self._values.waits = waits(self._session.options.source, base, options)
        self._values.is_inner = base.keyspace.is_inner if isinstance(base.keyspace, ShardView) else never
        return self._values

    async def _opened_writer(self, overlay: Overlay) -> Values:
        while True:
            await self._session.keyspace()
            writer = self._writer(overlay)
            if writer is not None:  # it is open, and no other thread has begun anew meanwhile
                return writer


def _assembly_of(overlay: Overlay) -> Assembly:
    from refshard_fs.writes.assembly import assembly_of  # as in `commit`

    return assembly_of(overlay)


def _read(path: str) -> bytes | None:
    """Return what a local file holds; None of a directory."""
    if os.path.isdir(path):
        return None
    with open(path, "rb") as file:
        return file.read()
