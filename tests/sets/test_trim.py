"""Parts of sets along a dimension."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs.errors import ManifestError
from tests.support.day_sets import make_days


def test_trimming_within_a_chunk_is_refused() -> None:
    with pytest.raises(ManifestError, match="references name whole chunks"):
        refshard_fs.concat([make_days(0, 4, 2), make_days(3, 3, 3)], "time", overlap="last")


def test_trimming_along_a_middle_axis_takes_the_right_chunks() -> None:
    def make_cube(first: int) -> dict[str, Any]:
        refs = make_days(first, 4)
        meta = {"zarr_format": 2, "shape": [2, 4, 2], "chunks": [1, 2, 1], "dtype": "|u1", "order": "C"}
        refs["c/.zarray"] = json.dumps({**meta, "fill_value": None, "filters": None, "compressor": None})
        refs["c/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["x", "time", "y"]})
        for x, t, y in np.ndindex(2, 2, 2):
            refs[f"c/{x}.{t}.{y}"] = [f"memory://{x}.{first + 2 * t}.{y}", 0, 2]
        refs["c/1.1.1"] = "ab" if first else "cd"
        return refs

    references = refshard_fs.concat([make_cube(0), make_cube(2)], "time", overlap="first").references
    found = {key: value[0] for key, value in references.items() if key.startswith("c/") and isinstance(value, list)}
    expected = {f"c/{x}.{t}.{y}": f"memory://{x}.{2 * t}.{y}" for x, t, y in np.ndindex(2, 3, 2)}
    for key in ("c/1.1.1", "c/1.2.1"):
        del expected[key]
    assert found == expected
    assert (references["c/1.1.1"], references["c/1.2.1"]) == (b"cd", b"ab")
