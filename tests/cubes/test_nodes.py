"""Read and write the metadata of a source by node."""

from __future__ import annotations

from typing import Any

from refshard_fs.cubes.choice import Choice
from refshard_fs.cubes.choose import choose
from refshard_fs.cubes.nodes import collect_documents, group_by_node


def make_group(**members: Any) -> dict[str, Any]:
    consolidated = {"kind": "inline", "must_understand": False, "metadata": members}
    return {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": consolidated}


def test_consolidated_metadata_equals_shown_metadata() -> None:
    array = {"zarr_format": 3, "node_type": "array", "shape": [4], "attributes": {"coordinates": "b"}}
    documents = {"zarr.json": make_group(a=array, b=array), "a/zarr.json": array, "b/zarr.json": array}
    shown = collect_documents(choose(group_by_node(documents), Choice.of(drop="b", rename={"a": "c"})))
    assert shown["zarr.json"]["consolidated_metadata"]["metadata"] == {"c": shown["c/zarr.json"]}
    assert shown["c/zarr.json"]["attributes"] == {}  # without coordinates that are not shown
    empty = collect_documents(choose(group_by_node(documents), Choice.of(drop=["a", "b"])))
    assert empty["zarr.json"]["consolidated_metadata"]["metadata"] == {}
    assert documents["a/zarr.json"]["attributes"] == {"coordinates": "b"}  # the source's documents stay unchanged
