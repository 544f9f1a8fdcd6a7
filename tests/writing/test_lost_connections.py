"""If a store vanishes after a commit arrived, the commit counts, and its objects are kept."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import pickle
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs

from refshard_fs import ConflictError, RefShardFileSystem
from refshard_fs.stores.objects import Objects
from tests.servers.log import Request
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer
from tests.servers.wire import Answer, Head, failure
from tests.support.hierarchy_model import FORMATS, make_array_document, make_group_document, make_path
from tests.support.processes import FRESH

LARGE = b"0123456789" * 9
ALL = (*FORMATS, "zarr-hierarchy")


class Vanishing(CountingProxy):
    """A proxy that ends all connections after the put for which ``is_last`` is true.

    If ``lost``, the client gets no success for this put.
    """

    is_last: Callable[[Head, bytes], bool] = staticmethod(lambda head, body: False)
    lost = False
    vanished = False

    async def answer(self, head: Head, body: bytes, request: Request) -> Answer:
        answer = await super().answer(head, body, request)
        if not self.vanished and head.method == "PUT" and self.is_last(head, body):
            self.vanished = True
            self.fault("dropped")
            return failure(503) if self.lost else answer
        return answer

    def return_(self) -> None:
        self.is_last = lambda head, body: False
        self.heal()


@pytest.fixture(autouse=True)
def _tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 2)  # instead of five, which would take long


@pytest.fixture
def vanishing(s3_server: SeaweedServer) -> Iterator[Vanishing]:
    s3_server.create_bucket("vanishing")
    with Vanishing(s3_server.endpoint_url) as proxy:
        yield proxy


def is_last(format: str) -> Callable[[Head, bytes], bool]:
    match format:
        case "json":
            return lambda head, body: head.path.endswith("refs.json")
        case "parquet":
            return lambda head, body: head.path.endswith(".zmetadata")
    return lambda head, body: head.path.endswith("a/zarr.json")


def options(endpoint: str, tries: int = 1) -> dict[str, Any]:
    config = {"config_kwargs": {"retries": {"total_max_attempts": tries}}}
    return {"key": "ak", "secret": SeaweedServer.secret, "client_kwargs": {"endpoint_url": endpoint}, **config}


def opened(url: str, format: str, endpoint: str, mode: str = "a", tries: int = 1) -> RefShardFileSystem:
    s3 = options(endpoint, tries)
    settings: dict[str, Any] = {} if mode == "r" else {"format": format, "record_size": 4, "inline_threshold": 16}
    return RefShardFileSystem(
        url, mode=mode, target_options=s3, options={"s3://": s3}, skip_instance_cache=True, **settings
    )


def changed(url: str, format: str, proxy: Vanishing) -> RefShardFileSystem:
    """Make a source, and return a filesystem with uncommitted changes, two of them of one key."""
    fs = opened(url, format, proxy.url)
    fs.pipe(
        {"zarr.json": make_group_document(), "a/zarr.json": make_array_document((8,)), "a/c/0": LARGE, "a/c/1": LARGE}
    )
    fs.commit()
    fs = opened(url, format, proxy.url)
    fs.pipe({"a/zarr.json": make_array_document((8,), 1), "a/c/0": LARGE[::-1], "a/c/1": LARGE + b"1", "a/c/2": LARGE})
    fs.pipe_file("a/c/2", LARGE + b"2")
    return fs


def is_whole(fs: RefShardFileSystem) -> bool:
    assert b'"title":1' in fs.cat_file("a/zarr.json").replace(b" ", b"")
    assert fs.cat("a/c", recursive=True) == {"a/c/0": LARGE[::-1], "a/c/1": LARGE + b"1", "a/c/2": LARGE + b"2"}
    return True


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("format", ALL)
def test_commit_without_an_answer_can_be_repeated(vanishing: Vanishing, format: str, *, more: bool) -> None:
    url = f"s3://vanishing/{uuid.uuid4().hex}/{make_path(Path(), format).name if format in FORMATS else 'h.zarr'}"
    fs = changed(url, format, vanishing)
    vanishing.is_last, vanishing.lost = is_last(format), True
    with pytest.raises(OSError):  # noqa: PT011  # s3fs chooses the class
        fs.commit()
    vanishing.return_()
    if more:
        fs.pipe_file("a/c/5", LARGE)
    fs.commit()
    seen = opened(url, format, vanishing.url, mode="r")
    assert seen.exists("a/c/5") is more
    seen.invalidate_cache()
    if more:
        fs.rm_file("a/c/5")
        fs.commit()
    assert is_whole(opened(url, format, vanishing.url, mode="r"))


@pytest.mark.parametrize("appends", [False, True])
@pytest.mark.parametrize("sees", [False, True])
def test_commit_of_a_document_without_an_answer_can_be_repeated(
    vanishing: Vanishing, *, appends: bool, sees: bool
) -> None:
    url = f"s3://vanishing/{uuid.uuid4().hex}/h.zarr"
    changed(url, "zarr-hierarchy", vanishing).discard()
    fs = opened(url, "zarr-hierarchy", vanishing.url)
    assert fs.cat_file("a/zarr.json")
    fs.pipe_file("a/zarr.json", make_array_document((10 if appends else 8,), 2))
    if appends:
        fs.pipe_file("a/c/9", LARGE)
    vanishing.is_last, vanishing.lost = lambda head, body: head.path.endswith("a/zarr.json"), True
    with pytest.raises(OSError):  # noqa: PT011  # s3fs chooses the class
        fs.commit()
    vanishing.return_()
    if sees:
        assert b'"title": 2' in fs.cat_file("a/zarr.json")
    fs.commit()
    assert b'"title": 2' in opened(url, "zarr-hierarchy", vanishing.url, mode="r").cat_file("a/zarr.json")
    assert opened(url, "zarr-hierarchy", vanishing.url, mode="r").exists("a/c/9") is appends

    fs.pipe_file("a/zarr.json", fs.cat_file("a/zarr.json").replace(b'"title": 2', b'"title": 3'))
    vanishing.is_last, vanishing.vanished = lambda head, body: head.path.endswith("a/zarr.json"), False
    with pytest.raises(OSError):  # noqa: PT011  # s3fs chooses the class
        fs.commit()
    vanishing.return_()
    Objects(url, options(vanishing.url)).put("a/zarr.json", [make_array_document((8,), 4)])
    for _ in range(2):
        with pytest.raises(ConflictError):
            fs.commit()
    fs.discard()
    assert b'"title": 4' in fs.cat_file("a/zarr.json")


@pytest.mark.parametrize("format", FORMATS)
def test_commit_by_others_after_a_lost_answer_is_kept(vanishing: Vanishing, format: str) -> None:
    url = f"s3://vanishing/{uuid.uuid4().hex}/{make_path(Path(), format).name}"
    fs = changed(url, format, vanishing)
    vanishing.is_last, vanishing.lost = is_last(format), True
    with pytest.raises(OSError):  # noqa: PT011  # s3fs chooses the class
        fs.commit()
    vanishing.return_()
    other = opened(url, format, vanishing.url)
    other.pipe_file("a/c/7", LARGE)
    other.commit()
    with pytest.raises(ConflictError):
        fs.commit()
    fs.discard()
    assert opened(url, format, vanishing.url, mode="r").cat_file("a/c/7") == LARGE
    fs.rm_file("a/c/7")
    fs.commit()
    assert is_whole(opened(url, format, vanishing.url, mode="r"))


class Overtaking(Vanishing):
    """A proxy that calls ``overtake``, and loses the answer, after the put for which ``is_last`` is true."""

    overtake: Callable[[], None] = staticmethod(lambda: None)

    async def answer(self, head: Head, body: bytes, request: Request) -> Answer:
        answer = await CountingProxy.answer(self, head, body, request)
        if not self.vanished and head.method == "PUT" and self.is_last(head, body):
            self.vanished = True
            await asyncio.to_thread(self.overtake)
            return failure(503)  # botocore tries again
        return answer


def commit_another_chunk(pickled: bytes) -> None:
    url, format, s3 = pickle.loads(pickled)
    fs = RefShardFileSystem(url, mode="a", format=format, inline_threshold=16, target_options=s3, options={"s3://": s3})
    assert fs.cat_file("a/c/3") == LARGE
    fs.pipe_file("a/c/4", LARGE)
    fs.commit()


@pytest.mark.parametrize("format", FORMATS)
def test_refused_retry_keeps_another_writers_change(s3_server: SeaweedServer, format: str) -> None:
    """The answer to the commit is lost, and another writer commits before botocore repeats the request."""
    url = f"s3://vanishing/{uuid.uuid4().hex}/{make_path(Path(), format).name}"
    s3_server.create_bucket("vanishing")
    with Overtaking(s3_server.endpoint_url) as proxy:
        changed(url, format, proxy).discard()
        fs = opened(url, format, proxy.url, tries=2)
        fs.pipe_file("a/c/3", LARGE)

        def overtake() -> None:  # in another process, because commits of one process wait for each other
            pickled = pickle.dumps((url, format, options(s3_server.endpoint_url)))
            process = multiprocessing.get_context(FRESH).Process(target=commit_another_chunk, args=(pickled,))
            process.start()
            process.join(60)
            assert process.exitcode == 0

        proxy.overtake, proxy.is_last = overtake, is_last(format)
        with pytest.raises(ConflictError, match="may have been committed") as caught:
            fs.commit()
        assert not pickle.loads(pickle.dumps(caught.value)).is_certain
        fs.discard()
        for seen in (fs, opened(url, format, s3_server.endpoint_url, mode="r")):
            assert seen.cat("a/c", recursive=True) == dict.fromkeys(("a/c/0", "a/c/1", "a/c/3", "a/c/4"), LARGE)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("format", ALL)
def test_arrived_commit_is_whole_if_the_store_vanishes(vanishing: Vanishing, format: str, *, lost: bool) -> None:
    url = f"s3://vanishing/{uuid.uuid4().hex}/{make_path(Path(), format).name if format in FORMATS else 'h.zarr'}"
    fs = changed(url, format, vanishing)
    vanishing.is_last, vanishing.lost = is_last(format), lost
    if lost:
        with pytest.raises(OSError):  # noqa: PT011  # s3fs chooses the class
            fs.commit()
    else:
        fs.commit()
    assert vanishing.vanished
    vanishing.return_()
    with contextlib.suppress(OSError):
        fs.discard()
    assert is_whole(opened(url, format, vanishing.url, mode="r"))
    again = opened(url, format, vanishing.url)
    again.pipe_file("a/c/3", LARGE)
    again.commit()
    assert opened(url, format, vanishing.url, mode="r").cat_file("a/c/3") == LARGE
