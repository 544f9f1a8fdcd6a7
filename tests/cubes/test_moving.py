"""Convert chunk numbers of one grid to chunk numbers of another grid."""

from __future__ import annotations

import numpy as np
import pytest

from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.cubes.moving import find_range, move_numbers, shift_by

ENCODING = ChunkKeyEncoding("v2", ".")


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("offset", [-1, 0, 2])
def test_moved_chunk_numbers_have_the_shifted_coordinates(axis: int, offset: int) -> None:
    old = ChunkGrid((2, 3, 4), ENCODING)
    new = ChunkGrid(tuple(count + (k == axis) for k, count in enumerate(old.counts)), ENCODING)
    numbers = np.arange(old.size, dtype=np.uint64)
    found, is_inside = move_numbers(numbers, old, new, {axis: shift_by(offset)})
    for number in range(old.size):
        coords = [at + offset * (k == axis) for k, at in enumerate(old.coords(number))]
        assert is_inside[number] == all(0 <= at < count for at, count in zip(coords, new.counts, strict=True))
        if is_inside[number]:
            assert list(new.coords(int(found[number]))) == coords


@pytest.mark.parametrize(
    ("numbers", "expected"), [([3, 4, 5], range(3, 6)), ([4, 3], None), ([], None), ([1, 3], None)]
)
def test_find_range_returns_a_range_for_consecutive_numbers(numbers: list[int], expected: range | None) -> None:
    column = np.array(numbers, np.uint64)
    found = find_range(column)
    assert found is column if expected is None else found == expected
