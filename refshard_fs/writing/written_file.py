"""A key as a file that is written: it becomes one when it is closed, or not at all."""

from __future__ import annotations

import io
from typing import Any

from fsspec.asyn import AsyncFileSystem

__all__ = ["WrittenFile"]


class WrittenFile(io.BytesIO):
    """A file that becomes a key when it is closed, and not if its ``with`` block ends in an exception."""

    def __init__(self, fs: AsyncFileSystem, key: str, before: bytes, *, at_end: bool) -> None:
        super().__init__(before)
        self._fs: AsyncFileSystem | None = fs
        self.path = key
        if at_end:
            self.seek(0, io.SEEK_END)

    def close(self) -> None:
        fs, self._fs = self._fs, None
        if fs is not None:
            fs.pipe_file(self.path, self.getvalue())
        super().close()

    def commit(self) -> None:
        """Be written by the transaction, which does that for all at once."""

    def discard(self) -> None:
        """Leave the key as it was."""
        self._fs = None

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            self._fs = None
        super().__exit__(kind, *rest)

    def __del__(self) -> None:
        self._fs = None  # never closed: not known to be whole
