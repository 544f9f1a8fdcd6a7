"""Any fsspec filesystem, synchronous or not, of whatever event loop, read through its public API."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.model import Facts, Listed
from refshard_fs.targets.answer import Answer, Unfit

__all__ = ["FsspecTarget"]

THREADS = 16

_threads: concurrent.futures.ThreadPoolExecutor | None = None


def _executor() -> concurrent.futures.ThreadPoolExecutor:
    global _threads
    if _threads is None:
        _threads = concurrent.futures.ThreadPoolExecutor(THREADS, thread_name_prefix="refshard-target")
    return _threads


def _after_fork() -> None:
    global _threads
    _threads = None


class FsspecTarget:
    """The objects of one filesystem instance."""

    def __init__(self, fs: AbstractFileSystem) -> None:
        self.fs = fs

    async def read(self, path: str, start: int, stop: int | None) -> Answer:
        size = None
        if start < 0:  # not every filesystem takes a suffix
            size = (await self.facts(path)).size
            if size is None:
                raise Unfit(f"the size of {path} is unknown, so its end cannot be read")
            start, stop = max(size + start, 0), size
        whole = start == 0 and stop is None
        data = bytes(await self._call("cat_file", path, None if whole else start, None if whole else stop))
        if stop is not None and len(data) != stop - start:
            size = (await self.facts(path)).size
            if start > 0 and len(data) == size and len(data) >= stop:  # the range was ignored
                data = data[start:stop]
            elif len(data) == size and start == 0 and len(data) > stop:
                data = data[:stop]
        return Answer(data, size)

    async def facts(self, path: str) -> Facts:
        info = await self._call("info", path)
        if info.get("type") == "directory":
            raise FileNotFoundError(path)
        etag = info.get("ETag") or info.get("etag") or info.get("md5")
        modified = info.get("LastModified") or info.get("mtime") or info.get("created")
        return Facts(info.get("size"), None if etag is None else str(etag), None if modified is None else str(modified))

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        try:
            rows = await self._call("ls", path, True)
        except NotImplementedError:
            return None
        out = []
        for row in rows:
            name = row["name"].rstrip("/").rsplit("/", 1)[-1]
            if row["name"].rstrip("/") == path.rstrip("/"):
                if row["type"] != "directory" and len(rows) == 1:
                    raise NotADirectoryError(path)
                continue
            is_directory = row["type"] == "directory"
            out.append(Listed(name, None if is_directory else row.get("size"), is_directory))
        return tuple(sorted(out, key=lambda listed: listed.name))

    def read_now(self, path: str, start: int, stop: int | None) -> Answer | None:
        return None

    async def close(self) -> None:
        return None

    async def _call(self, name: str, *args: Any) -> Any:
        fs = self.fs
        if not (isinstance(fs, AsyncFileSystem) and fs.async_impl):
            return await asyncio.get_running_loop().run_in_executor(_executor(), getattr(fs, name), *args)
        method = getattr(fs, "_" + name)
        if fs.asynchronous:
            return await method(*args)
        home = fs.loop
        if home is asyncio.get_running_loop():
            return await method(*args)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(method(*args), home))


def _register() -> None:
    import os

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


_register()
