"""Edits: uncommitted writes and removals, by key. Thread-safe.

An edit is the new content of a key (bytes, as `Inline` or `SpooledValue`, or a `Span` of an object) or `REMOVED`. A
removed prefix is one record, for any number of keys below it. `EditedKeySpace` shows a source with its edits.
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
from refshard_fs.core.consolidated import DOCUMENTS, may_repeat, parse_json, reconsolidate
from refshard_fs.core.forks import fork_safe
from refshard_fs.core.keys import ChunkGrid, is_within, iterate_splits, join, parent
from refshard_fs.core.keyspace import Grids, KeySpace, LookUp, View, make_lookups_of
from refshard_fs.core.model import Entry, Inline, Listed, Load, Packed, Raw, Span, Steps
from refshard_fs.core.zarrmeta import ARRAY_DOCUMENTS, is_array_document

MEMORY: Final = 64 << 20  # the most bytes of edits in memory
FILE: Final = 256 << 20  # the most bytes of a temporary file; doubled for each other file in use, so that files are few


class _File:
    """A temporary file without a name; data are only appended."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by __del__
        self._mapped = memoryview(b"")
        self.end = 0
        self.pid = os.getpid()

    def add(self, data: bytes) -> int:
        """Append ``data``; return its offset."""
        start, view = self.end, memoryview(data)
        self._file.seek(start)
        while view:  # a call may write only a part
            view = view[self._file.write(view) or 0 :]
        self.end += len(data)
        return start

    def map(self, start: int, stop: int) -> memoryview:
        """Return bytes ``[start, stop)``, mapped from the file without copying them to memory."""
        mapped = self._mapped
        if stop > len(mapped):
            mapped = memoryview(mmap.mmap(self._file.fileno(), self.end, access=mmap.ACCESS_READ))
            self._mapped = mapped  # another thread may assign a shorter map, so the local name is used below
        return mapped[start:stop]

    def __del__(self) -> None:
        self._file.close()


class SpooledValue(msgspec.Struct, frozen=True, eq=False):
    """A value in a temporary file: ``size`` bytes at ``offset``."""

    file: _File
    offset: int
    size: int

    @property
    def data(self) -> memoryview:
        """The bytes, mapped from the file."""
        return self.file.map(self.offset, self.offset + self.size)


class Spool:
    """Keep values until their commit: up to ``memory`` bytes in memory, the rest in temporary files. Thread-safe.

    A file has no name, and is deleted when no value in it is used any more, and also if the process is killed. Large
    edits have several files, so that the space of replaced values is freed.
    """

    def __init__(self) -> None:
        self.memory = MEMORY
        self.in_memory = 0  # bytes of values in memory
        self._lock = fork_safe(threading.Lock())
        self._file: _File | None = None
        self._files: weakref.WeakSet[_File] = weakref.WeakSet()  # all files in use

    def keep(self, data: bytes, replaced: object = None) -> Inline | SpooledValue:
        """Return an edit with ``data``; the memory of the edit ``replaced``, which it replaces, counts as free."""
        with self._lock:
            if isinstance(replaced, Inline):
                self.in_memory = max(self.in_memory - len(replaced.data), 0)
            if self.in_memory + len(data) <= self.memory:
                self.in_memory += len(data)
                return Inline(data)
            file = self._file
            is_ours = file is not None and file.pid == os.getpid()  # a forked child must not write to its parent's file
            if file is None or not is_ours or file.end >= FILE << len(self._files) - 1:
                file = self._file = _File()
                self._files.add(file)
            return SpooledValue(file, file.add(data), len(data))

    def clear(self) -> None:
        """Begin with empty memory and a new file. Values that are still in use stay readable."""
        with self._lock:
            self.in_memory = 0
            self._file = None


class Removal(Enum):
    """The type of `REMOVED`, the edit of a key that was removed."""

    REMOVED = "removed"


REMOVED: Final = Removal.REMOVED

Edit: TypeAlias = Inline | SpooledValue | Span | Removal


def make_entry(edit: Edit) -> Inline | Span | None:
    """Return the entry of a key whose edit is ``edit``; None if the key was removed."""
    if isinstance(edit, SpooledValue):
        return Inline(bytes(edit.data))
    return None if edit is REMOVED else edit


class Edits:
    """Edits by key, and removed prefixes, each with the number of its change. Thread-safe; look-ups take no lock."""

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._changes: dict[str, Edit] = {}
        self._numbers: dict[str, int] = {}  # key → the number of its last change; later changes have higher numbers
        self._prefixes: dict[str, int] = {}  # removed prefix → the number of the removal
        self._below: dict[str, dict[str, int]] = {}  # directory → name → the number of keys written there or below
        self._removed: dict[str, int] = {}  # directory → the number of keys below it that were removed one by one
        self.number = 0  # the number of the last change

    def __len__(self) -> int:
        """Return the number of edited keys and removed prefixes."""
        return len(self._changes) + len(self._prefixes)

    def get(self, key: str) -> Edit | None:
        """Return the edit of ``key``; None if it was not edited, so that the key is as in the source."""
        edit = self._changes.get(key)
        return REMOVED if edit is None and self._prefixes and self.hides(key) else edit

    def list_changes(self) -> dict[str, Edit]:
        """Return all edits of keys, as they are now."""
        with self._lock:
            return dict(self._changes)

    def list_prefixes(self) -> Mapping[str, int]:
        """Return the removed prefixes and the numbers of the removals.

        Remaining edits below a prefix were made after its removal.
        """
        with self._lock:
            return dict(self._prefixes)

    def hides(self, key: str) -> bool:
        """Return whether ``key`` is a removed prefix, or lies below one."""
        prefixes = self._prefixes
        return bool(prefixes) and (key in prefixes or any(path in prefixes for path, _ in iterate_splits(key)))

    def put(self, key: str, edit: Edit) -> None:
        """Set the edit of ``key``."""
        with self._lock:
            self._put(key, edit)

    def remove_below(self, prefix: str) -> None:
        """Remove ``prefix`` and everything below it ("" removes all keys)."""
        with self._lock:
            self.number += 1
            others = {known: n for known, n in self._prefixes.items() if not is_within(known, prefix)}
            # The prefix is added before the edits below it are dropped: otherwise other threads could see keys of the
            # source in between.
            self._prefixes = {**others, prefix: self.number}
            for key in [key for key in self._changes if is_within(key, prefix)]:
                self._count(key, self._changes.pop(key), -1)
                del self._numbers[key]

    def add(self, prefixes: Iterable[str], changes: Mapping[str, Edit]) -> None:
        """Remove ``prefixes``, then set all edits in ``changes``."""
        for prefix in prefixes:
            self.remove_below(prefix)
        for key, edit in changes.items():
            self.put(key, edit)

    def list_names(self, prefix: str) -> Mapping[str, bool]:
        """Return the written names directly below ``prefix``: name → whether it is a directory."""
        with self._lock:
            return {name: join(prefix, name) in self._below for name in self._below.get(prefix, ())}

    def is_directory(self, prefix: str) -> bool:
        """Return whether a key below ``prefix`` was written."""
        return prefix in self._below

    def has_removals(self, prefix: str) -> bool:
        """Return whether keys at or below ``prefix`` were removed, so that the source has more keys there."""
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

    def load_all(self) -> Edits:
        """Return a copy of the edits as they are now, with all values in memory."""
        new = self.copy()
        for key, edit in new._changes.items():
            if isinstance(edit, SpooledValue):
                new._changes[key] = Inline(bytes(edit.data))
        return new

    def select_since(self, earlier: int) -> Edits:
        """Return the edits that were made after change number ``earlier``."""
        new = Edits()
        with self._lock:
            new._prefixes = {prefix: number for prefix, number in self._prefixes.items() if number > earlier}
            for key, number in self._numbers.items():
                if number > earlier:
                    new._put(key, self._changes[key], number)
            new.number = self.number
        return new

    def iterate_spans(self) -> Iterator[Span]:
        """Yield every edit that is a span."""
        return (edit for edit in self.list_changes().values() if isinstance(edit, Span))

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


class EditedKeySpace(View):
    """The keys of ``base`` with ``edits``, which may change at any time."""

    def __init__(self, base: KeySpace, edits: Edits) -> None:
        super().__init__(base)
        self.edits = edits
        self.grids = _edit_grids(base, edits)
        self.in_memory = base.in_memory

    def lookup(self, key: str) -> Steps[Entry | None]:
        edit = self.edits.get(key)
        if edit is not None:
            return self._update_consolidated(key, make_entry(edit))
        entry = yield from self.base.lookup(key)
        if isinstance(entry, Span | Packed) and self._may_repeat_edits(key):
            data: bytes | None = yield Load(entry, Raw())
            entry = None if data is None else Inline(data)
        return self._update_consolidated(key, entry)

    def find(self, key: str) -> Entry | None:
        edit = self.edits.get(key)
        return self._update_consolidated(key, make_entry(edit) if edit is not None else self.base.find(key))

    def snapshot(self, threshold: int, on_progress: Callable[[int], object]) -> Steps[Any]:
        return None if len(self.edits) else (yield from self.base.snapshot(threshold, on_progress))

    @property
    def is_reference_set(self) -> bool:  # type: ignore[override]  # a property, since it depends on the edits
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
        return name in DOCUMENTS and (self.edits.is_directory(path) or self.edits.has_removals(path))

    def _update_consolidated(self, key: str, entry: Entry | None) -> Entry | None:
        """Return ``entry``, of ``key``; if it has consolidated metadata, make these agree with the edited documents."""
        if not isinstance(entry, Inline) or not self._may_repeat_edits(key):
            return entry
        is_anew = key == self.consolidated_anew
        if not is_anew and not may_repeat(key, entry.data):
            return entry
        before, changes = parse_json(entry.data), collect_documents(self.edits)
        after = reconsolidate(key, before, changes, self.edits.hides, is_whole=is_anew)
        with contextlib.suppress(TypeError):  # the commit refuses values that are not JSON
            return entry if after is before else Inline(zarrmeta.dumps(after))
        return entry

    def make_lookups(self, keys: Sequence[str]) -> list[LookUp]:
        unchanged: list[int] = []
        edited: list[int] = []
        for place, key in enumerate(keys):
            (unchanged if self.edits.get(key) is None and not self._may_repeat_edits(key) else edited).append(place)
        return make_lookups_of(self.base, keys, unchanged) + [
            self.make_single_lookup(place, keys[place]) for place in edited
        ]

    def is_empty(self, key: str) -> Steps[bool]:
        return self.edits.get(key) is None and (yield from self.base.is_empty(key))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        edits = self.edits
        written = edits.list_names(prefix)
        below = None
        if not edits.hides(prefix):
            below = yield from self.base.children(prefix)
        if below is None and not written:
            return [] if not prefix and edits.hides("") else None
        if not written and not edits.has_removals(prefix):
            return below
        found: dict[str, Listed] = {}
        for listed in below or ():
            if (yield from self._still_exists(prefix, listed)):
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
        if not self.edits.has_removals(prefix):
            return (yield from self.base.is_directory(prefix))
        directory, name = parent(prefix)
        return (yield from self._still_exists(directory, Listed(name, None, True)))

    def _still_exists(self, prefix: str, listed: Listed) -> Steps[bool]:
        """Return whether ``listed``, a member of ``prefix`` in the base, still exists, or has keys below it."""
        key = join(prefix, listed.name)
        if not listed.is_directory:
            return self.edits.get(key) is not REMOVED
        if self.edits.hides(key):
            return False
        if not self.edits.has_removals(key):
            return True
        for child in (yield from self.base.children(key)) or ():
            if (yield from self._still_exists(key, child)):
                return True
        return False


def _edit_grids(base: KeySpace, edits: Edits) -> Grids:
    """Return the grids of ``base``, changed for arrays whose metadata was written or removed.

    The grids do not refer to the key space that holds them: a reference cycle would delay freeing it.
    """
    parsed: dict[str, tuple[Inline, ChunkGrid | None]] = {}  # grids of written arrays, by key

    def find_grid(path: str) -> ChunkGrid | None:
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

    def list_paths() -> Iterable[str]:
        written = [parent(key)[0] for key in edits.list_changes() if is_array_document(key)]
        return dict.fromkeys([*base.grids, *written])

    return Grids(find_grid, list_paths)


def collect_documents(edits: Edits) -> dict[str, bytes | None]:
    """Return the metadata documents in ``edits``, by key; None for a removed document."""
    changes = ((key, edit) for key, edit in edits.list_changes().items() if zarrmeta.is_metadata(key))
    return {key: edit.data if isinstance(edit, Inline) else None for key, edit in changes}


def unwrap_if_unedited(keyspace: KeySpace) -> KeySpace:
    """Return the base of ``keyspace`` if it has no edits; else ``keyspace`` itself."""
    return keyspace.base if isinstance(keyspace, EditedKeySpace) and not len(keyspace.edits) else keyspace
