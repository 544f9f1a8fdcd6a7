"""Small sources are read whole by two requests, and later reads are answered from memory."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import h5netcdf
import numpy as np
import pytest
import xarray as xr
import zarr

from refshard_fs.core.format import HEAD
from refshard_fs.errors import TargetChanged
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading import fetch
from refshard_fs.targets.versioned import SMALL_FILE
from tests.servers.http import RangeServer

VALUES = np.random.default_rng(1).integers(0, 30000, (8, 60, 80)).astype("i2")


def _netcdf4(path: Path) -> None:
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"t": 8, "y": 60, "x": 80}
        for name in ("v", "w"):
            file.create_variable(name, ("t", "y", "x"), "i2", chunks=(1, 60, 80))[:] = VALUES
        file.create_variable("t", ("t",), "i4")[:] = np.arange(8)


def _netcdf3(path: Path) -> None:
    pytest.importorskip("scipy")
    xr.Dataset(dict.fromkeys("vw", (("t", "y", "x"), VALUES))).to_netcdf(path, engine="scipy", unlimited_dims="t")


def _tiff(path: Path) -> None:
    pytest.importorskip("tifffile").imwrite(path, np.concatenate([VALUES] * 2, 0)[:, None], tile=(64, 64))


def _fits(path: Path) -> None:
    fits = pytest.importorskip("astropy.io.fits")
    hdus = [fits.PrimaryHDU(), *(fits.ImageHDU(VALUES, name=name) for name in ("V", "W"))]
    fits.HDUList(hdus).writeto(path)


def _zip(path: Path) -> None:
    if zarr.__version__.startswith("2."):
        pytest.skip("zarr 3 writes it")
    with zarr.storage.ZipStore(path, mode="w", compression=zipfile.ZIP_STORED) as store:
        group = zarr.open_group(store, mode="w", zarr_format=2)
        for name in "vw":
            made = group.create_array(
                name,
                shape=VALUES.shape,
                chunks=(1, 60, 80),
                dtype="i2",
                compressors=None,
                attributes={"_ARRAY_DIMENSIONS": ["t", "y", "x"]},
            )
            made[:] = VALUES


KINDS = [_netcdf4, _netcdf3, _tiff, _fits, _zip]


@pytest.fixture(params=KINDS, ids=lambda write: write.__name__.strip("_"))
def write(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    found: Callable[[Path], None] = request.param
    return found


def test_small_file_is_opened_and_loaded_in_two_requests(
    write: Callable[[Path], None], http_server: RangeServer, tmp_path: Path
) -> None:
    write(tmp_path / "file")
    data = (tmp_path / "file").read_bytes()
    assert HEAD < len(data) < SMALL_FILE // 2
    url = http_server.put("/file", data)
    with xr.open_dataset(str(tmp_path / "file"), engine="refshard") as local:
        expected = local.load()
    http_server.clear()
    with xr.open_dataset(url, engine="refshard") as ds:
        loaded = ds.load()
    xr.testing.assert_identical(loaded, expected)
    assert len(http_server.requests()) == 2
    assert http_server.bytes_sent == len(data)


def test_file_beyond_the_small_limit_is_read_in_ranges(http_server: RangeServer, tmp_path: Path) -> None:
    path = tmp_path / "large.nc"
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"x": SMALL_FILE}
        file.create_variable("v", ("x",), "u1", chunks=(1 << 14,))[:] = 1
    url = http_server.put("/large.nc", path.read_bytes())
    with xr.open_dataset(url, engine="refshard") as ds:
        assert int(ds["v"][7].values) == 1
    assert http_server.bytes_sent < SMALL_FILE // 4


def test_array_in_the_first_bytes_takes_no_request(http_server: RangeServer, tmp_path: Path) -> None:
    path = tmp_path / "large.nc"
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"x": 64, "y": SMALL_FILE}
        file.create_variable("first", ("x",), "f8", chunks=(64,))[:] = np.arange(64)
        file.create_variable("v", ("y",), "u1", chunks=(1 << 16,))[:] = 1
    url = http_server.put("/large.nc", path.read_bytes())
    with xr.open_dataset(url, engine="refshard") as ds:
        before = len(http_server.requests())
        assert ds["first"].values.tolist() == list(range(64))
    assert len(http_server.requests()) == before


def test_replaced_small_file_keeps_its_first_version(http_server: RangeServer, tmp_path: Path) -> None:
    _netcdf4(tmp_path / "file")
    old = (tmp_path / "file").read_bytes()
    url = http_server.put("/file", old)
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    before = fs.cat_file("v/0.0.0")
    http_server.replace("/file", None)
    assert fs.cat_file("v/0.0.0") == before  # from memory, like all other bytes of the first version
    http_server.put("/file", old)
    fs.invalidate_cache()
    assert fs.cat_file("v/0.0.0") == before


def test_file_replaced_before_its_rest_is_read_is_noticed(http_server: RangeServer, tmp_path: Path) -> None:
    _netcdf3(tmp_path / "file")
    fs = RefShardFileSystem(http_server.put("/file", (tmp_path / "file").read_bytes()), skip_instance_cache=True)
    assert fs.exists("v/.zarray")
    assert len(http_server.requests()) == 1
    http_server.replace("/file", None)
    with pytest.raises(TargetChanged):
        fs.cat_file("v/7.0.0")


def test_stats_count_reads_from_memory(http_server: RangeServer, tmp_path: Path) -> None:
    _netcdf4(tmp_path / "file")
    fs = RefShardFileSystem(http_server.put("/file", (tmp_path / "file").read_bytes()), skip_instance_cache=True)
    fs.cat_file("v/0.0.0")
    before = fs.stats()
    fs.cat_file("v/1.0.0")
    after = fs.stats()
    assert after["requests"] == before["requests"]
    assert after["cache_hits"] > before["cache_hits"]
    assert after["bytes_fetched"] == http_server.bytes_sent


def _one_page(path: Path) -> None:
    pytest.importorskip("tifffile").imwrite(path, np.tile(VALUES[0], (12, 4)), tile=(64, 64))


@pytest.mark.parametrize("write", [_one_page, _netcdf3], ids=["tiff", "netcdf3"])
def test_first_small_part_of_a_small_file_is_read_as_a_range(
    write: Callable[[Path], None], http_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "IN_VAIN", 0)  # the file is smaller than IN_VAIN, and would be read whole
    write(tmp_path / "file")
    data = (tmp_path / "file").read_bytes()
    with xr.open_dataset(http_server.put("/file", data), engine="refshard", decode_coords=False) as ds:
        values = ds["0" if "0" in ds else "v"]
        corner = values[-1:, ..., -1:].values
        assert len(http_server.requests()) == 2
        assert http_server.bytes_sent < HEAD + (len(data) - HEAD) // 2
        np.testing.assert_array_equal(values.load()[-1:, ..., -1:], corner)
    assert len(http_server.requests()) == 3
    assert http_server.bytes_sent < len(data) + (len(data) - HEAD) // 2
