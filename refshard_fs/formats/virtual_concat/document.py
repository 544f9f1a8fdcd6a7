"""The small document that joins sets lazily: its parts, how long each is, and along which axes. No I/O here.

``FORMATS.md`` is the specification. A part is one line, so that a longer archive is a document with a line more.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.errors import ManifestError
from refshard_fs.formats.virtual_concat import NAME
from refshard_fs.references.values import from_base64

__all__ = ["ConcatDocument", "ConcatIndex", "Part", "with_marker_first"]


class Part(msgspec.Struct, frozen=True):
    """One set: its URL as written, its length along the dimension, and the coordinate's bytes, if they are given."""

    url: str
    length: int
    values: bytes | None = None


class _Members(msgspec.Struct, forbid_unknown_fields=True):
    refshard: str
    dim: str
    axes: dict[str, int]
    sets: list[Any]
    length: int | None = None
    coordinate: str | None = None


class ConcatDocument(msgspec.Struct, frozen=True):
    """Sets in a row along ``dim``: arrays in ``axes`` (path → axis) are joined, all else is the first set's.

    ``coordinate`` is the path of the array whose values the parts here hold, little-endian.
    """

    dim: str
    axes: dict[str, int]
    parts: tuple[Part, ...]
    coordinate: str | None = None

    @property
    def starts(self) -> list[int]:
        """Where each part begins along the dimension, and where the last one ends."""
        return list(accumulate((part.length for part in self.parts), initial=0))

    @classmethod
    def read(cls, data: bytes, where: str) -> ConcatDocument:
        """Return the document in ``data``; ManifestError, which begins with ``where``, where it breaks the format."""
        try:
            given = msgspec.convert(zarrmeta.loads(data), _Members)
            parts = tuple(_part(entry, given) for entry in given.sets)
        except (ValueError, msgspec.ValidationError) as e:
            raise ManifestError(f"{where}: {e}") from e
        if given.refshard != NAME or not parts:
            raise ManifestError(f'{where}: it is no "refshard": "{NAME}" with one set or more')
        if any(axis < 0 for axis in given.axes.values()):
            raise ManifestError(f"{where}: an axis is less than 0")
        if given.coordinate is not None and given.axes.get(given.coordinate) != 0:
            raise ManifestError(f"{where}: the coordinate {given.coordinate!r} is not in axes, with axis 0")
        return cls(given.dim, given.axes, parts, given.coordinate)

    def dumps(self, respell: Callable[[str], str] = str) -> bytes:
        """Return the document as JSON, a line for each part, URLs ``respell``-ed."""
        head: dict[str, Any] = {"refshard": NAME, "dim": self.dim, "axes": self.axes}
        if self.coordinate is not None:
            head["coordinate"] = self.coordinate
        lines = [zarrmeta.dumps(self._line(part, respell)) for part in self.parts]
        return zarrmeta.dumps(head)[:-1] + b',"sets":[\n' + b",\n".join(lines) + b"\n]}\n"

    def with_parts(self, more: Sequence[Part]) -> ConcatDocument:
        """Return the document with ``more`` parts at its end."""
        return msgspec.structs.replace(self, parts=(*self.parts, *more))

    def _line(self, part: Part, respell: Callable[[str], str]) -> list[Any]:
        line: list[Any] = [respell(part.url), part.length]
        if self.coordinate is not None and part.values is not None:
            line.append("base64:" + base64.b64encode(part.values).decode())
        return line


class ConcatIndex(msgspec.Struct, frozen=True):
    """Decodes the document called ``where``."""

    where: str

    def decode(self, data: bytes) -> ConcatDocument:
        return ConcatDocument.read(data, self.where)


def with_marker_first(document: Mapping[str, Any]) -> bytes:
    """Return a decoded document as JSON that is recognised: the member that tells the format comes first."""
    return zarrmeta.dumps({"refshard": document["refshard"], **document})


def _part(entry: Any, given: _Members) -> Part:
    length: int | None = None
    values: str | None = None
    match entry:
        case str(url) | [str(url)]:
            pass
        case [str(url), int(length)]:
            pass
        case [str(url), int(length), str(values)]:
            pass
        case _:
            raise ValueError(f"{entry!r} is no URL, [URL, length] or [URL, length, coordinate]")
    if length is None:
        length = given.length
    if isinstance(length, bool) or length is None or length < 1:
        raise ValueError(f"the set {url!r} has no length along {given.dim!r}: give [url, length], or a length for all")
    if given.coordinate is not None and values is None:
        raise ValueError(f"the set {url!r} lacks the values of the coordinate {given.coordinate!r}")
    if values is None:
        return Part(url, length)
    try:
        return Part(url, length, from_base64(values))
    except ValueError as e:
        raise ValueError(f"the coordinate of the set {url!r}: {e}") from e
