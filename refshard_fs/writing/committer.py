"""What each format's committer is given, and what commits to directories have in common."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable

import msgspec

from refshard_fs.core.edits import Edits
from refshard_fs.errors import ConflictError
from refshard_fs.session.collect import Run
from refshard_fs.session.in_memory_source import InMemorySource
from refshard_fs.session.options import WriteOptions
from refshard_fs.session.overlay import Base, Overlay
from refshard_fs.targets import Given
from refshard_fs.targets.document import Document
from refshard_fs.targets.objects import Objects
from refshard_fs.writing.staging import Values


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


Finish = Callable[[], None]  # what a commit leaves to do once it is made


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
        self._document = Document(self._url, self._given, self._base.facts, committing.overlay.sent)
        self._token = uuid.uuid4().hex  # in the names of new objects, which nobody else has
        self._written: list[str] = []

    def run(self) -> Finish:
        """Make the commit: all of it or nothing. Return what is left to do for readers that know no new names."""
        try:
            data = self._put_objects()
            self._publish(data)
        except BaseException:
            with contextlib.suppress(OSError):
                self._store.remove_all(self._written)
            raise
        return self._finish

    def _put_objects(self) -> bytes:
        """Put all new objects, and return the new document."""
        raise NotImplementedError

    def _tidy(self) -> None:
        """Do what is left to do when the commit is made."""
        raise NotImplementedError

    def _finish(self) -> None:
        with contextlib.suppress(OSError, ConflictError):  # the commit is made, and its document says what is left
            self._tidy()

    def _publish(self, data: bytes) -> None:
        """Put the document that is the commit. If it is not known whether that was done, the objects it names stay."""
        try:
            self._document.put(data)
        except ConflictError:
            raise
        except BaseException:
            if self._document.may_be(data):
                self._written.clear()
            raise

    def _publish_again(self, data: bytes) -> None:
        """Replace the document that this commit has put."""
        Document(self._url, self._given, self._document.made).put(data)
