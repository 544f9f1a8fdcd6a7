"""Directories of chunks are listed from parts, and few parts are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from refshard_fs.core.columns import Part, Ranges
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Listed, Steps
from refshard_fs.core.parted_keyspace import PartedKeySpace


class Documents(KeySpace):
    def lookup(self, key: str) -> Steps[Any]:
        yield from ()
        return None

    def children(self, prefix: str) -> Steps[Any]:
        yield from ()
        return {"": [Listed("a", None, True)], "a": [Listed("zarr.json", 2)]}.get(prefix)


class OneArray(PartedKeySpace):
    """An array of 2 x 3 chunks, of which only the last exists; ``asked`` records the requested parts."""

    def __init__(self) -> None:
        self._documents = Documents()
        self.grids = {"a": ChunkGrid((2, 3), ChunkKeyEncoding("default", "/"))}
        self.asked: list[tuple[int, int]] = []

    def lookup(self, key: str) -> Steps[Any]:
        yield from ()
        return None

    def parts(self, array: str, start: int, stop: int) -> Steps[list[Part]]:
        yield from ()
        self.asked.append((start, stop))
        lengths = Ranges(np.zeros(1, np.uint32), np.zeros(1, np.uint64), np.full(1, 7, np.uint64))
        return [Part(np.array([5], np.uint64), lengths)]

    def has_chunk(self, array: str, start: int, stop: int) -> Steps[bool]:
        yield from ()
        return start <= 5 < stop


def list_children(keys: OneArray, prefix: str) -> list[tuple[str, int | None]] | None:
    try:
        next(keys.children(prefix))
    except StopIteration as done:
        return None if done.value is None else [(child.name, child.size) for child in done.value]
    raise AssertionError("the listing yielded a need")


def test_directories_list_documents_and_chunk_coordinates() -> None:
    keys = OneArray()
    assert list_children(keys, "a") == [("c", None), ("zarr.json", 2)]
    assert keys.asked == [], "the directory is listed without reading parts"
    assert list_children(keys, "a/c") == [("1", None)]
    assert list_children(keys, "a/c/1") == [("2", 7)]
    assert keys.asked == [(0, 6), (3, 6)]
    assert list_children(keys, "a/c/0") is None
    assert list_children(keys, "b") is None
    assert list_children(keys, "") == [("a", None)]
