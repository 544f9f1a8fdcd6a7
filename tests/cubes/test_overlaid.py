"""Show gaps, and pieces with other metadata."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.model import Inline
from refshard_fs.cubes.overlaid import Gap, OverlaidPiece, stack_metadata
from refshard_fs.errors import ManifestError
from tests.support.arrays_in_memory import make_array, make_references
from tests.support.key_spaces import answer

META = make_array([10], ["x"])[".zarray"]


def make_overlaid(metadata: dict[str, Any], held: dict[str, bytes]) -> OverlaidPiece:
    base = RefShardFileSystem(make_references(a=make_array([3], ["x"]), x=make_array([3], ["x"]))).source.open()
    return OverlaidPiece(base, metadata, held, "the document")


def test_gap_has_no_keys() -> None:
    gap = Gap()
    assert answer(gap.lookup("a/0")) is None
    assert answer(gap.children("")) is None


def test_array_held_by_the_cube_replaces_chunks_of_the_piece() -> None:
    shown = make_overlaid({"x/.zarray": META}, {"x": bytes(range(10))})
    assert answer(shown.lookup("x/0")) == Inline(bytes(range(10)))
    assert answer(shown.lookup("x/1")) is None
    assert answer(shown.lookup("a/1")).url == "s3://b/a"
    assert {listed.name for listed in answer(shown.children("x"))} == {".zarray", ".zattrs", "0"}
    assert json.loads(answer(shown.lookup("x/.zarray")).data)["chunks"] == [10]


def test_listing_excludes_siblings_that_begin_like_the_directory() -> None:
    shown = make_overlaid({"abc/.zarray": META, "a/d/.zarray": META}, {})
    names = {listed.name for listed in answer(shown.children("a"))}
    assert "d" in names
    assert "bc" not in names


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "expected metadata of an array of one chunk"),
        ({"x/.zarray": {**META, "shape": [11]}}, "an array of one chunk"),
    ],
)
def test_held_bytes_need_an_array_of_one_chunk(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        make_overlaid(metadata, {"x": bytes(10)})


def test_held_bytes_of_a_wrong_length_are_refused() -> None:
    with pytest.raises(ManifestError, match="bytes of 'x' for its chunk of .* got 9"):
        make_overlaid({"x/.zarray": META}, {"x": bytes(9)})


def test_stacked_metadata_have_a_first_dimension_of_one() -> None:
    assert stack_metadata(META, [3], "time")["chunks"] == [1, 3]
    stacked = stack_metadata(make_array([3], ["x"], 3)["zarr.json"], [3], "time")
    assert stacked["shape"] == [1, 10]
    assert stacked["dimension_names"] == ["time", "x"]


@pytest.mark.parametrize("version", [2, 3])
def test_consolidated_metadata_equal_the_shown_documents(version: int) -> None:
    name = ".zarray" if version == 2 else "zarr.json"
    own, shown = (make_array([10], [dim], version)[name] for dim in ("x", "y"))
    own = {**own, "fill_value": 1}
    if version == 2:
        key, root = ".zmetadata", {"zarr_consolidated_format": 1, "metadata": {"x/.zarray": own, "a/.zarray": own}}
    else:
        members = {"kind": "inline", "must_understand": False, "metadata": {"x": own, "a": own}}
        key, root = "zarr.json", {"zarr_format": 3, "node_type": "group", "consolidated_metadata": members}
    base = RefShardFileSystem({key: json.dumps(root), f"x/{name}": json.dumps(own)}).source.open()
    data = answer(OverlaidPiece(base, {f"x/{name}": shown}, {}, "the document").lookup(key)).data
    found = json.loads(data)
    known = found["metadata"] if version == 2 else found["consolidated_metadata"]["metadata"]
    assert list(known.values()) == [shown, own]
