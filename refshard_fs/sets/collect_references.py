"""Collect the references of a set in columns."""

from __future__ import annotations

from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.sets.opened_set import FileSystemLike
from refshard_fs.source.collect import UnreadArrays, collect
from refshard_fs.writing.save import make_speller
from refshard_fs.writing.shards import make_stored_keyspace


def collect_references(opened: FileSystemLike, unread: UnreadArrays | None = None) -> ReferenceSet:
    """Collect the references of a set, with absolute URLs and whole shards; uncommitted writes are included.

    Chunks of ``unread`` arrays that would have to be decoded are not read.
    """
    source = opened.source
    respell = make_speller(source.options.open, source.options.source)
    return collect(make_stored_keyspace(source, opened.writer), source.run, respell, unread)
