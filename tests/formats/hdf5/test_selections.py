"""Selections are parsed, and pair the same elements as numpy does, in C order."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from refshard_fs.errors import ManifestError
from refshard_fs.formats.hdf5.file import Fields, Sizes
from refshard_fs.formats.hdf5.selections import (
    NOTHING,
    UNLIMITED,
    Blocks,
    Hyperslab,
    Runs,
    Selection,
    clip,
    list_ends,
    pair_selections,
    parse_selection,
    select_all,
)


def parse_blocks(blocks: list[tuple[list[int], list[int]]], version: int = 1) -> Selection:
    """Parse a list of blocks, each from its first to its last coordinates, in an encoding of version 1 or 3."""
    rank, code = len(blocks[0][0]), "I" if version == 1 else "H"
    head = struct.pack("<IIIIII", 2, 1, 0, 0, rank, len(blocks))
    if version == 3:
        head = struct.pack("<IIBBIH", 2, 3, 0, 2, rank, len(blocks))
    body = b"".join(struct.pack(f"<{2 * rank}{code}", *first, *last) for first, last in blocks)
    return parse_selection(Fields(head + body, Sizes()))


def parse_hyperslabs(*axes: tuple[int, int, int, int]) -> Selection:
    head = struct.pack("<IIB4xI", 2, 2, 1, len(axes))
    return parse_selection(Fields(head + b"".join(struct.pack("<4Q", *axis) for axis in axes), Sizes()))


@pytest.mark.parametrize("version", [1, 3])
def test_blocks_that_make_a_box_are_joined(version: int) -> None:
    rows = [([row, 2], [row, 5]) for row in range(1, 40, 3)]
    assert parse_blocks(rows, version) == (Hyperslab(1, 13, 1, 3), Hyperslab(2, 4, 4, 4))
    grid = [([row, column], [row + 1, column]) for row in (0, 5, 7) for column in (1, 3)]
    box = parse_blocks(grid, version)
    assert isinstance(box, tuple)
    assert isinstance(box[0], Runs)
    assert box[0].locate(np.arange(6)).tolist() == [0, 1, 5, 6, 7, 8]
    assert box[1] == Hyperslab(1, 2, 1, 2)
    corner = parse_blocks([([0, 0], [1, 2]), ([2, 0], [4, 5])], version)
    assert isinstance(corner, Blocks)
    assert (corner.size, list_ends(corner)) == (24, [5, 6])


def test_regular_hyperslabs_are_parsed() -> None:
    assert parse_hyperslabs((3, 4, 5, 2), (1, 1, 1, 7)) == (Hyperslab(3, 10, 2, 4), select_all(7, 1))
    assert parse_hyperslabs((0, 2, 5, 2)) == (select_all(10),)
    growing = (1 << 64) - 1
    assert parse_hyperslabs((3, 4, growing, 2)) == (Hyperslab(3, UNLIMITED, 2, 4),)
    assert parse_hyperslabs((3, 1, 1, growing)) == (select_all(UNLIMITED, 3),)
    for empty in ((0, 1, 0, 5), (0, 1, 5, 0)):
        assert parse_hyperslabs(empty, (0, 1, 1, 1)) is NOTHING


def test_damaged_selections_are_refused() -> None:
    growing = (1 << 64) - 1
    for axes in ([(0, 1, 5, 2)], [(growing - 1, 1, 1, 1)], [(0, 1, growing, 1)] * 2, [(0, 1 << 60, 99, 1)]):
        with pytest.raises(ManifestError, match="expected"):
            parse_hyperslabs(*axes)
    with pytest.raises(ManifestError, match="ascending"):
        parse_blocks([([3], [2])])
    with pytest.raises(ManifestError, match="4294967295 separate blocks"):
        parse_selection(Fields(struct.pack("<IIIIII", 2, 1, 0, 0, 1, (1 << 32) - 1), Sizes()))
    with pytest.raises(ValueError, match="cut short"):
        parse_selection(Fields(struct.pack("<IIIIII", 2, 1, 0, 0, 1, 9), Sizes()))
    overlapping = parse_blocks([([0, 0], [1, 2]), ([1, 0], [4, 5])])
    assert overlapping is not None
    with pytest.raises(ManifestError, match="overlap"):
        list(pair_selections((select_all(30),), overlapping, 100))


@pytest.mark.parametrize("axis", [Hyperslab(3, 10, 2, 4), Hyperslab(3, 9, 2, 4), select_all(7, 1), select_all(0)])
def test_ordinals_and_coordinates_of_an_axis_agree(axis: Hyperslab) -> None:
    selected = [axis.start + row * axis.stride + at for row in range(20) for at in range(axis.block)][: axis.size]
    starts, lengths = axis.list_runs()
    runs = [Runs(starts, lengths)] if axis.size else []
    for each in (axis, *runs):
        assert each.locate(np.arange(axis.size)).tolist() == selected
        assert each.count_before(np.arange(40)).tolist() == [sum(at < end for at in selected) for end in range(40)]
        assert each.end == (selected[-1] + 1 if selected else 0)
        assert each.run_count == len(starts)


def test_growing_selection_is_clipped_to_a_source() -> None:
    axis = Hyperslab(2, UNLIMITED, 3, 4)
    for extent in range(30):
        selected = [at for at in range(2, extent) if (at - 2) % 4 < 3]
        assert int(axis.count_before(extent)) == len(selected)
        if selected:
            assert clip(axis, len(selected)).locate(np.arange(len(selected))).tolist() == selected


def draw_selection(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return blocks that may touch, and the coordinates of their elements in C order."""
    mask = rng.random(shape) < 0.4
    mask[0, 0] = True
    coordinates = np.argwhere(mask)
    return parse_blocks([(at, at) for at in coordinates.tolist()]), coordinates


def test_random_selections_pair_elements_in_c_order() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        source, coordinates = draw_selection((5, 6), rng)
        place, places = draw_selection((3, 9), rng)
        if len(coordinates) != len(places):
            with pytest.raises(ManifestError, match=f"selects {len(coordinates)} elements"):
                list(pair_selections(source, place, 100))
            continue
        pairs = [
            (tuple(map(int, at)), tuple(map(int, to)))
            for pair in pair_selections(source, place, 100)
            for at, to in zip(*(np.stack([each.reshape(-1) for each in np.meshgrid(
                *(axis.locate(np.arange(axis.size)) for axis in box), indexing="ij")], axis=1)
                for box in (pair.source, pair.place)), strict=True)
        ]  # fmt: skip
        assert sorted(pairs) == [
            (tuple(at), tuple(to)) for at, to in zip(coordinates.tolist(), places.tolist(), strict=True)
        ]


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(ManifestError, match="have 1000 rows: expected at most 10"):
        list(pair_selections((select_all(1000), select_all(3)), (select_all(3000),), 10))
    pairs = list(pair_selections((select_all(4), select_all(3)), (select_all(12),), 10))
    assert [pair.place[0] for pair in pairs] == [select_all(3, start) for start in range(0, 12, 3)]
