"""What OME-XML says of a file: which pages make up which images, and along which axes. No I/O here."""

from __future__ import annotations

import math
from typing import Final, NamedTuple
from xml.etree import ElementTree

from refshard_fs.formats.tiff.geo import xml
from refshard_fs.formats.tiff.ifds import MOST_IFDS


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
