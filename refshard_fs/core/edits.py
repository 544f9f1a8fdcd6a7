"""Edits: what was written and removed since a source was opened, by key. Any thread may use them.

An edit is the new content of a key (bytes, as `Inline` or `Spooled`, or a `Span` of an object) or `REMOVED`. Removing
a prefix takes one entry, whatever the source has below it. `EditedKeySpace` shows a source with its edits.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks, Contents, Numbers
from refshard_fs.core.consolidated import DOCUMENTS, parsed, reconsolidated, repeats
from refshard_fs.core.forks import fork_safe
from refshard_fs.core.keys import ChunkGrid, is_within, join, parent, splits
from refshard_fs.core.keyspace import Grids, KeySpace, LookUp, View, lookups_of
from refshard_fs.core.model import Entry, Inline, Listed, Load, Packed, Raw, Span, Steps
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, is_array_document

# ----------------------------------------------------------------------------------------------------
# Values that wait for their commit: in memory up to a bound, the rest in a temporary file.


MEMORY: Final = 64 << 20  # bytes of edits that are held in memory
FILE: Final = 256 << 20  # bytes of a temporary file; twice as many for each other one in use, so that there are few


class _File:
    """A temporary file without a name, only ever added to."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # it lives as long as this
        self._mapped = memoryview(b"")
        self.end = 0
        self.pid = os.getpid()

    def add(self, data: bytes) -> int:
        """Write ``data`` at the end; return where it begins."""
        start, view = self.end, memoryview(data)
        self._file.seek(start)
        while view:  # one call may write a part
            view = view[self._file.write(view) or 0 :]
        self.end += len(data)
        return start

    def view(self, start: int, stop: int) -> memoryview:
        """Return bytes mapped from the file: they take no memory of their own."""
        mapped = self._mapped
        if stop > len(mapped):
            mapped = memoryview(mmap.mmap(self._file.fileno(), self.end, access=mmap.ACCESS_READ))
            self._mapped = mapped  # which another thread may replace at once by a shorter one
        return mapped[start:stop]

    def __del__(self) -> None:
        self._file.close()


class Spooled(msgspec.Struct, frozen=True, eq=False):
    """``size`` bytes at ``offset`` of a file that is only ever added to."""

    file: _File
    offset: int
    size: int

    @property
    def data(self) -> memoryview:
        """The bytes, mapped from the file."""
        return self.file.view(self.offset, self.offset + self.size)


class Spool:
    """Keeps values from any thread until their commit: up to ``memory`` bytes in memory, the rest in a file.

    The file has no name, and disappears with the last value in it, however the process ends. There are several,
    for values may be replaced again and again: a file all of whose values were replaced is gone.
    """

    def __init__(self) -> None:
        self.memory = MEMORY
        self.in_memory = 0  # bytes
        self._lock = fork_safe(threading.Lock())
        self._file: _File | None = None
        self._files: weakref.WeakSet[_File] = weakref.WeakSet()  # those in use

    def keep(self, data: bytes, instead: object = None) -> Inline | Spooled:
        """Return an edit that has ``data``; it replaces ``instead``, whose memory is free if it was in memory."""
        with self._lock:
            if isinstance(instead, Inline):
                self.in_memory = max(self.in_memory - len(instead.data), 0)
            if self.in_memory + len(data) <= self.memory:
                self.in_memory += len(data)
                return Inline(data)
            file = self._file
            is_ours = file is not None and file.pid == os.getpid()  # a forked child leaves its parent's file alone
            if file is None or not is_ours or file.end >= FILE << len(self._files) - 1:
                file = self._file = _File()
                self._files.add(file)
            return Spooled(file, file.add(data), len(data))

    def clear(self) -> None:
        """Start with an empty file. Values that are still referred to stay readable."""
        with self._lock:
            self.in_memory = 0
            self._file = None


class Removed(Enum):
    """The one value that stands for a key that is no longer there."""

    REMOVED = "removed"


REMOVED: Final = Removed.REMOVED

Edit: TypeAlias = Inline | Spooled | Span | Removed


def entry_of(edit: Edit) -> Inline | Span | None:
    """Return what readers find at a key that holds ``edit``; None if it was removed."""
    if isinstance(edit, Spooled):
        return Inline(bytes(edit.data))
    return None if edit is REMOVED else edit


class Edits:
    """Edits by key, and the prefixes that were removed, each with a number. Look-ups take no lock, changes do."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._changes: dict[str, Edit] = {}
        self._numbers: dict[str, int] = {}  # by key: later edits have higher ones
        self._prefixes: dict[str, int] = {}  # removed as a whole, and the number of that
        self._below: dict[str, dict[str, int]] = {}  # directory → name → how many keys there or below were written
        self._removed: dict[str, int] = {}  # directory → how many keys below it were removed one by one
        self.number = 0  # of the last change

    def __len__(self) -> int:
        """Number of edited keys and removed prefixes."""
        return len(self._changes) + len(self._prefixes)

    def get(self, key: str) -> Edit | None:
        """Return what is known of ``key``; None if it was not edited: the source knows it."""
        edit = self._changes.get(key)
        return REMOVED if edit is None and self._prefixes and self.hides(key) else edit

    def changes(self) -> dict[str, Edit]:
        """Return all edits of keys, as they are now."""
        with self._lock:
            return dict(self._changes)

    def prefixes(self) -> Mapping[str, int]:
        """Return the removed prefixes and the number of each; what was written below one came after it."""
        with self._lock:
            return dict(self._prefixes)

    def hides(self, key: str) -> bool:
        """Whether ``key`` is a removed prefix, or lies below one."""
        prefixes = self._prefixes
        return bool(prefixes) and (key in prefixes or any(path in prefixes for path, _ in splits(key)))

    def put(self, key: str, edit: Edit) -> None:
        """Let ``key`` hold ``edit``, or be removed."""
        with self._lock:
            self._put(key, edit)

    def remove_below(self, prefix: str) -> None:
        """Remove ``prefix`` and all that lies below it (empty: everything)."""
        with self._lock:
            self.number += 1
            others = {known: n for known, n in self._prefixes.items() if not is_within(known, prefix)}
            self._prefixes = {**others, prefix: self.number}  # first: readers must not find the source's keys meanwhile
            for key in [key for key in self._changes if is_within(key, prefix)]:
                self._count(key, self._changes.pop(key), -1)
                del self._numbers[key]

    def add(self, prefixes: Iterable[str], changes: Mapping[str, Edit]) -> None:
        """Remove ``prefixes``, then let the keys of ``changes`` hold what these say."""
        for prefix in prefixes:
            self.remove_below(prefix)
        for key, edit in changes.items():
            self.put(key, edit)

    def names(self, prefix: str) -> Mapping[str, bool]:
        """Return the names directly below ``prefix`` that were written: name → whether there is a directory of it."""
        with self._lock:
            return {name: join(prefix, name) in self._below for name in self._below.get(prefix, ())}

    def is_directory(self, prefix: str) -> bool:
        """Whether something was written below ``prefix``."""
        return prefix in self._below

    def touches(self, prefix: str) -> bool:
        """Whether keys below the directory ``prefix`` were removed, so that the source has keys that are gone."""
        return self._removed.get(prefix, 0) > 0 or any(is_within(p, prefix) for p in list(self._prefixes))

    def copy(self) -> Edits:
        """Return a copy of the edits as they are now."""
        new = Edits()
        with self._lock:
            new._changes, new._numbers = dict(self._changes), dict(self._numbers)
            new._prefixes = dict(self._prefixes)
            new._below = {directory: dict(names) for directory, names in self._below.items()}
            new._removed = dict(self._removed)
            new.number = self.number
        return new

    def loaded(self) -> Edits:
        """Return a copy of the edits as they are now, with all values in memory."""
        new = self.copy()
        for key, edit in new._changes.items():
            if isinstance(edit, Spooled):
                new._changes[key] = Inline(bytes(edit.data))
        return new

    def since(self, earlier: int) -> Edits:
        """Return those edits that came after the change number ``earlier``."""
        new = Edits()
        with self._lock:
            new._prefixes = {prefix: number for prefix, number in self._prefixes.items() if number > earlier}
            for key, number in self._numbers.items():
                if number > earlier:
                    new._put(key, self._changes[key], number)
            new.number = self.number
        return new

    def spans(self) -> Iterator[Span]:
        """Return every span that a key holds."""
        return (edit for edit in self.changes().values() if isinstance(edit, Span))

    # ------------------------------------------------------------------ the tree of what is there

    def _put(self, key: str, edit: Edit, number: int = 0) -> None:
        self.number = max(self.number + 1, number)
        before = self._changes.get(key)
        self._changes[key], self._numbers[key] = edit, number or self.number
        self._count(key, edit, 1)
        if before is not None:
            self._count(key, before, -1)

    def _count(self, key: str, edit: Edit, by: int) -> None:
        path = key
        while path:
            directory, name = parent(path)
            if edit is REMOVED:
                self._removed[directory] = self._removed.get(directory, 0) + by
            else:
                names = self._below.setdefault(directory, {})
                names[name] = names.get(name, 0) + by
                if not names[name]:
                    del names[name]
                if not names:
                    del self._below[directory]
            path = directory


# ----------------------------------------------------------------------------------------------------
# A key space with edits over it. No I/O here.


class EditedKeySpace(View):
    """The keys of ``base`` with ``edits``, which may change meanwhile."""

    def __init__(self, base: KeySpace, edits: Edits) -> None:
        super().__init__(base)
        self.edits = edits
        self.grids = _edited_grids(base, edits)
        self.in_memory = base.in_memory

    def lookup(self, key: str) -> Steps[Entry | None]:
        edit = self.edits.get(key)
        if edit is not None:
            return self._in_step(key, entry_of(edit))
        entry = yield from self.base.lookup(key)
        if isinstance(entry, Span | Packed) and self._may_repeat_edits(key):
            data: bytes | None = yield Load(entry, Raw())
            entry = None if data is None else Inline(data)
        return self._in_step(key, entry)

    def find(self, key: str) -> Entry | None:
        edit = self.edits.get(key)
        return self._in_step(key, entry_of(edit) if edit is not None else self.base.find(key))

    def snapshot(self, threshold: int, tell: Callable[[int], object]) -> Steps[Any]:
        return None if len(self.edits) else (yield from self.base.snapshot(threshold, tell))

    @property
    def is_reference_set(self) -> bool:  # type: ignore[override]  # edits come and go
        return not len(self.edits) and self.base.is_reference_set

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        found = super().contents(prefix, errors) if len(self.edits) else self.base.contents(prefix, errors)
        return (yield from found)

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        if not len(self.edits):
            return (yield from self.base.chunks(array, numbers, grid))
        return (yield from super().chunks(array, numbers, grid))

    def _may_repeat_edits(self, key: str) -> bool:
        path, name = parent(key)
        return name in DOCUMENTS and (self.edits.is_directory(path) or self.edits.touches(path))

    def _in_step(self, key: str, entry: Entry | None) -> Entry | None:
        """Return the entry of ``key``; with consolidated metadata that say the same as the edited documents."""
        if not isinstance(entry, Inline) or not self._may_repeat_edits(key):
            return entry
        is_anew = key == self.consolidated_anew
        if not is_anew and not repeats(key, entry.data):
            return entry
        before, changes = parsed(entry.data), documents_in(self.edits)
        after = reconsolidated(key, before, changes, self.edits.hides, is_whole=is_anew)
        with contextlib.suppress(TypeError):  # what is no JSON is refused by the commit
            return entry if after is before else Inline(zarrmeta.dumps(after))
        return entry

    def lookups(self, keys: Sequence[str]) -> list[LookUp]:
        """Return look-ups that find all of ``keys``."""
        left: list[int] = []
        edited: list[int] = []
        for place, key in enumerate(keys):
            (left if self.edits.get(key) is None and not self._may_repeat_edits(key) else edited).append(place)
        return lookups_of(self.base, keys, left) + [self.single_lookup(place, keys[place]) for place in edited]

    def is_empty(self, key: str) -> Steps[bool]:
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
            edit = edits.get(join(prefix, name))
            if is_directory:
                found[name] = Listed(name, None, True)
            elif edit is not None and edit is not REMOVED:
                found[name] = Listed(name, edit.size)
        for name in DOCUMENTS:
            if name in found:
                document = yield from self.lookup(join(prefix, name))
                found[name] = Listed(name, None if document is None else document.size)
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
        directory, name = parent(prefix)
        return (yield from self._is_left(directory, Listed(name, None, True)))

    def _is_left(self, prefix: str, listed: Listed) -> Steps[bool]:
        """Return whether ``listed``, which the base has in ``prefix``, was not removed, nor everything below it."""
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


def _edited_grids(base: KeySpace, edits: Edits) -> Grids:
    """Return the grids of ``base``, but for arrays whose metadata was written or removed.

    They do not refer to the key space that they are of, which would then be freed by the collector alone.
    """
    parsed: dict[str, tuple[Inline, ChunkGrid | None]] = {}  # grids of written arrays, by key

    def find(path: str) -> ChunkGrid | None:
        for key in (join(path, name) for name in ARRAY_DOCUMENTS):
            match edits.get(key):
                case Inline(data) as edit:
                    known = parsed.get(key)
                    if known is None or known[0] is not edit:
                        known = parsed[key] = edit, zarrmeta.grid_of(data)
                    return known[1]
                case Span():
                    return None
        if edits.hides(path) or edits.get(join(path, ".zarray")) is REMOVED:
            return None
        return base.grids.get(path)

    def paths() -> Iterable[str]:
        written = [parent(key)[0] for key in edits.changes() if is_array_document(key)]
        return dict.fromkeys([*base.grids, *written])

    return Grids(find, paths)


def documents_in(edits: Edits) -> dict[str, bytes | None]:
    """Return the metadata documents among ``edits``, by key; None for those that are no longer there."""
    changes = ((key, edit) for key, edit in edits.changes().items() if zarrmeta.is_metadata(key))
    return {key: edit.data if isinstance(edit, Inline) else None for key, edit in changes}


def unedited(keyspace: KeySpace) -> KeySpace:
    """Return ``keyspace`` without its edits, if there are none."""
    return keyspace.base if isinstance(keyspace, EditedKeySpace) and not len(keyspace.edits) else keyspace
