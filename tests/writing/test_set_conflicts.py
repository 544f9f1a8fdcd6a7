"""If two writers opened the same state of a set, the second commit raises ConflictError, and loses no writes."""

from __future__ import annotations

import contextlib
import io
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pytest

from refshard_fs import ConflictError, ReadOnlyError, RefShardFileSystem
from refshard_fs.stores.document import DocumentObject
from refshard_fs.stores.objects import Objects
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer
from tests.support.hierarchy_model import FORMATS, make_array_document, make_group_document, make_path, open_for_writes

Open = Callable[..., RefShardFileSystem]
LARGE = b"0123456789" * 9


@pytest.fixture(params=["local", "memory", "s3"])
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Open]:
    """Return a function that takes a format, and returns a function that opens a new source of this format."""

    def of(format: str) -> Open:
        name = make_path(Path(), format).name
        match request.param:
            case "local":
                return lambda **options: open_at(str(tmp_path / name), format, **options)
            case "memory":
                url = f"memory://{uuid.uuid4().hex}/{name}"
                return lambda **options: open_at(url, format, **options)
        server: SeaweedServer = request.getfixturevalue("s3_server")
        server.create_bucket("conflicts")
        url = f"s3://conflicts/{uuid.uuid4().hex}/{name}"
        s3 = server.storage_options
        return lambda **options: open_at(
            url, format, target_options=s3, remote_protocol="s3", remote_options=s3, **options
        )

    return of


def open_at(url: str, format: str, mode: str = "a", **options: Any) -> RefShardFileSystem:
    if mode == "r":
        return RefShardFileSystem(url, **options)
    return open_for_writes(url, format, **options)  # type: ignore[arg-type]  # `open_for_writes` converts its path to a string


def begin(opened: Open) -> None:
    fs = opened()
    fs.pipe({"zarr.json": make_group_document(), "a/zarr.json": make_array_document((8,)), "a/c/0": LARGE})
    fs.commit()


@pytest.mark.parametrize("format", FORMATS)
def test_second_of_two_commits_is_refused_and_loses_nothing(opens: Callable[[str], Open], format: str) -> None:
    opened = opens(format)
    begin(opened)
    one, other = opened(), opened()
    assert one.find("a/c") == other.find("a/c") == ["a/c/0"]
    one.pipe({"a/c/1": LARGE + b"1", "a/c/0": b"one"})
    other.pipe({"a/c/2": LARGE + b"2", "a/c/0": b"other"})
    one.commit()
    with pytest.raises(ConflictError, match="changed"):
        other.commit()
    assert other.cat(["a/c/0", "a/c/2"]) == {"a/c/0": b"other", "a/c/2": LARGE + b"2"}
    assert opened(mode="r").cat("a/c", recursive=True) == {"a/c/0": b"one", "a/c/1": LARGE + b"1"}
    other.discard()
    assert other.cat("a/c", recursive=True) == {"a/c/0": b"one", "a/c/1": LARGE + b"1"}
    other.pipe_file("a/c/2", LARGE + b"2")
    other.commit()
    assert opened(mode="r").find("a/c") == one_again(one) == ["a/c/0", "a/c/1", "a/c/2"]


def one_again(fs: RefShardFileSystem) -> list[str]:
    fs.invalidate_cache()
    found: list[str] = fs.find("a/c")
    return found


@pytest.mark.parametrize("format", FORMATS)
def test_two_creators_of_one_source_conflict(opens: Callable[[str], Open], format: str) -> None:
    opened = opens(format)
    one, other = opened(), opened()
    assert one.find("") == other.find("") == []
    for number, fs in enumerate((one, other)):
        fs.pipe({"zarr.json": make_group_document(), "a/zarr.json": make_array_document((number + 1,))})
    one.commit()
    with pytest.raises(ConflictError, match="did not exist"):
        other.commit()
    other.discard()
    assert b'"shape":[1]' in other.cat_file("a/zarr.json").replace(b" ", b"")


def test_writes_after_a_conflict_can_be_saved(tmp_path: Path) -> None:
    url = str(tmp_path / "refs.json")

    def opened() -> RefShardFileSystem:
        return open_at(url, "json")

    begin(opened)
    one, other = opened(), opened()
    other.pipe_file("a/c/2", LARGE)
    one.pipe_file("a/c/1", LARGE)
    assert other.cat_file("a/c/0") == LARGE
    one.commit()
    with pytest.raises(ConflictError):
        other.commit()
    other.save(str(tmp_path / "mine.json"))
    other.discard()
    saved = RefShardFileSystem(str(tmp_path / "mine.json"))
    assert saved.cat("a/c", recursive=True) == {"a/c/0": LARGE, "a/c/2": LARGE}


def test_edits_conflict_if_the_source_changed_before_reopening(tmp_path: Path) -> None:
    url = str(tmp_path / "refs.json")
    begin(lambda: open_at(url, "json"))
    one, other = open_at(url, "json"), open_at(url, "json")
    other.pipe_file("a/c/0", other.cat_file("a/c/0")[::-1])
    one.pipe_file("a/c/0", b"new")
    one.commit()
    other.invalidate_cache()
    assert other.cat_file("a/c/0") == LARGE[::-1]
    with pytest.raises(ConflictError):
        other.commit()
    other.discard()


def test_only_one_of_six_concurrent_commits_of_threads_succeeds(tmp_path: Path) -> None:
    url = str(tmp_path / "refs.json")
    begin(lambda: open_at(url, "json"))
    writers = [open_at(url, "json") for _ in range(6)]
    for number, fs in enumerate(writers):
        fs.find("")
        fs.pipe_file(f"a/c/{number}", bytes([number]) * 40)
    done: list[int] = []

    def commit(number: int) -> None:
        try:
            writers[number].commit()
            done.append(number)
        except ConflictError:
            writers[number].discard()

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(len(writers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 1
    assert open_at(url, "json", mode="r").cat_file(f"a/c/{done[0]}") == bytes(done) * 40


def test_commit_with_a_lost_answer_has_no_conflict(s3_server: SeaweedServer, s3_proxy: CountingProxy) -> None:
    s3_server.create_bucket("conflicts")
    url = f"s3://conflicts/{uuid.uuid4().hex}/refs.json"
    options = {**s3_server.storage_options, "client_kwargs": {"endpoint_url": s3_proxy.url}}
    fs = open_at(url, "json", target_options=options, remote_options=options)
    fs.pipe_file("zarr.json", make_group_document())
    fs.commit()
    fs.pipe_file("a", b"text")
    s3_proxy.log.clear()
    s3_proxy.fault("dropped", method="PUT", times=1)
    fs.commit()
    assert len(s3_proxy.log.requests(method="PUT")) == 2
    assert RefShardFileSystem(url, target_options=options).cat_file("a") == b"text"


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_commit_of_unknown_outcome_keeps_its_objects(
    opens: Callable[[str], Open], format: str, is_applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The PUT of the document timed out, so it is unknown whether the store has the new document."""
    opened = opens(format)
    begin(opened)
    fs = opened()
    fs.pipe({"a/c/0": b"new", "a/c/1": LARGE + b"1"})
    put, stream = DocumentObject.put, DocumentObject.stream

    def put_times_out(document: DocumentObject, data: bytes) -> None:
        if is_applied:
            put(document, data)
        raise TimeoutError("no answer")

    @contextlib.contextmanager
    def stream_times_out(document: DocumentObject) -> Iterator[BinaryIO]:
        with stream(document) if is_applied else io.BytesIO() as file:
            yield file
        raise TimeoutError("no answer")

    with monkeypatch.context() as patch:
        if format == "json":
            patch.setattr(DocumentObject, "stream", stream_times_out)
        else:
            patch.setattr(DocumentObject, "put", put_times_out)
        with pytest.raises(OSError, match="no answer"):
            fs.commit()
    found = opened(mode="r").cat("a/c", recursive=True)
    expected = {"a/c/0": b"new", "a/c/1": LARGE + b"1"} if is_applied else {"a/c/0": LARGE}
    assert found == expected
    fs.discard()
    assert opened(mode="r").cat("a/c", recursive=True) == expected


def test_uncommittable_source_error_has_a_remedy(tmp_path: Path) -> None:
    fs = RefShardFileSystem({"a": "text"}, mode="a")
    fs.pipe_file("b", b"more")
    with pytest.raises(ReadOnlyError, match=r"fs\.save"):
        fs.commit()
    fs.save(str(tmp_path / "refs.json"))
    assert RefShardFileSystem(str(tmp_path / "refs.json")).cat("", recursive=True) == {"a": b"text", "b": b"more"}
    fs.discard()
    with fsspec.open(str(tmp_path / "a.zip"), "wb") as file:
        file.write(b"PK\x05\x06" + bytes(18))
    archive = RefShardFileSystem(str(tmp_path / "a.zip"), mode="a")
    archive.pipe_file("b", b"more")
    with pytest.raises(ReadOnlyError, match=r"fs\.save"):
        archive.commit()
    archive.discard()


@pytest.mark.parametrize("format", ["parquet"])
def test_ctrl_c_after_a_commit_keeps_it(
    opens: Callable[[str], Open], format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = opens(format)
    begin(opened)
    fs = opened()
    fs.pipe({"a/zarr.json": make_array_document((9,)), "a/c/1": LARGE + b"1"})

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "remove_all", interrupted)
        patch.setattr(Objects, "copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fs.commit()
    assert opened(mode="r").cat("a/c", recursive=True) == {"a/c/0": LARGE, "a/c/1": LARGE + b"1"}
    fs.pipe_file("a/c/2", LARGE + b"2")
    fs.commit()
    assert opened(mode="r").find("a/c") == ["a/c/0", "a/c/1", "a/c/2"]
