"""What was written and removed since a source was opened, by key: an overlay that knows no I/O. Any thread may use it.

An edit is what a key holds now (bytes at hand, `Inline` or `Spooled`, or a `Span` of an object that has them) or
`REMOVED`. Removing a whole prefix hides what the source has below it, at the cost of one entry.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from refshard_fs.core.keys import is_within, parent
from refshard_fs.core.model import Inline, Span

__all__ = ["Change", "Edit", "Edits", "MEMORY", "REMOVED", "Removed", "Spool", "Spooled", "buffers", "views"]

# ----------------------------------------------------------------------------------------------------
# What is written and waits for its commit: in memory up to a bound, the rest in a file that has no name.
#
# The file goes with whoever holds it, however the process ends. What is in it is read back by anybody who has the edit.
# Objects that were put together of such values lie in a file of their own, so that the room of the values is free
# again.


MEMORY: Final = 64 << 20  # bytes of edits that are held in memory
_FILE: Final = 256 << 20  # bytes of the first file; each further one takes twice as many, so that there are few
_AT_ONCE: Final = 1 << 30  # bytes; one call of some systems writes no more than about two of these


class _File:
    """A file without a name, only ever added to."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # it lives as long as this
        self.pid = os.getpid()
        self.end = 0

    def add(self, data: bytes | memoryview) -> int:
        """Write ``data`` at the end; return where it begins."""
        start = self.end
        self._file.seek(start)
        at = 0
        while at < len(data):
            at += self._file.write(memoryview(data)[at : at + _AT_ONCE]) or 0
        self.end = start + len(data)
        return start

    def view(self, start: int, stop: int) -> memoryview:
        """Return bytes where they are, without taking memory for them."""
        first = start - start % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self._file.fileno(), stop - first, access=mmap.ACCESS_READ, offset=first)
        return memoryview(mapped)[start - first :]

    def __del__(self) -> None:
        self._file.close()


class Spooled(msgspec.Struct, frozen=True, eq=False):
    """``size`` bytes at ``offset`` of a file that is only ever added to."""

    file: _File
    offset: int
    size: int

    def read(self) -> bytes:
        """Return the bytes."""
        return bytes(views([self])[0])

    def part(self, offset: int, size: int) -> Spooled:
        """Return ``size`` of the bytes, from ``offset`` on."""
        return Spooled(self.file, self.offset + offset, size)


def views(spooled: Sequence[Spooled]) -> list[memoryview]:
    """Return the bytes of each of ``spooled`` where they are: without taking memory for them."""
    found = [memoryview(b"")] * len(spooled)
    by_file: dict[_File, list[int]] = {}
    for i, some in enumerate(spooled):
        if some.size:
            by_file.setdefault(some.file, []).append(i)
    for file, places in by_file.items():
        start = min(spooled[i].offset for i in places)
        mapped = file.view(start, max(spooled[i].offset + spooled[i].size for i in places))
        for i in places:
            offset = spooled[i].offset - start
            found[i] = mapped[offset : offset + spooled[i].size]
    return found


def buffers(edits: Sequence[Inline | Spooled]) -> list[bytes | memoryview]:
    """Return the bytes of each of ``edits``; those in a file stay there."""
    lying = iter(views([edit for edit in edits if isinstance(edit, Spooled)]))
    return [edit.data if isinstance(edit, Inline) else next(lying) for edit in edits]


class Spool:
    """Takes bytes and gives edits, for any thread; ``memory`` bytes stay at hand."""

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory = memory
        self.held = 0  # bytes of edits in memory
        self._lock = threading.Lock()
        self._file: _File | None = None  # of values
        self._room = _FILE  # bytes that it takes
        self._objects: _File | None = None
        self._adding = threading.Lock()

    def keep(self, data: bytes, instead: object = None) -> Inline | Spooled:
        """Return an edit that has ``data``; it takes the place of ``instead``, if that is one in memory."""
        with self._lock:
            self._let_go(instead)
            if self.held + len(data) <= self.memory:
                self.held += len(data)
                return Inline(data)
            if self._file is not None and self._file.end >= self._room:
                self._file, self._room = None, 2 * self._room  # it goes when nobody needs what is in it
            if self._file is None or self._file.pid != os.getpid():  # a parent goes on writing to its own
                self._file = _File()
            return Spooled(self._file, self._file.add(data), len(data))

    def aside(self, parts: Sequence[bytes | memoryview]) -> Spooled:
        """Return an edit that has ``parts``, one after the other, and takes no memory."""
        with self._adding:
            if self._objects is None or self._objects.pid != os.getpid():  # as above
                self._objects = _File()
            file = self._objects
            start = file.end
            for part in parts:
                file.add(part)
            return Spooled(file, start, file.end - start)

    def let_go(self, edit: object) -> None:
        """Take note that ``edit`` is not needed any more."""
        with self._lock:
            self._let_go(edit)

    def clear(self) -> None:
        """Begin anew: nothing that was given is held any more, but by those who have it."""
        with self._lock, self._adding:
            self.held = 0
            self._file = self._objects = None
            self._room = _FILE

    def after_fork(self) -> None:
        """Be usable in a child, whichever thread held a lock."""
        self._lock, self._adding = threading.Lock(), threading.Lock()

    def _let_go(self, edit: object) -> None:
        match edit:
            case Inline(data):
                self.held = max(self.held - len(data), 0)


class Removed(Enum):
    """The one value that stands for a key that is no longer there."""

    REMOVED = "removed"


REMOVED: Final = Removed.REMOVED

Edit: TypeAlias = Inline | Spooled | Span | Removed


class Change(NamedTuple):
    """An edit and its number: later ones have higher numbers."""

    edit: Edit
    number: int


class Edits:
    """Edits by key, and the prefixes that were removed. Look-ups take no lock, changes do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes: dict[str, Change] = {}
        self._prefixes: dict[str, int] = {}  # removed as a whole, and the number of that
        self._below: dict[str, dict[str, bool]] = {}  # directory → name → whether that is a directory, of what is there
        self._removed: dict[str, int] = {}  # directory → how many keys below it were removed one by one
        self.number = 0  # of the last change

    def __len__(self) -> int:
        """Number of edited keys and removed prefixes."""
        return len(self._changes) + len(self._prefixes)

    def __contains__(self, key: str) -> bool:
        return key in self._changes

    def get(self, key: str) -> Edit | None:
        """Return what is known of ``key``; None if it was not edited, and the source has the word."""
        change = self._changes.get(key)
        if change is not None:
            return change.edit
        return REMOVED if self._prefixes and self.hides(key) else None

    def change(self, key: str) -> Change | None:
        """Return the edit of ``key`` itself and its number; None if there is none."""
        return self._changes.get(key)

    def changes(self) -> Mapping[str, Change]:
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
        if not prefixes:
            return False
        end = len(key)
        while end >= 0:
            if key[:end] in prefixes:
                return True
            end = key.rfind("/", 0, end) if end else -1
        return "" in prefixes

    def put(self, key: str, edit: Edit) -> None:
        """Let ``key`` hold ``edit``, or be removed."""
        with self._lock:
            self._put(key, edit)

    def exchange(self, key: str, edit: Edit, same: Edit) -> bool:
        """Let ``key`` hold ``same``, which says what ``edit`` does, if it holds that very one; whether it did."""
        with self._lock:
            change = self._changes.get(key)
            if change is None or change.edit is not edit:
                return False
            self._changes[key] = Change(same, change.number)
            return True

    def remove_below(self, prefix: str) -> None:
        """Remove ``prefix`` and all that lies below it (empty: everything)."""
        with self._lock:
            for key in [key for key in self._changes if is_within(key, prefix)]:
                self._forget(key)
            for known in [known for known in self._prefixes if is_within(known, prefix)]:
                del self._prefixes[known]
            self.number += 1
            self._prefixes[prefix] = self.number

    def names(self, prefix: str) -> Mapping[str, bool]:
        """Return the names directly below ``prefix`` that were written: name → whether there is a directory of it."""
        with self._lock:
            return dict(self._below.get(prefix, {}))

    def is_directory(self, prefix: str) -> bool:
        """Whether something was written below ``prefix``."""
        return prefix in self._below

    def touches(self, prefix: str) -> bool:
        """Whether keys below the directory ``prefix`` were removed: of what the source has, some may not be there."""
        return self._removed.get(prefix, 0) > 0 or any(is_within(p, prefix) for p in list(self._prefixes))

    def copy(self) -> Edits:
        """Return a savepoint: the edits of now, which do not change with these."""
        new = Edits()
        with self._lock:
            new._changes = dict(self._changes)
            new._prefixes = dict(self._prefixes)
            new._below = {directory: dict(names) for directory, names in self._below.items()}
            new._removed = dict(self._removed)
            new.number = self.number
        return new

    def at_hand(self) -> Edits:
        """Return a savepoint in which no bytes are kept aside."""
        return self.resolved(lambda _, edit: Inline(edit.read()) if isinstance(edit, Spooled) else edit)

    def resolved(self, resolve: Callable[[str, Edit], Edit]) -> Edits:
        """Return a savepoint in which each edit is what ``resolve`` makes of it and its key."""
        new = self.copy()
        for key, (edit, number) in new._changes.items():
            found = resolve(key, edit)
            if found is not edit:
                new._changes[key] = Change(found, number)
        return new

    def since(self, earlier: Edits) -> Edits:
        """Return those edits that came after the savepoint ``earlier``."""
        new = Edits()
        with self._lock:
            for prefix, number in sorted(self._prefixes.items(), key=lambda item: item[1]):
                if number > earlier.number:
                    new._prefixes[prefix] = number
            for key, change in self._changes.items():
                if change.number > earlier.number:
                    new._put(key, change.edit, change.number)
            new.number = self.number
        return new

    def spans(self) -> Iterator[Span]:
        """Yield every span that a key holds."""
        for edit, _ in self.changes().values():
            match edit:
                case Span():
                    yield edit

    def after_fork(self) -> None:
        """Be usable in a child, whichever thread held the lock."""
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ the tree of what is there

    def _put(self, key: str, edit: Edit, number: int = 0) -> None:
        self._forget(key)
        self.number = max(self.number + 1, number)
        self._changes[key] = Change(edit, number or self.number)
        path, is_directory = key, False
        if edit is REMOVED:
            while path:
                path, _ = parent(path)
                self._removed[path] = self._removed.get(path, 0) + 1
            return
        while path:
            path, name = parent(path)
            names = self._below.get(path)
            if names is not None:
                names[name] = names.get(name, False) or is_directory
                return
            self._below[path] = {name: is_directory}
            is_directory = True

    def _forget(self, key: str) -> None:
        change = self._changes.pop(key, None)
        if change is None:
            return
        path = key
        if change.edit is REMOVED:
            while path:
                path, _ = parent(path)
                self._removed[path] -= 1
                if not self._removed[path]:
                    del self._removed[path]
            return
        if path in self._below:  # it is a directory too
            directory, name = parent(path)
            self._below[directory][name] = True
            return
        while path:
            directory, name = parent(path)
            names = self._below[directory]
            if path != key and path in self._changes and self._changes[path].edit is not REMOVED:
                names[name] = False
                return
            del names[name]
            if names:
                return
            del self._below[directory]
            path = directory
