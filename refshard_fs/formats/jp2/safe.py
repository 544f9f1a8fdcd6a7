"""Open SAFE folders of Sentinel-2: an array for each image, in a group for each size of pixels. No I/O here.

The manifest of a folder lists its files. Arrays are named by the band of the image (``B02``, ``TCI``), groups by the
size of a pixel (``r10m``). Lower resolution levels of an image are shown only if its file is opened by itself.
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

LONGEST: Final = 1 << 24  # the most bytes of a manifest
MOST: Final = 1 << 8  # the most images in a folder; products have 13 to 37
_IMAGE: Final = re.compile(rb'href="\./(GRANULE/[\w./-]+/IMG_DATA/(?:R\d+m/)?[\w.-]+\.jp2)"')
_BAND: Final = re.compile(r"_(\w{3})(?:_\d+m)?\.jp2")  # T32TQM_20240101T101411_B02_10m.jp2


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a SAFE folder: read its manifest, then all its images together."""
    manifest = relative_to(probe.url, MANIFEST)
    data: bytes = yield Load(Span(manifest, 0, LONGEST, exact=False), Raw())
    if len(data) == LONGEST:
        raise ManifestError(f"{manifest}: expected fewer than {LONGEST} bytes, found {LONGEST} or more")
    names = list(dict.fromkeys(name.decode() for name in _IMAGE.findall(data) if b".." not in name))
    if not 0 < len(names) <= MOST:
        raise ManifestError(
            f"{manifest}: expected 1 to {MOST} images (GRANULE/*/IMG_DATA/*.jp2), found {len(names)}. "
            "Open the measurements of other missions one by one, or as a pattern"
        )
    # Images of different granules have different places and equal names of bands.
    if len(granules := {name.split("/")[1] for name in names}) > 1:
        raise ManifestError(
            f"{manifest}: expected images of one granule, found images of {len(granules)} granules. Open the images "
            "(GRANULE/*/IMG_DATA/*.jp2) one by one"
        )
    urls = [relative_to(probe.url, name) for name in names]
    answers: tuple[tuple[Facts, bytes] | None, ...] = yield tuple(Head(url, options.head) for url in urls)
    group = RasterGroupBuilder(probe.url)
    files = []
    for url, answer in zip(urls, answers, strict=True):
        if answer is None:
            group.reports[url] = "expected this image, which the manifest lists; found no such file"
        else:
            files.append(Probe(url, *answer))
    images = yield from run_together([_read_or_report(file, group) for file in files])
    group.reports.pop("lower resolutions", None)
    places: dict[str, Georeference | None] = {}
    for file, image in zip(files, images, strict=True):
        if image is None:
            continue
        folder, name = _name_group(image), file.url.rpartition("/")[2]
        path = f"{folder}/{band[1] if (band := _BAND.search(name)) else name[:-4]}"
        if path in group.arrays:
            group.reports[file.url] = f"expected different names of images, found two images {path!r}"
        elif places.setdefault(folder, image.place) != image.place:
            group.reports[file.url] = f"expected the place (CRS and corner) of the images in {folder!r}, found another"
        else:
            image.add_level(group, path, 0, options.zarr_format)
    return group.make_keyspace(options.zarr_format)


def _read_or_report(probe: Probe, group: RasterGroupBuilder) -> Steps[Image | None]:
    """Read an image. If it cannot be shown, add the reason to the reports of ``group``, and return None."""
    try:
        return (yield from read_image(probe, group))
    except ManifestError as e:
        group.reports[probe.url] = str(e)
        return None


def _name_group(image: Image) -> str:
    """Name the group of an image by the size of a pixel, as in r10m; without a place, by its rows and columns."""
    place = image.place
    if place is None or place.transform is None:
        rows, columns = image.header.size.compute_shape(0)
        return f"{rows}x{columns}"
    return f"r{abs(place.transform[1]):g}m"
