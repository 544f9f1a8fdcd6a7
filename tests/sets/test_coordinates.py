"""Coordinates of the same name in several groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs.errors import ManifestError
from tests.support.day_sets import _encode_base64, write_refs
from tests.support.set_values import read_values


def make_groups(times: dict[str, Any], places: dict[str, Any]) -> dict[str, Any]:
    """Return a set of groups, each with its own coordinates time and x."""

    def array(path: str, values: Any, dims: list[str]) -> dict[str, str]:
        data = np.array(values, "<f4")
        meta = {"zarr_format": 2, "shape": data.shape, "chunks": [1] * data.ndim, "dtype": "<f4", "order": "C"}
        refs = {f"{path}/.zarray": json.dumps({**meta, "fill_value": "NaN", "filters": None, "compressor": None})}
        refs[f"{path}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": dims})
        chunks = {".".join(map(str, at)): _encode_base64(data[at].tobytes()) for at in np.ndindex(data.shape)}
        return refs | {f"{path}/{name}": f"base64:{chunk}" for name, chunk in chunks.items()}

    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'}
    for group in times:
        t, x = times[group], places[group]
        refs[f"{group}/.zgroup"] = '{"zarr_format": 2}'
        refs |= array(f"{group}/time", t, ["time"]) | array(f"{group}/x", x, ["x"])
        refs |= array(f"{group}/v", np.add.outer(np.array(t) * 100, x), ["time", "x"])
    return refs


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("which", ["a", "b"])
def test_groups_of_different_coordinates_get_no_common_union(tmp_path: Path, which: str, lazy: bool) -> None:
    """If groups have different coordinates `x`, `join="outer"` once gave all groups the values of one group."""

    def both(first: int, x: Any, other: Any) -> dict[str, Any]:
        rest = "b" if which == "a" else "a"
        return make_groups({g: [first, first + 1] for g in "ab"}, {which: x, rest: other})

    names = [
        write_refs(tmp_path, f"{i}.json", both(2 * i, x, other))
        for i, (x, other) in enumerate([([0, 1], [5, 6]), ([1, 2], [5, 6])])
    ]
    with pytest.raises(ManifestError, match="expected the same values of 'x'"):
        refshard_fs.concat(names, "time", join="outer", lazy=lazy)
    same = [write_refs(tmp_path, f"s{i}.json", both(2 * i, x, x)) for i, x in enumerate([[0, 1], [1, 2]])]
    cube: Any = refshard_fs.concat(same, "time", join="outer", lazy=lazy)
    for group in "ab":
        assert read_values(cube, f"{group}/x", "<f4") == [0, 1, 2]


@pytest.mark.parametrize("how", [{"overlap": "first"}, {"overlap": "last"}, {"freq": 1}])
def test_overlap_and_freq_need_equal_times_in_all_groups(tmp_path: Path, how: dict[str, Any]) -> None:
    second = 4 if "freq" in how else 0
    alone = {"a": [0], "b": [0]}
    starts = (0, second)
    parts = [make_groups({"a": [t, t + 1], "b": [10 + i, 20 + i]}, alone) for i, t in enumerate(starts)]
    names = [write_refs(tmp_path, f"{i}.json", part) for i, part in enumerate(parts)]
    with pytest.raises(ManifestError, match="expected the same values of 'time'"):
        refshard_fs.concat(names, "time", **how)
    parts = [make_groups({"a": [t, t + 1], "b": [t, t + 1]}, alone) for t in starts]
    cube: Any = refshard_fs.concat(parts, "time", **how)
    for group in "ab":
        assert read_values(cube, f"{group}/time", "<f4") == ([0, 1, 2, 3, 4, 5] if second else [0, 1])


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("how", ["skip", "replace"])
def test_duplicates_of_groups_with_other_times_are_refused(tmp_path: Path, how: Any, lazy: bool) -> None:
    first, second = (make_groups({"a": [0, 1], "b": [10 + i, 20 + i]}, {"a": [0], "b": [0]}) for i in range(2))
    url = str(tmp_path / "cube.json")
    made: Any = refshard_fs.concat([write_refs(tmp_path, "0.json", first)], "time", lazy=lazy)
    made.save(url)
    with pytest.raises(ManifestError, match="expected the same values of 'time'|is the first set of"):
        refshard_fs.append(url, write_refs(tmp_path, "1.json", second), "time", on_duplicate=how)
