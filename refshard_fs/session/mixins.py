"""A filesystem over one session: it opens the source, looks things up in it, and knows how keys are spelled."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from glob import has_magic
from typing import Any, BinaryIO

from fsspec.asyn import AsyncFileSystem, get_loop, sync
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import split_protocol

from refshard_fs.core.keys import normalise
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Span, Steps
from refshard_fs.core.overlay import BY_URL, Overlay
from refshard_fs.core.selection import Mode
from refshard_fs.reading.engine import Request
from refshard_fs.reading.plan import Planned
from refshard_fs.session import listing
from refshard_fs.session.session import Session

__all__ = ["Insight", "Listable", "Readable", "Sourced"]


class Sourced(AsyncFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """What all parts of a filesystem need of its source."""

    protocol = "refshard"
    async_impl = True
    cachable = False

    _session: Session
    _overlay: Overlay | None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of synchronous use; after a fork a new one."""
        if self._pid != os.getpid():
            self._pid: int = os.getpid()
            if not self.asynchronous:
                self._loop = get_loop()
        loop: asyncio.AbstractEventLoop | None = self._loop
        return loop

    def _opened(self) -> KeySpace:
        keyspace = self._session.opened_now()
        if keyspace is None:
            keyspace = sync(self.loop or get_loop(), self._session.keyspace)
        return keyspace

    def _look(self, key: str, steps: Callable[[], Steps[Any]]) -> Any:
        """Return what ``steps()`` return, at once if possible; an error names ``key``."""
        found = self._session.look_now(key, steps())
        return sync(self.loop or get_loop(), self._session.look, key, steps()) if found is None else found.value

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forget every cached index, and open the source anew at the next use."""
        self._session.invalidate()
        super().invalidate_cache(path)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if type(path) is str and ":" not in path:  # as nearly all are
            return normalise(path)
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        protocol, rest = split_protocol(os.fspath(path))
        if protocol not in (None, cls.protocol, "reference"):
            rest = path
        return normalise(rest)

    @classmethod
    def _key(cls, path: Any) -> str:
        key: str = cls._strip_protocol(path)
        return key

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {BY_URL: True}


# ----------------------------------------------------------------------------------------------------
# What fsspec's interface does not ask: where bytes are, what reading them takes, and what will be read next.


class Insight(Sourced):
    """What a filesystem tells of its source, and is told of reads to come."""

    @property
    def fss(self) -> dict[str | None, Any]:
        """Protocol → the filesystem (or the options for one) that its targets are read with."""
        return {**self._session.options.pool.by_protocol}

    @property
    def left_whole(self) -> dict[str, str]:
        """Arrays, of those seen so far, that are not shown, or whose shards are left whole, and why, by path."""
        return dict(self._opened().reports)

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


# ----------------------------------------------------------------------------------------------------
# What keys there are, as fsspec describes them.


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


# ----------------------------------------------------------------------------------------------------
# Bytes of keys: one, many, ranges, and as local files.


class Readable(Sourced):
    """The half of the fsspec interface that reads."""

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Return bytes ``[start:end]`` of ``path``, as slicing the whole would.

        Raises FileNotFoundError if there is no such key, ReferenceNotReachable if its
        bytes cannot be had.
        """
        request = Request(self._strip_protocol(path), start, end)
        data = self._session.read_now(request)
        if data is None:
            data = sync(self.loop, self._session.read, request)
        return data

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        return await self._session.read(Request(self._strip_protocol(path), start, end))

    async def _cat_ranges(
        self,
        paths: Sequence[str],
        starts: int | Iterable[int | None] | None,
        ends: int | Iterable[int | None] | None,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        firsts = list(starts) if isinstance(starts, Iterable) else [starts] * len(paths)
        lasts = list(ends) if isinstance(ends, Iterable) else [ends] * len(paths)
        if len(firsts) != len(paths) or len(lasts) != len(paths):
            raise ValueError("paths, starts and ends must be of one length")
        requests = map(Request, map(self._strip_protocol, paths), firsts, lasts)
        out = await self._session.read_all(list(requests))
        if on_error != "return":
            for value in out:
                if isinstance(value, BaseException):
                    raise value
        return out

    async def _cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", batch_size: int | None = None, **kwargs: Any
    ) -> Any:
        """Like fsspec's, but ``on_error="omit"`` leaves out only missing keys: a failed read is never passed over."""
        single = isinstance(path, (str, os.PathLike))
        if recursive or (single and has_magic(os.fspath(path))):
            paths = await self._expand_path(path, recursive=recursive)
        elif single:
            paths = [self._strip_protocol(path)]
        else:
            paths = []
            for p in path:
                if has_magic(p):
                    paths += await self._expand_path(p)
                else:
                    paths.append(self._strip_protocol(p))
        if recursive:
            paths = [p for p in paths if await self._isfile(p)]
        callback = kwargs.get("callback", DEFAULT_CALLBACK)
        callback.set_size(len(paths))
        requests = [Request(p, kwargs.get("start"), kwargs.get("end")) for p in paths]
        tell = None if callback is DEFAULT_CALLBACK else callback.relative_update  # which nobody hears
        out = await self._session.read_all(requests, tell)
        for value in out:
            if isinstance(value, BaseException) and (
                on_error == "raise" or (on_error == "omit" and not isinstance(value, FileNotFoundError))
            ):
                raise value
        if single and paths == [self._strip_protocol(path)]:
            return out[0]
        keep = zip(paths, out, strict=True)
        return {k: v for k, v in keep if on_error != "omit" or not isinstance(v, BaseException)}

    async def _get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **kwargs: Any) -> None:
        key = self._strip_protocol(rpath)
        if hasattr(lpath, "write"):
            async for piece in self._session.pieces(key, callback.set_size):
                lpath.write(piece)
                callback.relative_update(len(piece))
            return
        if await self._isdir(key):
            os.makedirs(lpath, exist_ok=True)
            return
        file, is_whole = None, False
        try:
            async for piece in self._session.pieces(key, callback.set_size):
                if file is None:  # not before the first bytes are there
                    file = _create(os.fspath(lpath))  # in no thread: cancelled, nobody would close what it opens
                await asyncio.to_thread(file.write, piece)
                callback.relative_update(len(piece))
            is_whole = True
        finally:
            if file is not None:
                file.close()
                if not is_whole:  # nobody could tell
                    os.remove(lpath)


def _create(path: str) -> BinaryIO:
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    return open(path, "wb")
