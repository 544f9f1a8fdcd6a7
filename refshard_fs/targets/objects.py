"""The objects below a URL, changed one by one: each is put whole or removed, by who may say which version it replaces.

Local files: written under another name, made durable and renamed into place, under an advisory lock of the directory.
S3: one PUT, with ``If-Match`` or ``If-None-Match`` where the writer knows what was there, so that the store decides.
In memory: under a lock of this process. Others are asked for their version just before: somebody may write in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mmap
import os
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from glob import has_magic
from typing import IO, Any, Final, NamedTuple

import fsspec
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.forks import in_child
from refshard_fs.core.model import Facts
from refshard_fs.errors import ConflictError, SourceNotReachable
from refshard_fs.security.policy import locator
from refshard_fs.targets.generic import protocols_of, version_in
from refshard_fs.targets.local import draft_of, facts_of, in_memory, is_draft, locked, replacing, sync_file
from refshard_fs.targets.pool import IMMEDIATE, Given
from refshard_fs.targets.s3 import as_os_error, is_s3fs, os_errors

# ----------------------------------------------------------------------------------------------------
# Whole objects on their way: fetched complete or not at all, sent without being in memory twice.


LARGE: Final = 8 << 20  # bytes; objects of more are read and sent by way of a temporary file
PIECE: Final = 1 << 20

Buffer = bytes | memoryview


class Fetched(NamedTuple):
    """The bytes of an object, and which version of it they are."""

    data: Buffer
    facts: Facts


def fetch_local(path: str) -> Fetched:
    """Return a local file, of which nobody may have written a part meanwhile."""
    with open(path, "rb") as file:
        facts = facts_of(os.fstat(file.fileno()))
        size = facts.size or 0
        if size <= LARGE:
            data: Buffer = file.read()
        else:
            with tempfile.TemporaryFile() as copy:
                while piece := file.read(PIECE):
                    copy.write(piece)
                data = _mapped(copy)
        if len(data) != size:
            raise SourceNotReachable(f"{path} had {size} bytes, and {len(data)} were read: somebody writes it in place")
        return Fetched(data, facts)


def fetch_any(fs: AbstractFileSystem, path: str, facts: Facts) -> Fetched:
    """Return an object of any filesystem, which was just asked for its ``facts``."""
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "object")
        fs.get_file(path, copy)
        with open(copy, "rb") as file:
            data = _mapped(file) if os.path.getsize(copy) > LARGE else file.read()
    if facts.size is not None and len(data) != facts.size:
        raise SourceNotReachable(f"{path} has {facts.size} bytes, and {len(data)} were read")
    return Fetched(data, facts)


def fetch_s3(fs: Any, path: str) -> Fetched:
    """Return an object of S3, with one request."""
    bucket, key, _ = fs.split_path(path)

    async def fetch() -> Fetched:
        answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
        size: int = answer["ContentLength"]
        async with answer["Body"] as body:
            if size <= LARGE:
                data: Buffer = await body.read()
            else:
                with tempfile.TemporaryFile() as copy:
                    while piece := await body.read(PIECE):
                        copy.write(piece)
                    data = _mapped(copy)
        if len(data) != size:
            raise SourceNotReachable(f"s3://{path} has {size} bytes, and {len(data)} came")
        return Fetched(data, Facts(size, answer.get("ETag")))

    fetched: Fetched = sync(fs.loop, fetch)
    return fetched


def sum_of(parts: Iterable[Buffer]) -> bytes:
    """Return what tells ``parts``, one after the other, from all other bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.digest()


async def put_s3(fs: Any, path: str, parts: Sequence[Buffer], when: dict[str, str]) -> dict[str, Any]:
    """Put an object of S3 on the conditions ``when``, with one request, and return the answer."""
    bucket, key, _ = fs.split_path(path)
    await fs.set_session()
    client = await fs.get_s3(bucket)
    members = client.meta.service_model.operation_model("PutObject").input_shape.members
    extra = {k: v for k, v in {**fs.s3_additional_kwargs, **fs.req_kw}.items() if k in members and v is not None}
    given = {**extra, **when, "Bucket": bucket, "Key": key}
    if sum(map(len, parts)) <= LARGE:
        answer: dict[str, Any] = await client.put_object(**given, Body=b"".join(parts))
        return answer
    with tempfile.TemporaryFile() as file:  # botocore sends it from the start again where it tries again
        await asyncio.to_thread(_write, file, parts)
        answer = await client.put_object(**given, Body=file)
        return answer


def _write(file: IO[bytes], parts: Sequence[Buffer]) -> None:
    file.writelines(parts)
    file.seek(0)


def _mapped(file: IO[bytes]) -> Buffer:
    """Return the content of ``file``, a copy of our own that nobody cuts short, without taking memory for it."""
    file.flush()
    if not os.fstat(file.fileno()).st_size:
        return b""
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


_RENAME_OVER: Final = frozenset(["ftp", "sftp", "ssh"])  # have directories, and rename a file over another
SYNCED_ONE_BY_ONE: Final = 64  # files; to sync more of them takes longer than to sync the whole system
_BOUND: Final = ("asynchronous", "loop", "skip_instance_cache")  # what ties an instance to an event loop


# ------------------------------------------------------------------ versions


class Absent(Enum):
    """The condition that there is no such object yet."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT

Condition = Facts | Absent | None  # what an object must be to be replaced; None: whatever it is


def is_version(one: Facts, other: Facts) -> bool:
    """Whether both are of one version of an object, as far as they tell."""
    if one.etag is not None and other.etag is not None:
        return one.etag.strip('"') == other.etag.strip('"')
    return one.size == other.size and one.last_modified == other.last_modified


def _as_headers(condition: Condition) -> dict[str, str]:
    """Return what S3 is told of the version to replace."""
    match condition:
        case Facts(etag=str(etag)):
            return {"IfMatch": etag}
        case Absent():
            return {"IfNoneMatch": "*"}
    return {}


def _conflict(url: str, condition: Condition) -> ConflictError:
    what = "was not there" if isinstance(condition, Absent) else "was another one"
    return ConflictError(f"{url} {what} when it was read, and somebody else has written it since")


# ------------------------------------------------------------------ locks of hierarchies that are not local


_locks: Final[dict[str, threading.Lock]] = {}  # by URL

in_child(_locks.clear)


# ------------------------------------------------------------------ objects


class Objects:
    """The objects below ``url``; ``given`` is a filesystem, or the options of one. Any thread may use it.

    The filesystem is opened at the first use, and again in a forked process. The name ``""`` is the URL itself.
    """

    def __init__(self, url: str, given: Given) -> None:
        self.url = url.rstrip("/")
        self._url_of = locator(self.url)
        self._given = given
        self._opened: tuple[int, AbstractFileSystem, str] | None = None

    def url_of(self, name: str) -> str:
        """Return the URL of the object ``name``."""
        return self._url_of(name) if name else self.url

    def name_of(self, url: str) -> str | None:
        """Return the name of the object at ``url``; None if it is not below this one."""
        return url[len(self.url) + 1 :] if url.startswith(self.url + "/") else None

    @property
    def fs(self) -> AbstractFileSystem:
        """The filesystem, which any thread may call."""
        return self._open()[0]

    @property
    def is_immediate(self) -> bool:
        """Whether requests need neither a network nor an event loop."""
        return type(self.fs) in (LocalFileSystem, MemoryFileSystem)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other commits of this process out; from local files, those of all processes of this machine."""
        match self.fs:
            case MemoryFileSystem():
                with in_memory():
                    yield
            case LocalFileSystem():
                folder = self.path("")
                os.makedirs(folder, exist_ok=True)
                with locked(folder):
                    yield
            case _:
                with _locks.setdefault(self.url, threading.Lock()):
                    yield

    def path(self, name: str) -> str:
        """Return the path of the object ``name`` in the filesystem."""
        root = self._open()[1]
        return f"{root}/{name}" if name else root

    def _open(self) -> tuple[AbstractFileSystem, str]:
        known = self._opened
        if known is None or known[0] != os.getpid():
            fs, path = _opened(self.url, self._given)
            known = self._opened = os.getpid(), fs, path.rstrip("/")
        return known[1], known[2]

    # ------------------------------------------------------------------ reading

    @os_errors()
    def fetch(self, name: str) -> Fetched | None:
        """Return the object ``name``, with one request; None if there is none."""
        path = self.path(name)
        try:
            match self.fs:
                case LocalFileSystem():
                    return fetch_local(path)
                case MemoryFileSystem():
                    answer = IMMEDIATE[MemoryFileSystem].read_now(path, 0, None)
                    return None if answer is None else Fetched(answer.data, Facts(answer.size, answer.etag))
                case fs if is_s3fs(fs):
                    return fetch_s3(fs, path)
            facts = _facts(self.fs, path)
            return None if facts is None else fetch_any(self.fs, path, facts)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @os_errors()
    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the objects ``names``, all requested at once."""
        paths = {self.path(name): name for name in names}
        if any(map(has_magic, paths)):  # `cat` would take such a name for a pattern
            found = dict(zip(paths, self.fs.cat_ranges(list(paths), None, None, on_error="raise"), strict=True))
        else:
            found = self.fs.cat(list(paths)) if paths else {}
        return {paths[path]: data for path, data in found.items()}

    @os_errors()
    def facts(self, name: str) -> Facts | None:
        """Return what tells the version of the object ``name`` from others; None if there is none."""
        return _facts(self.fs, self.path(name))

    @os_errors()
    def found(self, below: str) -> dict[str, Facts]:
        """Return all objects below the directory ``below`` (empty: all there are), by name, as listings tell them.

        Drafts of killed writers are not among them.
        """
        fs, root = self._open()
        fs.invalidate_cache()
        try:
            found = fs.find(self.path(below), detail=True)
        except FileNotFoundError:
            return {}
        stem = len(root) + 1
        objects = ((str(path), info) for path, info in found.items() if info.get("type") != "directory")
        return {path[stem:]: _told(info) for path, info in sorted(objects) if not is_draft(path)}

    # ------------------------------------------------------------------ writing

    def check(self, name: str, condition: Condition) -> None:
        """Raise ConflictError if the object ``name`` is known to be another than ``condition`` says."""
        if condition is None:
            return
        found = _facts(self.fs, self.path(name))
        if found is None or isinstance(condition, Absent):
            is_met = found is None and isinstance(condition, Absent)
        else:
            is_met = is_version(condition, found)
        if not is_met:
            raise _conflict(self.url_of(name), condition)

    @os_errors()
    def put(
        self, name: str, parts: Sequence[Buffer], condition: Condition = None, *, durable: bool = True
    ) -> Facts | None:
        """Let the object ``name`` be ``parts``, one after the other; return what is then known of its version.

        Raises ConflictError, and changes nothing, if it is not what ``condition`` says. Local files are on the disk
        when this returns, if they are to be ``durable``.
        """
        path = self.path(name)
        match self.fs:
            case LocalFileSystem():
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with replacing(path, check=lambda: self.check(name, condition), durable=durable) as file:
                    file.writelines(parts)
                return facts_of(os.stat(path))
            case MemoryFileSystem() as fs:
                self.check(name, condition)
                fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                fs.pipe_file(path, b"".join(parts))
                return _facts(fs, path)
            case fs if is_s3fs(fs):
                return self._put_s3(name, path, parts, condition)
        if not _RENAME_OVER.isdisjoint(protocols_of(self.fs)):
            with self._draft_of(path) as draft:
                self._send(draft, parts)
                self.check(name, condition)
                self.fs.mv(draft, path)
        else:
            self.check(name, condition)
            try:
                self._send(path, parts)
            except FileNotFoundError:  # there are directories, such as pyarrow's, and not this one yet
                self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._send(path, parts)
        return None

    @contextlib.contextmanager
    def _draft_of(self, path: str) -> Iterator[str]:
        """Give the name of a file that is to take the place of ``path``; it is removed where that fails."""
        fs, draft = self.fs, draft_of(path)
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            yield draft
        except BaseException:
            with contextlib.suppress(Exception):  # the error that matters is the first
                fs.rm_file(draft)
            raise

    def _send(self, path: str, parts: Sequence[Buffer]) -> None:
        if sum(map(len, parts)) <= LARGE:
            self.fs.pipe_file(path, b"".join(parts))
            return
        with tempfile.TemporaryDirectory() as folder:
            whole = os.path.join(folder, "object")
            with open(whole, "wb") as file:
                file.writelines(parts)
            self.fs.put_file(whole, path)

    def make_durable(self, urls: Iterable[str]) -> None:
        """Return when the objects at ``urls``, which were put before, are on the disk, if they are local."""
        if type(self.fs) is not LocalFileSystem:
            return
        paths = [self.path(name) for name in map(self.name_of, urls) if name is not None]
        if len(paths) > SYNCED_ONE_BY_ONE and hasattr(os, "sync"):
            os.sync()
            return
        for path in [*paths, *{os.path.dirname(path) for path in paths}]:
            sync_file(path)

    @os_errors()
    def copy(self, name: str, new: str) -> None:
        """Copy the object ``name`` to ``new``, whole or not at all."""
        if type(self.fs) is LocalFileSystem:
            self.put(new, (self.fs.cat_file(self.path(name)),))
        else:
            self.fs.cp_file(self.path(name), self.path(new))

    @os_errors()
    def remove(self, name: str, condition: Condition = None) -> None:
        """Let there be no object ``name``; one that is not there, whatever it was, is none already.

        Raises ConflictError, and changes nothing, if it is not what ``condition`` says.
        """
        path = self.path(name)
        if not is_s3fs(self.fs):
            if condition is not None and self.facts(name) is None:
                return
            self.check(name, condition)
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(path)
            return
        fs: Any = self.fs
        bucket, key, _ = fs.split_path(path)
        try:
            fs.call_s3("delete_object", Bucket=bucket, Key=key, **_as_headers(condition))
        except OSError as e:
            if condition is None or _status(e) not in (404, 409, 412):
                raise
            if self.facts(name) is not None:
                raise _conflict(self.url_of(name), condition) from e
        fs.invalidate_cache(path)  # it is gone: also where it was removed, and the answer to that was lost

    def remove_all(self, names: Iterable[str]) -> None:
        """Remove the objects ``names``, and directories that are empty then, as far as that can be done."""
        names = list(names)
        paths = [self.path(name) for name in names]
        if not paths:
            return
        alone = [path for path in paths if has_magic(path)]  # `rm` would take them for patterns
        together = [path for path in paths if not has_magic(path)]
        try:
            if together:
                with os_errors():
                    self.fs.rm(together)
        except OSError:
            alone = paths  # one that is gone does not keep the others
        for path in alone:
            with contextlib.suppress(OSError), os_errors():
                self.fs.rm_file(path)
        self.tidy(names)

    def sweep(self, names: Iterable[str]) -> None:
        """Remove what killed processes left beside the objects ``names``; only while the `lock` is held."""
        if not isinstance(self.fs, LocalFileSystem):
            return
        for folder in {os.path.dirname(self.path(name)) for name in names}:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                for entry in entries:
                    if is_draft(entry.name):
                        os.unlink(entry.path)

    def tidy(self, names: Iterable[str]) -> None:
        """Remove the directories of the objects ``names`` that are empty, where there are directories."""
        fs, root = self._open()
        if not isinstance(fs, LocalFileSystem):
            return
        for folder in sorted({os.path.dirname(self.path(name)) for name in names}, reverse=True):
            while len(folder) >= len(root):
                try:
                    os.rmdir(folder)
                except OSError:
                    break
                folder = os.path.dirname(folder)

    def _put_s3(self, name: str, path: str, parts: Sequence[Buffer], condition: Condition) -> Facts | None:
        fs: Any = self.fs
        when = _as_headers(condition)
        if not when:
            self.check(name, condition)
        try:
            answer = sync(fs.loop, put_s3, fs, path, parts, when)
        except Exception as e:  # of botocore, which is not ours to import; raised again unless it is a conflict
            if not when or _status(e) not in (404, 409, 412):
                raise as_os_error(e) from e
            there = self.fetch(name)
            if there is None or not _is(there.data, parts):
                raise _conflict(self.url_of(name), condition) from e
            return there.facts  # it was written, and the answer to that was lost
        fs.invalidate_cache(path)
        return Facts(sum(map(len, parts)), answer.get("ETag"))


def _opened(url: str, given: Given) -> tuple[AbstractFileSystem, str]:
    """Return a filesystem that any thread may call, and the path of ``url`` there, by an instance or options."""
    if not isinstance(given, AbstractFileSystem):
        fs, path = fsspec.core.url_to_fs(url, **given)
        return fs, str(path)
    fs = given
    while type(fs) is AsyncFileSystemWrapper:
        fs = fs.sync_fs
    path = str(fs._strip_protocol(url))
    if isinstance(fs, AsyncFileSystem) and fs.asynchronous:
        options = {name: value for name, value in fs.storage_options.items() if name not in _BOUND}
        fs = type(fs)(*fs.storage_args, **options)
    return fs, path


def _facts(fs: Any, path: str) -> Facts | None:
    try:
        match fs:
            case LocalFileSystem():
                found = os.stat(path)
                return None if stat.S_ISDIR(found.st_mode) else facts_of(found)
            case MemoryFileSystem():
                answer = IMMEDIATE[MemoryFileSystem].read_now(path, 0, 0)
                return None if answer is None else Facts(answer.size, answer.etag, answer.last_modified)
            case _ if is_s3fs(fs):
                bucket, key, _ = fs.split_path(path)
                head = fs.call_s3("head_object", Bucket=bucket, Key=key)
                return Facts(head["ContentLength"], head.get("ETag"))
        fs.invalidate_cache()
        return _told(fs.info(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _told(info: Mapping[str, Any]) -> Facts:
    """Return what fsspec's description of an object tells of its version."""
    return Facts(info.get("size"), *version_in(info))


def _is(data: Buffer, parts: Sequence[Buffer]) -> bool:
    at = 0
    for part in parts:
        if data[at : at + len(part)] != part:
            return False
        at += len(part)
    return at == len(data)


def _status(error: Exception) -> int | None:
    """Return the status of the answer of S3 that ``error`` tells of."""
    for e in (error, error.__cause__):
        response: Any = getattr(e, "response", None)
        if isinstance(response, dict):
            status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status
    return None
