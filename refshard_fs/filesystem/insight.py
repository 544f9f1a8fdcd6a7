"""What fsspec's interface does not ask: where bytes are, what reading them takes, and what will be read next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fsspec.asyn import get_loop, sync

from refshard_fs.filesystem.sourced import Sourced
from refshard_fs.model import Inline, Span
from refshard_fs.reading.plan import Planned
from refshard_fs.selection import Mode

__all__ = ["Insight"]


class Insight(Sourced):
    """What a filesystem tells of its source, and is told of reads to come."""

    @property
    def fss(self) -> dict[str | None, Any]:
        """Protocol → the filesystem (or the options for one) that its targets are read with."""
        return {**self._session.options.pool.by_protocol}

    @property
    def left_whole(self) -> dict[str, str]:
        """Arrays, of those seen so far, that are not shown, or whose shards are left whole, and why, by path."""
        keyspace = self._opened()
        return dict(getattr(keyspace, "reports", {}))

    def prefetch(
        self, what: str | Sequence[str], selection: Any = None, *, mode: Mode = "numpy", wait: bool = True
    ) -> None:
        """Fetch what will be read in as few and as parallel requests as can be, and hold it until it is read.

        ``what`` is a sequence of keys; or the path of an array, of which ``selection`` (all, by
        default) will be read, as numpy understands it (``mode="orthogonal"``, ``mode="block"``:
        as zarr's ``oindex`` and ``blocks``). No more than ``max_memory`` is held: the rest
        follows as reads make room. With ``wait``, returns when that much has arrived. Errors
        are left to the reads.

        >>> import json, refshard_fs
        >>> meta = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C",
        ...         "fill_value": None, "filters": None, "compressor": None}
        >>> fs = refshard_fs.RefShardFileSystem({"a/.zarray": json.dumps(meta), "a/0": "ab", "a/1": "cd"})
        >>> fs.prefetch("a", slice(2, 4))
        >>> fs.cat_file("a/1")
        b'cd'
        """
        sync(self._session.home() or self.loop or get_loop(), self._prefetch, what, selection, mode=mode, wait=wait)

    async def _prefetch(
        self, what: str | Sequence[str], selection: Any = None, *, mode: Mode = "numpy", wait: bool = True
    ) -> None:
        if isinstance(what, str):
            chosen = Ellipsis if selection is None else selection
            keys = await self._session.keys_of(self._strip_protocol(what), chosen, mode)
        elif selection is not None:
            raise TypeError("a selection needs the path of one array, not keys")
        else:
            keys = [self._strip_protocol(key) for key in what]
        await self._session.prefetch(keys, wait=wait)

    def announce(self, array: str, selection: Any, *, mode: Mode = "numpy", here: bool = False) -> None:
        """Say, from any thread, what will be read of ``array`` next: `prefetch` that neither waits nor fails.

        ``here``: on the running event loop, which by default is held to wait for the reads meanwhile.
        """
        session = self._session
        loop = asyncio.get_running_loop() if here else session.home()
        session.announce(self._strip_protocol(array), selection, mode, loop)

    def resolve(self, path: str) -> tuple[str, int, int | None] | bytes:
        """Return where a key's bytes are: (url, start, stop), or the bytes themselves if no target has them as such.

        ``stop=None`` is the end of the target. Reads only what it takes to know. FileNotFoundError if there is no such
        key, ReferenceNotReachable if that cannot be found out.

        >>> import refshard_fs
        >>> fs = refshard_fs.RefShardFileSystem({"a/0": ["s3://bucket/x.nc", 100, 50], "a/1": "inline"})
        >>> fs.resolve("a/0"), fs.resolve("a/1")
        (('s3://bucket/x.nc', 100, 150), b'inline')
        """
        key = self._strip_protocol(path)
        entry = self._session.find_now(key)
        if entry is None:
            entry = sync(self.loop or get_loop(), self._session.find, key)
        match entry:
            case Span(url, start, stop):
                return url, start, stop
            case Inline(data):
                return data
        read: bytes = self.cat_file(path)
        return read

    async def _resolve(self, path: str) -> tuple[str, int, int | None] | bytes:
        match await self._session.find(self._strip_protocol(path)):
            case Span(url, start, stop):
                return url, start, stop
            case Inline(data):
                return data
        read: bytes = await self._cat_file(path)
        return read

    def plan(self, paths: str | Sequence[str]) -> list[Planned]:
        """Return the requests, (url, start, stop, keys), that reading ``paths`` together would make; none is made.

        ``start`` and ``stop`` are bytes of the object at ``url``; ``stop=None`` is its end. What tells where chunks
        lie (shard indexes, partitions) is read if it is not known. Where answers of a server have been slow, a few
        megabytes come in more requests than these. FileNotFoundError if a key does not exist, ReferenceNotReachable
        if that cannot be found out.

        >>> import refshard_fs
        >>> fs = refshard_fs.RefShardFileSystem({"a/0": ["s3://b/x.nc", 0, 400], "a/1": ["s3://b/x.nc", 500, 400]})
        >>> [tuple(request) for request in fs.plan(["a/1", "a/0"])]
        [('s3://b/x.nc', 0, 900, ('a/0', 'a/1'))]
        """
        keys = [self._strip_protocol(path) for path in ([paths] if isinstance(paths, str) else paths)]
        planned: list[Planned] = sync(self.loop or get_loop(), self._session.plan, keys)
        return planned
