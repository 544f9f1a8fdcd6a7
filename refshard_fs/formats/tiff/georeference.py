"""The place of an image by GeoTIFF's tags, as coordinates and attributes in rioxarray's convention. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.core.array_group import ArrayDescription, ArrayGroupBuilder, Chunks, EvenlySpaced, SingleChunk
from refshard_fs.core.keys import join, parent
from refshard_fs.formats.tiff.crs import IS_POINT, RASTER_TYPE, describe_crs, parse_geo_keys
from refshard_fs.formats.tiff.ifds import Ifd
from refshard_fs.formats.tiff.images import DOUBLES, KEYS, MATRIX, SCALE, TEXTS, TIEPOINT

SPATIAL_REF: Final = "spatial_ref"  # the variable with the CRS and the transform as attributes


class Georeference(NamedTuple):
    """The place of an image of ``height`` and ``width`` and its overviews: GDAL's transform, attributes of the CRS."""

    height: int
    width: int
    transform: tuple[float, ...]
    crs: dict[str, Any]

    def add(
        self, to: ArrayGroupBuilder, group: str, shape: tuple[int, int, int], names: Mapping[str, str]
    ) -> dict[str, Any]:
        """Add the coordinates of the image or an overview. Return the attributes that refer to them.

        ``shape`` are rows, columns and bands, ``names`` the names of the axes ``y``, ``x`` and perhaps ``band``. If the
        image is rotated, it has no y for a row and no x for a column, so none are added.
        """
        x, a, b, y, d, e = self.transform
        height, width, bands = shape
        across, down = self.width / width, self.height / height
        a, b, d, e = a * across, b * down, d * across, e * down
        own = SPATIAL_REF + names["x"].removeprefix("x")
        spatial = {**self.crs, "GeoTransform": " ".join(map(str, (x, a, b, y, d, e)))}
        _add_coordinate(to, join(group, own), (), "<i8", SingleChunk(bytes(8)), spatial)
        if "band" in names:
            numbers = SingleChunk(np.arange(1, bands + 1, dtype="<i8").tobytes())
            _add_coordinate(to, join(group, names["band"]), (bands,), "<i8", numbers, {})
        if b == d == 0:
            for axis, first, step, extent in (("x", x, a, width), ("y", y, e, height)):
                middles = EvenlySpaced(first + step / 2, step, extent)
                _add_coordinate(to, join(group, names[axis]), (extent,), "<f8", middles, {"axis": axis.upper()})
        return {"grid_mapping": own, "coordinates": own}


def _add_coordinate(
    to: ArrayGroupBuilder, path: str, shape: tuple[int, ...], dtype: str, chunks: Chunks, attributes: Mapping[str, Any]
) -> None:
    """Add a coordinate, scalar or along its own dimension, unless the path exists."""
    if path in to.arrays:
        return
    cut = (chunks.chunk,) if isinstance(chunks, EvenlySpaced) else shape
    names = [parent(path)[1] for _ in shape]
    to.add(path, ArrayDescription(path, shape, cut, np.dtype(dtype), names, attributes), chunks)


def locate_image(ifd: Ifd, height: int, width: int) -> Georeference | None:
    """Return the place of an image of ``height`` and ``width``; None if the tags of its IFD do not have it."""
    keys, matrix, scale, tie = parse_geo_keys(ifd), ifd.numbers(MATRIX), ifd.numbers(SCALE), ifd.numbers(TIEPOINT)
    if len(matrix) == 16:
        a, b, _, x, d, e, _, y = matrix[:8]
    elif len(scale) >= 2 and len(tie) >= 6:
        a, b, d, e = scale[0], 0.0, 0.0, -scale[1]
        x, y = tie[3] - tie[0] * a, tie[4] - tie[1] * e
    else:
        return None
    if keys.get(RASTER_TYPE) == IS_POINT:  # the tie point is the centre of a pixel
        x, y = x - (a + b) / 2, y - (d + e) / 2
    crs = describe_crs(keys)
    if not crs:  # show the tags under their own names
        tags = {"GeoKeyDirectory": ifd.numbers(KEYS), "GeoDoubleParams": ifd.numbers(DOUBLES)}
        crs = {name: value for name, value in {**tags, "GeoAsciiParams": ifd.text(TEXTS)}.items() if value}
    if not all(map(math.isfinite, (x, a, b, y, d, e))):
        return None
    return Georeference(height, width, (x, a, b, y, d, e), crs)
