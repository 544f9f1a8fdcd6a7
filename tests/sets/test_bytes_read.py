"""`concat` reads only metadata and coordinates of files on a server."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.core.format import HEAD
from refshard_fs.errors import ManifestError, TargetChanged
from tests.servers.http import RangeServer
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer

FILES = 3
RNG = np.random.default_rng(3)


def _make_values(*shape: int, dtype: str = "i2") -> np.ndarray[Any, Any]:
    return RNG.integers(0, 30_000, shape).astype(dtype)


def _make_tiff(number: int, predictor: int, dtype: str) -> bytes:
    pytest.importorskip("imagecodecs")
    import tifffile

    place = [(33550, "d", 3, (10.0, 10.0, 0.0), True), (33922, "d", 6, (0, 0, 0, number * 5120.0, 0, 0), True)]
    place.append((34735, "H", 8, (1, 1, 0, 1, 3072, 0, 1, 32633), True))
    file = io.BytesIO()
    values = _make_values(512, 512, dtype=dtype)
    tifffile.imwrite(file, values, tile=(128, 128), compression="zlib", predictor=predictor, extratags=place)
    return file.getvalue()


def _make_scene(predictor: int, dtype: str, number: int = 0) -> bytes:
    """Return a COG as GDAL writes it: its index, then its overviews, each of less than 1 MiB, then the image."""
    rasterio = pytest.importorskip("rasterio")
    kind = {"driver": "COG", "count": 1, "crs": "EPSG:32633", "blocksize": 128, "compress": "DEFLATE"}
    place = {"width": 512, "height": 512, "transform": rasterio.Affine(10, 0, 5e5 + 5120 * number, 0, -10, 5e6)}
    with rasterio.MemoryFile() as memory:
        with memory.open(**kind, **place, dtype=np.dtype(dtype).name, predictor=predictor, overviews="AUTO") as file:
            file.write(_make_values(512, 512, dtype=dtype), 1)
        return bytes(memory.read())


def _make_mask(path: Path, number: int, mask: np.ndarray[Any, Any]) -> bytes:
    ds = xr.Dataset(
        {"v": (("time", "y", "x"), _make_values(1, 300, 400)), "mask": (("y", "x"), mask)}, {"time": [number]}
    )
    ds.to_netcdf(path, engine="h5netcdf", encoding={"mask": {"zlib": True, "chunksizes": (100, 400)}})
    return path.read_bytes()


def _make_netcdf4(number: int, path: Path) -> bytes:
    import h5netcdf

    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"time": 8, "x": 30_000}
        time = file.create_variable("time", ("time",), "i4")
        time[:] = np.arange(8) + 8 * number
        time.attrs["units"] = "hours since 2020-01-01"
        packed = file.create_variable("v", ("time", "x"), "i2", chunks=(1, 30_000), compression="gzip", shuffle=True)
        packed.attrs["scale_factor"], packed.attrs["add_offset"] = 0.1 + number / 100, float(number)
        packed[:] = _make_values(8, 30_000)
    return path.read_bytes()


def _make_netcdf3(number: int, path: Path) -> bytes:
    pytest.importorskip("scipy")
    variables = {name: (("time", "x"), _make_values(8, 30_000)) for name in "vw"}
    ds = xr.Dataset(variables, {"time": np.arange(8) + 8 * number})
    ds.to_netcdf(path, engine="scipy", unlimited_dims=["time"])
    return path.read_bytes()


def _make_fits(number: int, kind: str) -> bytes:
    fits = pytest.importorskip("astropy.io.fits")
    image = getattr(fits, kind)(
        _make_values(400, 600), **({"tile_shape": (100, 600)} if kind == "CompImageHDU" else {})
    )
    file = io.BytesIO()
    fits.HDUList([fits.PrimaryHDU(), image]).writeto(file)
    return file.getvalue()


def _make_grib(number: int) -> bytes:
    pytest.importorskip("eccodes", exc_type=Exception)
    from tests.support.grib_messages import make_message

    grid = {"Ni": 400, "Nj": 300, "iDirectionIncrementInDegrees": 0.5, "jDirectionIncrementInDegrees": 0.5}
    grid |= {"longitudeOfLastGridPointInDegrees": 199.5, "latitudeOfFirstGridPointInDegrees": 60}
    grid |= {"latitudeOfLastGridPointInDegrees": -89.5, "bitsPerValue": 16, "dataDate": 20200101 + number}
    sample = "regular_ll_pl_grib2"  # a small sample: up to 1 MiB of each variable is read to be compared
    return b"".join(make_message(RNG.normal(280, 9, 120_000), sample, level=level, **grid) for level in (500, 700, 850))


KINDS: dict[str, tuple[Callable[[int, Path], bytes], str, set[bool]]] = {
    "COG, predictor 2": (lambda n, _: _make_tiff(n, 2, "u2"), "x", {True}),
    "COG, predictor 3": (lambda n, _: _make_tiff(n, 3, "f4"), "x", {True}),
    "COG": (lambda n, _: _make_tiff(n, 1, "u2"), "x", {True, False}),
    "NetCDF-4, packed": (_make_netcdf4, "time", {True}),
    "NetCDF-3, records": (_make_netcdf3, "time", {True, False}),
    "FITS": (lambda n, _: _make_fits(n, "ImageHDU"), "y", {True, False}),
    "FITS, tiles": (lambda n, _: _make_fits(n, "CompImageHDU"), "y", {True}),
    "GRIB2": (lambda n, _: _make_grib(n), "time", {True}),
}


@pytest.mark.parametrize(
    ("kind", "lazy", "named"),
    [
        *((kind, lazy, False) for kind, (*_, how) in KINDS.items() for lazy in sorted(how)),
        *[("COG", False, True), ("NetCDF-3, records", True, True), ("GRIB2", True, True)],
    ],
)
def test_concat_reads_little_more_than_the_heads_of_files(
    kind: str, http_server: RangeServer, tmp_path: Path, *, lazy: bool, named: bool
) -> None:
    write, dim, _ = KINDS[kind]
    files = [write(number, tmp_path / f"{number}.nc") for number in range(FILES)]
    urls = [http_server.put(f"{number}.file", data) for number, data in enumerate(files)]
    http_server.clear()
    how: dict[str, Any] = {"same": ["spatial_ref"]} if kind.startswith("COG") else {}
    if named:
        how["allow"] = [http_server.url]
    joined: Any = refshard_fs.concat(urls, dim, lazy=lazy, **how)
    assert http_server.bytes_sent < FILES * (HEAD + (8 << 10)) < sum(map(len, files)) / 2
    with xr.open_dataset(joined, engine="refshard") as ds:
        assert ds.sizes[dim] > 1


@pytest.mark.parametrize(
    ("kind", "name"), [("COG, predictor 2", "0"), ("NetCDF-4, packed", "v"), ("NetCDF-3, records", "v")]
)
def test_joined_files_open_without_reading_first_bytes_again(
    kind: str, name: str, http_server: RangeServer, tmp_path: Path
) -> None:
    """The result of `concat` is opened from the bytes that `concat` has read."""
    write, dim, _ = KINDS[kind]
    files = [write(number, tmp_path / f"{number}.nc") for number in range(FILES)]
    urls = [http_server.put(f"{number}.file", data) for number, data in enumerate(files)]
    joined = refshard_fs.concat(urls, dim, lazy=True, same=["spatial_ref"] if "COG" in kind else [])
    http_server.clear()
    with xr.open_dataset(joined, engine="refshard") as ds:  # type: ignore[arg-type]
        last = ds[name][{dim: -1}].values
    assert (0, HEAD) not in {(request.start, request.stop) for request in http_server.requests()}
    with xr.open_dataset(pickle.loads(pickle.dumps(joined)), engine="refshard") as ds:
        np.testing.assert_array_equal(ds[name][{dim: -1}].values, last)


def test_bytes_between_metadata_are_read_once(http_server: RangeServer, tmp_path: Path) -> None:
    """netCDF4 writes the header of a variable behind the chunks of earlier variables."""
    netcdf4 = pytest.importorskip("netCDF4")
    values = {f"v{number}": _make_values(1, 40, 100) for number in range(40)}
    urls, size = [], 0
    for number in range(FILES):
        path = tmp_path / f"{number}.nc"
        with netcdf4.Dataset(path, "w") as file:
            for name, length in (("time", 1), ("y", 40), ("x", 100)):
                file.createDimension(name, length)
            file.createVariable("time", "i4", ("time",))[:] = number
            for name, array in values.items():
                chunked = {"zlib": True, "chunksizes": array.shape}
                file.createVariable(name, "i2", ("time", "y", "x"), **chunked)[:] = array
                file.sync()
        urls.append(http_server.put(path.name, path.read_bytes()))
        size += path.stat().st_size
    http_server.clear()
    with xr.open_dataset(refshard_fs.concat(urls, "time", lazy=True), engine="refshard", chunks={}) as ds:  # type: ignore[arg-type]
        loaded = ds.load()
    assert http_server.bytes_sent <= size
    for name, array in values.items():
        np.testing.assert_array_equal(loaded[name].values, np.concatenate([array] * FILES))


def test_part_replaced_after_concat_is_an_error(http_server: RangeServer, tmp_path: Path) -> None:
    urls = [http_server.put(f"{n}.nc", _make_netcdf4(n, tmp_path / f"{n}.nc")) for n in range(FILES)]
    fs = RefShardFileSystem(refshard_fs.concat(urls, "time", lazy=True), skip_instance_cache=True)
    new = _make_netcdf4(2, tmp_path / "2.nc")
    http_server.put("2.nc", new, modified=2e9)
    with pytest.raises(TargetChanged, match="replaced since it was first read"):
        fs.cat_file("v/20.0")
    fs.invalidate_cache()
    assert fs.cat_file("v/20.0")


@pytest.mark.parametrize(
    ("predictor", "dtype", "lazy"), [(1, "u2", False), (2, "u2", False), (2, "u2", True), (3, "f4", True)]
)
def test_joining_by_names_reads_no_overview(
    predictor: int, dtype: str, s3_server: SeaweedServer, s3_proxy: CountingProxy, *, lazy: bool
) -> None:
    bucket = f"overviews{predictor}{lazy:d}"
    s3_server.create_bucket(bucket)
    for number in range(FILES):
        s3_server.put(f"{bucket}/red_2024010{number + 1}.tif", _make_scene(predictor, dtype))
    options = {**s3_server.storage_options, "client_kwargs": {"endpoint_url": s3_proxy.url}}
    how: dict[str, Any] = {"dims": ["time"], "lazy": lazy, "target_options": options}
    joined: Any = refshard_fs.concat(f"s3://{bucket}/red_{{time:%Y%m%d}}.tif", **how)
    if lazy or predictor == 1:  # references alone cannot stand for a tile with a predictor: it is copied
        assert s3_proxy.bytes_sent < FILES * (HEAD + (8 << 10))
    read = {"options": {"s3://": options}}
    with xr.open_dataset(joined, engine="refshard", storage_options=read) as ds:
        assert {name: ds[name].shape for name in "012"} == {"0": (3, 512, 512), "1": (3, 256, 256), "2": (3, 128, 128)}
        for number in range(FILES):
            url = f"s3://{bucket}/red_2024010{number + 1}.tif"
            with xr.open_dataset(url, engine="refshard", storage_options=read) as one:
                np.testing.assert_array_equal(ds["1"][number], one["1"])


@pytest.mark.parametrize("lazy", [True, False], ids=["lazy", "eager"])
def test_mask_is_compared_unless_same_names_it(http_server: RangeServer, tmp_path: Path, *, lazy: bool) -> None:
    mask = _make_values(300, 400)
    files = [_make_mask(tmp_path / f"{number}.nc", number, mask + (number == 2)) for number in range(FILES)]
    urls = [http_server.put(f"{number}.nc", data) for number, data in enumerate(files)]
    http_server.clear()
    refshard_fs.concat(urls, "time", lazy=lazy, same=["mask"])
    assert http_server.bytes_sent < FILES * (HEAD + (8 << 10))
    refshard_fs.concat(urls[:2], "time", lazy=lazy)
    with pytest.raises(ManifestError, match=r"different bytes of 'mask'.*same="):
        refshard_fs.concat(urls, "time", lazy=lazy)


def test_overviews_named_by_same_are_not_read(http_server: RangeServer) -> None:
    urls = [http_server.put(f"{number}.tif", _make_scene(2, "u2", number)) for number in range(FILES)]
    http_server.clear()
    names = [*"12", *(f"{axis}_{level}" for axis in "xy" for level in "12"), "spatial_ref"]
    assert len(refshard_fs.concat(urls, "x", lazy=True, same=names)) == FILES
    assert http_server.bytes_sent < FILES * (HEAD + (8 << 10))
