"""Chained URLs (``zip://member::http://...``, ``simplecache::s3://...``), each opened when it is first read.

Opening one may itself read, and that through fsspec's own event loop: it is done in a thread.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import fsspec

from refshard_fs.model import Facts, Listed
from refshard_fs.targets.answer import Answer
from refshard_fs.targets.generic import FsspecTarget, in_thread

__all__ = ["ChainTarget"]

# These show the files of the next link under its own names.
_TRANSPARENT = frozenset(["blockcache", "filecache", "simplecache"])


class ChainTarget:
    """The objects of all chains that are opened with the same options, by whole URL."""

    most_retries = 2
    patience = math.inf

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._opened: dict[str, asyncio.Task[FsspecTarget]] = {}

    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        target, inner = await self._open(path)
        return await target.read(inner, start, stop, most=most)

    async def facts(self, path: str) -> Facts:
        target, inner = await self._open(path)
        return await target.facts(inner)

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        target, inner = await self._open(path)
        return await target.names(inner)

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer | None:
        return None

    async def close(self) -> None:
        for task in self._opened.values():
            task.cancel()
        self._opened.clear()

    async def _open(self, url: str) -> tuple[FsspecTarget, str]:
        link, path = _parts(url)
        task = self._opened.get(link)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._opened[link] = asyncio.get_running_loop().create_task(self._start(url))
        target = await asyncio.shield(task)
        return target, target.fs._strip_protocol(path)

    async def _start(self, url: str) -> FsspecTarget:
        fs, _ = await in_thread(lambda: fsspec.core.url_to_fs(url, **self._options))
        return FsspecTarget(fs)


def _parts(url: str) -> tuple[str, str]:
    """Return what names the filesystem that a chain opens, and the object's URL there."""
    first, _, rest = url.partition("::")
    protocol, has_path, _ = first.partition("://")
    if has_path:  # a member of an archive
        return f"{protocol}::{rest}", first
    second, _, tail = rest.partition("::")
    if first in _TRANSPARENT and "?" not in second:
        return f"{first}::{second.partition('://')[0]}::{tail}", second
    return url, second
