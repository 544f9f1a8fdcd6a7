"""References made by the tools that people use, over files that other libraries wrote: the same values."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem, replace_reference_filesystem

xr = pytest.importorskip("xarray")
if pytest.importorskip("zarr").__version__.startswith("2."):
    pytest.skip("these writers need zarr 3", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*Numcodecs codecs are not in the Zarr version 3.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification.*"),
]


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """Turn the garbage collector off: it can free an h5py object in zarr's thread while this one holds h5py's lock."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def make_field() -> Any:
    rng = np.random.default_rng(0)
    return xr.Dataset(
        {"air": (("time", "y", "x"), rng.normal(280, 5, (6, 20, 30)).astype("f4"), {"units": "K"})},
        coords={"time": np.arange(6, dtype="f8"), "y": np.arange(20.0), "x": np.arange(30.0)},
        attrs={"title": "made by a test"},
    )


def read(fo: Any, **options: Any) -> Any:
    return xr.open_zarr("refshard://", storage_options={"fo": fo, **options}, consolidated=False, decode_times=False)


def check(got: Any, want: Any) -> None:
    xr.testing.assert_equal(got.load(), want)
    assert got.attrs["title"] == want.attrs["title"]


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_hdf5_sets_of_kerchunk_are_read(engine: str, tmp_path: Path) -> None:
    hdf = pytest.importorskip("kerchunk.hdf")
    pytest.importorskip("h5netcdf" if engine == "h5netcdf" else "netCDF4")
    ds, path = make_field(), tmp_path / "air.nc"
    encoding = {"air": {"chunksizes": (2, 10, 15), "zlib": True, "shuffle": True}}
    ds.to_netcdf(path, engine=engine, encoding=encoding)
    refs = hdf.SingleHdf5ToZarr(str(path), inline_threshold=100).translate()
    check(read(refs), ds)
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    check(read(tmp_path / "refs.json"), ds)


def test_netcdf3_sets_of_kerchunk_are_read(tmp_path: Path) -> None:
    netcdf3 = pytest.importorskip("kerchunk.netCDF3")
    pytest.importorskip("scipy")
    ds, path = make_field(), tmp_path / "air.nc"
    ds.to_netcdf(path, engine="scipy", format="NETCDF3_64BIT")
    refs = netcdf3.netcdf_recording_file(str(path)) if not hasattr(netcdf3, "NetCDF3ToZarr") else None
    refs = refs or netcdf3.NetCDF3ToZarr(str(path)).translate()
    check(read(refs), ds)


def test_tiff_sets_of_tifffile_are_read(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    zarr = pytest.importorskip("zarr")
    image = np.arange(64 * 96, dtype="u2").reshape(64, 96)
    tifffile.imwrite(tmp_path / "x.tif", image, tile=(32, 32))
    with tifffile.imread(tmp_path / "x.tif", aszarr=True) as store:
        store.write_fsspec(tmp_path / "x.json", url="")
    fs = RefShardFileSystem(fo=tmp_path / "x.json", asynchronous=True)
    array = zarr.open_array(zarr.storage.FsspecStore(fs, read_only=True, path=""), mode="r", zarr_format=2)
    np.testing.assert_array_equal(array[...], image)


def test_tiff_sets_of_kerchunk_are_read(tmp_path: Path) -> None:
    tiff = pytest.importorskip("kerchunk.tiff")
    tifffile = pytest.importorskip("tifffile")
    zarr = pytest.importorskip("zarr")
    image = np.arange(64 * 96, dtype="u2").reshape(64, 96)
    tifffile.imwrite(tmp_path / "x.tif", image, tile=(32, 32), metadata=None)
    refs = tiff.tiff_to_zarr(str(tmp_path / "x.tif"))
    fs = RefShardFileSystem(fo=refs, asynchronous=True)
    array = zarr.open_array(zarr.storage.FsspecStore(fs, read_only=True, path=""), mode="r", zarr_format=2)
    np.testing.assert_array_equal(array[...], image)


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_sets_of_virtualizarr_are_read(form: str, tmp_path: Path) -> None:
    virtualizarr = pytest.importorskip("virtualizarr")
    if form == "parquet":
        pytest.importorskip("fastparquet")
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    ds, path = make_field(), tmp_path / "air.nc"
    ds.to_netcdf(path, engine="h5netcdf", encoding={"air": {"chunksizes": (2, 10, 15)}})
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    with virtualizarr.open_virtual_dataset(f"file://{path}", registry=registry, parser=HDFParser()) as virtual:
        out = tmp_path / f"refs.{form}"
        virtual.vz.to_kerchunk(str(out), format=form)
    check(read(out), ds)


@pytest.mark.usefixtures("_no_collection")
def test_kerchunk_and_zarr_read_sets_after_replacing_reference(tmp_path: Path) -> None:
    hdf = pytest.importorskip("kerchunk.hdf")
    import fsspec
    from fsspec.implementations.reference import ReferenceFileSystem

    ds, path = make_field(), tmp_path / "air.nc"
    ds.to_netcdf(path, engine="h5netcdf", encoding={"air": {"chunksizes": (2, 10, 15)}})
    refs = hdf.SingleHdf5ToZarr(str(path)).translate()
    replace_reference_filesystem()
    try:
        assert isinstance(fsspec.filesystem("reference", fo=refs), RefShardFileSystem)
        check(xr.open_dataset(refs, engine="kerchunk", decode_times=False), ds)
        options = {"fo": refs, "remote_protocol": "file", "remote_options": {}}
        got = xr.open_dataset(
            "reference://", engine="zarr", backend_kwargs={"storage_options": options, "consolidated": False},
            decode_times=False,
        )  # fmt: skip
        check(got, ds)
    finally:
        fsspec.register_implementation("reference", ReferenceFileSystem, clobber=True)
