"""Encode references as the files of a parquet set, and decide which files a commit changes. No I/O here.

ManifestError names the key of a reference that a parquet set cannot hold.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import Chunks, ChunksBuilder
from refshard_fs.core.columns import NO_TARGET, WHOLE
from refshard_fs.core.consolidated import update_consolidated
from refshard_fs.core.edits import REMOVED, Edit, Edits
from refshard_fs.core.keys import ChunkGrid, is_within, join, parent
from refshard_fs.core.keyspace import find_chunk
from refshard_fs.core.model import Inline, Span
from refshard_fs.errors import ManifestError
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet.partition import NOTE, OFFSETS, PartitionHistory, require_pyarrow
from refshard_fs.formats.kerchunk_parquet.source import Layout
from refshard_fs.references.stream import check_representable
from refshard_fs.references.values import check_name, is_utf8, object_in
from refshard_fs.security.origins import MEMBER, Origins


def make_layout_document(documents: Iterable[tuple[str, Any]], record_size: int) -> bytes:
    """Make the ``.zmetadata`` of a parquet set with ``documents``; ManifestError if a document is not metadata."""
    metadata: dict[str, Any] = {}
    for key, value in documents:
        if isinstance(value, list):
            found = f"{key!r} is a reference, and not to a chunk of an array"
            raise ManifestError(f"{found}: expected references only to chunks. Save the set as JSON")
        if not zarrmeta.is_metadata(key):
            raise ManifestError(_make_key_error(key))
        check_name(key)
        document = object_in(value, repr(key))
        # This function makes the root's ``.zmetadata`` anew; zarr refuses such documents in other groups.
        if parent(key)[1] != PARQUET:
            metadata[key] = document
    metadata |= update_consolidated(metadata)
    # zarr-python 2 reads the document as consolidated metadata, and refuses it without this member.
    consolidated = {"zarr_consolidated_format": 1} if ".zgroup" in metadata else {}
    return zarrmeta.dumps({"metadata": metadata, **consolidated, "record_size": record_size})


def add_origins(document: bytes, origins: Origins) -> bytes:
    """Add the origins of URLs to a ``.zmetadata``: the servers of the sets that the URLs come from."""
    if not origins:
        return document
    return zarrmeta.dumps({**zarrmeta.loads(document), "refshard": {MEMBER: origins.to_json()}})


def _make_key_error(key: str) -> str:
    expected = "expected metadata or a chunk of an array, which are all that a parquet set can hold"
    return f"{key!r}: {expected}. Save the set as JSON, or leave this key out"


def encode_partition(
    array: str,
    grid: ChunkGrid,
    numbers: range,
    partition: Chunks,
    history: PartitionHistory | None = None,
    *,
    dry: bool = False,
) -> bytes:
    """Encode the chunks ``numbers`` of ``array`` as a parquet file; ManifestError if such a file cannot hold a chunk.

    If ``dry``, only check this, and return b"".
    """
    check_representable(array, grid, numbers, partition)
    targets, offsets, lengths = partition.ranges
    is_beyond = (offsets >= OFFSETS) | (lengths >= OFFSETS) | (offsets + lengths >= OFFSETS)
    for row in np.flatnonzero((targets != NO_TARGET) & (lengths != WHOLE) & is_beyond).tolist():
        key = join(array, grid.tail(numbers.start + row))
        raise ManifestError(
            f"{key!r} has the offset {offsets[row]} and the length {lengths[row]}: expected an end below 2**63"
        )
    for target, url in enumerate(partition.urls):
        if url is not None and is_utf8(url):
            continue
        key = join(array, grid.tail(numbers.start + int(np.flatnonzero(targets == target)[0])))
        if url is None:
            raise ManifestError(f"{key!r} has no URL, but a parquet set needs one: open the source with target=")
        raise ManifestError(f"{key!r} has the URL {url!r}: expected UTF-8 in a parquet set. Save the set as JSON")
    return b"" if dry else encode_checked_partition(partition, history)


def encode_checked_partition(partition: Chunks, history: PartitionHistory | None = None) -> bytes:
    """Encode ``partition`` as a parquet file, which fsspec can read, too, with the ``history`` of commits in it.

    Without inline data, the file lacks the column for it. An empty range at offset 0 is written as empty inline data,
    because offset 0 and size 0 mean the whole target.
    """
    pa, parquet = require_pyarrow()
    targets, offsets, lengths = partition.ranges
    is_absent = targets == NO_TARGET
    is_empty = ~is_absent & (lengths == 0) & (offsets == 0)
    inline = dict(partition.inline) | dict.fromkeys(np.flatnonzero(is_empty).tolist(), b"")
    is_absent |= is_empty
    codes = pa.array(np.where(is_absent, 0, targets).astype(np.int32), mask=is_absent)
    urls = pa.array(partition.urls or [""], pa.string())
    columns = [
        pa.DictionaryArray.from_arrays(codes, urls).cast(pa.string()),
        pa.array(np.where(is_absent, 0, offsets).astype(np.int64)),
        pa.array(np.where(is_absent | (lengths == WHOLE), 0, lengths).astype(np.int64)),
    ]
    fields = [
        pa.field("path", pa.string()),
        pa.field("offset", pa.int64(), nullable=False),  # pandas reads integers that may be null as inexact floats
        pa.field("size", pa.int64(), nullable=False),
    ]
    if inline:
        columns.append(pa.array(map(inline.get, range(len(partition))), pa.binary(), size=len(partition)))
        fields.append(pa.field("raw", pa.binary()))
    notes = None if history is None else {NOTE: msgspec.json.encode(history)}
    out = io.BytesIO()
    parquet.write_table(
        pa.table(columns, schema=pa.schema(fields, notes)),
        out,
        compression="zstd",
        use_dictionary=["path"],
        write_statistics=["offset", "size"],  # without them, pandas assumes nulls and reads floats
        store_schema=notes is not None,  # otherwise pyarrow 15 does not write the notes
        write_page_checksum=True,
        row_group_size=max(len(partition), 1),
    )
    return out.getvalue()


# Commits: the changes of partitions, and the new ``.zmetadata``. If an array grows or shrinks along its first dimension
# only, its chunks keep their numbers: partitions with edits are written again, and so is the partition that gains or
# loses rows at its end. After any other change of its grid, all its partitions are written again.


class Change(NamedTuple):
    """The changes of an array. ``rows`` has the edits by partition, and by row of the partition."""

    rows: Mapping[int, Mapping[int, Edit]]
    resized: tuple[int, ...] = ()  # partitions that gain or lose rows at their end
    is_rewritten: bool = False  # all partitions are written again
    keeps_chunks: bool = True  # the chunks before the commit still exist


class Plan(NamedTuple):
    """The changes by array, and the arrays that the commit removes."""

    changes: Mapping[str, Change]
    removed: tuple[str, ...]


def make_layout(old: Layout, edits: Edits, where: str) -> tuple[Layout, bytes]:
    """Return the layout after ``edits``, and its ``.zmetadata``; ManifestError if a parquet set cannot hold an edit.

    ``where`` is the name of the ``.zmetadata`` in errors.
    """
    documents: dict[str, Any] = {key: value for key, value in old.metadata.items() if not edits.hides(key)}
    for key, edit in edits.list_changes().items():
        if not zarrmeta.is_metadata(key) or key == PARQUET:
            continue
        match edit:
            case Inline(data):
                documents[key] = data
            case Span():
                raise ManifestError(f"{key!r} is a reference: expected the bytes of metadata in a parquet set")
            case _:
                documents.pop(key, None)
    urls = [(edit.url, edit.origin) for edit in edits.list_changes().values() if isinstance(edit, Span)]
    document = add_origins(make_layout_document(documents.items(), old.record_size), old.origins.with_urls(urls))
    return Layout(document, where), document


def plan_changes(old: Layout, new: Layout, edits: Edits) -> Plan:
    """Plan the changes of arrays by ``edits``. Raise ManifestError for a key that a parquet set cannot hold."""
    rows: dict[str, dict[int, dict[int, Edit]]] = {}
    for key, edit in edits.list_changes().items():
        if zarrmeta.is_metadata(key):
            continue
        at = find_chunk(new.grids, key)
        if at is not None:
            number, row = divmod(at.number, new.record_size)
            rows.setdefault(at.array, {}).setdefault(number, {})[row] = edit
        elif edit is not REMOVED:
            raise ManifestError(_make_key_error(key))
    changes: dict[str, Change] = {}
    prefixes = edits.list_prefixes()
    for path, grid in new.grids.items():
        own_rows = rows.get(path, {})
        before = old.grids.get(path)
        if before is None or edits.hides(path):
            if own_rows or before is not None:
                changes[path] = Change(own_rows, is_rewritten=True, keeps_chunks=False)
        elif any(is_within(prefix, path) for prefix in prefixes) or not _keeps_numbers(before, grid):
            changes[path] = Change(own_rows, is_rewritten=True)
        elif own_rows or before.size != grid.size:
            changes[path] = Change(own_rows, _find_resized_partition(before.size, grid.size, new.record_size))
    return Plan(changes, tuple(path for path in old.grids if path not in new.grids))


def _keeps_numbers(before: ChunkGrid, after: ChunkGrid) -> bool:
    """Return whether chunks have the same numbers in both grids."""
    return (
        before.encoding == after.encoding
        and len(before.counts) == len(after.counts)
        and (before.counts[1:] == after.counts[1:])
    )


def _find_resized_partition(before: int, after: int, size: int) -> tuple[int, ...]:
    """Return the partition that gains or loses rows if an array of ``before`` chunks gets ``after`` chunks.

    The result is empty if only whole partitions, of ``size`` rows, are gained or lost.
    """
    least = min(before, after)
    return (least // size,) if before != after and least % size else ()


def edit_partition(old: Chunks | None, count: int, rows: Mapping[int, Edit]) -> Chunks:
    """Return the partition ``old`` (None if no chunk existed) with edits by row; the result has ``count`` rows."""
    builder = ChunksBuilder(count)
    if old is not None:
        common = slice(min(count, len(old)))
        builder.put(common, old.urls, old.ranges.take(common))
        builder.inline.update((row, data) for row, data in old.inline.items() if row < common.stop and row not in rows)
    targets, offsets, lengths = builder.ranges
    for row, edit in rows.items():
        targets[row], offsets[row], lengths[row] = NO_TARGET, 0, 0
        match edit:
            case Inline(data):
                builder.inline[row] = data
            case Span(url, start, stop):
                targets[row], offsets[row] = builder.encode_target(url), start
                lengths[row] = WHOLE if stop is None else stop - start
    return builder.finish()


def make_document(
    document: bytes,
    token: str,
    generation: int,
    kept: Mapping[str, int],
    renamed: Mapping[str, Mapping[int, str | None]] | None = None,
    at: int = 0,
    *,
    is_for_us_alone: bool = False,
) -> bytes:
    """Return ``.zmetadata`` after the commit with the number ``generation``.

    ``token`` makes the document unique. Otherwise two commits could write equal documents, and if the ETag is a hash of
    the content, it would not change. ``kept`` are replaced files, with the time of their replacement. ``renamed`` has
    the file names of partitions that do not have their usual names yet; at the time ``at``, a commit began to rename
    these files. Times are in seconds since 1970.

    If ``is_for_us_alone``, other readers get an error: they would read partitions of the set that is being replaced.
    """
    content = zarrmeta.loads(document)
    partitions = {
        array: {str(number): name for number, name in names.items()} for array, names in (renamed or {}).items()
    }
    extension: dict[str, Any] = {**content.get("refshard", {}), "commit": token, "generation": generation}
    if kept:
        extension["kept"] = kept
    if partitions:
        extension |= {"partitions": partitions, "at": at}
    if is_for_us_alone:
        extension["record_size"] = content.pop("record_size")
    return zarrmeta.dumps({**content, "refshard": extension})
