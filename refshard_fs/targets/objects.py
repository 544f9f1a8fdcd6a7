"""Writing: objects below a URL are put whole or removed one by one, on condition that they are a known version.

Local files: written under another name, made durable and renamed into place, under an advisory lock of the directory.
S3: one PUT, with ``If-Match`` or ``If-None-Match`` where the writer knows what was there, so that the store decides.
In memory: under a lock of this process. Others are asked for their version just before: somebody may write in between.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from glob import has_magic
from typing import Any, BinaryIO, Final, NamedTuple

import fsspec
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.forks import in_child
from refshard_fs.core.model import ABSENT, Absent, Facts, Version
from refshard_fs.errors import ConflictError, SourceNotReachable
from refshard_fs.security.policy import locator, protocol_of
from refshard_fs.targets.failures import as_os_error, os_errors
from refshard_fs.targets.generic import has_coroutines, is_s3fs, protocols_of, version_in
from refshard_fs.targets.local import (
    draft_of,
    facts_of,
    is_draft,
    locked,
    path_to_write,
    replace_directory,
    replacing,
    sync_file,
)
from refshard_fs.targets.pool import IMMEDIATE, Given, portable

Buffer = bytes | memoryview

LARGE: Final = 8 << 20  # bytes; objects of more are read and sent by way of a temporary file
PIECE: Final = 1 << 20
PUT_AT_ONCE: Final = 8
SYNCED_ONE_BY_ONE: Final = 64  # files; to sync more of them takes longer than to sync the whole system
_RENAME_OVER: Final = frozenset(["ftp", "sftp", "ssh"])  # have directories, and rename a file over another


Condition = Version | None  # what an object must be to be replaced; None: whatever it is


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


_locks: Final[dict[str, threading.RLock]] = {}  # of what is not local, by URL; all that is in memory has one
in_child(_locks.clear)


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

    def is_at(self, url: str) -> bool:
        """Whether ``url`` is the same place."""
        same = (protocol_of(url) or "file") in protocols_of(self.fs)
        return same and str(self.fs._strip_protocol(url)).rstrip("/") == self.path("")

    @property
    def fs(self) -> AbstractFileSystem:
        """The filesystem, which any thread may call."""
        return self._open()[0]

    @property
    def is_local(self) -> bool:
        """Whether the objects are files of this machine."""
        return type(self.fs) is LocalFileSystem

    @property
    def is_immediate(self) -> bool:
        """Whether requests need neither a network nor an event loop."""
        return type(self.fs) in (LocalFileSystem, MemoryFileSystem)

    def path(self, name: str) -> str:
        """Return the path of the object ``name`` in the filesystem."""
        root = self._open()[1]
        return f"{root}/{name}" if name else root

    def _place(self, name: str) -> str:
        """Return the path at which the object ``name`` is written; PermissionError where a link leads elsewhere."""
        path = self.path(name)
        return path_to_write(path, self.path("")) if self.is_local else path

    def check_places(self, names: Iterable[str]) -> None:
        """Raise PermissionError if a link leads one of the objects ``names`` elsewhere."""
        for folder in {name.rpartition("/")[0] for name in names}:
            self._place(f"{folder}/_" if folder else "_")

    @contextlib.contextmanager
    def lock(self, *, of_parent: bool = False) -> Iterator[None]:
        """Keep other commits of this process out; from local files, those of all processes of this machine.

        ``of_parent``: the URL is that of one file, so the lock is that of its directory.
        """
        if self.is_local:
            folder = (os.path.dirname(self._place("")) or ".") if of_parent else self._place("")
            os.makedirs(folder, exist_ok=True)
            with locked(folder):
                yield
        else:
            in_memory = type(self.fs) is MemoryFileSystem
            with _locks.setdefault("memory://" if in_memory else self.url, threading.RLock()):
                yield

    def _open(self) -> tuple[AbstractFileSystem, str]:
        known = self._opened
        if known is None or known[0] != os.getpid():
            fs, path = _opened(self.url, self._given)
            known = self._opened = os.getpid(), fs, path.rstrip("/")
        return known[1], known[2]

    # ------------------------------------------------------------------ reading

    @os_errors()
    def facts(self, name: str) -> Facts | None:
        """Return what tells the version of the object ``name`` from others; None if there is none."""
        fs: Any = self.fs
        path = self.path(name)
        try:
            match fs:
                case LocalFileSystem():
                    found = os.stat(path)
                    return None if stat.S_ISDIR(found.st_mode) else facts_of(found)
                case MemoryFileSystem():
                    answer = IMMEDIATE[MemoryFileSystem].read_now(path, 0, 0)
                    return None if answer is None else answer.facts
                case _ if is_s3fs(fs):
                    bucket, key, _ = fs.split_path(path)
                    head = fs.call_s3("head_object", Bucket=bucket, Key=key)
                    return Facts(head["ContentLength"], head.get("ETag"))
            fs.invalidate_cache()
            return _facts_in(fs.info(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def version(self, name: str) -> Version:
        """Return the version of the object ``name``, which may be `ABSENT`."""
        facts = self.facts(name)
        return ABSENT if facts is None else facts

    @os_errors()
    def fetch(self, name: str) -> Fetched | None:
        """Return the object ``name``; None if there is none. One that is not whole is an error."""
        fs, path = self.fs, self.path(name)
        try:
            if is_s3fs(fs):
                data, facts = sync(fs.loop, _fetch_s3, fs, path)
            else:
                found = self.facts(name)
                if found is None:
                    return None
                data, facts = _fetch(fs, path, found), found
        except (FileNotFoundError, NotADirectoryError):
            return None
        if facts.size is not None and len(data) != facts.size:
            url = self.url_of(name)
            raise SourceNotReachable(f"{url} has {facts.size} bytes, and {len(data)} were read: is it being written?")
        return Fetched(data, facts)

    @os_errors()
    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the objects ``names``, all requested at once."""
        paths = {self.path(name): name for name in names}
        if any(map(has_magic, paths)):  # `cat` would take such a name for a pattern
            if has_coroutines(self.fs):
                data = self.fs.cat_ranges(list(paths), None, None, on_error="raise")
            else:
                data = [self.fs.cat_file(path) for path in paths]  # the others' `cat_ranges` may return errors
            found = dict(zip(paths, data, strict=True))
        else:
            found = self.fs.cat(list(paths)) if paths else {}
        return {paths[path]: data for path, data in found.items()}

    @os_errors()
    def find(self, below: str) -> dict[str, Facts]:
        """Return all objects below the directory ``below`` (empty: all there are), by name, as listings describe them.

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
        return {path[stem:]: _facts_in(info) for path, info in sorted(objects) if not is_draft(path)}

    def names(self) -> list[str]:
        """Return the names directly below the URL; none where it does not exist. FileExistsError if it is a file."""
        fs, root = self._open()
        fs.invalidate_cache()
        try:
            paths = [str(path).rstrip("/") for path in fs.ls(root, detail=False)]
        except FileNotFoundError:
            return []
        except NotADirectoryError as e:
            raise FileExistsError(f"{self.url} is a file") from e
        if paths == [root] and not fs.isdir(root):
            raise FileExistsError(f"{self.url} is a file")
        return [path.rpartition("/")[2] for path in paths if path != root]

    # ------------------------------------------------------------------ writing

    def check(self, name: str, condition: Condition) -> None:
        """Raise ConflictError if the object ``name`` is known to be another than ``condition`` says."""
        if condition is None:
            return
        if not is_version(condition, self.version(name)):
            raise self._conflict(name, condition)

    @os_errors()
    def put(
        self, name: str, parts: Sequence[Buffer], condition: Condition = None, *, durable: bool = True
    ) -> Facts | None:
        """Let the object ``name`` be ``parts``, one after the other; return what is then known of its version.

        Raises ConflictError, and changes nothing, if it is not what ``condition`` says. Local files are on the disk
        when this returns, if they are to be ``durable``.
        """
        fs, path = self.fs, self.path(name)
        if self.is_local:
            with self.stream(name, condition, durable=durable) as file:
                file.writelines(parts)
            return facts_of(os.stat(path))
        if is_s3fs(fs):
            return self._put_s3(name, path, parts, condition)
        if _RENAME_OVER.isdisjoint(protocols_of(fs)):
            self.check(name, condition)
            self._send(path, parts)
            return self.facts(name) if self.is_immediate else None
        draft = draft_of(path)
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            self._send(draft, parts)
            self.check(name, condition)
            fs.mv(draft, path)
        except BaseException:
            with contextlib.suppress(Exception):  # the error that matters is the first
                fs.rm_file(draft)
            raise
        return None

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Put several objects, by name."""
        with ThreadPoolExecutor(PUT_AT_ONCE) as pool:
            list(pool.map(lambda name: self.put(name, (objects[name],), durable=False), objects))

    @contextlib.contextmanager
    def stream(self, name: str = "", condition: Condition = None, *, durable: bool = False) -> Iterator[BinaryIO]:
        """Give a file to write the object ``name`` to; it takes its place when the block ends without an error.

        The ``condition`` is for local files.
        """
        path = self._place(name)
        if self.is_local:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with replacing(path, check=partial(self.check, name, condition), durable=durable) as file:
                yield file
        else:
            with self._upload(path) as file:
                yield file

    @contextlib.contextmanager
    def _upload(self, path: str) -> Iterator[BinaryIO]:
        with tempfile.TemporaryDirectory() as folder:
            whole = os.path.join(folder, "object")
            with open(whole, "wb") as file:
                yield file
            self.fs.put_file(whole, path)

    def _send(self, path: str, parts: Sequence[Buffer]) -> None:
        if sum(map(len, parts)) > LARGE:
            with self._upload(path) as file:
                file.writelines(parts)
            return
        data = b"".join(parts)
        try:
            self.fs.pipe_file(path, data)
        except FileNotFoundError:  # there are directories, such as pyarrow's, and not this one yet
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.fs.pipe_file(path, data)

    def _put_s3(self, name: str, path: str, parts: Sequence[Buffer], condition: Condition) -> Facts | None:
        fs: Any = self.fs
        when = _as_headers(condition)
        if not when:
            self.check(name, condition)
        try:
            with _body(parts) as body:
                answer = sync(fs.loop, _send_s3, fs, path, body, when)
        except Exception as e:  # of botocore, which is not ours to import; raised again unless it is a conflict
            if not when or _status(e) not in (404, 409, 412):
                raise as_os_error(e) from e
            there = self.fetch(name) if _was_repeated(e) else None  # else others wrote it, though it be the same
            if there is None or sum_of([there.data]) != sum_of(parts):
                conflict = self._conflict(name, condition)
                conflict.is_certain = not _was_repeated(e)
                raise conflict from e
            return there.facts  # it was written, and the answer to that was lost
        fs.invalidate_cache(path)
        return Facts(sum(map(len, parts)), answer.get("ETag"))

    def make_durable(self, urls: Iterable[str]) -> None:
        """Return when the objects at ``urls``, which were put before, are on the disk, if they are local."""
        if not self.is_local:
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
        if self.is_local:
            self.put(new, (self.fs.cat_file(self.path(name)),))
        else:
            self.fs.cp_file(self.path(name), self.path(new))

    # ------------------------------------------------------------------ removing

    @os_errors()
    def remove(self, name: str, condition: Condition = None) -> None:
        """Let there be no object ``name``; one that is not there, whatever it was, is none already.

        Raises ConflictError, and changes nothing, if it is not what ``condition`` says.
        """
        fs: Any = self.fs
        path = self._place(name)
        if not is_s3fs(fs):
            if condition is not None and self.facts(name) is None:
                return
            self.check(name, condition)
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(path)
            return
        bucket, key, _ = fs.split_path(path)
        try:
            fs.call_s3("delete_object", Bucket=bucket, Key=key, **_as_headers(condition))
        except OSError as e:
            if condition is None or _status(e) not in (404, 409, 412):
                raise
            if self.facts(name) is not None:
                raise self._conflict(name, condition) from e
        fs.invalidate_cache(path)  # it is gone: also where it was removed, and the answer to that was lost

    def remove_all(self, names: Iterable[str]) -> None:
        """Remove the objects ``names``, and directories that are empty then, as far as that can be done."""
        names = list(names)
        self.check_places(names)
        paths = [self.path(name) for name in names]
        together = [path for path in paths if not has_magic(path)]  # `rm` would take the others for patterns
        alone = [path for path in paths if has_magic(path)]
        try:
            with os_errors():
                if together:
                    self.fs.rm(together)
        except OSError:
            alone = paths  # one that is gone does not keep the others
        for path in alone:
            with contextlib.suppress(OSError), os_errors():
                self.fs.rm_file(path)
        self.tidy(names)

    def remove_tree(self) -> None:
        """Remove the directory at the URL and all that is in it."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(self.path(""), recursive=True)

    @contextlib.contextmanager
    def directory(self, *, replaces: bool) -> Iterator[Objects]:
        """Give where objects are put that are of use together alone: an error in the block takes them away again.

        A directory that they are to replace stays what it is until the block ends, if it is one of this machine.
        Elsewhere nothing takes the place of many objects at once: there it is removed first.
        """
        path = self._place("") if self.is_local else ""  # of a link, what it leads to is replaced
        draft = Objects(draft_of(path), self.fs) if replaces and path else self
        if draft is not self:
            os.mkdir(draft.path(""), 0o700)
        elif replaces:
            self.remove_tree()
        try:
            yield draft
            if draft is not self:
                replace_directory(path, draft.path(""))
        except BaseException:
            draft.remove_tree()
            raise

    def sweep(self, names: Iterable[str]) -> None:
        """Remove what killed processes left beside the objects ``names``; only while the `lock` is held."""
        if not self.is_local:
            return
        for folder in {os.path.dirname(self.path(name)) for name in names}:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                for entry in entries:
                    if is_draft(entry.name) and not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)

    def tidy(self, names: Iterable[str], *, with_root: bool = True) -> None:
        """Remove the directories of the objects ``names`` that are empty, where there are directories.

        ``with_root``: also that of all objects, whose lock ends with it.
        """
        if not self.is_local:
            return
        root = self.path("") if with_root else self.path("") + "/"
        for folder in sorted({os.path.dirname(self.path(name)) for name in names}, reverse=True):
            while len(folder) >= len(root):
                try:
                    os.rmdir(folder)
                except OSError:
                    break
                folder = os.path.dirname(folder)

    def _conflict(self, name: str, condition: Condition) -> ConflictError:
        what = "was not there" if isinstance(condition, Absent) else "was another one"
        return ConflictError(f"{self.url_of(name)} {what} when it was read, and somebody else has written it since")


# ----------------------------------------------------------------------------------------------------
# One document that is a commit.


class Document:
    """The object at ``url``, which is to be the version ``expected`` (None: is not to exist) when it is replaced.

    ``sent`` are the sums of what was put without an answer, here and by earlier tries: one of these may be there.
    """

    def __init__(self, url: str, given: Given, expected: Facts | None, sent: set[bytes] | None = None) -> None:
        self._object = Objects(url, given)
        self._condition: Condition = ABSENT if expected is None else expected
        self._sent: set[bytes] = set() if sent is None else sent
        self.made: Facts | None = None  # what it is after it was replaced

    @contextlib.contextmanager
    def stream(self) -> Iterator[BinaryIO]:
        """Give a file to write the new content to; it takes the object's place when the block ends without an error.

        Raises ConflictError, and changes nothing, if the object is not the one that was expected.
        """
        if self._object.is_local:
            with self._committing():
                with self._object.stream("", self._condition, durable=True) as file:
                    yield file
                self.made = self._object.facts("")
        else:
            with tempfile.TemporaryFile() as file:
                yield file
                file.seek(0)
                self.put(file.read())

    def put(self, data: bytes) -> None:
        """Replace the object by ``data``; ConflictError if it is not the one that was expected."""
        known, sent = frozenset(self._sent), sum_of([data])
        self._sent.add(sent)
        with self._committing(is_first=not known):
            try:
                made = self._object.put("", (data,), self._condition)
            except ConflictError as e:
                if not known and e.is_certain:
                    self._sent.discard(sent)
                there = self._object.fetch("") if known else None
                if there is None or sum_of([there.data]) not in known:
                    raise
                made = self._object.put("", (data,), there.facts)
            self.made = made or self._object.facts("")
        self._sent.clear()

    def may_be(self, data: bytes) -> bool:
        """Whether the object is ``data`` or may still become it, after `put` raised what is no ConflictError."""
        if not self._object.is_immediate:
            return True  # a server may do what it was asked for after nobody waits for it any more
        there = self._object.fetch("")
        return there is not None and there.data == data

    @contextlib.contextmanager
    def _committing(self, *, is_first: bool = True) -> Iterator[None]:
        """Say of a conflict what it means for the commit; an earlier try, if this is not the first, had no answer."""
        try:
            with self._object.lock(of_parent=True):
                yield
        except ConflictError as e:
            is_new = self._condition is ABSENT
            is_certain = is_first and e.is_certain
            what = "was not there when it was opened, and now is" if is_new else "was opened and then changed"
            done = (
                "Nothing was committed, and your writes are kept"
                if is_certain
                else "An answer of the store was lost, so that your writes may have been committed before that, and be "
                "part of what is there now; they are kept here, too"
            )
            conflict = ConflictError(
                f"{self._object.url} {what}: somebody else wrote it. {done}: discard() goes on with what is there now, "
                "save() writes what you have to another place"
            )
            conflict.is_certain = is_certain
            raise conflict from e


# ----------------------------------------------------------------------------------------------------
# Whole objects on their way: large ones are not in memory.


def _fetch(fs: AbstractFileSystem, path: str, facts: Facts) -> Buffer:
    """Return an object of any filesystem, which was just asked for its ``facts``."""
    if facts.size is not None and facts.size <= LARGE:
        data: bytes = fs.cat_file(path)
        return data
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "object")
        fs.get_file(path, copy)
        with open(copy, "rb") as file:
            return _content(file)


async def _fetch_s3(fs: Any, path: str) -> Fetched:
    """Return an object of S3, with one request."""
    bucket, key, _ = fs.split_path(path)
    answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
    with tempfile.SpooledTemporaryFile(LARGE) as copy:
        body = answer["Body"]
        async with body:  # which gives the response beneath it before aiobotocore 3
            while piece := await body.read(PIECE):
                copy.write(piece)
        return Fetched(_content(copy), Facts(answer["ContentLength"], answer.get("ETag")))


def _content(file: Any) -> Buffer:
    """Return the content of a file that is ours alone; a large one without taking memory for it."""
    if file.seek(0, os.SEEK_END) > LARGE:
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    file.seek(0)
    data: bytes = file.read()
    return data


@contextlib.contextmanager
def _body(parts: Sequence[Buffer]) -> Iterator[bytes | BinaryIO]:
    """Give what botocore sends for ``parts``: a file, if they are large, which it reads again if it tries again."""
    if sum(map(len, parts)) <= LARGE:
        yield b"".join(parts)
        return
    with tempfile.TemporaryFile() as file:
        file.writelines(parts)
        file.seek(0)
        yield file


async def _send_s3(fs: Any, path: str, body: bytes | BinaryIO, when: dict[str, str]) -> dict[str, Any]:
    """Put an object of S3 on the conditions ``when``, with one request, and return the answer."""
    bucket, key, _ = fs.split_path(path)
    await fs.set_session()
    client = await fs.get_s3(bucket)
    members = client.meta.service_model.operation_model("PutObject").input_shape.members
    extra = {k: v for k, v in {**fs.s3_additional_kwargs, **fs.req_kw}.items() if k in members and v is not None}
    answer: dict[str, Any] = await client.put_object(**extra, **when, Bucket=bucket, Key=key, Body=body)
    return answer


def _as_headers(condition: Condition) -> dict[str, str]:
    """Return what S3 is told of the version to replace."""
    match condition:
        case Facts(etag=str(etag)):
            return {"IfMatch": etag}
        case Absent():
            return {"IfNoneMatch": "*"}
    return {}


def _status(error: Exception) -> int | None:
    """Return the status of the answer of S3 that ``error`` tells of."""
    status: int | None = _told_by(error).get("HTTPStatusCode")
    return status


def _was_repeated(error: Exception) -> bool:
    """Whether botocore sent the request more than once: the store may have done it, and the answer to that was lost."""
    return bool(_told_by(error).get("RetryAttempts"))


def _told_by(error: Exception) -> Mapping[str, Any]:
    """Return what botocore tells of the answer of S3 that is an ``error``."""
    for e in (error, error.__cause__):
        response: Any = getattr(e, "response", None)
        if isinstance(response, dict):
            told: Mapping[str, Any] = response.get("ResponseMetadata", {})
            return told
    return {}


# ----------------------------------------------------------------------------------------------------
# Filesystems and their descriptions of objects.


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
        fs = type(fs)(*fs.storage_args, **portable(fs))
    return fs, path


def _facts_in(info: Mapping[str, Any]) -> Facts:
    """Return the size and version in fsspec's description of an object."""
    return Facts(info.get("size"), *version_in(info))
