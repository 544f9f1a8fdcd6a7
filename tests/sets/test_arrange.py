"""The order of sets along a coordinate, and the choice of a set for values that several sets have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs.errors import ManifestError
from tests.support.day_sets import _encode_base64, list_targets, make_days, read_times, write_refs


@pytest.mark.parametrize("lazy", [False, True])
def test_sort_orders_sets_by_coordinate(tmp_path: Path, lazy: bool) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(i, 2)) for i in (4, 0, 2)]
    made: Any = refshard_fs.concat(names, "time", sort=True, lazy=lazy)
    assert read_times(made) == [0, 1, 2, 3, 4, 5]
    fs = refshard_fs.RefShardFileSystem(made)
    assert [fs.resolve(f"t/{i}")[0] for i in range(6)] == [f"memory://{i}" for i in range(6)]
    as_given: Any = refshard_fs.concat(names, "time", lazy=lazy)
    assert read_times(as_given) == [4, 5, 0, 1, 2, 3]


def test_sort_keeps_descending_order() -> None:
    def reverse_days(first: int) -> dict[str, Any]:
        refs = make_days(first, 2)
        refs["time/0"] = "base64:" + _encode_base64(np.array([first + 1, first], "<i4").tobytes())
        return refs

    assert read_times(refshard_fs.concat([reverse_days(0), reverse_days(2)], "time", sort=True)) == [3, 2, 1, 0]


@pytest.mark.parametrize("lazy", [False, True])
def test_duplicate_value_error_names_both_sets(tmp_path: Path, lazy: bool) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(i, 3)) for i in (0, 2)]
    with pytest.raises(ManifestError, match=r"2\.json\) has time = 2024-01-03, and so has .*0\.json"):
        refshard_fs.concat(names, "time", lazy=lazy)


def test_overlap_chooses_the_first_or_last_set() -> None:
    parts = [make_days(0, 3), make_days(2, 3)]
    parts[1]["t/0"] = ["memory://again", 0, 1]
    first = refshard_fs.concat(parts, "time", overlap="first")
    assert read_times(first) == [0, 1, 2, 3, 4]
    assert list_targets(first) == [f"memory://{i}" for i in range(5)]
    last = refshard_fs.concat(parts, "time", overlap="last")
    assert read_times(last) == [0, 1, 2, 3, 4]
    assert list_targets(last)[2] == "memory://again"


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("sort", [False, True])
def test_set_that_surrounds_another_set_is_divided(tmp_path: Path, lazy: bool, sort: bool) -> None:
    again = make_days(2, 2)
    again["t/0"] = ["memory://again", 0, 1]
    names = [write_refs(tmp_path, f"{number}.json", part) for number, part in enumerate([make_days(0, 6), again])]
    made: Any = refshard_fs.concat(names, "time", overlap="last", sort=sort, lazy=lazy)
    order = [0, 1, 2, 3, 4, 5] if sort else [0, 1, 4, 5, 2, 3]
    assert read_times(made) == order
    fs = refshard_fs.RefShardFileSystem(made)
    expected = ["memory://again" if day == 2 else f"memory://{day}" for day in order]
    assert [fs.resolve(f"t/{number}")[0] for number in range(6)] == expected


@pytest.mark.parametrize("lazy", [False, True])
def test_sort_divides_interleaved_sets(tmp_path: Path, lazy: bool) -> None:
    names = []
    for number, own in enumerate(([0, 2, 4], [1, 3])):
        refs = make_days(10 * number, len(own))
        refs["time/0"] = "base64:" + _encode_base64(np.array(own, "<i4").tobytes())
        names.append(write_refs(tmp_path, f"{number}.json", refs))
    made: Any = refshard_fs.concat(names, "time", sort=True, lazy=lazy)
    assert read_times(made) == [0, 1, 2, 3, 4]
    fs = refshard_fs.RefShardFileSystem(made)
    assert [fs.resolve(f"t/{i}")[0] for i in range(5)] == [f"memory://{day}" for day in (0, 10, 1, 11, 2)]


def test_fully_overlapped_set_is_left_out(tmp_path: Path) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(0, 2)) for i in range(2)]
    for lazy in (False, True):
        assert read_times(refshard_fs.concat(names, "time", overlap="first", lazy=lazy)) == [0, 1]


def test_overlaps_are_found_in_other_units_too() -> None:
    other = make_days(2, 2, units="days since 2024-01-02", offset=1)
    with pytest.raises(ManifestError, match="time = 2024-01-03"):
        refshard_fs.concat([make_days(0, 3), other], "time")


def test_repeated_coordinate_suggests_a_further_dimension(tmp_path: Path) -> None:
    names = [write_refs(tmp_path, f"{member}.json", make_days(0, 3)) for member in "ab"]
    with pytest.raises(ManifestError, match="have the same values of 'time'. If they are different members") as caught:
        refshard_fs.concat(names, "time")
    assert "'{member}/*.nc'" in str(caught.value)
