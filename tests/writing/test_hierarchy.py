"""Other readers read the values that zarr 2 and zarr 3 write to sharded arrays through this package."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from refshard_fs import CostlyPattern, DamagedIndex, ManifestError, ReadOnlyError, RefShardFileSystem
from refshard_fs.core.model import Span
from tests.servers.http import RangeServer
from tests.support.shard_writers import IS_ZARR_2, make_prototype_shards
from tests.support.written_arrays import (
    CHUNKS,
    FILL,
    KINDS,
    QUIET,
    SHARDS,
    make_gappy_values,
    make_group,
    make_sharded,
    open_array,
    open_writable,
    read_objects,
    read_stored,
)

pytestmark = QUIET


@pytest.fixture
def data() -> np.ndarray[Any, Any]:
    return make_gappy_values()


def test_other_readers_read_written_values(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    fs = open_writable(tmp_path)
    seen = open_array(fs)
    with fs.transaction:
        for part in (np.s_[0:8, 0:12], np.s_[3:5, 4:20], np.s_[20, 25], np.s_[16:, :]):
            data[part] = np.arange(data[part].size).reshape(data[part].shape)
            seen[part] = data[part]
            assert np.array_equal(seen[...], data), "reads see writes before the commit"
        data[0:8, 12:24] = FILL
        seen[0:8, 12:24] = FILL
    assert np.array_equal(read_stored(tmp_path)[...], data)
    assert np.array_equal(seen[...], data)
    if IS_ZARR_2:
        return  # zarr 2 also writes chunks that have only the fill value
    assert not (tmp_path / "a" / ("0.1" if kind == "prototype" else "c/0/1")).exists(), "empty shards are removed"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("checked", "prototype")])
def test_tensorstore_and_zarrs_read_the_values(tmp_path: Path, data: Any, kind: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    pytest.importorskip("zarrs")
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    fs = open_writable(tmp_path)
    with fs.transaction:
        open_array(fs)[3:19, 5:20] = data[3:19, 5:20] = 4
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a")}}
    assert np.array_equal(tensorstore.open(spec, read=True).result().read().result(), data)
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        assert np.array_equal(read_stored(tmp_path)[...], data)


def test_no_object_is_written_before_the_commit(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    before = read_objects(tmp_path)
    fs = open_writable(tmp_path)
    open_array(fs)[...] = 5
    assert read_objects(tmp_path) == before
    fs.discard()
    assert np.array_equal(open_array(fs)[...], data)
    assert read_objects(tmp_path) == before


def test_resized_array_stays_sharded(tmp_path: Path, kind: str, data: Any) -> None:
    data = np.abs(data) + 1
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    document = tmp_path / "a" / (".zarray" if kind == "prototype" else "zarr.json")
    before = json.loads(document.read_text())
    fs = open_writable(tmp_path)
    seen = open_array(fs)
    with fs.transaction:
        seen.resize((40, 26))
        seen[21:] = 3
        seen.attrs["made"] = "longer"
    after = json.loads(document.read_text())
    assert after["shape"] == [40, 26]
    for member in ("codecs", "chunk_grid") if kind != "prototype" else ("shards", "shard_format", "chunks"):
        assert after[member] == before[member]
    assert np.array_equal(read_stored(tmp_path)[...], np.concatenate([data, np.full((19, 26), 3)]))
    with fs.transaction:
        seen.resize((10, 5))
    assert np.array_equal(read_stored(tmp_path)[...], data[:10, :5])
    assert len(read_objects(tmp_path)) == 2
    with fs.transaction:
        seen.resize((12, 8))
    assert (read_stored(tmp_path)[10:] == FILL).all()
    assert (read_stored(tmp_path)[:, 6:] == FILL).all(), "values that were cut off do not come back"


def test_open_and_new_arrays_see_a_commit(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    fs = open_writable(tmp_path)
    seen = open_array(fs)
    for value in range(4):
        seen[value, :] = value
        fs.commit()
        data[value, :] = value
        assert np.array_equal(seen[...], data)
        assert np.array_equal(open_array(open_writable(tmp_path))[...], data)


def test_changing_a_chunk_keeps_the_payload_of_others(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    keys = [key for key in open_writable(tmp_path).find("a") if not key.endswith(("zarr.json", ".zarray"))]
    before = open_writable(tmp_path).cat(keys)
    fs = open_writable(tmp_path)
    changed = "a/2.3" if kind == "prototype" else "a/c/2/3"
    fs.pipe_file(changed, b"x" * 24)
    fs.commit()
    after = open_writable(tmp_path).cat(keys)
    assert after.pop(changed) == b"x" * 24
    before.pop(changed)
    assert after == before


def test_removed_chunk_directories_are_left_out_of_shards(tmp_path: Path, data: Any) -> None:
    if IS_ZARR_2:
        pytest.skip("arrays of version 3")
    make_sharded(tmp_path, data, SHARDS, CHUNKS, "end")
    fs = open_writable(tmp_path)
    fs.rm("a/c/0", recursive=True)
    fs.commit()
    data[0:2] = FILL
    assert np.array_equal(read_stored(tmp_path)[...], data)
    fs.rm("a/c", recursive=True)
    fs.commit()
    assert read_objects(tmp_path) == {}
    fs.rm("a", recursive=True)
    fs.commit()
    assert not (tmp_path / "a").exists()
    assert open_writable(tmp_path).ls("", detail=False) == ["zarr.json"]


def test_array_rewritten_with_other_chunks_is_unsharded(tmp_path: Path, data: Any) -> None:
    if IS_ZARR_2:
        pytest.skip("arrays of version 3")
    make_sharded(tmp_path, data, SHARDS, CHUNKS, "end")
    fs = open_writable(tmp_path)
    store = zarr.storage.FsspecStore.from_mapper(fs.get_mapper())
    with fs.transaction:
        new = zarr.create_array(store, name="a", shape=(9, 9), chunks=(4, 4), dtype="i2", overwrite=True)
        new[...] = 4
    found = read_stored(tmp_path)
    assert found.shards is None
    assert found.chunks == (4, 4)
    assert (found[...] == 4).all()
    assert sorted(read_objects(tmp_path)) == [f"c/{i}/{j}" for i in range(3) for j in range(3)]


def test_replaced_array_loses_its_old_shards(tmp_path: Path, data: Any) -> None:
    if IS_ZARR_2:
        pytest.skip("arrays of version 3")
    make_sharded(tmp_path, data, SHARDS, CHUNKS, "end")
    (tmp_path / "a" / "notes.txt").write_text("stays")
    fs = open_writable(tmp_path)
    doc = json.loads(fs.cat_file("a/zarr.json"))
    doc["chunk_grid"]["configuration"]["chunk_shape"] = [21, 26]
    with fs.transaction:
        fs.pipe_file("a/zarr.json", json.dumps(doc).encode())
        open_array(fs)[...] = data
    assert np.array_equal(read_stored(tmp_path)[...], data)
    assert sorted(read_objects(tmp_path)) == ["c/0/0", "notes.txt"] or sorted(read_objects(tmp_path)) == ["c/0/0"]


def test_array_rewritten_with_equal_metadata_keeps_shards(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    fs = open_writable(tmp_path)
    document = "a/.zarray" if kind == "prototype" else "a/zarr.json"
    shown = fs.cat_file(document)
    with fs.transaction:
        fs.rm("a", recursive=True)
        fs.pipe_file(document, shown)
        open_array(fs)[0:8, 0:12] = 9
    expected = np.full_like(data, FILL)
    expected[0:8, 0:12] = 9
    assert np.array_equal(read_stored(tmp_path)[...], expected)
    assert len(read_objects(tmp_path)) == 1


def test_new_array_is_sharded_only_by_its_metadata(tmp_path: Path) -> None:
    if IS_ZARR_2:
        pytest.skip("arrays of version 3")
    make_group(tmp_path, 3)
    fs = open_writable(tmp_path)
    store = zarr.storage.FsspecStore.from_mapper(fs.get_mapper())
    with fs.transaction:
        zarr.create_array(store, name="plain", shape=(8,), chunks=(2,), dtype="i4")[...] = 1
        sharded = zarr.create_array(store, name="sharded", shape=(8,), chunks=(2,), shards=(4,), dtype="i4")
        sharded[...] = 2
    assert read_stored(tmp_path, "plain").shards is None
    assert read_stored(tmp_path, "sharded").shards == (4,)
    assert (read_stored(tmp_path, "plain")[...] == 1).all()
    assert (read_stored(tmp_path, "sharded")[...] == 2).all()
    sharded[1] = 3  # the open array still has its shards, although a new one shows inner chunks
    assert sharded[:3].tolist() == [2, 3, 2]
    fs.commit()
    assert read_stored(tmp_path, "sharded")[:3].tolist() == [2, 3, 2]
    assert open_array(open_writable(tmp_path), "sharded").shards is None


def test_consolidated_metadata_have_the_stored_sharding(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    fs = open_writable(tmp_path)
    with fs.transaction:
        open_array(fs).resize((30, 26))
        if IS_ZARR_2:
            zarr.consolidate_metadata(fs.get_mapper())
        else:
            zarr.consolidate_metadata(zarr.storage.FsspecStore.from_mapper(fs.get_mapper()))
    if kind == "prototype":
        found = json.loads((tmp_path / ".zmetadata").read_text())["metadata"]["a/.zarray"]
        own = json.loads((tmp_path / "a" / ".zarray").read_text())
        assert found["shards"] == own["shards"] == [4, 4]
    else:
        found = json.loads((tmp_path / "zarr.json").read_text())["consolidated_metadata"]["metadata"]["a"]
        own = json.loads((tmp_path / "a" / "zarr.json").read_text())
        assert found["codecs"] == own["codecs"]
        assert found["chunk_grid"] == own["chunk_grid"]
    assert found["shape"] == own["shape"] == [30, 26]
    assert open_array(open_writable(tmp_path)).chunks == CHUNKS


def test_root_array_is_written(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    fs = open_writable(tmp_path / "a")
    seen = open_array(fs, "")
    with fs.transaction:
        seen[5:12, 3:20] = data[5:12, 3:20] = 6
        seen.resize((30, 26))
        fs.rm("10.0" if kind == "prototype" else "c/10", recursive=kind != "prototype")
    expected = np.full((30, 26), FILL)
    expected[:21] = data
    expected[20:22, slice(0, 3) if kind == "prototype" else slice(None)] = FILL
    assert np.array_equal(read_stored(tmp_path)[...], expected)
    fs.rm("", recursive=True)
    fs.commit()
    assert list((tmp_path / "a").rglob("*")) == []


def test_copied_and_moved_keys_have_the_committed_bytes(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    one, two, three = ("a/4.4", "a/4.5", "a/9.7") if kind == "prototype" else ("a/c/4/4", "a/c/4/5", "a/c/9/7")
    fs = open_writable(tmp_path)
    before = fs.cat([one, two])
    with fs.transaction:
        fs.cp_file(one, three)
        fs.mv(two, one)
    fs = open_writable(tmp_path)
    assert (fs.cat_file(three), fs.cat_file(one)) == (before[one], before[two])
    assert not fs.exists(two)
    fs = open_writable(tmp_path)
    assert fs._writer is not None
    url, start, stop = fs.resolve(one)
    # Another process may have written this reference.
    fs._writer.overlay.put(two, Span(str(url), int(start), stop and int(stop)))
    fs.pipe_file(one, b"x" * 24)
    fs.commit()
    assert open_writable(tmp_path).cat_file(two) == before[two]


def test_sharded_scalars_are_written(tmp_path: Path) -> None:
    make_group(tmp_path, 2)
    doc = {"zarr_format": 2, "shape": [], "chunks": [], "dtype": "<i4", "compressor": None, "filters": None}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".zarray").write_text(json.dumps({**doc, "order": "C", "fill_value": 0, "shards": []}))
    fs = open_writable(tmp_path)
    fs.pipe_file("a/0", b"\5\0\0\0")
    fs.commit()
    (held,) = make_prototype_shards({(): b"\5\0\0\0"}, ()).values()
    assert read_objects(tmp_path) == {"0": held}


def test_damaged_shard_is_refused_and_unchanged(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    shard = tmp_path / "a" / ("0.0" if kind == "prototype" else "c/0/0")
    damaged = shard.read_bytes()[:-9]
    shard.write_bytes(damaged)
    fs = open_writable(tmp_path)
    fs.pipe_file("a/0.0" if kind == "prototype" else "a/c/0/0", b"x" * 24)
    with pytest.raises(DamagedIndex):
        fs.commit()
    assert shard.read_bytes() == damaged
    fs.discard()


def test_error_of_a_damaged_shard_index_names_the_shard(tmp_path: Path, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, "prototype")
    with (tmp_path / "a" / "0.0").open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"\xff\xff\xff\xff\xff\xff\xff\x00")
    fs = open_writable(tmp_path)
    fs.pipe_file("a/0.0", b"x" * 24)
    with pytest.raises(DamagedIndex, match=r"a/0\.0"):
        fs.commit()
    fs.discard()


def test_whole_shards_are_written_unchanged(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    fs = open_writable(tmp_path, shards="whole")
    key = "a/0.0" if kind == "prototype" else "a/c/0/0"
    fs.pipe_file(key, b"whatever it is")
    fs.commit()
    assert (tmp_path / key).read_bytes() == b"whatever it is"


def test_write_to_an_empty_directory_makes_a_hierarchy(tmp_path: Path) -> None:
    if IS_ZARR_2:
        pytest.skip("arrays of version 3")
    root = tmp_path / "new.zarr"
    fs = open_writable(root)
    store = zarr.storage.FsspecStore.from_mapper(fs.get_mapper())
    group = zarr.open_group(store, mode="a")
    group.create_array("x", shape=(4,), chunks=(2,), dtype="i4")[...] = 8
    assert not root.exists()
    fs.commit()
    assert (zarr.open_group(str(root), mode="r")["x"][...] == 8).all()
    assert sorted(p.name for p in root.rglob("*")) == ["0", "1", "c", "x", "zarr.json", "zarr.json"]


def test_mode_w_commit_removes_old_objects(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    before = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    fs = RefShardFileSystem(str(tmp_path), mode="w", skip_instance_cache=True)
    assert fs.find("") == []
    fs.pipe({".zgroup": b'{"zarr_format":2}', "b/c": b"new"})
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == before
    fs.commit()
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()) == [".zgroup", "b/c"]


@pytest.mark.parametrize("source", ["h", "refs.json"])
def test_commit_to_a_web_server_is_refused(http_server: RangeServer, source: str) -> None:
    http_server.put("/h/.zgroup", b'{"zarr_format":2}')
    http_server.put("/refs.json", b'{".zgroup": "{}"}')
    fs = open_writable(f"{http_server.url}/{source}")
    fs.pipe_file("a", b"new")
    with pytest.raises(ReadOnlyError, match="cannot commit to"):
        fs.commit()
    assert {request.method for request in http_server.requests()} <= {"GET", "HEAD"}
    fs.discard()


def test_spooled_writes_are_read_and_committed(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    fs = open_writable(tmp_path, write_memory=100)
    assert fs._writer is not None
    data[...] = np.arange(data.size).reshape(data.shape)
    seen = open_array(fs)
    seen[...] = data
    assert np.array_equal(seen[...], data)
    assert fs._writer.overlay.spool.in_memory <= 100
    seen[5] = data[5] = 77
    fs.commit()
    assert np.array_equal(read_stored(tmp_path)[...], data)
    assert fs._writer.overlay.spool.in_memory == 0


def test_fixed_slots_refuse_other_chunk_sizes(tmp_path: Path, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, "prototype")
    doc = json.loads((tmp_path / "a" / ".zarray").read_text())
    (tmp_path / "a" / ".zarray").write_text(json.dumps({**doc, "shard_format": "morton_order"}))
    for path in (tmp_path / "a").glob("[0-9]*"):
        path.unlink()
    fs = open_writable(tmp_path)
    open_array(fs)[...] = data
    fs.commit()
    assert np.array_equal(read_stored(tmp_path)[...], data)
    fs.pipe_file("a/0.0", b"x")
    with pytest.raises(ManifestError, match="the size of a slot"):
        fs.commit()
    fs.discard()


def test_rectilinear_shard_grid_does_not_grow(tmp_path: Path, data: Any) -> None:
    if IS_ZARR_2:
        pytest.skip("arrays of version 3")
    make_sharded(tmp_path, data, SHARDS, CHUNKS, "end")
    document = tmp_path / "a" / "zarr.json"
    doc = json.loads(document.read_text())
    shapes = {"kind": "inline", "chunk_shapes": [[8, 8, 8], [12, 15]]}
    doc["chunk_grid"] = {"name": "rectilinear", "configuration": shapes}
    document.write_text(json.dumps(doc))
    for path in (tmp_path / "a" / "c").rglob("*/*"):
        path.unlink()
    fs = open_writable(tmp_path)
    seen = open_array(fs)
    seen[...] = data
    fs.commit()
    assert np.array_equal(open_array(open_writable(tmp_path))[...], data)
    seen.resize((30, 26))
    with pytest.raises(ManifestError):
        fs.commit()
    fs.discard()


@pytest.mark.filterwarnings("default::refshard_fs.CostlyPattern")
def test_partial_shard_write_warns_once(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    fs = open_writable(tmp_path)
    seen = open_array(fs)
    seen[0, 0] = 1
    with pytest.warns(CostlyPattern, match="had to be read") as told:  # noqa: PT031  # only the first commit warns
        fs.commit()
        seen[20, 20] = 1
        fs.commit()
    assert len(told) == 1


@pytest.mark.filterwarnings("error::refshard_fs.CostlyPattern")
def test_whole_shard_writes_do_not_warn(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    fs = open_writable(tmp_path)
    with fs.transaction:
        open_array(fs)[...] = 4


@pytest.mark.filterwarnings("default::refshard_fs.CostlyPattern")
def test_repeated_shard_writes_warn(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    fs = open_writable(tmp_path)
    seen = open_array(fs)
    for value in (1, 2):
        seen[0:8, 0:12] = value
        fs.commit()
    seen[0:8, 0:12] = 3
    with pytest.warns(CostlyPattern, match="written 3 times"):
        fs.commit()


def test_warning_turned_into_an_error_is_raised_at_the_commit(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    fs = open_writable(tmp_path)
    open_array(fs)[0, 0] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", CostlyPattern)
        with pytest.raises(CostlyPattern):
            fs.commit()
    assert open_array(open_writable(tmp_path), mode="r")[0, 0] == 1
    fs.commit()  # the first commit changed the source before it raised, so this one does nothing
    open_array(fs)[0, 0] = 2
    fs.commit()
    assert open_array(open_writable(tmp_path), mode="r")[0, 0] == 2


def test_filesystem_without_mode_reads_but_refuses_writes(tmp_path: Path, kind: str, data: Any) -> None:
    make_sharded(tmp_path, data, SHARDS, CHUNKS, kind)
    reader = RefShardFileSystem(str(tmp_path), skip_instance_cache=True)
    assert np.array_equal(open_array(reader, mode="r")[...], data)
    with pytest.raises(PermissionError, match="mode='a'"):
        reader.pipe_file("a/x", b"")


@pytest.mark.parametrize("rows", [3, 400])
@pytest.mark.parametrize("is_sharded", [True, False])
def test_leftovers_of_a_killed_commit_are_not_data(tmp_path: Path, rows: int, is_sharded: bool) -> None:
    shards = (4, 6) if is_sharded else (1, 3)
    kind = "prototype" if IS_ZARR_2 else "end"
    data = np.arange(2 * 6).reshape(2, 6).astype("<i4")
    if is_sharded:
        make_sharded(tmp_path, data, shards, (1, 3), kind)
    else:
        zarr.open_group(str(tmp_path), mode="w").create_dataset(
            "a", shape=data.shape, chunks=(1, 3), dtype="<i4", fill_value=FILL
        ) if IS_ZARR_2 else zarr.open_group(str(tmp_path), mode="w").create_array(
            "a", shape=data.shape, chunks=(1, 3), dtype="<i4", fill_value=FILL
        )
    fs = open_writable(tmp_path)
    open_array(fs)[...] = data
    fs.commit()
    document = next(path for path in (tmp_path / "a").iterdir() if path.name in ("zarr.json", ".zarray"))
    before = document.read_bytes()
    killed = open_writable(tmp_path)
    with killed.transaction:
        longer = open_array(killed)
        longer.resize((2 + rows, 6))
        longer[2:] = 99
    document.write_bytes(before)  # as if the writer had been killed before the last step of the commit
    for path in tmp_path.glob(".zmetadata"):
        path.unlink()
    fs = open_writable(tmp_path)
    seen = open_array(fs)
    with fs.transaction:
        seen.resize((2 + rows, 6))
        seen[2, 0:3] = 7
    expected = np.full((2 + rows, 6), FILL)
    expected[:2], expected[2, 0:3] = data, 7
    assert np.array_equal(read_stored(tmp_path)[...], expected)
