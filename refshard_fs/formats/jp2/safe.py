"""SAFE folders of Sentinel-2 as groups: an array for each image, in a group for each resolution. No I/O here.

The manifest of a folder lists its files. Images are named by their band (``B02``, ``TCI``), groups by the size of a
pixel (``r10m``). The lower resolution levels of an image are those of its own file, and not shown here.
"""

from __future__ import annotations

import re
from typing import Final

from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Facts, Head, Load, Raw, Span, Steps, run_together
from refshard_fs.core.rasters import RasterGroupBuilder
from refshard_fs.errors import ManifestError
from refshard_fs.formats.jp2 import MANIFEST
from refshard_fs.formats.jp2.source import Image, read_image
from refshard_fs.formats.tiff.georeference import Georeference
from refshard_fs.security.policy import relative_to

LONGEST: Final = 1 << 24  # bytes of a manifest
MOST: Final = 1 << 8  # images in a folder; products have 13 to 37
_IMAGE: Final = re.compile(rb'href="\./(GRANULE/[\w./-]+/IMG_DATA/(?:R\d+m/)?[\w.-]+\.jp2)"')
_BAND: Final = re.compile(r"_(\w{3})(?:_\d+m)?\.jp2")  # T32TQM_20240101T101411_B02_10m.jp2


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a SAFE folder."""
    manifest = relative_to(probe.url, MANIFEST)
    data: bytes = yield Load(Span(manifest, 0, LONGEST, exact=False), Raw())
    names = list(dict.fromkeys(name.decode() for name in _IMAGE.findall(data) if b".." not in name))
    if not 0 < len(names) <= MOST or len(data) == LONGEST:
        raise ManifestError(
            f"{manifest}: expected 1 to {MOST} images (GRANULE/*/IMG_DATA/*.jp2), found {len(names)}. "
            "Open the measurements of other missions one by one, or as a pattern"
        )
    if len(granules := {name.split("/")[1] for name in names}) > 1:  # they have other places, and bands of one name
        raise ManifestError(f"{manifest}: expected images of one granule, found {len(granules)}: open them one by one")
    urls = [relative_to(probe.url, name) for name in names]
    found: tuple[tuple[Facts, bytes] | None, ...] = yield tuple(Head(url, options.head) for url in urls)
    group = RasterGroupBuilder(probe.url)
    there = []
    for url, answer in zip(urls, found, strict=True):
        if answer is None:
            group.reports[url] = "the manifest lists it, and it is not there"
        else:
            there.append(Probe(url, *answer))
    images = yield from run_together([_read(one, group) for one in there])
    group.reports.pop("lower resolutions", None)
    places: dict[str, Georeference | None] = {}
    for one, image in zip(there, images, strict=True):
        if image is None:
            continue
        folder, file = _name_group(image), one.url.rpartition("/")[2]
        path = f"{folder}/{band[1] if (band := _BAND.search(file)) else file[:-4]}"
        if path in group.arrays or places.setdefault(folder, image.place) != image.place:
            group.reports[one.url] = "another image has its name, or those of its resolution have another place"
        else:
            image.add_level(group, path, 0, options.zarr_format)
    return group.keyspace(options.zarr_format)


def _read(probe: Probe, group: RasterGroupBuilder) -> Steps[Image | None]:
    """Return an image; None, and a report, if it cannot be shown."""
    try:
        return (yield from read_image(probe, group))
    except ManifestError as e:
        group.reports[probe.url] = str(e)
        return None


def _name_group(image: Image) -> str:
    """Return the name of the group of images with pixels of this size: r10m; or their rows and columns."""
    place = image.place
    if place is None or place.transform is None:
        rows, columns = image.header.size.shape(0)
        return f"{rows}x{columns}"
    return f"r{abs(place.transform[1]):g}m"
