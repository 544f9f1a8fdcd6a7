"""What a TIFF says of its images beside them: GeoTIFF and GDAL where they lie, OME-XML how pages make them up.

Places are shown as attributes and coordinates in rioxarray's convention. No I/O here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree

import numpy as np

from refshard_fs.core.array_group import ArrayGroupBuilder, Given, Spaced
from refshard_fs.core.keys import join
from refshard_fs.formats.tiff.ifds import MOST_IFDS, Ifd
from refshard_fs.formats.tiff.images import Page

SPATIAL_REF: Final = "spatial_ref"  # the variable that has the CRS and the transform as attributes

SCALE, TIEPOINT, MATRIX, KEYS, DOUBLES, TEXTS = 33550, 33922, 34264, 34735, 34736, 34737
GDAL_METADATA, NODATA = 42112, 42113
DESCRIPTION: Final = 270
DESCRIBING: Final = (DESCRIPTION, SCALE, TIEPOINT, MATRIX, KEYS, DOUBLES, TEXTS, GDAL_METADATA, NODATA)
_RASTER, _GEOGRAPHIC, _PROJECTED = 1025, 2048, 3072  # keys
_IS_POINT, _USER_DEFINED = 2, 32767  # their values
_ROLES: Final = {"scale": "scale_factor", "offset": "add_offset", "description": "long_name", "unittype": "units"}
_NEUTRAL: Final = {"scale": 1.0, "offset": 0.0}


def xml(text: str) -> ElementTree.Element:
    """Return the root of an XML text; ValueError where it is none, or defines entities, which can be bombs."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("its XML has a document type, which is not read")
    try:
        return ElementTree.fromstring(text)  # noqa: S314  # without a document type there are no entities
    except ElementTree.ParseError as e:
        raise ValueError(f"its XML is damaged: {e}") from e


class Placed(NamedTuple):
    """Where an image lies: GDAL's transform, and what is said of the CRS."""

    transform: tuple[float, ...]
    crs: dict[str, Any]

    def add(
        self, to: ArrayGroupBuilder, group: str, full: Page, page: Page, names: Mapping[str, str]
    ) -> dict[str, Any]:
        """Add the coordinates of ``page``, an overview of ``full`` or itself; return the attributes that name them.

        Rows have one y, and columns one x, unless the image is turned.
        """
        x, a, b, y, d, e = self.transform
        across, down = full.width / page.width, full.height / page.height
        a, b, d, e = a * across, b * down, d * across, e * down
        own = SPATIAL_REF + names["x"].removeprefix("x")
        spatial = {**self.crs, "GeoTransform": " ".join(map(str, (x, a, b, y, d, e)))}
        to.add_coordinate(join(group, own), (), "<i8", Given(bytes(8)), spatial)
        if "band" in names:
            numbers = Given(np.arange(1, page.samples + 1, dtype="<i8").tobytes())
            to.add_coordinate(join(group, names["band"]), (page.samples,), "<i8", numbers, {})
        if b == d == 0:
            for axis, first, step, extent in (("x", x, a, page.width), ("y", y, e, page.height)):
                middles = Spaced(first + step / 2, step, extent)
                to.add_coordinate(join(group, names[axis]), (extent,), "<f8", middles, {"axis": axis.upper()})
        return {"grid_mapping": own, "coordinates": own}


def placed(ifd: Ifd) -> Placed | None:
    """Return where an image lies; None where its tags do not say."""
    keys, matrix, scale, tie = _geo_keys(ifd), ifd.numbers(MATRIX), ifd.numbers(SCALE), ifd.numbers(TIEPOINT)
    if len(matrix) == 16:
        a, b, _, x, d, e, _, y = matrix[:8]
    elif len(scale) >= 2 and len(tie) >= 6:
        a, b, d, e = scale[0], 0.0, 0.0, -scale[1]
        x, y = tie[3] - tie[0] * a, tie[4] - tie[1] * e
    else:
        return None
    if keys.get(_RASTER) == _IS_POINT:  # the place of a pixel's middle
        x, y = x - (a + b) / 2, y - (d + e) / 2
    code = keys.get(_PROJECTED, keys.get(_GEOGRAPHIC, 0))
    if 0 < code < _USER_DEFINED:
        crs: dict[str, Any] = {"crs_wkt": f"EPSG:{code}", SPATIAL_REF: f"EPSG:{code}"}
    else:  # as the tags are called
        crs = {"GeoKeyDirectory": ifd.numbers(KEYS), "GeoDoubleParams": ifd.numbers(DOUBLES)}
        crs = {name: value for name, value in {**crs, "GeoAsciiParams": ifd.text(TEXTS)}.items() if value}
    return Placed((x, a, b, y, d, e), crs) if all(map(math.isfinite, (x, a, b, y, d, e))) else None


def _geo_keys(ifd: Ifd) -> dict[int, int]:
    """Return the geographic keys of an image that are whole numbers, by number: four for each, after a header."""
    directory = list(map(int, ifd.numbers(KEYS)))
    entries = zip(*[iter(directory[4:])] * 4, strict=False)
    return {key: value for key, where, _, value in entries if not where}


def attributes_of(ifd: Ifd, samples: int) -> dict[str, Any]:
    """Return the attributes of an image: what GDAL's metadata say of its bands."""
    if not ifd.text(GDAL_METADATA):
        return {}
    try:
        items = list(xml(ifd.text(GDAL_METADATA)).iter("Item"))
    except ValueError as e:
        return {"GDAL_METADATA": f"not shown: {e}"}
    found: dict[str, Any] = {}
    bands: dict[str, dict[str, Any]] = {}
    for item in items:
        role, text = item.get("role", ""), item.text or ""
        if role in _ROLES:
            bands.setdefault(role, {})[item.get("sample", "")] = number(text) if role in _NEUTRAL else text
    for role, known in bands.items():
        values = [known.get(str(band), _NEUTRAL.get(role, "")) for band in range(samples)]
        if len(set(values)) == 1:
            found[_ROLES[role]] = values[0]
        else:  # xarray applies one scale to all bands, or none
            found[f"{role}s" if role in _NEUTRAL else _ROLES[role]] = values
    return found


def number(text: str) -> Any:
    """Return the number that a text is; the text where it is none."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


class OmeImage(NamedTuple):
    """An image: the ``extents`` of its ``axes`` before y and x, and in C order the pages that it has; None: missing."""

    name: str
    axes: tuple[str, ...]
    extents: tuple[int, ...]
    pages: tuple[int | None, ...]


PLAIN: Final = OmeImage("", (), (), ())  # a page that no OME-XML describes


def images_of(text: str, pages: int) -> list[OmeImage]:
    """Return the images that a text describes, of a file of so many ``pages``; none where it is no OME-XML.

    Raises ValueError where they are not in the file.
    """
    if not text.rstrip().endswith(("</OME>", ":OME>")):
        return []
    root = xml(text)
    images = [image for image in root.iterfind("{*}Image") if image.find("{*}Pixels") is not None]
    if not 0 < len(images) <= pages:
        raise ValueError(f"its OME-XML has {len(images)} images, and the file {pages} pages")
    return [_image(image, root.get("UUID"), pages) for image in images]


def _image(image: ElementTree.Element, own: str | None, pages: int) -> OmeImage:
    pixels = image.find("{*}Pixels")
    assert pixels is not None
    order = pixels.get("DimensionOrder", "")
    if order[:2] != "XY" or sorted(order[2:]) != ["C", "T", "Z"]:
        raise ValueError(f"its DimensionOrder is {order[:20]!r}")
    sizes = {axis: _integer(pixels, f"Size{axis}", 1) for axis in order[2:]}  # the first of them varies fastest
    channel = pixels.find("{*}Channel")
    samples = 1 if channel is None else _integer(channel, "SamplesPerPixel", 1)
    sizes["C"] //= max(samples, 1)
    total = math.prod(sizes.values())
    if not 0 < total <= MOST_IFDS:
        raise ValueError(f"its OME-XML has images of {total} planes")
    planes: list[int | None] = [None] * total
    data = pixels.findall("{*}TiffData") or [ElementTree.Element("TiffData")]
    for element in data:
        uuid = element.find("{*}UUID")
        if uuid is not None and own is not None and (uuid.text or "").strip() != own:
            raise ValueError(f"planes of its image lie in another file, {uuid.get('FileName', '')[:100]!r}")
        first, stride = 0, 1
        for axis, size in sizes.items():
            first += _integer(element, f"First{axis}", 0) * stride
            stride *= size
        page = _integer(element, "IFD", 0)
        count = _integer(element, "PlaneCount", 1 if "IFD" in element.attrib else total)
        for step in range(min(count, total - first, pages - page)):
            planes[first + step] = page + step
    if all(page is None for page in planes):
        raise ValueError("its OME-XML names none of its pages")
    axes = [axis for axis in reversed(order[2:]) if sizes[axis] > 1]
    extents = tuple(sizes[axis] for axis in axes)
    return OmeImage(image.get("Name", ""), tuple(map(str.lower, axes)), extents, tuple(planes))


def _integer(element: ElementTree.Element, name: str, default: int) -> int:
    text = element.get(name, str(default))
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"its OME-XML has {name} {text[:20]!r}")
    return int(text)
