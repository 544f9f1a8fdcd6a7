"""fsspec's ``with fs.transaction``: a savepoint at the start, a commit at the end; back to it on an exception."""

from __future__ import annotations

from typing import Any

from fsspec.transaction import Transaction

__all__ = ["OverlayTransaction"]


class OverlayTransaction(Transaction):  # type: ignore[misc]  # fsspec is untyped
    """All or nothing: what was written through the filesystem, or any twin of it, meanwhile.

    If the commit itself fails, all is kept in the overlay, to be committed again, saved elsewhere or discarded.
    """

    fs: Any

    def __init__(self, fs: Any, **kwargs: Any) -> None:
        super().__init__(fs, **kwargs)
        self._savepoint = fs.savepoint()  # of `start_transaction`, which never calls `start`

    def start(self) -> None:
        super().start()
        self._savepoint = self.fs.savepoint()

    def complete(self, commit: bool = True) -> None:
        fs, self.fs = self.fs, None
        fs._intrans = False
        fs._transaction = None
        if commit:
            fs.end_of_transaction()
        else:
            fs.go_back(self._savepoint)
