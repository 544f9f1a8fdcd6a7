"""Reference sets that this package made: values to open, to compare, to pickle and to save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.reference_set import References, ReferenceSet
from refshard_fs.session.in_memory_source import InMemorySource, digest_of
from refshard_fs.writing.options import RECORD_SIZE, SetFormat

__all__ = ["MadeSet", "made", "opened"]


class MadeSet(InMemorySource, frozen=True, eq=False, weakref=True):
    """A reference set in memory: an ``fo`` for `RefShardFileSystem`, and for everything that takes one. Immutable.

    URLs in it are absolute. Equal if the content is.
    """

    @property
    def references(self) -> Mapping[str, Any]:
        """The references as the mapping that their JSON would be: text, object, bytes or ``[url, ...]``."""
        return References(self.columns)

    @property
    def columns(self) -> ReferenceSet:
        """The columns of the set."""
        assert isinstance(self.content, ReferenceSet), "a set that was made is in columns"
        return self.content

    def __len__(self) -> int:
        """Number of keys."""
        return len(self.columns)

    def unpinned(self) -> MadeSet:
        """Return the same references without what is known of their targets."""
        return made(msgspec.structs.replace(self.columns, pins=None))

    def save(
        self,
        url: str,
        format: SetFormat | None = None,
        record_size: int = RECORD_SIZE,
        overwrite: bool = False,
        callback: Callback = DEFAULT_CALLBACK,
        **storage_options: Any,
    ) -> None:
        """Write the set to ``url``, as `RefShardFileSystem.save` does."""
        RefShardFileSystem(self).save(url, format, record_size, overwrite, callback, **storage_options)

    def __reduce__(self) -> tuple[Any, ...]:
        remember, arguments = InMemorySource.__reduce__(self)
        return _again, (remember, arguments)


def made(refs: ReferenceSet) -> MadeSet:
    """Return ``refs``, whose URLs are absolute, as a value to open and to save."""
    return MadeSet(refs, digest_of(refs))


def _again(remember: Any, arguments: tuple[Any, ...]) -> MadeSet:
    held: InMemorySource = remember(*arguments)
    return MadeSet(held.content, held.digest)


def opened(fo: Any, options: Mapping[str, Any]) -> RefShardFileSystem:
    """Return the filesystem of ``fo``, or ``fo`` itself where it is one."""
    return fo if isinstance(fo, RefShardFileSystem) else RefShardFileSystem(fo, **options)
