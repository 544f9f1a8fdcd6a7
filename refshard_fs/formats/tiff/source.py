"""TIFF files as zarr groups: an array for each page and overview, or each level of an OME-TIFF's image. No I/O here.

What a file says of its images beside them is read here too: OME-XML, how pages make up images; GeoTIFF and GDAL, where
they lie, shown as attributes and coordinates in rioxarray's convention.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from xml.etree.ElementTree import Element
from xml.sax.saxutils import unescape

import msgspec
import numpy as np

from refshard_fs.core.array_group import ArrayDescription, ArrayGroupBuilder, Chunks, Given, fill_of
from refshard_fs.core.format import OpenOptions, Probe, xml
from refshard_fs.core.keys import join, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.tiff.ifds import MOST_IFDS, Ifd, Tag, Tiff
from refshard_fs.formats.tiff.images import (
    DESCRIBING,
    DESCRIPTION,
    DOUBLES,
    GDAL_METADATA,
    KEYS,
    MATRIX,
    NATIVE,
    NODATA,
    SCALE,
    SUB_IFDS,
    TEXTS,
    TIEPOINT,
    Page,
    TileChunks,
    contiguous,
    damage_of,
    is_read,
    page_of,
)

SMALL: Final = 1 << 16  # bytes of a tag that is read when the file is opened; longer tables are read with the chunks
LONG: Final = 1 << 26  # bytes of a tag that is read at all, such as OME-XML
SPATIAL_REF: Final = "spatial_ref"  # the variable that has the CRS and the transform as attributes

_RASTER, _GEOGRAPHIC, _PROJECTED = 1025, 2048, 3072  # keys
_IS_POINT, _USER_DEFINED = 2, 32767  # their values
_ROLES: Final = {"scale": "scale_factor", "offset": "add_offset", "description": "long_name", "unittype": "units"}
_NEUTRAL: Final = {"scale": 1.0, "offset": 0.0}
_QUOTES: Final = {"&quot;": '"', "&apos;": "'"}
_UNITS: Final = {
    "µm": "micrometer", "nm": "nanometer", "mm": "millimeter", "cm": "centimeter", "m": "meter", "pm": "picometer",
    "Å": "angstrom", "s": "second", "ms": "millisecond", "µs": "microsecond", "ns": "nanosecond", "min": "minute",
    "h": "hour", "d": "day",
}  # fmt: skip
_KINDS: Final = {"t": "time", "c": "channel", "band": "channel"}  # of axes, as OME-NGFF has them; others are of space


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a TIFF."""
    tiff = Tiff(probe.url, *probe.file("TIFF"), probe.head)
    ifds = yield from tiff.chain()
    if DESCRIPTION in ifds[0].lost:  # which may say what all pages are
        raise ManifestError(f"{tiff.url}: {damage_of(ifds[0])}")
    yield from tiff.fill(_wanted(ifds))
    below = [[int(offset) for offset in ifd.numbers(SUB_IFDS) if offset] for ifd in ifds]  # 0: none was written
    if sum(map(len, below)) > MOST_IFDS:
        raise ManifestError(f"{tiff.url}: its SubIFDs are more than {MOST_IFDS}: it is damaged")
    subs = yield from tiff.at(list(itertools.chain.from_iterable(below)))
    yield from tiff.fill(_wanted(subs))
    rest = iter(subs)
    pages = [[ifd, *itertools.islice(rest, len(offsets))] for ifd, offsets in zip(ifds, below, strict=True)]
    group = _Group(tiff, options.zarr_format)
    broken = ifds[-1].problem  # then pages behind it are not known, and none of an image's planes is missing
    images: list[OmeImage] = []
    try:
        images = images_of(ifds[0].text(DESCRIPTION), len(pages))
        for number, image in enumerate(images):
            name = "" if len(images) == 1 else str(number)
            there = [ifd for page in image.pages if page is not None for ifd in pages[page]]
            lost = list(filter(None, map(damage_of, there)))
            if broken is not None and None in image.pages:
                lost.append(broken)
            if lost:
                group.reports[name or "image"] = lost[0]
            else:
                group.show_image(name, image, pages)
    except ValueError as e:
        if broken is not None:
            raise ManifestError(f"{tiff.url}: {broken}") from e
        images, group = [], _Group(tiff, options.zarr_format)
        group.reports["OME-XML"] = f"its pages are shown one by one: {e}"
    if not images:
        group.show_pages(pages)
    else:
        for page in sorted(set(range(len(pages))) - {page for image in images for page in image.pages}):
            group.reports[f"page {page}"] = damage_of(pages[page][0]) or "no image of the OME-XML has it"
    return group.keyspace(options.zarr_format, group.groups.pop("", {}))


def _wanted(ifds: Sequence[Ifd]) -> Iterator[Tag]:
    """Yield the tags whose values are needed to open the file: all but what is long, and nobody here asks for."""
    for number, tag in itertools.chain.from_iterable(ifd.tags.items() for ifd in ifds):
        if is_read(number) and tag.size <= (LONG if number in DESCRIBING else SMALL):
            yield tag


class _Group(ArrayGroupBuilder):
    """The arrays of a TIFF, while they are put together."""

    def __init__(self, tiff: Tiff, zarr_format: int) -> None:
        super().__init__(tiff.url)
        self._tiff = tiff
        self._zarr_format = zarr_format
        self._extents: dict[str, int] = {}  # of a group's dimensions, by path

    def show_pages(self, pages: Sequence[Sequence[Ifd]]) -> None:
        """Show each page, and each of its overviews after it, as an array of the root."""
        ifds = list(itertools.chain.from_iterable(pages))
        text = ifds[0].text(DESCRIPTION)
        aperio = aperio_of(text)
        stack = re.search(r"^images=(\d{1,9})$", text, re.ASCII | re.MULTILINE)
        if text.startswith("ImageJ=") and stack and int(stack[1]) > len(ifds):
            self.reports["ImageJ"] = f"it has {stack[1]} images, of which those without an IFD are not shown"
        pyramids: list[list[str]] = []
        full: Page | None = None  # the last page that is no overview and no mask, its IFD, and where it lies
        of_full: Ifd | None = None
        place: Placed | None = None
        shown: dict[tuple[int, int], str] = {}  # images since that page, by height and width
        for number, ifd in enumerate(ifds):
            name = str(number)
            try:
                page = page_of(ifd, self._tiff)
                # Levels of Aperio's are tiled, and need not say that they are overviews; label and macro say so.
                is_apart = aperio is not None and not page.is_tiled and number > 0
                is_level = page.is_tiled if aperio is not None else page.is_reduced
                if full is None or not (is_level or is_apart or page.is_mask):
                    full, of_full, place = page, ifd, placed(ifd, page)
                    pyramids.append([])
                    shown = {}
                is_apart |= not (page.is_mask or page.is_like(full))
                described = [ifd]
                if of_full is not None and not (page.is_mask or is_apart) and page.samples == full.samples:
                    described.append(of_full)
                self._add_image(name, [page], described, PLAIN, None if is_apart else place)
            except ValueError as e:
                self.reports[name] = str(e)
                continue
            if is_apart and aperio is not None:
                self._add_attributes(name, {"long_name": aperio_role(ifd.text(DESCRIPTION), number)})
            elif page.is_mask:
                self._link_mask(name, shown.get((page.height, page.width)))
            elif not is_apart:
                shown[page.height, page.width] = name
                if len(page.shape) == len(full.shape):
                    pyramids[-1].append(name)
        sizes = {} if aperio is None else {"y": (aperio, "micrometer"), "x": (aperio, "micrometer")}
        self.add_pyramids("", [("", names) for names in pyramids if len(names) > 1], sizes)

    def _add_attributes(self, name: str, attributes: Mapping[str, Any]) -> None:
        array = self.arrays[name]
        self.arrays[name] = msgspec.structs.replace(array, attributes={**array.attributes, **attributes})

    def _link_mask(self, mask: str, image: str | None) -> None:
        """Say of a mask that it is one, and of its ``image`` which array that is, as CF does of quality flags."""
        said = f"mask of {image!r}" if image is not None else "mask of no image here"
        self._add_attributes(mask, {"long_name": f"{said}: pixels are valid where it is not zero"})
        if image is not None:
            self._add_attributes(image, {"ancillary_variables": mask})

    def show_image(self, group: str, image: OmeImage, pages: Sequence[Sequence[Ifd]]) -> None:
        """Show an image of an OME-TIFF as the arrays of a group, one for each level."""
        there = [page for page in image.pages if page is not None]
        levels = range(min(len(pages[page]) for page in there))
        for level in levels:
            shown = {page: page_of(pages[page][level], self._tiff) for page in set(there)}
            if len({page.look for page in shown.values()}) > 1:
                raise ValueError(f"the planes of its image {image.name!r} differ in their size, type or chunks")
            planes = [None if page is None else shown[page] for page in image.pages]
            self._add_image(join(group, str(level)), planes, pages[there[0]][:1], image, None)
        for page in there:
            if len(pages[page]) > len(levels):
                self.reports[f"page {page}"] = (
                    f"levels behind the first {len(levels)} are not shown: other pages have none"
                )
        self.add_pyramids(group, [(image.name, list(map(str, levels)))], image.sizes)
        if image.channels:
            self.groups[group]["omero"] = {"channels": [{"label": label} for label in image.channels]}

    def add_coordinate(
        self, path: str, shape: tuple[int, ...], dtype: str, chunks: Chunks, attributes: Mapping[str, Any]
    ) -> None:
        """Add a coordinate, a scalar or along the dimension of its own name, unless there is one of that path."""
        if path in self.arrays:
            return
        cut = (chunks.chunk,) if isinstance(chunks, Spaced) else shape
        names = [parent(path)[1] for _ in shape]
        self.add(path, ArrayDescription(path, shape, cut, np.dtype(dtype), names, attributes), chunks)

    def add_pyramids(
        self,
        group: str,
        pyramids: Sequence[tuple[str, Sequence[str]]],
        sizes: Mapping[str, tuple[float, str]],
    ) -> None:
        """Describe pyramids of arrays of ``group`` as OME-NGFF 0.4 does.

        Each has a title and the names of its arrays, the one of full resolution first. ``sizes`` are the physical sizes
        of a step along an axis, with their units.
        """
        found = []
        for title, names in pyramids:
            full, datasets = self.arrays[join(group, names[0])], []
            bare = [axis.partition("_")[0] for axis in full.dimensions]
            for name in names:
                shape = self.arrays[join(group, name)].shape
                steps = [sizes.get(axis, (1.0, ""))[0] for axis in bare]
                scale = [step * most / extent for step, most, extent in zip(steps, full.shape, shape, strict=True)]
                datasets.append({"path": name, "coordinateTransformations": [{"type": "scale", "scale": scale}]})
            axes = [{"name": axis, "type": _KINDS.get(axis, "space")} for axis in bare]
            for axis in axes:
                if axis["name"] in sizes:
                    axis["unit"] = sizes[axis["name"]][1]
            found.append({"version": "0.4", "name": title, "axes": axes, "datasets": datasets})
        self.groups[group] = {"multiscales": found} if found else {}

    def _add_image(
        self, path: str, pages: Sequence[Page | None], ifds: Sequence[Ifd], image: OmeImage, place: Placed | None
    ) -> None:
        """Add an array of ``pages`` that look alike, along the axes of an ``image`` before their own.

        What the first of the ``ifds`` does not say of the values, the next one does: GDAL describes no overview.
        """
        page = next(page for page in pages if page is not None)
        group, name = parent(path)
        where = f"{self._tiff.url}: image {path}"
        axes, shape = (*image.axes, *page.ordered("y", "x", "band")), (*image.extents, *page.shape)
        names = {}
        for axis, extent in zip(axes, shape, strict=True):  # one of another length than the first array's has its own
            is_shared = self._extents.setdefault(join(group, axis), extent) == extent
            names[axis] = axis if is_shared else f"{axis}_{name}"
        attributes: dict[str, Any] = {}
        for ifd in reversed(ifds):
            attributes |= attributes_of(ifd, page.samples)
        if place is not None:
            attributes |= place.add(self, group, page, names)
        nodata = next(filter(None, (ifd.text(NODATA).strip() for ifd in ifds)), "")
        fill = fill_of(_number(nodata), page.dtype)
        found = None if image.axes else contiguous(self._tiff, page, where)
        chunks = (*(1 for _ in image.extents), *(page.chunks if found is None else found[0]))
        codecs = NATIVE[page.recipe.compression] if page.recipe.encoded else []
        array = ArrayDescription(
            where, shape, chunks, page.dtype, [*names.values()], attributes, codecs, fill, is_masked=True
        )
        tiles = TileChunks(self._tiff, pages, array.grid(self._zarr_format), has_fill=fill is not None)
        self.add(path, array, tiles if found is None else found[1])


# ----------------------------------------------------------------------------------------------------
# Where an image lies, and what its bands are, by GeoTIFF and GDAL.


class Spaced(Chunks):
    """A coordinate ``first + step * number`` of 64-bit floats, in chunks of 512 KiB, made when they are read."""

    def __init__(self, first: float, step: float, count: int) -> None:
        self._first = first
        self._step = step
        self.chunk = min(count, 1 << 16)

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        numbers = np.arange(number * self.chunk, (number + 1) * self.chunk)
        return Inline((self._first + self._step * numbers).astype("<f8").tobytes())


class Placed(NamedTuple):
    """Where the image ``full`` lies, and its overviews: GDAL's transform, and what is said of the CRS."""

    full: Page
    transform: tuple[float, ...]
    crs: dict[str, Any]

    def add(self, to: _Group, group: str, page: Page, names: Mapping[str, str]) -> dict[str, Any]:
        """Add the coordinates of ``page``, an overview or the image; return the attributes that name them.

        Rows have one y, and columns one x, unless the image is turned.
        """
        x, a, b, y, d, e = self.transform
        across, down = self.full.width / page.width, self.full.height / page.height
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


def placed(ifd: Ifd, full: Page) -> Placed | None:
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
    return Placed(full, (x, a, b, y, d, e), crs) if all(map(math.isfinite, (x, a, b, y, d, e))) else None


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
        role, text = item.get("role", ""), unescape(item.text or "", _QUOTES)  # which GDAL escapes twice
        if role in _ROLES:
            value = _number(text) if role in _NEUTRAL else text
            # Of whole numbers, xarray would make whole numbers, which cannot be missing.
            bands.setdefault(role, {})[item.get("sample", "")] = float(value) if type(value) is int else value
    for role, known in bands.items():
        values = [known.get(str(band), _NEUTRAL.get(role, "")) for band in range(samples)]
        if len(set(values)) == 1:
            found[_ROLES[role]] = values[0]
        else:  # xarray applies one scale to all bands, or none
            found[f"{role}s" if role in _NEUTRAL else _ROLES[role]] = values
    return found


def _number(text: str) -> Any:
    """Return the number that a text is; the text where it is none."""
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        return text


# ----------------------------------------------------------------------------------------------------
# How pages make up images, by OME-XML.


class OmeImage(NamedTuple):
    """An image: the ``extents`` of its ``axes`` before y and x, and in C order the pages that it has; None: missing.

    ``sizes`` are physical sizes of a step along an axis, with their units, and ``channels`` the names of channels.
    """

    name: str
    axes: tuple[str, ...]
    extents: tuple[int, ...]
    pages: tuple[int | None, ...]
    sizes: Mapping[str, tuple[float, str]] = {}
    channels: Sequence[str] = ()


PLAIN: Final = OmeImage("", (), (), ())  # a page that no OME-XML describes


def images_of(text: str, pages: int) -> list[OmeImage]:
    """Return the images that a text describes, of a file of so many ``pages``; none where it is no OME-XML.

    Raises ValueError where they are not in the file.
    """
    if not text.rstrip().endswith(("</OME>", ":OME>")):
        return []
    root = xml(text)
    pairs = ((image, image.find("{*}Pixels")) for image in root.iterfind("{*}Image"))
    images = [(image, pixels) for image, pixels in pairs if pixels is not None]
    if not 0 < len(images) <= pages:
        raise ValueError(f"its OME-XML has {len(images)} images, and the file {pages} pages")
    found: list[OmeImage] = []
    left = MOST_IFDS
    for image, pixels in images:
        found.append(_image(image.get("Name", ""), pixels, root.get("UUID"), pages, left))
        left -= len(found[-1].pages)
    return found


def _image(name: str, pixels: Element, own: str | None, pages: int, most: int) -> OmeImage:
    order = pixels.get("DimensionOrder", "")
    if order[:2] != "XY" or sorted(order[2:]) != ["C", "T", "Z"]:
        raise ValueError(f"its DimensionOrder is {order[:20]!r}")
    sizes = {axis: _integer(pixels, f"Size{axis}", 1) for axis in order[2:]}  # the first of them varies fastest
    channel = pixels.find("{*}Channel")
    samples = 1 if channel is None else _integer(channel, "SamplesPerPixel", 1)
    sizes["C"] //= max(samples, 1)
    total = math.prod(sizes.values())
    if not 0 < total <= most:
        raise ValueError(f"its OME-XML has images of {total} planes and more: {MOST_IFDS} are shown")
    planes: list[int | None] = [None] * total
    told = 0
    data = pixels.findall("{*}TiffData") or [Element("TiffData")]
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
        count = max(min(count, total - first, pages - page), 0)
        told += count
        if told > 2 * total:
            raise ValueError("its OME-XML tells again and again where its planes are")
        planes[first : first + count] = range(page, page + count)
    if all(page is None for page in planes):
        raise ValueError("its OME-XML names none of its pages")
    axes = [axis for axis in reversed(order[2:]) if sizes[axis] > 1]
    extents = tuple(sizes[axis] for axis in axes)
    return OmeImage(name, tuple(map(str.lower, axes)), extents, tuple(planes), _sizes(pixels), _channels(pixels))


def _sizes(pixels: Element) -> dict[str, tuple[float, str]]:
    """Return the physical sizes of steps, with units as OME-NGFF calls them; none where they are no positive number."""
    names = {axis: (f"PhysicalSize{axis.upper()}", "µm") for axis in "xyz"} | {"t": ("TimeIncrement", "s")}
    found: dict[str, tuple[float, str]] = {}
    for axis, (name, default) in names.items():
        size, unit = _number(pixels.get(name, "")), pixels.get(f"{name}Unit", default)
        if isinstance(size, int | float) and 0 < size < math.inf:
            found[axis] = float(size), _UNITS.get(unit.replace("\u03bc", "µ"), unit)
    return found


def _channels(pixels: Element) -> list[str]:
    """Return the names of channels; none where no channel has one."""
    names = [channel.get("Name", "") for channel in pixels.iterfind("{*}Channel")]
    return names if any(names) else []


def aperio_of(text: str) -> float | None:
    """Return the size of a pixel in micrometers that Aperio's description says, 1 if none; None of another file."""
    if not text.startswith("Aperio"):
        return None
    size = next((part.partition("=")[2] for part in text.split("|") if part.strip().startswith("MPP")), "")
    number = _number(size.strip())
    return float(number) if isinstance(number, int | float) and 0 < number < math.inf else 1.0


def aperio_role(text: str, number: int) -> str:
    """Return what an image beside Aperio's pyramid is: its description names it, but for the thumbnail, page 1."""
    lines = text.splitlines()
    word = lines[1].split(" ")[0] if len(lines) > 1 else ""
    return word if word in ("label", "macro") else "thumbnail" if number == 1 else "image beside the pyramid"


def _integer(element: Element, name: str, default: int) -> int:
    text = element.get(name, str(default))
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"its OME-XML has {name} {text[:20]!r}")
    return int(text)
