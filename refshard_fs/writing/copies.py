"""What a set cannot refer to, copied into one object beside it: chunks made from other bytes, as of LZW or GRIB2.

The object is whole before the set that refers to it appears, and has a name that nothing else has: whoever reads a set
that is replaced goes on with the object of that one. It is removed again where the set is not written.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Any, BinaryIO

from fsspec.callbacks import Callback

from refshard_fs.core.stats import bytes_text, count_text
from refshard_fs.targets.document import Sink


class CopiesBeside:
    """An object in ``folder``, made as soon as there is something to copy: `session.collect.Copies`.

    ``callback`` is told of each chunk.
    """

    def __init__(self, folder: str, options: Mapping[str, Any], callback: Callback) -> None:
        self.url = f"{folder}/{uuid.uuid4().hex}"
        self._sink = Sink(self.url, options)
        self._callback = callback
        self._opened = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._count = self._size = 0

    def begin(self, count: int) -> None:
        self._file = self._opened.enter_context(self._sink.stream())
        self._callback.set_size(count)

    def add(self, data: bytes) -> int:
        assert self._file is not None, "begin() comes first"
        start = self._size
        self._file.write(data)
        self._count += 1
        self._size += len(data)
        self._callback.relative_update(1)
        return start

    def finish(self) -> None:
        """Put the object in its place."""
        self._opened.close()
        self._callback.absolute_update(0)  # what writes the set counts anew

    @property
    def remark(self) -> str | None:
        """What was copied, in one line; None where nothing was."""
        if self._file is None:
            return None
        what = f"{count_text(self._count, 'chunk')}, {bytes_text(self._size)}"
        return f"{what}, are in no form that zarr decodes, and were copied to {self.url}: keep it with the set"

    def __enter__(self) -> CopiesBeside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)
        if kind is not None and self._file is not None:
            self._sink.remove()
            if self._sink.is_local:
                with contextlib.suppress(OSError):  # others have objects there as well
                    os.rmdir(os.path.dirname(self._sink.path))
