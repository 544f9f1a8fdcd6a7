"""Find the places of a piece's elements along a dimension of a cube."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.cubes.placement import Placement


@given(st.permutations(range(12)), st.integers(1, 12))
def test_placement_maps_elements_to_places_and_back(order: list[int], count: int) -> None:
    places = np.array(order[:count])
    placement = Placement.of(places)
    assert placement.length == count
    np.testing.assert_array_equal(placement.find_places(np.arange(count)), places)
    np.testing.assert_array_equal(placement.find_elements(places), np.arange(count))
    for element, place in enumerate(places.tolist()):
        assert placement.find_place(element) == place
        assert placement.find_element(place) == element
    for place in set(order[count:]):
        assert placement.find_element(place) is None


def test_placement_of_a_slice_places_only_its_elements() -> None:
    placement = Placement.of_slice(3, 4, 10)
    assert [placement.find_place(element) for element in range(10)] == [None] * 3 + [0, 1, 2, 3] + [None] * 3
    assert placement.find_places(np.arange(10)).tolist() == [-1, -1, -1, 0, 1, 2, 3, -1, -1, -1]


def test_placement_in_chunks_is_none_if_a_run_divides_a_chunk() -> None:
    assert Placement(((4, 4),)).convert_to_chunks(2, 12) == Placement(((2, 2),))
    assert Placement(((3, 4),)).convert_to_chunks(2, 12) is None
    assert Placement(((4, 3),)).convert_to_chunks(2, 12) is None
    assert Placement(((4, 3),)).convert_to_chunks(2, 7) == Placement(((2, 2),))


@pytest.mark.parametrize("runs", [((0, 3), (2, 2)), ((8, 3),), ((0, 0),), ((-1, 2),)])
def test_runs_that_overlap_or_lie_outside_are_errors(runs: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="end at most at 10"):
        Placement(runs).check(10)
