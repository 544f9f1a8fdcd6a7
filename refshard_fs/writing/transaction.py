"""fsspec's ``with fs.transaction``: a savepoint at the start, a commit at the end; a roll-back on an exception."""

from __future__ import annotations

from typing import Any

from fsspec.transaction import Transaction

__all__ = ["OverlayTransaction"]


class OverlayTransaction(Transaction):  # type: ignore[misc]  # fsspec is untyped
    """All or nothing: what was written meanwhile, through the filesystem or others that share its overlay.

    If the commit itself fails, all is kept in the overlay, to be committed again, saved elsewhere or discarded.
    """

    fs: Any

    def __init__(self, fs: Any, **kwargs: Any) -> None:
        super().__init__(fs, **kwargs)
        self._begin()  # fsspec's `start_transaction` never calls `start`

    def start(self) -> None:
        super().start()
        self._begin()

    def _begin(self) -> None:
        self._savepoint = self.fs._writing("begin a transaction").savepoint()

    def complete(self, commit: bool = True) -> None:
        fs, self.fs = self.fs, None
        fs._intrans = False
        fs._transaction = None
        writer = fs._writing("commit")
        if commit:
            writer.end_transaction()
        else:
            writer.roll_back(self._savepoint)
