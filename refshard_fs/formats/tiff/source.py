"""TIFF files as zarr groups: an array for each page and overview, or for each level of an OME-TIFF's image. No I/O.

The metadata about images are parsed here, too. OME-XML says which pages make up an image. GeoTIFF and GDAL say where an
image lies; that becomes attributes and coordinates in rioxarray's convention.
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

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup, Chunks, fill_of
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
    find_contiguous,
    find_damage,
    is_read,
    parse_page,
)

SMALL: Final = 1 << 16  # bytes of a tag that is read when the file is opened; longer tables are read with chunks
LONG: Final = 1 << 26  # most bytes of a descriptive tag, such as OME-XML

_ROLES: Final = {"scale": "scale_factor", "offset": "add_offset", "description": "long_name", "unittype": "units"}
_NEUTRAL: Final = {"scale": 1.0, "offset": 0.0}
# Names by which xarray decodes values: GDAL's own tags have them.
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
    """Open a TIFF file."""
    tiff = Tiff(probe.url, *probe.file("TIFF"), probe.head)
    ifds = yield from tiff.chain()
    if DESCRIPTION in ifds[0].lost:  # it may decide what all pages are
        raise ManifestError(f"{tiff.url}: {find_damage(ifds[0])}")
    yield from tiff.fill(_list_needed(ifds))
    below = [[int(offset) for offset in ifd.numbers(SUB_IFDS) if offset] for ifd in ifds]  # 0: not written
    if sum(map(len, below)) > MOST_IFDS:
        raise ManifestError(f"{tiff.url} is damaged: it has more than {MOST_IFDS} SubIFDs")
    subs = yield from tiff.at(list(itertools.chain.from_iterable(below)))
    yield from tiff.fill(_list_needed(subs))
    every = [*ifds, *subs]
    for number, ifd in enumerate(every):
        ifd.number = number
    said = _list_values(every, tuple(map(len, below)), tiff.order, options.zarr_format)
    layout = None if said is None else _layouts.get(said)
    if layout is not None:
        return layout.of_file(tiff, every)
    rest = iter(subs)
    pages = [[ifd, *itertools.islice(rest, len(offsets))] for ifd, offsets in zip(ifds, below, strict=True)]
    group = _describe_pages(tiff, pages, options.zarr_format)
    keyspace = group.keyspace(options.zarr_format, group.groups.pop("", {}))
    if said is not None and (layout := group.layout(keyspace)) is not None:
        _layouts.put(said, layout)
    return keyspace


def _describe_pages(tiff: Tiff, pages: Sequence[Sequence[Ifd]], zarr_format: int) -> _Group:
    """Return the arrays of ``pages``, each an IFD and its SubIFDs."""
    group = _Group(tiff, zarr_format)
    broken = pages[-1][0].problem  # if set, further pages are unknown, so a missing plane may exist
    images: list[OmeImage] = []
    try:
        images = parse_ome_images(pages[0][0].text(DESCRIPTION), len(pages))
        for number, image in enumerate(images):
            name = "" if len(images) == 1 else str(number)
            there = [ifd for page in image.pages if page is not None for ifd in pages[page]]
            lost = list(filter(None, map(find_damage, there)))
            if broken is not None and None in image.pages:
                lost.append(broken)
            if lost:
                group.reports[name or "image"] = lost[0]
            else:
                group.show_image(name, image, pages)
    except ValueError as e:
        if broken is not None:
            raise ManifestError(f"{tiff.url}: {broken}") from e
        images, group = [], _Group(tiff, zarr_format)
        group.reports["OME-XML"] = f"its pages are shown one by one: {e}"
    if not images:
        group.show_pages(pages)
    else:
        for page in sorted(set(range(len(pages))) - {page for image in images for page in image.pages}):
            group.reports[f"page {page}"] = find_damage(pages[page][0]) or "it is not in an image of the OME-XML"
    return group


def _list_needed(ifds: Sequence[Ifd]) -> Iterator[Tag]:
    """Yield the tags whose values are needed for opening, except long ones that are not descriptive."""
    for number, tag in itertools.chain.from_iterable(ifd.tags.items() for ifd in ifds):
        if is_read(number) and tag.size <= (LONG if number in DESCRIBING else SMALL):
            yield tag


# Files whose IFDs say the same, except where strips and tiles lie: one writer often makes many such files.

REMEMBERED: Final = 16  # layouts in the cache, each of up to
LONGEST: Final = 1 << 16  # bytes of values
MANY: Final = 64  # IFDs

# The values of the IFDs of a file, and everything else that decides its arrays.
Said = tuple[Any, ...]


class _Image(NamedTuple):
    """The chunks of an array, without the positions that its ``pages`` have in a file."""

    pages: Sequence[Page | None]
    grid: ChunkGrid
    has_fill: bool

    def chunks(self, tiff: Tiff, ifds: Sequence[Ifd]) -> TileChunks:
        """Return the chunks in a file."""
        pages = [None if page is None else page.of_file(ifds) for page in self.pages]
        return TileChunks(tiff, pages, self.grid, has_fill=self.has_fill)


class _Layout(NamedTuple):
    """The arrays of a file without the positions of chunks: ``chunks`` are of coordinates, which are computed."""

    group: ArrayGroup
    chunks: Mapping[str, Chunks]
    images: Mapping[str, _Image]

    def of_file(self, tiff: Tiff, ifds: Sequence[Ifd]) -> KeySpace:
        """Return the key space of a file."""
        tiles = {path: image.chunks(tiff, ifds) for path, image in self.images.items()}
        return self.group.with_chunks({**self.chunks, **tiles})


_layouts: Final[LRU[Said, _Layout]] = LRU(REMEMBERED)


def _list_values(ifds: Sequence[Ifd], below: tuple[int, ...], order: str, zarr_format: int) -> Said | None:
    """Return what decides the arrays of a file with ``below`` SubIFDs in each page; None if it is too long to keep."""
    if len(ifds) > MANY:
        return None
    said, size = [], 0
    for ifd in ifds:
        tags = []
        for number, tag in ifd.tags.items():
            data = None if number in POSITIONS else tag.data
            if is_read(number):
                tags.append((number, tag.dtype.char, tag.count, data))
                size += 0 if data is None else len(data)
        said.append((ifd.problem, tuple(ifd.lost), tuple(tags)))
    return (order, zarr_format, below, *said) if size <= LONGEST else None


class _Group(RasterGroupBuilder):
    """Builds the arrays of a TIFF."""

    def __init__(self, tiff: Tiff, zarr_format: int) -> None:
        super().__init__(tiff.url)
        self._tiff = tiff
        self._zarr_format = zarr_format
        self._images: dict[str, _Image] = {}

    def layout(self, keyspace: ArrayGroup) -> _Layout | None:
        """Return the layout of the file; None if the values of its IFDs do not decide everything that it shows.

        The positions of plain strips decide whether they are cut anew, and the size of the file whether large chunks
        are shown.
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
        text = ifds[0].text(DESCRIPTION)
        aperio = parse_aperio(text)
        stack = re.search(r"^images=(\d{1,9})$", text, re.ASCII | re.MULTILINE)
        if text.startswith("ImageJ=") and stack and int(stack[1]) > len(ifds):
            self.reports["ImageJ"] = f"it has {stack[1]} images: images without an IFD are not shown"
        pyramids: list[list[str]] = []
        full: Page | None = None  # the last page that is neither an overview nor a mask; then its IFD and its place
        of_full: Ifd | None = None
        place: Georeference | None = None
        shown: dict[tuple[int, int], str] = {}  # images of that page, by height and width
        for number, ifd in enumerate(ifds):
            name = str(number)
            try:
                page = parse_page(ifd, self._tiff)
                # Aperio's levels are tiled, and may not be marked as overviews; its label and macro are marked.
                is_apart = aperio is not None and not page.is_tiled and number > 0
                is_level = page.is_tiled if aperio is not None else page.is_reduced
                if full is None or not (is_level or is_apart or page.is_mask):
                    full, of_full, place = page, ifd, locate_image(ifd, page.height, page.width)
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
                self._add_attributes(name, {"long_name": parse_aperio_role(ifd.text(DESCRIPTION), number)})
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
        """Describe an array as a mask, and link it from its ``image``, as CF does for quality flags."""
        said = f"mask of {image!r}" if image is not None else "mask without an image"
        self._add_attributes(mask, {"long_name": f"{said}: pixels are valid where it is not zero"})
        if image is not None:
            self._add_attributes(image, {"ancillary_variables": mask})

    def show_image(self, group: str, image: OmeImage, pages: Sequence[Sequence[Ifd]]) -> None:
        """Show an image of an OME-TIFF as a group with an array for each level."""
        there = [page for page in image.pages if page is not None]
        levels = range(min(len(pages[page]) for page in there))
        for level in levels:
            shown = {page: parse_page(pages[page][level], self._tiff) for page in set(there)}
            if len({page.look for page in shown.values()}) > 1:
                raise ValueError(f"the planes of its image {image.name!r} differ in size, type or chunks")
            planes = [None if page is None else shown[page] for page in image.pages]
            self._add_image(join(group, str(level)), planes, pages[there[0]][:1], image, None)
        for page in there:
            if len(pages[page]) > len(levels):
                self.reports[f"page {page}"] = (
                    f"levels after the first {len(levels)} are not shown: other pages do not have them"
                )
        self.add_pyramids(group, [(image.name, list(map(str, levels)))], image.sizes)
        if image.channels:
            self.groups[group]["omero"] = {"channels": [{"label": label} for label in image.channels]}

    def _add_image(
        self, path: str, pages: Sequence[Page | None], ifds: Sequence[Ifd], image: OmeImage, place: Georeference | None
    ) -> None:
        """Add an array of ``pages`` with the same layout, along the axes of ``image`` before their own axes.

        If the first of the ``ifds`` lacks metadata about values, the next one counts: GDAL does not describe overviews.
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
        nodata = next(filter(None, (ifd.text(NODATA).strip() for ifd in ifds)), "")
        fill = fill_of(_parse_number(nodata), page.dtype)
        found = None if image.axes else find_contiguous(self._tiff, page, where)
        chunks = (*(1 for _ in image.extents), *(page.chunks if found is None else found[0]))
        codecs = NATIVE[page.recipe.compression] if page.recipe.encoded else []
        array = ArrayDescription(
            where, shape, chunks, page.dtype, [*names.values()], attributes, codecs, fill, is_masked=True
        )
        array = msgspec.structs.replace(array, file_codecs=page.file_codecs)
        own = self._images[path] = _Image(pages, array.grid(self._zarr_format), fill is not None)
        tiles = TileChunks(self._tiff, pages, own.grid, has_fill=own.has_fill)
        self.add(path, array, tiles if found is None else found[1])


# Descriptions of bands, by GDAL.


def parse_gdal_metadata(ifd: Ifd, samples: int) -> dict[str, Any]:
    """Return the attributes of an image from GDAL's metadata about its bands."""
    if not ifd.text(GDAL_METADATA):
        return {}
    try:
        items = list(parse_xml(ifd.text(GDAL_METADATA)).iter("Item"))
    except ValueError as e:
        return {"GDAL_METADATA": f"not shown: {e}"}
    found: dict[str, Any] = {}
    bands: dict[str, dict[str, Any]] = {}
    roles: dict[str, dict[str, Any]] = {}
    for item in items:
        role, name, text = (
            item.get("role", ""),
            item.get("name", ""),
            unescape(item.text or "", _QUOTES),
        )  # escaped twice
        value = text if role in ("description", "unittype") else _parse_number(text)
        if role in _ROLES:
            # With integers, xarray would decode to integers, which have no missing value.
            roles.setdefault(role, {})[item.get("sample", "")] = float(value) if type(value) is int else value
        elif name and name not in _DECODING and "domain" not in item.attrib:
            if "sample" in item.attrib:
                bands.setdefault(name, {})[item.get("sample", "")] = value
            else:
                found[name] = value
    for name, known in bands.items():
        values = [known[str(band)] for band in range(samples) if str(band) in known]
        if len(values) == samples:
            found[name] = values if len(set(values)) > 1 else values[0]
    for role, known in roles.items():
        values = [known.get(str(band), _NEUTRAL.get(role, "")) for band in range(samples)]
        if len(set(values)) == 1:
            found[_ROLES[role]] = values[0]
        else:  # xarray can apply only one scale to all bands
            found[f"{role}s" if role in _NEUTRAL else _ROLES[role]] = values
    return found


def parse_texts(ifd: Ifd) -> dict[str, Any]:
    """Return the texts of an IFD by GDAL's names, and its colours as ``#rrggbb``, ordered by the value of a pixel."""
    texts = {f"TIFFTAG_{name}": ifd.text(number) for number, name in _TEXTS.items()}
    found: dict[str, Any] = {name: text for name, text in texts.items() if 0 < len(text) <= SMALL}
    tag = ifd.tags.get(COLOR_MAP)
    if tag is not None and tag.dtype.kind == "u" and 0 < len(tag.values) <= 3 << 8 and not tag.count % 3:
        divisor = 257 if tag.values.max() > 255 else 1  # some writers store 8 bits
        colors = (tag.values // divisor).astype("u1").reshape(3, -1).T
        found["color_map"] = [f"#{color.tobytes().hex()}" for color in colors]
    return found


def _parse_number(text: str) -> Any:
    """Convert a text to a number if it is one; otherwise return the text."""
    text = text.replace("1.#INF", "inf").replace("1.#QNAN", "nan").replace("1.#IND", "nan")  # as Windows writes them
    try:
        return int(text) if text.lstrip("+-").isdecimal() and len(text) < 19 else float(text)  # fits 64 bits
    except ValueError:
        return text


# Images made of pages, by OME-XML.


class OmeImage(NamedTuple):
    """An image: the ``extents`` of its ``axes`` before y and x, and its pages in C order (None: missing).

    ``sizes`` are physical sizes of a step along an axis, with units; ``channels`` are names of channels.
    """

    name: str
    axes: tuple[str, ...]
    extents: tuple[int, ...]
    pages: tuple[int | None, ...]
    sizes: Mapping[str, tuple[float, str]] = {}
    channels: Sequence[str] = ()


PLAIN: Final = OmeImage("", (), (), ())  # for a page that OME-XML does not describe


def parse_ome_images(text: str, pages: int) -> list[OmeImage]:
    """Parse the images in a text, for a file with this number of ``pages``; an empty list if it is not OME-XML.

    Raises ValueError if the images are not in the file.
    """
    if not text.rstrip().endswith(("</OME>", ":OME>")):
        return []
    root = parse_xml(text)
    pairs = ((image, image.find("{*}Pixels")) for image in root.iterfind("{*}Image"))
    images = [(image, pixels) for image, pixels in pairs if pixels is not None]
    if not 0 < len(images) <= pages:
        raise ValueError(f"its OME-XML has {len(images)} images, but the file has {pages} pages")
    found: list[OmeImage] = []
    left = MOST_IFDS
    for image, pixels in images:
        found.append(_parse_image(image.get("Name", ""), pixels, root.get("UUID"), pages, left))
        left -= len(found[-1].pages)
    return found


def _parse_image(name: str, pixels: Element, own: str | None, pages: int, most: int) -> OmeImage:
    order = pixels.get("DimensionOrder", "")
    if order[:2] != "XY" or sorted(order[2:]) != ["C", "T", "Z"]:
        raise ValueError(f"its DimensionOrder is {order[:20]!r}: expected XY and an order of C, T and Z")
    sizes = {axis: _parse_integer(pixels, f"Size{axis}", 1) for axis in order[2:]}  # the first axis varies fastest
    channel = pixels.find("{*}Channel")
    samples = 1 if channel is None else _parse_integer(channel, "SamplesPerPixel", 1)
    sizes["C"] //= max(samples, 1)
    total = math.prod(sizes.values())
    if not 0 < total <= most:
        raise ValueError(f"its OME-XML has images of {total} planes or more: at most {MOST_IFDS} are supported")
    planes: list[int | None] = [None] * total
    told = 0
    data = pixels.findall("{*}TiffData") or [Element("TiffData")]
    for element in data:
        uuid = element.find("{*}UUID")
        if uuid is not None and own is not None and (uuid.text or "").strip() != own:
            raise ValueError(f"planes of its image lie in another file, {uuid.get('FileName', '')[:100]!r}")
        first, stride = 0, 1
        for axis, size in sizes.items():
            first += _parse_integer(element, f"First{axis}", 0) * stride
            stride *= size
        page = _parse_integer(element, "IFD", 0)
        count = _parse_integer(element, "PlaneCount", 1 if "IFD" in element.attrib else total)
        count = max(min(count, total - first, pages - page), 0)
        told += count
        if told > 2 * total:
            raise ValueError("its OME-XML places its planes several times")
        planes[first : first + count] = range(page, page + count)
    if all(page is None for page in planes):
        raise ValueError("its OME-XML does not contain any of its pages")
    axes = [axis for axis in reversed(order[2:]) if sizes[axis] > 1]
    extents = tuple(sizes[axis] for axis in axes)
    return OmeImage(
        name, tuple(map(str.lower, axes)), extents, tuple(planes), _parse_sizes(pixels), _parse_channels(pixels)
    )


def _parse_sizes(pixels: Element) -> dict[str, tuple[float, str]]:
    """Return physical sizes of steps, with OME-NGFF's names of units; sizes that are not positive are left out."""
    names = {axis: (f"PhysicalSize{axis.upper()}", "µm") for axis in "xyz"} | {"t": ("TimeIncrement", "s")}
    found: dict[str, tuple[float, str]] = {}
    for axis, (name, default) in names.items():
        size, unit = _parse_number(pixels.get(name, "")), pixels.get(f"{name}Unit", default)
        if isinstance(size, int | float) and 0 < size < math.inf:
            found[axis] = float(size), _UNITS.get(unit.replace("\u03bc", "µ"), unit)
    return found


def _parse_channels(pixels: Element) -> list[str]:
    """Return the names of channels; an empty list if all are unnamed."""
    names = [channel.get("Name", "") for channel in pixels.iterfind("{*}Channel")]
    return names if any(names) else []


def parse_aperio(text: str) -> float | None:
    """Return the size of a pixel in micrometers from Aperio's description (default 1); None for other files."""
    if not text.startswith("Aperio"):
        return None
    size = next((part.partition("=")[2] for part in text.split("|") if part.strip().startswith("MPP")), "")
    number = _parse_number(size.strip())
    return float(number) if isinstance(number, int | float) and 0 < number < math.inf else 1.0


def parse_aperio_role(text: str, number: int) -> str:
    """Return the role of an image beside Aperio's pyramid, from its description; page 1 is the thumbnail."""
    lines = text.splitlines()
    word = lines[1].split(" ")[0] if len(lines) > 1 else ""
    return word if word in ("label", "macro") else "thumbnail" if number == 1 else "image beside the pyramid"


def _parse_integer(element: Element, name: str, default: int) -> int:
    text = element.get(name, str(default))
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"its OME-XML has {name} {text[:20]!r}: expected an integer")
    return int(text)
