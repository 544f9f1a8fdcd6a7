"""Make ZIP archives by zipfile, and read them by this package."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Mapping
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem

pytestmark = pytest.mark.usefixtures("large_files")


URL = "s3://bucket/a.zip"


def make_members(seed: int = 1, size: int = 3000) -> dict[str, bytes]:
    source = random.Random(seed)
    return {f"a/{i}/x{j}": source.randbytes(source.randrange(1, size)) for i in range(3) for j in range(12)}


class Unseekable(io.RawIOBase):
    """A file that cannot seek, such as a pipe."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)


def make_zip(
    members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b"", *, piped: bool = False
) -> bytes:
    buffer: Any = Unseekable() if piped else io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.comment = comment
    return bytes(buffer.data if piped else buffer.getvalue())


def open_archive(data: bytes, **options: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo=data, **options)


def read_contents(fs: RefShardFileSystem) -> dict[str, bytes]:
    return {name: fs.cat_file(name) for name in fs.find("")}
