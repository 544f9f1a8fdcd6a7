"""A file that is compressed as a whole is decompressed once, within a limit, and read like the file inside."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from refshard_fs import RefShardFileSystem, TargetChanged, concat
from refshard_fs.core import compression
from refshard_fs.core.compression import import_zstd
from refshard_fs.errors import ManifestError, TargetNotAllowed
from refshard_fs.security.policy import DECOMPRESS
from refshard_fs.targets import decompressed
from tests.servers.http import RangeServer
from tests.support.target_reading import Reader

DATA = np.random.default_rng(0).bytes(1 << 18)
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: bytes(import_zstd().compress(data)),
    "streams": lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:]) + bytes(7),
}


def netcdf(start: int = 0, engine: Any = "h5netcdf") -> bytes:
    ds = xr.Dataset({"z": (("time", "x"), np.arange(12.0).reshape(4, 3) + start)}, {"time": np.arange(4) + start})
    with tempfile.TemporaryDirectory() as folder:
        ds.to_netcdf(f"{folder}/z.nc", engine=engine)  # to a file, because older xarray cannot return bytes here
        return Path(folder, "z.nc").read_bytes()


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (compression, decompressed):
        monkeypatch.setattr(module, "MOST_DECOMPRESSED", 1 << 17)


@pytest.mark.parametrize("codec", PACKERS)
@pytest.mark.evidence(id="T24")
def test_ranges_refer_to_the_decompressed_file(http_server: RangeServer, codec: str) -> None:
    url = DECOMPRESS + http_server.put("/a", PACKERS[codec](DATA))
    reader = Reader()
    for start, stop in [(0, 10), (70_000, 80_000), (-7, None), (0, None), (9, 9)]:
        assert reader.read(url, start, stop) == DATA[start:stop]
    assert reader.get_facts(url).size == len(DATA)
    methods = [request.method for request in http_server.requests()]
    assert methods == ["GET", *["HEAD"] * 5], "each later call opens the file again, and requests only its version"


def test_replaced_compressed_file_is_noticed(http_server: RangeServer) -> None:
    url = DECOMPRESS + http_server.put("/a", gzip.compress(DATA))
    reader = Reader()
    reader.read(url, 0, 5)
    http_server.put("/a", gzip.compress(DATA[::-1]))
    with pytest.raises(TargetChanged):
        reader.run(url, lambda opened, path: opened.ask_version(path))
    assert Reader().read(url, 0, 5) == DATA[::-1][:5]


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("size", [1 << 18, 100 << 20], ids=["long", "bomb"])
def test_file_beyond_the_limit_is_refused_with_advice(http_server: RangeServer, size: int) -> None:
    inside = netcdf() + (DATA if size == len(DATA) else bytes(size))
    packed = gzip.compress(inside, 9 if size > len(DATA) else 0)
    for source in (http_server.put("/a.nc.gz", packed), packed):
        with pytest.raises(ManifestError, match=r"more than 0 MiB, the most .* in memory. Decompress it .gunzip"):
            RefShardFileSystem(source).ls("")


@pytest.mark.parametrize("at", [-1, -8, 200])
def test_flipped_bit_of_a_gzip_file_is_an_error(at: int) -> None:
    packed = bytearray(gzip.compress(netcdf()))
    packed[at] ^= 1
    with pytest.raises(ManifestError, match="damaged: "):
        RefShardFileSystem(bytes(packed)).ls("")


@pytest.mark.parametrize("engine", ["h5netcdf", "scipy"])
def test_compressed_file_opens_like_a_plain_one(http_server: RangeServer, engine: Any) -> None:
    pytest.importorskip(engine)
    plain = netcdf(engine=engine)
    expected = RefShardFileSystem(plain)
    for source in (http_server.put("/a.nc.gz", gzip.compress(plain)), gzip.compress(plain)):
        fs = pickle.loads(pickle.dumps(RefShardFileSystem(source)))
        assert fs.cat(fs.find("")) == expected.cat(expected.find(""))
    assert len(http_server.requests(method="GET")) == 2, "the first bytes, and the file"


def test_files_are_joined_and_saved(http_server: RangeServer, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.nc.gz").write_bytes(gzip.compress(netcdf(number * 4)))
    urls = [http_server.put(f"/{number}.nc.gz", gzip.compress(netcdf(number * 4))) for number in range(3)]
    join: Any
    for join in (concat, partial(concat, lazy=True)):
        for sources in (str(tmp_path / "*.nc.gz"), urls):
            joined = join(sources, dim="time")
            with xr.open_dataset(joined, engine="refshard") as ds:
                assert ds.z[:, 0].values.tolist() == [3.0 * (n % 4) + n // 4 * 4 for n in range(12)]
            assert "only refshard can read" in joined.save(str(tmp_path / "joined.json"), overwrite=True)
    fs = RefShardFileSystem(str(tmp_path / "1.nc.gz"))
    fs.save(str(tmp_path / "one.json"))  # chunks are copied, because other packages cannot decompress the file
    assert "decompress" not in (tmp_path / "one.json").read_text()
    assert RefShardFileSystem(str(tmp_path / "one.json")).cat("z/0.0") == fs.cat("z/0.0")


def test_remote_set_decompresses_only_its_own_files(http_server: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "secret.gz").write_bytes(gzip.compress(DATA))
    own = http_server.put("/a.gz", gzip.compress(DATA))
    twice = DECOMPRESS * 2000 + own
    refs = {"a": [DECOMPRESS + own, 3, 4], "b": [f"{DECOMPRESS}{tmp_path}/secret.gz", 3, 4], "c": [twice, 3, 4]}
    fs = RefShardFileSystem(http_server.put("/refs.json", json.dumps({"version": 1, "refs": refs}).encode()))
    assert fs.cat("a") == DATA[3:7]
    for key in ("b", "c"):
        with pytest.raises(TargetNotAllowed):
            fs.cat(key)
