"""The objects of a hierarchy, changed one by one: each is put whole or removed, by who may say what it replaces.

Local files: written aside, made durable and renamed into place, under an advisory lock of the hierarchy's directory.
S3: one PUT, with ``If-Match`` or ``If-None-Match`` where the writer knows what was there, so that the store decides.
In memory: under a lock of this process. Others are asked for their version just before: somebody may write in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import IO, Any, Final, NamedTuple

from fsspec.asyn import sync
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.errors import ConflictError, SourceNotReachable
from refshard_fs.model import Facts
from refshard_fs.policy import locator
from refshard_fs.targets.draft import is_draft, replacing
from refshard_fs.targets.failures import as_failure
from refshard_fs.targets.local import facts_of
from refshard_fs.targets.pool import AT_HAND, Given
from refshard_fs.targets.s3 import is_s3fs
from refshard_fs.targets.store import opened

__all__ = ["ABSENT", "Absent", "Condition", "Fetched", "Objects", "is_version"]

LARGE: Final = 8 << 20  # bytes; objects of more are read and sent by way of a temporary file
PIECE: Final = 1 << 20

Buffer = bytes | memoryview


class Absent(Enum):
    """The condition that there is no such object yet."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT

Condition = Facts | Absent | None  # what an object must be to be replaced; None: whatever it is


class Fetched(NamedTuple):
    """The bytes of an object, and which version of it they are."""

    data: Buffer
    facts: Facts


class Objects:
    """The objects below ``url``; ``given`` is a filesystem, or the options of one. Any thread may use it."""

    def __init__(self, url: str, given: Given) -> None:
        self.url = url.rstrip("/")
        self.url_of = locator(self.url)
        self._fs, root = opened(self.url, given)
        self._root = root.rstrip("/")

    @property
    def is_at_hand(self) -> bool:
        """Whether to ask for a version takes no request."""
        return isinstance(self._fs, LocalFileSystem | MemoryFileSystem)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other commits out, of this and of other processes, where that can be done."""
        match self._fs:
            case MemoryFileSystem():
                with _in_memory:
                    yield
            case LocalFileSystem():
                os.makedirs(self._root, exist_ok=True)
                with _flock(self._root):
                    yield
            case _:
                yield

    # ------------------------------------------------------------------ reading

    def fetch(self, name: str) -> Fetched | None:
        """Return the object ``name``, with one request; None if there is none."""
        path = self._path(name)
        try:
            match self._fs:
                case LocalFileSystem():
                    return _fetch_local(path)
                case MemoryFileSystem():
                    answer = AT_HAND[MemoryFileSystem].read_now(path, 0, None)
                    return None if answer is None else Fetched(answer.data, Facts(answer.size, answer.etag))
                case fs if is_s3fs(fs):
                    return _fetch_s3(fs, path)
            return _fetch_any(self._fs, path)
        except FileNotFoundError:
            return None

    def facts(self, name: str) -> Facts | None:
        """Return what tells the version of the object ``name`` from others; None if there is none."""
        return _facts(self._fs, self._path(name))

    def names(self, prefix: str) -> list[str]:
        """Return the names of all objects below the directory ``prefix`` (empty: of all)."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(self._path(prefix))
        except FileNotFoundError:
            return []
        stem = len(self._root) + 1
        return sorted(path[stem:] for path in map(str, found) if not is_draft(path))

    # ------------------------------------------------------------------ writing

    def check(self, name: str, condition: Condition) -> None:
        """Raise ConflictError if the object ``name`` is known to be another than ``condition`` says."""
        if condition is not None and not is_s3fs(self._fs):
            _check(_facts(self._fs, self._path(name)), condition, self.url_of(name))

    def put(self, name: str, parts: Sequence[Buffer], condition: Condition = None) -> Facts | None:
        """Let the object ``name`` be ``parts``, one after the other; return what is then known of its version.

        Raises ConflictError, and changes nothing, if it is not what ``condition`` says.
        """
        path = self._path(name)
        match self._fs:
            case LocalFileSystem():
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with replacing(path, check=lambda: self.check(name, condition), durable=True) as file:
                    for part in parts:
                        file.write(part)
                return facts_of(os.stat(path))
            case MemoryFileSystem():
                self.check(name, condition)
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._fs.pipe_file(path, b"".join(parts))
                return _facts(self._fs, path)
            case fs if is_s3fs(fs):
                return self._put_s3(name, path, parts, condition)
        self.check(name, condition)
        if sum(map(len, parts)) <= LARGE:
            self._fs.pipe_file(path, b"".join(parts))
        else:
            with tempfile.TemporaryDirectory() as folder:
                draft = os.path.join(folder, "object")
                with open(draft, "wb") as file:
                    file.writelines(parts)
                self._fs.put_file(draft, path)
        return None

    def remove(self, name: str, condition: Condition = None) -> None:
        """Let there be no object ``name``; one that is not there is none already.

        Raises ConflictError, and changes nothing, if it is not what ``condition`` says.
        """
        path = self._path(name)
        self.check(name, condition)
        if not is_s3fs(self._fs):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(path)
            return
        fs: Any = self._fs
        bucket, key, _ = fs.split_path(path)
        try:
            fs.call_s3("delete_object", Bucket=bucket, Key=key, **_when(condition))
        except OSError as e:
            if condition is None or _status(e) not in (409, 412):
                raise
            raise _conflict(self.url_of(name), condition) from e
        fs.invalidate_cache(path)

    def sweep(self, names: Iterable[str]) -> None:
        """Remove what killed processes left beside the objects ``names``; only while the `lock` is held."""
        if not isinstance(self._fs, LocalFileSystem):
            return
        for folder in {os.path.dirname(self._path(name)) for name in names}:
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    if is_draft(entry.name):
                        os.unlink(entry.path)

    def tidy(self, names: Iterable[str]) -> None:
        """Remove the directories of the objects ``names`` that are empty, where there are directories."""
        if not isinstance(self._fs, LocalFileSystem):
            return
        for folder in sorted({os.path.dirname(self._path(name)) for name in names}, reverse=True):
            while len(folder) > len(self._root):
                try:
                    os.rmdir(folder)
                except OSError:
                    break
                folder = os.path.dirname(folder)

    def _put_s3(self, name: str, path: str, parts: Sequence[Buffer], condition: Condition) -> Facts | None:
        fs: Any = self._fs
        when = _when(condition)
        try:
            answer = sync(fs.loop, _put_object, fs, path, parts, when)
        except Exception as e:  # of botocore, which is not ours to import; raised again unless it is a conflict
            if not when or _status(e) not in (404, 409, 412):
                raise _as_os_error(e) from e
            there = self.fetch(name)
            if there is None or not _is(there.data, parts):
                raise _conflict(self.url_of(name), condition) from e
            return there.facts  # it was written, and the answer to that was lost
        fs.invalidate_cache(path)
        return Facts(sum(map(len, parts)), answer.get("ETag"))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


_in_memory = threading.RLock()


@contextlib.contextmanager
def _flock(path: str) -> Iterator[None]:
    try:
        import fcntl  # not on Windows
    except ImportError:
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------ versions


def _facts(fs: Any, path: str) -> Facts | None:
    try:
        match fs:
            case LocalFileSystem():
                return facts_of(os.stat(path))
            case MemoryFileSystem():
                answer = AT_HAND[MemoryFileSystem].read_now(path, 0, 0)
                return None if answer is None else Facts(answer.size, answer.etag)
            case _ if is_s3fs(fs):
                bucket, key, _ = fs.split_path(path)
                head = fs.call_s3("head_object", Bucket=bucket, Key=key)
                return Facts(head["ContentLength"], head.get("ETag"))
        fs.invalidate_cache()
        info = fs.info(path)
    except FileNotFoundError:
        return None
    etag = info.get("ETag") or info.get("etag") or info.get("e_tag") or info.get("md5")
    modified = info.get("LastModified") or info.get("last_modified") or info.get("mtime") or info.get("created")
    return Facts(info.get("size"), None if etag is None else str(etag), None if modified is None else str(modified))


def _check(found: Facts | None, condition: Condition, url: str) -> None:
    match condition, found:
        case (None, _) | (Absent(), None):
            return
        case Facts(), Facts() if is_version(condition, found):
            return
    raise _conflict(url, condition)


def _when(condition: Condition) -> dict[str, str]:
    """Return what S3 is told of the version to replace."""
    match condition:
        case None | Facts(etag=None):
            return {}
        case Facts(etag=str(etag)):
            return {"IfMatch": etag}
    return {"IfNoneMatch": "*"}


def is_version(one: Facts, other: Facts) -> bool:
    """Whether both are of one version of an object, as far as they tell."""
    if one.etag is not None and other.etag is not None:
        return one.etag.strip('"') == other.etag.strip('"')
    return one.size == other.size and one.last_modified == other.last_modified


def _conflict(url: str, condition: Condition) -> ConflictError:
    what = "was not there" if isinstance(condition, Absent) else "was another one"
    return ConflictError(f"{url} {what} when it was read, and somebody else has written it since")


def _is(data: Buffer, parts: Sequence[Buffer]) -> bool:
    at = 0
    for part in parts:
        if data[at : at + len(part)] != part:
            return False
        at += len(part)
    return at == len(data)


# ------------------------------------------------------------------ moving bytes


def _fetch_local(path: str) -> Fetched:
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


def _fetch_any(fs: AbstractFileSystem, path: str) -> Fetched:
    facts = _facts(fs, path)
    if facts is None:
        raise FileNotFoundError(path)
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "object")
        fs.get_file(path, copy)
        with open(copy, "rb") as file:
            data = _mapped(file) if os.path.getsize(copy) > LARGE else file.read()
    if facts.size is not None and len(data) != facts.size:
        raise SourceNotReachable(f"{path} has {facts.size} bytes, and {len(data)} were read")
    return Fetched(data, facts)


def _fetch_s3(fs: Any, path: str) -> Fetched:
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


async def _put_object(fs: Any, path: str, parts: Sequence[Buffer], when: dict[str, str]) -> dict[str, Any]:
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


def _as_os_error(error: Exception) -> OSError:
    from s3fs.errors import translate_boto_error  # it is there: its filesystem is what failed

    return as_failure(translate_boto_error(error))


def _status(error: Exception) -> int | None:
    for e in (error, error.__cause__):
        response: Any = getattr(e, "response", None)
        if isinstance(response, dict):
            status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status
    return None
