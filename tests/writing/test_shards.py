"""Writes to sharded arrays of reference sets make new shards, which are objects that the set refers to."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ConflictError, CostlyPattern, RefShardFileSystem
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer
from tests.support.processes import run_in_process
from tests.support.shard_writers import IS_ZARR_2
from tests.support.written_arrays import (
    CHUNKS,
    FILL,
    QUIET,
    SHARDS,
    make_gappy_values,
    make_sharded,
    open_array,
    open_writable,
    read_objects,
)

FORMATS = {"json": "refs.json", "parquet": "refs.parquet"}
KIND = "prototype" if IS_ZARR_2 else "end"
pytestmark = QUIET


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data() -> np.ndarray[Any, Any]:
    return make_gappy_values()


@pytest.fixture
def source(tmp_path: Path, format: str, data: Any) -> Path:
    """Make a set of references to the shards of the hierarchy ``tmp_path / "old"``; return its path."""
    make_sharded(tmp_path / "old", data, SHARDS, CHUNKS, KIND)
    path = tmp_path / FORMATS[format]
    RefShardFileSystem(str(tmp_path / "old"), skip_instance_cache=True).save(str(path), format)
    return path


def seen(source: Path) -> Any:
    return open_array(RefShardFileSystem(str(source), skip_instance_cache=True), mode="r")


def resolve_shard(source: Path, shard: str) -> Any:
    """Return the bytes, or the (URL, start, stop), that the set has for the shard at coordinates like "0/1"."""
    fs = RefShardFileSystem(str(source), shards="whole", skip_instance_cache=True)
    return fs.resolve(f"a/c/{shard}" if KIND == "end" else f"a/{shard.replace('/', '.')}")


def test_readers_see_written_values(tmp_path: Path, source: Path, data: Any) -> None:
    before = read_objects(tmp_path / "old")
    fs = open_writable(source)
    zarr = open_array(fs)
    with fs.transaction:
        for part in (np.s_[0:8, 0:12], np.s_[3:5, 4:20], np.s_[20, 25], np.s_[16:, :]):
            data[part] = np.arange(data[part].size).reshape(data[part].shape)
            zarr[part] = data[part]
            assert np.array_equal(zarr[...], data), "reads see writes before the commit"
        data[0:8, 12:24] = FILL
        zarr[0:8, 12:24] = FILL
    assert np.array_equal(zarr[...], data)
    assert np.array_equal(seen(source)[...], data)
    assert read_objects(tmp_path / "old") == before, "the old shards are unchanged"


def test_partial_shard_is_one_object_and_references_to_others(source: Path, data: Any) -> None:
    untouched = resolve_shard(source, "1/1")
    fs = open_writable(source, inline_threshold=0)
    open_array(fs)[2, 2] = data[2, 2] = 77
    open_array(fs)[3, 11] = data[3, 11] = 78
    fs.commit()
    made = [p for p in Path(f"{source}.data").rglob("*") if p.is_file()]
    assert len(made) == 1, "two chunks of one shard are one object"
    url, start, stop = resolve_shard(source, "0/0")
    assert (Path(url.removeprefix("file://")), start, stop) == (made[0], 0, made[0].stat().st_size)
    assert resolve_shard(source, "1/1") == untouched
    assert np.array_equal(seen(source)[...], data)


def test_readers_of_whole_shards_read_written_values(source: Path, data: Any) -> None:
    if IS_ZARR_2:
        pytest.skip("zarr 2 reads no shards")
    fs = open_writable(source)
    open_array(fs)[1:20, 1:20] = data[1:20, 1:20] = 5
    fs.commit()
    whole = RefShardFileSystem(str(source), shards="whole", skip_instance_cache=True)
    assert open_array(whole, mode="r").shards == SHARDS
    assert np.array_equal(open_array(whole, mode="r")[...], data)


def test_shard_written_in_full_is_not_read(tmp_path: Path, source: Path) -> None:
    for path in (tmp_path / "old" / "a").rglob("*"):
        if path.is_file() and path.name not in ("zarr.json", ".zarray"):
            path.write_bytes(b"lost")
    fs = open_writable(source)
    open_array(fs)[0:8, 0:12] = 9
    fs.commit()
    assert (seen(source)[0:8, 0:12] == 9).all()


def test_reference_to_an_empty_shard_is_removed(source: Path) -> None:
    fs = open_writable(source)
    for key in fs.find("a"):
        if not key.endswith(("zarr.json", ".zarray", ".zattrs")):
            fs.rm_file(key)
    fs.commit()
    again = RefShardFileSystem(str(source), shards="whole", skip_instance_cache=True)
    names = {key.rpartition("/")[2] for key in again.find("a")}
    assert {name for name in names if not name.startswith("manifest.")} <= {"zarr.json", ".zarray", ".zattrs"}
    assert (seen(source)[...] == FILL).all()


def test_resized_array_stays_sharded(source: Path, data: Any) -> None:
    fs = open_writable(source)
    zarr = open_array(fs)
    with fs.transaction:
        zarr.resize((40, 26))
        zarr[21:] = 3
        zarr.attrs["made"] = "longer"
    again = RefShardFileSystem(str(source), shards="whole", skip_instance_cache=True)
    name = "zarr.json" if KIND == "end" else ".zarray"
    stored = json.loads(again.cat_file(f"a/{name}"))
    assert stored["shape"] == [40, 26]
    assert "sharding_indexed" in str(stored) if KIND == "end" else stored["shard_format"] == "indexed"
    assert np.array_equal(seen(source)[...], np.concatenate([data, np.full((19, 26), 3)]))


def test_removed_array_is_missing_after_the_commit(source: Path) -> None:
    fs = open_writable(source)
    with fs.transaction:
        fs.rm("a", recursive=True)
    assert not RefShardFileSystem(str(source), skip_instance_cache=True).exists("a")
    assert fs.find("a") == []


def test_small_shard_becomes_inline(source: Path, data: Any) -> None:
    fs = open_writable(source, inline_threshold=1 << 20)
    open_array(fs)[2, 2] = data[2, 2] = 77
    fs.commit()
    assert isinstance(resolve_shard(source, "0/0"), bytes)
    assert np.array_equal(seen(source)[...], data)
    assert not Path(f"{source}.data").exists()


def test_equal_shards_share_a_content_addressed_object(source: Path) -> None:
    fs = open_writable(source, content_addressed=True)
    open_array(fs)[0:8, 0:24] = 4
    fs.commit()
    assert resolve_shard(source, "0/0") == resolve_shard(source, "0/1")


def test_written_reference_becomes_part_of_its_shard(tmp_path: Path, source: Path, data: Any) -> None:
    values = np.full(CHUNKS, 12, "<i4")
    (tmp_path / "elsewhere").write_bytes(values.tobytes())
    fs = open_writable(source)
    fs.refer("a/c/0/0" if KIND == "end" else "a/0.0", str(tmp_path / "elsewhere"), 0, values.nbytes)
    data[: CHUNKS[0], : CHUNKS[1]] = 12
    fs.commit()
    assert np.array_equal(seen(source)[...], data)


def test_conflict_keeps_the_writes_and_leaves_no_object(source: Path, data: Any) -> None:
    first, second = open_writable(source, inline_threshold=0), open_writable(source, inline_threshold=0)
    for fs in (first, second):
        fs.ls("a")
    open_array(first)[0, 0] = 1
    open_array(second)[20, 20] = data[20, 20] = 2
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()
    assert open_array(second)[20, 20] == 2
    second.discard()
    made = [p for p in Path(f"{source}.data").rglob("*") if p.is_file()]
    assert len(made) == 1


def test_reading_a_shard_to_write_a_part_of_it_warns(source: Path) -> None:
    fs = open_writable(source)
    open_array(fs)[2, 2] = 77
    with pytest.warns(CostlyPattern, match="the rest had to be read"):
        fs.commit()


def test_saved_copy_has_writes_to_shards(tmp_path: Path, source: Path, data: Any) -> None:
    fs = open_writable(source)
    open_array(fs)[4:9, 4:14] = data[4:9, 4:14] = 6
    fs.save(str(tmp_path / "other.json"))
    fs.discard()
    assert np.array_equal(seen(tmp_path / "other.json")[...], data)


def test_unsharded_array_replaces_a_sharded_one(source: Path) -> None:
    fs = open_writable(source)
    plain = json.loads(fs.cat_file("a/zarr.json" if KIND == "end" else "a/.zarray"))
    with fs.transaction:
        if KIND == "end":
            plain["chunk_grid"]["configuration"]["chunk_shape"] = [21, 26]
        else:
            plain["chunks"] = [21, 26]
        fs.pipe_file("a/zarr.json" if KIND == "end" else "a/.zarray", json.dumps(plain).encode())
        open_array(fs)[...] = 8
    assert (seen(source)[...] == 8).all()
    whole = RefShardFileSystem(str(source), shards="whole", skip_instance_cache=True)
    assert not whole.exists("a/c/1/1" if KIND == "end" else "a/1.1")


def test_error_of_a_shard_put_names_the_data_directory(source: Path) -> None:
    fs = open_writable(source)
    open_array(fs)[0:8, 0:12] = 3
    Path(f"{source}.data").write_text("no directory")
    with pytest.raises(OSError, match=r"\.data"):
        fs.commit()
    Path(f"{source}.data").unlink()
    fs.commit()
    assert (seen(source)[0:8, 0:12] == 3).all()


def test_written_key_names_an_inner_chunk_and_not_a_shard(source: Path) -> None:
    """Until the commit, a written key names an inner chunk, although a shard may have the same key."""
    fs = open_writable(source)
    key = "a/c/0/0" if KIND == "end" else "a/0.0"
    open_array(fs)[0, 0] = 1
    assert fs.info(key)["size"] == 24 == len(fs.cat_file(key))
    fs.commit()
    assert fs.info(key)["size"] == 24
    match resolve_shard(source, "0/0"):
        case bytes() as shard:
            assert len(shard) > 24
        case _, start, stop:
            assert stop - start > 24


def test_only_partial_shards_cost_a_get(
    tmp_path: Path, s3_server: SeaweedServer, s3_proxy: CountingProxy, data: Any
) -> None:
    make_sharded(tmp_path / "old", data, SHARDS, CHUNKS, KIND)
    s3_server.create_bucket("sharded-sets")
    root = f"sharded-sets/{uuid.uuid4().hex}"
    for file in (tmp_path / "old").rglob("*"):
        if file.is_file():
            s3_server.put(f"{root}/old/{file.relative_to(tmp_path / 'old').as_posix()}", file.read_bytes())
    options = {**s3_server.storage_options, "client_kwargs": {"endpoint_url": s3_proxy.url}}

    def through(path: str, **more: Any) -> RefShardFileSystem:
        return RefShardFileSystem(f"s3://{root}/{path}", options={"s3://": options}, skip_instance_cache=True, **more)

    through("old").save(f"s3://{root}/refs.json", **options)
    fs = through("refs.json", mode="a", inline_threshold=0)
    zarr = open_array(fs)
    s3_proxy.clear()
    with fs.transaction:
        for row in range(0, 8, 2):
            for column in range(12, 24, 3):
                zarr[row : row + 2, column : column + 3] = data[row : row + 2, column : column + 3] = row + column + 1
        zarr[2:4, 3:6] = data[2:4, 3:6] = 99
    asked = [(r.method, r.path.removeprefix(f"/{root}/")) for r in s3_proxy.requests()]
    assert [path for method, path in asked if method == "GET" and path.startswith("old/")] == [
        "old/a/c/0/0" if KIND == "end" else "old/a/0.0"
    ]
    puts = [path for method, path in asked if method == "PUT"]
    assert len(puts) == 3
    assert [path.startswith("refs.json.data/") for path in puts] == [True, True, False]
    found = through("refs.json")
    assert np.array_equal(open_array(found, mode="r")[...], data)


@pytest.mark.skipif(IS_ZARR_2, reason="arrays of version 3")
def test_other_processes_write_inner_chunks_of_one_shard(source: Path, data: Any) -> None:
    fs = open_writable(source, inline_threshold=0)
    fs.ls("a")
    for number in (1, 2):
        run_in_process(fs, f"fs.pipe_file('a/c/0/{number}', bytes([{number}, 0, 0, 0]) * 6)")
    fs.commit()
    data[0:2, 3:6], data[0:2, 6:9] = 1, 2
    assert np.array_equal(seen(source)[...], data)
    made = [p for p in Path(f"{source}.data").rglob("*") if p.is_file()]
    assert len(made) == 1, "the chunks that both processes wrote are in one shard"


def test_removed_shards_leave_no_pending_chunks(tmp_path: Path, data: Any) -> None:
    make_sharded(tmp_path / "old", data, SHARDS, CHUNKS, KIND)
    source = tmp_path / "refs.json"
    RefShardFileSystem(str(tmp_path / "old"), skip_instance_cache=True).save_json(str(source))
    fs = open_writable(source, inline_threshold=0)
    key = "a/c/0/0" if KIND == "end" else "a/0.0"
    fs.exists(key)
    fs.pipe_file(key, b"that of an inner chunk")
    fs.discard()
    source.write_text("{}")
    fs.invalidate_cache()
    fs.exists(key)
    fs.pipe_file(key, b"value")
    assert [p.read_bytes() for p in Path(f"{source}.data").rglob("*") if p.is_file()] == [b"value"]
    fs.commit()
    assert fs.cat_file(key) == b"value"
