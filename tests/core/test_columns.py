"""Rows of references are collected in columns, and chunk numbers are converted to another grid."""

from __future__ import annotations

import numpy as np
import pytest

from refshard_fs.core.columns import ChunkTable, Part, PartsBuilder, Row, Texts, renumber
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
def test_renumber_keeps_chunk_coordinates(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    old, new = ChunkGrid(before, DOTS), ChunkGrid(after, DOTS)
    numbers, inside = renumber(np.arange(old.size, dtype=np.uint64), old, new)
    expected = [new.number_of(old.coords(number)) for number in range(old.size)]
    assert inside.tolist() == [number is not None for number in expected]
    assert numbers[inside].tolist() == [number for number in expected if number is not None]


def test_chunk_with_several_rows_has_the_row_of_highest_order() -> None:
    """A chunk may have several rows, which may be more than the chunks of the grid, and may be added in any order."""
    grid, rng = ChunkGrid((40,), DOTS), np.random.default_rng(1)
    for orders in ([1, 2, 3, 4], [2, 4, 1, 3]):
        builder, pieces = PartsBuilder(grid), {}
        for order in orders:
            pieces[order] = {int(number): Row(order, int(number), None) for number in rng.integers(0, 40, 25)}
            builder.add(order, Part.from_rows(pieces[order].items()))
        expected = pieces[1] | pieces[2] | pieces[3] | pieces[4]
        assert dict(ChunkTable.from_parts(grid, builder.finish()).iterate_rows()) == expected


def test_rows_of_a_whole_grid_in_order_are_not_copied() -> None:
    grid, builder = ChunkGrid((40,), DOTS), PartsBuilder(ChunkGrid((40,), DOTS))
    for start in range(0, 40, 8):
        builder.add(start, Part.from_rows((i, Row(0, i, 1)) for i in range(start, start + 8)))
    (part,) = builder.finish()
    assert ChunkTable.from_parts(grid, [part]).ranges is part.ranges


@pytest.mark.parametrize("texts", [["a", "bc", ""], ["ä", None, "\udc80", "b"], [None, None], ["x" * 200, *"abc"] * 9])
def test_take_returns_the_texts_at_the_places(texts: list[str | None]) -> None:
    made = Texts.of(texts)
    for places in (range(len(texts)), [len(texts) - 1, 0], [1], []):
        assert made.take(np.array(places, np.int64)) == [texts[place] for place in places]


def test_texts_are_iterated_as_they_are_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refshard_fs.core.columns._DECODED", 3)
    expected = ["a", None, "", "日本", "\ud800", None, None, "x" * 300]
    for count in range(len(expected) + 1):
        texts = Texts.of(expected[:count])
        assert list(texts) == [texts[place] for place in range(count)] == expected[:count]
