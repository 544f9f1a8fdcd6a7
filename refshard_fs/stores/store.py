"""One filesystem in which objects are written. What fails in passing is tried again, where that can do no harm."""

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

from refshard_fs.core.forks import in_child
from refshard_fs.core.model import ABSENT, Absent, Facts, Version
from refshard_fs.errors import ConflictError, RefShardError
from refshard_fs.targets.failures import Retry, as_failure, os_errors
from refshard_fs.targets.generic import FsspecTarget, has_coroutines, protocols_of, serving, version_in
from refshard_fs.targets.local import draft_of

T = TypeVar("T")
Buffer = bytes | memoryview
Condition = Version | None  # what an object must be to be replaced; None: whatever it is

LARGE: Final = 8 << 20  # bytes; objects of more are read and sent by way of a temporary file
_RENAME_OVER: Final = frozenset(["ftp", "sftp", "ssh"])  # have directories, and rename a file over another


class Place(NamedTuple):
    """An object, or a directory of some: its ``path`` in the filesystem, and the directory ``root`` that it is in."""

    url: str
    path: str
    root: str


class Fetched(NamedTuple):
    """The bytes of an object, and which version of it they are."""

    data: Buffer
    facts: Facts


def sum_of(parts: Iterable[Buffer]) -> bytes:
    """Return the SHA-256 of ``parts``, one after the other."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.digest()


def is_version(one: Version, other: Version) -> bool:
    """Whether both are one version of an object, as far as they tell."""
    if isinstance(one, Absent) or isinstance(other, Absent):
        return one is other
    if one.etag is not None and other.etag is not None:
        return one.etag.strip('"') == other.etag.strip('"')
    return one.size == other.size and one.last_modified == other.last_modified


def conflict(place: Place, condition: Condition, *, is_certain: bool = True) -> ConflictError:
    """Return the error for an object that is not what ``condition`` says.

    It ``is_certain`` unless an answer of the store was lost before that.
    """
    what = "was not there" if isinstance(condition, Absent) else "was another one"
    error = ConflictError(f"{place.url} {what} when it was read, and somebody else has written it since")
    error.is_certain = is_certain
    return error


_locks: Final[dict[str, threading.RLock]] = {}  # of what is not local, by URL; all that is in memory has one
in_child(_locks.clear)


class Store:
    """A filesystem as any thread may call it; ``loop`` runs what is asynchronous in it."""

    is_local = False  # whether objects are files of this machine

    def __init__(self, fs: AbstractFileSystem, loop: AbstractEventLoop | None, retry: Retry) -> None:
        self.fs: Any = fs
        self._loop = loop
        self._retry = retry.at_most(FsspecTarget.most_retries)

    # ------------------------------------------------------------------ requests

    def call(self, method: str, *given: Any, **named: Any) -> Any:
        """Return what a method of the filesystem returns, which does no harm if it is called twice."""
        return self.persist(partial(self.call_once, method, *given, **named))

    @os_errors()
    def call_once(self, method: str, *given: Any, **named: Any) -> Any:
        """Do the same, and try once."""
        fs = self.fs
        if has_coroutines(fs):
            return sync(self._loop if fs.asynchronous else fs.loop, getattr(fs, "_" + method), *given, **named)
        with serving(fs, str(given[0])):
            return getattr(fs, method)(*given, **named)

    def persist(self, call: Callable[[], T], again: Callable[[], T] | None = None) -> T:
        """Return what ``call`` returns. What fails in passing is tried again, as ``again`` if that takes more care."""
        tried = 0
        while True:
            try:
                return call()
            except RefShardError:
                raise
            except OSError as e:
                tried += 1
                wait = self._retry.pause(as_failure(e), tried)
                if wait is None:
                    raise
            time.sleep(wait)
            call = again or call

    # ------------------------------------------------------------------ places

    def real(self, place: Place) -> str:
        """Return the path at which an object is written; PermissionError where a link leads elsewhere."""
        return place.path

    @contextlib.contextmanager
    def lock(self, place: Place, *, of_parent: bool = False) -> Iterator[None]:
        """Keep other commits of this process out; from local files, those of all processes of this machine.

        ``of_parent``: the place is one file, so the lock is that of its directory.
        """
        with _locks.setdefault(place.url, threading.RLock()):
            yield

    # ------------------------------------------------------------------ reading

    def facts(self, path: str) -> Facts | None:
        """Return what tells the version of an object from others; None if there is none."""
        self.fs.invalidate_cache()
        try:
            return facts_in(self.call("info", path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def fetch(self, path: str) -> Fetched | None:
        """Return an object, which may be cut short; None if there is none."""
        facts = self.facts(path)
        if facts is None:
            return None
        if facts.size is not None and facts.size <= LARGE:
            return Fetched(self.call("cat_file", path), facts)
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "object")
            self.call("get_file", path, copy)
            with open(copy, "rb") as file:
                return Fetched(content(file), facts)

    def read(self, paths: list[str]) -> dict[str, bytes]:
        """Return the objects at ``paths``, all requested at once."""
        if any(map(has_magic, paths)):  # `cat` would take such a name for a pattern
            if has_coroutines(self.fs):
                found = self.call("cat_ranges", paths, None, None, on_error="raise")
            else:
                found = [self.call("cat_file", path) for path in paths]  # the others' `cat_ranges` may return errors
            return dict(zip(paths, found, strict=True))
        return dict(self.call("cat", paths)) if paths else {}

    # ------------------------------------------------------------------ writing

    def check(self, place: Place, condition: Condition, *, is_certain: bool = True) -> None:
        """Raise ConflictError if an object is known to be another than ``condition`` says."""
        if condition is not None and not is_version(condition, self.facts(place.path) or ABSENT):
            raise conflict(place, condition, is_certain=is_certain)

    def put(self, place: Place, parts: Sequence[Buffer], condition: Condition, *, durable: bool) -> Facts | None:
        """Let an object be ``parts``, one after the other; return what is then known of its version.

        Raises ConflictError, and changes nothing, if it is not what ``condition`` says.
        """
        path = place.path
        if _RENAME_OVER.isdisjoint(protocols_of(self.fs)):
            self._replace(place, path, parts, condition, partial(self._send, path, parts))
            return None
        draft = draft_of(path)
        self.call("makedirs", path.rpartition("/")[0], exist_ok=True)
        try:
            self.persist(partial(self._send, draft, parts))
            self._replace(place, draft, parts, condition, partial(self.call_once, "mv", draft, path))
        except BaseException:
            with contextlib.suppress(Exception):  # the error that matters is the first
                self.call_once("rm_file", draft)
            raise
        return None

    def _replace(
        self, place: Place, source: str, parts: Sequence[Buffer], condition: Condition, replace: Callable[[], None]
    ) -> None:
        """Make ``source`` the object by ``replace``. If its answer is lost, look before it is called again."""
        has_renamed = source != place.path

        def again() -> None:
            if has_renamed and self.facts(source) is None:
                return
            if condition is not None and not has_renamed and self._is(place.path, parts):
                return
            self.check(place, condition, is_certain=False)
            replace()

        def first() -> None:
            self.check(place, condition)
            replace()

        self.persist(first, again)

    def _is(self, path: str, parts: Sequence[Buffer]) -> bool:
        """Whether the object at ``path`` is ``parts``."""
        there = self.fetch(path)
        return there is not None and sum_of([there.data]) == sum_of(parts)

    def _send(self, path: str, parts: Sequence[Buffer]) -> None:
        if sum(map(len, parts)) > LARGE:
            with self._uploading(path, self.call_once) as file:
                file.writelines(parts)
            return
        data = b"".join(parts)
        try:
            self.call_once("pipe_file", path, data)
        except FileNotFoundError:  # there are directories, such as pyarrow's, and not this one yet
            self.call("makedirs", path.rpartition("/")[0], exist_ok=True)
            self.call_once("pipe_file", path, data)

    @contextlib.contextmanager
    def stream(self, place: Place, condition: Condition, *, durable: bool) -> Iterator[BinaryIO]:
        """Give a file to write an object to; it takes its place when the block ends without an error.

        The ``condition`` is for local files.
        """
        with self._uploading(place.path, self.call) as file:
            yield file

    @contextlib.contextmanager
    def _uploading(self, path: str, call: Callable[..., Any]) -> Iterator[BinaryIO]:
        with tempfile.TemporaryDirectory() as folder:
            whole = os.path.join(folder, "object")
            with open(whole, "wb") as file:
                yield file
            call("put_file", whole, path)

    def copy(self, path: str, new: Place) -> None:
        """Copy an object, whole or not at all."""
        self.call("cp_file", path, new.path)

    # ------------------------------------------------------------------ removing

    def remove(self, place: Place, condition: Condition) -> None:
        """Let there be no object; ConflictError if it is not what ``condition`` says. One that is gone is no error."""
        if condition is not None and self.facts(place.path) is None:
            return
        self.check(place, condition)
        self.remove_file(self.real(place))

    def remove_file(self, path: str) -> None:
        """Remove an object; one that is gone is no error."""
        with contextlib.suppress(FileNotFoundError):
            self.call("rm_file", path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all that is in it."""
        with contextlib.suppress(FileNotFoundError):
            self.call("rm", path, recursive=True)


def content(file: Any) -> Buffer:
    """Return the content of a file that is ours alone; a large one without taking memory for it."""
    if file.seek(0, os.SEEK_END) > LARGE:
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    file.seek(0)
    data: bytes = file.read()
    return data


def facts_in(info: Mapping[str, Any]) -> Facts:
    """Return the size and version in fsspec's description of an object."""
    return Facts(info.get("size"), *version_in(info))
