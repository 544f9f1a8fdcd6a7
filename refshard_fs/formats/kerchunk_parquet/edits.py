"""What a commit changes in a parquet set: which partitions become what, and what ``.zmetadata`` says. No I/O here.

Only partitions with edits in them are written anew, while chunks keep their numbers; that is so as long as an array
grows or shrinks along its first dimension. Otherwise all of its partitions are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ABSENT, WHOLE
from refshard_fs.core.edits import REMOVED, Edit, Edits
from refshard_fs.core.keys import ChunkGrid, is_within
from refshard_fs.core.keyspace import place
from refshard_fs.core.model import Inline, Span
from refshard_fs.errors import ManifestError
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet.source import Layout
from refshard_fs.formats.kerchunk_parquet.writing import layout_document
from refshard_fs.references.partition import Partition, PartitionBuilder

__all__ = ["Change", "Plan", "document_with", "edited_partition", "new_layout", "plan"]


class Change(NamedTuple):
    """How the partitions of one array change: rows by partition and row; or all of them are made anew."""

    rows: Mapping[int, Mapping[int, Edit]]
    cut: tuple[int, ...] = ()  # partitions of which rows at the end are added or taken away
    anew: bool = False
    keeps: bool = True  # whether chunks that there were are still there


class Plan(NamedTuple):
    """All changes by array, and the arrays that are no more."""

    changes: Mapping[str, Change]
    gone: tuple[str, ...]


def new_layout(old: Layout, edits: Edits, where: str) -> tuple[Layout, bytes]:
    """Return what ``.zmetadata`` says after ``edits``, and as the document it is."""
    documents: dict[str, Any] = {key: value for key, value in old.metadata.items() if not edits.hides(key)}
    for key, (edit, _) in edits.changes().items():
        if not zarrmeta.is_metadata(key) or key == PARQUET:
            continue
        match edit:
            case Inline(data):
                documents[key] = data
            case Span():
                raise ManifestError(f"{key!r} is a reference, and a parquet set holds metadata as such")
            case _:
                documents.pop(key, None)
    document = layout_document(documents.items(), old.record_size)
    return Layout(document, where), document


def plan(old: Layout, new: Layout, edits: Edits) -> Plan:
    """Return what ``edits`` change; ManifestError, which names the key, for what a parquet set cannot hold."""
    rows: dict[str, dict[int, dict[int, Edit]]] = {}
    for key, (edit, _) in edits.changes().items():
        if zarrmeta.is_metadata(key):
            continue
        at = place(new.grids, key)
        if at is not None:
            number, row = divmod(at.number, new.record_size)
            rows.setdefault(at.array, {}).setdefault(number, {})[row] = edit
        elif edit is not REMOVED:
            raise ManifestError(f"{key!r} is neither metadata nor a chunk of an array: a parquet set cannot hold it")
    changes: dict[str, Change] = {}
    prefixes = edits.prefixes()
    for path, grid in new.grids.items():
        there = rows.get(path, {})
        before = old.grids.get(path)
        if before is None or edits.hides(path):
            if there or before is not None:
                changes[path] = Change(there, anew=True, keeps=False)
        elif any(is_within(prefix, path) for prefix in prefixes) or not _same_numbers(before, grid):
            changes[path] = Change(there, anew=True)
        elif there or before.size != grid.size:
            changes[path] = Change(there, _cut(before.size, grid.size, new.record_size))
    return Plan(changes, tuple(path for path in old.grids if path not in new.grids))


def _same_numbers(before: ChunkGrid, after: ChunkGrid) -> bool:
    return (
        before.encoding == after.encoding
        and len(before.counts) == len(after.counts)
        and (before.counts[1:] == after.counts[1:])
    )


def _cut(before: int, after: int, size: int) -> tuple[int, ...]:
    """Return the partition that has more or fewer rows now than it was written with, if there is one."""
    least = min(before, after)
    return (least // size,) if before != after and least % size else ()


def edited_partition(old: Partition | None, count: int, rows: Mapping[int, Edit]) -> Partition:
    """Return ``old`` (None: no chunk exists) with ``count`` rows and with ``rows`` edited."""
    builder = PartitionBuilder(count)
    if old is not None:
        kept = slice(min(count, len(old)))
        builder.put(kept, old.urls, old.ranges.take(kept))
        builder.inline.update((row, data) for row, data in old.inline.items() if row < kept.stop and row not in rows)
    targets, offsets, lengths = builder.ranges
    for row, edit in rows.items():
        targets[row], offsets[row], lengths[row] = ABSENT, 0, 0
        match edit:
            case Inline(data):
                builder.inline[row] = data
            case Span(url, start, stop):
                targets[row], offsets[row] = builder.code(url), start
                lengths[row] = WHOLE if stop is None else stop - start
    return builder.finish()


def document_with(document: bytes, renamed: Mapping[str, Mapping[int, str | None]], token: str, at: int) -> bytes:
    """Return ``.zmetadata`` with the names of partitions that are not yet, or no longer, where they belong.

    ``token`` tells the commit from others: stores name versions by content, and that of two may be the same but for it.
    """
    spelled = zarrmeta.loads(document)
    partitions = {array: {str(n): name for n, name in names.items()} for array, names in renamed.items() if names}
    ours = {"partitions": partitions, "at": at, "commit": token} if partitions else {"commit": token}
    return zarrmeta.dumps({**spelled, "refshard": ours})
