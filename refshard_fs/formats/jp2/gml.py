"""Locate an image by GMLJP2: a text in GML that describes the image's grid. No I/O here."""

from __future__ import annotations

import math
import re
from xml.etree.ElementTree import Element

from refshard_fs.core.format import parse_xml
from refshard_fs.formats.tiff.georeference import SPATIAL_REF, Georeference


def locate_by_gml(text: str, height: int, width: int) -> Georeference | None:
    """Return the place of an image of ``height`` rows and ``width`` columns; None if the text has no rectified grid.

    The order of axes depends on the reference system: easting and northing, or northing and easting. If north is up in
    the image, the vectors from pixel to pixel show the order, so no table of reference systems is needed.
    """
    root = parse_xml(text.replace("\0", " "))  # some writers leave NUL between elements
    grid = root.find(".//{*}RectifiedGrid")
    point = None if grid is None else grid.find("{*}origin/{*}Point")
    vectors = [] if grid is None else [_parse_numbers(vector) for vector in grid.iterfind("{*}offsetVector")]
    if grid is None or point is None or len(vectors) != 2:
        return None
    position = point.find("{*}pos")
    origin = _parse_numbers(point.find("{*}coordinates") if position is None else position)
    if len(origin) < 2 or any(len(vector) < 2 for vector in vectors):
        return None
    (x, y), (a, d), (b, e) = origin[:2], vectors[0][:2], vectors[1][:2]
    if a == e == 0:  # northing comes first
        x, y, a, d, b, e = y, x, d, a, e, b
    elif b == d == 0 and a < 0 < e:  # northing comes first, and the first vector points down, along a column
        x, y, a, e = y, x, e, a
    transform = (x - (a + b) / 2, a, b, y - (d + e) / 2, d, e)  # the origin is the centre of a pixel
    if not all(map(math.isfinite, transform)):
        return None
    names = [element.get("srsName", "") for element in (point, grid, *root.iterfind(".//{*}Envelope"))]
    code = next(filter(None, (re.search(r"EPSG.*?(\d{4,6})$", name, re.ASCII | re.IGNORECASE) for name in names)), None)
    name = next(filter(None, names), "")
    crs = name if code is None else f"EPSG:{code[1]}"
    return Georeference(height, width, transform, {"crs_wkt": crs, SPATIAL_REF: crs} if crs else {})


def _parse_numbers(element: Element | None) -> list[float]:
    """Return the numbers in the text of an element; an empty list if the text has other words."""
    words = re.split(r"[\s,]+", (element.text or "").strip()) if element is not None else []
    try:
        return [float(word) for word in words]
    except ValueError:
        return []
