"""Jobs with zarr stores that were not opened before, compared with zarr's own stores and s3fs."""

from __future__ import annotations

from typing import Any

import dask.array as da
import fsspec
import numpy as np
import xarray as xr
import zarr

from benchmarks.jobs.data import Image, Store
from benchmarks.jobs.job import Job, Site, Sizes
from refshard_fs import RefShardFileSystem
from refshard_fs.tools.info import summarise
from refshard_fs.xarray_backend import RefShardBackend

__all__: list[str] = []


class _Store(Job):
    peer = "open_zarr"

    def run_ours(self, site: Site) -> Any:
        with xr.open_dataset(f"{site.url}/store.zarr", engine=RefShardBackend) as ds:
            return self.compute(ds)

    def run_theirs(self, site: Site) -> Any:
        with xr.open_zarr(f"{site.url}/store.zarr", chunks=None, consolidated=True) as ds:
            return self.compute(ds)

    def compute(self, ds: xr.Dataset) -> Any:
        return ds["v3"][5].values


class ColdStore2(_Store):
    """Open a store of version 2, and read one step."""

    title = "a cold zarr store, v2: one step"
    sizes = Sizes(Store(2), Store(2))


class ColdStore3(_Store):
    """Open a store of version 3, and read one step."""

    title = "a cold zarr store, v3: one step"
    sizes = Sizes(Store(3), Store(3))


class ColdShards(_Store):
    """Open a store with shards, and read ten steps."""

    title = "a cold zarr store, v3, sharded: ten steps"
    sizes = Sizes(Store(3, shards=True), Store(3, shards=True))

    def compute(self, ds: xr.Dataset) -> Any:
        return ds["v3"][10:20].values


# Microscopy.


class _Image(Job):
    peer = "zarr"
    sizes = Sizes(Image(8, 512), Image(32, 1024))

    def run_ours(self, site: Site) -> Any:
        return self.compute(f"refshard::{site.url}/image.zarr")

    def run_theirs(self, site: Site) -> Any:
        return self.compute(f"{site.url}/image.zarr")

    def compute(self, url: str) -> Any:
        level = zarr.open_group(url, mode="r")["0"]
        return level[0, 2:6, 300:500, 100:300]  # type: ignore[index]  # it is an array


class Crop(_Image):
    """Read a crop of an image."""

    title = "an OME-Zarr image, v2: a crop"


class CropOfShards(_Image):
    """Read a crop of an image with shards."""

    title = "an OME-Zarr image, v3, sharded: a crop"
    sizes = Sizes(Image(8, 512, 3), Image(32, 1024, 3))


class _Plane(_Image):
    def compute(self, url: str) -> Any:
        return da.from_zarr(url, component="0")[1, 5].compute()


class Plane(_Plane):
    """Read a plane of an image through dask."""

    title = "an OME-Zarr image, v2: a plane by dask"


class PlaneOfShards(_Plane):
    """Read a plane of an image with shards through dask."""

    title = "an OME-Zarr image, v3, sharded: a plane by dask"
    sizes = CropOfShards.sizes


class _Listed(Job):
    store = "s3"
    peer = "s3fs"
    sizes = Sizes(Image(4, 256, 2, 64), Image(8, 512, 2, 64))

    def _open_image(self, site: Site) -> RefShardFileSystem:
        return RefShardFileSystem(f"{site.url}/image.zarr", **site.options)


class Find(_Listed):
    """List all keys of an image on S3."""

    title = "an OME-Zarr image on S3: find"

    def run_ours(self, site: Site) -> Any:
        return np.array(sorted(self._open_image(site).find("")))

    def run_theirs(self, site: Site) -> Any:
        found = fsspec.filesystem("s3", **site.options).find(f"{site.url}/image.zarr")
        return np.array(sorted(name.partition("image.zarr/")[2] for name in found))


class Info(_Listed):
    """Count the chunks of each array of an image on S3."""

    title = "an OME-Zarr image on S3: info"
    peer = "zarr, s3fs"

    def run_ours(self, site: Site) -> Any:
        arrays = summarise(self._open_image(site)).arrays
        return np.array([one.present for one in sorted(arrays, key=lambda one: one.name)])

    def run_theirs(self, site: Site) -> Any:
        group = zarr.open_group(f"{site.url}/image.zarr", mode="r", storage_options=site.options)
        info = [array.info_complete() for _, array in sorted(group.arrays())]
        return np.array([one._count_chunks_initialized for one in info])
