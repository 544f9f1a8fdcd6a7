"""Put the document of a set several times in one save, and notice if another writer puts it in between.

A save first puts a document that shows the new set, and then one that other packages can read, too.
"""

from __future__ import annotations

from refshard_fs.core.model import Version
from refshard_fs.errors import ConflictError
from refshard_fs.stores.objects import Objects


class ReplacedDocument:
    """The object ``name`` of a set, which `put` replaces only if no other writer has changed it since the last put."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects = objects
        self._name = name
        self._version: Version = objects.find_version(name)
        self.is_unseen = True  # False as soon as readers may have seen a document that `put` wrote

    def put(self, data: bytes) -> None:
        """Replace the document by ``data``; ConflictError if another writer has put one."""
        was_unseen, self.is_unseen = self.is_unseen, False
        try:
            made = self._objects.put(self._name, (data,), self._version)
        except ConflictError as e:
            self.is_unseen = was_unseen and e.is_certain
            raise ConflictError(
                f"{self._objects.url_of(self._name)} has changed while the set was saved: another writer wrote it. "
                "Save again to replace that version"
            ) from e
        self._version = made or self._objects.find_version(self._name)
