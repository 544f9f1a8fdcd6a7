"""Chunk grids as cells of a plane."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.tools.plane import MOST_COLUMNS, MOST_ROWS, NO_CHUNK, fold_grid


@given(st.lists(st.integers(0, 300), max_size=4), st.randoms(use_true_random=False))
def test_every_chunk_is_in_one_cell(counts: list[int], random: object) -> None:
    size = math.prod(counts)
    if size > 10**6:
        counts, size = counts[:2], math.prod(counts[:2])
    generator = np.random.default_rng(size)
    numbers = np.flatnonzero(generator.random(size) < 0.7).astype(np.uint64)
    asked = np.flatnonzero(generator.random(size) < 0.1)
    plane = fold_grid(counts, numbers, asked)
    assert plane.shape[0] <= MOST_ROWS
    assert plane.shape[1] <= MOST_COLUMNS
    assert plane.room.sum() == size
    assert plane.present.sum() == len(numbers)
    assert plane.selected.sum() == len(asked)
    assert (plane.present <= plane.room).all()
    assert (plane.selected <= plane.room).all()
    assert ((plane.first == NO_CHUNK) == (plane.present == 0)).all()


def test_cell_has_its_first_existing_chunk() -> None:
    counts = (MOST_ROWS * 2, MOST_COLUMNS * 2)
    numbers = np.arange(1, math.prod(counts), dtype=np.uint64)
    plane = fold_grid(counts, numbers, None)
    assert plane.step == (2, 2)
    assert plane.first[0, :2].tolist() == [0, 1]  # of chunks 1 and 2, since chunk 0 is missing


def test_leading_dimensions_become_rows() -> None:
    plane = fold_grid((10, 2, 6), np.array([0, 12], np.uint64), None)
    assert plane.split == 1
    assert plane.shape == (10, 12)
    assert plane.first[1, 0] == 1
