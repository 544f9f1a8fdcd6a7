"""TIFF and BigTIFF files (COG, GeoTIFF, OME-TIFF among them): a zarr group of their images and overviews."""

from __future__ import annotations

from refshard_fs.core.format import Format, Probe

MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # byte order, then 42, or 43 for BigTIFF


def _is_tiff(probe: Probe) -> bool:
    return probe.head.startswith(MAGICS)


FORMAT = Format("tiff", _is_tiff, "refshard_fs.formats.tiff.source")
