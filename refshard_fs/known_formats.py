"""The table of all formats of sources: the built-in formats, and those of plug-ins."""

from __future__ import annotations

from functools import cache

from refshard_fs import cubes
from refshard_fs.core.format import Format, load_plugins
from refshard_fs.formats import (
    bcolz,
    cdf,
    chunk_manifest,
    dmrpp,
    fits,
    grib2,
    hdf4,
    hdf5,
    icechunk,
    jp2,
    kerchunk_json,
    kerchunk_parquet,
    n5,
    netcdf3,
    neuroglancer,
    tiff,
    zarr_hierarchy,
    zip,
)

BUILT_IN = (
    zarr_hierarchy.FORMAT,
    kerchunk_json.FORMAT,
    kerchunk_parquet.FORMAT,
    chunk_manifest.FORMAT,
    cubes.FORMAT,
    icechunk.FORMAT,
    bcolz.FORMAT,
    bcolz.BLOSCPACK,
    neuroglancer.FORMAT,
    n5.FORMAT,
    hdf5.FORMAT,
    hdf4.FORMAT,
    netcdf3.FORMAT,
    cdf.FORMAT,
    fits.FORMAT,
    tiff.FORMAT,
    jp2.FORMAT,
    jp2.SAFE,
    dmrpp.FORMAT,
    grib2.FORMAT,
    grib2.RULE,
    zip.FORMAT,
)


@cache
def load_formats() -> dict[str, Format]:
    """Return all formats by name: the built-in formats, and those of plug-ins."""
    return load_plugins("refshard.formats", Format, BUILT_IN)
