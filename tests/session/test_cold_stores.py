"""Opening a zarr store for the first time: its requests, and no outdated metadata."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import ManifestError, NotListable, RefShardFileSystem, snapshot
from refshard_fs.tools.info import summarise
from tests.servers.http import RangeServer
from tests.servers.proxy import CountingProxy

np = pytest.importorskip("numpy")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3")
fsspec = pytest.importorskip("fsspec")

from refshard_fs.xarray_backend import RefShardBackend  # noqa: E402  # xarray may be absent

VALUES = np.arange(8 * 4 * 6, dtype="f4").reshape(8, 4, 6) + 1
SHARDS = {"chunks": (1, 4, 6), "shards": (4, 4, 6)}
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "v2": (2, {"chunks": (1, 4, 6)}),
    "v3": (3, {"chunks": (1, 4, 6)}),
    "shards": (3, SHARDS),
}


def put(group: Any, name: str, values: Any, dims: list[str], **how: Any) -> None:
    version = group.metadata.zarr_format
    named: Any = {"dimension_names": dims} if version == 3 else {"attributes": {"_ARRAY_DIMENSIONS": dims}}
    group.create_array(name, shape=values.shape, dtype=values.dtype, overwrite=True, **named, **how)[...] = values


def write(path: Path, kind: str) -> Any:
    """Write a consolidated store with two variables and three coordinates."""
    version, how = KINDS[kind]
    group = zarr.open_group(path, mode="w", zarr_format=version)
    for name in ("v", "w"):
        put(group, name, VALUES, ["t", "y", "x"], **how)
    for name, size in zip("tyx", VALUES.shape, strict=True):
        put(group, name, np.arange(size) + 1, [name], chunks=(size,))
    consolidate(group)
    return group


def consolidate(group: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the specification of version 3 lacks consolidated metadata
        zarr.consolidate_metadata(group.store)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    with RangeServer(directory=tmp_path) as started:
        yield started


def open_by_engine(url: str, **options: Any) -> Any:
    options["skip_instance_cache"] = True
    return xr.open_dataset(url, engine=RefShardBackend, mask_and_scale=False, storage_options=options)["v"]


def open_by_filesystem(url: str, **options: Any) -> Any:
    options |= {"fo": url, "skip_instance_cache": True}
    return xr.open_zarr("refshard://", storage_options=options, chunks=None, mask_and_scale=False)["v"]


def open_by_mapper(url: str, **options: Any) -> Any:
    fs = RefShardFileSystem(url, skip_instance_cache=True, **options)
    return zarr.open_group(fs.get_mapper(), mode="r")["v"]


def read(found: Any, kind: str) -> None:
    part = slice(4, 8) if kind == "shards" else slice(5, 6)
    np.testing.assert_array_equal(np.asarray(found[part]), VALUES[part])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("open_", [open_by_engine, open_by_filesystem, open_by_mapper])
def test_cold_store_costs_at_most_one_request_more_than_zarr(
    open_: Callable[[str], Any], kind: str, tmp_path: Path, server: RangeServer
) -> None:
    """xarray's zarr engine requests four documents of the root, three coordinates, and a chunk or a shard."""
    write(tmp_path / "s.zarr", kind)
    read(open_(f"{server.url}/s.zarr"), kind)
    assert len(server.requests()) <= (4 + 3 if open_ is not open_by_mapper else 4) + 1 + 1


@pytest.mark.parametrize("kind", KINDS)
def test_array_below_a_cold_root_costs_one_more_than_zarr(kind: str, tmp_path: Path, server: RangeServer) -> None:
    """The root's document may hold commits; it is requested beside the three documents that zarr requests."""
    write(tmp_path / "s.zarr", kind)
    found = zarr.open_array(f"refshard::{server.url}/s.zarr", path="v", mode="r")
    assert sorted(request.path for request in server.requests()) == [
        "/s.zarr/v/.zarray", "/s.zarr/v/.zattrs", "/s.zarr/v/zarr.json", "/s.zarr/zarr.json"
    ]  # fmt: skip
    read(found, kind)
    assert zarr.open_group(f"refshard::{server.url}/s.zarr", mode="r")["t"][0] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_array_at_a_cold_root_costs_two_more_than_zarr(kind: str, tmp_path: Path, server: RangeServer) -> None:
    write(tmp_path / "s.zarr", kind)
    found = zarr.open_array(f"refshard::{server.url}/s.zarr/v", mode="r")
    assert len(server.requests()) == 3 + 2
    read(found, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_array_of_a_cold_store_is_missing(kind: str, tmp_path: Path, server: RangeServer) -> None:
    write(tmp_path / "s.zarr", kind)
    with pytest.raises(FileNotFoundError):
        zarr.open_array(f"refshard::{server.url}/s.zarr", path="none", mode="r")
    fs = RefShardFileSystem(f"{server.url}/s.zarr", skip_instance_cache=True)
    assert not fs.exists("none/.zarray")
    with pytest.raises((FileNotFoundError, ValueError)):
        fs.cat_file("../s.zarr/.zgroup")
    assert all(request.path.startswith("/s.zarr/") for request in server.requests())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("open_", [open_by_engine, open_by_mapper])
def test_cold_store_on_s3_costs_no_listing(
    open_: Callable[..., Any], kind: str, tmp_path: Path, s3_server: Any, s3_proxy: CountingProxy
) -> None:
    write(tmp_path, kind)
    s3_server.create_bucket("cold")
    for file in tmp_path.rglob("*"):
        if file.is_file():
            s3_server.put(f"cold/{kind}.zarr/{file.relative_to(tmp_path)}", file.read_bytes())
    options = {"key": s3_server.key, "secret": s3_server.secret, "client_kwargs": {"endpoint_url": s3_proxy.url}}
    read(open_(f"s3://cold/{kind}.zarr", target_options=options), kind)
    assert not [request for request in s3_proxy.requests() if "list-type" in request.query]
    assert len(s3_proxy.requests()) <= 4 + 3 + 1 + 1


def test_array_metadata_are_requested_beside_the_first_chunk(tmp_path: Path, server: RangeServer) -> None:
    write(tmp_path / "s.zarr", "v3")
    found = open_by_engine(f"{server.url}/s.zarr")
    server.clear()
    server.latency = 0.05
    read(found, "v3")
    assert [request.round for request in server.requests()] == [1, 1]
    server.clear()
    read(found, "v3")  # the array's metadata have been read
    assert [request.path for request in server.requests()] == ["/s.zarr/v/c/5/0/0"]


@pytest.mark.parametrize(("before", "is_local"), [("v2", True), ("v3", False), ("shards", False), ("shards", True)])
@pytest.mark.parametrize(
    "after", [SHARDS, {"chunks": (2, 2, 6), "shards": (4, 4, 6)}, {"chunks": (2, 2, 6)}, {"chunks": (8, 4, 6)}]
)
def test_array_unlike_consolidated_metadata_is_right_or_an_error(
    before: str, after: Any, is_local: bool, tmp_path: Path, server: RangeServer
) -> None:
    """The consolidated metadata still describe the previous array, which may have the same chunks in other shards."""
    if before == "v2" and "shards" in after:
        pytest.skip("zarr writes no shards in version 2")
    group = write(tmp_path / "s.zarr", before)
    put(group, "v", VALUES, ["t", "y", "x"], **after)
    fo = str(tmp_path / "s.zarr") if is_local else f"{server.url}/s.zarr"
    options: Any = {"skip_instance_cache": True}
    found = xr.open_dataset(fo, engine=RefShardBackend, consolidated=True, storage_options=options)["v"]
    if after == SHARDS:  # the chunks are the same, in other places
        np.testing.assert_array_equal(found.values, VALUES)
        return
    for _ in range(2):
        with pytest.raises(ManifestError, match="consolidated=False"):
            found[5].values  # noqa: B018  # it is read
    if is_local:
        again = xr.open_dataset(fo, engine=RefShardBackend, consolidated=False, storage_options=options)
        np.testing.assert_array_equal(again["v"].values, VALUES)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("open_", [open_by_engine, open_by_filesystem, open_by_mapper])
def test_reopened_store_shows_appended_values(
    open_: Callable[[str], Any], version: int, tmp_path: Path, server: RangeServer
) -> None:
    def days(first: int, last: int) -> Any:
        return xr.Dataset({"v": ("t", np.arange(first, last))}, {"t": np.arange(first, last)})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        days(0, 4).to_zarr(tmp_path / "s.zarr", zarr_format=version, consolidated=True)
        fs = RefShardFileSystem(f"{server.url}/s.zarr")  # keeps its cached metadata until the end of this test
        assert fs.exists(".zmetadata" if version == 2 else "zarr.json")
        assert open_(f"{server.url}/s.zarr").shape == (4,)
        days(4, 8).to_zarr(tmp_path / "s.zarr", append_dim="t", consolidated=True)
    assert open_(f"{server.url}/s.zarr").shape == (8,)
    np.testing.assert_array_equal(np.asarray(open_(f"{server.url}/s.zarr")[:]), np.arange(8))


def test_root_document_is_read_again_after_invalidation(tmp_path: Path, server: RangeServer) -> None:
    group = write(tmp_path / "s.zarr", "v3")
    fs = RefShardFileSystem(f"{server.url}/s.zarr", skip_instance_cache=True)
    assert b"title" not in fs.cat_file("zarr.json")
    group.attrs["title"] = "changed"
    fs.invalidate_cache()
    assert b"title" in fs.cat_file("zarr.json")


@pytest.mark.parametrize("url", ["/s.zarr", "/s.zarr/", "/s", "/s/", "/s.v1", "/s.v1/"])
def test_directory_pages_are_not_taken_for_documents(url: str, tmp_path: Path) -> None:
    path = tmp_path / url.strip("/")
    path.mkdir()
    write(path, "v2")
    with RangeServer(directory=tmp_path, listing=True) as server:
        np.testing.assert_array_equal(open_by_engine(server.url + url).values, VALUES)


def write_image(path: Path, version: int) -> None:
    """Write an image of OME-Zarr with three resolutions and a label, without consolidated metadata."""
    image = zarr.open_group(path, mode="w", zarr_format=version)
    labels = image.create_group("labels")
    for group, names in ((image, "012"), (labels.create_group("cells"), "0")):
        attributes: Any = {"multiscales": [{"version": "0.4", "axes": [], "datasets": [{"path": n} for n in names]}]}
        group.attrs.update(attributes if version == 2 else {"ome": attributes})
        for name in names:
            put(group, name, VALUES, ["c", "y", "x"], chunks=(1, 4, 6))
    labels.attrs.update({"labels": ["cells"]} if version == 2 else {"ome": {"labels": ["cells"]}})


@pytest.mark.parametrize("version", [2, 3])
def test_image_on_a_web_server_is_listed_by_its_attributes(version: int, tmp_path: Path, server: RangeServer) -> None:
    write_image(tmp_path / "i.zarr", version)
    fs = RefShardFileSystem(f"{server.url}/i.zarr", skip_instance_cache=True)
    found = summarise(fs)
    assert [array.name for array in found.arrays] == ["0", "1", "2", "labels/cells/0"]
    assert found.groups == ("", "labels", "labels/cells")
    assert len(server.requests()) <= 16 * (4 + 3)
    names = {name.rpartition("/")[2] for name in fs.ls("", detail=False)}
    assert {"0", "1", "2", "labels"} <= names
    with pytest.raises(NotListable, match="chunks of the array '0'"):
        fs.ls("0")
    refs = snapshot(f"{server.url}/i.zarr", storage_options={"skip_instance_cache": True})
    again = zarr.open_group(RefShardFileSystem(refs).get_mapper(), mode="r")
    np.testing.assert_array_equal(again["labels/cells/0"][:], VALUES)


def test_attributes_that_name_missing_arrays_give_no_listing(tmp_path: Path, server: RangeServer) -> None:
    group = zarr.open_group(tmp_path / "i.zarr", mode="w", zarr_format=2)
    group.attrs["multiscales"] = [{"datasets": [{"path": "../0"}, {"path": "gone"}, {"path": 1}, None]}, None]
    put(group, "0", VALUES, ["c", "y", "x"], chunks=(1, 4, 6))
    fs = RefShardFileSystem(f"{server.url}/i.zarr", skip_instance_cache=True)
    with pytest.raises(NotListable, match="no consolidated metadata"):
        fs.ls("")
    assert all("/i.zarr/" in request.path for request in server.requests())


def test_each_path_requested_from_a_cold_store_is_logged(
    tmp_path: Path, server: RangeServer, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "s.zarr", "v2")
    with caplog.at_level(logging.DEBUG, "refshard_fs"):
        fs = RefShardFileSystem(f"{server.url}/s.zarr", skip_instance_cache=True)
        fs.cat_file("v/0.0.0")
        assert not fs.exists("v/9.9.9")
    logged = [record.getMessage() for record in caplog.records if record.name == "refshard_fs.targets"]
    assert server.requests()
    assert [request.path for request in server.requests() if not any(request.path in text for text in logged)] == []


def test_plan_after_a_read_merges_chunks_of_a_small_shard(tmp_path: Path, server: RangeServer) -> None:
    write(tmp_path / "s.zarr", "shards")
    fs = RefShardFileSystem(f"{server.url}/s.zarr", skip_instance_cache=True)
    keys = [f"v/c/{step}/0/0" for step in range(4)]
    fs.cat_file("zarr.json")  # its consolidated metadata are all that is known of the array
    first = fs.cat(keys)
    assert len([request for request in server.requests() if request.path.endswith("v/c/0/0/0")]) == 1
    assert [planned.url for planned in fs.plan(keys)] == [f"{server.url}/s.zarr/v/c/0/0/0"]
    assert fs.cat(keys) == first
