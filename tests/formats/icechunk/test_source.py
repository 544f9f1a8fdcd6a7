"""Repositories that icechunk and VirtualiZarr wrote have the chunks that icechunk reads, in fewer requests."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardError, RefShardFileSystem, SourceNotReachable, TargetChanged
from refshard_fs.errors import TargetNotAllowed
from refshard_fs.formats.icechunk.flatbuffers import Tables
from refshard_fs.formats.icechunk.objects import extract_buffer
from refshard_fs.tools.info import summarise
from tests.servers.http import RangeServer
from tests.servers.s3 import SeaweedServer

icechunk = pytest.importorskip("icechunk", minversion="2.3")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

STEP = 64  # bytes of a virtual chunk
RAW = {"compressors": None, "filters": None}


def configure(*prefixes: str, names: dict[str, str] | None = None) -> Any:
    """Return a configuration with a virtual chunk container for each URL in ``prefixes``, with ``names`` by URL."""
    config = icechunk.RepositoryConfig.default()
    for prefix in prefixes:
        name = (names or {}).get(prefix)
        store = icechunk.http_store() if prefix.startswith("http") else icechunk.local_filesystem_store(prefix[7:])
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store, name=name))
    return config


def create(path: Path | str, config: Any = None, version: int = 2) -> Any:
    access = icechunk.containers_credentials(dict.fromkeys(config.virtual_chunk_containers)) if config else None
    storage = icechunk.local_filesystem_storage(str(path))
    return icechunk.Repository.create(storage, config, access, spec_version=version)


def read_by_icechunk(repository: Any, **version: Any) -> dict[str, bytes]:
    """Read all keys of a snapshot with icechunk."""
    from zarr.core.buffer import default_buffer_prototype

    store = repository.readonly_session(**(version or {"branch": "main"})).store

    async def read() -> dict[str, bytes]:
        found = {}
        async for key in store.list():
            found[key] = (await store.get(key, default_buffer_prototype())).to_bytes()
        return found

    return asyncio.run(read())


def create_virtual(folder: Path, url: str, steps: int = 8, prefix: str | None = None, **checks: Any) -> Any:
    """Create a repository with an array ``a``, whose virtual chunks are 64 bytes each of the object at ``url``."""
    repository = create(folder / "virtual", configure(prefix or url.rpartition("/")[0] + "/"))
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="w")
    group.create_array("a", shape=(steps, STEP), chunks=(1, STEP), dtype="u1", fill_value=0, **RAW)
    for step in range(steps):
        session.store.set_virtual_ref(f"a/c/{step}/0", url, offset=step * STEP, length=STEP, **checks)
    session.commit("made")
    return repository


def make_content(steps: int = 8) -> bytes:
    return bytes(np.arange(steps * STEP, dtype="u4").astype("u1"))


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def mixed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, str]:
    """A repository with native, inline and virtual chunks, split manifests, a tag, and two more snapshots."""
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "ü#.bin").write_bytes(bytes(range(200)))
    config = configure(f"file://{tmp_path}/")
    split = icechunk.ManifestSplittingConfig.from_dict(
        {icechunk.ManifestSplitCondition.AnyArray(): {icechunk.ManifestSplitDimCondition.Any(): 3}}
    )
    config.manifest = icechunk.ManifestConfig(splitting=split)
    repository = create(tmp_path / "mixed", config, request.param)
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="w", attributes={"title": "mixed"})
    grid = group.create_array("deep/grid", shape=(50, 40), chunks=(7, 10), dtype="f8", dimension_names=["y", "x"])
    grid[:33] = np.random.default_rng(0).random((33, 40))
    group.create_array("scalar", shape=(), dtype="i4")[...] = 7
    group.create_array("small", shape=(9,), chunks=(2,), dtype="i2")[:] = np.arange(9)
    group.create_array("empty", shape=(9,), chunks=(2,), dtype="i2")
    group.create_array("sharded", shape=(8,), shards=(4,), chunks=(2,), dtype="i2")[:] = np.arange(8)
    group.create_array("virtual", shape=(20,), chunks=(2,), dtype="u1", **RAW)
    for step in (0, 3, 4, 9):
        url = f"file://{tmp_path}/a%20b/%C3%BC%23.bin"
        session.store.set_virtual_ref(f"virtual/c/{step}", url, offset=step, length=2)
    repository.create_tag("first", session.commit("first"))
    session = repository.writable_session("main")
    zarr.open_group(session.store)["small"][:] = -np.arange(9)
    session.commit("second")
    repository.create_branch("next", repository.lookup_tag("first"))
    session = repository.writable_session("next")
    zarr.open_group(session.store)["deep/grid"].resize((20, 40))
    session.commit("smaller")
    return repository, str(tmp_path / "mixed")


def test_snapshots_have_the_keys_that_icechunk_reads(mixed: tuple[Any, str]) -> None:
    repository, url = mixed
    first = repository.lookup_tag("first")
    for theirs, ours in (
        ({"branch": "main"}, {}),
        ({"branch": "next"}, {"branch": "next"}),
        ({"tag": "first"}, {"tag": "first"}),
        ({"snapshot_id": first}, {"snapshot": first}),
    ):
        expected = read_by_icechunk(repository, **theirs)
        fs = RefShardFileSystem(url, shards="whole", **ours)
        assert sorted(fs.find("")) == sorted(expected)
        assert fs.cat([*expected]) == expected
        assert not any(map(fs.exists, ["small/c/7", "virtual/c/1", "deep/grid/c/9/9", "none"]))


def test_arrays_are_opened_by_zarr_and_xarray(mixed: tuple[Any, str]) -> None:
    repository, url = mixed
    theirs = zarr.open_group(repository.readonly_session("main").store, mode="r")
    ours = zarr.open_group(f"refshard::{url}", mode="r")
    assert dict(ours.attrs) == {"title": "mixed"}
    for name in ("deep/grid", "scalar", "small", "empty", "sharded", "virtual"):
        np.testing.assert_array_equal(ours[name][...], theirs[name][...])
    opened = xr.open_dataset(f"icechunk::{url}", engine="refshard", group="deep", storage_options={"tag": "first"})
    np.testing.assert_array_equal(opened["grid"], theirs["deep/grid"])


def test_as_of_opens_the_last_snapshot_up_to_a_time(mixed: tuple[Any, str]) -> None:
    repository, url = mixed
    second, first, *_ = repository.ancestry(branch="main")
    for when in (first.written_at, first.written_at.isoformat()):
        assert (
            RefShardFileSystem(url, as_of=when).cat_file("small/c/1")
            == read_by_icechunk(repository, tag="first")["small/c/1"]
        )
    naive = second.written_at.astimezone(UTC).replace(tzinfo=None)
    assert RefShardFileSystem(url, as_of=naive).cat_file("small/c/1") == read_by_icechunk(repository)["small/c/1"]
    with pytest.raises(SourceNotReachable, match="before its first snapshot"):
        RefShardFileSystem(url, as_of="2020-01-01").ls("")


@pytest.mark.parametrize("mixed", [1], indirect=True)
def test_circular_history_is_an_error(mixed: tuple[Any, str]) -> None:
    repository, url = mixed
    file = Path(url) / "snapshots" / repository.lookup_branch("main")
    buffer = extract_buffer(file.read_bytes(), 1, 1 << 20)
    own, parent = (Tables.read_root(buffer).read_structs(field, 12).tobytes() for field in (0, 1))
    file.write_bytes(file.read_bytes()[:38] + b"\0" + buffer.replace(parent, own))
    with pytest.raises(ManifestError, match="to be older than its child"):
        RefShardFileSystem(url, as_of="2020-01-01").ls("")


@pytest.mark.parametrize("wrong", [{"branch": "none"}, {"tag": "none"}, {"snapshot": "0" * 20}, {"branch": "../x"}])
def test_version_that_does_not_exist_is_an_error(wrong: dict[str, str], mixed: tuple[Any, str]) -> None:
    with pytest.raises(RefShardError, match="|".join(wrong.values())):
        RefShardFileSystem(mixed[1], **wrong).ls("")


def test_folder_without_a_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceNotReachable, match="there is no Icechunk repository at .*: neither repo nor refs/branch"):
        RefShardFileSystem(f"icechunk::{tmp_path}/none").ls("")


def test_deleted_tag_is_an_error(mixed: tuple[Any, str]) -> None:
    repository, url = mixed
    repository.delete_tag("first")
    with pytest.raises(SourceNotReachable, match="'first'"):
        RefShardFileSystem(url, tag="first").ls("")


def test_branches_and_tags_with_special_characters_are_opened(tmp_path: Path) -> None:
    """In version 1, names of branches and tags are names of objects, which Icechunk quotes in local directories."""
    repository = create(tmp_path / "repository", version=1)
    names = ("a b!$&'()+,:;=@", 'ü€#%?*<>[]{}|^~"`\\', "%C3%BC", "ü", "..")
    for name in names:
        session = repository.writable_session("main")
        zarr.open_group(session.store, mode="w", attributes={"name": name})
        snapshot = session.commit("made")
        repository.create_tag(name, snapshot)
        repository.create_branch(name, snapshot)
    for name in names:
        for kind in ("tag", "branch"):
            document = RefShardFileSystem(str(tmp_path / "repository"), **{kind: name}).cat_file("zarr.json")
            assert json.loads(document)["attributes"] == {"name": name}


def test_invalid_version_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": "b"}')
    with pytest.raises(ManifestError, match="branch='x'.*has no versions"):
        RefShardFileSystem(str(tmp_path / "a.json"), branch="x").ls("")
    for wrong in ({"branch": "x", "tag": "y"}, {"snapshot": "x", "as_of": "2020-01-01"}, {"as_of": "yesterday"}):
        with pytest.raises(ValueError, match="expected"):
            RefShardFileSystem(str(tmp_path / "a.json"), **wrong)


def test_opened_repository_keeps_its_snapshot(mixed: tuple[Any, str]) -> None:
    repository, url = mixed
    fs = RefShardFileSystem(url)
    before = fs.cat_file("small/c/1")
    session = repository.writable_session("main")
    zarr.open_group(session.store)["small"][:] = 5
    session.commit("third")
    assert fs.cat_file("small/c/1") == before
    assert RefShardFileSystem(url).cat_file("small/c/1") == read_by_icechunk(repository)["small/c/1"] != before
    fs.invalidate_cache()
    assert fs.cat_file("small/c/1") == read_by_icechunk(repository)["small/c/1"]


def test_repository_is_recognised_without_listing(mixed: tuple[Any, str]) -> None:
    repository, url = mixed
    expected = read_by_icechunk(repository)
    with RangeServer(directory=Path(url).parent) as server:
        fs = RefShardFileSystem(f"{server.url}/mixed", shards="whole")
        keys = [key for key in expected if not key.startswith("virtual/c")]
        assert fs.cat(keys) == {key: expected[key] for key in keys}
        with pytest.raises(TargetNotAllowed, match="this machine's files"):
            fs.cat_file("virtual/c/0")


def test_repository_on_s3_is_read(s3_server: SeaweedServer) -> None:
    s3_server.create_bucket("icechunk")
    target = s3_server.put("icechunk/data/a b.bin", make_content())
    storage = icechunk.s3_storage(
        bucket="icechunk",
        prefix="made",
        region="us-east-1",
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        force_path_style=True,
        access_key_id=s3_server.key,
        secret_access_key=s3_server.secret,
    )
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer("s3://icechunk/data/", icechunk.s3_store()))
    session = icechunk.Repository.create(storage, config).writable_session("main")
    zarr.open_group(session.store, mode="w").create_array("a", shape=(2, 900), chunks=(1, 900), dtype="u1", **RAW)[
        1
    ] = 5
    etag = fsspec.filesystem("s3", **s3_server.storage_options).info(target)["ETag"]
    session.store.set_virtual_ref("a/c/0/0", target.replace(" ", "%20"), offset=0, length=512, checksum=etag)
    session.commit("made")
    fs = RefShardFileSystem("s3://icechunk/made", target_options=s3_server.storage_options)
    assert fs.cat_file("a/c/0/0") == make_content()
    assert fs.cat_file("a/c/1/0") == bytes([5]) * 900
    s3_server.put("icechunk/data/a b.bin", make_content()[::-1])
    with pytest.raises(TargetChanged):
        RefShardFileSystem("s3://icechunk/made", target_options=s3_server.storage_options).cat_file("a/c/0/0")


def test_unlisted_repository_opens_in_few_requests(tmp_path: Path) -> None:
    session = create(tmp_path / "made").writable_session("main")
    ds = xr.Dataset({"air": (("y", "x"), np.arange(12.0).reshape(3, 4))}, {"y": np.arange(3), "x": np.arange(4)})
    ds.to_zarr(session.store, zarr_format=3, consolidated=False)
    session.commit("made")
    with RangeServer(directory=tmp_path) as server:
        opened = xr.open_dataset(f"icechunk::{server.url}/made", engine="refshard")
        folders = [request.path.split("/")[2] for request in server.requests()]
        assert folders == ["repo", "snapshots", "manifests", "manifests"], "manifests of the coordinates"
        xr.testing.assert_identical(opened.load(), ds)
        assert len(server.requests()) == 5


def test_point_in_thousands_of_chunks_takes_few_requests(tmp_path: Path, http_server: RangeServer) -> None:
    steps = 3000
    url = http_server.put("/steps", make_content(steps))
    repository = create(tmp_path / "many", configure(http_server.url + "/"))
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="w").create_array("a", shape=(steps, STEP), chunks=(1, STEP), dtype="u1", **RAW)
    offsets = np.arange(steps, dtype="u8") * STEP
    session.store.set_virtual_refs_arr("a", (steps, 1), [url] * steps, offsets, np.full(steps, STEP, "u8"))
    session.commit("made")
    array = zarr.open_array(f"refshard::{tmp_path}/many", path="a", mode="r")
    np.testing.assert_array_equal(array[:, 5], np.frombuffer(make_content(steps), "u1")[5::STEP])
    assert len(http_server.requests("/steps")) <= 2, "icechunk makes 3000"


def test_remote_options_apply_to_virtual_chunks(tmp_path: Path, http_server: RangeServer) -> None:
    create_virtual(tmp_path, http_server.put("/a.bin", make_content()))
    token = {"headers": {"authorization": "Bearer abc"}}
    for fs in (
        RefShardFileSystem(str(tmp_path / "virtual"), remote_options=token),
        RefShardFileSystem(str(tmp_path / "virtual"), remote_protocol="http", remote_options=token),
    ):
        assert fs.cat_file("a/c/7/0") == make_content()[7 * STEP :]
        assert http_server.requests("/a.bin")[-1].headers["authorization"] == "Bearer abc"


def test_target_options_apply_to_the_repository(mixed: tuple[Any, str]) -> None:
    repository, url = mixed
    with RangeServer(directory=Path(url).parent) as server:
        options = {"headers": {"authorization": "Bearer abc"}}
        fs = RefShardFileSystem(f"icechunk::{server.url}/mixed", target_options=options)
        assert fs.cat_file("deep/grid/c/0/0") == read_by_icechunk(repository)["deep/grid/c/0/0"]
        assert {request.headers["authorization"] for request in server.requests()} == {"Bearer abc"}


def test_pickled_and_asynchronous_filesystems_read_the_same(mixed: tuple[Any, str]) -> None:
    repository, url = mixed
    expected = read_by_icechunk(repository, tag="first")["small/c/1"]
    fs = RefShardFileSystem(url, tag="first")
    assert pickle.loads(pickle.dumps(fs)).cat_file("small/c/1") == expected

    async def read() -> bytes:
        found: bytes = await RefShardFileSystem(url, tag="first", asynchronous=True)._cat_file("small/c/1")
        return found

    assert asyncio.run(read()) == expected


@pytest.mark.parametrize("check", ["etag", "last_modified"])
def test_rewritten_target_is_an_error(check: str, tmp_path: Path, http_server: RangeServer) -> None:
    url = http_server.put("/a.bin", make_content(), modified=1e9)
    etag = fsspec.filesystem("http").info(url)["ETag"].strip('"')
    checksum = etag if check == "etag" else datetime.fromtimestamp(1e9, UTC)
    create_virtual(tmp_path, url, checksum=checksum)
    folder = str(tmp_path / "virtual")
    assert RefShardFileSystem(folder).cat_file("a/c/1/0") == make_content()[STEP : 2 * STEP]
    http_server.put("/a.bin", make_content()[::-1], modified=1e9 + 60)
    with pytest.raises(TargetChanged, match="not the object that the manifest was made for"):
        RefShardFileSystem(folder).cat_file("a/c/1/0")


def test_rewritten_local_target_is_detected_by_its_etag(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(make_content())
    found = target.stat()
    create_virtual(
        tmp_path, f"file://{target}", checksum=f"{found.st_ino:x}-{found.st_mtime_ns // 1000:x}-{found.st_size:x}"
    )
    folder = str(tmp_path / "virtual")
    assert RefShardFileSystem(folder).cat_file("a/c/1/0") == make_content()[STEP : 2 * STEP]
    target.write_bytes(make_content()[::-1])
    os.utime(target, ns=(found.st_mtime_ns + 1_000_000, found.st_mtime_ns + 1_000_000))
    with pytest.raises(TargetChanged):
        RefShardFileSystem(folder).cat_file("a/c/1/0")


def test_target_with_two_versions_cannot_be_saved_as_one(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(make_content())
    found = target.stat()
    etag, later = (f"{found.st_ino:x}-{found.st_mtime_ns // 1000 + n:x}-{found.st_size:x}" for n in (0, 5_000_000))
    repository = create_virtual(tmp_path, f"file://{target}", checksum=etag)
    fs = RefShardFileSystem(str(tmp_path / "virtual"))
    fs.save(str(tmp_path / "one.json"))
    assert RefShardFileSystem(str(tmp_path / "one.json")).cat_file("a/c/1/0") == make_content()[STEP : 2 * STEP]
    session = repository.writable_session("main")
    session.store.set_virtual_ref("a/c/0/0", f"file://{target}", offset=0, length=STEP, checksum=later)
    session.commit("another")
    with pytest.raises(ManifestError, match="two versions"):
        RefShardFileSystem(str(tmp_path / "virtual")).save(str(tmp_path / "two.json"))


def test_changed_url_of_a_container_is_used(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "new" / "a.bin").write_bytes(make_content())
    old, new = (f"file://{tmp_path}/{name}/" for name in ("old", "new"))
    repository = create(tmp_path / "moved", configure(old, names={old: "data"}))
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="w").create_array("a", shape=(8,), chunks=(8,), dtype="u1", **RAW)
    session.store.set_virtual_ref("a/c/0", "vcc://data/a.bin", offset=8, length=8)
    session.commit("made")
    folder = str(tmp_path / "moved")
    with pytest.raises(RefShardError, match=r"old/a\.bin"):
        RefShardFileSystem(folder).cat_file("a/c/0")
    renamed = configure(new, names={new: "data"})
    icechunk.Repository.open(icechunk.local_filesystem_storage(folder), renamed).save_config()
    assert RefShardFileSystem(folder).cat_file("a/c/0") == make_content()[8:16]
    icechunk.Repository.open(
        icechunk.local_filesystem_storage(folder), configure(new, names={new: "other"})
    ).save_config()
    with pytest.raises(ManifestError, match="no virtual chunk container 'data'.*'other'"):
        RefShardFileSystem(folder).cat_file("a/c/0")


@pytest.mark.parametrize("format", ["json", "parquet", "chunk-manifest", "icechunk"])
def test_saved_set_has_the_chunks_that_icechunk_reads(format: str, mixed: tuple[Any, str], tmp_path: Path) -> None:
    repository, url = mixed
    folder = str(tmp_path / "saved")
    copied = RefShardFileSystem(url, shards="whole").save(folder, format)
    assert copied is None or (format == "icechunk" and "12 chunks" in copied), "inline chunks"
    saved = RefShardFileSystem(folder, shards="whole")
    expected = read_by_icechunk(repository)
    chunks = [key for key in expected if not key.endswith("zarr.json")]
    assert saved.cat(chunks) == {key: expected[key] for key in chunks}


@pytest.mark.parametrize("format", ["json", "parquet", "chunk-manifest", "icechunk"])
def test_save_keeps_versions_or_is_refused(format: str, tmp_path: Path, http_server: RangeServer) -> None:
    url = http_server.put("/a.bin", make_content(), modified=1e9)
    create_virtual(tmp_path, url, checksum=datetime.fromtimestamp(1e9, UTC))
    fs = RefShardFileSystem(str(tmp_path / "virtual"))
    folder = str(tmp_path / "saved")
    if format in ("json", "parquet"):
        with pytest.raises(ManifestError, match="last_modified, which a reference set cannot hold"):
            fs.save(folder, format)
        return
    fs.save(folder, format)
    assert RefShardFileSystem(folder).cat_file("a/c/1/0") == make_content()[STEP : 2 * STEP]
    http_server.put("/a.bin", make_content()[::-1], modified=1e9 + 60)
    with pytest.raises(TargetChanged):
        RefShardFileSystem(folder).cat_file("a/c/1/0")


@pytest.fixture
def parts(tmp_path: Path) -> list[str]:
    """Two repositories whose tag ``first`` has other values than the branch ``main``."""
    urls = []
    for part in range(2):
        repository = create(tmp_path / f"{part}.icechunk")
        for add in (0, 100):
            session = repository.writable_session("main")
            air = np.arange(12.0).reshape(3, 4) + part + add
            ds = xr.Dataset({"air": (("time", "x"), air)}, {"time": np.arange(3) + 3 * part})
            ds.to_zarr(session.store, zarr_format=3, consolidated=False, mode="w", encoding={"air": {"chunks": (1, 4)}})
            last = session.commit("made")
            if not add:
                repository.create_tag("first", last)
        urls.append(str(tmp_path / f"{part}.icechunk"))
    return urls


@pytest.mark.parametrize("lazy", [False, True])
def test_repositories_are_joined(lazy: bool, parts: list[str], tmp_path: Path) -> None:
    for urls in (parts, [f"icechunk::{url}" for url in parts]):
        folder = str(tmp_path / "joined.json")
        refshard_fs.concat(urls, "time", lazy=lazy).save(folder, overwrite=True)
        opened = xr.open_dataset(folder, engine="refshard")
        assert opened["air"].values.sum() == 2 * 66 + 12 + 24 * 100
        assert opened["time"].values.tolist() == [*range(6)]


def test_concat_with_tag_makes_references_and_refuses_lazy(parts: list[str]) -> None:
    joined = refshard_fs.concat(parts, "time", tag="first")
    assert xr.open_dataset(joined, engine="refshard")["air"].values.sum() == 2 * 66 + 12
    with pytest.raises(TypeError, match="without tag='first': leave tag= out, or join without lazy=True"):
        refshard_fs.concat(parts, "time", tag="first", lazy=True)


def test_repository_is_checked_and_drawn(parts: list[str]) -> None:
    fs = RefShardFileSystem(parts[0])
    report = refshard_fs.check(fs, "read")
    assert not report.findings
    assert report.chunks == 4
    assert [(array.name, array.present) for array in summarise(fs).arrays] == [("air", 3), ("time", 1)]
    assert "air" in fs.visualize()._repr_svg_()


def test_references_of_virtualizarr_are_read(tmp_path: Path) -> None:
    vz = pytest.importorskip("virtualizarr")
    pytest.importorskip("h5netcdf")
    obstore = pytest.importorskip("obstore")
    from obspec_utils.registry import ObjectStoreRegistry

    ds = xr.Dataset({"air": (("time", "x"), np.arange(40.0).reshape(8, 5))}, {"time": np.arange(8)})
    ds.to_netcdf(tmp_path / "a.nc", engine="h5netcdf", encoding={"air": {"chunksizes": (2, 5), "zlib": True}})
    registry = ObjectStoreRegistry({"file://": obstore.store.LocalStore()})
    vds = vz.open_virtual_dataset(f"file://{tmp_path}/a.nc", registry=registry, parser=vz.parsers.HDFParser())
    session = create(tmp_path / "made", configure(f"file://{tmp_path}/")).writable_session("main")
    vds.vz.to_icechunk(session.store, last_updated_at=datetime.now(UTC) + timedelta(seconds=2))
    session.commit("made")
    xr.testing.assert_identical(xr.open_dataset(str(tmp_path / "made"), engine="refshard").load(), ds)
    os.utime(tmp_path / "a.nc", (2e9, 2e9))
    with pytest.raises(TargetChanged):
        xr.open_dataset(str(tmp_path / "made"), engine="refshard").load()


@pytest.mark.parametrize("folder", ["snapshots", "manifests", "repo"])
def test_damaged_object_is_an_error_that_names_it(folder: str, tmp_path: Path, http_server: RangeServer) -> None:
    repository = create_virtual(tmp_path, http_server.put("/a.bin", make_content()))
    path = tmp_path / "virtual" / folder
    if folder == "snapshots":
        path /= repository.lookup_branch("main")
    for file in path.iterdir() if path.is_dir() else [path]:
        data = file.read_bytes()
        for damaged in (data[:20], data[: len(data) // 2], data[:45] + bytes(len(data) - 45), b"x" + data[1:]):
            file.write_bytes(damaged)
            with pytest.raises(RefShardError, match=folder):
                RefShardFileSystem(str(tmp_path / "virtual")).cat_file("a/c/0/0")
        file.write_bytes(data)
    assert RefShardFileSystem(str(tmp_path / "virtual")).cat_file("a/c/0/0") == make_content()[:STEP]


def test_missing_object_is_an_error_and_not_a_missing_key(mixed: tuple[Any, str]) -> None:
    _, url = mixed
    shutil.rmtree(Path(url) / "chunks")
    with pytest.raises(refshard_fs.ReferenceNotReachable):
        RefShardFileSystem(url).cat_file("deep/grid/c/0/0")
    shutil.rmtree(Path(url) / "manifests")
    with pytest.raises(RefShardError):
        RefShardFileSystem(url).cat_file("small/c/0")
    shutil.rmtree(Path(url) / "snapshots")
    with pytest.raises(RefShardError):
        RefShardFileSystem(url).cat_file("small/c/0")


def test_commit_of_invalid_metadata_is_refused(mixed: tuple[Any, str]) -> None:
    fs = RefShardFileSystem(mixed[1], mode="a")
    fs.pipe_file("new/zarr.json", b"{}")
    with pytest.raises(RefShardError, match="'new/zarr.json' has node_type=None: expected 'array' or 'group'"):
        fs.commit()
    fs.discard()
