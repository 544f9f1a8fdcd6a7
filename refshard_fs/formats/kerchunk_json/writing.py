"""References as the bytes of a JSON set, piece by piece. No I/O here."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.columns import ABSENT, WHOLE
from refshard_fs.core.directories import tails
from refshard_fs.core.keys import ChunkGrid, join
from refshard_fs.references.partition import Partition
from refshard_fs.references.stream import check_representable, open_end
from refshard_fs.references.values import spelled

__all__ = ["FRAMES", "LooksLikeTemplate", "chunk_members", "member"]

# What goes around the members of a JSON set, by its version.
FRAMES: Final = {0: (b"{", b"}"), 1: (b'{"version":1,"refs":{', b"}}")}


class LooksLikeTemplate(Exception):
    """A URL holds what version 1 of JSON sets expands: the set has to be of version 0."""


def member(key: str, value: Any, version: int) -> bytes:
    """Return one member of a JSON set; ``value`` is an object, text, data or a list."""
    match value:
        case [_, offset, None]:
            raise open_end(key, offset)
        case [url, *_]:
            _url(url, version)
        case dict():
            value = zarrmeta.dumps(value).decode()
        case bytes():
            value = spelled(value)
    return zarrmeta.dumps(key) + b":" + zarrmeta.dumps(value)


def chunk_members(array: str, grid: ChunkGrid, numbers: range, partition: Partition, version: int) -> bytes:
    """Return the members of a JSON set for all chunks in ``partition``, which are among ``numbers``."""
    check_representable(array, grid, numbers, partition)
    rows = partition.present()
    stem = zarrmeta.dumps(join(array, "x")).decode()[:-2]
    keys = tails(grid, np.array(rows, np.uint64) + np.uint64(numbers.start))
    urls = [_url(url, version) for url in partition.urls]
    values = zip(*(column.tolist() for column in partition.ranges.take(rows)), strict=True)
    out = []
    for row, tail, (target, offset, length) in zip(rows, keys, values, strict=True):
        if target == ABSENT:
            out.append(f'{stem}{tail}":{zarrmeta.dumps(spelled(partition.inline[row])).decode()}')
        elif length == WHOLE:
            out.append(f'{stem}{tail}":[{urls[target]}]')
        else:
            out.append(f'{stem}{tail}":[{urls[target]},{offset},{length}]')
    return ",".join(out).encode()


def _url(url: str | None, version: int) -> str:
    if version and url is not None and "{{" in url:
        raise LooksLikeTemplate(url)
    return zarrmeta.dumps(url).decode()
