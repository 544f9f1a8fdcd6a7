"""References as a mapping that is written to: what fsspec's ``LazyReferenceMapper`` is to those who make sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Protocol

import numpy as np

from refshard_fs.core.columns import Row
from refshard_fs.core.edits import REMOVED, Edits, entry_of
from refshard_fs.core.model import Inline, Span
from refshard_fs.references.values import decode, from_base64, spelled


class Writer(Protocol):
    """The filesystem whose references these are."""

    def pipe_file(self, path: str, value: bytes) -> None: ...

    def refer(self, path: str, url: str, offset: int = 0, length: int | None = None) -> None: ...

    def rm_file(self, path: str) -> None: ...

    def commit(self) -> None: ...


class WritableReferences(MutableMapping[str, Any]):
    """Key → text, object, bytes or ``[url, offset, length]``, of the source and of what was written since.

    Values that are set are written as by the filesystem; lists become references.
    """

    def __init__(self, fs: Writer, base: Callable[[], Mapping[str, Any]], edits: Callable[[], Edits]) -> None:
        self._fs = fs
        self._base = base
        self._edits = edits

    def __getitem__(self, key: str) -> Any:
        edit = self._edits().get(key)
        if edit is None:
            return self._base()[key]
        match entry_of(edit):
            case Inline(data):
                return _text(data)
            case Span(url, start, stop):
                return Row(0, start, None if stop is None else stop - start).spelled(url)
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        match value:
            case [str(url)]:
                self._fs.refer(key, url)
            case [str(url), int() | np.integer() as offset, int() | np.integer() as length]:
                self._fs.refer(key, url, int(offset), int(length))
            case bytes() if value.startswith(b"base64:"):  # as kerchunk leaves what it inlines
                self._fs.pipe_file(key, from_base64(value.decode("latin-1")))
            case str() | bytes() | dict():
                self._fs.pipe_file(key, decode(value))
            case _ if hasattr(value, "to_bytes") and not isinstance(
                value, int
            ):  # zarr 3's buffers, which kerchunk passes on
                self._fs.pipe_file(key, value.to_bytes())
            case _:
                raise TypeError(
                    f"{key!r}: {value!r} is no reference: text, bytes, an object or [url, offset, length] is"
                )

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._fs.rm_file(key)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        edit = self._edits().get(key)
        return key in self._base() if edit is None else edit is not REMOVED

    def __iter__(self) -> Iterator[str]:
        edits = self._edits()
        for key in self._base():
            if edits.get(key) is None:
                yield key
        for key, change in edits.changes().items():
            if change.edit is not REMOVED:
                yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def copy(self) -> dict[str, Any]:
        """Return them as a plain dict, whose changes are not written."""
        return dict(self)

    def flush(self) -> None:
        """Commit what was written."""
        self._fs.commit()


def _text(data: bytes) -> str | bytes:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    return spelled(data) if text.startswith("base64:") else text
