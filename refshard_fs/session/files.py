"""A key as a file that is read, or written; and all keys as a mutable mapping, for zarr 2."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable
from typing import Any

from fsspec.asyn import AbstractAsyncStreamedFile, AsyncFileSystem
from fsspec.mapping import FSMap
from fsspec.spec import AbstractBufferedFile

from refshard_fs.errors import ReferenceNotReachable, told


class RefShardFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec is untyped
    """A key as a read-only file; ranges come through the engine like all other reads."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data


class StreamedFile(AbstractAsyncStreamedFile):  # type: ignore[misc]  # fsspec is untyped
    """A key as a read-only file of coroutines, for callers within an event loop."""

    async def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = await self.fs._cat_file(self.path, start, end)
        return data


class WrittenFile(io.BytesIO):
    """A file that becomes a key when it is closed, and not if its ``with`` block ends in an exception."""

    def __init__(self, fs: AsyncFileSystem, key: str, before: bytes, *, at_end: bool) -> None:
        super().__init__(before)
        self._fs: AsyncFileSystem | None = fs
        self.path = key
        if at_end:
            self.seek(0, io.SEEK_END)

    def close(self) -> None:
        fs, self._fs = self._fs, None
        if fs is not None:
            fs.pipe_file(self.path, self.getvalue())
        super().close()

    def commit(self) -> None:
        """Be written by the transaction, which does that for all at once."""

    def discard(self) -> None:
        """Leave the key as it was."""
        self._fs = None

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            self._fs = None
        super().__exit__(kind, *rest)

    def __del__(self) -> None:
        fs, self._fs = self._fs, None  # never closed: not known to be whole
        if fs is not None:
            what = f"the file {told(self.path)!r} was opened for writing and never closed: what was written is lost"
            warnings.warn(what, RuntimeWarning, stacklevel=2)


class RefShardMap(FSMap):  # type: ignore[misc]  # fsspec is untyped
    """Keys as a mutable mapping, as fsspec's, but safe under zarr 2, and a key is never a pattern.

    That version takes every OSError for a missing chunk; here a failed read leaves as
    `ReferenceNotReachable`, which is none, and is never merely returned among results.
    """

    def __getitem__(self, key: str, default: Any = None) -> Any:
        try:
            return self.fs.cat_file(self._key_to_str(key))
        except self.missing_exceptions as e:
            if default is not None:
                return default
            raise KeyError(key) from e
        except OSError as e:
            raise _not_missing(key, e) from e

    def getitems(self, keys: Iterable[str], on_error: str = "raise") -> dict[str, Any]:
        keys = list(keys)
        out: dict[str, Any] = {}
        found = self.fs.cat_ranges([self._key_to_str(key) for key in keys], None, None, on_error="return")
        for key, value in zip(keys, found, strict=True):
            if isinstance(value, self.missing_exceptions):
                if on_error == "raise":
                    raise KeyError(key)
                if on_error == "return":
                    out[key] = KeyError(key)
            elif isinstance(value, OSError):
                raise _not_missing(key, value) from value
            elif isinstance(value, BaseException):
                raise value
            else:
                out[key] = value
        return out

    def __delitem__(self, key: str) -> None:
        try:
            self.fs.rm_file(self._key_to_str(key))
        except Exception as e:
            raise KeyError(key) from e

    def delitems(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.fs.rm_file(self._key_to_str(key))

    def __reduce__(self) -> tuple[Any, ...]:
        return RefShardMap, (self.root, self.fs, False, False, self.missing_exceptions)


def _not_missing(key: str, error: OSError) -> ReferenceNotReachable:
    return ReferenceNotReachable(key, str(getattr(error, "filename", None) or "its target"), str(error))
