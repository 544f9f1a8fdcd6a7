"""A commit to a branch of an Icechunk repository is one snapshot in zarr-python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ConflictError, RefShardFileSystem
from tests.servers.http import RangeServer
from tests.servers.s3 import SeaweedServer
from tests.support.icechunk_repositories import open_session, read

icechunk = pytest.importorskip("icechunk", minversion="2.3")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3")
pytest.importorskip("h5netcdf")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def write_day(folder: Path, number: int, **encoding: Any) -> str:
    """Write a file of two steps; return its path."""
    steps = np.arange(2) + 2 * number
    t = (("time", "x"), np.arange(8.0).reshape(2, 4) + 10 * number)
    ds = xr.Dataset({"t": t}, {"time": ("time", steps, {"units": "days since 2024-01-01"}), "x": np.arange(4.0)})
    path = folder / f"{number}.nc"
    ds.to_netcdf(path, engine="h5netcdf", encoding={"t": {"chunksizes": (1, 4), "zlib": True} | encoding})
    return str(path)


@pytest.fixture
def repository(tmp_path: Path) -> str:
    """The path of a repository of one day."""
    there = str(tmp_path / "grows.icechunk")
    RefShardFileSystem(write_day(tmp_path, 0)).save(there)
    return there


def list_messages(there: str, branch: str = "main") -> list[str]:
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(there))
    return [snapshot.message for snapshot in repository.ancestry(branch=branch)]


def test_append_is_one_snapshot_of_virtual_chunks(repository: str, tmp_path: Path) -> None:
    files = [str(tmp_path / "0.nc"), write_day(tmp_path, 1)]
    assert refshard_fs.append(repository, files[1], "time", message="the second day") == 2
    assert list_messages(repository)[0] == "the second day"
    expected = xr.concat([xr.open_dataset(file, decode_times=False) for file in files], "time", data_vars="minimal")
    xr.testing.assert_equal(read(repository), expected.load())
    ours = xr.open_dataset(repository, engine="refshard", decode_times=False).load()
    xr.testing.assert_identical(ours, read(repository))
    assert {f"file://{file}" for file in files} == set(open_session(repository).all_virtual_chunk_locations())


def test_append_without_new_data_commits_nothing(repository: str, tmp_path: Path) -> None:
    before = list_messages(repository)
    again = str(tmp_path / "0.nc")
    assert refshard_fs.append(repository, again, "time", on_duplicate="skip") == 0
    with pytest.raises(refshard_fs.ManifestError, match="already"):
        refshard_fs.append(repository, again, "time")
    assert list_messages(repository) == before


def test_append_of_an_unfit_day_commits_nothing(repository: str, tmp_path: Path) -> None:
    before = list_messages(repository)
    with pytest.raises(refshard_fs.ManifestError):
        refshard_fs.append(repository, write_day(tmp_path, 1, chunksizes=(1, 2)), "time")
    assert list_messages(repository) == before


def test_append_commits_to_the_named_branch(repository: str, tmp_path: Path) -> None:
    icechunk.Repository.open(icechunk.local_filesystem_storage(repository)).create_branch(
        "next", open_session(repository).snapshot_id
    )
    refshard_fs.append(repository, write_day(tmp_path, 1), "time", branch="next")
    assert [read(repository, branch=name).sizes["time"] for name in ("main", "next")] == [2, 4]


def test_values_and_references_are_committed_together(repository: str, tmp_path: Path) -> None:
    fs = RefShardFileSystem(repository, mode="a")
    group = zarr.open_group(refshard_fs.Store(fs), mode="a")
    group["t"][0] = 7
    group.create_array("new", shape=(3,), chunks=(2,), dtype="i4", fill_value=-1)[:2] = [1, 2]
    fs.refer("new/c/1", str(tmp_path / "raw.bin"), 4, 8)
    (tmp_path / "raw.bin").write_bytes(np.arange(4, dtype="<i4").tobytes())
    group["new"].attrs["units"] = "K"
    before = list_messages(repository)
    fs.commit(message="edited")
    assert list_messages(repository) == ["edited", *before]
    found = zarr.open_group(open_session(repository).store, mode="r")
    assert found["t"][0].tolist() == [7] * 4
    assert found["t"][1].tolist() == [4, 5, 6, 7]
    assert dict(found["new"].attrs) == {"units": "K"}
    fs.rm("new", recursive=True)
    fs.commit()
    assert set(zarr.open_group(open_session(repository).store, mode="r")) == {"t", "time", "x"}


def test_commit_after_another_writer_is_a_conflict(repository: str) -> None:
    fs = RefShardFileSystem(repository, mode="a")
    zarr.open_group(refshard_fs.Store(fs), mode="a")["t"][0] = 7
    session = icechunk.Repository.open(icechunk.local_filesystem_storage(repository)).writable_session("main")
    zarr.open_group(session.store, mode="a").attrs["by"] = "another"
    session.commit("another")
    with pytest.raises(ConflictError, match="another process"):
        fs.commit()
    assert list_messages(repository)[0] == "another"
    fs.discard()
    zarr.open_group(refshard_fs.Store(fs), mode="a")["t"][0] = 7
    fs.commit()
    assert list_messages(repository)[1] == "another"


@pytest.mark.parametrize("version", ["tag", "snapshot", "as_of"])
def test_tags_and_snapshots_refuse_commits(repository: str, version: str) -> None:
    own = icechunk.Repository.open(icechunk.local_filesystem_storage(repository))
    snapshot = open_session(repository).snapshot_id
    own.create_tag("one", snapshot)
    fs = RefShardFileSystem(
        repository, mode="a", **{version: {"tag": "one", "snapshot": snapshot, "as_of": "2999-01-01"}[version]}
    )
    fs.pipe_file("t/c/0/0", b"1")
    with pytest.raises(refshard_fs.ReadOnlyError, match="a branch of an Icechunk repository"):
        fs.commit()
    fs.discard()


def test_commit_error_names_unsupported_keys(repository: str) -> None:
    fs = RefShardFileSystem(repository, mode="a")
    fs.pipe_file("notes.txt", b"hello")
    before = list_messages(repository)
    with pytest.raises(refshard_fs.ManifestError, match=r"'notes\.txt' is neither metadata"):
        fs.commit()
    fs.discard()
    assert list_messages(repository) == before


def test_key_that_was_written_and_removed_is_not_committed(repository: str) -> None:
    fs = RefShardFileSystem(repository, mode="a")
    fs.pipe_file("notes.txt", b"x")
    fs.rm_file("notes.txt")
    fs.pipe_file("zarr.json", json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"n": 1}}).encode())
    fs.commit()
    assert zarr.open_group(open_session(repository).store, mode="r").attrs["n"] == 1


def test_message_for_other_formats_is_an_error(tmp_path: Path) -> None:
    fs = RefShardFileSystem(str(tmp_path / "refs.json"), mode="a")
    fs.pipe_file("a", b"1")
    with pytest.raises(ValueError, match="only Icechunk repositories keep messages"):
        fs.commit(message="a")
    fs.discard()


@pytest.mark.filterwarnings("ignore:sets that are not yours")
def test_repository_keeps_the_origins_of_a_remote_set(tmp_path: Path, http_server: RangeServer) -> None:
    """A repository on this machine is the user's own, but targets that a stranger's set names are not."""
    meta = '{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C", "fill_value": 0, '
    meta += '"filters": null, "compressor": null}'
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": meta, "a/0": ["s3://private/data", 0, 2]}
    there = str(tmp_path / "theirs.icechunk")
    RefShardFileSystem(http_server.put("/refs.json", json.dumps(refs).encode())).save(there)
    fs = RefShardFileSystem(there, mode="a")
    expected = {"s3://private": [f"{http_server.url}/"]}
    assert list(fs.source.open().origins.to_json()) == list(expected)
    fs.pipe_file("a/c/1", b"ab")
    fs.commit()
    found = RefShardFileSystem(there).source.open()
    assert list(found.origins.to_json()) == list(expected), "a commit keeps the record"
    assert found.strangers


def test_repository_on_s3_takes_saves_appends_and_branches(tmp_path: Path, s3_server: SeaweedServer) -> None:
    """Of two writers who opened the same snapshot, the second is refused."""
    s3_server.create_bucket("commits")
    files = [s3_server.put(f"commits/a b/{n}.nc", Path(write_day(tmp_path, n)).read_bytes()) for n in range(3)]
    there, options = "s3://commits/grows.icechunk", s3_server.storage_options
    access = {"options": {"s3://commits/": options}}
    place = {"region": "us-east-1", "endpoint_url": s3_server.endpoint_url, "allow_http": True}
    stores = {"s3://commits/": icechunk.s3_store(**place, s3_compatible=True, force_path_style=True)}
    RefShardFileSystem(files[0], **access).save(there, virtual_stores=stores, **options)
    late = RefShardFileSystem(there, mode="a", **access)
    late.pipe_file("t/c/0/0", b"late")
    assert refshard_fs.append(there, files[1], "time", **access) == 2
    with pytest.raises(ConflictError, match="another snapshot"):
        late.commit()
    late.discard()
    RefShardFileSystem(files[2], **access).save(there, branch="next", overwrite=True, virtual_stores=stores, **options)
    for branch, numbers in (("main", [0, 1]), ("next", [2])):
        more = {**access, "branch": branch}
        got = xr.open_dataset(there, engine="refshard", decode_times=False, storage_options=more)
        expected = [xr.open_dataset(tmp_path / f"{n}.nc", decode_times=False) for n in numbers]
        xr.testing.assert_equal(got.load(), xr.concat(expected, "time", data_vars="minimal").load())
