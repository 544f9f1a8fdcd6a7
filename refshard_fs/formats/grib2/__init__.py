"""GRIB2 files: a zarr group with a variable for each parameter and kind of level."""

from __future__ import annotations

from refshard_fs.core.format import Format, Probe

MAGIC = b"GRIB"


def _is_grib(probe: Probe) -> bool:
    return probe.head.startswith(MAGIC)


FORMAT = Format("grib2", _is_grib, "refshard_fs.formats.grib2.source")
