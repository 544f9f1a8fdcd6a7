"""References to save in several formats, and functions that compare the results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.support.parquet_sets import make_v2_array

parquet = pytest.importorskip("pyarrow.parquet")


def make_refs(target: str) -> dict[str, Any]:
    """Return a set with every kind of value, as its version 0 JSON."""
    out: dict[str, Any] = {
        ".zgroup": '{"zarr_format": 2}',
        ".zattrs": {"title": "ünï", "missing": float("nan")},
        "g/.zgroup": {"zarr_format": 2},
        "g/a/.zarray": make_v2_array([5, 4], [1, 1]),
        "g/a/.zattrs": {"x": [1, None]},
        "s/.zarray": make_v2_array([], []),
        "s/0": "base64:AAEC/w==",
        "t/.zarray": make_v2_array([3], [1]),
        "t/0": "text with \0 and ü",
        "t/1": "base64:YmFzZTY0OmhlaA==",
        "t/2": "",
        "none/.zarray": make_v2_array([7], [1]),
    }
    for n in (0, 1, 2, 5, 8, 13, 19):
        out[f"g/a/{n // 4}.{n % 4}"] = [target, n, n + 1]
    out["g/a/1.2"] = [target]
    out["g/a/4.0"] = [target, 3, 0]
    out["g/a/4.1"] = [target, 0, 0]
    return out


def read_content(fs: Any, keys: Any) -> dict[str, Any]:
    out = fs.cat(sorted(keys))
    return {
        k: json.loads(v) if k.rpartition("/")[2] in (".zarray", ".zattrs", ".zgroup", "zarr.json") else v
        for k, v in out.items()
    }


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return repr(sorted(one.items())) == repr(sorted(other.items()))  # NaN is not equal to itself


keys = st.tuples(st.integers(0, 4), st.integers(0, 3))


values = (
    st.binary(max_size=5)
    | st.tuples(st.sampled_from(["s3://b/x", "/ü/y", "http://h/z z"]))
    | st.tuples(st.sampled_from(["s3://b/x", "/ü/y"]), st.integers(0, 2**62), st.integers(1, 2**62 - 1))
)
