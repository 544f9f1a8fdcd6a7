"""A key space with edits over it: what was written is seen at once, what was removed is not. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from refshard_fs.core import zarrmeta
from refshard_fs.core.edits import REMOVED, Edits, entry_of
from refshard_fs.core.keys import ChunkGrid, join, parent
from refshard_fs.core.keyspace import Grids, KeySpace, LookUp, View
from refshard_fs.core.model import Entry, Inline, Listed, Span, Steps
from refshard_fs.core.spool import Spooled
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, is_array_document

__all__ = ["EditedKeySpace", "grid_of"]


class EditedKeySpace(View):
    """The keys of ``base``, edited. The edits may grow while this is in use, and are seen as they do."""

    def __init__(self, base: KeySpace, edits: Edits) -> None:
        super().__init__(base)
        self.edits = edits
        self.grids = _Grids(base, edits)
        self.in_memory = base.in_memory

    def lookup(self, key: str) -> Steps[Entry | None]:
        edit = self.edits.get(key)
        return (yield from self.base.lookup(key)) if edit is None else entry_of(edit)

    def find(self, key: str) -> Entry | None:
        edit = self.edits.get(key)
        return self.base.find(key) if edit is None else entry_of(edit)

    def lookups(self, keys: Sequence[str]) -> list[LookUp]:
        """Return look-ups that find all of ``keys``."""
        left: list[int] = []
        edited: list[int] = []
        for place, key in enumerate(keys):
            (left if self.edits.get(key) is None else edited).append(place)
        found = [
            LookUp([left[place] for place in places], steps)
            for places, steps in self.base.lookups([keys[place] for place in left])
        ]
        return found + [self.single_lookup(place, keys[place]) for place in edited]

    def is_empty(self, key: str) -> Steps[bool]:
        """Return whether the base says of ``key`` that it is empty on purpose, and it was not edited since."""
        return self.edits.get(key) is None and (yield from self.base.is_empty(key))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        edits = self.edits
        written = edits.names(prefix)
        below = None
        if not edits.hides(prefix):
            below = yield from self.base.children(prefix)
        if below is None and not written:
            return [] if not prefix and edits.hides("") else None
        if not written and not edits.touches(prefix):
            return below
        found: dict[str, Listed] = {}
        for listed in below or ():
            if (yield from self._is_left(prefix, listed)):
                found[listed.name] = listed
        for name, is_directory in written.items():
            match edits.get(join(prefix, name)):
                case Inline() | Spooled() | Span() as entry if not is_directory:
                    found[name] = Listed(name, entry.size)
                case _ if is_directory:
                    found[name] = Listed(name, None, True)
        if not found and prefix:
            return None
        return sorted(found.values(), key=lambda listed: listed.name)

    def is_directory(self, prefix: str) -> Steps[bool]:
        if not prefix or self.edits.is_directory(prefix):
            return True
        if self.edits.hides(prefix):
            return False
        if not self.edits.touches(prefix):
            return (yield from self.base.is_directory(prefix))
        return (yield from self._is_left(*_listed(prefix)))

    def _is_left(self, prefix: str, listed: Listed) -> Steps[bool]:
        """Return whether anything is left of what the base has directly below ``prefix``."""
        key = join(prefix, listed.name)
        if not listed.is_directory:
            return self.edits.get(key) is not REMOVED
        if self.edits.hides(key):
            return False
        if not self.edits.touches(key):
            return True
        for child in (yield from self.base.children(key)) or ():
            if (yield from self._is_left(key, child)):
                return True
        return False


def _listed(path: str) -> tuple[str, Listed]:
    directory, name = parent(path)
    return directory, Listed(name, None, True)


class _Grids(Grids):
    """The grids of the base, but for arrays whose metadata was written or removed since."""

    def __init__(self, base: KeySpace, edits: Edits) -> None:
        self._base = base
        self._edits = edits
        self._known: dict[str, tuple[Any, ChunkGrid | None]] = {}

    def find(self, path: str) -> ChunkGrid | None:
        for name in ARRAY_DOCUMENTS:
            key = join(path, name)
            edit = self._edits.get(key)
            match edit:
                case Inline(data):
                    known = self._known.get(key)
                    if known is None or known[0] is not edit:
                        known = self._known[key] = edit, grid_of(data, key)
                    return known[1]
                case Span():
                    return None
        if self._edits.hides(path) or self._edits.get(join(path, ".zarray")) is REMOVED:
            return None
        return self._base.grids.get(path)

    def paths(self) -> Iterable[str]:
        written = [parent(key)[0] for key in self._edits.changes() if is_array_document(key)]
        return dict.fromkeys([*self._base.grids, *written])


def grid_of(data: bytes, key: str) -> ChunkGrid | None:
    """Return the chunk grid that the document ``key`` gives an array; None if it is that of none."""
    try:
        return zarrmeta.grid_of(zarrmeta.loads(data))
    except ValueError:
        return None
