"""Join chunks from sections of the pieces' chunks."""

from __future__ import annotations

import json
import pickle
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.uneven_files import CUTS, write_year

xr = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")


def test_sections_of_chunks_without_a_codec_are_ranges(tmp_path: Path) -> None:
    files = write_year(tmp_path, CUTS["a chunk a month"])
    fs = RefShardFileSystem(refshard_fs.concat(files, "time", lazy=True, chunks={"time": 1}))
    (planned,) = fs.plan(["v/33.0.0"])
    assert planned.url == files[1]
    assert (planned.stop or 0) - planned.start == 3 * 4 * 4


def test_chunk_of_too_many_sections_is_refused(tmp_path: Path) -> None:
    meta = {"zarr_format": 2, "shape": [9000], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
    part = {"v/.zarray": {**meta, "filters": None, "compressor": None}}
    (tmp_path / "part.json").write_text(json.dumps(part))
    document = {"refshard": "concat", "dim": "time", "axes": {"v": 0}, "chunks": {"v": [9000]}, "length": 9000}
    document["sets"] = [str(tmp_path / "part.json")]
    with pytest.raises(ManifestError, match="at most 4,096 chunks, got 9,000"):
        RefShardFileSystem(document).cat_file("v/0")


def test_memory_is_bounded_by_the_joined_chunks(tmp_path: Path) -> None:
    meta = {"zarr_format": 2, "dtype": "<f8", "order": "C", "fill_value": 0, "filters": None}
    for number, days in enumerate((31, 29, 31, 30, 31, 30) * 2):
        size = days * 8192 * 8
        part = {"v/.zarray": {**meta, "shape": [days, 8192], "chunks": [days, 8192], "compressor": {"id": "zlib"}}}
        part |= {"v/.zattrs": {"_ARRAY_DIMENSIONS": ["time", "x"]}, "v/0.0": [str(tmp_path / f"{number}.bin")]}
        (tmp_path / f"{number}.json").write_text(json.dumps(part))
        (tmp_path / f"{number}.bin").write_bytes(zlib.compress(bytes(size), 1))
    cube = refshard_fs.concat(f"{tmp_path}/*.json", "time", lazy=True)
    fs = RefShardFileSystem(cube, skip_instance_cache=True)
    month = 31 * 8192 * 8
    fs.cat_file("v/0.0")
    tracemalloc.start()
    for number in range(12):
        assert len(fs.cat_file(f"v/{number}.0")) == month
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 7 * month  # two decoded months, their sections and the chunk; twelve months were read


def test_chunk_opens_only_its_own_files(tmp_path: Path, http_server: RangeServer) -> None:
    files = write_year(tmp_path, CUTS["a chunk a month"], compression="gzip")
    urls = [http_server.put(f"y/{i}.nc", Path(file).read_bytes()) for i, file in enumerate(files)]
    cube = refshard_fs.concat(urls, "time", lazy=True, allow="any")
    sent = pickle.loads(pickle.dumps(cube))  # without the bytes of files that joining has read
    fs = RefShardFileSystem(sent, allow="any", skip_instance_cache=True)
    fs.cat_file("v/0.0.0")
    http_server.log.clear()
    data = np.frombuffer(fs.cat_file("v/2.0.0"), "<f4")  # days 62 to 92: of March, and two of April
    assert data.tolist() == list(range(62 * 12, 93 * 12))
    assert {request.path for request in http_server.log.requests()} == {"/y/2.nc", "/y/3.nc"}
