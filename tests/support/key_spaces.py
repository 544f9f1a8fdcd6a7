"""Compare the answers of a key space by key with its answers for whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from refshard_fs import RefShardFileSystem
from refshard_fs.core.chunks import Chunks
from refshard_fs.core.keys import is_within
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.errors import ManifestError


def answer(steps: Any) -> Any:
    try:
        steps.send(None)
    except StopIteration as stopped:
        return list(stopped.value) if isinstance(stopped.value, Sequence) else stopped.value
    except ManifestError as error:  # for a key with half a surrogate pair
        return str(error)
    raise AssertionError("a step asked for data that it should not need")


Rows = list[Any]


def check(fs: RefShardFileSystem) -> None:
    space, run = fs.source.open().whole_shards, fs.source.run
    found = run("", space.contents)
    expected = run("", partial(KeySpace.contents, space))
    assert found.members == expected.members
    documents = run("", space.documents)
    assert documents.keys() == {key for key in found.members if is_metadata(key)}
    some_array = next(iter(found.arrays))
    assert run("", partial(space.documents, some_array)) == {
        k: d for k, d in documents.items() if is_within(k, some_array)
    }
    assert found.others.keys() == expected.others.keys()
    assert found.arrays.keys() == expected.arrays.keys()
    for path, array in found.arrays.items():
        assert set(expected.arrays[path].column.tolist()) <= set(array.column.tolist())
        for numbers in (range(array.grid.size), np.arange(array.grid.size, dtype=np.uint64)[::-1].copy()):
            by_key = run("", partial(KeySpace.chunks, space, path, numbers, array.grid))
            in_columns = run("", partial(space.chunks, path, numbers, array.grid))
            assert make_rows(in_columns) == make_rows(by_key)


def make_rows(chunks: Chunks) -> Rows:
    rows: Rows = []
    for number in range(len(chunks)):
        row = chunks.ranges.get_row(number)
        target: Any = None
        if row is not None:
            origin = chunks.origins[row.target] if chunks.origins else ()
            target = chunks.urls[row.target], row.offset, row.length, origin
        rows.append((target, chunks.inline.get(number), chunks.packed.get(number)))
    return rows
