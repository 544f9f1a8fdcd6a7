"""Lengths of records in a chain are foreseen where they repeat."""

from __future__ import annotations

import pytest

from refshard_fs.core.chain import PERIOD, foresee


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([5], [5]),
        ([5, 6], []),
        ([5, 6, 6], [6]),
        ([5, 6, 5, 6], [5, 6]),
        ([9, 5, 6, 7, 5, 6, 7], [5, 6, 7]),
        ([5, 6, 7, 5, 6], []),
        ([*range(PERIOD)] * 2, [*range(PERIOD)]),
        ([*range(PERIOD + 1)] * 2, []),
    ],
)
def test_next_lengths_are_predicted_from_repeated_lengths(lengths: list[int], expected: list[int]) -> None:
    assert foresee(lengths) == expected
