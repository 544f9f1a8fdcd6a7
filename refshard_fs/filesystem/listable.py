"""What keys there are, as fsspec describes them."""

from __future__ import annotations

import contextlib
from typing import Any

from fsspec.asyn import sync

from refshard_fs import listing
from refshard_fs.filesystem.sourced import Sourced

__all__ = ["Listable"]


class Listable(Sourced):
    """Listings, and what a key is."""

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return name, size (of the bytes a read returns) and type of ``path``; FileNotFoundError if there is none."""
        key = self._strip_protocol(path)
        entry = None
        with contextlib.suppress(FileNotFoundError):  # it may be a directory
            entry = self._session.find_now(key)
        if entry is not None and entry.size is not None:
            return {"name": key, "size": entry.size, "type": "file"}
        known: dict[str, Any] = sync(self.loop, self._info, path, **kwargs)
        return known

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return await listing.info(self._session, self._strip_protocol(path))

    async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        found = await listing.ls(self._session, self._strip_protocol(path), detail=detail)
        name = path.lstrip("/")
        slashes = path[: len(path) - len(name)]
        if not (self.asynchronous and slashes and name):
            return found
        # zarr 3.1 asks for "/group", and cuts what it asked for, slash and all, off the names that it gets.
        return [{**item, "name": slashes + item["name"]} if detail else slashes + item for item in found]

    async def _find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any) -> Any:
        key = self._strip_protocol(path)
        found = await listing.find(self._session, key, maxdepth=maxdepth, withdirs=withdirs)
        return found if kwargs.get("detail", False) else list(found)

    async def _du(
        self, path: str, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any
    ) -> Any:
        found = await self._find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True)
        sizes = {}
        for name, info in found.items():
            size = info["size"]
            sizes[name] = (await self._info(name))["size"] if size is None else size
        return sum(sizes.values()) if total else sizes

    async def _exists(self, path: str, **kwargs: Any) -> bool:
        try:
            return not (await self._info(path)).get("empty", False)
        except FileNotFoundError:
            return False

    async def _isdir(self, path: str) -> bool:
        try:
            return bool((await self._info(path))["type"] == "directory")
        except FileNotFoundError:
            return False

    async def _isfile(self, path: str) -> bool:
        try:
            return bool((await self._info(path))["type"] == "file")
        except FileNotFoundError:
            return False
