"""Objects are put whole, under a condition, and removed, in local files, memory, S3, and other filesystems."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs import RefShardFileSystem
from refshard_fs.core.model import ABSENT, Facts
from refshard_fs.errors import ConflictError, ReadOnlyError
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.store import LARGE, Store
from tests.servers.s3 import SeaweedServer

KINDS = ["local", "memory", "s3", "other"]
Make = Callable[[], Objects]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes two writers for the same place."""
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


def test_names_like_patterns_are_taken_literally(make: Make) -> None:
    """fsspec's methods take such names for patterns, so other objects could be returned or removed."""
    objects = make()
    for name in ("T [K]/0", "T [K]/1", "T K/0", "T K/1"):
        objects.put(name, [name.encode()])
    assert objects.read(["T [K]/0", "T K/1"]) == {"T [K]/0": b"T [K]/0", "T K/1": b"T K/1"}
    objects.remove_all(["T [K]/0", "T [K]/none", "T K/1"])
    assert sorted(objects.find("")) == ["T K/0", "T [K]/1"]
    objects.remove_all(["T [K]/0"])
    assert sorted(objects.find("")) == ["T K/0", "T [K]/1"]


def test_put_joins_the_parts_of_an_object(make: Make) -> None:
    objects = make()
    objects.put("a/c/0", [b"ab", memoryview(b"xcdx")[1:3], b""])
    assert held(objects, "a/c/0") == b"abcd"
    objects.put("a/c/0", [b"anew"])
    assert held(make(), "a/c/0") == b"anew"
    assert held(objects, "a/c/1") is None
    assert list(objects.find("")) == list(objects.find("a")) == ["a/c/0"]
    assert objects.find("b") == {}


def test_large_objects_are_complete(make: Make) -> None:
    objects = make()
    data = bytes(range(256)) * (LARGE // 256 + 5)
    objects.put("large", [data[:1000], data[1000:]])
    assert held(objects, "large") == data


def test_object_is_replaced_only_if_unchanged(make: Make) -> None:
    objects, other = make(), make()
    objects.put("a", [b"first"], ABSENT)
    with pytest.raises(ConflictError, match="did not exist"):
        other.put("a", [b"second"], ABSENT)
    read = other.fetch("a")
    assert read is not None
    objects.put("a", [b"longer than the first"])
    with pytest.raises(ConflictError, match="had another version"):
        other.put("a", [b"second"], read.facts)
    with pytest.raises(ConflictError):
        other.remove("a", read.facts)
    assert held(objects, "a") == b"longer than the first"
    again = other.fetch("a")
    assert again is not None
    other.put("a", [b"second"], again.facts)
    assert held(objects, "a") == b"second"


def test_version_returned_by_put_can_be_replaced(make: Make) -> None:
    objects = make()
    told = objects.put("a", [b"first"])
    if told is None:
        pytest.skip("this filesystem returns no version")
    told = objects.put("a", [b"second"], told)
    assert isinstance(told, Facts)
    objects.remove("a", told)
    assert held(objects, "a") is None


def test_put_over_an_object_removed_by_others_is_a_conflict(make: Make) -> None:
    objects = make()
    objects.put("a", [b"first"])
    read = objects.fetch("a")
    objects.remove("a")
    assert read is not None
    with pytest.raises(ConflictError):
        objects.put("a", [b"second"], read.facts)
    assert held(objects, "a") is None


def test_removing_a_missing_object_is_accepted(make: Make) -> None:
    objects = make()
    objects.remove("never/was")
    told = objects.put("a", [b"first"]) or objects.get_facts("a")
    objects.remove("a", told)
    objects.remove("a", told)  # a client repeats the removal if the first answer was lost
    objects.remove("a", ABSENT)


def test_directories_are_not_objects(make: Make) -> None:
    objects = make()
    objects.put("a/c/0", [b"first"])
    objects.remove("a/c/0")
    assert objects.find("a") == objects.find("a/c") == {}


def test_tidy_removes_directories_that_became_empty(tmp_path: Path) -> None:
    objects = Objects(str(tmp_path), {})
    objects.put("a/c/0/0", [b"x"])
    objects.put("a/z", [b"y"])
    objects.remove("a/c/0/0")
    objects.tidy(["a/c/0/0"])
    assert [p.name for p in tmp_path.rglob("*")] == ["a", "z"]


def test_large_object_is_put_and_read_in_little_memory(s3_server: SeaweedServer, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["..", "../x", "a/../../x", "a/..", "..\\x"])
@pytest.mark.case(id="P19")
def test_name_with_double_dots_is_refused(make: Make, name: str) -> None:
    objects = make()
    uses: list[Callable[[], object]] = [
        lambda: objects.put(name, [b"x"]),
        lambda: objects.put_all({name: b"x"}),
        lambda: objects.remove(name),
        lambda: objects.remove_all([name]),
        lambda: objects.copy("a", name),
        lambda: objects.fetch(name),
        lambda: objects.stream(name).__enter__(),
        lambda: objects.get_facts(name),
    ]
    for use in uses:
        with pytest.raises(ReadOnlyError, match="lies outside"):
            use()


@pytest.mark.case(id="P19")
def test_parquet_commit_renames_nothing_outside_of_its_set(tmp_path: Path) -> None:
    array = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|u1", "compressor": None, "fill_value": 0}
    refs = {"a/.zarray": json.dumps({**array, "order": "C", "filters": None}), "a/0": "base64:AAAAAA=="}
    RefShardFileSystem(refs).save(str(tmp_path / "set.parq"))
    (tmp_path / "victim").mkdir()
    for name in ("refs.0.ab.parq", "refs.0.parq"):
        (tmp_path / "victim" / name).write_text(name)
    path = tmp_path / "set.parq/.zmetadata"
    document = json.loads(path.read_text())
    partitions = {"partitions": {"../victim": {"0": "refs.0.ab.parq"}}}
    path.write_text(json.dumps({**document, "refshard": partitions}))
    fs = RefShardFileSystem(str(tmp_path / "set.parq"), mode="a")
    fs.pipe_file("a/0", b"news")
    fs.commit()
    assert {p.name: p.read_text() for p in (tmp_path / "victim").iterdir()} == {
        name: name for name in ("refs.0.ab.parq", "refs.0.parq")
    }
    assert RefShardFileSystem(str(tmp_path / "set.parq")).cat_file("a/0") == b"news"


class Killed(BaseException):
    """Stands for the end of the process."""


def put_set(objects: Objects, parts: dict[str, bytes], *, replaces: bool = True) -> None:
    """Write a set as a plug-in does: first the parts, then the document that names them."""
    with objects.directory(replaces=replaces) as made:
        made.put_all(parts)
        with made.stream("set.json") as file:
            file.write(json.dumps({name: data.decode() for name, data in parts.items()}).encode())


def read_set(objects: Objects) -> dict[str, bytes] | None:
    """Return the parts that the document names; None if there is no document."""
    document = held(objects, "set.json")
    if document is None:
        return None
    named = json.loads(document)
    found = objects.read(named)
    assert found == {name: data.encode() for name, data in named.items()}, "no objects of two sets"
    return found


OLD = {"a/0": b"old", "a/1": b"old", "T [K]/0": b"old"}
NEW = {"a/0": b"new", "a/2": b"new", "T [K]/1": b"new"}
OTHER_NAMES = {f"b/{number}": b"new" for number in range(3)}


@pytest.mark.parametrize("new", [NEW, OTHER_NAMES], ids=["same names", "other names"])
def test_directory_is_replaced_when_it_is_whole(make: Make, new: dict[str, bytes]) -> None:
    objects = make()
    put_set(objects, OLD, replaces=False)

    def fail() -> None:
        with make().directory(replaces=True) as made:
            made.put_all(new)
            assert read_set(objects) == OLD
            raise OSError("in between")

    with pytest.raises(OSError, match="in between"):
        fail()
    assert read_set(objects) == OLD
    assert sorted(objects.find("")) == sorted([*OLD, "set.json"])
    put_set(make(), new)
    assert read_set(make()) == new
    assert sorted(objects.find("")) == sorted([*new, "set.json"])


@pytest.mark.parametrize("new", [NEW, OTHER_NAMES], ids=["same names", "other names"])
def test_killed_replacement_leaves_one_set_or_none(new: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer is killed at each of its requests. If the sets share no names, it leaves the old set or the new one."""
    call_once, left, seen = Store.call_once, 0, list[object]()

    def call(self: Store, *given: object, **named: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return call_once(self, *given, **named)

    objects = Objects(f"memory://{uuid.uuid4().hex}/set", {})
    put_set(objects, OLD, replaces=False)
    for last in range(100):
        put_set(objects, OLD)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "call_once", call)
            left = last
            with contextlib.suppress(Killed):
                put_set(objects, new)
        seen.append(read_set(objects))
        if left >= 0:
            break
    assert seen[0] == OLD
    assert seen[-1] == new
    assert all(found in (OLD, new, *([None] if new is NEW else [])) for found in seen)
    assert seen.index(new) >= seen.count(OLD) > 5
    put_set(objects, OLD)
    assert sorted(objects.find("")) == sorted([*OLD, "set.json"]), "a later save removes what killed writers left"


def test_filesystem_that_cannot_copy_gets_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: MemoryFileSystem, *given: object, **named: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(MemoryFileSystem, "cp_file", refuse)
    objects = Objects(f"memory://{uuid.uuid4().hex}", {})
    objects.put("a", [b"bytes"])
    objects.copy("a", "b")
    assert held(objects, "b") == b"bytes"
