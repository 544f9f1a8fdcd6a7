"""`place_chunks`, which scans many keys, finds the same chunks as look-ups of single keys."""

from __future__ import annotations

import json

import numpy as np
import pytest

from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.core.keyspace import find_chunk
from refshard_fs.references.chunk_keys import place_chunks
from refshard_fs.references.json_scan import scan

ENCODINGS = [
    ChunkKeyEncoding("v2", "."),
    ChunkKeyEncoding("v2", "/"),
    ChunkKeyEncoding("default", "."),
    ChunkKeyEncoding("default", "/"),
]
COUNTS = [(), (1,), (12,), (3, 11), (2, 3, 4)]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_place_chunks_agrees_with_single_lookups(encoding: ChunkKeyEncoding) -> None:
    paths = ["", *(f"g/v{i}" for i in range(len(COUNTS))), "g/v2/in", "a-very-long-name-" * 5]
    grids = {path: ChunkGrid(COUNTS[i % len(COUNTS)], encoding) for i, path in enumerate(paths)}
    keys = [f"{path}/{tail}" if path else tail for path, grid in grids.items() for tail in grid.tails()]
    odd = [
        "0/0",
        "00",
        "1.",
        "c/c/1",
        "12",
        "3.0",
        "0.0.0.0",
        "x",
        "c",
        "c.",
        "9" * 40,
        "9" * 5000 + "/1",  # Python converts no text with so many digits
        "c/" + "9" * 5000 + "/1",
        "01/1",
        "c/01/1",
        "1/-1",
        "1//1",
    ]
    keys += [f"{path}/{tail}" if path else tail for path in paths for tail in odd]
    block = json.dumps({key: ["u", 1, 2] for key in keys}, separators=(",", ":"))[1:-1].encode()
    records = scan(block)
    assert records is not None
    names = records.keys.list_names()
    found = {}
    for path, rows, numbers in place_chunks(records.keys, grids):
        assert (np.diff(rows) > 0).all()
        found |= {names[row]: (path, number) for row, number in zip(rows.tolist(), numbers.tolist(), strict=True)}
    expected = {name: at for name in names if (at := find_chunk(grids, name)) is not None}
    assert found == expected
    may_be = records.keys.may_be_chunks()
    assert all(may_be[names.index(name)] for name in found)
