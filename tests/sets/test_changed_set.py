"""Sets with changed metadata and values."""

from __future__ import annotations

import json

import numpy as np

from refshard_fs import RefShardFileSystem
from refshard_fs.sets.changed_set import ChangedSet, convert_to_version_3, replace_metadata
from refshard_fs.sets.collect_references import collect_references
from refshard_fs.sets.variables import NamedSet, VariableReader
from tests.support.day_sets import make_days


def read_set(name: str = "a set") -> NamedSet:
    refs = collect_references(RefShardFileSystem(make_days(1, 3)))
    return NamedSet(name, refs, VariableReader().read(refs, name))


def test_replacing_metadata_keeps_the_old_set() -> None:
    part = read_set()
    doc = {**part.variables["t"].meta.raw, "fill_value": 7}
    assert replace_metadata(part, {"t/.zarray": doc}).variables["t"].meta.raw["fill_value"] == 7
    assert part.variables["t"].meta.raw["fill_value"] is None


def test_set_in_version_3_has_the_same_chunks() -> None:
    part = convert_to_version_3(read_set())
    assert part.variables["t"].meta.zarr_format == 3
    assert part.refs.tables["t"].grid.tail(2) == "2"  # chunks keep their keys
    assert [part.refs.urls[row.target] for _, row in part.refs.tables["t"].iterate_rows()] == [
        f"memory://{n}" for n in (1, 2, 3)
    ]


def test_replaced_values_become_one_inline_chunk() -> None:
    part = read_set()
    changed = ChangedSet(part)
    changed.put_values(part.variables["time"], np.array([5, 6, 7], "<i4"))
    np.testing.assert_array_equal(changed.finish().decode_values("time"), [5, 6, 7])
    assert json.loads(json.dumps(changed.finish().variables["time"].meta.raw))["chunks"] == [3]
