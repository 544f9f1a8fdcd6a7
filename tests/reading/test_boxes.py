"""Boxes have their chunks and numbers in C order, and a selection of exactly one box is recognised."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.reading.boxes import Boxes


def grid(*counts: int) -> ChunkGrid:
    return ChunkGrid(counts, ChunkKeyEncoding("v2", "."))


@pytest.mark.parametrize(("counts", "extents"), [((7,), (3,)), ((4, 6), (2, 4)), ((3, 5, 2), (1, 5, 1)), ((5,), (1,))])
def test_boxes_hold_each_chunk_once(counts: tuple[int, ...], extents: tuple[int, ...]) -> None:
    boxes = Boxes(grid(*counts), extents)
    chunks = [list(boxes.chunks(number)) for number in range(math.prod(boxes.counts))]
    assert sorted(itertools.chain(*chunks)) == list(range(grid(*counts).size))
    assert [boxes.number_of(some) for some in chunks] == list(range(math.prod(boxes.counts)))
    numbers = np.arange(grid(*counts).size).reshape(counts)
    first = numbers[tuple(slice(extent) for extent in extents)].ravel().tolist()
    assert chunks[0] == first


def test_box_holds_the_chunks_of_a_selection() -> None:
    boxes = Boxes.divide(grid(8, 6), [12, 13, 14, 18, 19, 20])  # rows 2 and 3, columns 0 to 2
    assert boxes is not None
    assert boxes.extents == (2, 3)
    assert boxes.number_of([15, 16, 17, 21, 22, 23]) == 3


@pytest.mark.parametrize("numbers", [[1, 2], [0, 1, 6], [0, 2]], ids=["not-aligned", "no-box", "with-a-gap"])
def test_unaligned_or_sparse_selections_have_no_box(numbers: list[int]) -> None:
    assert Boxes.divide(grid(8, 6), numbers) is None
    assert Boxes(grid(8, 6), (1, 2)).number_of([6, 7, 8]) is None
