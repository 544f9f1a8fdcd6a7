"""Collect the references of a filesystem in columns."""

from __future__ import annotations

from refshard_fs.fs import RefShardFileSystem
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.source.collect import UnreadArrays, collect
from refshard_fs.writing.save import make_speller
from refshard_fs.writing.shards import make_stored_keyspace


def collect_references(fs: RefShardFileSystem, unread: UnreadArrays | None = None) -> ReferenceSet:
    """Collect the references of ``fs``, with absolute URLs and whole shards; uncommitted writes are included.

    Chunks of ``unread`` arrays that would have to be decoded are not read.
    """
    return collect(
        make_stored_keyspace(fs.source, fs.writer), fs.source.run, make_speller(fs.source.options.open, fs.fo), unread
    )
