"""Sets on an object store that is reached by filesystems of other makes: read, listed, committed."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from refshard_fs import ConflictError, RefShardFileSystem
from tests.servers.s3 import SeaweedServer

DATA = bytes(range(256))
MAKES = ["obstore", "obstore, asynchronous", "pyarrow"]


@pytest.fixture(params=MAKES)
def instance(request: pytest.FixtureRequest, s3_server: SeaweedServer) -> Any:
    if request.param == "pyarrow":
        arrow = pytest.importorskip("pyarrow.fs")
        from fsspec.implementations.arrow import ArrowFSWrapper

        endpoint = s3_server.endpoint_url.removeprefix("http://")
        store = arrow.S3FileSystem(
            access_key=s3_server.key,
            secret_key=s3_server.secret,
            endpoint_override=endpoint,
            scheme="http",
            region="us-east-1",
        )
        return ArrowFSWrapper(store)
    obstore = pytest.importorskip("obstore.fsspec")
    return obstore.FsspecStore(
        "s3",
        config={
            "access_key_id": s3_server.key,
            "secret_access_key": s3_server.secret,
            "endpoint": s3_server.endpoint_url,
            "region": "us-east-1",
        },
        client_options={"allow_http": True},
        asynchronous=request.param.endswith("asynchronous"),
    )


def test_a_set_is_read_written_and_committed_through_an_instance(instance: Any, s3_server: SeaweedServer) -> None:
    s3_server.create_bucket("instances")
    place = f"instances/{uuid.uuid4().hex}"
    absolute = s3_server.put(f"{place}/data", DATA)
    refs = {"absolute": [absolute, 5, 10], "relative": ["data", 1, 3], "whole": ["data"]}
    url = s3_server.put(f"{place}/refs.json", json.dumps(refs).encode())

    def opened(**options: Any) -> RefShardFileSystem:
        given = {"options": {"s3://instances/": instance}, "skip_instance_cache": True, **options}
        return RefShardFileSystem(url, inline_threshold=100, **given)

    expected = {"absolute": DATA[5:15], "relative": DATA[1:4], "whole": DATA}
    fs = opened(mode="a")
    assert fs.cat(list(refs)) == expected
    fs.pipe({"large": DATA * 10, "small": b"small"})
    fs.commit()
    assert opened().cat([*refs, "large", "small"]) == {**expected, "large": DATA * 10, "small": b"small"}
    first, second = opened(mode="a"), opened(mode="a")
    first.pipe("small", b"first")
    second.pipe("small", b"second")
    second.commit()
    with pytest.raises(ConflictError, match="somebody else wrote it"):
        first.commit()
    first.discard()
    assert opened().cat_file("small") == b"second"


def test_a_hierarchy_is_listed_and_read_through_an_instance(instance: Any, s3_server: SeaweedServer) -> None:
    s3_server.create_bucket("instances")
    place = f"instances/{uuid.uuid4().hex}.zarr"
    for name in (".zgroup", "g/.zgroup"):
        s3_server.put(f"{place}/{name}", b'{"zarr_format": 2}')
    fs = RefShardFileSystem(f"s3://{place}", options={"s3://instances/": instance}, skip_instance_cache=True)
    assert sorted(fs.find("")) == [".zgroup", "g/.zgroup"]
    assert fs.cat_file("g/.zgroup") == b'{"zarr_format": 2}'
