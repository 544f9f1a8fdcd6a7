"""What this machine holds, read without an event loop: local files, ``memory://`` and ``data:`` URLs.

Files are read with ``pread`` on a bounded pool of open ones: no thread hop, no seek, no buffer. Not memory-mapped:
measured, that saves a few microseconds of a chunk's ten or so, and a file that is cut short while it is mapped ends
the whole process.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import itertools
import os
import re
import shutil
import stat
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final
from urllib.parse import unquote_to_bytes

from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs.core.forks import fork_safe, in_child
from refshard_fs.core.keys import is_within
from refshard_fs.core.model import OWN, Facts, Listed
from refshard_fs.errors import told
from refshard_fs.targets.answer import Answer, ImmediateTarget, check_size
from refshard_fs.targets.failures import Unreadable

# ----------------------------------------------------------------------------------------------------
# A local file that takes its place when it is whole: written aside, made durable, renamed.


_DRAFT = re.compile(r"\.[0-9a-f]{32}\.tmp$")


def draft_of(path: str) -> str:
    """Return a name beside ``path`` for what is to take its place."""
    return f"{path}.{uuid.uuid4().hex}.tmp"


def is_draft(path: str) -> bool:
    """Whether ``path`` is a file that has not taken its place: of a writer who is at it, or who was killed."""
    return path.endswith(".tmp") and _DRAFT.search(path) is not None


@contextlib.contextmanager
def replacing(path: str, *, check: Callable[[], object] | None = None, durable: bool = False) -> Iterator[BinaryIO]:
    """Give a file that becomes ``path`` when the block ends without an error, and else disappears.

    ``check()`` is called just before; what it raises leaves ``path`` as it was. ``durable``: the file, and its name,
    are on the disk before and after that. ``path`` is replaced even if it is a link: `path_to_write` resolves those.
    Nobody may read the draft who may not read the file that it replaces.
    """
    draft = draft_of(path)
    mode = 0o666 if _replaced(path) is None else 0o600  # of a new file, the umask decides
    try:
        with open(os.open(draft, _DRAFT_FLAGS, mode), "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        _copy_mode(path, draft)
        if check is not None:
            check()
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise
    if durable:
        sync_file(os.path.dirname(path) or ".")


_DRAFT_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def _copy_mode(path: str, draft: str) -> None:
    """Let ``draft`` have the mode and the group of ``path``, if that exists."""
    found = _replaced(path)
    if found is None:
        return
    mode = stat.S_IMODE(found.st_mode) & 0o777
    if _HAS_OWNERS and os.stat(draft).st_gid != found.st_gid:
        try:
            os.chown(draft, -1, found.st_gid)
        except PermissionError:
            mode &= 0o707  # it has another group than the file had, whose members were not meant
    os.chmod(draft, mode)


def _replaced(path: str) -> os.stat_result | None:
    """Return what is known of the file or folder at ``path``; None of a link, and if there is none."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if stat.S_ISLNK(found.st_mode) else found


_HAS_OWNERS: Final = hasattr(os, "geteuid")  # Windows has rights of another kind
_MOST_LINKS: Final = 40  # in a path, as on Linux


def path_to_write(path: str, root: str | None = None) -> str:
    """Return where a write to ``path`` goes; it is the directory ``root`` or below it (by default: just that path).

    Links of the user and of the system lead to ``root``. Raises PermissionError at a link of another user there, who
    would choose what is overwritten, and at any link below: a hierarchy may come from elsewhere, links included.
    """
    if not _HAS_OWNERS:
        return os.path.realpath(path)
    root = path if root is None else root
    place = _without_links(root)
    for step in path[len(root) :].split("/")[1:-1]:
        place = os.path.join(place, step)
        if os.path.islink(place):
            raise PermissionError(
                f"{told(place)} is a symbolic link inside of what is written to: expected a folder. Nothing is written "
                f"or removed behind it; open {told(os.path.realpath(place))} itself if you mean that"
            )
    return os.path.join(place, os.path.basename(path)) if path != root else place


def _without_links(path: str) -> str:
    """Return ``path`` with its links resolved, all of which are the user's or the system's."""
    place, links = "/", 0
    left = os.path.abspath(path).split("/")[::-1]
    while left:
        step = left.pop()
        if step in ("", "."):
            continue
        if step == "..":
            place = os.path.dirname(place)
            continue
        place = os.path.join(place, step)
        try:
            found = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISLNK(found.st_mode):
            continue
        target = os.readlink(place)
        if found.st_uid not in (0, os.geteuid()):
            raise PermissionError(
                f"{told(place)} is a symbolic link of another user (number {found.st_uid}), which is not followed in "
                f"writing. Give the path that it leads to, {told(target)}, if you mean that"
            )
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        place = "/" if target.startswith("/") else os.path.dirname(place)
        left += target.split("/")[::-1]
    return place


def replace_directory(path: str, draft: str) -> None:
    """Let the directory ``draft``, which lies beside it, take the place of ``path``."""
    old = draft_of(path)
    _copy_mode(path, draft)
    os.rename(path, old)
    try:
        os.rename(draft, path)
    except BaseException:
        os.rename(old, path)
        raise
    shutil.rmtree(old)


def sync_file(path: str) -> None:
    """See that a file, or the names in a directory, are on the disk, where the platform lets one."""
    with contextlib.suppress(OSError):  # Windows opens no directories
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


OPEN_FILES = 64


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_size


def facts_of(found: os.stat_result) -> Facts:
    """Return what tells a version of a file from others."""
    inode, changed, size = _identity(found)
    return Facts(size, f"{OWN}{inode:x}-{changed:x}-{size:x}", str(changed / 1e9))


def _listed(entry: os.DirEntry[str]) -> Listed | None:
    """Return ``entry`` as it is listed; None of a draft, a pipe, a link to nowhere, and of what just went away."""
    if is_draft(entry.name):
        return None
    try:
        if entry.is_dir():
            return None if entry.is_symlink() and _leads_round(entry) else Listed(entry.name, None, True)
        found = entry.stat()
    except FileNotFoundError:
        return None
    except OSError:  # a link to itself, or into a directory that is closed: who reads it is told
        return Listed(entry.name, None)
    is_file = stat.S_ISREG(found.st_mode)
    return Listed(entry.name, found.st_size, last_modified=str(found.st_mtime_ns / 1e9)) if is_file else None


class _File:
    """An open descriptor; closed when the last reader lets go of it."""

    __slots__ = ("descriptor", "facts", "identity", "lock", "size")

    def __init__(self, path: str, *, follows: bool = True) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, _READ) if follows else _open_without_links(path)
        found = os.fstat(self.descriptor)
        _check_is_file(found, path)
        self.identity = _identity(found)
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
        raise Unreadable(f"{path} is a pipe or a device, not a file")


def _open_without_links(path: str) -> int:
    """Open an absolute path in which no step may be a link: somebody may put one there after it was looked at."""
    if os.open not in os.supports_dir_fd:  # Windows: links take rights there that few have
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
            raise Unreadable(f"{name} became a symbolic link while it was read") from e
        raise


def _seek_and_read(file: _File, length: int, start: int) -> bytes:
    with file.lock:
        os.lseek(file.descriptor, start, os.SEEK_SET)
        return os.read(file.descriptor, length)


def _pread(file: _File, length: int, start: int) -> bytes:
    return os.pread(file.descriptor, length, start)


_read_at = _pread if hasattr(os, "pread") else _seek_and_read  # Windows has none


class LocalTarget(ImmediateTarget):
    """The files of this machine; paths are as the operating system spells them."""

    def __init__(self, *, follows: bool = True) -> None:
        """``follows``: links in paths are followed. Else there are none, and one that appears is an error."""
        self._follows = follows
        self._lock = fork_safe(threading.Lock())
        self._files: OrderedDict[str, _File] = OrderedDict()

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer:
        file = self._file(path)
        size = file.size
        if stop is None:
            check_size(size, most)
        if start < 0:
            start = max(size + start, 0)
        length = (size if stop is None or stop > size else stop) - start
        data = b"" if length <= 0 else _read_at(file, length, start)
        if 0 < len(data) < length:
            data = _rest(file, data, start, length)
        return Answer(data, file.facts)

    async def facts(self, path: str) -> Facts:
        if not self._follows:
            return self._file(path).facts
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(path)
        return facts_of(found)

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        if self._follows:
            return _names(path)
        directory = _open_without_links(path)
        try:
            return _names(directory)
        finally:
            os.close(directory)

    async def close(self) -> None:
        with self._lock:
            self._files.clear()

    def _file(self, path: str) -> _File:
        found = os.stat(path)
        file = self._files.get(path)
        if file is not None and file.identity == _identity(found):
            if len(self._files) > OPEN_FILES // 2:  # else none will have to go soon
                with self._lock:
                    if path in self._files:
                        self._files.move_to_end(path)
            return file
        _check_is_file(found, path)  # to open a pipe may wait for ever
        file = _File(path, follows=self._follows)
        with self._lock:
            self._files[path] = file
            self._files.move_to_end(path)
            while len(self._files) > OPEN_FILES:
                self._files.popitem(last=False)
        return file


def _names(directory: str | int) -> tuple[Listed, ...]:
    with os.scandir(directory) as entries:
        return tuple(filter(None, map(_listed, sorted(entries, key=lambda entry: entry.name))))


def _leads_round(link: os.DirEntry[str]) -> bool:
    """Whether a link to a directory leads to one on the way to itself: who lists all would never end."""
    if not os.path.isabs(link.path):
        return False
    there, way = os.path.realpath(link.path), os.path.dirname(link.path)
    if is_within(os.path.realpath(way), there):
        return True
    while os.path.realpath(way) != there:
        if way == os.path.dirname(way):
            return False
        way = os.path.dirname(way)
    return True


def _rest(file: _File, data: bytes, start: int, length: int) -> bytes:
    """Return ``data`` with what is missing of it: one call returns at most 2 GiB on Linux."""
    parts = [data]
    got = len(data)
    while got < length and parts[-1]:
        parts.append(_read_at(file, length - got, start + got))
        got += len(parts[-1])
    return b"".join(parts)


# ----------------------------------------------------------------------------------------------------
# The lock of a local directory, for commits.
#
# An advisory lock belongs to an open file, which a forked process has as well: it is given up, not only closed, and the
# child closes its own at once. So a child that lives on holds no lock of a commit that ended, or of a parent that died.


_held: Final[set[int]] = set()  # descriptors of this process


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Hold the lock of a local directory, which is made if there is none, where the platform has such locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # who held the lock has just removed it
            continue
        _held.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, folder):
                yield
                return
        finally:
            if descriptor in _held:  # else it was closed: the lock is the parent's
                _held.discard(descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)


def _is_at(descriptor: int, folder: str) -> bool:
    """Whether an open directory is the one at ``folder``: who had its lock before may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False


def _after_fork() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


in_child(_after_fork)


# ----------------------------------------------------------------------------------------------------
# The files of ``memory://``, read as slices of what the process holds.


class MemoryTarget(ImmediateTarget):
    """All files of `MemoryFileSystem`, which the process has one set of."""

    def __init__(self) -> None:
        self._fs = MemoryFileSystem()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next = itertools.count(1)

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer:
        file = self._file(path)
        view = file.getbuffer()
        try:
            size = len(view)
            if stop is None:
                check_size(size, most)
            data = bytes(view[start:stop])
        finally:
            view.release()  # a writer could not go on while it lives
        return Answer(data, self._facts(file, size))

    async def facts(self, path: str) -> Facts:
        file = self._file(path)
        return self._facts(file, file.getbuffer().nbytes)

    async def names(self, path: str) -> tuple[Listed, ...] | None:
        rows = self._fs.ls(path, detail=True)
        if [row["name"] for row in rows if row["type"] == "file"] == [path]:
            raise NotADirectoryError(path)
        named = (
            Listed(name, None, True)
            if row["type"] == "directory"
            else Listed(name, row["size"], last_modified=str(self._file(row["name"]).modified.timestamp()))
            for row in rows
            for name in (row["name"].rpartition("/")[2],)
        )
        return tuple(sorted(named, key=lambda listed: listed.name))

    def _file(self, path: str) -> Any:
        try:
            return self._fs.store[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def _facts(self, file: Any, size: int) -> Facts:
        number = self._numbers.get(file)
        if number is None:  # of two threads, the number of the first; no lock, which a fork may leave held
            number = self._numbers.setdefault(file, next(self._next))
        modified = str(file.modified.timestamp())
        return Facts(size, f"{OWN}{number}-{modified}-{size}", modified)


# ----------------------------------------------------------------------------------------------------
# ``data:`` URLs (RFC 2397): the object is the URL itself.


class DataTarget(ImmediateTarget):
    """Objects whose path is what stands behind ``data:``."""

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer:
        data = _decoded(path)
        if stop is None:
            check_size(len(data), most)
        return Answer(data[start:stop], Facts(len(data)))

    async def facts(self, path: str) -> Facts:
        return Facts(len(_decoded(path)))


def _decoded(path: str) -> bytes:
    kind, comma, text = path.partition(",")
    if not comma:
        raise Unreadable("a data: URL without a comma holds no data")
    data = unquote_to_bytes(text)
    if not kind.endswith(";base64"):
        return data
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as e:
        raise Unreadable(f"a data: URL with damaged base64 ({e})") from e
