"""Keys as fsspec shows them: info, listings, files for reading or writing, and for zarr 2 a mutable mapping.

Listings never build a table of all keys.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from fsspec.asyn import AbstractAsyncStreamedFile, AsyncFileSystem
from fsspec.mapping import FSMap
from fsspec.spec import AbstractBufferedFile

from refshard_fs.core.keys import join
from refshard_fs.core.keyspace import Listing
from refshard_fs.core.model import Directories, Entry, Facts, Inline, Listed, Span, Stat, Steps, answer_from_listing
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import ReferenceNotReachable, TargetChanged, sanitize
from refshard_fs.reading.failures import name_key
from refshard_fs.reading.plan import Request
from refshard_fs.source.source import Source
from refshard_fs.targets import parse_time

KIND = ("file", "directory")


async def info(source: Source, key: str, known: Directories | None = None) -> dict[str, Any]:
    """Return fsspec's dict for ``key``: its name, type and size. Raise FileNotFoundError if it does not exist.

    The size is the number of bytes that a whole read returns. ``known``: the directories of objects at and below the
    key, if the caller has listed them.

    If a chunk manifest marks a key as missing, the key can be neither read nor listed: its type is "other", with
    ``"empty": True``.
    """
    keyspace = await source.keyspace()
    if key:
        entry = await source.look_up(key, keyspace.lookup(key))
        if entry is not None:
            size = entry.size
            if size is None:
                size = await _measure(source, key, entry)
            if size is not None:
                return {"name": key, "size": size, "type": "file"}
    root = key if keyspace.url_of is None else keyspace.url_of(key)
    if not key or await source.look_up(key, answer_from_listing(keyspace.is_directory(key), root, known)):
        return {"name": key, "size": 0, "type": "directory"}
    if await source.look_up(key, keyspace.is_empty(key)):
        return {"name": key, "size": 0, "type": "other", "empty": True}
    raise FileNotFoundError(key)


async def ls(source: Source, key: str, *, detail: bool) -> list[Any]:
    """List the children of the directory ``key``, or ``key`` itself if it is a file."""
    keyspace = await source.keyspace()
    children = await source.look_up(key, keyspace.children(key))
    if children is None:
        if not key:
            return []
        known = await info(source, key)
        if known.get("empty"):
            raise FileNotFoundError(key)
        return [known] if detail else [key]
    if not detail and isinstance(children, Listing) and children.stem == (key + "/" if key else ""):
        return children.paths  # half the time for a million chunks, because no dicts are made
    found = _make_infos(key, children)
    return found if detail else [entry["name"] for entry in found]


def _make_infos(prefix: str, children: Sequence[Listed]) -> list[dict[str, Any]]:
    """Convert the children of ``prefix`` to fsspec's dicts."""
    stem = prefix + "/" if prefix else ""
    match children:
        case Listing(stem=given, paths=paths, sizes=sizes) if given == stem:
            return [{"name": path, "size": size, "type": "file"} for path, size in zip(paths, sizes, strict=True)]
    return [
        {"name": stem + c.name, "size": 0 if c.is_directory else c.size, "type": KIND[c.is_directory]} for c in children
    ]


async def find(source: Source, key: str, *, maxdepth: int | None, withdirs: bool) -> dict[str, dict[str, Any]]:
    """Return all files below ``key``, sorted by name, or ``key`` alone for a file; ``withdirs`` adds directories."""
    if maxdepth is not None and maxdepth < 1:
        raise ValueError(f"invalid maxdepth={maxdepth}: expected at least 1, or None for all levels")
    keyspace = await source.keyspace()
    known = await source.look_up(key, keyspace.list_directories(key)) if maxdepth is None else None
    root = key if keyspace.url_of is None else keyspace.url_of(key)
    # Listing the arrays needs their documents: they are read with those of the first level, in one round.
    documents = [] if known is None or keyspace.url_of is None else _find_documents(known, key, keyspace.url_of)
    out: dict[str, dict[str, Any]] = {}
    level, depth = [key], 0
    while level and depth != maxdepth:
        below: list[str] = []
        steps: list[Steps[Any]] = [answer_from_listing(keyspace.children(name), root, known) for name in level]
        if depth == 0:
            steps += [keyspace.lookup(name) for name in documents]
        for name, found in zip(level, await source.engine().run_all(steps), strict=False):
            if isinstance(found, Exception):
                raise name_key(name, found) from found
            for entry in _make_infos(name, found or ()):
                is_directory = entry["type"] == "directory"
                if is_directory:
                    below.append(entry["name"])
                if withdirs or not is_directory:
                    out[entry["name"]] = entry
            if depth == 0 and key and found is None:
                with contextlib.suppress(FileNotFoundError):
                    own = await info(source, key, known)
                    out |= {} if own.get("empty") else {key: own}
            elif depth == 0 and key and withdirs:
                out[key] = {"name": key, "size": 0, "type": "directory"}
        level, depth = below, depth + 1
    return {name: out[name] for name in sorted(out)}


def _find_documents(known: Directories, key: str, url_of: Callable[[str], str]) -> list[str]:
    """Return the keys of the metadata documents in the listed directories below ``key``."""
    found: list[str] = []
    level = [key]
    while level:
        listed = [(join(path, one.name), one.is_directory) for path in level for one in known.get(url_of(path), ())]
        if level != [key]:
            found += [name for name, is_directory in listed if not is_directory and is_metadata(name)]
        level = [name for name, is_directory in listed if is_directory]
    return found


async def _measure(source: Source, key: str, entry: Entry) -> int | None:
    """Return the size of ``key`` from its target, or by a read; return None if an optional object does not exist."""
    if not isinstance(entry, Span):
        return len(await source.read(Request(key)))
    facts = await source.look_up(key, _stat(Stat(entry.url, origin=entry.origin)))
    if facts is None:
        if entry.optional:
            return None
        raise ReferenceNotReachable(key, entry.url, "the object does not exist")
    size = None if facts.size is None else entry.resolve_end(facts.size).size
    return len(await source.read(Request(key))) if size is None else size


def _stat(need: Stat) -> Steps[Facts | None]:
    facts: Facts | None = yield need
    return facts


async def ukey(source: Source, key: str) -> str:
    """Return a hash of the ranges of ``key`` and the current versions of their targets."""
    entry = await _look_up(source, key)
    facts: object = await info(source, key) if entry is None else (entry, await _stat_targets(source, key, entry))
    return sha256(repr(facts).encode()).hexdigest()


async def read_modification_time(source: Source, key: str) -> datetime:
    """Return the last modification time of the targets of ``key``, or of the source if it has the bytes itself.

    NotImplementedError if none of these has one.
    """
    entry = await _look_up(source, key)
    if entry is None:
        known = await info(source, key)
        raise NotImplementedError(f"{key!r} is a {known['type']}, which has no modification time")
    fo = source.options.source
    if isinstance(entry, Inline) and isinstance(fo, str):
        entry = Span(fo, 0, None)
    versions = await _stat_targets(source, key, entry)
    times = [parse_time(facts.last_modified) for facts in versions if isinstance(facts, Facts) and facts.last_modified]
    latest = max((when for when in times if when is not None), default=None)
    if latest is None:
        raise NotImplementedError(f"no target of {key!r} has a modification time")
    return datetime.fromtimestamp(latest, UTC)


async def _look_up(source: Source, key: str) -> Entry | None:
    if not key:
        return None
    keyspace = await source.keyspace()
    return await source.look_up(key, keyspace.lookup(key))


async def _stat_targets(source: Source, key: str, entry: Entry) -> list[Facts | str | None]:
    """Return the facts of each target of ``entry``; for a target that has changed since it was read, the reason."""
    found: list[Facts | str | None] = []
    spans = entry.spans
    for url, origin in dict.fromkeys((span.url, span.origin) for span in spans):
        try:
            found.append(await source.look_up(key, _stat(Stat(url, fresh=True, origin=origin))))
        except TargetChanged as e:
            found.append(e.reason)
    return found


class RefShardFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec is untyped
    """A key as a read-only file."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data


class StreamedFile(AbstractAsyncStreamedFile):  # type: ignore[misc]  # fsspec is untyped
    """A key as a read-only file with coroutines, for callers on an event loop."""

    async def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = await self.fs._cat_file(self.path, start, end)
        return data


class WrittenFile(io.BytesIO):
    """A file for writing a key: closing it writes the content to the key, unless its ``with`` block raised an error."""

    def __init__(self, fs: AsyncFileSystem, key: str, content: bytes, *, at_end: bool) -> None:
        super().__init__(content)
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
        """Do nothing: fsspec's transactions call this for each file, but here a commit writes all keys together."""

    def discard(self) -> None:
        """Drop the content, and leave the key unchanged."""
        self._fs = None

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            self._fs = None
        super().__exit__(kind, *rest)

    def __del__(self) -> None:
        fs, self._fs = self._fs, None
        if fs is not None:  # the file was never closed, so its content may be incomplete
            message = f"the file {sanitize(self.path)!r} was opened for writing and never closed: its content is lost"
            warnings.warn(message, RuntimeWarning, stacklevel=2)


class RefShardMap(FSMap):  # type: ignore[misc]  # fsspec is untyped
    """Keys as a mutable mapping like fsspec's, but safe under zarr 2; a key is never a pattern.

    zarr 2 returns the fill value for a chunk if reading it raises an OSError. So a failed read raises
    `ReferenceNotReachable`, which is not an OSError, whatever ``on_error`` says.
    """

    def __getitem__(self, key: str, default: Any = None) -> Any:
        try:
            return self.fs.cat_file(self._key_to_str(key))
        except self.missing_exceptions as e:
            if default is not None:
                return default
            raise KeyError(key) from e
        except OSError as e:
            raise _make_not_reachable(key, e) from e

    def getitems(self, keys: Iterable[str], on_error: str = "raise") -> dict[str, Any]:
        keys = list(keys)
        out: dict[str, Any] = {}
        values = self.fs.cat_ranges([self._key_to_str(key) for key in keys], None, None, on_error="return")
        for key, value in zip(keys, values, strict=True):
            if isinstance(value, self.missing_exceptions):
                if on_error == "raise":
                    raise KeyError(key)
                if on_error == "return":
                    out[key] = KeyError(key)
            elif isinstance(value, OSError):
                raise _make_not_reachable(key, value) from value
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


def _make_not_reachable(key: str, error: OSError) -> ReferenceNotReachable:
    return ReferenceNotReachable(key, str(getattr(error, "filename", None) or "its target"), str(error))
