"""A commit to a hierarchy writes whole objects in a fixed order; a failed commit names them, and can be repeated."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs import ConflictError, RefShardFileSystem
from refshard_fs.stores.objects import Objects
from refshard_fs.stores.store import Condition
from tests.servers.s3 import SeaweedServer
from tests.support.overwriting import check_partly_committed, make_state, read_keys, write, write_state
from tests.support.shard_writers import IS_ZARR_2

pytestmark = pytest.mark.filterwarnings("ignore::refshard_fs.CostlyPattern")


class Place:
    """A hierarchy that has the state 1 of `tests.support.overwriting`."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.url = url
        self.options = {"target_options": options} if options else {}
        write_state(url, 1, **self.options)

    def opened(self, mode: str = "a") -> RefShardFileSystem:
        return RefShardFileSystem(self.url, mode=mode, skip_instance_cache=True, **self.options)

    def seen(self) -> dict[str, Any]:
        return read_keys(self.opened("r"))

    def written(self, number: int) -> RefShardFileSystem:
        """Return a filesystem with an uncommitted state ``number``."""
        fs = self.opened()
        write(fs, number)
        return fs


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    name = uuid.uuid4().hex
    match request.param:
        case "local":
            yield Place(str(tmp_path / "h"), {})
        case "memory":
            yield Place(f"memory://{name}", {})
            MemoryFileSystem().rm(f"/{name}", recursive=True)
        case _:
            server: SeaweedServer = request.getfixturevalue("s3_server")
            server.create_bucket("failing")
            yield Place(f"s3://failing/{name}", server.storage_options)


class Failure(OSError):
    """The failure of a store: for example no space is left, or a server does not answer."""


class Changes:
    """Record the changes of a commit in ``all``: kinds and names of objects, in order.

    The change number ``at`` raises ``error``, with ``is_made`` after the object was changed, otherwise before.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.put: list[str] = []
        self.all: list[tuple[str, str]] = []
        self.at: int | None = None
        self.error: BaseException = Failure("no answer")
        self.is_made = False
        lock = threading.Lock()
        put, remove = Objects.put, Objects.remove

        def change(kind: str, name: str, make: Callable[[], Any]) -> Any:
            with lock:
                number = len(self.all)
                self.all.append((kind, name))
            if number != self.at:
                return make()
            if self.is_made:
                make()
            raise self.error

        def putting(objects: Objects, name: str, parts: Sequence[Any], condition: Condition = None) -> Any:
            return change("put", name, lambda: put(objects, name, parts, condition))

        def removing(objects: Objects, name: str, condition: Condition = None) -> None:
            change("remove", name, lambda: remove(objects, name, condition))

        monkeypatch.setattr(Objects, "put", putting)
        monkeypatch.setattr(Objects, "remove", removing)

    def reset(self) -> None:
        self.all.clear()
        self.at = None


@pytest.fixture
def changes(place: Place, monkeypatch: pytest.MonkeyPatch) -> Changes:
    return Changes(monkeypatch)


@pytest.mark.parametrize(("at", "is_made"), [(0, True), (9, False), (13, True), (15, False)])
def test_failed_commit_lists_put_objects_and_can_be_finished(
    place: Place, changes: Changes, at: int, is_made: bool
) -> None:
    fs = place.written(2)
    changes.at, changes.is_made = at, is_made
    with pytest.raises(Failure) as failed:
        fs.commit()
    if at >= 9:  # eight changes are made at a time, so that a later one may be the first to fail
        [note] = failed.value.__notes__
        assert place.url.removeprefix("memory://") in note
        assert "put before that" in note
        assert "commit()" in note
    check_partly_committed(place.seen(), 1, 2)
    assert read_keys(fs) == make_state(2), "the uncommitted writes stay"
    changes.reset()
    fs.commit()
    assert place.seen() == read_keys(fs) == make_state(2)
    changes.reset()
    fs.commit()
    assert changes.all == [], "a second commit changes nothing"


def test_discard_after_a_failure_shows_the_stored_state(place: Place, changes: Changes) -> None:
    fs = place.written(2)
    changes.at = 11
    with pytest.raises(Failure):
        fs.commit()
    fs.discard()
    assert read_keys(fs) == place.seen()
    write(fs, 3)
    changes.reset()
    fs.commit()
    assert place.seen() == make_state(3)


def test_chunks_are_put_before_metadata_and_removals(place: Place, changes: Changes) -> None:
    fs = place.written(4)
    fs.rm("p/c", recursive=True)
    fs.commit()
    kinds = [
        "document" if kind == "put" and name.endswith("zarr.json") else "chunk" if kind == "put" else "removal"
        for kind, name in changes.all
    ]
    assert kinds == sorted(kinds, key=["chunk", "document", "removal"].index)
    assert set(kinds) == {"chunk", "document", "removal"}
    documents = [name for kind, name in changes.all if kind == "put" and name.endswith("zarr.json")]
    assert documents[-1] == "zarr.json"
    removed = [name for kind, name in changes.all if kind == "remove" and name.startswith("n1")]
    assert removed[0] == "n1/zarr.json", "no reader sees an array without its chunks"


def test_conflict_keeps_the_other_writers_objects(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    put, done = Objects.put, [False]
    name = next(key for key in make_state(2) if key.startswith("p/c/") and key in make_state(1))
    fs = place.opened()
    assert fs.cat_file(name) == make_state(1)[name]
    write(fs, 2)

    def interfering(self: Objects, key: str, parts: Sequence[Any], condition: Condition = None) -> Any:
        if key == name and not done[0]:
            done[0] = True
            put(self, key, (b"somebody's",))
        return put(self, key, parts, condition)

    monkeypatch.setattr(Objects, "put", interfering)
    with pytest.raises(ConflictError):
        fs.commit()
    seen = place.seen()
    assert seen.pop(name) == b"somebody's"
    assert all(value in (make_state(1).get(key), make_state(2).get(key)) for key, value in seen.items())
    fs.discard()
    assert fs.cat_file(name) == b"somebody's"


@pytest.mark.skipif(not hasattr(signal, "SIGINT"), reason="needs SIGINT")
@pytest.mark.parametrize("at", [0, 12])
def test_ctrl_c_stops_a_commit_and_the_next_one_finishes(
    place: Place, changes: Changes, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    fs = place.written(2)
    put, count = Objects.put, [0]

    def interrupted(self: Objects, name: str, parts: Sequence[Any], condition: Condition = None) -> Any:
        count[0] += 1
        if count[0] == at + 1:
            os.kill(os.getpid(), signal.SIGINT)
        return put(self, name, parts, condition)

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fs.commit()
    check_partly_committed(place.seen(), 1, 2)
    fs.commit()
    assert place.seen() == read_keys(fs) == make_state(2)


@pytest.mark.skipif(IS_ZARR_2, reason="as zarr 3 makes arrays")
@pytest.mark.parametrize(("old", "new"), [((4,), (4, 4)), ((4, 4), (4,)), ((), (4,)), ((4,), ())])
def test_array_is_replaced_by_one_of_other_dimensions(
    tmp_path: Path, old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    """A directory replaces a chunk of the same name, or a chunk replaces a directory."""
    path = str(tmp_path / "h.zarr")
    zarr.open_group(path, mode="w")
    fs = RefShardFileSystem(path, mode="a", skip_instance_cache=True)
    for shape in (old, new):
        group = zarr.open_group(fs.get_mapper(""), mode="a")
        array = group.create_array("d", shape=shape, chunks=(2,) * len(shape), dtype="i4", overwrite=True)
        array[...] = 7
        fs.commit()
    assert np.array_equal(zarr.open_array(f"{path}/d", mode="r")[...], np.full(new, 7))
