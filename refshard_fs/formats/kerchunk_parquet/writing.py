"""References as the bytes of a JSON or a parquet set, piece by piece. No I/O here.

What a format cannot hold is a ManifestError that names the key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ABSENT, WHOLE
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.errors import ManifestError
from refshard_fs.formats.kerchunk_parquet import PARQUET
from refshard_fs.formats.kerchunk_parquet.partition import OFFSETS, encode
from refshard_fs.references.partition import Partition
from refshard_fs.references.values import check_name, is_utf8, object_in, spelled

__all__ = [
    "FRAMES",
    "LooksLikeTemplate",
    "chunk_members",
    "layout_document",
    "member",
    "parquet_partition",
]

# What goes around the members of a JSON set, by its version.
FRAMES: Final = {0: (b"{", b"}"), 1: (b'{"version":1,"refs":{', b"}}")}


class LooksLikeTemplate(Exception):
    """A URL holds what version 1 of JSON sets expands: the set has to be of version 0."""


def layout_document(documents: Iterable[tuple[str, Any]], record_size: int) -> bytes:
    """Return the ``.zmetadata`` of a parquet set with these documents, all of which must be metadata."""
    metadata: dict[str, Any] = {}
    for key, value in documents:
        match value:
            case list():
                raise ManifestError(f"{key!r} is a reference, and no chunk of an array: a parquet set cannot hold it")
            case _ if not zarrmeta.is_metadata(key):
                raise ManifestError(
                    f"{key!r} is neither metadata nor a chunk of an array: a parquet set cannot hold it"
                )
        check_name(key)
        document = object_in(value, repr(key))
        if key != PARQUET:  # the set has its own
            metadata[key] = document
    return zarrmeta.dumps({"metadata": metadata, "record_size": record_size})


def parquet_partition(array: str, grid: ChunkGrid, numbers: range, partition: Partition, *, dry: bool = False) -> bytes:
    """Return the parquet file of the chunks ``numbers`` of ``array``; ``dry``: only see whether there can be one."""
    _refuse(array, grid, numbers, partition)
    there = partition.targets != ABSENT
    spans = there & (partition.lengths != WHOLE)
    offsets, lengths = partition.offsets, partition.lengths
    beyond = spans & ((offsets >= OFFSETS) | (lengths >= OFFSETS) | (offsets + lengths >= OFFSETS))
    for row in np.flatnonzero(beyond).tolist():
        key = join(array, grid.tail(numbers.start + row))
        raise ManifestError(
            f"{key!r} has the offset {offsets[row]} and the length {lengths[row]}: parquet has 63 bits for its end"
        )
    if None in partition.urls:
        row = int(np.flatnonzero(there & (partition.targets == partition.urls.index(None)))[0])
        key = join(array, grid.tail(numbers.start + row))
        raise ManifestError(f"{key!r} has no URL, which to parquet is no reference: open the source with target=")
    for target, url in enumerate(partition.urls):
        if url is not None and not is_utf8(url):
            key = join(array, grid.tail(numbers.start + int(np.flatnonzero(partition.targets == target)[0])))
            raise ManifestError(f"{key!r} has the URL {url!r}, which is no UTF-8, as parquet has it")
    return b"" if dry else encode(partition)


def member(key: str, value: Any, version: int) -> bytes:
    """Return one member of a JSON set; ``value`` is an object, text, data or a list."""
    match value:
        case [_, offset, None]:
            raise _open_end(key, offset)
        case [url, *_]:
            _url(url, version)
            return zarrmeta.dumps(key) + b":" + zarrmeta.dumps(value)
        case dict():
            text = zarrmeta.dumps(value).decode()
        case bytes():
            text = spelled(value)
        case _:
            text = value
    return zarrmeta.dumps(key) + b":" + zarrmeta.dumps(text)


def chunk_members(array: str, grid: ChunkGrid, numbers: range, partition: Partition, version: int) -> bytes:
    """Return the members of a JSON set for all chunks in ``partition``, which are among ``numbers``."""
    _refuse(array, grid, numbers, partition)
    rows = partition.present(0, len(partition))
    stem = zarrmeta.dumps(join(array, "x")).decode()[:-2]
    tails = _tails(grid, np.array(rows, np.int64) + numbers.start)
    inline = partition.inline
    urls = [_url(url, version) for url in partition.urls]
    columns = partition.targets[rows], partition.offsets[rows], partition.lengths[rows]
    values = zip(*(column.tolist() for column in columns), strict=True)
    if (columns[0] != ABSENT).all() and (columns[2] != WHOLE).all():  # as nearly always
        ranges = [
            f'{stem}{tail}":[{urls[target]},{offset},{length}]'
            for tail, (target, offset, length) in zip(tails, values, strict=True)
        ]
        return ",".join(ranges).encode()
    out = []
    for row, tail, (target, offset, length) in zip(rows, tails, values, strict=True):
        if target == ABSENT:
            out.append(f'{stem}{tail}":{zarrmeta.dumps(spelled(inline[row])).decode()}')
        elif length == WHOLE:
            out.append(f'{stem}{tail}":[{urls[target]}]')
        else:
            out.append(f'{stem}{tail}":[{urls[target]},{offset},{length}]')
    return ",".join(out).encode()


def _refuse(array: str, grid: ChunkGrid, numbers: range, partition: Partition) -> None:
    """Raise ManifestError for what a chunk manifest says and a reference set cannot."""
    for row, extras in partition.extras.items():
        key = join(array, grid.tail(numbers.start + row))
        what = " and ".join(extras)
        raise ManifestError(
            f"{key!r} has {what}, which a reference set cannot hold: only format='chunk-manifest' can"
            if what
            else f"{key!r} is empty on purpose, which a reference set cannot say: only format='chunk-manifest' can"
        )
    open_ends = (partition.lengths == WHOLE) & (partition.offsets > 0) & (partition.targets != ABSENT)
    for row in np.flatnonzero(open_ends).tolist():
        raise _open_end(join(array, grid.tail(numbers.start + row)), int(partition.offsets[row]))


def _open_end(key: str, offset: int) -> ManifestError:
    return ManifestError(
        f"{key!r} begins at byte {offset} of its target and ends with it, which a reference set cannot say: give its "
        "length, or write it with format='chunk-manifest'"
    )


def _tails(grid: ChunkGrid, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Iterable[str]:
    """Return the keys of chunks relative to their array: `ChunkGrid.tail`, of many at once."""
    if not grid.counts:
        return map(grid.tail, numbers.tolist())
    columns: list[Iterable[str]] = []
    for count, column in zip(grid.counts, np.unravel_index(numbers, grid.counts), strict=True):
        known = [*map(str, range(count))] if count <= len(numbers) else None
        columns.append(map(str if known is None else known.__getitem__, column.tolist()))
    if grid.encoding.name == "default":
        columns.insert(0, ["c"] * len(numbers))
    return map(grid.encoding.separator.join, zip(*columns, strict=True))


def _url(url: str | None, version: int) -> str:
    if version and url is not None and "{{" in url:
        raise LooksLikeTemplate(url)
    return zarrmeta.dumps(url).decode()
