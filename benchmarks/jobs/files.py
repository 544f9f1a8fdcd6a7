"""Jobs with one file, compared with h5netcdf (with xarray's default block cache), scipy, rasterio and cfgrib."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlsplit

import fsspec
import numpy as np
import xarray as xr

from benchmarks.jobs.data import Era5, Months, Records, Scenes, Variables
from benchmarks.jobs.job import Job, Site, Sizes
from refshard_fs.xarray_backend import RefShardBackend

__all__ = ["read_window"]


class _File(Job):
    peer = "h5netcdf"
    chunks: ClassVar[Any] = None

    def run_ours(self, site: Site) -> Any:
        with xr.open_dataset(f"{site.url}/month0000.nc", engine=RefShardBackend, chunks=self.chunks) as ds:
            return self.compute(ds)

    def run_theirs(self, site: Site) -> Any:
        with xr.open_dataset(f"{site.url}/month0000.nc", engine="h5netcdf", chunks=self.chunks) as ds:
            return self.compute(ds)

    def compute(self, ds: xr.Dataset) -> Any:
        return ds["t2m"].values


class Whole(_File):
    """Read a whole variable into numpy."""

    title = "a NetCDF-4 file: a whole variable"
    sizes = Sizes(Months(1, 40), Months(1, 480, (181, 360)))
    goal = 2.0


class WholeByChunk(Whole):
    """Read a whole variable through dask, in the engine's default chunks."""

    title = "a NetCDF-4 file, chunks={{}}: a whole variable"
    chunks: ClassVar[Any] = {}


class WholeByHundred(Whole):
    """Read a whole variable through dask, with a hundred steps in a task."""

    title = "a NetCDF-4 file, chunks of 100 steps: a whole variable"
    chunks: ClassVar[Any] = {"time": 100}


class RandomSteps(_File):
    """Read a hundred steps at random, one after the other."""

    title = "a NetCDF-4 file: 100 steps at random"
    sizes = Sizes(Months(1, 200), Months(1, 200))

    def compute(self, ds: xr.Dataset) -> Any:
        steps = np.random.default_rng(1).integers(ds.sizes["time"], size=100)
        return np.stack([ds["t2m"][int(step)].values for step in steps])


class Backwards(RandomSteps):
    """Read all steps, one after the other, the last one first."""

    title = "a NetCDF-4 file: all steps backwards"

    def compute(self, ds: xr.Dataset) -> Any:
        return np.stack([ds["t2m"][step].values for step in reversed(range(ds.sizes["time"]))])


class Small(_File):
    """Load a small file."""

    title = "a small NetCDF-4 file: ds.load()"
    sizes = Sizes(Months(1, 8, (61, 120)), Months(1, 8, (61, 120)))

    def compute(self, ds: xr.Dataset) -> Any:
        return ds.load()["t2m"].values


class AllVariables(Job):
    """Load all variables of a file, which xarray reads one after the other."""

    title = "a NetCDF-4 file of {count} variables: ds.load()"
    sizes = Sizes(Variables(60), Variables(300))
    peer = "h5netcdf"

    def run_ours(self, site: Site) -> Any:
        with xr.open_dataset(f"{site.url}/variables.nc", engine=RefShardBackend) as ds:
            return ds.load().to_array().values

    def run_theirs(self, site: Site) -> Any:
        with xr.open_dataset(f"{site.url}/variables.nc", engine="h5netcdf") as ds:
            return ds.load().to_array().values


class LoadRecords(Job):
    """Load all variables of a NetCDF-3 file."""

    title = "a NetCDF-3 file of {count} records: ds.load()"
    sizes = Sizes(Records(60), Records(300))
    peer = "scipy"

    def run_ours(self, site: Site) -> Any:
        with xr.open_dataset(f"{site.url}/records.nc", engine=RefShardBackend) as ds:
            return ds.load().to_array().values

    def run_theirs(self, site: Site) -> Any:
        with fsspec.open(f"{site.url}/records.nc") as file, xr.open_dataset(file, engine="scipy") as ds:
            return ds.load().to_array().values


class Window(Job):
    """Read a window of a cloud-optimised GeoTIFF."""

    title = "a COG: a window"
    sizes = Sizes(Scenes(1), Scenes(1, 4096))
    peer = "rasterio"
    needs = ("rasterio",)

    def run_ours(self, site: Site) -> Any:
        (url,) = site.urls("*.tif")
        with xr.open_dataset(url, engine=RefShardBackend) as ds:
            return ds["0"][300:500, 300:500].values

    def run_theirs(self, site: Site) -> Any:
        (url,) = site.urls("*.tif")
        return read_window(f"/vsicurl/{url}", {})


class Era5Point(Job):
    """Open a month of ERA5 in GRIB without an index, over HTTP, and read a point; the other tool has a local copy."""

    title = "a month of ERA5 (GRIB1): opened, a point"
    sizes = Sizes(Era5(2), Era5(31))
    peer = "cfgrib, local copy"
    needs = ("cfgrib", "eccodes")

    def run_ours(self, site: Site) -> Any:
        with xr.open_dataset(f"{site.url}/era5.grib", engine=RefShardBackend) as ds:
            return ds["t2m"][:, 40, 20].values

    def run_theirs(self, site: Site) -> Any:
        with xr.open_dataset(site.folder / "era5.grib", engine="cfgrib", backend_kwargs={"indexpath": ""}) as ds:
            return ds["t2m"][:, 40, 20].values


def read_window(name: str, options: dict[str, Any]) -> Any:
    """Read rows and columns 300 to 500 by rasterio, with the settings of odc-stac for cloud storage."""
    import rasterio
    from rasterio.windows import Window as Part

    settings = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"}
    if options:
        endpoint = urlsplit(options["client_kwargs"]["endpoint_url"]).netloc
        settings |= {"AWS_S3_ENDPOINT": endpoint, "AWS_HTTPS": "NO", "AWS_VIRTUAL_HOSTING": "FALSE"}
        settings |= {"AWS_NO_SIGN_REQUEST": "YES"}
    with rasterio.Env(**settings), rasterio.open(name) as file:
        return file.read(1, window=Part(300, 300, 200, 200))
