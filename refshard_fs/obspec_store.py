"""`ObspecStore`: the keys of a source as a store of the obspec protocols, which obstore's stores have, too.

Source: obspec's protocols (https://developmentseed.org/obspec): Get, GetRange, GetRanges, Head, List and
ListWithDelimiter, blocking and asynchronous.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading.plan import Request
from refshard_fs.source import files

T = TypeVar("T")

LISTED: Final = 1000  # keys in each part of a listing
UNKNOWN: Final = datetime.fromtimestamp(0, UTC)  # when a key was last modified

Meta = dict[str, Any]  # obspec's ObjectMeta


class NotSupportedError(Exception):
    """What obspec calls an operation that a store does not have."""


class Result(msgspec.Struct, frozen=True):
    """An object, or a range of it: obspec's `GetResult` and `GetResultAsync`."""

    data: bytes
    meta: Meta
    range: tuple[int, int]
    attributes: Mapping[str, Any] = {}

    def buffer(self) -> bytes:
        """Return the bytes."""
        return self.data

    async def buffer_async(self) -> bytes:
        """Return the bytes."""
        return self.data

    def __iter__(self) -> Iterator[bytes]:
        yield self.data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.data


class ObspecStore:
    """The keys of a source as an object store that can be read: for whatever takes stores of obstore or obspec.

    ``source`` and ``options`` are the arguments of `RefShardFileSystem`; or ``source`` is one. Its chunks are read as
    the filesystem reads them, so that also chunks that are decoded, or put together, have a place for readers of ranges
    (a registry of VirtualiZarr, for one). Objects have no ETags, and 1970 stands for the unknown time of their last
    change: conditions on these raise NotSupportedError. FileNotFoundError means only that there is no such key.

    >>> import refshard_fs
    >>> store = refshard_fs.ObspecStore({"a/0": "abcdef"})
    >>> store.get_range("a/0", start=2, end=4), [meta["path"] for part in store.list() for meta in part]
    (b'cd', ['a/0'])
    """

    def __init__(self, source: Any, **options: Any) -> None:
        if isinstance(source, RefShardFileSystem) and options:
            raise TypeError(f"{', '.join(options)}: a filesystem was given, which has its options already")
        is_given = isinstance(source, RefShardFileSystem)
        self.fs: RefShardFileSystem = source if is_given else RefShardFileSystem(source, **options)

    def __repr__(self) -> str:
        return f"<ObspecStore of {self.fs!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObspecStore) and self.fs.is_alike(other.fs)

    __hash__ = None  # type: ignore[assignment]  # what it shows may change

    # ------------------------------------------------------------------ Get, GetRange, GetRanges

    def get(self, path: str, *, options: Mapping[str, Any] | None = None) -> Result:
        """Return an object, or the range of it that ``options`` name."""
        return self._wait(self.get_async, path, options=options)

    async def get_async(self, path: str, *, options: Mapping[str, Any] | None = None) -> Result:
        """Return an object, or the range of it that ``options`` name."""
        given = {name: value for name, value in (options or {}).items() if value is not None}
        if unknown := given.keys() - {"range", "head"}:
            raise NotSupportedError(f"{', '.join(sorted(unknown))}: the keys of a source have no versions to compare")
        wanted = given.get("range")
        if wanted is None and not given.get("head"):
            data = await self.fs._cat_file(path)
            return Result(data, _meta(path, len(data)), (0, len(data)))
        meta = await self.head_async(path)
        size = meta["size"]
        match wanted:
            case None:
                start, stop = 0, size
            case {"offset": int(start)}:
                stop = size
            case {"suffix": int(length)}:
                start, stop = max(size - length, 0), size
            case (start, stop):
                pass
            case _:
                raise ValueError(
                    f"range={wanted!r}: expected (start, end), {{'offset': start}} or {{'suffix': length}}"
                )
        if given.get("head"):
            return Result(b"", meta, (start, start))
        return Result(await self.get_range_async(path, start=start, end=stop), meta, (start, min(stop, size)))

    def get_range(self, path: str, *, start: int, end: int | None = None, length: int | None = None) -> bytes:
        """Return bytes of an object, fewer where it ends before; ValueError where it ends before ``start``."""
        return _checked(path, start, self.fs.cat_file(path, start, _end(start, end, length)))

    async def get_range_async(
        self, path: str, *, start: int, end: int | None = None, length: int | None = None
    ) -> bytes:
        """Return bytes of an object, fewer where it ends before; ValueError where it ends before ``start``."""
        return _checked(path, start, await self.fs._cat_file(path, start, _end(start, end, length)))

    def get_ranges(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> list[bytes]:
        """Return ranges of one object, which are read together."""
        return self._wait(self.get_ranges_async, path, starts=starts, ends=ends, lengths=lengths)

    async def get_ranges_async(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> list[bytes]:
        """Return ranges of one object, which are read together."""
        unknown = [None] * len(starts)
        given = zip(starts, ends or unknown, lengths or unknown, strict=True)
        key = self.fs._strip_protocol(path)
        requests = [Request(key, start, _end(start, end, length)) for start, end, length in given]
        out: list[bytes] = []
        for start, data in zip(starts, await self.fs.source.read_all(requests), strict=True):
            if isinstance(data, BaseException):
                raise data
            out.append(_checked(path, start, data))
        return out

    # ------------------------------------------------------------------ Head, List, ListWithDelimiter

    def head(self, path: str) -> Meta:
        """Return what is known of an object, which is not read."""
        return self._wait(self.head_async, path)

    async def head_async(self, path: str) -> Meta:
        """Return what is known of an object, which is not read."""
        info = await self.fs._info(path)
        if info["type"] != "file":
            raise FileNotFoundError(path)
        return _meta(path, info["size"])

    def list(self, prefix: str | None = None, *, offset: str | None = None) -> Iterator[Sequence[Meta]]:
        """Yield all objects below ``prefix``, those after ``offset`` if it is given, in parts."""
        found = self._wait(self._below, prefix, offset)
        return (found[first : first + LISTED] for first in range(0, len(found), LISTED))

    async def list_async(
        self, prefix: str | None = None, *, offset: str | None = None
    ) -> AsyncIterator[Sequence[Meta]]:
        """Yield all objects below ``prefix``, those after ``offset`` if it is given, in parts."""
        found = await self._below(prefix, offset)
        for first in range(0, len(found), LISTED):
            yield found[first : first + LISTED]

    def list_with_delimiter(self, prefix: str | None = None) -> dict[str, Sequence[Any]]:
        """Return the objects and the directories that lie directly below ``prefix``."""
        return self._wait(self.list_with_delimiter_async, prefix)

    async def list_with_delimiter_async(self, prefix: str | None = None) -> dict[str, Sequence[Any]]:
        """Return the objects and the directories that lie directly below ``prefix``."""
        directory = self.fs._strip_protocol(prefix or "")
        try:
            rows = await files.ls(self.fs.source, directory, detail=True)
        except FileNotFoundError:
            rows = []
        rows = [row for row in rows if row["name"] != directory]  # a key is not a directory
        objects = [await self._listed(row) for row in rows if row["type"] == "file"]
        return {"common_prefixes": [row["name"] for row in rows if row["type"] == "directory"], "objects": objects}

    async def _below(self, prefix: str | None, offset: str | None) -> Any:
        directory = self.fs._strip_protocol(prefix or "")
        found = await self.fs._find(directory, detail=True)
        names = [name for name in found if name != directory and (offset is None or name > offset)]
        return [await self._listed(found[name]) for name in names]

    async def _listed(self, row: Mapping[str, Any]) -> Meta:
        return await self.head_async(row["name"]) if row["size"] is None else _meta(row["name"], row["size"])

    def _wait(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **named: Any) -> T:
        return self.fs.source.wait(partial(function, **named), *arguments)


def _end(start: int, end: int | None, length: int | None) -> int:
    if end is None and length is None:
        raise ValueError("expected end= or length= of a range")
    stop = start + (length or 0) if end is None else end
    if not 0 <= start < stop:
        raise ValueError(f"expected a range of one byte at least, got [{start}, {stop})")
    return stop


def _checked(path: str, start: int, data: bytes) -> bytes:
    if not data:
        raise ValueError(f"{path!r} ends before byte {start}, where the range begins")
    return data


def _meta(path: str, size: int) -> Meta:
    return {"path": path, "last_modified": UNKNOWN, "size": size, "e_tag": None, "version": None}
