"""A URL gets the options of its longest prefix, and never those of another prefix."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs.errors import TargetChanged
from refshard_fs.targets import Pool, PoolOptions, Versions
from refshard_fs.targets.failures import Unreadable
from tests.servers.http import RangeServer
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer
from tests.support.target_reading import AT_ONCE, Reader, run_with_pool

DATA = bytes(range(256))


def secrets(server: Any) -> list[str | None]:
    return [r.headers.get("x-secret") for r in server.requests()]


def headers(secret: str) -> dict[str, Any]:
    return {"headers": {"X-Secret": secret}}


@pytest.mark.case(id="P8")
def test_longest_prefix_chooses_credentials(http_server: RangeServer) -> None:
    u = http_server.url
    paths = ["/a/x", "/a/b/x", "/a/bc/x", "/ab/x", "/c/x", "/a/b"]
    for path in paths:
        http_server.put(path, DATA)
    reader = Reader(
        by_protocol={"http": headers("any")},
        by_prefix={f"{u}/a/": headers("a"), f"{u}/a/b": headers("ab"), f"{u}/c/x": {}},
    )
    for path in paths:
        reader.read(u + path, 0, 5)
    assert secrets(http_server) == ["a", "ab", "a", "any", None, "ab"]


def test_prefixes_of_one_pool_do_not_share_sessions(http_server: RangeServer) -> None:
    u = http_server.url
    http_server.put("/a/x", DATA)
    http_server.put("/b/x", DATA)

    async def read(pool: Pool) -> None:
        for path in ("/a/x", "/b/x", "/a/x", "/b/x"):
            place = pool.place(u + path)
            assert place is not None
            await place[0].read(place[1], 0, 5)

    session = {f"{u}/a": {"client_kwargs": headers("a")}, f"{u}/b": {"client_kwargs": headers("b")}}
    run_with_pool(PoolOptions(by_prefix=session, retry=AT_ONCE), read)
    assert secrets(http_server) == ["a", "b", "a", "b"]


@pytest.mark.parametrize("how", ["prefix", "protocol", "instance"])
def test_link_of_a_chain_is_opened_with_its_own_options(http_server: RangeServer, how: str) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("m", DATA)
    url = http_server.put("/a.zip", file.getvalue())
    options: dict[str, Any] = {
        "prefix": {"by_prefix": {http_server.url: headers("link")}},
        "protocol": {"by_protocol": {"http": headers("link")}},
        "instance": {"by_protocol": {"http": HTTPFileSystem(**headers("link"), skip_instance_cache=True)}},
    }[how]
    assert Reader(**options).read(f"zip://m::{url}", 1, 5) == DATA[1:5]
    assert set(secrets(http_server)) == {"link"}


def test_instances_and_options_apply_by_protocol(http_server: RangeServer) -> None:
    url = http_server.put("/x", DATA)
    MemoryFileSystem().pipe_file("/pool/x", DATA)
    http = HTTPFileSystem(**headers("instance"), skip_instance_cache=True)
    reader = Reader(by_protocol={"http": http, "memory": {}})
    assert reader.read(url, 1, 5) == DATA[1:5]
    assert reader.read("memory://pool/x", 1, 5) == DATA[1:5]
    assert secrets(http_server) == ["instance"]


def test_instance_applies_to_its_prefix(http_server: RangeServer) -> None:
    http_server.put("/a/x", DATA)
    url = http_server.put("/x", DATA)
    http = HTTPFileSystem(**headers("instance"), skip_instance_cache=True)
    reader = Reader(by_prefix={f"{http_server.url}/a": http})
    reader.read(f"{http_server.url}/a/x", 0, 5)
    reader.read(url, 0, 5)
    assert secrets(http_server) == ["instance", None]


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize(
    "url",
    [
        "https://good.example.evil/x", "https://good.example@evil.example/x", "https://good.example:8443/x",
        "https://good.example\\@evil.example/x", "https://good.examples/x", "http://good.example/x",
        "https://xgood.example/x", "https://good.example%2f.evil/x", "https://good.example?.evil/x",
        "https://good.example#.evil/x", "zip://m::https://good.example.evil/x", "s3://good.example/x",
    ],
)  # fmt: skip
@pytest.mark.case(id="P8")
def test_options_of_a_server_are_not_for_similar_names(url: str, slash: str) -> None:
    options = PoolOptions(by_prefix={f"https://good.example{slash}": headers("secret")})
    assert options.find_options(url) == {}
    assert options.find_options("https://good.example/x") == headers("secret")


def test_s3_keys_of_one_prefix_do_not_sign_for_another(s3_server: SeaweedServer, s3_proxy: CountingProxy) -> None:
    s3_server.create_bucket("pool")
    for path in ("pool/a/x", "pool/ab/x"):
        s3_server.put(path, DATA)
    client = {"endpoint_url": s3_proxy.url}
    reader = Reader(
        by_protocol={"s3": {"anon": True, **client}},
        by_prefix={"s3://pool/a/": {"key": "ak", "secret": SeaweedServer.secret, **client}},
    )
    for path in ("pool/a/x", "pool/ab/x"):
        assert reader.read(f"s3://{path}", 0, 5) == DATA[:5]
    signed = {r.path: "authorization" in r.headers for r in s3_proxy.requests()}
    assert signed == {"/pool/a/x": True, "/pool/ab/x": False}


def test_pool_without_a_loop_opens_only_immediate_targets() -> None:
    pool = Pool(PoolOptions(), None)
    for url in ("/x", "file:///x", "local:///x", "memory://x", "data:,x"):
        assert pool.place(url) is not None
    for url in ("http://h/x", "s3://b/x", "zip://x::file:///a.zip", "simplecache::memory://x"):
        assert pool.place(url) is None


@pytest.mark.parametrize(
    ("url", "data"),
    [
        ("data:,abc%20d", b"abc d"),
        ("data:text/plain;charset=utf-8,%C3%A9", "é".encode()),
        ("data:application/octet-stream;base64,AAEC", b"\0\1\2"),
        ("data:;base64,AAEC%3D"[:17], b"\0\1\2"),
        ("data:,", b""),
    ],
)
def test_data_urls_are_decoded(url: str, data: bytes) -> None:
    place = Pool(PoolOptions(), None).place(url)
    assert place is not None
    for start, stop in ((0, None), (1, 2), (-2, None)):
        answer = place[0].read_now(place[1], start, stop)
        assert answer is not None
        assert (answer.data, answer.size) == (data[start:stop], len(data))
    assert Reader().read(url) == data
    assert Reader().get_facts(url).size == len(data)


@pytest.mark.parametrize("url", ["data:", "data:;base64,A", "data:;base64,é=="])
def test_damaged_data_urls_are_errors(url: str) -> None:
    with pytest.raises(Unreadable, match="data: URL"):
        Reader().read(url)


def test_memory_is_read_in_place_and_changes_are_noticed() -> None:
    fs = MemoryFileSystem()
    fs.pipe_file("/pool/y", DATA)
    pool = Pool(PoolOptions(), None, Versions())
    place = pool.place("memory://pool/y")
    assert place is not None
    opened, path = place
    for start, stop in ((0, None), (5, 9), (-3, None), (250, 999)):
        answer = opened.read_now(path, start, stop)
        assert answer is not None
        assert (answer.data, answer.size) == (DATA[start:stop], 256)
    fs.pipe_file("/pool/y", DATA[::-1])
    with pytest.raises(TargetChanged):
        opened.read_now(path, 0, 5)
    with pytest.raises(FileNotFoundError):
        Reader().read("memory://pool/none", 0, 5)
    assert [n.name for n in Reader().list_names("memory://pool") or ()] == sorted(
        name.removeprefix("/pool/") for name in fs.store if name.startswith("/pool/")
    )


def test_advice_on_endpoint_url_names_the_bucket_of_the_url() -> None:
    """The endpoint in the options for one bucket is not used for another, so the error suggests to name it there."""
    given = {"s3://a/": {"client_kwargs": {"endpoint_url": "https://store.example"}}}
    advice = Pool(PoolOptions(by_prefix=given), None)._advise_on_endpoint("s3://b/x")
    assert "options={'s3://b/': {...}}" in advice
    assert Pool(PoolOptions(by_prefix=given), None)._advise_on_endpoint("https://h.example/x") == ""
