"""What each format's committer is given, and what commits to directories have in common."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import msgspec

from refshard_fs.core.edits import Edits
from refshard_fs.errors import ConflictError
from refshard_fs.session.collect import Run
from refshard_fs.session.in_memory_source import InMemorySource
from refshard_fs.session.overlay import Base, Overlay
from refshard_fs.targets import Given
from refshard_fs.targets.document import Document
from refshard_fs.targets.objects import Objects
from refshard_fs.writing.options import WriteOptions
from refshard_fs.writing.staging import Values

__all__ = ["Committing", "DirectoryCommit"]


class Committing(msgspec.Struct, frozen=True, eq=False):
    """One commit: the source as it was opened, the edits, and what opens URLs."""

    source: str | InMemorySource
    base: Base
    edits: Edits  # a savepoint: it does not change
    overlay: Overlay
    run: Run
    given: Callable[[str], Given]
    options: WriteOptions
    values: Values  # what makes objects of values


class DirectoryCommit:
    """One commit to a directory whose document ``name`` says what is in it: new objects first, that document last."""

    def __init__(self, committing: Committing, name: str) -> None:
        self._run = committing.run
        self._edits = committing.edits
        self._base = committing.base
        root = str(committing.source).rstrip("/")
        self._store = Objects(root, committing.given(root))
        self._url = self._store.url_of(name)
        self._given = committing.given(self._url)
        self._sent = committing.overlay.sent
        self._token = uuid.uuid4().hex  # in the names of new objects, which nobody else has
        self._written: list[str] = []

    def _publish(self, document: Document, data: bytes) -> None:
        """Put the document that is the commit. If it is not known whether that was done, the objects it names stay."""
        try:
            document.put(data)
        except ConflictError:
            raise
        except BaseException:
            if document.may_be(data):
                self._written.clear()
            raise
