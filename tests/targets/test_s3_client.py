"""The HTTP sessions of botocore's requests follow no redirects, and otherwise behave like botocore's own."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
import trustme
from fsspec.asyn import get_loop, sync

from refshard_fs.targets import Pool, PoolOptions
from refshard_fs.targets.failures import Retry
from tests.servers.http import RangeServer
from tests.servers.s3 import SeaweedServer
from tests.servers.tls import certificate
from tests.support.scripted_server import RIGHT, Script
from tests.support.target_reading import Reader

pytest.importorskip("s3fs")

KEYS = {"key": "AKIAOWN", "secret": "x", "token": "SECRET", "skip_instance_cache": True}


def reader(options: dict[str, Any]) -> Reader:
    """Return a reader that sends all requests by s3fs."""
    return Reader(by_protocol={"s3": options}, fast_s3=False)


def client(**options: Any) -> Any:
    from refshard_fs.targets.s3_client import S3Client

    return S3Client(**options, asynchronous=True, loop=get_loop())


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.case(id="P16")
def test_request_of_s3fs_follows_no_redirect(status: int, http_server: RangeServer) -> None:
    with RangeServer() as other:
        other.put("/bkt/x", b"01234")
        http_server.fault("redirect", to=f"{other.url}/bkt/x", status=status)
        with pytest.raises(OSError, match="HTTP 30|redirects"):
            reader({**KEYS, "endpoint_url": http_server.url}).read("s3://bkt/x", 0, 5)
        assert other.requests() == []


@pytest.mark.case(id="P16")
def test_client_without_our_session_sends_nothing(http_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiobotocore before 2.27 drops our session class if the user's session has a configuration to merge."""
    import s3fs.core

    theirs = s3fs.core.AioConfig
    monkeypatch.setattr(s3fs.core, "AioConfig", lambda http_session_cls, **options: theirs(**options))
    http_server.put("/bkt/x", b"01234")
    with pytest.raises(OSError, match="would follow redirects with your credentials"):
        reader({**KEYS, "endpoint_url": http_server.url}).read("s3://bkt/x", 0, 5)
    assert http_server.requests() == []


def test_session_class_of_the_user_is_used(http_server: RangeServer) -> None:
    from aiobotocore.httpsession import AIOHTTPSession

    sent = []

    class Mine(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore has no types
        async def send(self, request: Any) -> Any:
            sent.append(request.url)
            return await super().send(request)

    http_server.put("/bkt/x", b"01234")
    options = {**KEYS, "endpoint_url": http_server.url, "config_kwargs": {"http_session_cls": Mine}}
    assert reader(options).read("s3://bkt/x", 0, 5) == b"01234"
    assert len(sent) == len(http_server.requests())


def test_clients_share_the_documents_of_botocore() -> None:
    clients = [client(anon=True, endpoint_url=f"http://127.0.0.1:{port}") for port in (1, 2)]
    for fs in clients:
        sync(get_loop(), fs.set_session)
    first, second = (fs.session.get_component("data_loader") for fs in clients)
    assert first is second


def test_anonymous_clients_share_the_session_of_their_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_session(**options: Any) -> Any:
        fs = client(**{**options, "skip_instance_cache": True})
        sync(get_loop(), fs.set_session)
        return fs.session

    session = make_session(anon=True)
    assert make_session(anon=True) is session
    assert make_session(**KEYS) is not session
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere")  # botocore's sessions keep the configuration
    assert make_session(anon=True) is not session


def test_private_attributes_of_aiobotocore_exist(s3_server: SeaweedServer) -> None:
    """This fails if botocore renames private attributes: then s3fs sends all requests, which takes more time."""
    from refshard_fs.targets.s3 import S3Target, has_own_hooks

    s3_server.create_bucket("client")

    async def found() -> Any:
        fs = client(**s3_server.storage_options)
        bucket = await S3Target(fs)._find_bucket("client")
        return bucket, has_own_hooks(await fs.get_s3())

    bucket, has_hooks = sync(get_loop(), found)
    assert bucket.signer is not None
    assert bucket.base == f"{s3_server.endpoint_url}/client/"
    assert not has_hooks


def test_closed_client_opens_connections_again(http_server: RangeServer) -> None:
    http_server.put("/bkt/x", b"01234")

    async def read() -> list[bytes]:
        fs = client(**KEYS, endpoint_url=http_server.url)
        parts = []
        for _ in range(2):
            parts.append(await fs._cat_file("bkt/x"))
            fs.close_connections()
        return parts

    assert sync(get_loop(), read) == [b"01234"] * 2
    assert len({request.connection for request in http_server.requests()}) == 2


async def read_from(server: asyncio.Server, options: dict[str, Any]) -> bytes:
    pool = Pool(PoolOptions({"s3": options}, retry=Retry(2), fast_s3=False), asyncio.get_running_loop())
    opened, path = pool.place("s3://bkt/x")  # type: ignore[misc]  # it is not None
    try:
        return (await opened.read(path, 0, 5)).data
    finally:
        await pool.close()
        server.close()


def test_proxy_of_the_configuration_is_used() -> None:
    script = Script([RIGHT])

    async def go() -> bytes:
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
        proxy = f"http://me:pass@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = {"proxies": {"http": proxy}}
        return await read_from(server, {**KEYS, "endpoint_url": "http://store.example", "config_kwargs": config})

    assert asyncio.run(go()) == b"01234"
    assert script.heads[0][1].startswith("GET http://store.example/bkt/x HTTP/1.1")
    assert "Proxy-Authorization: Basic bWU6cGFzcw==" in script.heads[0][1]


@pytest.mark.parametrize("verify", [True, False])
def test_client_certificate_is_sent(verify: bool, tmp_path: Path) -> None:
    context, authority = certificate(tmp_path, "localhost")
    users = trustme.CA()
    users.configure_trust(context)
    context.verify_mode = 2  # type: ignore[assignment]  # ssl.CERT_REQUIRED
    mine = str(tmp_path / "mine.pem")
    users.issue_cert("me@example.test").private_key_and_cert_chain_pem.write_to_path(mine)
    script = Script([RIGHT])

    async def go() -> bytes:
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0, ssl=context)
        endpoint = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        tls = {"client_kwargs": {"verify": authority if verify else False}, "config_kwargs": {"client_cert": mine}}
        return await read_from(server, {**KEYS, "endpoint_url": endpoint, **tls})

    assert asyncio.run(go()) == b"01234"


@pytest.mark.parametrize("kind", [bytes, io.BytesIO])
def test_body_is_sent_again_when_the_server_asks(kind: Any, s3_server: SeaweedServer) -> None:
    from tests.support.scripted_server import Forgetful

    s3_server.create_bucket("client")
    data = bytes(3 << 20)
    with Forgetful(s3_server.endpoint_url) as proxy:

        async def put() -> None:
            fs = client(**{**s3_server.storage_options, "client_kwargs": {"endpoint_url": proxy.url}})
            await fs._call_s3("put_object", Bucket="client", Key="again", Body=kind(data))
            fs.close_connections()

        sync(get_loop(), put)
        assert proxy.puts == 2
    assert Reader(by_protocol={"s3": s3_server.storage_options}).read("s3://client/again") == data


@pytest.mark.parametrize("answer", [None, b"garbage\r\n\r\n"])
def test_broken_answers_are_retried(answer: bytes | None) -> None:
    script = Script([answer, answer, RIGHT])

    async def go() -> bytes:
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return await read_from(server, {**KEYS, "endpoint_url": endpoint})

    assert asyncio.run(go()) == b"01234"
