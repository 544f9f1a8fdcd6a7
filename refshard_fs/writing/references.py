"""Show references as a mutable mapping, like the dict or the ``LazyReferenceMapper`` of fsspec's filesystem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final, Self

import numpy as np

from refshard_fs.core.columns import Row
from refshard_fs.core.edits import REMOVED, Edits, make_entry
from refshard_fs.core.model import Inline, Span
from refshard_fs.references.values import decode, decode_base64, encode

_NO_EDITS: Final = Edits()


class WritableReferences(MutableMapping[str, Any]):
    """The references of a filesystem by key, with uncommitted writes.

    A value is text, bytes, ``[url]`` or ``[url, offset, length]``; JSON objects are shown as text. Each value is made
    when it is read. Setting a value writes it to the filesystem; a list becomes a reference.
    """

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def _get_base(self) -> Mapping[str, Any]:
        """Return the references of the source, without uncommitted writes."""
        found: Mapping[str, Any] = self._fs.source.references()
        return found

    def _get_edits(self) -> Edits:
        overlay = self._fs.source.transaction
        return _NO_EDITS if overlay is None else overlay.edits

    def __getitem__(self, key: str) -> Any:
        edit = self._get_edits().get(key)
        if edit is None:
            value = self._get_base()[key]
            return decode(value).decode() if isinstance(value, dict) else value
        match make_entry(edit):
            case Inline(data):
                return _make_value(data)
            case Span(url, start, stop):
                return Row(0, start, None if stop is None else stop - start).to_json(url)
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        match value:
            case [str() | None as url]:
                self._fs.refer(key, url)
            case [str() | None as url, int() | np.integer() as offset, int() | np.integer() as length]:
                self._fs.refer(key, url, int(offset), int(length))
            case bytes() if value.startswith(b"base64:"):  # kerchunk's form of inlined values
                self._fs.pipe_file(key, decode_base64(value.decode("latin-1")))
            case str() | bytes() | dict():
                self._fs.pipe_file(key, decode(value))
            case _ if hasattr(value, "to_bytes") and not isinstance(
                value, int
            ):  # buffers of zarr 3, which kerchunk passes
                self._fs.pipe_file(key, value.to_bytes())
            case _:
                raise TypeError(
                    f"{key!r}: {value!r} is not a reference: expected text, bytes, an object, [url] or "
                    "[url, offset, length]"
                )

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._fs.rm_file(key)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        edit = self._get_edits().get(key)
        return key in self._get_base() if edit is None else edit is not REMOVED

    def __iter__(self) -> Iterator[str]:
        edits = self._get_edits()
        yield from (key for key in self._get_base() if edits.get(key) is None)
        yield from (key for key, edit in edits.list_changes().items() if edit is not REMOVED)

    def __len__(self) -> int:
        return sum(1 for _ in self) if len(self._get_edits()) else len(self._get_base())

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None  # counting the keys of a lazily read set would load all of it

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self))

    def __or__(self, other: Any) -> Any:
        return self.copy() | dict(other) if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return dict(other) | self.copy() if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._fs!r}>"

    def copy(self) -> dict[str, Any]:
        """Return the references as a plain dict, whose changes are not written."""
        return dict(self)

    def flush(self) -> None:
        """Commit the writes; do nothing for a source in memory."""
        self._fs.flush()


class _Guard:
    """The only key in the dict's own storage, for C code that reads this storage instead of calling methods.

    `json.dumps` sees that the dict is not empty, and then calls ``items``. orjson and msgspec never call ``items``, but
    they refuse this key, so they do not write an empty document.
    """


_GUARD: Final[Any] = _Guard()


class ReferenceDict(WritableReferences, dict[str, Any]):
    """The references of a filesystem without a URL to commit to, as a dict, which kerchunk expects."""

    def __init__(self, fs: Any) -> None:
        dict.__setitem__(self, _GUARD, None)
        super().__init__(fs)

    def __ne__(self, other: object) -> bool:
        return not self == other


def _make_value(data: bytes) -> str | bytes:
    """Return inline bytes as the JSON of a set has them: a text, or bytes if they are not UTF-8."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    return encode(data) if text.startswith("base64:") else text
