"""References as the files of a parquet set. No I/O here.

What a parquet set cannot hold is a ManifestError that names the key.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks, ChunksBuilder
from refshard_fs.core.columns import ABSENT, WHOLE
from refshard_fs.core.consolidated import in_step
from refshard_fs.core.edits import REMOVED, Edit, Edits
from refshard_fs.core.keys import ChunkGrid, is_within, join, parent
from refshard_fs.core.keyspace import place
from refshard_fs.core.model import Inline, Span
from refshard_fs.errors import ManifestError
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet.partition import NOTE, OFFSETS, Written, require_pyarrow
from refshard_fs.formats.kerchunk_parquet.source import Layout
from refshard_fs.references.stream import check_representable
from refshard_fs.references.values import check_name, is_utf8, object_in
from refshard_fs.security.origins import MEMBER, Origins


def layout_document(documents: Iterable[tuple[str, Any]], record_size: int) -> bytes:
    """Return the ``.zmetadata`` of a parquet set with these documents, all of which must be metadata."""
    metadata: dict[str, Any] = {}
    for key, value in documents:
        if isinstance(value, list):
            raise ManifestError(f"{key!r} is a reference, and no chunk of an array: a parquet set cannot hold it")
        if not zarrmeta.is_metadata(key):
            raise ManifestError(f"{key!r} is neither metadata nor a chunk of an array: a parquet set cannot hold it")
        check_name(key)
        document = object_in(value, repr(key))
        if parent(key)[1] != PARQUET:  # the set has its own; zarr refuses others in there
            metadata[key] = document
    metadata |= in_step(metadata)
    return zarrmeta.dumps({"metadata": metadata, "record_size": record_size})


def with_origins(document: bytes, origins: Origins) -> bytes:
    """Return a ``.zmetadata`` that says which URLs of the set others named."""
    if not origins:
        return document
    return zarrmeta.dumps({**zarrmeta.loads(document), "refshard": {MEMBER: origins.to_json()}})


def parquet_partition(
    array: str,
    grid: ChunkGrid,
    numbers: range,
    partition: Chunks,
    written: Written | None = None,
    *,
    dry: bool = False,
) -> bytes:
    """Return the parquet file of the chunks ``numbers`` of ``array``; ``dry``: only see whether there can be one."""
    check_representable(array, grid, numbers, partition)
    targets, offsets, lengths = partition.ranges
    there = targets != ABSENT
    beyond = (offsets >= OFFSETS) | (lengths >= OFFSETS) | (offsets + lengths >= OFFSETS)
    for row in np.flatnonzero(there & (lengths != WHOLE) & beyond).tolist():
        key = join(array, grid.tail(numbers.start + row))
        raise ManifestError(
            f"{key!r} has the offset {offsets[row]} and the length {lengths[row]}: parquet has 63 bits for its end"
        )
    for target, url in enumerate(partition.urls):
        if url is not None and is_utf8(url):
            continue
        key = join(array, grid.tail(numbers.start + int(np.flatnonzero(targets == target)[0])))
        if url is None:
            raise ManifestError(f"{key!r} has no URL, which to parquet is no reference: open the source with target=")
        raise ManifestError(f"{key!r} has the URL {url!r}, which is no UTF-8, as parquet has it")
    return b"" if dry else encode(partition, written)


def encode(partition: Chunks, written: Written | None = None) -> bytes:
    """Return the bytes of a parquet file with the rows of ``partition``, readable by fsspec as well.

    ``written`` says which commit writes it.

    The column of data is there only where it is needed. Data that is empty stands for an
    empty range at offset 0, which would mean the whole target.
    """
    pa, parquet = require_pyarrow()
    targets, offsets, lengths = partition.ranges
    absent = targets == ABSENT
    empty = ~absent & (lengths == 0) & (offsets == 0)
    inline = dict(partition.inline) | dict.fromkeys(np.flatnonzero(empty).tolist(), b"")
    absent |= empty
    codes = pa.array(np.where(absent, 0, targets).astype(np.int32), mask=absent)
    urls = pa.array(partition.urls or [""], pa.string())
    columns = [
        pa.DictionaryArray.from_arrays(codes, urls).cast(pa.string()),
        pa.array(np.where(absent, 0, offsets).astype(np.int64)),
        pa.array(np.where(absent | (lengths == WHOLE), 0, lengths).astype(np.int64)),
    ]
    fields = [
        pa.field("path", pa.string()),
        pa.field("offset", pa.int64(), nullable=False),  # or else pandas makes inexact fractions of them
        pa.field("size", pa.int64(), nullable=False),
    ]
    if inline:
        columns.append(pa.array(map(inline.get, range(len(partition))), pa.binary(), size=len(partition)))
        fields.append(pa.field("raw", pa.binary()))
    notes = None if written is None else {NOTE: msgspec.json.encode(written)}
    out = io.BytesIO()
    parquet.write_table(
        pa.table(columns, schema=pa.schema(fields, notes)),
        out,
        compression="zstd",
        use_dictionary=["path"],
        write_statistics=["offset", "size"],  # without, pandas takes them for columns with nulls, and makes floats
        store_schema=notes is not None,  # pyarrow 15 writes no notes without
        write_page_checksum=True,
        row_group_size=max(len(partition), 1),
    )
    return out.getvalue()


# ----------------------------------------------------------------------------------------------------
# What a commit changes in a parquet set: which partitions become what, and what ``.zmetadata`` says. No I/O here.
#
# Only partitions with edits in them are written anew, while chunks keep their numbers; that is so as long as an array
# grows or shrinks along its first dimension. Otherwise all of its partitions are.


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
    for key, edit in edits.changes().items():
        if not zarrmeta.is_metadata(key) or key == PARQUET:
            continue
        match edit:
            case Inline(data):
                documents[key] = data
            case Span():
                raise ManifestError(f"{key!r} is a reference, and a parquet set holds metadata as such")
            case _:
                documents.pop(key, None)
    named = [(edit.url, edit.origin) for edit in edits.changes().values() if isinstance(edit, Span)]
    document = with_origins(layout_document(documents.items(), old.record_size), old.origins.with_urls(named))
    return Layout(document, where), document


def plan(old: Layout, new: Layout, edits: Edits) -> Plan:
    """Return what ``edits`` change; ManifestError, which names the key, for what a parquet set cannot hold."""
    rows: dict[str, dict[int, dict[int, Edit]]] = {}
    for key, edit in edits.changes().items():
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


def edited_partition(old: Chunks | None, count: int, rows: Mapping[int, Edit]) -> Chunks:
    """Return ``old`` (None: no chunk exists) with ``count`` rows and with ``rows`` edited."""
    builder = ChunksBuilder(count)
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


def document_with(
    document: bytes,
    token: str,
    generation: int,
    kept: Mapping[str, int],
    renamed: Mapping[str, Mapping[int, str | None]] | None = None,
    at: int = 0,
) -> bytes:
    """Return ``.zmetadata`` after the commit number ``generation``.

    ``token`` tells the commit from others: stores name versions by content, and that of two may be the same but for it.
    ``kept`` are replaced files and when they were replaced; ``renamed`` names the partitions that are not yet, or no
    longer, where they belong: since ``at``, somebody is at it.
    """
    spelled = zarrmeta.loads(document)
    partitions = {array: {str(n): name for n, name in names.items()} for array, names in (renamed or {}).items()}
    ours: dict[str, Any] = {**spelled.get("refshard", {}), "commit": token, "generation": generation}
    if kept:
        ours["kept"] = kept
    if partitions:
        ours |= {"partitions": partitions, "at": at}
    return zarrmeta.dumps({**spelled, "refshard": ours})
