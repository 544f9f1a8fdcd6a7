"""Decode tables and minishard indexes of neuroglancer's shards: ranges are valid, or a ValueError is raised."""

from __future__ import annotations

import gzip
from contextlib import nullcontext as set_up
from functools import cache

import numpy as np

from refshard_fs.formats.neuroglancer.minishards import MinishardIndex, ShardIndex

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (bytes(8), b"\xff" * 8, b"\x1f\x8b\x08\0", b"\0" * 7 + b"\x80")
_MOST = 64


@cache
def make_seeds() -> list[bytes]:
    """Return inputs: a byte that chooses the kind of index, and an index."""
    table = np.array([[0, 96], [96, 96], [96, 200], [200, 500]], "<u8").tobytes()
    minishard = np.array([[3, 1, 7, 20], [0, 5, 0, 9], [10, 11, 0, 13]], "<u8").tobytes()
    large = np.ones((3, _MOST), "<u8").tobytes()
    kinds = [table, minishard, gzip.compress(minishard, mtime=0), large, gzip.compress(large, mtime=0)]
    return [bytes([number]) + data for number, data in zip((0, 1, 2, 1, 2), kinds, strict=True)]


def check_input(data: bytes) -> None:
    kind, index = data[:1], data[1:]
    try:
        if not kind or kind[0] % 3 == 0:
            pairs = ShardIndex().decode(index)
            assert (pairs[:, 0] <= pairs[:, 1]).all()
            return
        found = MinishardIndex("raw" if kind[0] % 3 == 1 else "gzip", _MOST).decode(index)
    except ValueError:
        return
    assert len(found.ids) <= _MOST
    for chunk in found.ids[:8].tolist():
        place = found.locate(chunk)
        assert place is not None
        start, size = place
        assert start >= 0
        assert start + size < 2**63
    assert (np.diff(found.ids.astype(object)) > 0).all()
