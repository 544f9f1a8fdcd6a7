"""Of two writers of a hierarchy, the second gets a ConflictError if they change the same object, and loses nothing."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from refshard_fs import ConflictError, RefShardFileSystem
from refshard_fs.stores.objects import Objects
from refshard_fs.writing.hierarchy import HierarchyCommit
from tests.servers.s3 import SeaweedServer
from tests.support.shard_codecs import make_version_2
from tests.support.written_arrays import open_array

pytestmark = pytest.mark.filterwarnings("ignore::refshard_fs.CostlyPattern")
GROUP = json.dumps({"zarr_format": 2}).encode()
Open = Callable[..., RefShardFileSystem]


@pytest.fixture(params=["local", "memory", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens a hierarchy, with an array of two shards of two chunks of two elements."""
    place = uuid.uuid4().hex
    options: dict[str, Any] = {}
    match request.param:
        case "local":
            url = str(tmp_path / "h")
        case "memory":
            url = f"memory://{place}"
        case _:
            server: SeaweedServer = request.getfixturevalue("s3_server")
            server.create_bucket("conflicts")
            url, options = f"s3://conflicts/{place}", server.storage_options
    objects = Objects(url, options)
    objects.put(".zgroup", [GROUP])
    objects.put("a/.zarray", [json.dumps(make_version_2((8,), (2,), (2,))).encode()])
    objects.put("plain/.zarray", [plain(8)])
    given = {"target_options": options} if options else {}
    yield lambda mode="a": RefShardFileSystem(url, mode=mode, skip_instance_cache=True, **given)
    if request.param == "memory":
        MemoryFileSystem().rm(f"/{place}", recursive=True)


def plain(length: int) -> bytes:
    """Return the metadata of an unsharded array."""
    document = make_version_2((length,), (2,), (2,))
    return json.dumps({name: value for name, value in document.items() if not name.startswith("shard")}).encode()


def chunk(number: int) -> bytes:
    return np.full(2, number, "<i4").tobytes()


def replaced_since(opened: Open) -> RefShardFileSystem:
    """Return a filesystem that read a shard before another one replaced the shard."""
    first, second = opened(), opened()
    first.pipe_file("a/0", chunk(1))
    first.commit()
    assert second.cat_file("a/0") == chunk(1)
    first.pipe_file("a/1", chunk(3))
    first.commit()
    return second


def test_chunk_from_a_store_without_versions_is_committed(s3_server: SeaweedServer) -> None:
    """s3fs returns bytes without their version, like most filesystems: the version is requested before the chunk."""
    s3_server.create_bucket("conflicts")
    url = f"s3://conflicts/{uuid.uuid4().hex}"
    objects = Objects(url, s3_server.storage_options)
    objects.put(".zgroup", [GROUP])
    objects.put("a/.zarray", [plain(8)])
    objects.put("a/0", [chunk(1)])
    how: dict[str, Any] = {"mode": "a", "fast_s3": False, "skip_instance_cache": True, **s3_server.storage_options}
    first, second = RefShardFileSystem(url, **how), RefShardFileSystem(url, **how)
    for number, fs in enumerate([first, second], 2):
        assert fs.cat_file("a/0") == chunk(1)
        fs.pipe_file("a/0", chunk(number))
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()
    second.discard()
    assert second.cat_file("a/0") == chunk(2)


def test_shard_replaced_by_others_is_merged_at_the_second_try(opened: Open) -> None:
    second = replaced_since(opened)
    second.pipe_file("a/0", chunk(2))
    with pytest.raises(ConflictError, match=r"commit\(\) puts your chunks into the new shards"):
        second.commit()
    assert opened("r").cat_file("a/0") == chunk(1)
    assert second.cat_file("a/0") == chunk(2), "the uncommitted writes stay"
    second.commit()
    assert open_array(opened("r"), mode="r")[:4].tolist() == [2, 2, 3, 3]


def test_full_shard_over_a_replaced_one_is_refused(opened: Open) -> None:
    second = replaced_since(opened)
    second.pipe({"a/0": chunk(5), "a/1": chunk(5)})
    with pytest.raises(ConflictError):
        second.commit()
    second.discard()
    assert open_array(opened("r"), mode="r")[:4].tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("key", ["a/.zarray", "plain/0"])
def test_object_replaced_by_another_writer_is_not_overwritten(opened: Open, key: str) -> None:
    first, second = opened(), opened()
    before = json.dumps({**make_version_2((10,), (2,), (2,))}).encode() if key.endswith(".zarray") else chunk(1)
    first.pipe_file(key, before)
    first.commit()
    assert len(second.cat_file(key)) > 0
    theirs = before.replace(b"10", b"12") if key.endswith(".zarray") else chunk(2)
    first.pipe_file(key, theirs)
    first.commit()
    second.pipe_file(key, before)
    for _ in range(2):
        with pytest.raises(ConflictError, match=r"discard\(\) drops them"):
            second.commit()
    second.discard()
    if key.endswith(".zarray"):
        assert open_array(opened("r"), mode="r").shape == (12,)
    else:
        assert second.cat_file(key) == theirs


def replaced_document(opened: Open) -> tuple[RefShardFileSystem, bytes]:
    """Return a filesystem with uncommitted attributes, and the attributes that another one committed meanwhile."""
    first, second = opened(), opened()
    first.pipe({"plain/.zattrs": b'{"a": 1}', "a/0": chunk(1), "a/1": chunk(1)})
    first.commit()
    assert second.cat_file("plain/.zattrs") == b'{"a": 1}'
    assert second.cat_file("a/0") == chunk(1)
    second.pipe_file("plain/.zattrs", b'{"a": 1, "mine": 1}')
    theirs = b'{"a": 1, "theirs": 1}'
    first.pipe_file("plain/.zattrs", theirs)
    first.commit()
    return second, theirs


def test_replaced_document_is_kept_at_the_second_try(opened: Open) -> None:
    second, theirs = replaced_document(opened)
    first = opened()
    first.pipe_file("a/1", chunk(3))
    first.commit()
    second.pipe_file("a/0", chunk(2))
    for _ in range(3):
        with pytest.raises(ConflictError):
            second.commit()
    assert opened("r").cat_file("plain/.zattrs") == theirs
    second.discard()


def test_reopening_keeps_the_base_state_of_writes(opened: Open) -> None:
    second, theirs = replaced_document(opened)
    second.invalidate_cache()
    assert open_array(second, mode="r")[:2].tolist() == [1, 1]
    for _ in range(2):
        with pytest.raises(ConflictError, match=r"discard\(\) drops them"):
            second.commit()
    assert opened("r").cat_file("plain/.zattrs") == theirs
    second.discard()
    assert second.cat_file("plain/.zattrs") == theirs
    second.pipe_file("plain/.zattrs", b"{}")
    second.commit()
    assert opened("r").cat_file("plain/.zattrs") == b"{}"


def test_failed_transaction_keeps_the_base_state(opened: Open) -> None:
    second, theirs = replaced_document(opened)
    with contextlib.suppress(KeyError), second.transaction:
        second.pipe_file("a/3", chunk(3))
        raise KeyError
    with pytest.raises(ConflictError):
        second.commit()
    assert opened("r").cat_file("plain/.zattrs") == theirs
    second.discard()


def test_shard_is_merged_after_reopening(opened: Open) -> None:
    """The first commit may find the old version and raise; the second one reads the shard anew, and merges."""
    second = replaced_since(opened)
    second.pipe_file("a/0", chunk(2))
    second.invalidate_cache()
    with contextlib.suppress(ConflictError):
        second.commit()
    second.commit()
    assert open_array(opened("r"), mode="r")[:4].tolist() == [2, 2, 3, 3]


def test_writers_of_one_process_merge_their_chunks(opened: Open) -> None:
    filesystems = [opened() for _ in range(4)]
    for number, fs in enumerate(filesystems):
        fs.pipe_file(f"a/{number}", chunk(number + 1))
    start = threading.Barrier(4)

    def commit(fs: RefShardFileSystem) -> None:
        start.wait()
        fs.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(commit, filesystems))
    assert open_array(opened("r"), mode="r")[:].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]


def test_reader_sees_a_replaced_shard_after_invalidation(opened: Open) -> None:
    writer, reader = opened(), opened("r")
    writer.pipe_file("a/0", chunk(1))
    writer.commit()
    assert reader.cat_file("a/0") == chunk(1)
    writer.pipe_file("a/0", chunk(2))
    writer.commit()
    reader.invalidate_cache()
    assert reader.cat_file("a/0") == chunk(2)


def test_chunk_replaced_by_another_writer_is_kept(opened: Open) -> None:
    """Since the filesystem read the chunk, two other writers have replaced it."""
    first, second = opened(), opened()
    first.pipe_file("plain/0", chunk(1))
    first.commit()
    assert second.cat_file("plain/0") == chunk(1)
    first.pipe_file("plain/0", chunk(2))
    first.commit()
    url = first.source.options.source
    assert isinstance(url, str)
    Objects(url, first.source.stores).put("plain/0", [chunk(3) * 2])
    second.pipe_file("plain/0", chunk(4))
    with pytest.raises(ConflictError):
        second.commit()
    second.discard()
    assert second.cat_file("plain/0") == chunk(3) * 2


def test_removed_and_recreated_chunk_is_a_conflict(opened: Open) -> None:
    first, second, third = opened(), opened(), opened()
    first.pipe_file("plain/0", chunk(1))
    first.commit()
    assert second.cat_file("plain/0") == third.cat_file("plain/0") == chunk(1)
    third.rm_file("plain/0")
    first.rm_file("plain/0")
    first.commit()
    first.pipe_file("plain/0", chunk(2))
    first.commit()
    second.pipe_file("plain/0", chunk(3))
    for fs in (second, third):
        with pytest.raises(ConflictError):
            fs.commit()
        fs.discard()
        assert fs.cat_file("plain/0") == chunk(2)


ABSENT_KEYS = {
    "chunk": ["plain/0"],
    "part of a shard": ["a/0"],
    "whole shard": ["a/0", "a/1"],
    "attributes": ["plain/.zattrs"],
    "array": ["new/.zarray"],
}


@pytest.mark.parametrize("keys", ABSENT_KEYS.values(), ids=ABSENT_KEYS)
def test_object_missing_for_two_writers_is_a_conflict(opened: Open, keys: list[str]) -> None:
    """A writer that found an object missing gets a conflict if another one made it, also after `invalidate_cache`."""
    document = not keys[0].endswith(("0", "1"))
    values = [plain(n) if document else chunk(n) for n in (1, 2)]
    first, second = opened(), opened()
    for fs, value in zip((first, second), values, strict=True):
        assert not any(map(fs.exists, keys))
        fs.pipe(dict.fromkeys(keys, value))
    second.invalidate_cache()
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()
    second.discard()
    assert [second.cat_file(key) for key in keys] == values[:1] * len(keys)


def test_array_and_group_of_one_name_conflict(opened: Open) -> None:
    first, second = opened(), opened()
    for fs, name in ((first, ".zgroup"), (second, ".zarray")):
        assert not fs.exists("new/.zgroup")
        assert not fs.exists("new/.zarray")
        fs.pipe_file(f"new/{name}", GROUP if name == ".zgroup" else plain(1))
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()
    second.discard()


@pytest.mark.parametrize("change", ["grown", "counted", "made"])
def test_equal_documents_of_two_writers_conflict(opened: Open, change: str) -> None:
    """Each writer appends to an array, increments a counter, or makes an array; the documents of both are equal."""
    first, second = opened(), opened()
    first.pipe_file("plain/.zattrs", b'{"count": 1}')
    first.commit()
    for number, fs in enumerate((first, second)):
        match change:
            case "grown":
                grown = open_array(fs, "plain")
                grown.resize((10,))
                grown[8:] = number + 1
            case "counted":
                assert fs.cat_file("plain/.zattrs") == b'{"count": 1}'
                fs.pipe_file("plain/.zattrs", b'{"count": 2}')
            case _:
                assert not fs.exists("new/.zarray")
                fs.pipe({"new/.zarray": plain(2), "new/0": chunk(number + 1)})
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()
    second.discard()
    key = {"grown": "plain/4", "made": "new/0"}.get(change)
    assert key is None or opened("r").cat_file(key) == chunk(1)


def test_two_writers_may_make_the_same_group(opened: Open) -> None:
    first, second = opened(), opened()
    for number, fs in enumerate((first, second)):
        assert not fs.exists("new/.zgroup")
        fs.pipe({"new/.zgroup": GROUP, f"new/{number}/.zgroup": GROUP})
    first.commit()
    second.commit()
    assert opened("r").ls("new", detail=False) == ["new/.zgroup", "new/0", "new/1"]


@pytest.mark.parametrize("path", ["plain", "a"])
def test_chunk_put_during_growth_is_kept(opened: Open, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """The writer of the chunk also grows the array. If it puts the metadata first, it gets no conflict."""
    fs = opened()
    grown = open_array(fs, path)
    grown.resize((12,))
    grown[8:] = 7
    put_data, url = HierarchyCommit._put_data, str(fs.source.options.source)
    theirs = Objects(url, fs.source.stores)

    def put_after_another(*args: Any) -> None:
        theirs.put(f"{path}/{4 if path == 'plain' else 2}", [chunk(5)])
        put_data(*args)

    monkeypatch.setattr(HierarchyCommit, "_put_data", put_after_another)
    with pytest.raises(ConflictError):
        fs.commit()
    assert theirs.read([f"{path}/{4 if path == 'plain' else 2}"]).popitem()[1] == chunk(5)
    fs.discard()


def test_two_new_hierarchies_at_one_url_conflict(tmp_path: Path) -> None:
    url = str(tmp_path / "new")
    options: dict[str, Any] = {"mode": "a", "format": "zarr-hierarchy", "skip_instance_cache": True}
    first, second = RefShardFileSystem(url, **options), RefShardFileSystem(url, **options)
    for number, fs in enumerate((first, second)):
        assert not fs.exists("a/.zarray")
        fs.pipe({".zgroup": GROUP, "a/.zarray": plain(number)})
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()
    second.discard()
    assert open_array(second, mode="r").shape == (0,)


def contents(fs: RefShardFileSystem) -> dict[str, bytes]:
    return {key: fs.cat_file(key) for key in fs.find("")}


def test_two_writers_with_mode_w_leave_one_state(opened: Open) -> None:
    states: list[dict[str, bytes]] = [
        {".zgroup": GROUP, "m/.zarray": plain(2 * count), **{f"m/{i}": chunk(count) for i in range(count)}}
        for count in (1, 3)
    ]
    writers = [opened("w") for _ in states]
    for fs, state in zip(writers, states, strict=True):
        fs.pipe(state)
    done = []
    for fs, state in zip(writers, states, strict=True):
        try:
            fs.commit()
        except ConflictError:
            fs.discard()
        else:
            done.append(state)
    assert done
    assert contents(opened("r")) == done[-1]


@pytest.mark.parametrize("at_once", [True, False])
def test_only_one_of_two_writers_with_mode_x_succeeds(opened: Open, at_once: bool) -> None:
    """Both writers look for the array before one of them commits it, as zarr does with mode="w-"."""
    writers = [opened() for _ in range(2)]
    for number, fs in enumerate(writers):
        assert not fs.exists("new/.zarray")
        with fs.open("new/.zarray", "xb") as file:
            file.write(plain(2 + 2 * number))
        fs.pipe_file(f"new/{number}", chunk(number))

    def commit(fs: RefShardFileSystem) -> bool:
        try:
            fs.commit()
        except ConflictError:
            fs.discard()
            return False
        return True

    with ThreadPoolExecutor(2 if at_once else 1) as pool:
        won = list(pool.map(commit, writers))
    assert sum(won) == 1
    winner = won.index(True)
    found = opened("r")
    assert found.cat_file("new/.zarray") == plain(2 + 2 * winner)
    assert found.ls("new", detail=False) == ["new/.zarray", f"new/{winner}"]
