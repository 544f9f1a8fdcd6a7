"""Documents compressed as their names say when they are written: ``.gz``, ``.bz2``, ``.xz``, ``.zst``."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import importlib
import importlib.util
import io
import lzma
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

from refshard_fs.errors import ReadOnlyError

__all__ = ["Compressed", "Streamed"]


class Streamed(Protocol):
    """Where a document goes: it appears whole, or not at all."""

    def stream(self) -> AbstractContextManager[BinaryIO]:
        """Give a file to write it to; it takes its place when the block ends without an error."""


class Compressed:
    """A document that goes to ``place``, compressed if the end of ``url`` says so."""

    def __init__(self, url: str, place: Streamed) -> None:
        self._url, self._place = url, place

    @contextlib.contextmanager
    def stream(self) -> Iterator[BinaryIO]:
        """Give a file to write the content to; it takes its place when the block ends without an error."""
        with self._place.stream() as file, _compressing(self._url, file) as plain:
            yield plain


@contextlib.contextmanager
def _compressing(url: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """Give a file whose content goes to ``file``, compressed as the name at the end of ``url`` says, or as it is."""
    match url.rpartition(".")[2].lower():
        case "gz":
            with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
                yield packed  # type: ignore[misc]  # it writes as a file does
        case "bz2":
            with bz2.BZ2File(file, "wb") as packed:
                yield packed  # type: ignore[misc]  # as above
        case "xz":
            with lzma.LZMAFile(file, "wb") as packed:
                yield packed  # type: ignore[misc]  # as above
        case "zst" | "zstd":
            compress = _zstd()
            plain = io.BytesIO()
            yield plain
            file.write(compress(plain.getvalue()))
        case _:
            yield file


def _zstd() -> Callable[[bytes], bytes]:
    if importlib.util.find_spec("zstandard") is not None:
        return importlib.import_module("zstandard").ZstdCompressor().compress  # type: ignore[no-any-return]  # untyped
    if importlib.util.find_spec("numcodecs") is not None:
        encode: Callable[[bytes], bytes] = importlib.import_module("numcodecs.zstd").Zstd(level=3).encode
        return encode
    raise ReadOnlyError("to write a set compressed with zstd, install zstandard or numcodecs")
