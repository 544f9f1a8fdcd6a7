"""Implement fsspec's transaction for the writes to one source."""

from __future__ import annotations

from typing import Any

from fsspec.transaction import Transaction


class OverlayTransaction(Transaction):  # type: ignore[misc]  # fsspec is untyped
    """Commit all writes to the overlay, or drop the writes since the start, also of filesystems that share the overlay.

    If the commit fails, the edits are kept: they can be committed again, saved elsewhere or discarded.
    """

    fs: Any

    def __init__(self, fs: Any, **kwargs: Any) -> None:
        super().__init__(fs, **kwargs)
        self._begin()  # fsspec's `start_transaction` never calls `start`

    def start(self) -> None:
        super().start()
        self._begin()

    def _begin(self) -> None:
        self._savepoint = self.fs.require_writer("begin a transaction").overlay.begin()

    def complete(self, commit: bool = True) -> None:
        fs, self.fs = self.fs, None
        fs._intrans = False
        fs._transaction = None
        writer = fs.require_writer("commit")
        if not commit:
            writer.roll_back(self._savepoint)
        elif writer.overlay.worker is None and isinstance(writer.source.options.source, str):
            # For a worker, another process commits the edits; a source in memory already has them.
            from refshard_fs.writing import commit as committing  # not imported for reading

            committing.commit(writer)
