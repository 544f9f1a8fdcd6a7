"""Two writers of one hierarchy: in one process they take turns; elsewhere the second is refused, and loses nothing."""

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
from refshard_fs.targets.objects import Objects
from refshard_fs.writing.hierarchy import written_versions
from tests.servers.s3 import SeaweedServer
from tests.sharding.test_packing import version_2
from tests.writing.arrays import array

pytestmark = pytest.mark.filterwarnings("ignore::refshard_fs.CostlyPattern")
GROUP = json.dumps({"zarr_format": 2}).encode()
Open = Callable[..., RefShardFileSystem]


@pytest.fixture(params=["local", "memory", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens one hierarchy, with an array of two shards of two chunks of two each."""
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
    objects.put("a/.zarray", [json.dumps(version_2((8,), (2,), (2,))).encode()])
    objects.put("plain/.zarray", [json.dumps({**version_2((8,), (2,), (2,)), "shards": None}).encode()])
    given = {"target_options": options} if options else {}
    yield lambda mode="a": RefShardFileSystem(url, mode=mode, skip_instance_cache=True, **given)
    if request.param == "memory":
        MemoryFileSystem().rm(f"/{place}", recursive=True)


@pytest.fixture
def elsewhere() -> Callable[[], None]:
    """Makes this process forget what it wrote, as if another one had."""
    return written_versions.clear


def chunk(number: int) -> bytes:
    return np.full(2, number, "<i4").tobytes()


def replaced_since(opened: Open, elsewhere: Callable[[], None]) -> RefShardFileSystem:
    """A filesystem that read a shard which another process replaced afterwards."""
    first, second = opened(), opened()
    first.pipe_file("a/0", chunk(1))
    first.commit()
    assert second.cat_file("a/0") == chunk(1)
    first.pipe_file("a/1", chunk(3))
    first.commit()
    elsewhere()
    return second


def test_a_shard_that_another_process_replaced_is_refused_and_the_second_try_merges(
    opened: Open, elsewhere: Callable[[], None]
) -> None:
    second = replaced_since(opened, elsewhere)
    second.pipe_file("a/0", chunk(2))
    with pytest.raises(ConflictError, match=r"commit\(\) puts your chunks into the shards that are there now"):
        second.commit()
    assert opened("r").cat_file("a/0") == chunk(1)
    assert second.cat_file("a/0") == chunk(2), "what was written is kept"
    second.commit()
    assert array(opened("r"), mode="r")[:4].tolist() == [2, 2, 3, 3]


def test_a_full_shard_over_one_that_another_process_replaced_is_refused_too(
    opened: Open, elsewhere: Callable[[], None]
) -> None:
    second = replaced_since(opened, elsewhere)
    second.pipe({"a/0": chunk(5), "a/1": chunk(5)})
    with pytest.raises(ConflictError):
        second.commit()
    second.discard()
    assert array(opened("r"), mode="r")[:4].tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("key", ["a/.zarray", "plain/0"])
def test_a_document_or_a_chunk_that_another_process_replaced_is_not_written_over(
    opened: Open, elsewhere: Callable[[], None], key: str
) -> None:
    first, second = opened(), opened()
    before = json.dumps({**version_2((10,), (2,), (2,))}).encode() if key.endswith(".zarray") else chunk(1)
    first.pipe_file(key, before)
    first.commit()
    assert len(second.cat_file(key)) > 0
    theirs = before.replace(b"10", b"12") if key.endswith(".zarray") else chunk(2)
    first.pipe_file(key, theirs)
    first.commit()
    elsewhere()
    second.pipe_file(key, before)
    for _ in range(2):
        with pytest.raises(ConflictError, match=r"discard\(\) drops it"):
            second.commit()
    second.discard()
    if key.endswith(".zarray"):
        assert array(opened("r"), mode="r").shape == (12,)
    else:
        assert second.cat_file(key) == theirs


def replaced_document(opened: Open, elsewhere: Callable[[], None]) -> tuple[RefShardFileSystem, bytes]:
    """A filesystem that has written attributes to what it read and another process then wrote, and that one's."""
    first, second = opened(), opened()
    first.pipe({"plain/.zattrs": b'{"a": 1}', "a/0": chunk(1), "a/1": chunk(1)})
    first.commit()
    assert second.cat_file("plain/.zattrs") == b'{"a": 1}'
    assert second.cat_file("a/0") == chunk(1)
    second.pipe_file("plain/.zattrs", b'{"a": 1, "mine": 1}')
    theirs = b'{"a": 1, "theirs": 1}'
    first.pipe_file("plain/.zattrs", theirs)
    first.commit()
    elsewhere()
    return second, theirs


def test_a_document_that_was_replaced_with_a_shard_is_not_written_over_by_the_second_try(
    opened: Open, elsewhere: Callable[[], None]
) -> None:
    second, theirs = replaced_document(opened, elsewhere)
    first = opened()
    first.pipe_file("a/1", chunk(3))
    first.commit()
    elsewhere()
    second.pipe_file("a/0", chunk(2))
    for _ in range(3):
        with pytest.raises(ConflictError):
            second.commit()
    assert opened("r").cat_file("plain/.zattrs") == theirs
    second.discard()


def test_opening_the_source_anew_does_not_forget_what_was_written_on_what(
    opened: Open, elsewhere: Callable[[], None]
) -> None:
    second, theirs = replaced_document(opened, elsewhere)
    second.invalidate_cache()
    assert array(second, mode="r")[:2].tolist() == [1, 1]
    for _ in range(2):
        with pytest.raises(ConflictError, match=r"discard\(\) drops it"):
            second.commit()
    assert opened("r").cat_file("plain/.zattrs") == theirs
    second.discard()
    assert second.cat_file("plain/.zattrs") == theirs
    second.pipe_file("plain/.zattrs", b"{}")
    second.commit()
    assert opened("r").cat_file("plain/.zattrs") == b"{}"


def test_a_transaction_that_fails_does_not_forget_what_was_written_before_it_on_what(
    opened: Open, elsewhere: Callable[[], None]
) -> None:
    second, theirs = replaced_document(opened, elsewhere)
    with contextlib.suppress(KeyError), second.transaction:
        second.pipe_file("a/3", chunk(3))
        raise KeyError
    with pytest.raises(ConflictError):
        second.commit()
    assert opened("r").cat_file("plain/.zattrs") == theirs
    second.discard()


def test_a_shard_is_merged_also_after_the_source_was_opened_anew(opened: Open, elsewhere: Callable[[], None]) -> None:
    second = replaced_since(opened, elsewhere)
    second.pipe_file("a/0", chunk(2))
    second.invalidate_cache()
    with contextlib.suppress(ConflictError):
        second.commit()
    second.commit()
    assert array(opened("r"), mode="r")[:4].tolist() == [2, 2, 3, 3]


def test_writers_in_one_process_put_their_chunks_into_what_the_others_left(opened: Open) -> None:
    filesystems = [opened() for _ in range(4)]
    for number, fs in enumerate(filesystems):
        assert array(fs)[:].tolist() == [0] * 8
        fs.pipe_file(f"a/{number}", chunk(number + 1))
    start = threading.Barrier(4)

    def commit(fs: RefShardFileSystem) -> None:
        start.wait()
        fs.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(commit, filesystems))
    assert array(opened("r"), mode="r")[:].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_reader_is_told_that_a_shard_was_replaced_and_starts_over(opened: Open) -> None:
    writer, reader = opened(), opened("r")
    writer.pipe_file("a/0", chunk(1))
    writer.commit()
    assert reader.cat_file("a/0") == chunk(1)
    writer.pipe_file("a/0", chunk(2))
    writer.commit()
    reader.invalidate_cache()
    assert reader.cat_file("a/0") == chunk(2)


def test_a_chunk_that_this_process_and_then_another_replaced_is_not_written_over(opened: Open) -> None:
    first, second = opened(), opened()
    first.pipe_file("plain/0", chunk(1))
    first.commit()
    assert second.cat_file("plain/0") == chunk(1)
    first.pipe_file("plain/0", chunk(2))
    first.commit()
    url = first._session.options.source
    assert isinstance(url, str)
    Objects(url, first._session.given(url)).put("plain/0", [chunk(3) * 2])
    second.pipe_file("plain/0", chunk(4))
    with pytest.raises(ConflictError):
        second.commit()
    second.discard()
    assert second.cat_file("plain/0") == chunk(3) * 2


def test_a_chunk_that_this_process_removed_is_no_conflict_for_its_other_writers(opened: Open) -> None:
    first, second = opened(), opened()
    first.pipe_file("plain/0", chunk(1))
    first.commit()
    assert second.cat_file("plain/0") == chunk(1)
    first.rm_file("plain/0")
    first.commit()
    second.pipe_file("plain/0", chunk(4))
    second.commit()
    assert opened("r").cat_file("plain/0") == chunk(4)
