"""The formats of sources, a folder for each. None of them imports another; `session` composes them.

A folder says in its ``__init__`` how its format is recognised, and imports little to do so. Those of other packages are
registered in the group of entry points ``refshard.formats``: see `core.format`.
"""

from __future__ import annotations

from functools import cache

from refshard_fs.core.format import Format, plugins
from refshard_fs.formats import (
    bcolz,
    chunk_manifest,
    dmrpp,
    fits,
    grib2,
    hdf5,
    kerchunk_json,
    kerchunk_parquet,
    netcdf3,
    neuroglancer,
    tiff,
    virtual_concat,
    zarr_hierarchy,
    zip,
)

BUILT_IN = (
    zarr_hierarchy.FORMAT,
    kerchunk_json.FORMAT,
    kerchunk_parquet.FORMAT,
    chunk_manifest.FORMAT,
    virtual_concat.FORMAT,
    bcolz.FORMAT,
    bcolz.BLOSCPACK,
    neuroglancer.FORMAT,
    hdf5.FORMAT,
    netcdf3.FORMAT,
    fits.FORMAT,
    tiff.FORMAT,
    dmrpp.FORMAT,
    grib2.FORMAT,
    zip.FORMAT,
)


@cache
def known_formats() -> dict[str, Format]:
    """Return every format by its name: those of this package, and those that others have registered."""
    return {known.name: known for known in (*BUILT_IN, *plugins("refshard.formats"))}
