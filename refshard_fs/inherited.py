"""An overlay as it travels to another process: its name and its edits, as bytes. No I/O here."""

from __future__ import annotations

import zlib

import msgspec

from refshard_fs.edits import REMOVED, Edit, Edits
from refshard_fs.model import Inline, Span
from refshard_fs.spool import Spooled

__all__ = ["Inherited", "inherited"]

_Spelled = tuple[str, bytes | tuple[str, int, int | None] | None]


class _Content(msgspec.Struct, array_like=True):
    prefixes: list[str]
    changes: list[_Spelled]


class Inherited(msgspec.Struct, frozen=True):
    """The overlay ``id`` when it had made ``number`` changes and ``commits`` commits."""

    id: str
    number: int
    commits: int
    data: bytes

    def edits(self) -> Edits:
        """Return the edits, all of the same number."""
        content = msgspec.msgpack.decode(zlib.decompress(self.data), type=_Content)
        edits = Edits()
        for prefix in content.prefixes:
            edits.remove_below(prefix)
        for key, value in content.changes:
            edits.put(key, _edit(value))
        edits.number = max(self.number, edits.number)
        return edits

    def __repr__(self) -> str:  # fsspec tells instances apart by this
        return f"<overlay {self.id}>"

    __str__ = __repr__


def inherited(identity: str, edits: Edits, commits: int) -> Inherited:
    """Return the overlay as it is now."""
    number = edits.number
    changes = [(key, _spelled(change.edit)) for key, change in edits.changes().items()]
    content = _Content(list(edits.prefixes()), changes)
    return Inherited(identity, number, commits, zlib.compress(msgspec.msgpack.encode(content), 1))


def _spelled(edit: Edit) -> bytes | tuple[str, int, int | None] | None:
    match edit:
        case Inline(data):
            return data
        case Spooled() as aside:
            return aside.read()
        case Span(url, start, stop):
            return url, start, stop
        case _:
            return None


def _edit(spelled: bytes | tuple[str, int, int | None] | None) -> Edit:
    match spelled:
        case None:
            return REMOVED
        case bytes():
            return Inline(spelled)
    return Span(*spelled)
