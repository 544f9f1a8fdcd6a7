"""Commit by replacing the document of a source."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from refshard_fs.core.model import ABSENT, Facts
from refshard_fs.errors import ConflictError
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.store import Condition, compute_checksum
from refshard_fs.stores.stores import Stores
from refshard_fs.targets.credentials import InstanceOrOptions


class DocumentObject:
    """The object at ``url``, which is replaced only if it has the version ``expected`` (None: if it does not exist).

    ``sent`` has the checksums of the bytes that were put without an answer, now or in earlier tries: the object may
    have these bytes.
    """

    def __init__(
        self, url: str, stores: Stores | InstanceOrOptions, expected: Facts | None, sent: set[bytes] | None = None
    ) -> None:
        self._object = Objects(url, stores)
        self._condition: Condition = ABSENT if expected is None else expected
        self._sent: set[bytes] = set() if sent is None else sent
        self.new_facts: Facts | None = None  # the size and version after the replacement

    @contextlib.contextmanager
    def stream(self) -> Iterator[BinaryIO]:
        """Yield a file for the new content; it replaces the object when the block ends without an error.

        Raises ConflictError, and changes nothing, if the object does not have the expected version.
        """
        if self._object.is_local:
            with self._lock_for_commit():
                with self._object.stream("", self._condition, durable=True) as file:
                    yield file
                self.new_facts = self._object.get_facts("")
        else:
            with tempfile.TemporaryFile() as file:
                yield file
                file.seek(0)
                self.put(file.read())

    def put(self, data: bytes) -> None:
        """Replace the object by ``data``; ConflictError if another writer changed it."""
        known, sent = frozenset(self._sent), compute_checksum([data])
        self._sent.add(sent)
        with self._lock_for_commit(is_first=not known):
            try:
                new_facts = self._object.put("", (data,), self._condition)
            except ConflictError as e:
                if not known and e.is_certain:
                    self._sent.discard(sent)
                stored = self._object.fetch("") if known else None
                if stored is None or compute_checksum([stored.data]) not in known:
                    raise
                new_facts = self._object.put("", (data,), stored.facts)
            self.new_facts = new_facts or self._object.get_facts("")
        self._sent.clear()

    def may_be_stored(self, data: bytes) -> bool:
        """Return whether ``data`` may be stored, now or soon, after `put` raised an error other than a conflict."""
        if not self._object.is_immediate:
            return True  # a server may still carry out a request after its client stopped waiting
        stored = self._object.fetch("")
        return stored is not None and stored.data == data

    @contextlib.contextmanager
    def _lock_for_commit(self, *, is_first: bool = True) -> Iterator[None]:
        """Hold the lock; replace a ConflictError by one that explains the commit. ``is_first``: no answer was lost."""
        try:
            with self._object.lock(of_parent=True):
                yield
        except ConflictError as e:
            is_new = self._condition is ABSENT
            is_certain = is_first and e.is_certain
            what = "did not exist when it was opened, and now exists" if is_new else "has changed since it was opened"
            done = (
                "Nothing was committed, and your writes are kept"
                if is_certain
                else "The answer to an earlier try was lost, so your writes may have been committed; they are kept "
                "here, too"
            )
            conflict = ConflictError(
                f"{self._object.url} {what}: another writer wrote it. {done}: discard() continues with its present "
                "content, save() writes your version to another place"
            )
            conflict.is_certain = is_certain
            raise conflict from e
