"""Tests of `refshard_fs.core.ome_zarr`."""

from __future__ import annotations

from typing import Any

import pytest

from refshard_fs.core.ome_zarr import Member, list_members

IMAGE = {"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]}
RESOLUTIONS = [Member("0", "resolution"), Member("1", "resolution"), Member("labels", "labels")]


@pytest.mark.parametrize(
    ("attributes", "members"),
    [
        (IMAGE, RESOLUTIONS),
        ({"ome": IMAGE}, RESOLUTIONS),
        ({"labels": ["cells", 3]}, [Member("cells", "group")]),
        ({"ome": {"series": ["0", 1]}}, [Member("0", "group", "above")]),
        ({"bioformats2raw.layout": 3}, [Member("OME", "index")]),
        ({"ome": {"bioformats2raw.layout": 3}}, [Member("OME", "index")]),
        ({"plate": {"wells": [{"path": "A/1"}]}}, [Member("A/1", "group")]),
        ({"well": {"images": [{"path": "0"}, {"path": 1}, None]}}, [Member("0", "group")]),
        ({"multiscales": [None, {"datasets": 3}], "plate": [], "well": {"images": 1}}, RESOLUTIONS[2:]),
        ({"ome": 1}, []),
        ({"units": "K"}, []),
        ([IMAGE], []),
        (None, []),
    ],
)
def test_members_are_those_that_attributes_name(attributes: Any, members: list[Member]) -> None:
    assert list(list_members(attributes)) == members
