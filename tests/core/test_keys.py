"""Chunk keys: one spelling for each chunk, whether its coordinates are small or large."""

from __future__ import annotations

import pytest

from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding

GRID = ChunkGrid((10**19, 3, 5000), ChunkKeyEncoding("default", "/"))


@pytest.mark.parametrize("coords", [(0, 0, 0), (7, 2, 2047), (7, 2, 2048), (10**19 - 1, 1, 4999), (0, 2, 4999)])
def test_a_key_tells_the_coordinates_that_it_was_made_of(coords: tuple[int, ...]) -> None:
    tail = GRID.encoding.encode(coords)
    assert GRID.encoding.decode(tail, 3) == coords
    assert GRID.contains(coords)
    assert GRID.number(tail) == GRID.number_of(coords)


@pytest.mark.parametrize("coords", [(10**19, 0, 0), (0, 3, 0), (0, 0, 5000), (2048, 2048, 2048)])
def test_a_key_outside_of_the_grid_tells_coordinates_all_the_same(coords: tuple[int, ...]) -> None:
    tail = GRID.encoding.encode(coords)
    assert GRID.encoding.decode(tail, 3) == coords
    assert not GRID.contains(coords)
    assert GRID.number(tail) is None


@pytest.mark.parametrize(
    "tail",
    ["c/0/01/0", "c/-1/0/0", "c/ 1/0/0", "c/+1/0/0", "c/1_0/0/0", "c/\u0663/0/0", "c/02048/0/0", "c/0/0", "0/0/0", "c"],
)
def test_there_is_no_other_spelling(tail: str) -> None:
    assert GRID.encoding.decode(tail, 3) is None
    assert GRID.number(tail) is None


def test_an_array_without_dimensions_has_one_chunk() -> None:
    for encoding, tail in (ChunkKeyEncoding("default", "/"), "c"), (ChunkKeyEncoding("v2", "."), "0"):
        assert encoding.decode(tail, 0) == ()
        assert ChunkGrid((), encoding).contains(())
