"""Import all modules that both sides of jobs use, so that imports are not measured."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil

import dask.array  # noqa: F401  # imported before the clock runs
import fsspec.implementations.http
import fsspec.implementations.reference  # noqa: F401  # imported before the clock runs
import h5netcdf  # noqa: F401  # imported before the clock runs
import s3fs  # noqa: F401  # imported before the clock runs
import xarray as xr

import benchmarks.jobs.running  # noqa: F401  # imported before the clock runs
import refshard_fs

__all__: list[str] = []

with contextlib.suppress(ImportError):
    import distributed  # noqa: F401  # otherwise dask imports it at its first computation
with contextlib.suppress(ImportError):
    import rasterio  # noqa: F401  # importing it after eccodes, which xarray imports, crashes

for name in ("deflate", "zarrs"):  # otherwise imported at the first chunk, and by zarr at the first array
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
for module in pkgutil.walk_packages(refshard_fs.__path__, "refshard_fs."):
    if not module.name.endswith("__main__"):
        with contextlib.suppress(ImportError):  # some modules need a version of zarr that is not installed
            importlib.import_module(module.name)
xr.backends.list_engines()
