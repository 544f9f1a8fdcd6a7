"""S3 needs one request for each operation; after a lost answer, the object is looked up."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from refshard_fs.core.model import ABSENT, Facts
from refshard_fs.errors import ConflictError
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.store import LARGE
from refshard_fs.stores.stores import Stores
from refshard_fs.targets.credentials import PoolOptions
from refshard_fs.targets.failures import Retry
from tests.servers.log import Request
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer
from tests.servers.wire import Answer, Head, failure
from tests.support.scripted_server import Forgetful


def test_put_fetch_and_remove_take_one_request_each(s3_server: SeaweedServer, s3_proxy: CountingProxy) -> None:
    s3_server.create_bucket("objects")
    options: dict[str, Any] = {**s3_server.storage_options, "client_kwargs": {"endpoint_url": s3_proxy.url}}
    objects = Objects(f"s3://objects/{uuid.uuid4().hex}", options)
    data = bytes(LARGE + 1)
    told = objects.put("a", [data], ABSENT)
    objects.fetch("a")
    objects.put("a", [b"x"], told)
    objects.fetch("b")
    objects.remove("a")
    assert [(r.method, r.status) for r in s3_proxy.requests()] == [
        ("PUT", 200),
        ("GET", 200),
        ("PUT", 200),
        ("GET", 404),
        ("DELETE", 204),
    ]


def test_equal_put_of_another_writer_is_a_conflict(s3_server: SeaweedServer) -> None:
    """Both writers may have changed the old object in the same way, for example increased a number."""
    s3_server.create_bucket("objects")
    place = f"s3://objects/{uuid.uuid4().hex}"
    Objects(place, s3_server.storage_options).put("a", [b"what it puts"])
    with pytest.raises(ConflictError):
        Objects(place, s3_server.storage_options).put("a", [b"what it ", b"puts"], ABSENT)


def test_version_without_an_etag_is_compared_before_removal(s3_server: SeaweedServer) -> None:
    s3_server.create_bucket("objects")
    objects = Objects(f"s3://objects/{uuid.uuid4().hex}", s3_server.storage_options)
    objects.put("a", [b"of another writer"])
    for condition in (Facts(5), ABSENT):
        with pytest.raises(ConflictError):
            objects.remove("a", condition)
        assert objects.get_facts("a") is not None
        objects.remove("b", condition)
    objects.remove("a", objects.get_facts("a"))
    assert objects.get_facts("a") is None


def test_server_that_cannot_be_reached_is_an_os_error() -> None:
    pytest.importorskip("s3fs")
    config = {"retries": {"max_attempts": 1}, "connect_timeout": 1}
    options = {"key": "a", "secret": "b", "endpoint_url": "http://127.0.0.1:9", "config_kwargs": config}
    objects = Objects("s3://bucket/x", options)
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        objects.get_facts("a")


def test_put_whose_answer_was_lost_succeeds_at_the_retry(s3_server: SeaweedServer) -> None:
    s3_server.create_bucket("objects")
    with Forgetful(s3_server.endpoint_url) as proxy:
        options: dict[str, Any] = {**s3_server.storage_options, "client_kwargs": {"endpoint_url": proxy.url}}
        objects = Objects(f"s3://objects/{uuid.uuid4().hex}", options)
        made = objects.put("a", [b"data"], ABSENT)
        assert proxy.puts == 2
        assert made == objects.get_facts("a")


def test_clients_of_equal_options_are_shared(s3_server: SeaweedServer) -> None:
    """Making a client takes 0.1 s, and may take requests for credentials."""
    places = [Objects(f"s3://objects/{i}", dict(s3_server.storage_options)) for i in range(2)]
    assert places[0].store.fs is places[1].store.fs


class Overloaded(CountingProxy):
    """A server that always answers that it is overloaded."""

    async def answer(self, head: Head, body: bytes, request: Request) -> Answer:
        answer = failure(503)
        return answer if head.method != "HEAD" else Answer(503, {"Content-Length": "0"}, memoryview(b""))


REQUESTS: dict[str, Callable[[Objects], object]] = {
    "put": lambda objects: objects.put("a", [b"data"]),
    "put on condition": lambda objects: objects.put("a", [b"data"], ABSENT),
    "put a large one": lambda objects: objects.put("a", [bytes(LARGE + 1)]),
    "fetch": lambda objects: objects.fetch("a"),
    "version": lambda objects: objects.find_version("a"),
    "remove": lambda objects: objects.remove("a"),
    "read": lambda objects: objects.read(["a"]),
}


@pytest.mark.parametrize("retries", [0, 2])
def test_retries_option_bounds_the_tries_of_each_request(monkeypatch: pytest.MonkeyPatch, retries: int) -> None:
    waits = pytest.importorskip("botocore.retryhandler")
    monkeypatch.setattr(waits, "random", SimpleNamespace(random=lambda: 0.0))
    with Overloaded("http://127.0.0.1:9") as proxy:
        options = {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": proxy.url}}
        stores = Stores(PoolOptions({"s3": options}, retry=Retry(retries)))
        for name, request in REQUESTS.items():
            proxy.log.clear()
            with pytest.raises(OSError, match="Service ?Unavailable"):
                request(Objects("s3://bucket/x", stores))
            assert len(proxy.requests()) == 1 + retries, name
