"""Write objects in one filesystem. Requests are repeated after temporary failures, if that is harmless."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import tempfile
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from glob import has_magic
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

from fsspec.asyn import sync
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.forks import call_in_child
from refshard_fs.core.model import ABSENT, Absent, Facts, Version
from refshard_fs.errors import ConflictError, RefShardError
from refshard_fs.targets.failures import Retry, convert_error, convert_s3_errors
from refshard_fs.targets.generic import FsspecTarget, find_version, has_coroutines, list_protocols, take_turn
from refshard_fs.targets.local import make_draft_name
from refshard_fs.targets.logs import log_request

T = TypeVar("T")
Buffer = bytes | memoryview
Condition = Version | None  # the version that an object must have to be replaced; None: any

LARGE: Final = 8 << 20  # bytes: larger objects are read and sent through a temporary file
_RENAME_OVER: Final = frozenset(["ftp", "sftp", "ssh"])  # protocols with directories that rename a file over another


class ObjectPlace(NamedTuple):
    """An object, or a directory of objects: its ``path`` in the filesystem, at or below the directory ``root``."""

    url: str
    path: str
    root: str


class ObjectBytes(NamedTuple):
    """The bytes of an object, and their version."""

    data: Buffer
    facts: Facts


def compute_checksum(parts: Iterable[Buffer]) -> bytes:
    """Return the SHA-256 of the concatenated ``parts``."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.digest()


def is_same_version(one: Version, other: Version) -> bool:
    """Return whether both facts may belong to the same version of an object."""
    if isinstance(one, Absent) or isinstance(other, Absent):
        return one is other
    if one.etag is not None and other.etag is not None:
        return one.etag.strip('"') == other.etag.strip('"')
    return one.size == other.size and one.last_modified == other.last_modified


def make_conflict_error(place: ObjectPlace, condition: Condition, *, is_certain: bool = True) -> ConflictError:
    """Return the error for an object that does not meet ``condition``.

    If not ``is_certain``, the store's answer to an earlier try was lost.
    """
    is_new = isinstance(condition, Absent)
    what = "did not exist" if is_new else "had another version"
    change = "written it" if is_new else "changed or removed it"
    error = ConflictError(
        f"{place.url} {what} when it was read: another writer has {change} since. Read it again, then write"
    )
    error.is_certain = is_certain
    return error


_locks: Final[dict[str, threading.RLock]] = {}  # locks by URL, for stores that are not local; memory:// has only one
call_in_child(_locks.clear)


class Store:
    """A filesystem that any thread may call; if it is asynchronous, ``loop`` runs its coroutines."""

    is_local = False  # whether objects are local files
    logs_requests = False  # whether the filesystem logs its requests

    def __init__(self, fs: AbstractFileSystem, loop: AbstractEventLoop | None, retry: Retry) -> None:
        self.fs: Any = fs
        self._loop = loop
        self._retry = retry

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the filesystem, with retries: calling it twice must be harmless."""
        return self.persist(partial(self.call_once, method, *arguments, **options))

    @convert_s3_errors()
    def call_once(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the filesystem, without retries."""
        fs = self.fs
        path = arguments[1 if method == "put_file" else 0]
        what = path if isinstance(path, str) else f"{len(path)} objects"
        log = contextlib.nullcontext() if self.logs_requests else log_request(method, what)
        if has_coroutines(fs):
            with log:
                return sync(
                    self._loop if fs.asynchronous else fs.loop, getattr(fs, "_" + method), *arguments, **options
                )
        with take_turn(fs, str(arguments[0])), log:
            return getattr(fs, method)(*arguments, **options)

    def persist(self, call: Callable[[], T], replace_again: Callable[[], T] | None = None) -> T:
        """Return the result of ``call``. After a temporary failure, call ``replace_again``, or else ``call`` again."""
        tried = 0
        while True:
            try:
                return call()
            except RefShardError:
                raise
            except OSError as e:
                tried += 1
                wait = self._pause(convert_error(e), tried)
                if wait is None:
                    raise
            time.sleep(wait)
            call = replace_again or call

    def _pause(self, failure: OSError, tried: int) -> float | None:
        """Return the seconds to wait after try number ``tried`` ended in ``failure``; None to give up."""
        return self._retry.limit_to(FsspecTarget.most_retries).pause(failure, tried)

    def resolve_links(self, place: ObjectPlace) -> str:
        """Return the path of ``place`` with its links resolved; PermissionError at a link that is not followed."""
        return place.path

    @contextlib.contextmanager
    def lock(self, place: ObjectPlace, *, of_parent: bool = False) -> Iterator[None]:
        """Lock ``place`` for a commit: among the threads of this process; for local files, among all processes.

        ``of_parent``: the place is one file, so lock its directory.
        """
        with _locks.setdefault(place.url, threading.RLock()):
            yield

    def get_facts(self, path: str) -> Facts | None:
        """Return the size and version of an object; None if it does not exist."""
        self.fs.invalidate_cache()
        try:
            return find_facts(self.call("info", path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def fetch(self, path: str) -> ObjectBytes | None:
        """Return an object; None if it does not exist. If the answer ended early, this is only a part of the object."""
        facts = self.get_facts(path)
        if facts is None:
            return None
        if facts.size is not None and facts.size <= LARGE:
            return ObjectBytes(self.call("cat_file", path), facts)
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "object")
            self.call("get_file", path, copy)
            with open(copy, "rb") as file:
                return ObjectBytes(load_file(file), facts)

    def read(self, paths: list[str]) -> dict[str, bytes]:
        """Return the bytes of the objects at ``paths``, in parallel if the filesystem can."""
        if any(map(has_magic, paths)):  # `cat` takes such a name for a pattern
            if has_coroutines(self.fs):
                found = self.call("cat_ranges", paths, None, None, on_error="raise")
            else:
                found = [self.call("cat_file", path) for path in paths]  # here `cat_ranges` may return errors as values
            return dict(zip(paths, found, strict=True))
        return dict(self.call("cat", paths)) if paths else {}

    def check(self, place: ObjectPlace, condition: Condition, *, is_certain: bool = True) -> None:
        """Raise ConflictError if an object does not meet ``condition``."""
        if condition is not None and not is_same_version(condition, self.get_facts(place.path) or ABSENT):
            raise make_conflict_error(place, condition, is_certain=is_certain)

    def put(self, place: ObjectPlace, parts: Sequence[Buffer], condition: Condition, *, durable: bool) -> Facts | None:
        """Write the concatenated ``parts`` as an object; return its new version, if the store reports it.

        Raises ConflictError, and changes nothing, if the object does not meet ``condition``.
        """
        path = place.path
        if _RENAME_OVER.isdisjoint(list_protocols(self.fs)):
            self._replace(place, path, parts, condition, partial(self._send, path, parts))
            return None
        draft = make_draft_name(path)
        self.call("makedirs", path.rpartition("/")[0], exist_ok=True)
        try:
            self.persist(partial(self._send, draft, parts))
            self._replace(place, draft, parts, condition, partial(self.call_once, "mv", draft, path))
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to report
                self.call_once("rm_file", draft)
            raise
        return None

    def _replace(
        self,
        place: ObjectPlace,
        source: str,
        parts: Sequence[Buffer],
        condition: Condition,
        replace: Callable[[], None],
    ) -> None:
        """Call ``replace``, which makes ``source`` the object.

        If the answer is lost, check whether the object was replaced before ``replace`` is called again.
        """
        has_renamed = source != place.path

        def replace_again() -> None:
            if has_renamed and self.get_facts(source) is None:
                return
            if condition is not None and not has_renamed and self._has_content(place.path, parts):
                return
            self.check(place, condition, is_certain=False)
            replace()

        def check_and_replace() -> None:
            self.check(place, condition)
            replace()

        self.persist(check_and_replace, replace_again)

    def _has_content(self, path: str, parts: Sequence[Buffer]) -> bool:
        """Return whether the bytes of the object at ``path`` are ``parts``."""
        stored = self.fetch(path)
        return stored is not None and compute_checksum([stored.data]) == compute_checksum(parts)

    def _send(self, path: str, parts: Sequence[Buffer]) -> None:
        if sum(map(len, parts)) > LARGE:
            with self._upload_file(path, self.call_once) as file:
                file.writelines(parts)
            return
        data = b"".join(parts)
        try:
            self.call_once("pipe_file", path, data)
        except FileNotFoundError:  # the filesystem (pyarrow's, for example) needs the directory to exist
            self.call("makedirs", path.rpartition("/")[0], exist_ok=True)
            self.call_once("pipe_file", path, data)

    @contextlib.contextmanager
    def stream(self, place: ObjectPlace, condition: Condition, *, durable: bool) -> Iterator[BinaryIO]:
        """Yield a file that replaces an object when the block ends without an error.

        ``condition`` and ``durable`` apply to local files only.
        """
        with self._upload_file(place.path, self.call) as file:
            yield file

    @contextlib.contextmanager
    def _upload_file(self, path: str, call: Callable[..., Any]) -> Iterator[BinaryIO]:
        with tempfile.TemporaryDirectory() as folder:
            whole = os.path.join(folder, "object")
            with open(whole, "wb") as file:
                yield file
            call("put_file", whole, path)

    def copy(self, path: str, new: ObjectPlace) -> None:
        """Copy the object at ``path`` to ``new``, through this machine if the filesystem cannot copy."""
        try:
            self.call("cp_file", path, new.path)
        except NotImplementedError:  # for example, FTP
            self.put(new, (self.call("cat_file", path),), None, durable=True)

    def remove(self, place: ObjectPlace, condition: Condition) -> None:
        """Remove an object, if it exists; ConflictError if it does not meet ``condition``."""
        if condition is not None and self.get_facts(place.path) is None:
            return
        self.check(place, condition)
        self.remove_file(self.resolve_links(place))

    def remove_file(self, path: str) -> None:
        """Remove an object, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.call("rm_file", path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything in it, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.call("rm", path, recursive=True)


def load_file(file: Any) -> Buffer:
    """Return the content of a file that has no other writers; a large file is mapped, not read."""
    if file.seek(0, os.SEEK_END) > LARGE:
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    file.seek(0)
    data: bytes = file.read()
    return data


def find_facts(info: Mapping[str, Any]) -> Facts:
    """Return the size and version in fsspec's description of an object."""
    return Facts(info.get("size"), *find_version(info))
