"""One document that is a commit."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from refshard_fs.core.model import ABSENT, Facts
from refshard_fs.errors import ConflictError
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.store import Condition, sum_of
from refshard_fs.stores.stores import Stores
from refshard_fs.targets.pool import Given


class Document:
    """The object at ``url``, which is to be the version ``expected`` (None: is not to exist) when it is replaced.

    ``sent`` are the sums of what was put without an answer, here and by earlier tries: one of these may be there.
    """

    def __init__(
        self, url: str, stores: Stores | Given, expected: Facts | None, sent: set[bytes] | None = None
    ) -> None:
        self._object = Objects(url, stores)
        self._condition: Condition = ABSENT if expected is None else expected
        self._sent: set[bytes] = set() if sent is None else sent
        self.made: Facts | None = None  # what it is after it was replaced

    @contextlib.contextmanager
    def stream(self) -> Iterator[BinaryIO]:
        """Give a file to write the new content to; it takes the object's place when the block ends without an error.

        Raises ConflictError, and changes nothing, if the object is not the one that was expected.
        """
        if self._object.is_local:
            with self._committing():
                with self._object.stream("", self._condition, durable=True) as file:
                    yield file
                self.made = self._object.facts("")
        else:
            with tempfile.TemporaryFile() as file:
                yield file
                file.seek(0)
                self.put(file.read())

    def put(self, data: bytes) -> None:
        """Replace the object by ``data``; ConflictError if it is not the one that was expected."""
        known, sent = frozenset(self._sent), sum_of([data])
        self._sent.add(sent)
        with self._committing(is_first=not known):
            try:
                made = self._object.put("", (data,), self._condition)
            except ConflictError as e:
                if not known and e.is_certain:
                    self._sent.discard(sent)
                there = self._object.fetch("") if known else None
                if there is None or sum_of([there.data]) not in known:
                    raise
                made = self._object.put("", (data,), there.facts)
            self.made = made or self._object.facts("")
        self._sent.clear()

    def may_be(self, data: bytes) -> bool:
        """Whether the object is ``data`` or may still become it, after `put` raised what is no ConflictError."""
        if not self._object.is_immediate:
            return True  # a server may do what it was asked for after nobody waits for it any more
        there = self._object.fetch("")
        return there is not None and there.data == data

    @contextlib.contextmanager
    def _committing(self, *, is_first: bool = True) -> Iterator[None]:
        """Say of a conflict what it means for the commit; an earlier try, if this is not the first, had no answer."""
        try:
            with self._object.lock(of_parent=True):
                yield
        except ConflictError as e:
            is_new = self._condition is ABSENT
            is_certain = is_first and e.is_certain
            what = "was not there when it was opened, and now is" if is_new else "was opened and then changed"
            done = (
                "Nothing was committed, and your writes are kept"
                if is_certain
                else "An answer of the store was lost, so that your writes may have been committed before that, and be "
                "part of what is there now; they are kept here, too"
            )
            conflict = ConflictError(
                f"{self._object.url} {what}: somebody else wrote it. {done}: discard() goes on with what is there now, "
                "save() writes what you have to another place"
            )
            conflict.is_certain = is_certain
            raise conflict from e
