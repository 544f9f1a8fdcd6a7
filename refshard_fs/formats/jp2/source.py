"""Open JPEG 2000 images as groups: an array for the image, and an array for each lower resolution. No I/O here.

The axes are (band, y, x), or (y, x) for one band. Names, coordinates and the pyramid are as in TIFF files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from refshard_fs.core.array_group import ArrayDescription
from refshard_fs.core.format import FileBytes, OpenOptions, Probe
from refshard_fs.core.keys import parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Steps
from refshard_fs.core.rasters import RasterGroupBuilder
from refshard_fs.errors import ManifestError, RefShardError
from refshard_fs.formats.jp2.boxes import (
    ASSOCIATION,
    HEADER,
    PALETTE,
    UUID,
    Boxes,
    find_texts,
    iterate_boxes,
    read_boxes,
)
from refshard_fs.formats.jp2.codestream import Header, read_header
from refshard_fs.formats.jp2.gml import locate_by_gml
from refshard_fs.formats.jp2.tiles import TileChunks, TileIndex, has_skipping_decoder
from refshard_fs.formats.jp2.whole import WholeChunks, WholeRecipe, check_decodable_as_one_chunk
from refshard_fs.formats.tiff.georeference import Georeference, locate_image
from refshard_fs.formats.tiff.ifds import Tiff

GEO_TIFF = bytes.fromhex("b14bf8bd083d4b43a5ae8cd7d5a6ce03")  # the UUID of a box with a GeoTIFF


class Image(NamedTuple):
    """An image whose headers were read: its place, and the attributes of its array.

    ``levels`` is the number of lower resolutions, ``most`` the most bytes that decoding a tile may take.
    """

    file: FileBytes
    boxes: Boxes
    header: Header
    tiles: TileIndex
    levels: int
    most: int
    place: Georeference | None
    attributes: dict[str, Any]

    def add_level(self, group: RasterGroupBuilder, path: str, level: int, zarr_format: int) -> None:
        """Add the array of a resolution level, and its coordinates, to a group."""
        header, size, (folder, name) = self.header, self.header.size, parent(path)
        bands = (size.bands,) if size.bands > 1 else ()
        shape, chunks, whole = (*bands, *size.compute_shape(level)), size.choose_chunks(level), None
        if chunks is None or header.find_obstacle(level):
            chunks = size.compute_shape(level)
            whole = WholeRecipe(header, header.first - self.boxes.start, level, (size.bands, *chunks), self.most)
        names = group.name_dimensions(path, ("band", "y", "x")[-len(shape) :], shape)
        attributes = dict(self.attributes)
        if self.place is not None:
            attributes |= self.place.add(group, folder, (*size.compute_shape(level), size.bands), names)
        array = ArrayDescription(
            f"{self.file.url}: image {name}", shape, (*bands, *chunks), size.dtype, [*names.values()], attributes,
            file_codecs=("jpeg2000",),
        )  # fmt: skip
        if whole is not None:
            group.add(path, array, WholeChunks(self.file, self.boxes.start, self.boxes.stop, whole))
        else:
            group.add(path, array, TileChunks(self.tiles, array.grid(zarr_format), level, self.most))


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a JPEG 2000 file: show its image and its lower resolutions as arrays."""
    group = RasterGroupBuilder(probe.url)
    image = yield from read_image(probe, group)
    names = [str(level) for level in range(image.levels + 1)]
    for level, name in enumerate(names):
        image.add_level(group, name, level, options.zarr_format)
    group.add_pyramids("", [("", names)] if image.levels else [], {})
    return group.make_keyspace(options.zarr_format, group.groups.pop(""))


def read_image(probe: Probe, group: RasterGroupBuilder) -> Steps[Image]:
    """Read the boxes and the main header of a file; ManifestError if its image cannot be shown."""
    file = FileBytes(probe.url, *probe.file("JPEG 2000 file"), probe.head)
    try:
        boxes = yield from read_boxes(file)
        header = yield from read_header(file, boxes.start, boxes.stop)
        most = header.limit_cost(file.size)
        levels, reason = _count_levels(header, most)
    except ValueError as e:
        raise ManifestError(f"{probe.url}: {e}") from e
    if reason:
        group.reports["lower resolutions"] = f"only {levels} lower resolutions are shown: {reason}"
    if boxes.streams > 1:
        group.reports["other images"] = f"it has {boxes.streams} code streams: only the first one is shown"
    place = yield from _locate_image(boxes, header.size.compute_shape(0), group)
    index = TileIndex(file, probe, header, boxes.stop)
    return Image(file, boxes, header, index, levels, most, place, _parse_palette(boxes, group))


def _count_levels(header: Header, most: int) -> tuple[int, str]:
    """Return how many lower resolutions can be shown, and why the others cannot; "" if all can.

    Raises ValueError if the image itself cannot be shown.
    """
    levels, reason = header.count_levels(has_skipping_decoder=has_skipping_decoder())
    for level in range(levels + 1):
        obstacle = header.find_obstacle(level)
        try:
            if obstacle:
                check_decodable_as_one_chunk(header, level, most)
        except ValueError as e:
            if not level:
                raise ValueError(f"{obstacle}, and {e}") from e
            return level - 1, f"{obstacle}, and {e}"
    return levels, reason


def _locate_image(boxes: Boxes, shape: tuple[int, int], group: RasterGroupBuilder) -> Steps[Georeference | None]:
    """Return the place of the image from its GeoTIFF, or else from its GML; None if both are missing or damaged."""
    for kind, data in boxes.metadata:
        if kind == UUID and data.startswith(GEO_TIFF):
            image = data[len(GEO_TIFF) :]
            try:
                tiff = Tiff("the GeoTIFF in the file", Inline(image), len(image), image)
                ifds = yield from tiff.read_chain()
                yield from tiff.read_values(ifds[0].tags.values())
                place = locate_image(ifds[0], *shape)
                if place is not None:
                    return place
            except (RefShardError, ValueError) as e:
                group.reports["GeoTIFF"] = str(e)
    for kind, data in boxes.metadata:
        if kind == ASSOCIATION:
            try:
                for text in find_texts(data):
                    place = locate_by_gml(text, *shape)
                    if place is not None:
                        return place
            except ValueError as e:
                group.reports["GML"] = str(e)
    return None


def _parse_palette(boxes: Boxes, group: RasterGroupBuilder) -> dict[str, Any]:
    """Return the palette as the attribute ``color_map``, of texts like ``#ff0000``; an empty dict without a palette."""
    try:
        inner = [box for kind, data in boxes.metadata if kind == HEADER for box in iterate_boxes(data)]
        for data in (data for kind, data in inner if kind == PALETTE):
            count, columns = int.from_bytes(data[:2]), int.from_bytes(data[2:3])
            depths, colours = data[3 : 3 + columns], data[3 + columns :]
            if set(depths) != {7} or len(colours) != count * columns:
                raise ValueError(
                    f"its palette has {count} colours of {columns} columns in {len(data)} bytes: expected columns of 8 "
                    f"bits in {3 + columns + count * columns} bytes"
                )
            return {"color_map": [f"#{colours[at : at + columns].hex()}" for at in range(0, len(colours), columns)]}
    except ValueError as e:
        group.reports["palette"] = str(e)
    return {}
