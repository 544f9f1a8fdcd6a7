"""Objects put whole, on condition, and removed: local files, memory, S3, and filesystems that know no conditions."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs.core.model import ABSENT, Facts
from refshard_fs.errors import ConflictError
from refshard_fs.targets.objects import LARGE, Document, Objects
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer

KINDS = ["local", "memory", "s3", "other"]
Make = Callable[[], Objects]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes two writers of one place."""
    place = uuid.uuid4().hex
    match request.param:
        case "local":
            yield lambda: Objects(str(tmp_path / "x"), {})
        case "memory":
            yield lambda: Objects(f"memory://{place}", {})
            with contextlib.suppress(FileNotFoundError):
                MemoryFileSystem().rm(f"/{place}", recursive=True)
        case "s3":
            server: SeaweedServer = request.getfixturevalue("s3_server")
            server.create_bucket("objects")
            yield lambda: Objects(f"s3://objects/{place}", server.storage_options)
        case _:
            fs = DirFileSystem(str(tmp_path), LocalFileSystem(auto_mkdir=True))
            yield lambda: Objects("dir://x", fs)


def held(objects: Objects, name: str) -> bytes | None:
    found = objects.fetch(name)
    return None if found is None else bytes(found.data)


def test_names_that_look_like_patterns_are_names(make: Make) -> None:
    objects = make()
    for name in ("T [K]/0", "T [K]/1", "T K/0", "T K/1"):
        objects.put(name, [name.encode()])
    assert objects.read(["T [K]/0", "T K/1"]) == {"T [K]/0": b"T [K]/0", "T K/1": b"T K/1"}
    objects.remove_all(["T [K]/0", "T [K]/none", "T K/1"])
    assert sorted(objects.find("")) == ["T K/0", "T [K]/1"]
    objects.remove_all(["T [K]/0"])
    assert sorted(objects.find("")) == ["T K/0", "T [K]/1"]


def test_parts_are_put_one_after_the_other(make: Make) -> None:
    objects = make()
    objects.put("a/c/0", [b"ab", memoryview(b"xcdx")[1:3], b""])
    assert held(objects, "a/c/0") == b"abcd"
    objects.put("a/c/0", [b"anew"])
    assert held(make(), "a/c/0") == b"anew"
    assert held(objects, "a/c/1") is None
    assert list(objects.find("")) == list(objects.find("a")) == ["a/c/0"]
    assert objects.find("b") == {}


def test_large_objects_are_whole(make: Make) -> None:
    objects = make()
    data = bytes(range(256)) * (LARGE // 256 + 5)
    objects.put("large", [data[:1000], data[1000:]])
    assert held(objects, "large") == data


def test_an_object_is_replaced_on_condition_that_it_is_the_one_that_was_read(make: Make) -> None:
    objects, other = make(), make()
    objects.put("a", [b"first"], ABSENT)
    with pytest.raises(ConflictError, match="was not there"):
        other.put("a", [b"second"], ABSENT)
    read = other.fetch("a")
    assert read is not None
    objects.put("a", [b"longer than the first"])
    with pytest.raises(ConflictError, match="was another one"):
        other.put("a", [b"second"], read.facts)
    with pytest.raises(ConflictError):
        other.remove("a", read.facts)
    assert held(objects, "a") == b"longer than the first"
    again = other.fetch("a")
    assert again is not None
    other.put("a", [b"second"], again.facts)
    assert held(objects, "a") == b"second"


def test_what_a_put_tells_of_its_version_is_what_the_next_one_may_replace(make: Make) -> None:
    objects = make()
    told = objects.put("a", [b"first"])
    if told is None:
        pytest.skip("this filesystem tells nothing")
    told = objects.put("a", [b"second"], told)
    assert isinstance(told, Facts)
    objects.remove("a", told)
    assert held(objects, "a") is None


def test_an_object_that_is_gone_was_replaced_too(make: Make) -> None:
    objects = make()
    objects.put("a", [b"first"])
    read = objects.fetch("a")
    objects.remove("a")
    assert read is not None
    with pytest.raises(ConflictError):
        objects.put("a", [b"second"], read.facts)
    assert held(objects, "a") is None


def test_removing_what_is_not_there_is_no_error(make: Make) -> None:
    objects = make()
    objects.remove("never/was")
    told = objects.put("a", [b"first"]) or objects.facts("a")
    objects.remove("a", told)
    objects.remove("a", told)  # as a client does that did not hear of the first time
    objects.remove("a", ABSENT)


def test_directories_are_no_objects(make: Make) -> None:
    objects = make()
    objects.put("a/c/0", [b"first"])
    objects.remove("a/c/0")
    assert objects.find("a") == objects.find("a/c") == {}


def lock_at_once(path: Path) -> None:
    """Take the lock of a directory; BlockingIOError if somebody has it."""
    import fcntl  # not on Windows

    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks as POSIX does")
@pytest.mark.parametrize("kind", ["objects", "document", "memory"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_is_forked_while_another_thread_commits_keeps_nobody_out(tmp_path: Path, kind: str) -> None:
    def locked() -> contextlib.AbstractContextManager[object]:
        match kind:
            case "objects":
                return Objects(str(tmp_path), {}).lock()
            case "memory":
                return Objects(f"memory://{tmp_path.name}", {}).lock()
        return Document(str(tmp_path / "x"), {}, None).stream()

    entered, leave = threading.Event(), threading.Event()

    def committing() -> None:
        with locked():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=committing)
    thread.start()
    entered.wait(10)
    said, say = os.pipe()
    child = os.fork()
    if not child:  # it lives on, whatever becomes of that commit
        if kind == "memory":
            with locked():  # what it has in memory is its own
                os.write(say, b"in")
        os.read(said, 1)
        os._exit(0)
    try:
        leave.set()
        thread.join()
        if kind == "memory":
            assert select.select([said], [], [], 10)[0], "the child waits for a thread that it does not have"
            return
        lock_at_once(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(said)
        os.close(say)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks as POSIX does")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_does_not_hold_the_lock_of_one_that_was_killed(tmp_path: Path) -> None:
    said, say = os.pipe()
    victim = os.fork()
    if not victim:
        with Objects(str(tmp_path), {}).lock():
            child = os.fork()
            if not child:
                os.write(say, str(os.getpid()).encode())  # by then it has seen to what it inherited
            time.sleep(60)
        os._exit(0)
    child = int(os.read(said, 100))
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    try:
        lock_at_once(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(said)
        os.close(say)


def test_a_lock_lets_in_one_commit_at_a_time(tmp_path: Path) -> None:
    inside: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with Objects(str(tmp_path), {}).lock():
            entered.set()
            leave.wait(30)
            inside.append("first")

    def second() -> None:
        with Objects(str(tmp_path), {}).lock():
            inside.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert entered.wait(30)
    threads[1].start()
    threads[1].join(0.2)
    assert inside == []
    leave.set()
    for thread in threads:
        thread.join(30)
    assert inside == ["first", "second"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="locks as POSIX does")
def test_who_waited_for_the_lock_of_a_directory_that_was_removed_has_that_of_the_new_one(tmp_path: Path) -> None:
    objects, inside = Objects(str(tmp_path / "d"), {}), threading.Event()
    entered, leave = threading.Event(), threading.Event()

    def waiting() -> None:
        inside.set()
        with objects.lock():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=waiting)
    with objects.lock():
        thread.start()
        assert inside.wait(30)
        assert not entered.wait(0.2)
        objects.put("a", [b"x"])
        objects.remove("a")
        objects.tidy(["a"], with_root=False)
        assert (tmp_path / "d").exists()
        objects.tidy(["a"])
        assert not (tmp_path / "d").exists()
        objects.put("a", [b"x"])  # by somebody else
    assert entered.wait(30)
    with pytest.raises(BlockingIOError):
        lock_at_once(tmp_path / "d")
    leave.set()
    thread.join(30)


def test_empty_directories_go_with_the_last_object(tmp_path: Path) -> None:
    objects = Objects(str(tmp_path), {})
    objects.put("a/c/0/0", [b"x"])
    objects.put("a/z", [b"y"])
    objects.remove("a/c/0/0")
    objects.tidy(["a/c/0/0"])
    assert [p.name for p in tmp_path.rglob("*")] == ["a", "z"]


def test_each_takes_one_request(s3_server: SeaweedServer, s3_proxy: CountingProxy) -> None:
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


def test_the_same_put_by_somebody_else_is_a_conflict(s3_server: SeaweedServer) -> None:
    """Both may have counted up, or made longer, what was there."""
    s3_server.create_bucket("objects")
    place = f"s3://objects/{uuid.uuid4().hex}"
    Objects(place, s3_server.storage_options).put("a", [b"what it puts"])
    with pytest.raises(ConflictError):
        Objects(place, s3_server.storage_options).put("a", [b"what it ", b"puts"], ABSENT)


def test_a_large_object_is_read_and_put_without_memory_for_it(s3_server: SeaweedServer, tmp_path: Path) -> None:
    s3_server.create_bucket("objects")
    for objects in (
        Objects(f"s3://objects/{uuid.uuid4().hex}", s3_server.storage_options),
        Objects(str(tmp_path), {}),
    ):
        part = bytes(1 << 20)
        objects.put("warm", [part])
        objects.fetch("warm")
        tracemalloc.start()
        objects.put("a", [part] * 64)
        read = objects.fetch("a")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert read is not None
        assert len(read.data) == 64 << 20
        assert peak < 16 << 20


def test_a_server_that_cannot_be_reached_is_an_os_error() -> None:
    pytest.importorskip("s3fs")
    config = {"retries": {"max_attempts": 1}, "connect_timeout": 1}
    options = {"key": "a", "secret": "b", "endpoint_url": "http://127.0.0.1:9", "config_kwargs": config}
    objects = Objects("s3://bucket/x", options)
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        objects.facts("a")
