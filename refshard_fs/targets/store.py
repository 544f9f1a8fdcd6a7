"""Where objects are put: below one URL, each whole or not at all, by as many writers at a time as there are."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.policy import locator
from refshard_fs.targets.draft import is_draft, replacing, sync_file
from refshard_fs.targets.generic import in_thread
from refshard_fs.targets.pool import Given
from refshard_fs.targets.speaking import speaking

__all__ = ["Buffer", "Store", "opened"]

Buffer = bytes | memoryview

_BOUND = ("asynchronous", "loop", "skip_instance_cache")  # what ties an instance to an event loop


def opened(url: str, given: Given) -> tuple[AbstractFileSystem, str]:
    """Return a filesystem that any thread may call, and the path of ``url`` there, by an instance or options."""
    if not isinstance(given, AbstractFileSystem):
        fs, path = fsspec.core.url_to_fs(url, **given)
        return fs, str(path)
    fs = given
    while type(fs) is AsyncFileSystemWrapper:
        fs = fs.sync_fs
    path = str(fs._strip_protocol(url))
    if isinstance(fs, AsyncFileSystem) and fs.asynchronous:
        options = {name: value for name, value in fs.storage_options.items() if name not in _BOUND}
        fs = type(fs)(*fs.storage_args, **options)
    return fs, path


MANY = 64  # files that take longer one by one than the whole system does at once


class Store:
    """The objects below ``url``; ``given`` is an instance, or the options of one. Opened at the first use."""

    def __init__(self, url: str, given: Given) -> None:
        self.url = url.rstrip("/")
        self._given = given
        self._url_of = locator(self.url)
        self._opened: tuple[int, AbstractFileSystem, str] | None = None

    def url_of(self, name: str) -> str:
        """Return the URL of the object ``name``."""
        return self._url_of(name)

    @property
    def is_at_hand(self) -> bool:
        """Whether writing takes no event loop, and no other thread."""
        return type(self._fs()[0]) in (LocalFileSystem, MemoryFileSystem)

    @speaking()
    def put_now(self, name: str, data: Buffer, *, durable: bool = False) -> None:
        """Write the object ``name``; for callers that may block. ``durable``: on the disk when this returns."""
        fs, path = self._at(name)
        if type(fs) is LocalFileSystem:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with replacing(path, durable=durable) as file:
                file.write(data)
            return
        if type(fs) is MemoryFileSystem:
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        fs.pipe_file(path, bytes(data))

    async def put(self, name: str, data: bytes) -> None:
        """Write the object ``name``."""
        fs, path = self._at(name)
        if not (isinstance(fs, AsyncFileSystem) and fs.async_impl):
            if type(fs) is MemoryFileSystem:
                self.put_now(name, data)
            else:
                await in_thread(lambda: self.put_now(name, data))
            return
        if fs.loop is asyncio.get_running_loop():
            await fs._pipe_file(path, data)
        else:
            writing = asyncio.run_coroutine_threadsafe(fs._pipe_file(path, data), fs.loop)
            await asyncio.wrap_future(writing)

    def settle(self, urls: Iterable[str]) -> None:
        """Return when the objects at ``urls``, which were put before, are on the disk, if they are local."""
        fs, root = self._fs()
        if type(fs) is LocalFileSystem:
            paths = [f"{root}/{url[len(self.url) + 1 :]}" for url in urls]
            if len(paths) > MANY and hasattr(os, "sync"):
                os.sync()
                return
            for path in paths:
                sync_file(path)
            for folder in {os.path.dirname(path) for path in paths}:
                sync_file(folder)

    @speaking()
    def copy(self, names: Mapping[str, str]) -> None:
        """Copy objects, each whole or not at all: name → new name."""
        fs, _ = self._fs()
        for name, new in names.items():
            if type(fs) is LocalFileSystem:
                self.put_now(new, fs.cat_file(self._at(name)[1]), durable=True)
            else:
                fs.cp_file(self._at(name)[1], self._at(new)[1])

    @speaking()
    def has(self, name: str) -> bool:
        """Whether there is an object ``name``."""
        fs, path = self._at(name)
        fs.invalidate_cache()
        return bool(fs.exists(path))

    @speaking()
    def get(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the objects ``names``."""
        fs, root = self._fs()
        paths = {f"{root}/{name}": name for name in names}
        if not paths:
            return {}
        found: Mapping[str, bytes] = fs.cat(list(paths))
        return {paths[path]: data for path, data in found.items()}

    def name_of(self, url: str) -> str | None:
        """Return the name of the object at ``url``; None if it is not below this one."""
        return url[len(self.url) + 1 :] if url.startswith(self.url + "/") else None

    @speaking()
    def sizes(self, below: str) -> dict[str, int]:
        """Return the names and sizes of all objects in the directory ``below``, at any depth, without drafts."""
        fs, root = self._fs()
        fs.invalidate_cache()
        try:
            found = fs.find(f"{root}/{below}", detail=True)
        except FileNotFoundError:
            return {}
        return {str(path)[len(root) + 1 :]: info["size"] for path, info in found.items() if not is_draft(str(path))}

    def remove(self, urls: Iterable[str]) -> None:
        """Remove the objects at ``urls``, which are below this one, as far as that can be done."""
        fs, root = self._fs()
        stem = len(self.url) + 1
        paths = [f"{root}/{url[stem:]}" for url in urls]
        if not paths:
            return
        with contextlib.suppress(OSError), speaking():
            fs.rm(paths)
            return
        for path in paths:  # one that is gone does not keep the others
            with contextlib.suppress(OSError), speaking():
                fs.rm_file(path)

    def remove_below(self, name: str) -> None:
        """Remove the directory ``name`` and all that is in it, as far as that can be done."""
        fs, path = self._at(name)
        with contextlib.suppress(OSError), speaking():
            fs.rm(path, recursive=True)

    def tidy(self, below: str = "") -> None:
        """Remove what directories are left empty, in ``below`` and itself, where there are directories."""
        fs, root = self._fs()
        if type(fs) is LocalFileSystem:
            for folder, _, _ in sorted(os.walk(f"{root}/{below}".rstrip("/")), reverse=True):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

    def _at(self, name: str) -> tuple[AbstractFileSystem, str]:
        fs, root = self._fs()
        return fs, f"{root}/{name}"

    def _fs(self) -> tuple[AbstractFileSystem, str]:
        known = self._opened
        if known is None or known[0] != os.getpid():
            fs, path = opened(self.url, self._given)
            known = self._opened = os.getpid(), fs, path.rstrip("/")
        return known[1], known[2]
