"""Jobs with many files as one dataset: a saved cube, or a new one, compared with `open_mfdataset` and kerchunk."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import xarray as xr

import refshard_fs
from benchmarks.jobs.data import Days, Grib, Months, Published, Scenes, Steps, VirtualSteps
from benchmarks.jobs.job import Job, Site, Sizes
from refshard_fs.security.policy import server_of
from refshard_fs.xarray_backend import RefShardBackend
from tests.support.threads import wait_for_writes

__all__: list[str] = []


def open_cube(site: Site, chunks: Any, **options: Any) -> xr.Dataset:
    """Open the saved cube of ``site`` in xarray."""
    options |= {"allow": [site.url], "options": {f"{site.url}/": site.options}}
    return xr.open_dataset(
        site.folder / "cube.refshard", engine=RefShardBackend, chunks=chunks, storage_options=options
    )


def open_files(sources: list[Any], chunks: Any, **options: Any) -> xr.Dataset:
    """Open all files as xarray's documentation advises for files with equal variables and coordinates."""
    found: xr.Dataset = xr.open_mfdataset(
        sources, engine="h5netcdf", chunks=chunks, combine="nested", concat_dim="time", data_vars="minimal",
        coords="minimal", compat="override", join="override", **options,
    )  # fmt: skip
    return found


def open_cached(site: Site, kind: str) -> xr.Dataset:
    """Open all files through one of fsspec's caches on disk; ``kind`` is its protocol."""
    kept = {kind: {"cache_storage": str(site.folder / kind)}}
    return open_files(
        [file.open() for file in fsspec.open_files([f"{kind}::{url}" for url in site.urls("*.nc")], **kept)], {}
    )


def read_crops(ds: xr.Dataset) -> Any:
    """Read 256 random crops, which are the same in each call."""
    rng = np.random.default_rng(1)
    picks = [(int(rng.integers(ds.sizes["time"])), *map(int, rng.integers(0, 50, 2))) for _ in range(256)]
    return np.stack([ds["t2m"][t, y : y + 64, x : x + 64].values for t, y, x in picks])


@dataclass(frozen=True)
class EpochRead(Months):
    """Months, and the caches on disk of each side, filled by an earlier epoch."""

    def prepare(self, site: Site) -> None:
        super().prepare(site)
        with open_cube(site, None, cache_dir=str(site.folder / "kept")) as ds:
            read_crops(ds)
        wait_for_writes()
        for kind in ("blockcache", "simplecache"):
            with open_cached(site, kind) as ds:
                read_crops(ds)


class _Cube(Job):
    """Compute a result from the saved cube, or from all files."""

    peer = "open_mfdataset"
    chunks: ClassVar[Any] = {}

    def run_ours(self, site: Site) -> Any:
        with open_cube(site, self.chunks) as ds:
            return self.compute(ds)

    def run_theirs(self, site: Site) -> Any:
        chunks = {} if self.chunks is None else self.chunks
        with open_files(site.urls("*.nc"), chunks, storage_options=site.options) as ds:
            return self.compute(ds)

    def compute(self, ds: xr.Dataset) -> Any:
        return ds["t2m"][:, 50, 100].values


# Months of a reanalysis, each with a different packing.


class _Months(_Cube):
    sizes = Sizes(Months(4, 40), Months())
    goal = 3.0


class Point(_Months):
    """Read a point through all steps."""

    title = "{count} ERA5 months: a point through all steps"


class PointOfMonths(_Months):
    """Read a point through all steps, a month a task."""

    title = "{count} ERA5 months, chunks of 31 steps: a point"
    chunks: ClassVar[Any] = {"time": 31}


class _Means(_Months):
    goal = 2.0

    def compute(self, ds: xr.Dataset) -> Any:
        return ds["t2m"].groupby("time.month").mean().values


class Means(_Means):
    """Compute monthly means of the whole field."""

    title = "{count} ERA5 months: monthly means"


class MeansOfMonths(_Means):
    """Compute monthly means of the whole field, a month a task."""

    title = "{count} ERA5 months, chunks of 31 steps: monthly means"
    chunks: ClassVar[Any] = {"time": 31}


class FirstStep(_Months):
    """Open the dataset, and read the first step."""

    title = "{count} ERA5 months: opened, and the first step"

    def compute(self, ds: xr.Dataset) -> Any:
        return ds["t2m"][0].values


class Training(_Months):
    """Read a batch of 32 random crops, without dask."""

    title = "{count} ERA5 months: 32 crops at random"
    sizes = Sizes(Months(4, 40), Months(24))
    chunks = None
    goal = 2.0

    def compute(self, ds: xr.Dataset) -> Any:
        rng = np.random.default_rng(1)
        picks = [(int(rng.integers(ds.sizes["time"])), *map(int, rng.integers(0, 50, 2))) for _ in range(32)]
        return np.stack([ds["t2m"][t, y : y + 64, x : x + 64].values for t, y, x in picks])


class SecondEpoch(Training):
    """Read an epoch of random crops again, in a new process; the first epoch was kept on disk."""

    title = "{count} ERA5 months: a second epoch of crops"
    sizes = Sizes(EpochRead(4, 40), EpochRead(24))
    peer = "the first epoch"
    goal = 10.0

    def run_ours(self, site: Site) -> Any:
        with open_cube(site, None, cache_dir=str(site.folder / "kept")) as ds:
            return read_crops(ds)

    def run_theirs(self, site: Site) -> Any:
        with open_cube(site, None) as ds:
            return read_crops(ds)


class SecondEpochOfBlocks(SecondEpoch):
    """Read the second epoch; the other tool reads blocks that fsspec keeps on disk."""

    title = "{count} ERA5 months: a second epoch, from blocks"
    peer = "h5netcdf, blockcache"
    goal = 1.0
    kind: ClassVar[str] = "blockcache"

    def run_theirs(self, site: Site) -> Any:
        with open_cached(site, self.kind) as ds:
            return read_crops(ds)


class SecondEpochOfFiles(SecondEpochOfBlocks):
    """Read the second epoch; the other tool reads copies of whole files that fsspec keeps on disk."""

    title = "{count} ERA5 months: a second epoch, from files"
    peer = "h5netcdf, simplecache"
    kind = "simplecache"


class ToZarr(_Months):
    """Copy the cube to a local zarr store."""

    title = "{count} ERA5 months: to_zarr"
    chunks: ClassVar[Any] = {"time": 31}
    goal = 1.0

    def compute(self, ds: xr.Dataset) -> Any:
        folder = tempfile.TemporaryDirectory()
        copy = ds[["t2m"]].drop_encoding().chunk(self.chunks)
        copy.to_zarr(folder.name, zarr_format=2, consolidated=True)

        def read_values() -> Any:
            with folder, xr.open_zarr(folder.name) as written:
                return written["t2m"][::7].values

        return read_values


# Months of a reanalysis on S3.


class _OnS3(_Months):
    sizes = Sizes(Months(12, 8, (61, 120)), Months(120, 31, (61, 120)))
    store = "s3"
    link = "30"


class PointOnS3(_OnS3):
    """Read a point through all steps."""

    title = "{count} ERA5 months on S3: a point through all steps"


class MeansOnS3(_OnS3):
    """Compute monthly means of the whole field."""

    title = "{count} ERA5 months on S3: monthly means"
    goal = 2.0

    def compute(self, ds: xr.Dataset) -> Any:
        return ds["t2m"].groupby("time.month").mean().values


# Daily files.


class Climatology(_Cube):
    """Compute the mean of each month of the year."""

    title = "{count} daily files: climatology"
    sizes = Sizes(Days(60), Days(365), Days(3650))
    goal = 2.0

    def compute(self, ds: xr.Dataset) -> Any:
        return ds["t2m"].groupby("time.month").mean().values


@contextlib.contextmanager
def start_cluster() -> Iterator[None]:
    """Start a cluster of two worker processes, which import the modules of both sides."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as workers,
        Client(workers) as client,
    ):
        client.run(warm_up)
        yield


def warm_up() -> None:
    """Import the modules that a worker uses."""
    import h5netcdf  # noqa: F401  # imported in the worker, as the docstring says

    import refshard_fs.xarray_backend  # noqa: F401  # as above


class ClimatologyByProcesses(Climatology):
    """Compute the mean of each month of the year on a LocalCluster."""

    title = "{count} daily files: climatology by two processes"
    needs = ("distributed",)
    setup = staticmethod(start_cluster)


class _Opening(Job):
    """Join the files, open the dataset, and show it."""

    peer = "open_mfdataset"

    def run_ours(self, site: Site) -> Any:
        made: Any = refshard_fs.concat(site.urls("*.nc"), dim="time", lazy=True)
        with xr.open_dataset(made, engine=RefShardBackend, chunks={}) as ds:
            return self.compute(ds)

    def run_theirs(self, site: Site) -> Any:
        with open_files(site.urls("*.nc"), {}) as ds:
            return self.compute(ds)

    def compute(self, ds: xr.Dataset) -> Any:
        assert "t2m" in repr(ds)
        return ds["time"].values.astype("i8")


class OpenOne(_Opening):
    """Open one file."""

    title = "{count} daily file: joined and opened"
    sizes = Sizes(Days(1), Days(1))


class OpenHundred(_Opening):
    """Open a hundred files."""

    title = "{count} daily files: joined and opened"
    sizes = Sizes(Days(20), Days(100))
    goal = 3.0


class OpenThousands(_Opening):
    """Open thousands of files."""

    title = "{count} daily files, joined and opened"
    sizes = Sizes(Days(60), Days(1000), Days(5000))
    goal = 3.0


# Time series of one point, of 3,000 steps.


class Series(_Cube):
    """Read a point through 3,000 steps, without dask."""

    title = "{total} steps of {count} files: a point"
    sizes = Sizes(Steps(4, 25), Steps(30))
    chunks = None
    goal = 3.0


class SeriesOfReferences(Series):
    """Read a point through 3,000 steps of kerchunk's set of references, without dask."""

    title = "{total} steps of a kerchunk set: a point"
    peer = "fsspec reference"
    needs = ("kerchunk",)

    def run_ours(self, site: Site) -> Any:
        options = {"allow": [site.url]}
        refs = str(site.folder / "refs.json")
        with xr.open_dataset(refs, engine=RefShardBackend, storage_options=options) as ds:
            return self.compute(ds)

    def run_theirs(self, site: Site) -> Any:
        with open_references(site) as ds:
            return self.compute(ds)


class SeriesOfRepository(Series):
    """Read a point through 3,000 virtual chunks of an Icechunk repository, without dask."""

    title = "{total} virtual steps in Icechunk: a point"
    sizes = Sizes(VirtualSteps(4, 25), VirtualSteps(30))
    peer = "icechunk"
    needs = ("icechunk",)
    goal = 10.0

    def run_ours(self, site: Site) -> Any:
        with xr.open_dataset(f"icechunk::{site.url}/steps.icechunk", engine=RefShardBackend) as ds:
            return self.compute(ds)

    def run_theirs(self, site: Site) -> Any:
        import icechunk

        access = icechunk.containers_credentials({server_of(site.url) + "/": icechunk.credentials.HttpAccess})
        storage = icechunk.http_storage(f"{site.url}/steps.icechunk")
        repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)
        with xr.open_zarr(repository.readonly_session("main").store, chunks=None, consolidated=False) as ds:
            return self.compute(ds)


def open_references(site: Site) -> xr.Dataset:
    """Open kerchunk's set by kerchunk's engine for xarray, which uses fsspec's ReferenceFileSystem."""
    options = {"remote_protocol": "http", "remote_options": {"asynchronous": True}}
    refs = str(site.folder / "refs.json")
    return xr.open_dataset(refs, engine="kerchunk", chunks=None, storage_options=options)


# Forecasts in GRIB2: one field of each file.


class GribFiles(Job):
    """Read one field of each of 30 files without an index."""

    title = "{count} GRIB2 files: one field of each"
    sizes = Sizes(Grib(4), Grib(30))
    peer = "downloads, cfgrib"
    needs = ("cfgrib", "eccodes")

    def run_ours(self, site: Site) -> Any:
        made: Any = refshard_fs.concat(site.urls("*.grib2"), dim="step", lazy=True)
        with xr.open_dataset(made, engine=RefShardBackend) as ds:
            return ds["t"].sel(isobaricInhPa=500).values

    def run_theirs(self, site: Site) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            web, urls = fsspec.filesystem("http"), site.urls("*.grib2")
            paths = [str(Path(folder, url.rpartition("/")[2])) for url in urls]
            web.get(urls, paths)
            with xr.open_mfdataset(
                paths, engine="cfgrib", combine="nested", concat_dim="step", coords="minimal", compat="override",
                backend_kwargs={"filter_by_keys": {"shortName": "t", "level": 500}, "indexpath": ""},
            ) as ds:  # fmt: skip
                return ds["t"].values


class GribRule(GribFiles):
    """Read one field of each of 30 files of a forecast, whose names and sidecars a rule describes."""

    title = "{count} GRIB2 files, by rule: one field of each"
    sizes = Sizes(Published(4), Published(30))

    def run_ours(self, site: Site) -> Any:
        with xr.open_dataset(site.folder / "rule.json", engine=RefShardBackend) as ds:
            return ds["t"].sel(isobaricInhPa=500)[0].values


class GribSet(Job):
    """Read one field of each of 30 files that were indexed before."""

    title = "{count} GRIB2 files, indexed: one field of each"
    sizes = GribFiles.sizes
    peer = "kerchunk"
    needs = ("cfgrib", "eccodes", "kerchunk")
    goal = 2.0

    def run_ours(self, site: Site) -> Any:
        with open_cube(site, None) as ds:
            return ds["t"].sel(isobaricInhPa=500).values

    def run_theirs(self, site: Site) -> Any:
        with open_references(site) as ds:
            return ds["t"].squeeze().values


# Images of a satellite.


class ScenesOnS3(Job):
    """Join scenes by the days in their names, and read a window of each."""

    title = "{count} COGs on S3: joined, a window of each"
    sizes = Sizes(Scenes(6), Scenes(60))
    peer = "rasterio, 16 threads"
    needs = ("rasterio",)
    store = "s3"

    def run_ours(self, site: Site) -> Any:
        made: Any = refshard_fs.concat(f"{site.url}/red_{{time:%Y%m%d}}.tif", dims=["time"], lazy=True, **site.options)
        options = {"options": {f"{site.url}/": site.options}}
        with xr.open_dataset(made, engine=RefShardBackend, storage_options=options) as ds:
            return ds["0"][:, 300:500, 300:500].values

    def run_theirs(self, site: Site) -> Any:
        from concurrent.futures import ThreadPoolExecutor

        from benchmarks.jobs.files import read_window

        with ThreadPoolExecutor(16) as pool:
            names = fsspec.filesystem("s3", **site.options).glob(f"{site.url}/red_*.tif")
            return np.stack(list(pool.map(lambda name: read_window(f"/vsis3/{name}", site.options), sorted(names))))
