"""TIFF files as zarr groups: an array for each page and overview, or each level of an OME-TIFF's image. No I/O here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup, Chunks
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import join, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Load, Raw, Span, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.tiff import geo
from refshard_fs.formats.tiff.decoding import NATIVE
from refshard_fs.formats.tiff.ifds import HEAD, MOST_IFDS, Ifd, Tag, Tiff
from refshard_fs.formats.tiff.ome import PLAIN, OmeImage, images_of, is_ome
from refshard_fs.formats.tiff.pages import PRIVATE, SUB_IFDS, Page, TileChunks, contiguous, page_of

SMALL: Final = 1 << 16  # bytes of a tag that is read when the file is opened; longer tables are read with the chunks
LONG: Final = 1 << 26  # bytes of a tag that is read at all, such as OME-XML
DESCRIPTION: Final = 270


class _Node(NamedTuple):
    """An IFD; ``page`` is what it says of its image, or why that is not shown."""

    ifd: Ifd
    page: Page | ValueError
    overviews: Sequence[_Node] = ()


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a TIFF."""
    facts, head = probe.facts, probe.head
    if facts is None or facts.size is None:
        what = "a directory" if probe.is_directory else "a file whose size is not told"
        raise ManifestError(f"{probe.url} is {what}, and no TIFF")
    source = Span(probe.url, 0, facts.size, pin=facts.pin)
    if len(head) < min(facts.size, HEAD) and Tiff(probe.url, source, facts.size, head).first < HEAD:
        head = yield Load(source.part(0, min(facts.size, HEAD)), Raw())
    tiff = Tiff(probe.url, Inline(head) if probe.is_in_memory else source, facts.size, head)
    ifds = yield from tiff.chain()
    yield from tiff.fill(tag for ifd in ifds for tag in _wanted(ifd))
    below = [ifd.numbers(SUB_IFDS) for ifd in ifds]
    if sum(map(len, below)) > MOST_IFDS:
        raise ManifestError(f"{tiff.url}: its SubIFDs are more than {MOST_IFDS}: it is damaged")
    subs = yield from tiff.at([int(offset) for offsets in below for offset in offsets])
    yield from tiff.fill(tag for ifd in subs for tag in _wanted(ifd))
    rest = iter([_Node(ifd, _page(ifd, tiff)) for ifd in subs])
    nodes = [
        _Node(ifd, _page(ifd, tiff), list(itertools.islice(rest, len(offsets))))
        for ifd, offsets in zip(ifds, below, strict=True)
    ]
    return _Group(tiff, options.zarr_format).keyspace(nodes)


def _wanted(ifd: Ifd) -> Iterator[Tag]:
    """Yield the tags whose values are needed to open the file: all but what is long, and nobody here asks for."""
    for number, tag in ifd.tags.items():
        if tag.size <= (LONG if number in geo.DESCRIBING else SMALL) and (
            number < 1 << 15 or number in PRIVATE or number in geo.DESCRIBING
        ):
            yield tag


def _page(ifd: Ifd, tiff: Tiff) -> Page | ValueError:
    try:
        return page_of(ifd, tiff.order)
    except ValueError as e:
        return e


class _Group:
    """The arrays that a file's pages make up, while they are put together."""

    def __init__(self, tiff: Tiff, zarr_format: int) -> None:
        self._tiff = tiff
        self._zarr_format = zarr_format
        self._arrays: dict[str, ArrayDescription] = {}
        self._chunks: dict[str, Chunks] = {}
        self._groups: dict[str, dict[str, Any]] = {"": {}}
        self._reports: dict[str, str] = {}
        self._extents: dict[str, int] = {}  # of a group's dimensions, by path

    def keyspace(self, nodes: Sequence[_Node]) -> KeySpace:
        """Return all that is shown; ManifestError where that is nothing."""
        images: list[OmeImage] = []
        text = nodes[0].ifd.text(DESCRIPTION)
        try:
            if is_ome(text):
                images = images_of(text, len(nodes))
                for number, image in enumerate(images):
                    self._image("" if len(images) == 1 else str(number), image, nodes)
        except ValueError as e:
            images = []
            self._reports["OME-XML"] = f"its pages are shown one by one: {e}"
        if not images:
            self._arrays, self._chunks, self._groups, self._extents = {}, {}, {"": {}}, {}
            self._pages(nodes)
        if not self._arrays:
            reasons = "; ".join(f"image {name}: {reason}" for name, reason in list(self._reports.items())[:3])
            raise ManifestError(f"{self._tiff.url}: nothing in it can be shown. {reasons}")
        root = self._groups.pop("", {})
        return ArrayGroup(self._arrays, self._chunks, self._zarr_format, root, self._reports, groups=self._groups)

    def _pages(self, nodes: Sequence[_Node]) -> None:
        """Show each page, and each of its overviews after it, as an array of the root."""
        pyramids: list[list[str]] = []
        full: Page | None = None  # the last page that is no overview and no mask, and where it lies
        at: geo.Placed | None = None
        for number, node in enumerate(itertools.chain.from_iterable((node, *node.overviews) for node in nodes)):
            name, page = str(number), node.page
            if isinstance(page, ValueError):
                self._reports[name] = str(page)
                continue
            if full is None or not (page.is_reduced or page.is_mask):
                full, at = page, geo.placed(node.ifd)
                pyramids.append([])
            place = at and at.scaled(full.width / page.width, full.height / page.height)
            try:
                self._add("", name, [page], node.ifd, place)
            except ValueError as e:
                self._reports[name] = str(e)
                continue
            if not page.is_mask and page.axes == full.axes:
                pyramids[-1].append(name)
        self._describe("", [("", names) for names in pyramids if len(names) > 1])

    def _image(self, group: str, image: OmeImage, nodes: Sequence[_Node]) -> None:
        """Show an image of an OME-TIFF as the arrays of a group, one for each level."""
        planes = [None if page is None else nodes[page] for page in image.pages]
        there = [node for node in planes if node is not None]
        levels = range(1 + min(len(node.overviews) for node in there))
        for level in levels:
            pages: list[Page | None] = []
            for node in planes:
                page = None if node is None else node.overviews[level - 1].page if level else node.page
                if isinstance(page, ValueError):
                    raise page
                pages.append(page)
            if len({page.look for page in pages if page is not None}) > 1:
                raise ValueError(f"the planes of its image {image.name!r} differ in their size, type or chunks")
            self._add(group, str(level), pages, there[0].ifd, None, image)
        self._describe(group, [(image.name, list(map(str, levels)))])

    def _add(
        self,
        group: str,
        name: str,
        pages: Sequence[Page | None],
        ifd: Ifd,
        place: geo.Placed | None,
        image: OmeImage = PLAIN,
    ) -> None:
        """Add an array of ``pages`` that look alike, along the axes of an ``image`` before their own."""
        page = next(page for page in pages if page is not None)
        where = f"{self._tiff.url}: image {join(group, name)}"
        axes, shape = (*image.axes, *page.axes), (*image.extents, *page.shape)
        names = {axis: self._dimension(group, axis, extent, name) for axis, extent in zip(axes, shape, strict=True)}
        attributes = geo.attributes_of(ifd, page.samples)
        if place is not None:
            attributes |= self._place(group, place, page, names)
        fill = geo.fill_of(ifd, page.dtype)
        found = None if image.axes else contiguous(self._tiff, page, where)
        chunks = (*(1 for _ in image.extents), *(page.chunks if found is None else found[0]))
        codec = NATIVE[page.recipe.compression] if page.is_native else None
        array = ArrayDescription(
            where, shape, chunks, page.dtype, "C", codec, [*names.values()], attributes, fill, is_masked=True
        )
        tiles = TileChunks(self._tiff, pages, array.grid(self._zarr_format), has_fill=fill is not None)
        self._arrays[join(group, name)] = array
        self._chunks[join(group, name)] = tiles if found is None else found[1]

    def _dimension(self, group: str, axis: str, extent: int, name: str) -> str:
        """Return the name of a dimension: an axis of another length than that of the first array has its own."""
        return axis if self._extents.setdefault(join(group, axis), extent) == extent else f"{axis}_{name}"

    def _place(self, group: str, place: geo.Placed, page: Page, names: Mapping[str, str]) -> dict[str, Any]:
        """Add the coordinates of an image that lies somewhere on earth, and return the attributes that name them."""
        own = geo.SPATIAL_REF + names["x"].removeprefix("x")
        self._coordinate(join(group, own), (), "<i8", place.attributes, geo.Given(bytes(8)))
        if "band" in names:
            numbers = np.arange(1, page.samples + 1, dtype="<i8").tobytes()
            self._coordinate(join(group, names["band"]), (page.samples,), "<i8", {}, geo.Given(numbers))
        x, a, _, y, _, e = place.transform
        for axis, first, step, extent in (
            (("x", x, a, page.width), ("y", y, e, page.height)) if place.is_upright else ()
        ):
            found = geo.Coordinates(first, step, extent)
            self._coordinate(join(group, names[axis]), (extent,), "<f8", {"axis": axis.upper()}, found)
        return {"grid_mapping": own, "coordinates": own}

    def _coordinate(
        self, path: str, shape: tuple[int, ...], dtype: str, attributes: Mapping[str, Any], found: Chunks
    ) -> None:
        if path not in self._arrays:
            names = [parent(path)[1] for _ in shape]
            chunks = tuple(min(extent, geo.STEP) for extent in shape)
            described = ArrayDescription(path, shape, chunks, np.dtype(dtype), "C", None, names, attributes)
            self._arrays[path], self._chunks[path] = described, found

    def _describe(self, group: str, pyramids: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Say which arrays of a group are the levels of a pyramid, as OME-NGFF does."""
        found = []
        for title, names in pyramids:
            arrays = [self._arrays[join(group, name)] for name in names]
            axes = [axis.partition("_")[0] for axis in arrays[0].dimensions]
            kinds = [{"t": "time", "c": "channel", "band": "channel"}.get(axis, "space") for axis in axes]
            datasets = []
            for name, array in zip(names, arrays, strict=True):
                scale = [full / extent for full, extent in zip(arrays[0].shape, array.shape, strict=True)]
                datasets.append({"path": name, "coordinateTransformations": [{"type": "scale", "scale": scale}]})
            named = [{"name": axis, "type": kind} for axis, kind in zip(axes, kinds, strict=True)]
            found.append({"version": "0.4", "name": title, "axes": named, "datasets": datasets})
        self._groups[group] = {"multiscales": found} if found else {}
