"""What is changed in the internals of aiobotocore is there, and all but that works where it is not."""

from __future__ import annotations

from typing import Any

import pytest
from fsspec.asyn import get_loop, sync

from refshard_fs import RefShardFileSystem
from tests.servers.s3 import SeaweedServer

pytest.importorskip("s3fs")


def test_client_opens_sessions_as_is_expected(s3_server: SeaweedServer) -> None:
    """Fails where aiobotocore changes: then `s3_client` has to keep its requests from redirects in another way."""
    from refshard_fs.targets import s3_client

    async def session() -> Any:
        fs = s3_client.S3Client(**s3_server.storage_options, asynchronous=True, loop=get_loop())
        client = await fs.get_s3() if await fs.set_session() else None
        return await client._endpoint.http_session._get_session(None)

    assert isinstance(sync(get_loop(), session), s3_client._Staying)


def test_client_of_another_kind_works_and_says_so(s3_server: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from refshard_fs.targets import s3_client

    s3_server.create_bucket("client")
    s3_server.put("client/x", b"0123")
    super_ = s3_client.S3FileSystem.get_s3

    class Other:
        def __init__(self, client: Any) -> None:
            self._client = client

        def __getattr__(self, name: str) -> Any:
            if name == "_endpoint":
                raise AttributeError(name)
            return getattr(self._client, name)

    async def get_s3(self: Any, bucket: str | None = None) -> Any:
        return Other(await super_(self, bucket))

    monkeypatch.setattr(s3_client.S3FileSystem, "get_s3", get_s3)
    fs = RefShardFileSystem({"k": ["s3://client/x", 1, 2]}, options={"s3://": s3_server.storage_options})
    with pytest.warns(RuntimeWarning, match="Redirects of S3 endpoints are followed"):
        assert fs.cat_file("k") == b"12"
    with pytest.warns(RuntimeWarning, match="Redirects of S3 endpoints are followed"):
        fs.save("s3://client/set.json", **s3_server.storage_options, use_ssl=False)


def test_our_own_requests_find_what_they_need(s3_server: SeaweedServer) -> None:
    """Fails where botocore changes: then `s3` leaves all requests to s3fs, which work, and take more time."""
    from refshard_fs.targets.s3 import S3Target, has_own_hooks
    from refshard_fs.targets.s3_client import S3Client

    s3_server.create_bucket("client")

    async def found() -> Any:
        fs = S3Client(**s3_server.storage_options, asynchronous=True, loop=get_loop())
        bucket = await S3Target(fs)._find("client")
        return bucket, has_own_hooks(fs._s3)

    bucket, has_hooks = sync(get_loop(), found)
    assert bucket.signer is not None
    assert bucket.base == f"{s3_server.endpoint_url}/client/"
    assert not has_hooks
