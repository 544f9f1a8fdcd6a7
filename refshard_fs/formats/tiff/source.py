"""TIFF files as zarr groups: an array for each page and overview, or each level of an OME-TIFF's image. No I/O here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from refshard_fs.core.array_group import ArrayDescription, ArrayGroupBuilder, fill_of
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import join, parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Steps
from refshard_fs.errors import ManifestError
from refshard_fs.formats.tiff import metadata
from refshard_fs.formats.tiff.ifds import MOST_IFDS, Ifd, Tag, Tiff
from refshard_fs.formats.tiff.images import NATIVE, PRIVATE, SUB_IFDS, Page, TileChunks, contiguous, page_of
from refshard_fs.formats.tiff.metadata import PLAIN, OmeImage, images_of

SMALL: Final = 1 << 16  # bytes of a tag that is read when the file is opened; longer tables are read with the chunks
LONG: Final = 1 << 26  # bytes of a tag that is read at all, such as OME-XML
_KINDS: Final = {"t": "time", "c": "channel", "band": "channel"}  # of axes, as OME-NGFF has them; others are of space
_Place = tuple[metadata.Placed, Page] | None  # of an image of which a page is an overview, and that image


class _Node(NamedTuple):
    """An IFD; ``page`` is what it says of its image, or why that is not shown."""

    ifd: Ifd
    page: Page | ValueError
    overviews: Sequence[_Node] = ()


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a TIFF."""
    tiff = Tiff(probe.url, *probe.file("TIFF"), probe.head)
    ifds = yield from tiff.chain()
    yield from tiff.fill(_wanted(ifds))
    below = [list(map(int, ifd.numbers(SUB_IFDS))) for ifd in ifds]
    if sum(map(len, below)) > MOST_IFDS:
        raise ManifestError(f"{tiff.url}: its SubIFDs are more than {MOST_IFDS}: it is damaged")
    subs = yield from tiff.at(list(itertools.chain.from_iterable(below)))
    yield from tiff.fill(_wanted(subs))
    rest = (_Node(ifd, _page(ifd, tiff)) for ifd in subs)
    nodes = [
        _Node(ifd, _page(ifd, tiff), list(itertools.islice(rest, len(offsets))))
        for ifd, offsets in zip(ifds, below, strict=True)
    ]
    group = _Group(tiff, options.zarr_format)
    try:
        images = images_of(ifds[0].text(metadata.DESCRIPTION), len(nodes))
        for number, image in enumerate(images):
            group.show_image("" if len(images) == 1 else str(number), image, nodes)
    except ValueError as e:
        group = _Group(tiff, options.zarr_format)
        group.reports["OME-XML"] = f"its pages are shown one by one: {e}"
    if not group.arrays:
        group.show_pages(nodes)
    return group.keyspace(options.zarr_format, group.groups.pop("", {}))


def _wanted(ifds: Sequence[Ifd]) -> Iterator[Tag]:
    """Yield the tags whose values are needed to open the file: all but what is long, and nobody here asks for."""
    for number, tag in itertools.chain.from_iterable(ifd.tags.items() for ifd in ifds):
        is_read = number < 1 << 15 or number in PRIVATE or number in metadata.DESCRIBING
        if is_read and tag.size <= (LONG if number in metadata.DESCRIBING else SMALL):
            yield tag


def _page(ifd: Ifd, tiff: Tiff) -> Page | ValueError:
    try:
        return page_of(ifd, tiff.order)
    except ValueError as e:
        return e


class _Group(ArrayGroupBuilder):
    """The arrays of a TIFF, while they are put together."""

    def __init__(self, tiff: Tiff, zarr_format: int) -> None:
        super().__init__(tiff.url)
        self._tiff = tiff
        self._zarr_format = zarr_format
        self._extents: dict[str, int] = {}  # of a group's dimensions, by path

    def show_pages(self, nodes: Sequence[_Node]) -> None:
        """Show each page, and each of its overviews after it, as an array of the root."""
        pyramids: list[list[str]] = []
        full: Page | None = None  # the last page that is no overview and no mask, and where it lies
        place: metadata.Placed | None = None
        for number, node in enumerate(itertools.chain.from_iterable((node, *node.overviews) for node in nodes)):
            name = str(number)
            try:
                if isinstance(node.page, ValueError):
                    raise node.page
                if full is None or not (node.page.is_reduced or node.page.is_mask):
                    full, place = node.page, metadata.placed(node.ifd)
                    pyramids.append([])
                self._add_image(name, [node.page], node.ifd, PLAIN, place and (place, full))
            except ValueError as e:
                self.reports[name] = str(e)
                continue
            if not node.page.is_mask and len(node.page.shape) == len(full.shape):
                pyramids[-1].append(name)
        self._describe("", [("", names) for names in pyramids if len(names) > 1])

    def show_image(self, group: str, image: OmeImage, nodes: Sequence[_Node]) -> None:
        """Show an image of an OME-TIFF as the arrays of a group, one for each level."""
        planes = [None if page is None else (nodes[page], *nodes[page].overviews) for page in image.pages]
        there = [plane for plane in planes if plane is not None]
        levels = range(min(map(len, there)))
        for level in levels:
            pages = [None if plane is None else plane[level].page for plane in planes]
            shown = [page for page in pages if not isinstance(page, ValueError)]
            if len(shown) < len(pages) or len({page.look for page in shown if page is not None}) > 1:
                raise ValueError(f"the planes of its image {image.name!r} differ in their size, type or chunks")
            self._add_image(join(group, str(level)), shown, there[0][0].ifd, image, None)
        self._describe(group, [(image.name, list(map(str, levels)))])

    def _add_image(self, path: str, pages: Sequence[Page | None], ifd: Ifd, image: OmeImage, place: _Place) -> None:
        """Add an array of ``pages`` that look alike, along the axes of an ``image`` before their own."""
        page = next(page for page in pages if page is not None)
        group, name = parent(path)
        where = f"{self._tiff.url}: image {path}"
        axes, shape = (*image.axes, *page.ordered("y", "x", "band")), (*image.extents, *page.shape)
        names = {}
        for axis, extent in zip(axes, shape, strict=True):  # one of another length than the first array's has its own
            is_shared = self._extents.setdefault(join(group, axis), extent) == extent
            names[axis] = axis if is_shared else f"{axis}_{name}"
        attributes = metadata.attributes_of(ifd, page.samples)
        if place is not None:
            attributes |= place[0].add(self, group, place[1], page, names)
        fill = fill_of(metadata.number(ifd.text(metadata.NODATA).strip()), page.dtype)
        found = None if image.axes else contiguous(self._tiff, page, where)
        chunks = (*(1 for _ in image.extents), *(page.chunks if found is None else found[0]))
        codec = NATIVE[page.recipe.compression] if page.recipe.encoded else None
        array = ArrayDescription(
            where, shape, chunks, page.dtype, "C", codec, [*names.values()], attributes, fill, is_masked=True
        )
        tiles = TileChunks(self._tiff, pages, array.grid(self._zarr_format), has_fill=fill is not None)
        self.add(path, array, tiles if found is None else found[1])

    def _describe(self, group: str, pyramids: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Say which arrays of a group are the levels of a pyramid, as OME-NGFF does."""
        found = []
        for title, names in pyramids:
            full, datasets = self.arrays[join(group, names[0])], []
            for name in names:
                shape = self.arrays[join(group, name)].shape
                scale = [most / extent for most, extent in zip(full.shape, shape, strict=True)]
                datasets.append({"path": name, "coordinateTransformations": [{"type": "scale", "scale": scale}]})
            bare = [axis.partition("_")[0] for axis in full.dimensions]
            axes = [{"name": axis, "type": _KINDS.get(axis, "space")} for axis in bare]
            found.append({"version": "0.4", "name": title, "axes": axes, "datasets": datasets})
        self.groups[group] = {"multiscales": found} if found else {}
