"""Bytes of keys: one, many, ranges, and as local files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from glob import has_magic
from typing import Any, BinaryIO

from fsspec.asyn import sync
from fsspec.callbacks import DEFAULT_CALLBACK

from refshard_fs.filesystem.sourced import Sourced
from refshard_fs.reading.engine import Request

__all__ = ["Readable"]


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
