"""What was written and removed since a source was opened, by key: an overlay that knows no I/O. Any thread may use it.

An edit is what a key holds now (bytes, as `Inline` or `Spooled`, or a `Span` of an object that has them) or
`REMOVED`. Removing a whole prefix hides what the source has below it, at the cost of one entry.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from refshard_fs.core.keys import is_within, parent, splits
from refshard_fs.core.model import Inline, Span
from refshard_fs.core.spool import Spooled

__all__ = ["REMOVED", "Change", "Edit", "Edits", "Removed", "entry_of"]


class Removed(Enum):
    """The one value that stands for a key that is no longer there."""

    REMOVED = "removed"


REMOVED: Final = Removed.REMOVED

Edit: TypeAlias = Inline | Spooled | Span | Removed


def entry_of(edit: Edit) -> Inline | Span | None:
    """Return what readers find at a key that holds ``edit``; None if it was removed."""
    match edit:
        case Spooled():
            return Inline(edit.read())
        case Removed():
            return None
    return edit


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
        """Return what is known of ``key``; None if it was not edited: the source knows it."""
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
        return bool(prefixes) and (key in prefixes or any(path in prefixes for path, _ in splits(key)))

    def put(self, key: str, edit: Edit) -> None:
        """Let ``key`` hold ``edit``, or be removed."""
        with self._lock:
            self._put(key, edit)

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

    def loaded(self) -> Edits:
        """Return a savepoint in which all values are in memory."""
        new = self.copy()
        for key, (edit, number) in new._changes.items():
            if isinstance(edit, Spooled):
                new._changes[key] = Change(Inline(edit.read()), number)
        return new

    def since(self, earlier: int) -> Edits:
        """Return those edits that came after the change number ``earlier``."""
        new = Edits()
        with self._lock:
            for prefix, number in sorted(self._prefixes.items(), key=lambda item: item[1]):
                if number > earlier:
                    new._prefixes[prefix] = number
            for key, change in self._changes.items():
                if change.number > earlier:
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
