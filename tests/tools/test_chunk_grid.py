"""Chunks as cells: each chunk is counted in one cell, whatever the grid."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from refshard_fs.tools.map import MOST_COLUMNS, MOST_ROWS, NOTHING, plane_of


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), max_size=4), st.randoms(use_true_random=False))
def test_every_chunk_is_in_one_cell_that_has_room_for_it(counts: list[int], random: object) -> None:
    size = math.prod(counts)
    if size > 10**6:
        counts, size = counts[:2], math.prod(counts[:2])
    generator = np.random.default_rng(size)
    numbers = np.flatnonzero(generator.random(size) < 0.7).astype(np.uint64)
    targets = generator.integers(-1, 5, len(numbers))
    asked = np.flatnonzero(generator.random(size) < 0.1)
    plane = plane_of(counts, numbers, targets, asked)
    assert plane.shape[0] <= MOST_ROWS
    assert plane.shape[1] <= MOST_COLUMNS
    assert plane.room.sum() == size
    assert plane.present.sum() == len(numbers)
    assert plane.asked.sum() == len(asked)
    assert (plane.present <= plane.room).all()
    assert (plane.asked <= plane.room).all()
    assert ((plane.target == NOTHING) == (plane.present == 0)).all()


def test_a_cell_shows_the_target_that_has_most_of_it() -> None:
    counts = (MOST_ROWS * 2, MOST_COLUMNS * 2)
    numbers = np.arange(math.prod(counts), dtype=np.uint64)
    targets = np.where(numbers % 2 == 0, 7, 3)
    targets[1] = 7
    plane = plane_of(counts, numbers, targets, None)
    assert plane.step == (2, 2)
    assert plane.target[0, 0] == 7


def test_leading_dimensions_become_rows() -> None:
    plane = plane_of((10, 2, 6), np.array([0, 12], np.uint64), np.array([0, 1]), None)
    assert plane.split == 1
    assert plane.shape == (10, 12)
    assert plane.target[1, 0] == 1
