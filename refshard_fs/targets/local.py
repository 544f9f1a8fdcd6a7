"""Read local files, ``memory://`` and ``data:`` URLs without an event loop.

``pread`` reads from at most `OPEN_FILES` open files, without another thread, a seek or a buffer. Files are not mapped
into memory: that would save little of the 10 µs that a chunk takes, and the process dies if a mapped file is truncated.
"""

from __future__ import annotations

import base64
import binascii
import errno
import itertools
import os
import re
import stat
import threading
import uuid
import weakref
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs.core.keys import is_within
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import OWN, Facts, Listed
from refshard_fs.targets.answer import Answer, ImmediateTarget, check_size
from refshard_fs.targets.failures import Unreadable

# Names of drafts: files beside the file that they will replace (see `stores.drafts`).


_DRAFT = re.compile(r"\.[0-9a-f]{32}\.tmp$")


def make_draft_name(path: str) -> str:
    """Return a new name beside ``path`` for a draft of it."""
    return f"{path}.{uuid.uuid4().hex}.tmp"


def is_draft(path: str) -> bool:
    """Return whether ``path`` is a draft, of a writer that is at work or was killed."""
    return path.endswith(".tmp") and _DRAFT.search(path) is not None


OPEN_FILES = 64  # the most files that a target holds open


def _identify(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_size


def facts_of(status: os.stat_result) -> Facts:
    """Return the size of a file, and a version that changes when it is written or replaced."""
    inode, changed, size = _identify(status)
    return Facts(size, f"{OWN}{inode:x}-{changed:x}-{size:x}", str(changed / 1e9))


def _list_entry(entry: os.DirEntry[str]) -> Listed | None:
    """Return ``entry`` for a listing; None for a draft, a pipe, a broken link, or a file that was just removed."""
    if is_draft(entry.name):
        return None
    try:
        if entry.is_dir():
            return None if entry.is_symlink() and _makes_cycle(entry) else Listed(entry.name, None, True)
        found = entry.stat()
    except FileNotFoundError:
        return None
    except OSError:  # a link to itself, or into a closed directory: reading it raises an error
        return Listed(entry.name, None)
    is_file = stat.S_ISREG(found.st_mode)
    return Listed(entry.name, found.st_size, last_modified=str(found.st_mtime_ns / 1e9)) if is_file else None


class _File:
    """An open file, closed when its last reader drops it."""

    __slots__ = ("descriptor", "facts", "identity", "lock", "size")

    def __init__(self, path: str, *, follows: bool = True) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, _READ) if follows else _open_without_links(path)
        found = os.fstat(self.descriptor)
        _check_is_file(found, path)
        self.identity = _identify(found)
        self.facts = facts_of(found)
        self.size = found.st_size
        self.lock = threading.Lock()

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


_READ: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_STEP: Final = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)


def _check_is_file(found: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(path)
    if not stat.S_ISREG(found.st_mode):
        raise Unreadable(f"expected a file at {path}, found a pipe or a device: copy its content to a file")


def _open_without_links(path: str) -> int:
    """Open an absolute path without following links: another user may put a link there after the path was checked."""
    if os.open not in os.supports_dir_fd:  # Windows: few users have the right to make links
        return os.open(path, _READ)
    *steps, name = path.strip("/").split("/")
    at = os.open("/", _STEP)
    try:
        for step in steps:
            deeper = _enter(step, _STEP, at)
            os.close(at)
            at = deeper
        return _enter(name or ".", _READ | os.O_NONBLOCK, at)
    finally:
        os.close(at)


def _enter(name: str, flags: int, at: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=at)
    except OSError as e:
        if stat.S_ISLNK(os.lstat(name, dir_fd=at).st_mode):
            raise Unreadable(f"{name} became a symbolic link after its path was checked: open the set again") from e
        raise


def _seek_and_read(file: _File, length: int, start: int) -> bytes:
    with file.lock:
        os.lseek(file.descriptor, start, os.SEEK_SET)
        return os.read(file.descriptor, length)


def _pread(file: _File, length: int, start: int) -> bytes:
    return os.pread(file.descriptor, length, start)


_read_at = _pread if hasattr(os, "pread") else _seek_and_read  # Windows has no pread


class LocalTarget(ImmediateTarget):
    """Local files, by the operating system's paths. Unless it ``follows`` links, a link in a path is an error."""

    def __init__(self, *, follows: bool = True) -> None:
        self.fs = LocalFileSystem()
        self._follows = follows
        self._files: LRU[str, _File] = LRU(OPEN_FILES)

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer:
        file = self._open_file(path)
        size = file.size
        if stop is None:
            check_size(size, most)
        if start < 0:
            start = max(size + start, 0)
        length = (size if stop is None or stop > size else stop) - start
        data = b"" if length <= 0 else _read_at(file, length, start)
        if 0 < len(data) < length:
            data = _read_rest(file, data, start, length)
        return Answer(data, file.facts)

    def read_into(self, path: str, start: int, buffer: memoryview) -> Facts | None:
        if not hasattr(os, "preadv"):  # Windows and macOS before 11
            return None
        file = self._open_file(path)
        got = 0
        while got < len(buffer):  # one call reads at most 2 GiB on Linux
            count = os.preadv(file.descriptor, [buffer[got:]], start + got)
            if not count:
                return None
            got += count
        return file.facts

    async def get_facts(self, path: str) -> Facts:
        if not self._follows:
            return self._open_file(path).facts
        found = _stat(path)
        _check_is_file(found, path)
        return facts_of(found)

    async def list_names(self, path: str) -> tuple[Listed, ...] | None:
        _stat(path)
        if self._follows:
            return _list(path)
        directory = _open_without_links(path)
        try:
            return _list(directory)
        finally:
            os.close(directory)

    async def close(self) -> None:
        self._files.clear()

    def _open_file(self, path: str) -> _File:
        found = _stat(path)
        file = self._files.get(path)
        if file is not None and file.identity == _identify(found):
            return file
        _check_is_file(found, path)  # opening a pipe may block for ever
        file = _File(path, follows=self._follows)
        self._files.put(path, file)
        return file


def _stat(path: str) -> os.stat_result:
    """Return the status of ``path``. FileNotFoundError if a name in it is longer than the file system permits."""
    try:
        return os.stat(path)
    except OSError as e:
        if e.errno == errno.ENAMETOOLONG and os.path.isabs(path) and not _may_exist(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from e
        raise


def _may_exist(path: str) -> bool:
    """Return whether an absolute ``path`` that is too long for one call may exist: enter one directory after another.

    A path of more than 4,096 bytes is too long for a call, but its file may exist. A longer name than a file system
    permits cannot exist.
    """
    if os.stat not in os.supports_dir_fd:
        return True
    *steps, name = path.strip("/").split("/")
    at = os.open("/", _STEP)
    try:
        for step in steps:
            deeper = os.open(step or ".", _STEP, dir_fd=at)
            os.close(at)
            at = deeper
        os.stat(name, dir_fd=at)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as e:
        return e.errno != errno.ENAMETOOLONG
    finally:
        os.close(at)
    return True


def _list(directory: str | int) -> tuple[Listed, ...]:
    with os.scandir(directory) as entries:
        return tuple(filter(None, map(_list_entry, sorted(entries, key=lambda entry: entry.name))))


def _makes_cycle(link: os.DirEntry[str]) -> bool:
    """Return whether ``link`` leads to a directory that contains it: a recursive listing would never end."""
    if not os.path.isabs(link.path):
        return False
    target, directory = os.path.realpath(link.path), os.path.dirname(link.path)
    if is_within(os.path.realpath(directory), target):
        return True
    while os.path.realpath(directory) != target:
        if directory == os.path.dirname(directory):
            return False
        directory = os.path.dirname(directory)
    return True


def _read_rest(file: _File, data: bytes, start: int, length: int) -> bytes:
    """Append the missing bytes to ``data``: one call reads at most 2 GiB on Linux."""
    parts = [data]
    got = len(data)
    while got < length and parts[-1]:
        parts.append(_read_at(file, length - got, start + got))
        got += len(parts[-1])
    return b"".join(parts)


# The files of ``memory://``, read as slices of their buffers.


class MemoryTarget(ImmediateTarget):
    """The files of `MemoryFileSystem`, which all its instances share."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next = itertools.count(1)

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer:
        file = self._open_file(path)
        view = file.getbuffer()
        try:
            size = len(view)
            if stop is None:
                check_size(size, most)
            data = bytes(view[start:stop])
        finally:
            view.release()  # the file cannot grow while a view of it exists
        return Answer(data, self._make_facts(file, size))

    async def get_facts(self, path: str) -> Facts:
        file = self._open_file(path)
        return self._make_facts(file, file.getbuffer().nbytes)

    async def list_names(self, path: str) -> tuple[Listed, ...] | None:
        rows = self.fs.ls(path, detail=True)
        if [row["name"] for row in rows if row["type"] == "file"] == [path]:
            raise NotADirectoryError(path)
        named = (
            Listed(name, None, True)
            if row["type"] == "directory"
            else Listed(name, row["size"], last_modified=str(self._open_file(row["name"]).modified.timestamp()))
            for row in rows
            for name in (row["name"].rpartition("/")[2],)
        )
        return tuple(sorted(named, key=lambda listed: listed.name))

    def _open_file(self, path: str) -> Any:
        try:
            return self.fs.store[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def _make_facts(self, file: Any, size: int) -> Facts:
        number = self._numbers.get(file)
        if number is None:  # `setdefault` keeps the first thread's number without a lock, which a fork may leave locked
            number = self._numbers.setdefault(file, next(self._next))
        modified = str(file.modified.timestamp())
        return Facts(size, f"{OWN}{number}-{modified}-{size}", modified)


# ``data:`` URLs (RFC 2397): the URL contains the object.


class DataTarget(ImmediateTarget):
    """Objects in ``data:`` URLs. A path is the part of the URL behind ``data:``."""

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer:
        data = _decode(path)
        if stop is None:
            check_size(len(data), most)
        return Answer(data[start:stop], Facts(len(data)))

    async def get_facts(self, path: str) -> Facts:
        return Facts(len(_decode(path)))


def _decode(path: str) -> bytes:
    kind, comma, text = path.partition(",")
    if not comma:
        raise Unreadable("expected a comma before the data of a data: URL, got none")
    data = unquote_to_bytes(text)
    if not kind.endswith(";base64"):
        return data
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as e:
        raise Unreadable(f"expected base64 in a data: URL, got damaged data ({e})") from e
