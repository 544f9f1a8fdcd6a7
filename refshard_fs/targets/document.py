"""One object that is replaced at once, by a writer who knows which version it replaces.

Local files: under an advisory lock the identity (inode, time of the last change, size) is compared, then the new file
is renamed into place. S3: one PUT with ``If-Match`` or ``If-None-Match``, which the store decides. Others are asked
for their version just before the PUT: between the two somebody else may write.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Any, BinaryIO, Final

from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from refshard_fs.core.model import Facts
from refshard_fs.errors import ConflictError
from refshard_fs.targets.local import facts_of, in_memory, locked, replacing
from refshard_fs.targets.pool import AT_HAND, Given
from refshard_fs.targets.s3 import is_s3fs, speaking
from refshard_fs.targets.store import opened, sum_of

__all__ = ["ABSENT", "Absent", "Condition", "Document", "as_headers", "check", "conflict", "is_version"]


class Document:
    """The object at ``url``, to be replaced if it is still what it was: ``expected`` (None: it does not exist).

    ``sent`` are the sums of what the same writer has put there before, and heard no answer to: one of these may be
    replaced as well. What is put here is among them while no answer has come.
    """

    def __init__(self, url: str, given: Given, expected: Facts | None, sent: set[bytes] | None = None) -> None:
        self.url = url
        self.fs, path = opened(url, given)
        self.path = path.rstrip("/")
        self.expected = expected
        self.made: Facts | None = None  # what it is after it was replaced
        self._sent: set[bytes] = set() if sent is None else sent

    @contextlib.contextmanager
    def stream(self) -> Iterator[BinaryIO]:
        """Give a file to write the new content to; it takes the object's place when the block ends without an error.

        Raises ConflictError, and changes nothing, if the object is not the one that was expected.
        """
        if type(self.fs) is LocalFileSystem:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with locked(os.path.dirname(self.path) or "."):
                with replacing(self.path, check=self._check_local, durable=True) as file:
                    yield file
                self.made = _local_facts(self.path)
            return
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            self.put(file.read())

    @speaking()
    def put(self, data: bytes) -> None:
        """Replace the object by ``data``; ConflictError if it is not the one that was expected."""
        if type(self.fs) is LocalFileSystem:
            with self.stream() as file:
                file.write(data)
            return
        known = frozenset(self._sent)
        self._sent.add(sum_of([data]))
        try:
            self._put(data)
        except ConflictError:
            own = self._own(known)
            if own is None:
                raise
            self.expected = own
            self._put(data)
        self._sent.clear()

    def _own(self, known: Collection[bytes]) -> Facts | None:
        """Return the version that is there if its content is one of those ``known``."""
        facts = self.facts()
        if not known or facts is None:
            return None
        return facts if sum_of([self.fs.cat_file(self.path)]) in known else None

    def _put(self, data: bytes) -> None:
        if is_s3fs(self.fs):
            self._put_s3(data)
        elif type(self.fs) is MemoryFileSystem:
            with in_memory():
                self._check(_in_memory_facts(self.path))
                self.fs.makedirs(self.path.rpartition("/")[0], exist_ok=True)
                self.fs.pipe_file(self.path, data)
                self.made = _in_memory_facts(self.path)
        else:
            self._check(_facts(self.fs, self.path))
            self.fs.pipe_file(self.path, data)
            self.made = _facts(self.fs, self.path)

    @speaking()
    def may_be(self, data: bytes) -> bool:
        """Whether the object is ``data`` or may still become it, after `put` raised what is no ConflictError."""
        if type(self.fs) not in (LocalFileSystem, MemoryFileSystem):
            return True  # a server may do what it was asked for after nobody waits for it any more
        try:
            return bool(self.fs.cat_file(self.path) == data)
        except FileNotFoundError:
            return False

    @speaking()
    def facts(self) -> Facts | None:
        """Return what the object is now; None if there is none."""
        match self.fs:
            case LocalFileSystem():
                return _local_facts(self.path)
            case MemoryFileSystem():
                return _in_memory_facts(self.path)
        return _facts(self.fs, self.path)

    def _check_local(self) -> None:
        self._check(_local_facts(self.path))

    def _check(self, found: Facts | None) -> None:
        expected = self.expected
        if expected is None and found is None:
            return
        if expected is None or found is None or not _same(expected, found):
            raise self._conflict()

    def _put_s3(self, data: bytes) -> None:
        bucket, key, _ = self.fs.split_path(self.path)
        given = self.fs.s3_additional_kwargs
        if self.expected is None:
            condition = {"IfNoneMatch": "*"}
        elif self.expected.etag is None:
            raise ConflictError(
                f"{self.url} has no ETag, so that nothing tells whether somebody else has written it: fs.save(url) "
                "writes elsewhere"
            )
        else:
            condition = {"IfMatch": self.expected.etag}
        try:
            answer = self.fs.call_s3("put_object", given, Bucket=bucket, Key=key, Body=data, **condition)
        except OSError as e:
            if _status(e) not in (404, 409, 412):
                raise
            self.fs.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                if self.fs.cat_file(self.path) == data:  # it was written, and the answer to that was lost
                    self.made = _facts(self.fs, self.path)
                    return
            raise self._conflict() from e
        self.fs.invalidate_cache(self.path)
        self.made = Facts(len(data), answer.get("ETag"))

    def _conflict(self) -> ConflictError:
        what = (
            "was not there when it was opened, and now is" if self.expected is None else "was opened and then changed"
        )
        return ConflictError(
            f"{self.url} {what}: somebody else wrote it. Nothing was committed, and your writes are kept: "
            "discard() goes on with what is there now, save() writes what you have to another place"
        )


def _same(one: Facts, other: Facts) -> bool:
    if one.etag is not None and other.etag is not None:
        return one.etag.strip('"') == other.etag.strip('"')
    return one.size == other.size and one.last_modified == other.last_modified


def _status(error: OSError) -> int | None:
    response: Any = getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return None
    status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def _local_facts(path: str) -> Facts | None:
    try:
        return facts_of(os.stat(path))
    except FileNotFoundError:
        return None


def _in_memory_facts(path: str) -> Facts | None:
    try:
        answer = AT_HAND[MemoryFileSystem].read_now(path, 0, 0)
    except FileNotFoundError:
        return None
    return None if answer is None else Facts(answer.size, answer.etag, answer.last_modified)


def _facts(fs: AbstractFileSystem, path: str) -> Facts | None:
    fs.invalidate_cache()
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return None
    etag = info.get("ETag") or info.get("etag") or info.get("e_tag") or info.get("md5")
    modified = info.get("LastModified") or info.get("last_modified") or info.get("mtime") or info.get("created")
    return Facts(info.get("size"), None if etag is None else str(etag), None if modified is None else str(modified))


# ----------------------------------------------------------------------------------------------------
# What an object must be to be replaced, and whether it is: versions compared, and the error where they differ.


class Absent(Enum):
    """The condition that there is no such object yet."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT

Condition = Facts | Absent | None  # what an object must be to be replaced; None: whatever it is


def check(found: Facts | None, condition: Condition, url: str) -> None:
    """Raise ConflictError if ``found``, the object at ``url``, is not what ``condition`` says."""
    match condition, found:
        case (None, _) | (Absent(), None):
            return
        case Facts(), Facts() if is_version(condition, found):
            return
    raise conflict(url, condition)


def as_headers(condition: Condition) -> dict[str, str]:
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


def conflict(url: str, condition: Condition) -> ConflictError:
    """Return the error of an object that is not what ``condition`` says."""
    what = "was not there" if isinstance(condition, Absent) else "was another one"
    return ConflictError(f"{url} {what} when it was read, and somebody else has written it since")
