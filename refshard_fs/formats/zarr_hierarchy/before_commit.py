"""A hierarchy as it was before a commit that is under way, or was cut short: what its keys are then. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from refshard_fs.core.keys import join, parent
from refshard_fs.core.model import Listed, Names, Steps
from refshard_fs.errors import ConflictError
from refshard_fs.formats.zarr_hierarchy.commit_record import DIRECTORY, CommitRecord, Copy

__all__ = ["Before", "NOTHING"]


class Before:
    """What was different below ``url`` before the commit that ``record`` tells of; None: there is none."""

    def __init__(self, record: CommitRecord | None = None, url: str = "") -> None:
        self.record = record
        self.url = url
        self._copies = {} if record is None else record.before()
        self._files: dict[str, dict[str, Copy | None]] = {}  # directory → name → copy
        self._folders: dict[str, dict[str, bool]] = {}  # directory → name → whether there was something in it for sure
        for key, copy in self._copies.items():
            path, name = parent(key)
            self._files.setdefault(path, {})[name] = copy
            while path:
                path, name = parent(path)
                names = self._folders.setdefault(path, {})
                names[name] = names.get(name, False) or copy is not None

    @property
    def is_nothing(self) -> bool:
        """Whether all is as it is now."""
        return not self._copies

    def has(self, key: str) -> bool:
        """Whether `object_of` says more of ``key`` than that it is where it is looked for."""
        return key in self._copies

    def object_of(self, key: str) -> str | None:
        """Return the name of the object that ``key`` was; None if there was no such key."""
        copy = self._copies.get(key)
        return copy.name if copy is not None else None if key in self._copies else key

    def listed(self, url_of: Callable[[str], str], prefix: str) -> Steps[Sequence[Listed] | None]:
        """Return what lay directly below ``prefix``; None if it was no directory."""
        found: Sequence[Listed] | None = yield Names(url_of(prefix))
        files, folders = self._files.get(prefix), self._folders.get(prefix)
        if not prefix and found is not None:
            found = [listed for listed in found if listed.name != DIRECTORY]
        if files is None and folders is None:
            return found
        names = {listed.name: listed for listed in found or ()}
        for name, copy in (files or {}).items():
            if copy is not None:
                names[name] = Listed(name, copy.size)
            elif name in names and not names[name].is_directory:
                del names[name]
        for name, is_certain in (folders or {}).items():
            if is_certain:
                names[name] = Listed(name, None, True)
            elif name in names and names[name].is_directory:
                if not (yield from self.listed(url_of, join(prefix, name))):
                    del names[name]
        return list(names.values()) if names or not prefix else None

    def check_settled(self) -> None:
        """Raise ConflictError unless each key is an object that stays."""
        if not self.is_nothing and self.record is not None:
            raise ConflictError(
                f"a commit to {self.url} by {self.record.by} is under way, or was cut short: what there was before is "
                "kept for readers until it is done, and references to that would lead nowhere. Try again later; if "
                f"that process is dead: refshard recover {self.url}"
            )


NOTHING: Final = Before()
