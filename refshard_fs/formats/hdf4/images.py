"""Raster images of an HDF4 file as data sets. No I/O here."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Final

import numpy as np

from refshard_fs.core.model import Steps
from refshard_fs.errors import DamagedIndex, ManifestError
from refshard_fs.formats.hdf4.chunks import Layout, find_layout
from refshard_fs.formats.hdf4.data_sets import DataSet, Tree
from refshard_fs.formats.hdf4.elements import Key, Tag
from refshard_fs.formats.hdf4.image_coding import RUNS, ImageCoding
from refshard_fs.formats.hdf4.objects import parse_number_type

_KIND: Final = "RI0.0"  # the class of a Vgroup of an image
_UNCOMPRESSED: Final = (0, 1)  # tags of compressions that mean "not compressed"
_AXES: Final = {0: ("y", "x", "band"), 1: ("y", "band", "x"), 2: ("band", "y", "x")}  # by the interlace mode


def find_images(tree: Tree) -> Steps[list[DataSet]]:
    """Return the raster images as data sets. For an image that cannot be shown, add the reason to ``tree.reports``."""
    groups = {ref: group for ref, group in tree.groups.items() if group.kind == _KIND}
    members_by_name: dict[str, tuple[Key, list[Key]]] = {}
    for ref, group in groups.items():
        members_by_name.setdefault(group.name or f"image {ref}", ((Tag.VGROUP, ref), list(group.members)))
    if not groups:  # older versions wrote groups with another tag
        for key in tree.list_keys(Tag.IMAGE_GROUP):
            group_data = yield from tree.elements.read_stored_bytes(key)
            members_by_name[f"image {key[1]}"] = (
                key,
                list(struct.iter_unpack(">HH", group_data[: len(group_data) // 4 * 4])),
            )
    images = []
    for name, (key, members) in members_by_name.items():
        try:
            images.append((yield from _describe_image(tree, name, key, members)))
        except (ValueError, struct.error, DamagedIndex) as e:
            tree.reports[name] = str(e)
    return images


def _describe_image(tree: Tree, name: str, key: Key, members: list[Key]) -> Steps[DataSet]:
    refs: Mapping[int, int] = dict(members)
    elements = tree.elements
    data = Tag.IMAGE, refs.get(Tag.IMAGE, 0)
    is_old = Tag.COMPRESSED_IMAGE in refs
    if is_old:  # before version 4, the tag of the values said that they are compressed
        data = Tag.COMPRESSED_IMAGE, refs[Tag.COMPRESSED_IMAGE]
    if Tag.IMAGE_DIMENSIONS not in refs or not (is_old or Tag.IMAGE in refs):
        missing = "dimensions" if Tag.IMAGE_DIMENSIONS not in refs else "values"
        raise ManifestError(f"it is a raster image: expected an element with its {missing}, found none")
    header = yield from elements.read_stored_bytes((Tag.IMAGE_DIMENSIONS, refs[Tag.IMAGE_DIMENSIONS]))
    width, height, *number_type, bands, interlace, compression = struct.unpack_from(">iiHHhhH", header)
    dtype = parse_number_type((yield from elements.read_stored_bytes((number_type[0], number_type[1]))))
    dtype = np.dtype("u1") if dtype.kind == "S" else dtype
    layout = yield from find_layout(elements, data)
    if layout is None:
        raise ManifestError("it is a raster image without values: expected pixels")
    if is_old:
        coding = ImageCoding(compression, height, width, bands)
        layout = Layout(layout.length, (), None, coding, written={0: data})
    elif not elements.descriptors[data].is_special and compression not in _UNCOMPRESSED:
        expected = "expected 0 or 1 (no compression), or a compressed element"
        raise ManifestError(f"it is a raster image with the compression {compression}: {expected}")
    if (layout.chunk is not None and compression != RUNS) or interlace not in _AXES:
        interlace = 0  # the HDF4 library ignores the mode of these images: all bands of a pixel lie together
    lengths = {"y": height, "x": width, "band": bands}
    axes = tuple(axis for axis in _AXES[interlace] if axis != "band" or bands > 1)
    shape = tuple(lengths[axis] for axis in axes)
    if min(height, width, bands) < 1 or math.prod(shape) * dtype.itemsize >= 1 << 40:
        raise ValueError(
            f"its image has {height} rows, {width} columns and {bands} bands: expected at least 1 of each, and less "
            "than 1 TiB in all"
        )
    if is_old:
        layout = layout._replace(length=math.prod(shape) * dtype.itemsize)
        coding.make_recipe(layout.length, dtype.itemsize)  # raises if the image cannot be decoded
    if layout.shape is not None:
        raise ManifestError("it is a raster image in chunks: expected an image without chunks")
    attributes = yield from tree.read_attributes(members)
    if Tag.PALETTE in refs and bands == 1:
        colors = (yield from elements.read_contents((Tag.PALETTE, refs[Tag.PALETTE])))[:768]
        attributes.shown["color_map"] = [
            f"#{colors[position : position + 3].hex()}" for position in range(0, len(colors), 3)
        ]
    tree.count_shown_bytes(len(name))
    return DataSet(name, key, axes, shape, dtype, attributes, data, layout)
