"""The place of an image by GeoTIFF's tags, as coordinates and attributes in rioxarray's convention. No I/O here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.core.array_group import ArrayDescription, ArrayGroupBuilder, Chunks, EvenlySpaced, SingleChunk
from refshard_fs.core.keys import join, parent
from refshard_fs.formats.tiff.crs import IS_POINT, RASTER_TYPE, describe_crs, parse_geo_keys
from refshard_fs.formats.tiff.ifds import Ifd
from refshard_fs.formats.tiff.images import DOUBLES, KEYS, MATRIX, RATIONAL_POLYNOMIAL, SCALE, TEXTS, TIEPOINT

SPATIAL_REF: Final = "spatial_ref"  # the variable with the CRS and the transform as attributes


class Georeference(NamedTuple):
    """The place of an image of ``height`` and ``width`` and its overviews.

    ``transform`` is GDAL's; without it, ``points`` are ground control points, each (row, column, x, y, z). ``crs`` are
    attributes of the CRS, ``polynomials`` the coefficients of rational polynomials (RPCs).
    """

    height: int
    width: int
    transform: tuple[float, ...] | None
    crs: dict[str, Any]
    points: Sequence[Sequence[float]] = ()
    polynomials: Mapping[str, Any] = {}

    def add(
        self, to: ArrayGroupBuilder, group: str, shape: tuple[int, int, int], names: Mapping[str, str]
    ) -> dict[str, Any]:
        """Add the coordinates of the image or an overview. Return the attributes that refer to them.

        ``shape`` are rows, columns and bands, ``names`` the names of the axes ``y``, ``x`` and perhaps ``band``. If the
        image is rotated, it has no y for a row and no x for a column, so none are added.
        """
        height, width, bands = shape
        down, across = self.height / height, self.width / width
        own = SPATIAL_REF + names["x"].removeprefix("x")
        spatial = dict(self.crs)
        if self.points:
            spatial["gcps"] = _write_points(
                [(row / down, column / across, *place) for row, column, *place in self.points]
            )
        if self.polynomials and shape[:2] == (self.height, self.width):
            spatial["rpcs"] = json.dumps(self.polynomials)
        if self.transform is not None:
            x, a, b, y, d, e = self.transform
            a, b, d, e = a * across, b * down, d * across, e * down
            spatial["GeoTransform"] = " ".join(map(str, (x, a, b, y, d, e)))
            if b == d == 0:
                for axis, first, step, extent in (("x", x, a, width), ("y", y, e, height)):
                    middles = EvenlySpaced(first + step / 2, step, extent)
                    _add_coordinate(to, join(group, names[axis]), (extent,), "<f8", middles, {"axis": axis.upper()})
        _add_coordinate(to, join(group, own), (), "<i8", SingleChunk(bytes(8)), spatial)
        if "band" in names:
            numbers = SingleChunk(np.arange(1, bands + 1, dtype="<i8").tobytes())
            _add_coordinate(to, join(group, names["band"]), (bands,), "<i8", numbers, {})
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
    keys, matrix, scale, ties = parse_geo_keys(ifd), ifd.numbers(MATRIX), ifd.numbers(SCALE), ifd.numbers(TIEPOINT)
    is_point = keys.get(RASTER_TYPE) == IS_POINT  # coordinates are of the centres of pixels
    points: list[tuple[float, ...]] = []
    transform: tuple[float, ...] | None = None
    if len(matrix) == 16:
        a, b, _, x, d, e, _, y = matrix[:8]
        transform = (x, a, b, y, d, e)
    elif len(scale) >= 2 and len(ties) >= 6:
        a, e = scale[0], -abs(scale[1])  # some writers state the step of y with its sign
        transform = (ties[3] - ties[0] * a, a, 0.0, ties[4] - ties[1] * e, 0.0, e)
    elif all(map(math.isfinite, ties)):
        half = 0.5 if is_point else 0.0
        rows = zip(*[iter(ties)] * 6, strict=False)
        points = [(row + half, column + half, x, y, z) for column, row, _, x, y, z in rows]
    if transform is not None and is_point:
        x, a, b, y, d, e = transform
        transform = (x - (a + b) / 2, a, b, y - (d + e) / 2, d, e)
    if transform is not None and not all(map(math.isfinite, transform)):
        transform = None
    polynomials = _parse_polynomials(ifd)
    crs = describe_crs(keys)
    if transform is None and not points and not polynomials and not crs:
        return None
    if not crs:  # show the tags under their own names
        tags = {"GeoKeyDirectory": ifd.numbers(KEYS), "GeoDoubleParams": ifd.numbers(DOUBLES)}
        crs = {name: value for name, value in {**tags, "GeoAsciiParams": ifd.text(TEXTS)}.items() if value}
    return Georeference(height, width, transform, crs, points, polynomials)


def _write_points(points: Sequence[Sequence[float]]) -> str:
    """Return ground control points as rioxarray writes them: a JSON text of GeoJSON."""
    features = [
        {
            "type": "Feature",
            "properties": {"id": str(number), "info": "", "row": row, "col": column},
            "geometry": {"type": "Point", "coordinates": place},
        }
        for number, (row, column, *place) in enumerate(points, 1)
    ]
    return json.dumps({"type": "FeatureCollection", "features": features})


def _parse_polynomials(ifd: Ifd) -> dict[str, Any]:
    """Return the coefficients of rational polynomials, named as the arguments of ``rasterio.rpc.RPC``."""
    numbers = ifd.numbers(RATIONAL_POLYNOMIAL)
    if len(numbers) != 92 or not all(map(math.isfinite, numbers)):
        return {}
    names = [f"{axis}_{what}" for what in ("off", "scale") for axis in ("line", "samp", "lat", "long", "height")]
    found: dict[str, Any] = dict(zip(("err_bias", "err_rand", *names), numbers, strict=False))
    lists = ("line_num_coeff", "line_den_coeff", "samp_num_coeff", "samp_den_coeff")
    return found | {name: numbers[at : at + 20] for name, at in zip(lists, range(12, 92, 20), strict=True)}
