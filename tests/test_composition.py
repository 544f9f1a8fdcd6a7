"""Indexes within indexes: manifests of ranges in archives, archives of shards, nested shards, over HTTP."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from tests.servers.http import RangeServer

zarr = pytest.importorskip("zarr")
if zarr.__version__.startswith("2."):
    pytest.skip("zarr 2 writes and reads no shards", allow_module_level=True)

VALUES = np.random.default_rng(5).integers(0, 9999, (96, 64)).astype("int32")
INNER = (8, 8)


def write_group(folder: Path) -> None:
    """Write a group like OME-Zarr's: two scales, the first with shards within shards, the second with shards."""
    from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec

    root = zarr.open_group(folder, mode="w", attributes={"ome": {"version": "0.5"}})
    nested = ShardingCodec(
        chunk_shape=(16, 32), codecs=[ShardingCodec(chunk_shape=INNER, codecs=[BytesCodec(), ZstdCodec()])]
    )
    fine = root.create_array(
        "0", shape=VALUES.shape, chunks=(48, 64), dtype="int32", serializer=nested, filters=None, compressors=None
    )
    fine[...] = VALUES
    coarse = root.create_array("1", shape=(48, 32), shards=(24, 32), chunks=INNER, dtype="int32")
    coarse[...] = VALUES[::2, ::2]


def make_zip(folder: Path, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            archive.write(path, str(path.relative_to(folder)))
    return buffer.getvalue()


def open_fs(fo: Any) -> RefShardFileSystem:
    return RefShardFileSystem(fo, asynchronous=True, skip_instance_cache=True)


def check_values(fs: RefShardFileSystem) -> None:
    store = zarr.storage.FsspecStore(fs, path="")
    group = zarr.open_group(store, mode="r")
    fine, coarse = group["0"], group["1"]
    assert (fine.chunks, fine.shards, coarse.chunks, coarse.shards) == (INNER, None, INNER, None)
    assert np.array_equal(fine[...], VALUES)
    assert np.array_equal(coarse[...], VALUES[::2, ::2])
    assert np.array_equal(fine[17:19, 30:50], VALUES[17:19, 30:50])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_group(tmp_path / "in")
    return tmp_path / "in"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_remote_archive_with_shards_is_read(method: int, folder: Path, http_server: RangeServer) -> None:
    url = http_server.put("/image.ome.zarr.zip", make_zip(folder, method))
    check_values(open_fs(url))


def test_manifest_in_an_archive_of_nested_shards_is_read(folder: Path, http_server: RangeServer) -> None:
    data = make_zip(folder)
    url = http_server.put("/image.zip", data)
    refs = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            start = member.header_offset + 30 + len(member.filename)
            refs[member.filename] = [url, start, member.file_size]
    check_values(open_fs(refs))


@pytest.mark.usefixtures("large_files")
def test_zip_directory_and_shard_indexes_are_read_once(folder: Path, http_server: RangeServer) -> None:
    data = make_zip(folder)
    fs = RefShardFileSystem(http_server.put("/image.zip", data), max_gap=0, skip_instance_cache=True)
    assert fs.cat_file("0/zarr.json")
    asked = [r for r in http_server.requests() if r.method == "GET"]
    assert len(asked) == 3, "its first 64 KiB with the directory, the metadata of the root and of the array"
    http_server.clear()
    fs.cat_file("0/c/0/0")
    assert len(http_server.requests()) == 3, "the shard's index, that of the shard in it, the chunk"
    http_server.clear()
    fs.cat_file("0/c/0/1")
    assert len(http_server.requests()) == 1
    http_server.clear()
    column = fs.cat([f"0/c/{i}/0" for i in range(6)])
    assert len(column) == 6
    inner = {(r.start, r.stop) for r in http_server.requests()}
    assert len(http_server.requests()) == len(inner) <= 2 + 6


def test_chunks_of_a_shard_in_an_archive_are_listed(folder: Path, http_server: RangeServer) -> None:
    fs = RefShardFileSystem(http_server.put("/image.zip", make_zip(folder)), skip_instance_cache=True)
    assert len(fs.find("1/c")) == 6 * 4
    assert len(fs.find("0/c")) == 12 * 8
    assert fs.ls("", detail=False) == ["0", "1", "zarr.json"]


def test_dask_and_xarray_see_inner_chunks_of_an_archive(folder: Path, http_server: RangeServer) -> None:
    xarray = pytest.importorskip("xarray")
    zarr.open_array(folder / "0").attrs["note"] = "as it is"
    for name in ("0", "1"):
        path = folder / name / "zarr.json"
        path.write_text(
            path.read_text().replace('"storage_transformers"', '"dimension_names": ["y", "x"], "storage_transformers"')
        )
    url = http_server.put("/named.zip", make_zip(folder))
    options = {"fo": url, "skip_instance_cache": True}
    found = xarray.open_zarr(
        "refshard://", storage_options=options, consolidated=False, chunks={}, drop_variables=["1"]
    )
    assert found["0"].chunks == ((8,) * 12, (8,) * 8)
    assert np.array_equal(found["0"].values, VALUES)
