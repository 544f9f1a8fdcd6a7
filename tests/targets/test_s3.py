"""Our own S3 requests return the same bytes as s3fs, with its credentials; s3fs sends the other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import botocore.httpsession
import pytest
import s3fs
from aiobotocore.session import AioSession

from refshard_fs.core.model import Pin
from refshard_fs.errors import ReferenceNotReachable, TargetChanged
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.targets import Answer, Pool, PoolOptions, Retry
from refshard_fs.targets.failures import Denial, HttpStatus, Unfit
from refshard_fs.targets.s3 import S3Target, parse_page
from tests.servers.engine import HttpServer
from tests.servers.log import Request
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer
from tests.servers.tls import certificate
from tests.servers.wire import Answer as Wire
from tests.servers.wire import Head, Resource, answer_read, failure
from tests.support.scripted_server import RIGHT, Script
from tests.support.target_reading import AT_ONCE, Reader, run_with_pool

DATA = bytes(i * 31 % 251 for i in range(3000))
RANGES = [(0, 10), (10, 2000), (2990, 3000), (0, 3000), (-7, None), (5, None), (0, None), (-9999, None)]
KEYS = ["x", "a/b c+d%é&=?.bin", "~-_.!*'()"]


@pytest.fixture(scope="module")
def bucket(s3_server: SeaweedServer) -> str:
    s3_server.create_bucket("targets")
    for key in KEYS:
        s3_server.put(f"targets/{key}", DATA)
    s3_server.put("targets/empty", b"")
    return "s3://targets"


def signed(server: SeaweedServer, **more: Any) -> dict[str, Any]:
    return {**server.storage_options, **more}


def through(proxy: CountingProxy, **more: Any) -> dict[str, Any]:
    """Return the options of a signing client that sends its requests to ``proxy``."""
    return {"key": "ak", "secret": SeaweedServer.secret, "endpoint_url": proxy.url, **more}


def reader(options: Any, **given: Any) -> Reader:
    return Reader(by_protocol={"s3": options}, **given)


@pytest.mark.parametrize(("start", "stop"), RANGES)
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("how", ["signed", "anonymous", "left to s3fs"])
@pytest.mark.evidence(id="T9")
def test_range_equals_a_slice(
    s3_server: SeaweedServer, bucket: str, how: str, key: str, start: int, stop: int | None
) -> None:
    options = s3_server.anonymous_options if how == "anonymous" else s3_server.storage_options
    answer = reader(options, fast_s3=how != "left to s3fs").answer(f"{bucket}/{key}", start, stop)
    assert answer.data == DATA[start:stop]


def test_read_takes_one_request_without_a_secret_in_its_url(s3_proxy: CountingProxy, bucket: str) -> None:
    async def read(opened: Any, path: str) -> None:
        for i in range(5):
            assert (await opened.read(path, i, i + 9)).data == DATA[i : i + 9]

    reader(through(s3_proxy)).run(f"{bucket}/x", read)
    requests = s3_proxy.requests()
    assert [r.method for r in requests] == ["GET"] * 5
    assert {r.query for r in requests} == {""}
    assert [r.headers["range"] for r in requests] == [f"bytes={i}-{i + 8}" for i in range(5)]
    assert len({r.headers["authorization"] for r in requests}) == 1, "one signature serves all ranges of an object"
    assert all("botocore" not in r.headers.get("user-agent", "").lower() for r in requests)


def test_anonymous_requests_are_not_signed(s3_proxy: CountingProxy, bucket: str) -> None:
    options = {"anon": True, "endpoint_url": s3_proxy.url}
    assert reader(options).read(f"{bucket}/x", 0, 5) == DATA[:5]
    (request,) = s3_proxy.requests()
    assert not {"authorization", "x-amz-date", "x-amz-security-token"} & set(request.headers)


def test_fast_s3_can_be_switched_off(s3_proxy: CountingProxy, bucket: str) -> None:
    assert reader(through(s3_proxy), fast_s3=False).read(f"{bucket}/x", 0, 5) == DATA[:5]
    assert "botocore" in s3_proxy.requests()[0].headers["user-agent"].lower()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_options_of_an_instance_are_used(s3_proxy: CountingProxy, bucket: str, asynchronous: bool) -> None:
    fs = s3fs.S3FileSystem(**through(s3_proxy), asynchronous=asynchronous, skip_instance_cache=True)
    assert reader(fs).read(f"{bucket}/x", 0, 5) == DATA[:5]
    assert len(s3_proxy.requests()) == 1


def test_requester_pays_header_is_signed(s3_proxy: CountingProxy, bucket: str) -> None:
    assert reader(through(s3_proxy, requester_pays=True)).read(f"{bucket}/x", 0, 5) == DATA[:5]
    (request,) = s3_proxy.requests()
    assert request.headers["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer" in request.headers["authorization"]


@pytest.mark.parametrize(
    "unusual",
    [
        {"version_aware": True},
        {"s3_additional_kwargs": {"ExpectedBucketOwner": "123456789012"}},
        {"config_kwargs": {"signature_version": "s3"}},
    ],
)
def test_unsupported_requests_are_sent_by_s3fs(s3_proxy: CountingProxy, bucket: str, unusual: dict[str, Any]) -> None:
    try:
        assert reader(through(s3_proxy, **unusual)).read(f"{bucket}/x", 0, 5) == DATA[:5]
    except OSError:
        pass  # the store may not support the request: only its sender matters here
    assert all("botocore" in r.headers["user-agent"].lower() for r in s3_proxy.requests())


def test_hooks_of_the_users_session_are_called(s3_proxy: CountingProxy, bucket: str) -> None:
    session = AioSession()
    called = []
    session.get_component("event_emitter").register("before-sign.s3.GetObject", lambda **given: called.append(given))
    assert reader(through(s3_proxy, session=session)).read(f"{bucket}/x", 0, 5) == DATA[:5]
    assert len(called) == 1


def test_hooks_of_an_instances_client_are_called(s3_proxy: CountingProxy, bucket: str) -> None:
    fs = s3fs.S3FileSystem(**through(s3_proxy), skip_instance_cache=True)
    fs.connect()
    called = []
    fs.s3.meta.events.register("before-send.s3", lambda **given: called.append(given))
    assert reader(fs).read(f"{bucket}/x", 0, 5) == DATA[:5]
    assert len(called) == 1


@pytest.mark.parametrize(
    "how", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "verify", "certifi", "unverified", "not at all"]
)
@pytest.mark.evidence(id="T16")
def test_certificates_are_verified_as_botocore_does(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, authority = certificate(tmp_path, "localhost")
    options: dict[str, Any] = {"anon": True, "skip_instance_cache": True}
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    match how:
        case "AWS_CA_BUNDLE" | "REQUESTS_CA_BUNDLE":
            monkeypatch.setenv(how, authority)
        case "verify":
            options["client_kwargs"] = {"verify": authority}
        case "unverified":
            options["client_kwargs"] = {"verify": False}
        case "certifi":
            monkeypatch.setattr(botocore.httpsession, "where", lambda: authority)
    script = Script([RIGHT])

    async def go() -> bytes:
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0, ssl=context)
        options["endpoint_url"] = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        pool = Pool(PoolOptions({"s3": options}, retry=AT_ONCE), asyncio.get_running_loop())
        opened, path = pool.place("s3://bkt/x")  # type: ignore[misc]  # it is not None
        try:
            return (await opened.read(path, 0, 5)).data
        finally:
            await pool.close()
            server.close()

    if how == "not at all":
        with pytest.raises(OSError, match="certificate"):
            asyncio.run(go())
        return
    assert asyncio.run(go()) == b"01234"
    assert "botocore" not in script.heads[0][1].lower()


def test_missing_object_and_missing_bucket_are_different_errors(s3_server: SeaweedServer, bucket: str) -> None:
    mine = reader(s3_server.storage_options)
    for call in (lambda url: mine.read(url, 0, 5), mine.get_facts):
        with pytest.raises(FileNotFoundError):
            call(f"{bucket}/none")
        with pytest.raises(HttpStatus, match="NoSuchBucket"):
            call("s3://no-such-bucket/x")
    with pytest.raises(HttpStatus, match="NoSuchBucket"):
        reader(s3_server.storage_options, fast_s3=True).list_names("s3://no-such-bucket/x")


@pytest.mark.parametrize("wrong", [{"key": "nobody"}, {"secret": "wrong"}])
def test_wrong_credentials_are_denied(s3_server: SeaweedServer, bucket: str, wrong: dict[str, str]) -> None:
    with pytest.raises(PermissionError):
        reader(signed(s3_server, **wrong)).read(f"{bucket}/x", 0, 5)


def test_read_without_credentials_is_an_error(
    s3_server: SeaweedServer, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(OSError, match="[Cc]redentials") as caught:
        reader({"endpoint_url": s3_server.endpoint_url}).read(f"{bucket}/x", 0, 5)
    assert not isinstance(caught.value, FileNotFoundError)


def test_credentials_of_the_environment_are_found(
    s3_proxy: CountingProxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ak")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SeaweedServer.secret)
    assert reader({"endpoint_url": s3_proxy.url}).read(f"{bucket}/x", 0, 5) == DATA[:5]
    assert "Credential=ak/" in s3_proxy.requests()[0].headers["authorization"]


@pytest.mark.parametrize("kind", ["short_body", "hang_up", "reset", "wrong_content_range", "long_body"])
def test_faulty_answers_are_errors(s3_proxy: CountingProxy, bucket: str, kind: Any) -> None:
    s3_proxy.fault(kind)
    with pytest.raises((Unfit, ConnectionError)):
        reader(through(s3_proxy)).read(f"{bucket}/x", 10, 2000)


def test_slow_down_is_retried(s3_proxy: CountingProxy, bucket: str) -> None:
    s3_proxy.fault(503, times=2)
    mine = reader(through(s3_proxy), retry=Retry(retries=3, timeout=60))
    assert mine.read(f"{bucket}/x", 0, 5) == DATA[:5]
    assert mine.stats.snapshot()["retries"] == 2
    assert len(s3_proxy.requests()) == 3


def test_refusal_is_not_retried(s3_proxy: CountingProxy, bucket: str) -> None:
    s3_proxy.fault(403)
    with pytest.raises(Denial, match="AccessDenied"):
        reader(through(s3_proxy), retry=Retry(retries=3, timeout=60)).read(f"{bucket}/x", 0, 5)
    assert len(s3_proxy.requests()) == 1


def test_error_says_that_the_object_was_replaced(s3_server: SeaweedServer, bucket: str) -> None:
    url = s3_server.put("targets/changing", DATA)
    mine = reader(s3_server.storage_options)
    etag = mine.answer(url, 0, 5).facts.etag
    assert mine.read(url, 5, 9, Pin(etag=etag)) == DATA[5:9]
    s3_server.put("targets/changing", DATA[::-1])
    with pytest.raises(TargetChanged, match="replaced since it was first read"):
        mine.read(url, 0, 5)
    with pytest.raises(TargetChanged, match="not the object that the manifest was made for"):
        reader(s3_server.storage_options).read(url, 0, 5, Pin(etag=etag))


def test_empty_object_and_range_after_the_end_are_empty(s3_server: SeaweedServer, bucket: str) -> None:
    mine = reader(s3_server.storage_options)
    assert mine.get_facts(f"{bucket}/empty").size == 0
    assert mine.read(f"{bucket}/empty") == b""

    async def behind(opened: Any, path: str) -> Answer:
        answer: Answer = await opened.read(path, 3000, 3010)
        return answer

    answer = mine.run(f"{bucket}/x", behind)
    assert (answer.data, answer.size) == (b"", 3000)


def test_names_below_a_prefix_are_listed(s3_server: SeaweedServer, bucket: str) -> None:
    names = reader(s3_server.storage_options).list_names(f"{bucket}/a") or ()
    (listed,) = names
    assert (listed.name, listed.size, listed.is_directory) == ("b c+d%é&=?.bin", 3000, False)
    assert listed.etag is not None
    assert listed.last_modified is not None


@pytest.mark.parametrize("how", ["signed", "anonymous"])
@pytest.mark.parametrize("below", ["", "/a", "/a/", "/deep", "/deep/er", "/nothing"])
@pytest.mark.parametrize("call", ["list_names", "list_tree"])
def test_listing_equals_s3fs(
    s3_server: SeaweedServer, s3_proxy: CountingProxy, bucket: str, call: str, below: str, how: str
) -> None:
    for key in ("deep/er/x+y z", "deep/er/ü/1", "deep/er/ü/0", "deep/er.txt", "deep/0"):
        s3_server.put(f"targets/{key}", key.encode())

    async def listed(opened: Any, path: str) -> Any:
        try:
            return sorted(await getattr(opened, call)(path), key=repr)
        except FileNotFoundError:
            return None

    options = {"anon": True, "endpoint_url": s3_proxy.url} if how == "anonymous" else through(s3_proxy)
    ours = reader(options).run(f"{bucket}{below}", listed)
    agents = [r.headers["user-agent"] for r in s3_proxy.requests() if "list-type" in r.query]
    theirs = reader(options, fast_s3=False).run(f"{bucket}{below}", listed)
    assert ours == theirs
    if ours:
        assert agents
        assert not any("botocore" in agent.lower() for agent in agents)


class Scripted(HttpServer):
    """A server that answers our first requests with ``refusals``; later ones, and botocore's, get the object."""

    def __init__(self, *refusals: tuple[int, str]) -> None:
        super().__init__()
        self.refusals = list(refusals)

    async def answer(self, head: Head, body: bytes, request: Request) -> Wire:
        ours = "botocore" not in head.headers.get("user-agent", "").lower()
        if ours and self.refusals:
            status, code = self.refusals.pop(0)
            return failure(status, code)
        return answer_read(head, Resource.of(DATA, 1.0))


class Pages(HttpServer):
    """A server that lists the keys ``0`` to ``6``, three on a page."""

    async def answer(self, head: Head, body: bytes, request: Request) -> Wire:
        query = dict(parse_qsl(head.query))
        first = int(query.get("continuation-token", "0"))
        keys = range(first, min(first + 3, 7))
        rows = "".join(
            f"<Contents><Key>d%2B/{key}</Key><LastModified>2024-01-02T03:04:05.000Z</LastModified><ETag>{key}</ETag>"
            f"<Size>{key}</Size></Contents>"
            for key in keys
        )
        more = f"<NextContinuationToken>{first + 3}</NextContinuationToken>" if first + 3 < 7 else ""
        namespace = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        text = f"<ListBucketResult {namespace}><EncodingType>url</EncodingType>{more}{rows}</ListBucketResult>".encode()
        return Wire(200, {"content-length": str(len(text))}, memoryview(text))


def test_listing_continues_to_the_last_page() -> None:
    with Pages() as server:
        listed = reader({"anon": True, "endpoint_url": server.url}).run(
            "s3://bkt/d+", lambda o, path: o.list_tree(path)
        )
        assert len(server.requests()) == 3
    assert listed is not None
    assert [(each.name, each.size, each.etag) for each in listed] == [(str(key), key, str(key)) for key in range(7)]
    assert {each.last_modified for each in listed} == {"2024-01-02 03:04:05+00:00"}


def test_listing_that_is_cut_without_a_token_is_an_error() -> None:
    text = "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"
    with pytest.raises(ValueError, match="NextContinuationToken"):
        parse_page(text, 0)


@pytest.fixture
def scripted() -> Iterator[Any]:
    servers: list[Scripted] = []

    def start(*refusals: tuple[int, str]) -> Scripted:
        server = Scripted(*refusals)
        server.__enter__()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (301, "PermanentRedirect"),
        (307, "TemporaryRedirect"),
        (400, "AuthorizationHeaderMalformed"),
        (403, "RequestTimeTooSkewed"),
        (403, "SignatureDoesNotMatch"),
    ],
)
def test_bucket_that_needs_other_requests_is_read_by_s3fs(scripted: Any, status: int, code: str) -> None:
    server = scripted((status, code), (status, code))
    options = {"key": "a", "secret": "b", "endpoint_url": server.url}

    async def read(opened: Any, path: str) -> None:
        for i in range(3):
            assert (await opened.read(path, i, i + 5)).data == DATA[i : i + 5]

    reader(options).run("s3://bkt/x", read)
    agents = ["botocore" in r.headers["user-agent"].lower() for r in server.requests()]
    assert agents == [False, True, True, True]


@pytest.mark.evidence(id="T13")
def test_expired_token_is_renewed_once(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = scripted((400, "ExpiredToken"))
    options = {"key": "a", "secret": "b", "token": "old", "endpoint_url": server.url}

    async def read(pool: Pool) -> bytes:
        place = pool.place("s3://bkt/x")
        assert place is not None
        opened, path = place
        target = opened.target
        assert isinstance(target, S3Target)
        await target.fs.set_session()
        credentials = target.fs._s3._request_signer._credentials

        async def frozen() -> Any:
            return type(credentials)("a", "b", "new" if server.requests() else "old")

        monkeypatch.setattr(credentials, "get_frozen_credentials", frozen)
        return (await opened.read(path, 0, 5)).data

    assert run_with_pool(PoolOptions({"s3": options}, retry=AT_ONCE), read) == DATA[:5]
    assert [r.headers["x-amz-security-token"] for r in server.requests()] == ["old", "new"]


def test_token_that_stays_expired_is_an_error(scripted: Any) -> None:
    server = scripted(*[(400, "ExpiredToken")] * 9)
    options = {"key": "a", "secret": "b", "token": "old", "endpoint_url": server.url}
    with pytest.raises(HttpStatus, match="ExpiredToken"):
        reader(options, retry=Retry(retries=3, timeout=60)).read("s3://bkt/x", 0, 5)
    assert len(server.requests()) == 1


def test_expired_credentials_are_not_a_missing_key(scripted: Any) -> None:
    server = scripted(*[(400, "ExpiredToken")] * 9)
    options = {"key": "a", "secret": "b", "token": "old", "endpoint_url": server.url}
    refs = {".zgroup": '{"zarr_format":2}', "a": ["s3://bkt/x", 0, 5]}
    fs = RefShardFileSystem(refs, remote_protocol="s3", remote_options=options, skip_instance_cache=True)
    with pytest.raises(ReferenceNotReachable, match="ExpiredToken") as caught:
        fs.cat_file("a")
    assert not isinstance(caught.value, FileNotFoundError)
    assert "s3://bkt/x" in str(caught.value)
    assert "old" not in str(caught.value)


def test_objects_with_customer_keys_are_read_by_s3fs(scripted: Any) -> None:
    server = scripted()
    secret = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "0" * 32}
    options = {"key": "a", "secret": "b", "endpoint_url": server.url, "s3_additional_kwargs": secret}
    assert reader(options).read("s3://bkt/x", 3, 9) == DATA[3:9]
    asked = [r for r in server.requests() if r.method == "GET"]
    assert asked
    assert all("botocore" in r.headers["user-agent"].lower() for r in asked)
    assert all(r.headers["x-amz-server-side-encryption-customer-algorithm"] == "AES256" for r in asked)


def test_expired_signature_is_renewed(s3_proxy: CountingProxy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from refshard_fs.targets import s3

    monkeypatch.setattr(s3, "_VALID", -1.0)

    async def read(opened: Any, path: str) -> None:
        await opened.read(path, 0, 5)
        await asyncio.sleep(1.1)  # a signature has its time in whole seconds
        await opened.read(path, 0, 5)

    reader(through(s3_proxy)).run(f"{bucket}/x", read)
    assert len({r.headers["authorization"] for r in s3_proxy.requests()}) == 2


class KeysRefused(HttpServer):
    """A server for which all keys are too long."""

    async def answer(self, head: Head, body: bytes, request: Request) -> Wire:
        return failure(400, "KeyTooLongError")


@pytest.mark.parametrize("fast", [True, False])
def test_key_that_is_too_long_for_s3_is_missing(fast: bool) -> None:
    with KeysRefused() as server:
        mine = reader({"key": "a", "secret": "b", "endpoint_url": server.url}, fast_s3=fast)
        with pytest.raises(FileNotFoundError):
            mine.read(f"s3://bkt/{'x' * 1100}", 0, 5)
