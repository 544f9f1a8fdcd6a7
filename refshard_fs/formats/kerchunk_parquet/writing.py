"""References as the files of a parquet set. No I/O here.

What a parquet set cannot hold is a ManifestError that names the key.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ABSENT, WHOLE
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.errors import ManifestError
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet.partition import OFFSETS, require_pyarrow
from refshard_fs.references.partition import Partition
from refshard_fs.references.stream import check_representable
from refshard_fs.references.values import check_name, is_utf8, object_in

__all__ = ["encode", "layout_document", "parquet_partition"]


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
        if key != PARQUET:  # the set has its own
            metadata[key] = document
    return zarrmeta.dumps({"metadata": metadata, "record_size": record_size})


def parquet_partition(array: str, grid: ChunkGrid, numbers: range, partition: Partition, *, dry: bool = False) -> bytes:
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
    return b"" if dry else encode(partition)


def encode(partition: Partition) -> bytes:
    """Return the bytes of a parquet file with the rows of ``partition``, readable by fsspec as well.

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
    out = io.BytesIO()
    parquet.write_table(
        pa.table(columns, schema=pa.schema(fields)),
        out,
        compression="zstd",
        use_dictionary=["path"],
        write_statistics=["offset", "size"],  # without, pandas takes them for columns with nulls, and makes floats
        store_schema=False,
        write_page_checksum=True,
        row_group_size=max(len(partition), 1),
    )
    return out.getvalue()
