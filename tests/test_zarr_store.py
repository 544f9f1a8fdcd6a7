"""zarr's stores over the filesystem: what zarr lists and reads is what the references say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem

zarr = pytest.importorskip("zarr")
FsspecStore = getattr(pytest.importorskip("zarr.storage"), "FsspecStore", None)

ARRAY = json.dumps(
    {
        "zarr_format": 2,
        "shape": [2],
        "chunks": [1],
        "dtype": "|u1",
        "order": "C",
        "fill_value": 9,
        "filters": None,
        "compressor": None,
    }
)
GROUP = '{"zarr_format": 2}'
REFS: dict[str, Any] = {
    ".zgroup": GROUP,
    "top/.zarray": ARRAY,
    "top/0": "a",
    "sub/.zgroup": GROUP,
    "sub/a/.zarray": ARRAY,
    "sub/a/0": "b",
    "sub/deep/.zgroup": GROUP,
    "sub/deep/a/.zarray": ARRAY,
    "sub/deep/a/1": "c",
}
MEMBERS = ["sub", "sub/a", "sub/deep", "sub/deep/a", "top"]


@pytest.mark.skipif(FsspecStore is None, reason="zarr 2 has no FsspecStore")
@pytest.mark.parametrize("path", ["", "/"])
def test_groups_below_groups_are_listed_whatever_slashes_zarr_puts_before_paths(path: str) -> None:
    store = FsspecStore(RefShardFileSystem(REFS, asynchronous=True), read_only=True, path=path)
    group = zarr.open_group(store, mode="r")
    assert sorted(name for name, _ in group.members(max_depth=None)) == MEMBERS
    assert group["sub/deep/a"][:].tolist() == [9, ord("c")]


@pytest.mark.skipif(FsspecStore is not None, reason="zarr 3 takes no mapper of a synchronous filesystem")
def test_zarr_2_lists_and_reads_through_a_mapper() -> None:
    group = zarr.open(RefShardFileSystem(REFS).get_mapper(""), mode="r")
    found: list[str] = []
    group.visit(found.append)
    assert sorted(found) == MEMBERS
    assert group["sub/deep/a"][:].tolist() == [9, ord("c")]
