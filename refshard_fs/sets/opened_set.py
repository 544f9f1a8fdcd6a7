"""Open a set, to read its references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from refshard_fs.source.normalizing import parse_options
from refshard_fs.source.source import Source
from refshard_fs.writing.writer import Writer


@runtime_checkable
class FileSystemLike(Protocol):
    """The members of a `RefShardFileSystem` that this package uses to join and to save sets."""

    @property
    def source(self) -> Source:
        """The opened source."""

    @property
    def writer(self) -> Writer | None:
        """The writer, which holds uncommitted writes; None if the set is opened for reading."""

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """The keywords with which the source was opened."""


class OpenedSet(NamedTuple):
    """A set that is opened for reading without a filesystem."""

    source: Source
    writer: Writer | None = None
    storage_options: Mapping[str, Any] = {}


def is_open(fo: Any) -> bool:
    """Return whether a set is a `RefShardFileSystem`, or another set that is open."""
    return isinstance(fo, FileSystemLike)


def open_set(fo: Any, given: Mapping[str, Any]) -> FileSystemLike:
    """Open ``fo`` with the keywords ``given``; return ``fo`` itself if it is a set that is open already."""
    if is_open(fo):
        opened: FileSystemLike = fo
        return opened
    source = Source.of(parse_options(fo, given))
    source.reads_small_files_whole = False
    return OpenedSet(source, storage_options=given)
