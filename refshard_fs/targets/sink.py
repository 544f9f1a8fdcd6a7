"""Where new objects are written: each appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import fsspec
from fsspec.implementations.local import LocalFileSystem

from refshard_fs.policy import protocol_of
from refshard_fs.targets.draft import replacing

__all__ = ["Sink"]


class Sink:
    """One object or directory that is to be written, at a URL and with the options of its filesystem."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._fs, path = fsspec.core.url_to_fs(url, **options)
        self.path = path.rstrip("/")
        self.is_local = type(self._fs) is LocalFileSystem

    def is_at(self, url: str) -> bool:
        """Whether ``url`` is the same place."""
        protocols = (self._fs.protocol,) if isinstance(self._fs.protocol, str) else self._fs.protocol
        same = (protocol_of(url) or "file") in protocols
        return same and str(self._fs._strip_protocol(url)).rstrip("/") == self.path

    def names(self) -> list[str]:
        """Return the names directly below the directory; none where it does not exist."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        except NotADirectoryError as e:
            raise FileExistsError(f"{self.path} is a file") from e
        names = [str(name).rstrip("/") for name in found]
        if names == [self.path] and not self._fs.isdir(self.path):
            raise FileExistsError(f"{self.path} is a file")
        return [name.rpartition("/")[2] for name in names if name != self.path]

    def read(self, name: str) -> bytes:
        """Return the object ``name`` of the directory."""
        data: bytes = self._fs.cat_file(f"{self.path}/{name}")
        return data

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write the objects ``files`` (name → bytes) of the directory."""
        if not self.is_local:
            self._fs.pipe({f"{self.path}/{name}": data for name, data in files.items()})
            return
        for name, data in files.items():
            path = f"{self.path}/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with replacing(path) as file:
                file.write(data)

    def remove(self) -> None:
        """Remove the directory and all that is in it."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self.path, recursive=True)

    @contextlib.contextmanager
    def stream(self) -> Iterator[BinaryIO]:
        """Give a file to write the object to; it takes its place when the block ends without an error."""
        if self.is_local:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            with replacing(self.path) as file:
                yield file
            return
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "object")
            with open(path, "wb") as file:
                yield file
            self._fs.put_file(path, self.path)
