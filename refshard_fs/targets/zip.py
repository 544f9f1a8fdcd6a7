"""Read the members of a ZIP archive at another target (``zip://member::URL``) as objects.

The archive's directory is read once. A stored member is a range of the archive, so any number of members are read at
once. A compressed member is inflated whole, and kept for a while if only parts of it are requested. fsspec's filesystem
for archives is the *fallback* for valid archives that this module refuses.
"""

from __future__ import annotations

import asyncio
import functools
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import fsspec
from fsspec.implementations.zip import ZipFileSystem

from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Entry, Facts, Inline, Listed, Packed, Span, Steps, clamp
from refshard_fs.errors import ManifestError, ReferenceNotReachable, TargetChanged
from refshard_fs.formats.zip.directory import TAIL, End, Member, parse_directory, parse_tail
from refshard_fs.formats.zip.source import ZipKeySpace, make_local_header
from refshard_fs.targets.answer import Answer, Target, check, check_size
from refshard_fs.targets.failures import NOT_FOUND, Unreadable
from refshard_fs.targets.generic import run_in_thread, share_task
from refshard_fs.targets.versioned import VersionedObject

T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Awaitable[Any]])

# Bytes of inflated members that an event loop keeps. Without them, each read of a part would fetch and inflate the
# whole member. fsspec reads larger members as streams.
MOST_INFLATED = 1 << 27
_MAX_ENTRIES: Final = 4096  # the most entries of members that are remembered: finding an entry may take a request


class InflatedMembers:
    """The last inflated members of all archives of one event loop."""

    def __init__(self) -> None:
        self._tasks: LRU[tuple[str, str, int], asyncio.Task[Answer]] = LRU(MOST_INFLATED)

    def get(self, archive: str, member: str, size: int, inflate: Callable[[], Any]) -> Awaitable[Answer]:
        """Return the bytes of a member of ``size`` bytes; if they are not kept, call ``inflate``, and keep them."""
        key = archive, member, size
        task = self._tasks.get(key)
        tasks = {} if task is None else {key: task}
        answer = share_task(tasks, key, inflate)
        self._tasks.put(key, tasks[key], min(size, MOST_INFLATED))  # the last member is kept, even if it is larger
        return answer


def _with_fallback(method: M) -> M:
    """Make ``method`` call the same method of the fallback, if there is one, when it refuses an archive or a member."""

    @functools.wraps(method)
    async def answer(self: ZipTarget, path: str, *arguments: Any, **options: Any) -> Any:
        try:
            return await method(self, path, *arguments, **options)
        except ManifestError as refusal:
            if self._fallback is None:
                raise
            try:
                return await getattr(self._fallback, method.__name__)(_find_first_link(path), *arguments, **options)
            except NOT_FOUND:
                raise
            except Exception:  # noqa: BLE001  # fsspec's error, which says less than ours
                raise refusal from None

    return answer  # type: ignore[return-value]  # it has the signature of `method`


class ZipTarget(Target):
    """The members of one archive, by their whole URLs.

    ``fallback`` reads archives that are refused here (None: there is no fallback).
    """

    most_retries = 0  # the archive's own target tries again
    logs_requests = True  # the archive's target logs requests

    def __init__(
        self, archive: VersionedObject, path: str, url: str, inflated: InflatedMembers, fallback: Target | None
    ) -> None:
        self.tells_versions = archive.target.tells_versions
        self._archive = archive
        self._path = path
        self._url = url
        self._inflated = inflated
        self._fallback = fallback
        self._opened: dict[str, asyncio.Task[tuple[ZipKeySpace, Facts]]] = {}
        self._entries: dict[str, asyncio.Task[Entry | None]] = {}

    async def close(self) -> None:
        for task in (*self._opened.values(), *self._entries.values()):
            task.cancel()
        if self._fallback is not None:
            await self._fallback.close()

    @_with_fallback
    async def get_facts(self, path: str) -> Facts:
        member, _, opened = await self._find(path)
        return _get_member_facts(member, opened)

    @_with_fallback
    async def get_current_facts(self, path: str) -> Facts:
        member, _, _ = await self._find(path)
        return _get_member_facts(member, await self._archive.target.get_current_facts(self._path))

    @_with_fallback
    async def list_names(self, path: str) -> tuple[Listed, ...]:
        keyspace, _ = await self._open()
        name = _find_member(path)
        found = await self._run(keyspace.children(name))
        if found is None:
            raise NotADirectoryError(path) if keyspace.find_member(name) else FileNotFoundError(path)
        return tuple(found)

    # The directory.

    async def _open(self) -> tuple[ZipKeySpace, Facts]:
        """Return the archive's members, and the facts of the archive."""
        return await share_task(self._opened, "", self._read_directory)

    async def _read_directory(self) -> tuple[ZipKeySpace, Facts]:
        facts = await self._archive.get_facts(self._path)
        size = facts.size
        if size is None:
            raise Unreadable(
                f"expected the size of the ZIP at {self._url} from its server, to find the directory at its end, got "
                "none: put 'simplecache::' before its URL"
            )
        tail = await self._read_range(max(size - TAIL, 0), size)  # some servers do not support ranges from the end
        found = parse_tail(tail.data, self._url, size)
        if isinstance(found, End):
            end = found
            directory = await self._read_range(end.start, end.start + end.size)
            found = await run_in_thread(lambda: parse_directory(directory.data, self._url, end))
        return ZipKeySpace(self._url, Span(self._url, 0, size), found), facts

    async def _find(self, path: str) -> tuple[Member, Entry, Facts]:
        """Return a member as the directory describes it, the entry of its bytes, and the facts of the archive."""
        keyspace, opened = await self._open()
        name = _find_member(path)
        member = keyspace.find_member(name)
        if len(self._entries) >= _MAX_ENTRIES:
            self._entries.clear()
        entry = (
            None if member is None else await share_task(self._entries, name, lambda: self._find_entry(keyspace, name))
        )
        if member is None or entry is None:
            if await self._run(keyspace.is_directory(name)):
                raise IsADirectoryError(path)
            raise FileNotFoundError(path)
        return member, entry, opened

    async def _find_entry(self, keyspace: ZipKeySpace, name: str) -> Entry | None:
        try:
            return await self._run(keyspace.lookup(name))
        except TargetChanged:
            raise
        except ReferenceNotReachable as e:
            raise Unreadable(f"the member {name!r} of the ZIP at {self._url}: {e.reason}") from e

    async def _run(self, steps: Steps[T]) -> T:
        """Run ``steps``, which need only ranges of the archive, and return their result."""
        answer: Any = None
        while True:
            try:
                need: Any = steps.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]  # the result of the steps
            found = await self._read_range(need.entry.start, need.entry.stop)
            try:
                answer = need.index.decode(found.data)
            except ValueError as e:
                raise self._make_damage_error(e) from e

    async def _read_range(self, start: int, stop: int) -> Answer:
        answer = await self._archive.read(self._path, start, stop)
        check(answer, start, stop, exact=True)
        return answer

    # The bytes of a member.
    @_with_fallback
    async def read(
        self, path: str, start: int, stop: int | None, etag: str | None = None, most: int | None = None
    ) -> Answer:
        member, entry, opened = await self._find(path)
        begin, end = clamp(start, stop, member.size)
        is_whole = end - begin == member.size
        if stop is None:
            check_size(end - begin, most)
        if begin == end:
            return Answer(b"", _get_member_facts(member, opened))
        match entry:
            case Span() if is_whole and member.head:  # its local header was not read: read it with the bytes
                found = await self._read_range(member.local, entry.start + end)
                data = self._check_member(_find_member(path), member, found.data)
            case Span():
                found = await self._read_range(entry.start + begin, entry.start + end)
                data = found.data
                if is_whole:
                    self._check_sum(_find_member(path), member, data)
            case Packed() if is_whole:
                found = await self._inflate(entry)
                data = found.data
            case Packed() if member.size > MOST_INFLATED and self._fallback is not None:
                return await self._fallback.read(_find_first_link(path), start, stop)
            case Packed():
                found = await self._inflated.get(self._url, path, member.size, lambda: self._inflate(entry))
                data = found.data[begin:end]
            case Inline():
                raise AssertionError("only members of an archive in memory are inline")
        return Answer(data, _get_member_facts(member, found.facts))

    def _check_member(self, name: str, member: Member, raw: bytes) -> bytes:
        """Return the bytes of a stored member; ``raw`` is its local header and these bytes."""
        try:
            begin = make_local_header(name, member).decode(raw)
        except ValueError as e:
            raise self._make_damage_error(f"{name!r}: {e}") from e
        if begin != member.head:
            found = f"the local header of {name!r} has {begin} bytes"
            raise self._make_damage_error(f"{found}: expected {member.head}, as the directory permits")
        self._check_sum(name, member, raw[begin:])
        return raw[begin:]

    def _check_sum(self, name: str, member: Member, data: bytes) -> None:
        if (crc := zlib.crc32(data)) != member.crc:
            raise self._make_damage_error(f"expected the CRC-32 {member.crc:08x} of {name!r}, got {crc:08x}")

    async def _inflate(self, entry: Packed) -> Answer:
        (source,) = entry.spans
        found = await self._read_range(source.start, source.stop or 0)
        try:
            data = await run_in_thread(lambda: entry.finish([found.data]))
        except ValueError as e:
            raise self._make_damage_error(e) from e
        assert data is not None, "the archive exists"
        return Answer(data, found.facts)

    def _make_damage_error(self, what: object) -> Unreadable:
        return Unreadable(f"a member of the ZIP at {self._url} is damaged: {what}. Fetch the archive again")


def _get_member_facts(member: Member, archive: Facts) -> Facts:
    """Return the facts of a member, which has the version of its archive."""
    return Facts(member.size, archive.etag, archive.last_modified)


def _find_first_link(url: str) -> str:
    """Return the first link of a chain."""
    return url.partition("::")[0]


def _find_member(url: str) -> str:
    """Return the member that the first link of a chain names, or ``""`` for the root."""
    first = _find_first_link(url)
    return str(ZipFileSystem._strip_protocol(first)) if "://" in first else ""


def needs_fsspec(options: Mapping[str, Any], others: Sequence[str]) -> bool:
    """Return whether fsspec must open a chain: if ``options`` are not only for ``others``, the links below the ZIP.

    It must, too, if the user has registered another class for ``zip``.
    """
    return fsspec.get_filesystem_class("zip") is not ZipFileSystem or not options.keys() <= set(others)
