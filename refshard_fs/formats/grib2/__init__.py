"""GRIB2 files: a zarr group with a variable for each parameter and kind of level."""

from __future__ import annotations

from refshard_fs.core.format import Format, begins_with

MAGIC = b"GRIB"


FORMAT = Format("grib2", begins_with(MAGIC), "refshard_fs.formats.grib2.source")
