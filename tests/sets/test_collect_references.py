"""The references of a filesystem as columns, for joins and copies of sets."""

from __future__ import annotations

import json

from refshard_fs import RefShardFileSystem
from refshard_fs.references.reference_set import References
from refshard_fs.sets.collect_references import collect_references

META = {"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": None}
ARRAY = {"a/.zarray": json.dumps({**META, "filters": None, "compressor": None})}


def test_urls_are_absolute_and_data_stay_inline() -> None:
    RefShardFileSystem({**ARRAY, "a/0": ["x.nc", 3, 1], "a/1": "b"}, base_url="memory://").save_json(
        "memory://c/r.json"
    )
    found = References(collect_references(RefShardFileSystem("memory://c/r.json")))
    assert found["a/0"] == ["memory://x.nc", 3, 1]
    assert found["a/1"] == "b"


def test_uncommitted_writes_are_included() -> None:
    fs = RefShardFileSystem({**ARRAY, "a/0": ["memory://x.nc", 3, 1]}, mode="a")
    fs.refer("a/1", "memory://y.nc", 0, 1)
    assert References(collect_references(fs))["a/1"] == ["memory://y.nc", 0, 1]
