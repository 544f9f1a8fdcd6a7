"""Filesystem instances of other packages read, list and commit sets."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from refshard_fs import ConflictError, RefShardFileSystem
from tests.servers.s3 import SeaweedServer

DATA = bytes(range(256))
MAKES = ["obstore", "obstore, asynchronous", "pyarrow"]


class Place(NamedTuple):
    """A directory for one test: its URL, the filesystem that reaches it, and a function that puts objects there."""

    url: str
    instance: Any
    put: Callable[[str, bytes], object]

    def opened(self, name: str, **options: Any) -> RefShardFileSystem:
        given = {"options": {self.url + "/": self.instance}, "skip_instance_cache": True, **options}
        return RefShardFileSystem(f"{self.url}/{name}", inline_threshold=100, **given)


@pytest.fixture(params=MAKES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "pyarrow":
        arrow = pytest.importorskip("pyarrow.fs")
        from fsspec.implementations.arrow import ArrowFSWrapper

        (tmp_path / "h.zarr" / "g").mkdir(parents=True)
        return Place(
            f"file://{tmp_path}",
            ArrowFSWrapper(arrow.LocalFileSystem()),
            lambda name, data: (tmp_path / name).write_bytes(data),
        )
    obstore = pytest.importorskip("obstore.fsspec")
    s3_server: SeaweedServer = request.getfixturevalue("s3_server")
    config = {
        "access_key_id": s3_server.key,
        "secret_access_key": s3_server.secret,
        "endpoint": s3_server.endpoint_url,
        "region": "us-east-1",
    }
    is_asynchronous = request.param.endswith("asynchronous")
    instance = obstore.FsspecStore(
        "s3", config=config, client_options={"allow_http": True}, asynchronous=is_asynchronous
    )
    s3_server.create_bucket("instances")
    path = f"instances/{uuid.uuid4().hex}"
    return Place(f"s3://{path}", instance, lambda name, data: s3_server.put(f"{path}/{name}", data))


@pytest.mark.evidence(id="T29")
@pytest.mark.evidence(id="T31")
def test_set_is_read_written_and_committed_through_an_instance(place: Place) -> None:
    place.put("data", DATA)
    refs = {"absolute": [f"{place.url}/data", 5, 10], "relative": ["data", 1, 3], "whole": ["data"]}
    place.put("refs.json", json.dumps(refs).encode())
    expected = {"absolute": DATA[5:15], "relative": DATA[1:4], "whole": DATA}
    fs = place.opened("refs.json", mode="a")
    assert fs.cat(list(refs)) == expected
    fs.pipe({"large": DATA * 10, "small": b"small"})
    fs.commit()
    found = place.opened("refs.json").cat([*refs, "large", "small"])
    assert found == {**expected, "large": DATA * 10, "small": b"small"}
    first, second = (place.opened("refs.json", mode="a") for _ in range(2))
    first.pipe("small", b"first")
    second.pipe("small", b"second")
    second.commit()
    with pytest.raises(ConflictError, match="another writer wrote it"):
        first.commit()
    first.discard()
    assert place.opened("refs.json").cat_file("small") == b"second"


def test_hierarchy_is_listed_and_read_through_an_instance(place: Place) -> None:
    for name in (".zgroup", "g/.zgroup"):
        place.put(f"h.zarr/{name}", b'{"zarr_format": 2}')
    fs = place.opened("h.zarr")
    assert sorted(fs.find("")) == [".zgroup", "g/.zgroup"]
    assert fs.cat_file("g/.zgroup") == b'{"zarr_format": 2}'
