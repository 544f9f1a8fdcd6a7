"""`ObspecStore`: the keys of a source as a store with obspec's methods, which obstore's stores have, too.

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

PAGE: Final = 1000  # keys in each list that `ObspecStore.list` yields
UNKNOWN_TIME: Final = datetime.fromtimestamp(0, UTC)  # obspec's listings need a time of modification; keys have none

Meta = dict[str, Any]  # obspec's ObjectMeta


class NotSupportedError(Exception):
    """The store does not have the operation; the name is obspec's."""


class Result(msgspec.Struct, frozen=True):
    """The bytes of an object, or of a range of it: obspec's `GetResult` and `GetResultAsync`."""

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
    """Show the keys of a source as a read-only object store, for libraries that take stores of obstore or obspec.

    ``source`` and ``options`` are the arguments of `RefShardFileSystem`; or ``source`` is a `RefShardFileSystem`. The
    store reads chunks as the filesystem does. So it also has chunks that are not ranges of an object, such as decoded
    or joined chunks; VirtualiZarr reads these chunks from the store if the store is in its registry. Objects have no
    ETags, and their time of modification is always 1970: conditions on ETags or times raise NotSupportedError.
    FileNotFoundError means only that the key does not exist.

    >>> import refshard_fs
    >>> store = refshard_fs.ObspecStore({"a/0": "abcdef"})
    >>> store.get_range("a/0", start=2, end=4), [meta["path"] for part in store.list() for meta in part]
    (b'cd', ['a/0'])
    """

    def __init__(self, source: Any, **options: Any) -> None:
        is_filesystem = isinstance(source, RefShardFileSystem)
        if is_filesystem and options:
            raise TypeError(
                f"expected no options beside a filesystem, got {', '.join(options)}: pass them when you make the "
                "filesystem"
            )
        self.fs: RefShardFileSystem = source if is_filesystem else RefShardFileSystem(source, **options)

    def __repr__(self) -> str:
        return f"<ObspecStore of {self.fs!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObspecStore) and self.fs.is_alike(other.fs)

    __hash__ = None  # type: ignore[assignment]  # its keys may change

    def get(self, path: str, *, options: Mapping[str, Any] | None = None) -> Result:
        """Return an object, or the range of it in ``options["range"]``; only its metadata with ``options["head"]``."""
        return self._wait(self.get_async, path, options=options)

    async def get_async(self, path: str, *, options: Mapping[str, Any] | None = None) -> Result:
        """Return an object, or the range of it in ``options["range"]``; only its metadata with ``options["head"]``."""
        options = {name: value for name, value in (options or {}).items() if value is not None}
        if unknown := options.keys() - {"range", "head"}:
            raise NotSupportedError(
                f"expected only the options 'range' and 'head', got {', '.join(sorted(unknown))}: the keys of a source "
                "have no ETags and no times of modification"
            )
        bounds = options.get("range")
        if bounds is None and not options.get("head"):
            data = await self.fs._cat_file(path)
            return Result(data, _make_meta(path, len(data)), (0, len(data)))
        meta = await self.head_async(path)
        size = meta["size"]
        match bounds:
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
                    f"invalid range {bounds!r}: expected (start, end), {{'offset': start}} or {{'suffix': length}}"
                )
        if options.get("head"):
            return Result(b"", meta, (start, start))
        return Result(await self.get_range_async(path, start=start, end=stop), meta, (start, min(stop, size)))

    def get_range(self, path: str, *, start: int, end: int | None = None, length: int | None = None) -> bytes:
        """Return a range of an object, or the part of it before the object's end; ValueError if that is empty."""
        return _check_not_empty(path, start, self.fs.cat_file(path, start, _find_end(start, end, length)))

    async def get_range_async(
        self, path: str, *, start: int, end: int | None = None, length: int | None = None
    ) -> bytes:
        """Return a range of an object, or the part of it before the object's end; ValueError if that is empty."""
        return _check_not_empty(path, start, await self.fs._cat_file(path, start, _find_end(start, end, length)))

    def get_ranges(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> list[bytes]:
        """Read several ranges of one object together."""
        return self._wait(self.get_ranges_async, path, starts=starts, ends=ends, lengths=lengths)

    async def get_ranges_async(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> list[bytes]:
        """Read several ranges of one object together."""
        absent = [None] * len(starts)
        ranges = zip(starts, ends or absent, lengths or absent, strict=True)
        key = self.fs._strip_protocol(path)
        requests = [Request(key, start, _find_end(start, end, length)) for start, end, length in ranges]
        out: list[bytes] = []
        for start, data in zip(starts, await self.fs.source.read_all(requests), strict=True):
            if isinstance(data, BaseException):
                raise data
            out.append(_check_not_empty(path, start, data))
        return out

    def head(self, path: str) -> Meta:
        """Return the metadata of an object, without reading its bytes."""
        return self._wait(self.head_async, path)

    async def head_async(self, path: str) -> Meta:
        """Return the metadata of an object, without reading its bytes."""
        info = await self.fs._info(path)
        if info["type"] != "file":
            raise FileNotFoundError(path)
        return _make_meta(path, info["size"])

    def list(self, prefix: str | None = None, *, offset: str | None = None) -> Iterator[Sequence[Meta]]:
        """Yield lists of the objects below ``prefix``; with ``offset``, only of keys that sort after it."""
        objects = self._wait(self._find, prefix, offset)
        return (objects[first : first + PAGE] for first in range(0, len(objects), PAGE))

    async def list_async(
        self, prefix: str | None = None, *, offset: str | None = None
    ) -> AsyncIterator[Sequence[Meta]]:
        """Yield lists of the objects below ``prefix``; with ``offset``, only of keys that sort after it."""
        objects = await self._find(prefix, offset)
        for first in range(0, len(objects), PAGE):
            yield objects[first : first + PAGE]

    def list_with_delimiter(self, prefix: str | None = None) -> dict[str, Sequence[Any]]:
        """Return the objects and the directories directly below ``prefix``."""
        return self._wait(self.list_with_delimiter_async, prefix)

    async def list_with_delimiter_async(self, prefix: str | None = None) -> dict[str, Sequence[Any]]:
        """Return the objects and the directories directly below ``prefix``."""
        directory = self.fs._strip_protocol(prefix or "")
        try:
            rows = await files.ls(self.fs.source, directory, detail=True)
        except FileNotFoundError:
            rows = []
        rows = [row for row in rows if row["name"] != directory]  # `files.ls` lists a key as itself
        objects = [await self._find_meta(row) for row in rows if row["type"] == "file"]
        return {"common_prefixes": [row["name"] for row in rows if row["type"] == "directory"], "objects": objects}

    async def _find(self, prefix: str | None, offset: str | None) -> Any:
        directory = self.fs._strip_protocol(prefix or "")
        rows = await self.fs._find(directory, detail=True)
        names = [name for name in rows if name != directory and (offset is None or name > offset)]
        return [await self._find_meta(rows[name]) for name in names]

    async def _find_meta(self, row: Mapping[str, Any]) -> Meta:
        """Return the metadata of an object in a listing; find its size if the listing does not have it."""
        return await self.head_async(row["name"]) if row["size"] is None else _make_meta(row["name"], row["size"])

    def _wait(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **named: Any) -> T:
        return self.fs.source.wait(partial(function, **named), *arguments)


def _find_end(start: int, end: int | None, length: int | None) -> int:
    if end is None and length is None:
        raise ValueError("a range needs its end: pass end= or length=")
    stop = start + (length or 0) if end is None else end
    if not 0 <= start < stop:
        raise ValueError(f"expected a range of at least one byte, got start {start} and end {stop}")
    return stop


def _check_not_empty(path: str, start: int, data: bytes) -> bytes:
    if not data:
        raise ValueError(f"expected bytes from {start} on, but {path!r} has at most {start} bytes")
    return data


def _make_meta(path: str, size: int) -> Meta:
    return {"path": path, "last_modified": UNKNOWN_TIME, "size": size, "e_tag": None, "version": None}
