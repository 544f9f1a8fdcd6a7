"""Keys as a mutable mapping, and one key as a file: what zarr 2 and other callers hold instead of a filesystem."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fsspec.mapping import FSMap
from fsspec.spec import AbstractBufferedFile

from refshard_fs.errors import ReferenceNotReachable

__all__ = ["RefShardFile", "RefShardMap"]


class RefShardFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec is untyped
    """A key as a read-only file; ranges come through the engine like all other reads."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data


class RefShardMap(FSMap):  # type: ignore[misc]  # fsspec is untyped
    """Keys as a mutable mapping, as fsspec's, but safe under zarr 2.

    That version takes every OSError for a missing chunk; here a failed read leaves as
    `ReferenceNotReachable`, which is none, and is never merely returned among results.
    """

    def __getitem__(self, key: str, default: Any = None) -> Any:
        try:
            return super().__getitem__(key, default)
        except OSError as e:
            raise _not_missing(key, e) from e

    def getitems(self, keys: Iterable[str], on_error: str = "raise") -> dict[str, Any]:
        out: dict[str, Any] = super().getitems(list(keys), on_error="return")
        for key, value in list(out.items()):
            if isinstance(value, KeyError):
                if on_error == "raise":
                    raise KeyError(key)
                if on_error == "omit":
                    del out[key]
            elif isinstance(value, OSError):
                raise _not_missing(key, value) from value
            elif isinstance(value, BaseException):
                raise value
        return out


def _not_missing(key: str, error: OSError) -> ReferenceNotReachable:
    return ReferenceNotReachable(key, str(getattr(error, "filename", None) or "its target"), str(error))
