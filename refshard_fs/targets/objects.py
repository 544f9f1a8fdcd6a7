"""The objects of a hierarchy, changed one by one: each is put whole or removed, by who may say what it replaces.

Local files: written aside, made durable and renamed into place, under an advisory lock of the hierarchy's directory.
S3: one PUT, with ``If-Match`` or ``If-None-Match`` where the writer knows what was there, so that the store decides.
In memory: under a lock of this process. Others are asked for their version just before: somebody may write in between.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fsspec.asyn import sync
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs.core.model import Facts
from refshard_fs.security.policy import locator
from refshard_fs.targets.document import ABSENT, Absent, Condition, as_headers, check, conflict, is_version
from refshard_fs.targets.local import facts_of, in_memory, is_draft, locked, replacing
from refshard_fs.targets.pool import AT_HAND, Given
from refshard_fs.targets.s3 import as_os_error, is_s3fs, speaking
from refshard_fs.targets.store import LARGE, Fetched, fetch_any, fetch_local, fetch_s3, opened, put_s3
from refshard_fs.targets.store import Buffer_transfers as Buffer

__all__ = ["ABSENT", "Absent", "Condition", "Fetched", "Objects", "is_version"]


class _Lock:
    def __init__(self) -> None:
        self.lock = threading.Lock()


_locks: weakref.WeakValueDictionary[str, _Lock] = weakref.WeakValueDictionary()  # by URL of a hierarchy on a server
_locks_guard = threading.Lock()


def _after_fork() -> None:
    global _locks_guard
    _locks_guard = threading.Lock()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
        """Keep other commits of this process out; to local files, those of all processes of this machine."""
        match self._fs:
            case MemoryFileSystem():
                with in_memory():
                    yield
            case LocalFileSystem():
                os.makedirs(self._root, exist_ok=True)
                with locked(self._root):
                    yield
            case _:
                with _locks_guard:
                    lock = _locks.get(self.url)
                    if lock is None:
                        lock = _locks[self.url] = _Lock()
                with lock.lock:
                    yield

    # ------------------------------------------------------------------ reading

    @speaking()
    def fetch(self, name: str) -> Fetched | None:
        """Return the object ``name``, with one request; None if there is none."""
        path = self._path(name)
        try:
            match self._fs:
                case LocalFileSystem():
                    return fetch_local(path)
                case MemoryFileSystem():
                    answer = AT_HAND[MemoryFileSystem].read_now(path, 0, None)
                    return None if answer is None else Fetched(answer.data, Facts(answer.size, answer.etag))
                case fs if is_s3fs(fs):
                    return fetch_s3(fs, path)
            facts = _facts(self._fs, path)
            return None if facts is None else fetch_any(self._fs, path, facts)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @speaking()
    def facts(self, name: str) -> Facts | None:
        """Return what tells the version of the object ``name`` from others; None if there is none."""
        return _facts(self._fs, self._path(name))

    def names(self, prefix: str) -> list[str]:
        """Return the names of all objects below the directory ``prefix`` (empty: of all)."""
        return sorted(self.found(prefix))

    @speaking()
    def found(self, prefix: str) -> dict[str, Facts]:
        """Return all objects below the directory ``prefix`` (empty: all there are), by name, as listings tell them.

        Drafts of killed writers are not among them.
        """
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(self._path(prefix), detail=True)
        except FileNotFoundError:
            return {}
        stem = len(self._root) + 1
        objects = ((str(path), info) for path, info in found.items() if info.get("type") != "directory")
        return {path[stem:]: _told(info) for path, info in objects if not is_draft(path)}

    # ------------------------------------------------------------------ writing

    def check(self, name: str, condition: Condition) -> None:
        """Raise ConflictError if the object ``name`` is known to be another than ``condition`` says."""
        if condition is not None and not is_s3fs(self._fs):
            check(_facts(self._fs, self._path(name)), condition, self.url_of(name))

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

    @speaking()
    def remove(self, name: str, condition: Condition = None) -> None:
        """Let there be no object ``name``; one that is not there, whatever it was, is none already.

        Raises ConflictError, and changes nothing, if it is not what ``condition`` says.
        """
        path = self._path(name)
        if not is_s3fs(self._fs):
            if condition is not None and self.facts(name) is None:
                return
            self.check(name, condition)
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(path)
            return
        fs: Any = self._fs
        bucket, key, _ = fs.split_path(path)
        try:
            fs.call_s3("delete_object", Bucket=bucket, Key=key, **as_headers(condition))
        except OSError as e:
            if condition is None or _status(e) not in (404, 409, 412):
                raise
            if self.facts(name) is not None:
                raise conflict(self.url_of(name), condition) from e
        fs.invalidate_cache(path)  # it is gone: also where it was removed, and the answer to that was lost

    def sweep(self, names: Iterable[str]) -> None:
        """Remove what killed processes left beside the objects ``names``; only while the `lock` is held."""
        if not isinstance(self._fs, LocalFileSystem):
            return
        for folder in {os.path.dirname(self._path(name)) for name in names}:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
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
        when = as_headers(condition)
        try:
            answer = sync(fs.loop, put_s3, fs, path, parts, when)
        except Exception as e:  # of botocore, which is not ours to import; raised again unless it is a conflict
            if not when or _status(e) not in (404, 409, 412):
                raise as_os_error(e) from e
            there = self.fetch(name)
            if there is None or not _is(there.data, parts):
                raise conflict(self.url_of(name), condition) from e
            return there.facts  # it was written, and the answer to that was lost
        fs.invalidate_cache(path)
        return Facts(sum(map(len, parts)), answer.get("ETag"))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


# ------------------------------------------------------------------ versions


def _facts(fs: Any, path: str) -> Facts | None:
    try:
        match fs:
            case LocalFileSystem():
                found = os.stat(path)
                return None if stat.S_ISDIR(found.st_mode) else facts_of(found)
            case MemoryFileSystem():
                answer = AT_HAND[MemoryFileSystem].read_now(path, 0, 0)
                return None if answer is None else Facts(answer.size, answer.etag)
            case _ if is_s3fs(fs):
                bucket, key, _ = fs.split_path(path)
                head = fs.call_s3("head_object", Bucket=bucket, Key=key)
                return Facts(head["ContentLength"], head.get("ETag"))
        fs.invalidate_cache()
        return _told(fs.info(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _told(info: dict[str, Any]) -> Facts:
    """Return what fsspec's description of an object tells of its version."""
    etag = info.get("ETag") or info.get("etag") or info.get("e_tag") or info.get("md5")
    modified = info.get("LastModified") or info.get("last_modified") or info.get("mtime") or info.get("created")
    return Facts(info.get("size"), None if etag is None else str(etag), None if modified is None else str(modified))


def _is(data: Buffer, parts: Sequence[Buffer]) -> bool:
    at = 0
    for part in parts:
        if data[at : at + len(part)] != part:
            return False
        at += len(part)
    return at == len(data)


def _status(error: Exception) -> int | None:
    for e in (error, error.__cause__):
        response: Any = getattr(e, "response", None)
        if isinstance(response, dict):
            status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status
    return None
