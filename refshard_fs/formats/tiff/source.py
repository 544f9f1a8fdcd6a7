"""Open TIFF files as zarr groups of images. No I/O here.

Each page and overview is an array; in an OME-TIFF, each level of an image. Texts about images are parsed here, too:
OME-XML, which lists the pages of each image, and GDAL's metadata about bands.
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

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup, Chunks, convert_fill_value
from refshard_fs.core.format import OpenOptions, Probe, parse_xml
from refshard_fs.core.keys import ChunkGrid, join, parent
from refshard_fs.core.keyspace import KeySpace, Likeness
from refshard_fs.core.lru import LRU
from refshard_fs.core.model import Steps
from refshard_fs.core.rasters import RasterGroupBuilder
from refshard_fs.errors import ManifestError
from refshard_fs.formats.tiff.georeference import Georeference, locate_image
from refshard_fs.formats.tiff.ifds import MOST_IFDS, Ifd, Tag, Tiff
from refshard_fs.formats.tiff.images import (
    COLOR_MAP,
    DESCRIBING,
    DESCRIPTION,
    GDAL_METADATA,
    NATIVE,
    NODATA,
    POSITIONS,
    SPARSE,
    SUB_IFDS,
    Page,
    TileChunks,
    cut_consecutive_strips,
    find_damage,
    is_needed_at_opening,
    parse_page,
)

SMALL: Final = 1 << 16  # the most bytes of a tag that is read when the file is opened; longer tables are read later
LONG: Final = 1 << 26  # the most bytes of a tag in `DESCRIBING`, such as OME-XML

# Attributes by the roles of GDAL's items, and the values of bands without an item.
_ROLES: Final = {"scale": "scale_factor", "offset": "add_offset", "description": "long_name", "unittype": "units"}
_NEUTRAL: Final = {"scale": 1.0, "offset": 0.0}
# Attributes by which xarray decodes values. GDAL's items cannot set them, because GDAL has other tags for these values.
_DECODING: Final = frozenset(
    ["_FillValue", "missing_value", "fill_value", "nodata", "scale_factor", "add_offset", "scales", "offsets", "dtype",
     "_Unsigned", "_Encoding", "calendar", "coordinates", "grid_mapping", "_ARRAY_DIMENSIONS"]
)  # fmt: skip
_TEXTS: Final = {
    269: "DOCUMENTNAME", 270: "IMAGEDESCRIPTION", 305: "SOFTWARE", 306: "DATETIME", 315: "ARTIST", 316: "HOSTCOMPUTER"
}  # fmt: skip
_QUOTES: Final = {"&quot;": '"', "&apos;": "'"}
_UNITS: Final = {
    "µm": "micrometer", "nm": "nanometer", "mm": "millimeter", "cm": "centimeter", "m": "meter", "pm": "picometer",
    "Å": "angstrom", "s": "second", "ms": "millisecond", "µs": "microsecond", "ns": "nanosecond", "min": "minute",
    "h": "hour", "d": "day",
}  # fmt: skip


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a TIFF file: read its IFDs and their values, and show its images as arrays."""
    tiff = Tiff(probe.url, *probe.file("TIFF file"), probe.head)
    ifds = yield from tiff.read_chain()
    if DESCRIPTION in ifds[0].lost:  # OME-XML in it would define the images of all pages
        raise ManifestError(f"{tiff.url}: {find_damage(ifds[0])}")
    yield from tiff.read_values(_list_needed_tags(ifds))
    sub_offsets = [[int(offset) for offset in ifd.get_numbers(SUB_IFDS) if offset] for ifd in ifds]  # 0: not written
    if sum(map(len, sub_offsets)) > MOST_IFDS:
        count = sum(map(len, sub_offsets))
        raise ManifestError(f"{tiff.url} has {count} SubIFDs: expected at most {MOST_IFDS}")
    sub_ifds = yield from tiff.read_ifds(list(itertools.chain.from_iterable(sub_offsets)))
    yield from tiff.read_values(_list_needed_tags(sub_ifds))
    all_ifds = [*ifds, *sub_ifds]
    for number, ifd in enumerate(all_ifds):
        ifd.number = number
    key = _make_layout_key(all_ifds, tuple(map(len, sub_offsets)), tiff.order, options.zarr_format)
    layout = None if key is None else _layouts.get(key)
    if layout is not None:
        return layout.make_keyspace(tiff, all_ifds)
    rest = iter(sub_ifds)
    pages = [[ifd, *itertools.islice(rest, len(offsets))] for ifd, offsets in zip(ifds, sub_offsets, strict=True)]
    group = _describe_pages(tiff, pages, options.zarr_format)
    keyspace = group.make_keyspace(options.zarr_format, group.groups.pop("", {}))
    if key is not None and (layout := group.make_layout(keyspace)) is not None:
        _layouts.put(key, layout)
    return keyspace


def _describe_pages(tiff: Tiff, pages: Sequence[Sequence[Ifd]], zarr_format: int) -> _Group:
    """Return the arrays of ``pages``, each a list of its IFD and its SubIFDs."""
    group = _Group(tiff, zarr_format)
    broken = pages[-1][0].problem  # why further pages were not found: planes that seem to be missing may be in them
    images: list[OmeImage] = []
    try:
        images = parse_ome_images(pages[0][0].get_text(DESCRIPTION), len(pages))
        for number, image in enumerate(images):
            name = "" if len(images) == 1 else str(number)
            ifds = [ifd for page in image.pages if page is not None for ifd in pages[page]]
            damage = list(filter(None, map(find_damage, ifds)))
            if broken is not None and None in image.pages:
                damage.append(broken)
            if damage:
                group.reports[name or "image"] = damage[0]
            else:
                group.show_image(name, image, pages)
    except ValueError as e:
        if broken is not None:
            raise ManifestError(f"{tiff.url}: {broken}") from e
        images, group = [], _Group(tiff, zarr_format)
        group.reports["OME-XML"] = f"its images cannot be shown, so each page is shown as an array: {e}"
    if not images:
        group.show_pages(pages)
    else:
        for page in sorted(set(range(len(pages))) - {page for image in images for page in image.pages}):
            group.reports[f"page {page}"] = find_damage(pages[page][0]) or "it is not in an image of the OME-XML"
    return group


def _list_needed_tags(ifds: Sequence[Ifd]) -> Iterator[Tag]:
    """Yield the tags that `is_needed_at_opening` accepts, unless their values are too long."""
    for number, tag in itertools.chain.from_iterable(ifd.tags.items() for ifd in ifds):
        if is_needed_at_opening(number) and tag.size <= (LONG if number in DESCRIBING else SMALL):
            yield tag


# A cache of the layouts of files. One writer often makes many files whose IFDs differ only in the positions of strips
# and tiles: their arrays are described once.

REMEMBERED: Final = 16  # layouts in the cache
LONGEST: Final = 1 << 16  # the most bytes of values in the IFDs of a file whose layout is cached
MANY: Final = 64  # the most IFDs of a file whose layout is cached

# The key of a layout: the values of a file's IFDs, and everything else that decides its arrays.
LayoutKey = tuple[Any, ...]


class _Image(NamedTuple):
    """An array of images; a file with the same layout has its ``pages`` at other positions."""

    pages: Sequence[Page | None]
    grid: ChunkGrid
    has_fill: bool

    def make_chunks(self, tiff: Tiff, ifds: Sequence[Ifd]) -> TileChunks:
        """Return the chunks of the array in the file ``tiff``, which has the IFDs ``ifds``."""
        pages = [None if page is None else page.locate_in(ifds) for page in self.pages]
        return TileChunks(tiff, pages, self.grid, has_fill=self.has_fill)


class _Layout(NamedTuple):
    """The arrays of a file: metadata as ``group``, and, by path, the ``chunks`` of coordinates and the ``images``."""

    group: ArrayGroup
    chunks: Mapping[str, Chunks]
    images: Mapping[str, _Image]

    def make_keyspace(self, tiff: Tiff, ifds: Sequence[Ifd]) -> KeySpace:
        """Return the key space of the file ``tiff``, which has this layout and the IFDs ``ifds``."""
        tiles = {path: image.make_chunks(tiff, ifds) for path, image in self.images.items()}
        return self.group.with_chunks({**self.chunks, **tiles})


_layouts: Final[LRU[LayoutKey, _Layout]] = LRU(REMEMBERED)


def _make_layout_key(
    ifds: Sequence[Ifd], sub_counts: tuple[int, ...], order: str, zarr_format: int
) -> LayoutKey | None:
    """Return the key of a file's layout; None if it is too long. ``sub_counts`` has the count of SubIFDs by page."""
    if len(ifds) > MANY:
        return None
    values, size = [], 0
    for ifd in ifds:
        tags = []
        for number, tag in ifd.tags.items():
            data = None if number in POSITIONS else tag.data
            if is_needed_at_opening(number):
                tags.append((number, tag.dtype.char, tag.count, data))
                size += 0 if data is None else len(data)
        values.append((ifd.problem, tuple(ifd.lost), tuple(tags)))
    return (order, zarr_format, sub_counts, *values) if size <= LONGEST else None


class _Group(RasterGroupBuilder):
    """Build the arrays of a TIFF file from its pages, or from the images of its OME-XML."""

    def __init__(self, tiff: Tiff, zarr_format: int) -> None:
        super().__init__(tiff.url)
        self._tiff = tiff
        self._zarr_format = zarr_format
        self._images: dict[str, _Image] = {}

    def make_layout(self, keyspace: ArrayGroup) -> _Layout | None:
        """Return the layout of the file; None if the arrays depend on more than the key of the layout.

        Positions decide whether uncompressed strips are cut anew, and the size of the file whether large chunks are
        shown. Reports are about a single file.
        """
        pages = [page for image in self._images.values() for page in image.pages if page is not None]
        if self.reports or any(page.is_plain or page.recipe.size >= SPARSE for page in pages):
            return None
        chunks = {path: chunks for path, chunks in self.chunks.items() if path not in self._images}
        keyspace.likeness = Likeness(frozenset(self._images))
        return _Layout(keyspace.with_chunks({}), chunks, self._images)

    def show_pages(self, pages: Sequence[Sequence[Ifd]]) -> None:
        """Show each page, followed by its overviews, as arrays of the root."""
        ifds = list(itertools.chain.from_iterable(pages))
        text = ifds[0].get_text(DESCRIPTION)
        aperio = parse_aperio_pixel_size(text)
        stack = re.search(r"^images=(\d{1,9})$", text, re.ASCII | re.MULTILINE)
        if text.startswith("ImageJ=") and stack and int(stack[1]) > len(ifds):
            self.reports["ImageJ"] = f"it has {stack[1]} images: images without an IFD are not shown"
        pyramids: list[list[str]] = []
        full: Page | None = None  # the last page that is not an overview, a mask, a label or a macro
        full_ifd: Ifd | None = None  # its IFD
        place: Georeference | None = None  # its place
        levels: dict[tuple[int, int], str] = {}  # the names of this page and of its overviews, by height and width
        for number, ifd in enumerate(ifds):
            name = str(number)
            try:
                page = parse_page(ifd, self._tiff)
                # In Aperio's files, the label and the macro are marked as overviews; levels are tiled, marked or not.
                is_apart = aperio is not None and not page.is_tiled and number > 0
                is_level = page.is_tiled if aperio is not None else page.is_reduced
                if full is None or not (is_level or is_apart or page.is_mask):
                    full, full_ifd, place = page, ifd, locate_image(ifd, page.height, page.width)
                    pyramids.append([])
                    levels = {}
                is_apart |= not (page.is_mask or page.may_be_overview_of(full))
                described_by = [ifd]
                if full_ifd is not None and not (page.is_mask or is_apart) and page.samples == full.samples:
                    described_by.append(full_ifd)
                self._add_image(name, [page], described_by, PLAIN, None if is_apart else place)
            except ValueError as e:
                self.reports[name] = str(e)
                continue
            if is_apart and aperio is not None:
                self._add_attributes(name, {"long_name": parse_aperio_role(ifd.get_text(DESCRIPTION), number)})
            elif page.is_mask:
                self._link_mask(name, levels.get((page.height, page.width)))
            elif not is_apart:
                levels[page.height, page.width] = name
                if len(page.shape) == len(full.shape):
                    pyramids[-1].append(name)
        sizes = {} if aperio is None else {"y": (aperio, "micrometer"), "x": (aperio, "micrometer")}
        self.add_pyramids("", [("", names) for names in pyramids if len(names) > 1], sizes)

    def _add_attributes(self, name: str, attributes: Mapping[str, Any]) -> None:
        array = self.arrays[name]
        self.arrays[name] = msgspec.structs.replace(array, attributes={**array.attributes, **attributes})

    def _link_mask(self, mask: str, image: str | None) -> None:
        """Name an array as a mask, and refer to it from its ``image``, as CF does for quality flags."""
        title = f"mask of {image!r}" if image is not None else "mask without an image"
        self._add_attributes(mask, {"long_name": f"{title}: pixels are valid where it is not zero"})
        if image is not None:
            self._add_attributes(image, {"ancillary_variables": mask})

    def show_image(self, group: str, image: OmeImage, pages: Sequence[Sequence[Ifd]]) -> None:
        """Show an image of an OME-TIFF as a group with an array for each level."""
        existing = [page for page in image.pages if page is not None]
        levels = range(min(len(pages[page]) for page in existing))
        for level in levels:
            parsed = {page: parse_page(pages[page][level], self._tiff) for page in set(existing)}
            if len({page.layout for page in parsed.values()}) > 1:
                found = f"expected the same size, type and chunk shape of all planes in its image {image.name!r}"
                raise ValueError(f"{found}, found different ones")
            planes = [None if page is None else parsed[page] for page in image.pages]
            self._add_image(join(group, str(level)), planes, pages[existing[0]][:1], image, None)
        for page in existing:
            if len(pages[page]) > len(levels):
                self.reports[f"page {page}"] = (
                    f"its levels from {len(levels)} on are not shown: other pages of the image lack them"
                )
        self.add_pyramids(group, [(image.name, list(map(str, levels)))], image.sizes)
        if image.channels:
            self.groups[group]["omero"] = {"channels": [{"label": label} for label in image.channels]}

    def _add_image(
        self, path: str, pages: Sequence[Page | None], ifds: Sequence[Ifd], image: OmeImage, place: Georeference | None
    ) -> None:
        """Add an array of ``pages`` with the same layout: first the axes of ``image``, then the axes of a page.

        ``ifds`` have the metadata of the array; the first IFD with a value counts. The metadata of an overview are in
        its IFD and in the IFD of the full image, because GDAL writes no metadata about values to overviews.
        """
        page = next(page for page in pages if page is not None)
        group, _ = parent(path)
        where = f"{self._tiff.url}: image {path}"
        axes, shape = (*image.axes, *page.order_axes("y", "x", "band")), (*image.extents, *page.shape)
        names = self.name_dimensions(path, axes, shape)
        attributes: dict[str, Any] = {}
        for ifd in reversed(ifds):
            attributes |= {} if image.axes else parse_texts(ifd)
            attributes |= parse_gdal_metadata(ifd, page.samples)
        if place is not None:
            attributes |= place.add(self, group, (page.height, page.width, page.samples), names)
        nodata = next(filter(None, (ifd.get_text(NODATA).strip() for ifd in ifds)), "")
        fill = convert_fill_value(_parse_number(nodata), page.dtype)
        recut = None if image.axes else cut_consecutive_strips(self._tiff, page, where)
        chunk_shape = (*(1 for _ in image.extents), *(page.chunks if recut is None else recut[0]))
        codecs = NATIVE[page.recipe.compression] if page.recipe.encoded else []
        array = ArrayDescription(
            where, shape, chunk_shape, page.dtype, [*names.values()], attributes, codecs, fill, is_masked=True
        )
        array = msgspec.structs.replace(array, file_codecs=page.file_codecs)
        grid, has_fill = array.grid(self._zarr_format), fill is not None
        self._images[path] = _Image(pages, grid, has_fill)
        self.add(path, array, TileChunks(self._tiff, pages, grid, has_fill=has_fill) if recut is None else recut[1])


# GDAL's metadata about bands.


def parse_gdal_metadata(ifd: Ifd, samples: int) -> dict[str, Any]:
    """Return the attributes of an image of ``samples`` bands from GDAL's metadata, a text of XML."""
    if not ifd.get_text(GDAL_METADATA):
        return {}
    try:
        items = list(parse_xml(ifd.get_text(GDAL_METADATA)).iter("Item"))
    except ValueError as e:
        return {"GDAL_METADATA": f"not shown: {e}"}
    attributes: dict[str, Any] = {}
    bands: dict[str, dict[str, Any]] = {}  # name → band → value
    roles: dict[str, dict[str, Any]] = {}  # role → band → value
    for item in items:
        role, name = item.get("role", ""), item.get("name", "")
        text = unescape(item.text or "", _QUOTES)  # GDAL escapes texts twice
        value = text if role in ("description", "unittype") else _parse_number(text)
        if role in _ROLES:
            # By an integer scale, xarray would decode to integers, which cannot mark missing values.
            roles.setdefault(role, {})[item.get("sample", "")] = float(value) if type(value) is int else value
        elif name and name not in _DECODING and "domain" not in item.attrib:
            if "sample" in item.attrib:
                bands.setdefault(name, {})[item.get("sample", "")] = value
            else:
                attributes[name] = value
    for name, by_band in bands.items():
        values = [by_band[str(band)] for band in range(samples) if str(band) in by_band]
        if len(values) == samples:
            attributes[name] = values if len(set(values)) > 1 else values[0]
    for role, by_band in roles.items():
        values = [by_band.get(str(band), _NEUTRAL.get(role, "")) for band in range(samples)]
        if len(set(values)) == 1:
            attributes[_ROLES[role]] = values[0]
        else:  # xarray would apply one scale to all bands, so these attributes have another name
            attributes[f"{role}s" if role in _NEUTRAL else _ROLES[role]] = values
    return attributes


def parse_texts(ifd: Ifd) -> dict[str, Any]:
    """Return the texts of an IFD by GDAL's names, and its ``color_map``: ``#rrggbb`` for each value of a pixel."""
    texts = {f"TIFFTAG_{name}": ifd.get_text(number) for number, name in _TEXTS.items()}
    attributes: dict[str, Any] = {name: text for name, text in texts.items() if 0 < len(text) <= SMALL}
    tag = ifd.tags.get(COLOR_MAP)
    if tag is not None and tag.dtype.kind == "u" and 0 < len(tag.values) <= 3 << 8 and not tag.count % 3:
        # Like GDAL, decide by the values: some writers shift 8 bits to 16, or store 8 bits.
        divisor = 1 if tag.values.max() <= 255 else 257 if np.any(tag.values & 255) else 256
        colors = (tag.values // divisor).astype("u1").reshape(3, -1).T
        attributes["color_map"] = [f"#{color.tobytes().hex()}" for color in colors]
    return attributes


def _parse_number(text: str) -> Any:
    """Convert a text to an integer or a float; return a text that is not a number as it is."""
    text = text.replace("1.#INF", "inf").replace("1.#QNAN", "nan").replace("1.#IND", "nan")  # written by Windows
    try:
        return int(text) if text.lstrip("+-").isdecimal() and len(text) < 19 else float(text)  # at most 64 bits
    except ValueError:
        return text


# The images that OME-XML defines.


class OmeImage(NamedTuple):
    """An image of several planes: its ``axes`` before y and x, with their ``extents``.

    ``pages`` has the page of each plane in C order, or None if the plane is missing. ``sizes`` are physical sizes of a
    step along an axis, with units; ``channels`` are names of channels.
    """

    name: str
    axes: tuple[str, ...]
    extents: tuple[int, ...]
    pages: tuple[int | None, ...]
    sizes: Mapping[str, tuple[float, str]] = {}
    channels: Sequence[str] = ()


PLAIN: Final = OmeImage("", (), (), ())  # stands for a page that OME-XML does not describe


def parse_ome_images(text: str, pages: int) -> list[OmeImage]:
    """Parse the images of a file from the description of its first page; an empty list if that is not OME-XML.

    ``pages`` is the number of pages in the file. Raises ValueError if the OME-XML is damaged, or the file lacks pages.
    """
    if not text.rstrip().endswith(("</OME>", ":OME>")):
        return []
    root = parse_xml(text)
    pairs = ((image, image.find("{*}Pixels")) for image in root.iterfind("{*}Image"))
    images = [(image, pixels) for image, pixels in pairs if pixels is not None]
    if not 0 < len(images) <= pages:
        raise ValueError(
            f"its OME-XML has {len(images)} images: expected 1 to {pages}, the number of pages of the file"
        )
    parsed: list[OmeImage] = []
    planes_left = MOST_IFDS
    for image, pixels in images:
        parsed.append(_parse_image(image.get("Name", ""), pixels, root.get("UUID"), pages, planes_left))
        planes_left -= len(parsed[-1].pages)
    return parsed


def _parse_image(name: str, pixels: Element, file_uuid: str | None, pages: int, most: int) -> OmeImage:
    """Parse an image of at most ``most`` planes, for a file of ``pages`` pages with the UUID ``file_uuid``."""
    order = pixels.get("DimensionOrder", "")
    if order[:2] != "XY" or sorted(order[2:]) != ["C", "T", "Z"]:
        raise ValueError(f"its DimensionOrder is {order[:20]!r}: expected XY and an order of C, T and Z")
    sizes = {axis: _parse_integer(pixels, f"Size{axis}", 1) for axis in order[2:]}  # the first axis varies fastest
    channel = pixels.find("{*}Channel")
    samples = 1 if channel is None else _parse_integer(channel, "SamplesPerPixel", 1)
    sizes["C"] //= max(samples, 1)
    total = math.prod(sizes.values())
    if not 0 < total <= most:
        raise ValueError(
            f"an image in its OME-XML has {total} planes: expected 1 to {most}, and at most {MOST_IFDS} in all images"
        )
    planes: list[int | None] = [None] * total
    placed = 0
    data = pixels.findall("{*}TiffData") or [Element("TiffData")]
    for element in data:
        uuid = element.find("{*}UUID")
        if uuid is not None and file_uuid is not None and (uuid.text or "").strip() != file_uuid:
            other = uuid.get("FileName", "")[:100]
            raise ValueError(f"planes of an image lie in another file, {other!r}: expected all planes in one file")
        first, stride = 0, 1
        for axis, size in sizes.items():
            first += _parse_integer(element, f"First{axis}", 0) * stride
            stride *= size
        page = _parse_integer(element, "IFD", 0)
        count = _parse_integer(element, "PlaneCount", 1 if "IFD" in element.attrib else total)
        count = max(min(count, total - first, pages - page), 0)
        placed += count
        if placed > 2 * total:
            raise ValueError(f"its OME-XML locates the {total} planes of an image several times: expected once each")
        planes[first : first + count] = range(page, page + count)
    if all(page is None for page in planes):
        raise ValueError(f"an image in its OME-XML has no plane in the {pages} pages of the file: expected one or more")
    axes = [axis for axis in reversed(order[2:]) if sizes[axis] > 1]
    extents = tuple(sizes[axis] for axis in axes)
    return OmeImage(
        name, tuple(map(str.lower, axes)), extents, tuple(planes), _parse_sizes(pixels), _parse_channel_names(pixels)
    )


def _parse_sizes(pixels: Element) -> dict[str, tuple[float, str]]:
    """Return the positive physical sizes of a step by axis, each with OME-NGFF's name of its unit."""
    names = {axis: (f"PhysicalSize{axis.upper()}", "µm") for axis in "xyz"} | {"t": ("TimeIncrement", "s")}
    sizes: dict[str, tuple[float, str]] = {}
    for axis, (name, default) in names.items():
        size, unit = _parse_number(pixels.get(name, "")), pixels.get(f"{name}Unit", default)
        if isinstance(size, int | float) and 0 < size < math.inf:
            sizes[axis] = float(size), _UNITS.get(unit.replace("\u03bc", "µ"), unit)
    return sizes


def _parse_channel_names(pixels: Element) -> list[str]:
    """Return the names of channels, "" for a channel without one; an empty list if no channel has a name."""
    names = [channel.get("Name", "") for channel in pixels.iterfind("{*}Channel")]
    return names if any(names) else []


def parse_aperio_pixel_size(text: str) -> float | None:
    """Return the size of a pixel in micrometers from Aperio's description, 1 if unknown; None for other files."""
    if not text.startswith("Aperio"):
        return None
    size = next((part.partition("=")[2] for part in text.split("|") if part.strip().startswith("MPP")), "")
    number = _parse_number(size.strip())
    return float(number) if isinstance(number, int | float) and 0 < number < math.inf else 1.0


def parse_aperio_role(text: str, number: int) -> str:
    """Return the role of an image that is not in Aperio's pyramid, from its description; page 1 is the thumbnail."""
    lines = text.splitlines()
    word = lines[1].split(" ")[0] if len(lines) > 1 else ""
    return word if word in ("label", "macro") else "thumbnail" if number == 1 else "image beside the pyramid"


def _parse_integer(element: Element, name: str, default: int) -> int:
    """Return the integer in the attribute ``name``, or ``default`` without one; ValueError for another text."""
    text = element.get(name, str(default))
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"its OME-XML has {name} {text[:20]!r}: expected an integer of at most 9 digits")
    return int(text)
