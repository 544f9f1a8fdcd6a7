"""Sets without chunks, which stand for gaps."""

from __future__ import annotations

import numpy as np

from refshard_fs import RefShardFileSystem
from refshard_fs.sets.collect_references import collect_references
from refshard_fs.sets.gap_set import make_extent, make_gap
from refshard_fs.sets.variables import NamedSet, VariableReader
from tests.support.day_sets import make_days


def read_days(first: int, count: int) -> NamedSet:
    refs = collect_references(RefShardFileSystem(make_days(first, count)))
    return NamedSet("a set", refs, VariableReader().read(refs, "a set"))


def test_gap_has_a_length_and_the_coordinate_but_no_chunks() -> None:
    part = read_days(1, 2)
    extent = make_extent(part.variables["time"], np.array([3, 4, 5], "<i4"), part, "the extent")
    gap = make_gap(part, "time", "the gap", 3, extent)
    assert gap.find_length("time") == 3
    assert len(gap.refs.tables["t"]) == 0
    np.testing.assert_array_equal(gap.decode_values("time"), [3, 4, 5])


def test_gap_without_coordinate_values_has_no_chunks() -> None:
    gap = make_gap(read_days(1, 2), "time", "the gap", 4, None)
    assert gap.variables["t"].meta.shape == (4,)
    assert len(gap.refs.tables["time"]) == 0
