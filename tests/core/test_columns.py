"""Columns of references: chunks that are numbered anew in another grid."""

from __future__ import annotations

import numpy as np
import pytest

from refshard_fs.core.columns import renumbered
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding

DOTS = ChunkKeyEncoding("v2", ".")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((4,), (2,)),
        ((3, 5), (4, 5)),
        ((3, 5), (2, 7)),
        ((3, 5), (7, 2)),
        ((2, 3, 2), (3, 2, 4)),
        ((), ()),
        ((0, 3), (2, 2)),
    ],
)
def test_a_chunk_has_the_number_of_its_coordinates_in_the_other_grid(
    before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    old, new = ChunkGrid(before, DOTS), ChunkGrid(after, DOTS)
    numbers, inside = renumbered(np.arange(old.size, dtype=np.uint64), old, new)
    expected = [new.number_of(old.coords(number)) for number in range(old.size)]
    assert inside.tolist() == [number is not None for number in expected]
    assert numbers[inside].tolist() == [number for number in expected if number is not None]
