"""Chunks are found through several levels over HTTP: manifest, archive, shard, nested shard."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.servers.http import RangeServer
from tests.support.shard_writers import IS_ZARR_2, make_sparse, open_array, open_source

if IS_ZARR_2:
    pytest.skip("zarr 2 writes no shards of version 3", allow_module_level=True)

import zarr
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec

DATA = make_sparse((60, 80), 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An array of shards of shards, written as a folder."""
    inner = ShardingCodec(chunk_shape=(5, 5), codecs=[BytesCodec(endian="little"), ZstdCodec()], index_location="start")
    written = zarr.create(
        shape=DATA.shape,
        chunks=(20, 20),
        dtype=DATA.dtype,
        store=str(tmp_path / "a"),
        zarr_format=3,
        codecs=[ShardingCodec(chunk_shape=(10, 10), codecs=[inner])],
        fill_value=0,
    )
    written[...] = DATA
    return tmp_path


def archive(folder: Path, compression: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as z:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                z.write(file, file.relative_to(folder))
    return out.getvalue()


def ranges_of_members(content: bytes, url: str) -> dict[str, Any]:
    """Return references to the bytes of the stored members."""
    refs = {}
    with zipfile.ZipFile(io.BytesIO(content)) as z:
        for info in z.infolist():
            head = content[info.header_offset : info.header_offset + 30]
            start = (
                info.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
            )
            refs[info.filename] = [url, start, info.file_size]
    return refs


def test_manifest_of_nested_shards_in_a_zip_is_read(folder: Path, http_server: RangeServer) -> None:
    content = archive(folder, zipfile.ZIP_STORED)
    url = http_server.put("/a.zip", content)
    manifest = http_server.put("/m.json", json.dumps(ranges_of_members(content, url)).encode())
    seen = open_array(manifest, "a")
    assert seen.chunks == (5, 5)
    http_server.clear()
    assert np.array_equal(seen[...], DATA)
    assert len(http_server.requests()) < 60  # for 192 chunks in 12 shards with 60 indexes


def test_one_chunk_costs_one_request_a_level(folder: Path, http_server: RangeServer) -> None:
    content = archive(folder, zipfile.ZIP_STORED)
    url = http_server.put("/a.zip", content)
    fs = open_source(ranges_of_members(content, url), readahead=0)
    fs.cat_file("a/zarr.json")
    http_server.clear()
    fs.cat_file("a/c/11/15")
    assert len(http_server.requests()) == 3  # the index of the shard, the index of the inner shard, the chunk
    fs.cat_file("a/c/10/15")
    assert len(http_server.requests()) == 4


def test_many_chunks_cost_one_request_a_level(folder: Path) -> None:
    content = archive(folder, zipfile.ZIP_STORED)
    with RangeServer({"/a.zip": content}, latency=0.01) as server:
        fs = open_source(ranges_of_members(content, f"{server.url}/a.zip"))
        fs.cat_file("a/zarr.json")
        server.clear()
        keys = [f"a/c/{i}/{j}" for i in range(12) for j in range(16)]
        found = fs.cat(keys, on_error="omit")
        assert set(found) == {k for k in fs.find("a/c") if k in keys}
        assert len(server.requests()) == 3  # one each for the outer indexes, the inner indexes, and the 192 chunks


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_nested_shards_in_a_zip_are_read(folder: Path, http_server: RangeServer, compression: int) -> None:
    url = http_server.put("/a.zip", archive(folder, compression))
    seen = open_array(url, "a")
    assert seen.chunks == (5, 5)
    assert np.array_equal(seen[...], DATA)


def test_shards_are_listed_alike_in_folder_references_and_zip(folder: Path) -> None:
    content = archive(folder, zipfile.ZIP_STORED)
    (folder / "a.zip").write_bytes(content)
    plain = open_source(folder, format="zarr-hierarchy").find("a", detail=True)
    refs = open_source(ranges_of_members(content, f"file://{folder}/a.zip")).find("a", detail=True)
    zipped = open_source(folder / "a.zip").find("a", detail=True)
    assert plain == refs == zipped
    assert len(plain) == 1 + np.count_nonzero(DATA.reshape(12, 5, 16, 5).any(axis=(1, 3)))
