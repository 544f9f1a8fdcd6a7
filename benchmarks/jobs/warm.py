"""Importing this module imports what both sides use, so that no side pays for imports."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil

import dask.array  # noqa: F401
import fsspec.implementations.http
import fsspec.implementations.reference  # noqa: F401
import h5netcdf  # noqa: F401
import s3fs  # noqa: F401
import xarray as xr

import benchmarks.jobs.running  # noqa: F401
import refshard_fs

__all__: list[str] = []

with contextlib.suppress(ImportError):
    import distributed  # noqa: F401  # which dask imports at its first computation
with contextlib.suppress(ImportError):
    import rasterio  # noqa: F401  # before eccodes, which xarray imports: it crashes after it

for name in ("deflate", "zarrs"):  # at the first chunk, and by zarr at the first array
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
for module in pkgutil.walk_packages(refshard_fs.__path__, "refshard_fs."):
    if not module.name.endswith("__main__"):
        with contextlib.suppress(ImportError):  # of a version of zarr that is not installed
            importlib.import_module(module.name)
xr.backends.list_engines()
