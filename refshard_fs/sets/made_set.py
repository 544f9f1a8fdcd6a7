"""A reference set in memory: the result of `concat`, `rebase` or `snapshot`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from refshard_fs.core.stats import format_count
from refshard_fs.errors import redact
from refshard_fs.references.reference_set import References, ReferenceSet
from refshard_fs.security.policy import split_chain
from refshard_fs.sets.save_set import save_set
from refshard_fs.source.in_memory_source import InMemorySource, compute_digest
from refshard_fs.source.normalizing import parse_options
from refshard_fs.source.options import RECORD_SIZE, check_spelling
from refshard_fs.source.source import Source
from refshard_fs.tools.filesystem_view import render_filesystem


class MadeSet(InMemorySource, frozen=True, eq=False, weakref=True):
    """A reference set in memory: an ``fo`` for `RefShardFileSystem`, and for everything that takes one. Immutable.

    Its URLs are absolute. Two sets are equal if their contents are equal. Filesystems of this set open its targets with
    ``opened_with``, the arguments that opened its sources. A saved set does not have these arguments.
    """

    opened_with: Mapping[str, Any] = {}

    def get_arguments(self) -> Mapping[str, Any]:
        """Return the arguments that opened the sources of this set: filesystems of this set use them, too."""
        return self.opened_with

    @property
    def references(self) -> Mapping[str, Any]:
        """The references by key, as in their JSON: text, an object, bytes, or ``[url, offset, length]``."""
        return References(self.columns)

    @property
    def columns(self) -> ReferenceSet:
        """The references as columns."""
        assert isinstance(self.content, ReferenceSet), "the content of a MadeSet is columns"
        return self.content

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self.columns)

    def unpinned(self) -> MadeSet:
        """Return the same references without pins."""
        return make_set(msgspec.structs.replace(self.columns, pins=None), self.opened_with)

    def save(
        self,
        url: str,
        format: str | None = None,
        record_size: int = RECORD_SIZE,
        overwrite: bool = False,
        callback: Callback = DEFAULT_CALLBACK,
        **storage_options: Any,
    ) -> str:
        """Write the set to ``url``, as `RefShardFileSystem.save` does.

        Return one line on the targets that only this package can read, and why; "" if other software reads all.
        """
        check_spelling(storage_options, MadeSet.save)
        save_set(Source.of(parse_options(self)), None, url, format, record_size, overwrite, callback, storage_options)
        return self.remark

    @property
    def remark(self) -> str:
        """One line on the targets that only this package can read, and why; empty if other software reads all."""
        chained = [url for url in self.columns.urls if url is not None and len(split_chain(url)) > 1]
        if not chained:
            return ""
        return (
            f"only refshard can read {format_count(len(chained), 'target')} of {len(self.columns.urls)}, which are "
            f"files within other files, such as {redact(chained[0])}"
        )

    def _repr_html_(self) -> str:
        source = Source.of(parse_options(self))
        source.open()  # it is in memory: nothing is read
        return render_filesystem(source)

    def __reduce__(self) -> tuple[Any, ...]:
        remember, arguments = InMemorySource.__reduce__(self)
        return restore_set, (remember, arguments, self.opened_with)


def make_set(refs: ReferenceSet, opened_with: Mapping[str, Any] | None = None) -> MadeSet:
    """Return ``refs``, whose URLs are absolute, as a value to open and to save."""
    return MadeSet(refs, compute_digest(refs), opened_with or {})


def restore_set(remember: Any, arguments: tuple[Any, ...], opened_with: Mapping[str, Any] | None = None) -> MadeSet:
    """Return the set of a pickle; earlier pickles have no ``opened_with``."""
    held: InMemorySource = remember(*arguments)
    return MadeSet(held.content, held.digest, opened_with or {})
