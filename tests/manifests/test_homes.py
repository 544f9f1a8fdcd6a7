"""Chunks of small arrays are found by their directories exactly as one by one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.core.keyspace import place
from refshard_fs.references.finalise import at_home
from refshard_fs.references.json_scan import scan
from refshard_fs.references.url_column import Urls

ENCODINGS = [
    ChunkKeyEncoding("v2", "."),
    ChunkKeyEncoding("v2", "/"),
    ChunkKeyEncoding("default", "."),
    ChunkKeyEncoding("default", "/"),
]
COUNTS = [(), (1,), (12,), (3, 11), (2, 3, 4)]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@pytest.mark.parametrize("largest", [256, 30])
def test_what_is_found_is_what_looking_for_each_key_finds(encoding: ChunkKeyEncoding, largest: int) -> None:
    paths = ["", *(f"g/v{i}" for i in range(len(COUNTS))), "g/v2/in", "a-very-long-name-" * 5]
    grids = {path: ChunkGrid(COUNTS[i % len(COUNTS)], encoding) for i, path in enumerate(paths)}
    numbers = {path: i for i, path in enumerate(paths)}
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
        "9" * 5000 + "/1",  # more digits than Python makes a number of
        "c/" + "9" * 5000 + "/1",
        "01/1",
        "c/01/1",
        "1/-1",
        "1//1",
    ]
    keys += [f"{path}/{tail}" if path else tail for path in paths for tail in odd]
    block = json.dumps({key: ["u", 1, 2] for key in keys}, separators=(",", ":"))[1:-1].encode()
    records = scan(block, Urls())
    assert records is not None
    names = records.keys(np.arange(len(records)))
    found = at_home(records, np.arange(len(records)), grids, numbers, largest)
    assert sorted([*found.rows.tolist(), *found.left.tolist()]) == list(range(len(names)))
    for row, array, chunk in zip(*(column.tolist() for column in found[:3]), strict=True):
        at = place(grids, names[row])
        assert at == (paths[array], chunk)
        assert grids[paths[array]].size <= largest
    left = [place(grids, names[row]) for row in found.left.tolist()]
    simple = [at for at in left if at is not None and grids[at.array].counts and grids[at.array].size <= largest]
    assert not simple
