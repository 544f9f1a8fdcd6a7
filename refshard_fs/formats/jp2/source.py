"""JPEG 2000 images as groups: an array for the image, and one for each lower resolution. No I/O here.

The order of axes is (band, y, x), or (y, x). Names, coordinates and the pyramid are as in TIFF files.
"""

from __future__ import annotations

from typing import Any

from refshard_fs.core.array_group import ArrayDescription
from refshard_fs.core.format import FileBytes, OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Steps
from refshard_fs.core.rasters import RasterGroupBuilder
from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.formats.jp2.boxes import ASSOCIATION, HEADER, UUID, Boxes, find_texts, iterate_boxes, read_boxes
from refshard_fs.formats.jp2.codestream import read_header
from refshard_fs.formats.jp2.gml import locate_by_gml
from refshard_fs.formats.jp2.tiles import TileChunks, TileIndex
from refshard_fs.formats.tiff.georeference import Georeference, locate_image
from refshard_fs.formats.tiff.ifds import Tiff

GEO_TIFF = bytes.fromhex("b14bf8bd083d4b43a5ae8cd7d5a6ce03")  # the UUID of a box with a GeoTIFF


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a JPEG 2000 file."""
    file = FileBytes(probe.url, *probe.file("JPEG 2000 file"), probe.head)
    boxes = yield from read_boxes(file)
    header = yield from read_header(file, boxes.start, boxes.stop)
    group = RasterGroupBuilder(probe.url)
    try:
        dtype, size = header.size.dtype, header.size
        levels, reason = header.count_levels()
        most = header.check_cost(file.size)
        if size.chunks(0) is None:
            raise ValueError("its first tiles are smaller than others, which is not supported")
    except ValueError as e:
        raise ManifestError(f"{probe.url}: {e}") from e
    if reason:
        group.reports["lower resolutions"] = f"only {levels} are shown: {reason}"
    place = yield from _locate(boxes, size.shape(0), group)
    attributes = _describe(boxes, group)
    pin = None if probe.facts is None else probe.facts.pin
    index = TileIndex(file, probe.head, pin, header, boxes.stop)
    for level in range(levels + 1):
        name, (rows, columns), chunks = str(level), size.shape(level), size.chunks(level)
        assert chunks is not None
        bands = (size.bands,) if size.bands > 1 else ()
        axes = (*("band" for _ in bands), "y", "x")
        names = group.name_dimensions(name, axes, (*bands, rows, columns))
        found: dict[str, Any] = dict(attributes)
        if place is not None:
            found |= place.add(group, "", (rows, columns, size.bands), names)
        where = f"{probe.url}: image {name}"
        array = ArrayDescription(where, (*bands, rows, columns), (*bands, *chunks), dtype, [*names.values()], found)
        group.add(name, array, TileChunks(index, array.grid(options.zarr_format), level, most))
    group.add_pyramids("", [("", [str(level) for level in range(levels + 1)])] if levels else [], {})
    return group.keyspace(options.zarr_format, group.groups.pop(""))


def _locate(boxes: Boxes, shape: tuple[int, int], group: RasterGroupBuilder) -> Steps[Georeference | None]:
    """Return the place of the image by its GeoTIFF, or else by its GML; None if it has neither."""
    for kind, data in boxes.metadata:
        if kind == UUID and data.startswith(GEO_TIFF):
            image = data[len(GEO_TIFF) :]
            try:
                tiff = Tiff("the GeoTIFF in it", Inline(image), len(image), image)
                ifds = yield from tiff.chain()
                yield from tiff.fill(ifds[0].tags.values())
                place = locate_image(ifds[0], *shape)
                if place is not None:
                    return place
            except (ManifestError, DamagedIndex, ValueError) as e:
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


def _describe(boxes: Boxes, group: RasterGroupBuilder) -> dict[str, Any]:
    """Return attributes about samples from the header box: whether they are numbers of a palette's colours."""
    try:
        for kind, data in boxes.metadata:
            for inner, contents in iterate_boxes(data) if kind == HEADER else ():
                if inner == b"pclr":
                    return {"palette": _parse_palette(contents)}
    except ValueError as e:
        group.reports["palette"] = str(e)
    return {}


def _parse_palette(data: bytes) -> list[list[int]]:
    """Return the colours of a palette."""
    count, columns = int.from_bytes(data[:2]), data[2] if len(data) > 2 else 0
    depths = data[3 : 3 + columns]
    sizes = [((depth & 127) + 8) // 8 for depth in depths]
    if not 0 < count <= 1024 or len(data) != 3 + columns + count * sum(sizes) or not columns:
        raise ValueError(f"its palette of {count} colours has {len(data)} bytes")
    found, at = [], 3 + columns
    for _ in range(count):
        colour = []
        for size in sizes:
            colour.append(int.from_bytes(data[at : at + size]))
            at += size
        found.append(colour)
    return found
