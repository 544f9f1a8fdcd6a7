"""Convert GeoTIFF's tags about the place of an image to coordinates and attributes, as rioxarray does. No I/O here."""

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
    """The place of an image of ``height`` rows and ``width`` columns, and of its overviews.

    ``transform`` are the six numbers of GDAL's geotransform, from pixels to coordinates. ``points`` are ground control
    points, each (row, column, x, y, z), if there is no transform. ``crs`` are attributes of the CRS, ``polynomials``
    the coefficients of rational polynomials (RPCs).
    """

    height: int
    width: int
    transform: tuple[float, ...] | None
    crs: dict[str, Any]
    points: Sequence[Sequence[float]] = ()
    polynomials: Mapping[str, Any] = {}

    def add(
        self, builder: ArrayGroupBuilder, group: str, shape: tuple[int, int, int], names: Mapping[str, str]
    ) -> dict[str, Any]:
        """Add the coordinates of the image or an overview to ``group``. Return the attributes that refer to them.

        ``shape`` is the number of rows, columns and bands. ``names`` has the names of dimensions by the axes ``y``,
        ``x`` and, if the array has it, ``band``. A rotated image gets no coordinates y and x, since x differs between
        the pixels of a column.
        """
        height, width, bands = shape
        down, across = self.height / height, self.width / width  # in rows and columns of the full image
        spatial_ref = SPATIAL_REF + names["x"].removeprefix("x")
        spatial = dict(self.crs)
        if self.points:
            spatial["gcps"] = _encode_points(
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
                    attributes = {"axis": axis.upper()}
                    _add_coordinate(builder, join(group, names[axis]), (extent,), "<f8", middles, attributes)
        _add_coordinate(builder, join(group, spatial_ref), (), "<i8", SingleChunk(bytes(8)), spatial)
        if "band" in names:
            numbers = SingleChunk(np.arange(1, bands + 1, dtype="<i8").tobytes())
            _add_coordinate(builder, join(group, names["band"]), (bands,), "<i8", numbers, {})
        return {"grid_mapping": spatial_ref, "coordinates": spatial_ref}


def _add_coordinate(
    builder: ArrayGroupBuilder,
    path: str,
    shape: tuple[int, ...],
    dtype: str,
    chunks: Chunks,
    attributes: Mapping[str, Any],
) -> None:
    """Add a scalar, or a coordinate whose dimension has its name. Do nothing if there is an array at ``path``."""
    if path in builder.arrays:
        return
    chunk_shape = (chunks.chunk,) if isinstance(chunks, EvenlySpaced) else shape
    names = [parent(path)[1] for _ in shape]
    builder.add(path, ArrayDescription(path, shape, chunk_shape, np.dtype(dtype), names, attributes), chunks)


def locate_image(ifd: Ifd, height: int, width: int) -> Georeference | None:
    """Return the place of an image of ``height`` rows and ``width`` columns; None if its tags define no place."""
    keys, matrix, scale, ties = (
        parse_geo_keys(ifd),
        ifd.get_numbers(MATRIX),
        ifd.get_numbers(SCALE),
        ifd.get_numbers(TIEPOINT),
    )
    is_point = keys.get(RASTER_TYPE) == IS_POINT
    points: list[tuple[float, ...]] = []
    transform: tuple[float, ...] | None = None
    if len(matrix) == 16:
        a, b, _, x, d, e, _, y = matrix[:8]
        transform = (x, a, b, y, d, e)
    elif len(scale) >= 2 and len(ties) >= 6:
        a, e = scale[0], -abs(scale[1])  # y decreases with rows; some writers store its scale as a negative number
        transform = (ties[3] - ties[0] * a, a, 0.0, ties[4] - ties[1] * e, 0.0, e)
    elif all(map(math.isfinite, ties)):
        half = 0.5 if is_point else 0.0
        rows = zip(*[iter(ties)] * 6, strict=False)
        points = [(row + half, column + half, x, y, z) for column, row, _, x, y, z in rows]
    if transform is not None and is_point:  # GDAL's transform refers to the corners of pixels
        x, a, b, y, d, e = transform
        transform = (x - (a + b) / 2, a, b, y - (d + e) / 2, d, e)
    if transform is not None and not all(map(math.isfinite, transform)):
        transform = None
    polynomials = _parse_polynomials(ifd)
    crs = describe_crs(keys)
    if transform is None and not points and not polynomials and not crs:
        return None
    if not crs:  # show the tags under their own names
        tags = {"GeoKeyDirectory": ifd.get_numbers(KEYS), "GeoDoubleParams": ifd.get_numbers(DOUBLES)}
        crs = {name: value for name, value in {**tags, "GeoAsciiParams": ifd.get_text(TEXTS)}.items() if value}
    return Georeference(height, width, transform, crs, points, polynomials)


def _encode_points(points: Sequence[Sequence[float]]) -> str:
    """Return ground control points as a text of GeoJSON, as rioxarray writes them."""
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
    """Return the coefficients of rational polynomials by the arguments of ``rasterio.rpc.RPC``; empty without them.

    The tag has 92 numbers: two errors, ten offsets and scales, and four lists of twenty coefficients.
    """
    numbers = ifd.get_numbers(RATIONAL_POLYNOMIAL)
    if len(numbers) != 92 or not all(map(math.isfinite, numbers)):
        return {}
    names = [f"{axis}_{kind}" for kind in ("off", "scale") for axis in ("line", "samp", "lat", "long", "height")]
    singles: dict[str, Any] = dict(zip(("err_bias", "err_rand", *names), numbers, strict=False))
    lists = ("line_num_coeff", "line_den_coeff", "samp_num_coeff", "samp_den_coeff")
    return singles | {name: numbers[at : at + 20] for name, at in zip(lists, range(12, 92, 20), strict=True)}
