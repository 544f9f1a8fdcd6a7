"""Keep ranges of remote objects in files, within a limit, for all processes of one user.

Each range is a file. Its name is a digest of URL and range. It ends with a digest of the object's version and a
checksum of name, version and data: a file that is cut short, damaged, renamed, or of another version counts as absent.
URLs, which may contain credentials, are neither in names nor in files.

A file is written under another name and then renamed, so that readers never see a part of it; a killed writer leaves
only a draft. Writes do not wait for the disk: after a power failure, the checksum finds damaged files.

The limit holds for all processes together. One process writes at a time, and first adds the size to a shared total. If
a writer is killed, or a file is replaced or deleted, the total is too large, never too small. When the total exceeds
the limit, the files are counted, and the least recently read are deleted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import struct
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from refshard_fs.core.checksums import crc32c
from refshard_fs.core.forks import fork_safe
from refshard_fs.core.model import Facts, Span
from refshard_fs.errors import CostlyPattern, sanitize
from refshard_fs.reading.index_cache import KeptFile, delete_oldest, is_own_file, is_private, list_files, open_as_it_is
from refshard_fs.reading.plan import MIB
from refshard_fs.targets import get_strong_etag, parse_time

CAPACITY: Final = 10 << 30  # bytes, by default
SUFFIX: Final = ".refchunk"
DRAFT: Final = ".refdraft"
TOTAL: Final = "total.refchunks"  # the name of the file with an upper bound of the bytes that are kept
WAITING: Final = 32 * MIB  # the most bytes that wait to be written; more are dropped, so that readers never wait
# Seconds in which ranges are collected to be written together: a lock and a thread cost as much as writing a file.
PAUSE: Final = 0.05
BATCH: Final = 4 * MIB  # bytes that are written at a time, while other processes wait
BLOCK: Final = 4096  # bytes: a file takes a multiple of this on the disk
RECENT: Final = 60.0  # seconds after a read in which further reads of a file do not update its time of use
SETTLED: Final = 60.0  # seconds after which a time of modification identifies a version (RFC 9110, 8.8.2.2)
PATIENCE: Final = 10.0  # seconds that a writer waits for writers of other processes

_MAGIC: Final = b"refchnk1"
_END: Final = struct.Struct("<8sQ16sQ")  # magic, bytes of data, digest of the version, checksum
_TOTAL: Final = struct.Struct("<QQ")  # bytes, and their checksum
_BINARY: Final = getattr(os, "O_BINARY", 0)
_writing = fork_safe(threading.Lock())  # held with the file's lock, which does not exclude threads of this process


class _UnwrittenRange(NamedTuple):
    """A range that waits to be written."""

    name: str
    version: bytes
    data: bytes

    @property
    def size(self) -> int:
        return _compute_disk_size(len(self.data) + _END.size)


class ChunkCache:
    """A cache of ranges in ``directory``, of at most ``capacity`` bytes. Thread-safe.

    Callers pass the version of an object: `get` returns only bytes of this version.
    """

    def __init__(self, directory: str | os.PathLike[str], capacity: int) -> None:
        self.directory = Path(directory)
        self.capacity = capacity
        self._root = os.fspath(directory)
        self._lock = fork_safe(threading.Lock())
        self._process = os.getpid()
        self._waiting: deque[_UnwrittenRange] = deque()
        self._bytes = 0  # bytes that wait to be written
        self._writer: threading.Thread | None = None
        self._is_full = threading.Event()  # set while a whole batch waits
        self._is_broken = False  # whether writing has failed: it is not tried again

    def has(self, span: Span) -> bool:
        """Return whether the cache has ``span``, in any version."""
        try:
            os.stat(self._make_path(_make_name(span)), follow_symlinks=False)
        except OSError:
            return False
        return True

    def get(self, span: Span, facts: Facts | None) -> bytes | None:
        """Return the bytes of ``span`` in the version of ``facts``; None if the cache does not have them."""
        version = _identify_version(facts)
        if version is None:
            return None
        name = _make_name(span)
        path = self._make_path(name)
        try:
            if not is_private(self._root):
                return None
            descriptor = open_as_it_is(path, os.O_RDONLY | _BINARY)
        except OSError:
            return None
        try:
            found = os.fstat(descriptor)
            if not is_own_file(found):
                return None
            length = found.st_size - _END.size
            data = _read_fully(descriptor, length) if _may_have_length(span, facts, length) else b""
            end = os.read(descriptor, _END.size)
            if not data or end != _make_end(name, end[16:32], data):
                os.unlink(path)
                return None
            if end[16:32] != version:
                return None
            if time.time() - found.st_mtime > RECENT:
                os.utime(path)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return data

    def put(self, span: Span, facts: Facts | None, data: bytes) -> None:
        """Write ``data``, the bytes of ``span`` in the version of ``facts``, in a thread.

        The process waits for the thread before it exits. Does nothing if ``facts`` do not identify a version, too many
        bytes wait already, or an earlier write failed.
        """
        version = _identify_version(facts)
        if version is None or not data or self._is_broken:
            return
        unwritten = _UnwrittenRange(_make_name(span), version, data)
        with self._lock:
            if self._process != os.getpid():  # in a forked child, the thread does not exist
                self._process, self._writer, self._bytes = os.getpid(), None, 0
                self._is_full = threading.Event()
                self._waiting.clear()
            if unwritten.size > self.capacity or (
                self._waiting and self._bytes + unwritten.size > min(WAITING, self.capacity)
            ):
                return
            self._waiting.append(unwritten)
            self._bytes += unwritten.size
            if self._bytes > BATCH:
                self._is_full.set()
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_all, name="refshard-chunk-cache", daemon=False)
                try:
                    self._writer.start()
                except RuntimeError:  # the process is exiting
                    self._is_broken = True

    def _make_path(self, name: str) -> str:
        return f"{self._root}/{name[0]}/{name[1:]}{SUFFIX}"

    def _write_all(self) -> None:
        """Write all waiting ranges, and end when there are no more."""
        most = min(BATCH, self.capacity // 8)
        while True:
            self._is_full.wait(PAUSE)
            with self._lock:
                batch: list[_UnwrittenRange] = []
                size = 0
                while self._waiting and (not batch or size + self._waiting[0].size <= most):
                    batch.append(self._waiting.popleft())
                    size += batch[-1].size
                self._bytes -= size
                if self._bytes <= BATCH:
                    self._is_full.clear()
                if not batch:
                    self._writer = None
                    return
            if not self._is_broken:
                self._write(batch, size)

    def _write(self, batch: list[_UnwrittenRange], size: int) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_private(self._root):
                raise PermissionError(errno.EPERM, "it is a link, or other users may write to it", self._root)
            with _writing, _lock_total(os.path.join(self._root, TOTAL)) as descriptor:
                if descriptor is not None and self._reserve(descriptor, size):
                    for unwritten in batch:
                        self._write_one(unwritten)
        except Exception as e:  # noqa: BLE001  # reading must continue after any error
            self._is_broken = True
            reason = e.strerror if isinstance(e, OSError) and e.strerror else repr(e)
            warnings.warn(
                f"chunks are not kept in cache_dir={sanitize(self._root)!r}: {sanitize(reason)}. Reading continues, "
                "and keeps no more chunks. Pass a directory of your own on a disk with free space, or leave "
                "cache_dir= out",
                CostlyPattern,
                stacklevel=2,
            )

    def _write_one(self, unwritten: _UnwrittenRange) -> None:
        path = self._make_path(unwritten.name)
        draft = f"{path.removesuffix(SUFFIX)}.{secrets.token_hex(8)}{DRAFT}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
        try:
            descriptor = open_as_it_is(draft, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(path), 0o700)
            descriptor = open_as_it_is(draft, flags)
        try:
            try:
                for part in (unwritten.data, _make_end(unwritten.name, unwritten.version, unwritten.data)):
                    left = memoryview(part)
                    while left:
                        left = left[os.write(descriptor, left) :]
            finally:
                os.close(descriptor)
            os.replace(draft, path)
        except BaseException as e:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            # Not errors: another process deleted the draft to make room, or, on Windows, the file is being read.
            if not isinstance(e, FileNotFoundError | PermissionError):
                raise

    def _reserve(self, descriptor: int, size: int) -> bool:
        """Add ``size`` to the total of all processes; delete files if necessary. Return False if there is no room."""
        total = _decode_total(os.read(descriptor, _TOTAL.size))
        if total is None or total + size > self.capacity:
            total = self._make_room(size)
        if total + size > self.capacity:
            return False
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, _encode_total(total + size))
        return True

    def _make_room(self, size: int) -> int:
        """Count the files, delete some if there is no room for ``size`` bytes, and return the total that remains."""
        files: list[KeptFile] = []
        for digit in "0123456789abcdef":
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found = list_files(os.path.join(self._root, digit), SUFFIX, DRAFT)
                files += [file._replace(size=_compute_disk_size(file.size)) for file in found]
        total = sum(file.size for file in files)
        if total + size <= self.capacity:
            return total
        # Counting is slow, so make room for later writes.
        return delete_oldest(files, min(self.capacity * 7 // 8, self.capacity - size))


def may_keep(span: Span, most: int | None) -> bool:
    """Return whether ``span`` may be kept on disk: a range, or a whole object that is not a document.

    Only documents have a limit of ``most`` bytes. They may contain URLs with credentials, and requesting the version of
    a document costs as much as reading it again.
    """
    return span.exact if span.stop is not None else most is None or span.start < 0


def _make_name(span: Span) -> str:
    text = repr((span.url, span.origin, span.start, span.stop))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=20).hexdigest()


def _identify_version(facts: Facts | None) -> bytes | None:
    """Return a digest of the version of ``facts``; None if the next version could have the same facts."""
    if facts is None:
        return None
    changed, version = _digest_version(facts)
    return version if changed is None or time.time() - changed > SETTLED else None


@lru_cache(4096)
def _digest_version(facts: Facts) -> tuple[float | None, bytes | None]:
    """Return the modification time, None with a strong ETag; and a digest of the version, None if it is unknown."""
    etag = (get_strong_etag(facts.named_etag) or "").strip('"')
    changed = None if etag or facts.last_modified is None else parse_time(facts.last_modified)
    if not etag and (changed is None or facts.size is None):
        return None, None
    return changed, hashlib.blake2b(repr((etag or facts.size, changed)).encode(), digest_size=16).digest()


def _make_end(name: str, version: bytes, data: bytes) -> bytes:
    check = crc32c(data, crc32c(name.encode() + version))
    return _END.pack(_MAGIC, len(data), version, check)


def _may_have_length(span: Span, facts: Facts | None, length: int) -> bool:
    """Return whether ``span`` may have ``length`` bytes, in an object with ``facts``."""
    if span.stop is not None:
        return length == span.stop - span.start
    most = None if facts is None else facts.size
    return length > 0 and (most is None or length <= most)


def _read_fully(descriptor: int, length: int) -> bytes:
    """Read ``length`` bytes; fewer only at the end of the file."""
    data = os.read(descriptor, length)
    while len(data) < length and (more := os.read(descriptor, length - len(data))):
        data += more
    return data


def _compute_disk_size(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _decode_total(found: bytes) -> int | None:
    """Decode the total in a file; None if the file is damaged or new."""
    total: int | None = _TOTAL.unpack(found)[0] if len(found) == _TOTAL.size else None
    return total if total is not None and found == _encode_total(total) else None


def _encode_total(total: int) -> bytes:
    return _TOTAL.pack(total, crc32c(total.to_bytes(8, "little")))


@contextlib.contextmanager
def _lock_total(path: str) -> Iterator[int | None]:
    """Lock the file at ``path`` and yield its descriptor; None if another process holds the lock for too long.

    A child that is forked in this block does not have the lock.
    """
    descriptor = open_as_it_is(path, os.O_RDWR | os.O_CREAT | _BINARY)
    try:
        yield descriptor if _lock_file(descriptor) else None
    finally:
        os.close(descriptor)  # this releases the lock


def _lock_file(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: several processes that write at the same time may exceed the limit
        return True
    end = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            if time.monotonic() > end:
                return False
            time.sleep(0.002)
        except OSError:  # a file system without locks
            return True
        else:
            return True
