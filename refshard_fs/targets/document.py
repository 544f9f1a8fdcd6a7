"""One object that is replaced at once, by who knows which version it replaces; new ones that appear whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import fsspec
from fsspec.implementations.local import LocalFileSystem

from refshard_fs.core.model import Facts
from refshard_fs.errors import ConflictError
from refshard_fs.security.policy import protocol_of
from refshard_fs.targets.local import locked, replacing
from refshard_fs.targets.objects import ABSENT, Condition, Objects, sum_of
from refshard_fs.targets.pool import Given


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
        if type(self._object.fs) is not LocalFileSystem:
            with tempfile.TemporaryFile() as file:
                yield file
                file.seek(0)
                self.put(file.read())
            return
        path = self._object.path("")
        folder = os.path.dirname(path) or "."
        os.makedirs(folder, exist_ok=True)
        with self._telling_conflicts(), locked(folder):
            with replacing(path, check=lambda: self._object.check("", self._condition), durable=True) as file:
                yield file
            self.made = self._object.facts("")

    def put(self, data: bytes) -> None:
        """Replace the object by ``data``; ConflictError if it is not the one that was expected."""
        if type(self._object.fs) is LocalFileSystem:
            with self.stream() as file:
                file.write(data)
            return
        known = frozenset(self._sent)
        self._sent.add(sum_of([data]))
        with self._telling_conflicts():
            try:
                self._put(data, self._condition)
            except ConflictError:
                there = self._object.fetch("") if known else None
                if there is None or sum_of([there.data]) not in known:
                    raise
                self._put(data, there.facts)
        self._sent.clear()

    def may_be(self, data: bytes) -> bool:
        """Whether the object is ``data`` or may still become it, after `put` raised what is no ConflictError."""
        if not self._object.is_immediate:
            return True  # a server may do what it was asked for after nobody waits for it any more
        there = self._object.fetch("")
        return there is not None and there.data == data

    def _put(self, data: bytes, condition: Condition) -> None:
        with self._object.lock() if self._object.is_immediate else contextlib.nullcontext():
            self.made = self._object.put("", (data,), condition)
        if self.made is None:
            self.made = self._object.facts("")

    @contextlib.contextmanager
    def _telling_conflicts(self) -> Iterator[None]:
        try:
            yield
        except ConflictError as e:
            is_new = self._condition is ABSENT
            what = "was not there when it was opened, and now is" if is_new else "was opened and then changed"
            raise ConflictError(
                f"{self._object.url} {what}: somebody else wrote it. Nothing was committed, and your writes are kept: "
                "discard() goes on with what is there now, save() writes what you have to another place"
            ) from e


class Sink:
    """One object or directory that is to be written, at a URL and with the options of its filesystem."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._fs, path = fsspec.core.url_to_fs(url, **options)
        self.path = path.rstrip("/")
        self.is_local = type(self._fs) is LocalFileSystem

    def is_at(self, url: str) -> bool:
        """Whether ``url`` is the same place."""
        protocols = (self._fs.protocol,) if isinstance(self._fs.protocol, str) else self._fs.protocol
        same = (protocol_of(url) or "file") in protocols
        return same and str(self._fs._strip_protocol(url)).rstrip("/") == self.path

    def names(self) -> list[str]:
        """Return the names directly below the directory; none where it does not exist."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        except NotADirectoryError as e:
            raise FileExistsError(f"{self.path} is a file") from e
        names = [str(name).rstrip("/") for name in found]
        if names == [self.path] and not self._fs.isdir(self.path):
            raise FileExistsError(f"{self.path} is a file")
        return [name.rpartition("/")[2] for name in names if name != self.path]

    def read(self, name: str) -> bytes:
        """Return the object ``name`` of the directory."""
        data: bytes = self._fs.cat_file(f"{self.path}/{name}")
        return data

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write the objects ``files`` (name → bytes) of the directory."""
        if not self.is_local:
            self._fs.pipe({f"{self.path}/{name}": data for name, data in files.items()})
            return
        for name, data in files.items():
            path = f"{self.path}/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with replacing(path) as file:
                file.write(data)

    def remove(self) -> None:
        """Remove the directory and all that is in it."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self.path, recursive=True)

    @contextlib.contextmanager
    def stream(self) -> Iterator[BinaryIO]:
        """Give a file to write the object to; it takes its place when the block ends without an error."""
        if self.is_local:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            with replacing(self.path) as file:
                yield file
            return
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "object")
            with open(path, "wb") as file:
                yield file
            self._fs.put_file(path, self.path)
