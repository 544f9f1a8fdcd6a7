"""Put the document of a set in steps: first the one that shows the new set, then the one that others read, too."""

from __future__ import annotations

from refshard_fs.core.model import Version
from refshard_fs.errors import ConflictError
from refshard_fs.stores.objects import Objects


class ReplacedDocument:
    """The object ``name`` of a set, which is put only if no other writer has put it since it was last seen here."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects = objects
        self._name = name
        self._version: Version = objects.version(name)
        self.is_unseen = True  # False as soon as a reader may have seen a document that was put here

    def put(self, data: bytes) -> None:
        """Replace the document by ``data``; ConflictError if another writer has put one."""
        was_unseen, self.is_unseen = self.is_unseen, False
        try:
            made = self._objects.put(self._name, (data,), self._version)
        except ConflictError as e:
            self.is_unseen = was_unseen and e.is_certain
            raise ConflictError(
                f"{self._objects.url_of(self._name)} has changed while the set was saved: another writer wrote it. "
                "Save again to replace what is there now"
            ) from e
        self._version = made or self._objects.version(self._name)
