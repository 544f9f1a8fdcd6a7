"""TIFF and BigTIFF files (also COG, GeoTIFF, OME-TIFF): a zarr group of their images and overviews."""

from __future__ import annotations

from refshard_fs.core.format import Format, begins_with

MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # byte order, then 42, or 43 for BigTIFF


FORMAT = Format("tiff", begins_with(*MAGICS), "refshard_fs.formats.tiff.source")
