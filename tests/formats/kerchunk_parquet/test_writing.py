"""Encoded partitions are decoded to the same references, and flipped bits in their pages are detected."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from refshard_fs.core.chunks import Chunks
from refshard_fs.core.columns import NO_TARGET, WHOLE, Ranges
from refshard_fs.formats.kerchunk_parquet.writing import encode_checked_partition
from tests.support.parquet_values import make_rows, rows

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_flipped_bits_in_encoded_pages_are_detected() -> None:
    part = Chunks(["s3://b/a", "s3://b/c"], Ranges(u4([0, 1] * 20), u8(range(40)), u8([7] * 40)), {})
    data = encode_checked_partition(part)
    expected = make_rows(data, 40)
    rng = random.Random(1)
    pages = len(data) - 8 - int.from_bytes(data[-8:-4], "little")  # the footer has no checksum
    for _ in range(300):
        damaged = bytearray(data)
        place = rng.randrange(len(data))
        damaged[place] ^= 1 << rng.randrange(8)
        try:
            got = make_rows(bytes(damaged), 40)
        except ValueError:
            continue
        assert place >= pages or got == expected


def u4(items: Any) -> Any:
    return np.array(list(items), np.uint32)


def u8(items: Any) -> Any:
    return np.array(list(items), np.uint64)


@given(rows)
def test_encoded_partitions_are_decoded_to_the_same_rows(rows: list[Any]) -> None:
    urls = ["a", "b", "ü"]
    refs = [row if isinstance(row, tuple) else None for row in rows]
    part = Chunks(
        urls,
        Ranges(
            u4(NO_TARGET if r is None else urls.index(r[0]) for r in refs),
            u8(r[1] if r and len(r) == 3 else 0 for r in refs),
            u8(0 if r is None else WHOLE if len(r) == 1 else r[2] for r in refs),
        ),
        {i: row for i, row in enumerate(rows) if isinstance(row, bytes)},
    )
    expected = [list(r) if isinstance(r, tuple) else r for r in rows]
    empty = [b"" if isinstance(r, list) and r[1:] == [0, 0] else r for r in expected]
    assert make_rows(encode_checked_partition(part), len(rows)) == empty
