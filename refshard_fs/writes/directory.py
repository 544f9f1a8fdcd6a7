"""What commits have in common that one document in a directory makes visible: new objects first, and that one last."""

from __future__ import annotations

import uuid

from refshard_fs.errors import ConflictError
from refshard_fs.targets.document import Document
from refshard_fs.targets.store import Store
from refshard_fs.writes.committing import Committing

__all__ = ["DirectoryCommit"]


class DirectoryCommit:
    """One commit to the directory that is the source, of which the document ``name`` tells what is in it."""

    def __init__(self, committing: Committing, name: str) -> None:
        self._run = committing.run
        self._stop = committing.stop
        self._edits = committing.edits
        self._base = committing.base
        root = str(committing.source).rstrip("/")
        self._store = Store(root, committing.given(root))
        self._url = self._store.url_of(name)
        self._given = committing.given(self._url)
        self._sent = committing.overlay.sent
        self._token = uuid.uuid4().hex  # in the names of new objects, which nobody else has
        self._written: list[str] = []

    def _publish(self, document: Document, data: bytes) -> None:
        """Put the document that is the commit. Where nobody can tell whether that was done, what it names stays."""
        try:
            document.put(data)
        except ConflictError:
            raise
        except BaseException:
            if document.may_be(data):
                self._written.clear()
            raise
