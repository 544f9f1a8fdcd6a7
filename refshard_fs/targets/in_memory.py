"""The files of ``memory://``, read as slices of what the process holds: no event loop, and no thread."""

from __future__ import annotations

import base64
import binascii
import itertools
import weakref
from typing import Any
from urllib.parse import unquote_to_bytes

from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs.core.model import OWN, Facts, Listed
from refshard_fs.targets.answer import Answer, ImmediateTarget, check_size
from refshard_fs.targets.failures import Unreadable


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
        return Answer(data, size, *self._version(file, size))

    async def facts(self, path: str) -> Facts:
        file = self._file(path)
        size = file.getbuffer().nbytes
        return Facts(size, *self._version(file, size))

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

    def _version(self, file: Any, size: int) -> tuple[str, str]:
        number = self._numbers.get(file)
        if number is None:  # of two threads, the number of the first; no lock, which a fork may leave held
            number = self._numbers.setdefault(file, next(self._next))
        modified = str(file.modified.timestamp())
        return f"{OWN}{number}-{modified}-{size}", modified


# ----------------------------------------------------------------------------------------------------
# ``data:`` URLs (RFC 2397): the object is the URL itself.


class DataTarget(ImmediateTarget):
    """Objects whose path is what stands behind ``data:``."""

    def read_now(self, path: str, start: int, stop: int | None, most: int | None = None) -> Answer:
        data = _decoded(path)
        if stop is None:
            check_size(len(data), most)
        return Answer(data[start:stop], len(data))

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
