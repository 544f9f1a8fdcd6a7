"""Parse neuroglancer's ``info`` document into the scales of a volume, each described as a zarr array. No I/O here.

Arrays have the dimensions x, y, z and channel. As in the volume, chunks are in Fortran order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from refshard_fs.core.array_group import ArrayDescription
from refshard_fs.core.zarrmeta import COUNTABLE, object_in, shorten
from refshard_fs.errors import ManifestError
from refshard_fs.formats.neuroglancer.encodings import ENCODINGS, MOST_IN_BLOCK
from refshard_fs.formats.neuroglancer.minishards import Sharding
from refshard_fs.sharding.packing import MortonCode

DIMENSIONS = ["x", "y", "z", "channel"]
MOST_DECODED = 1 << 31  # the most bytes of a decoded chunk
MOST_LISTED = 10  # the most scales that an error lists

_TYPES = {name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "uint32", "uint64", "float32")}
_TYPES |= {name: np.dtype(name).newbyteorder("<") for name in ("int8", "int16", "int32", "int64")}
_RESERVED = frozenset({"info", "zarr.json"})  # names that arrays cannot have
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")  # characters that names of arrays do not have

_Extent = Annotated[int, Meta(ge=0, le=COUNTABLE - 1)]
_Step = Annotated[int, Meta(ge=1, le=COUNTABLE - 1)]
_Offset = Annotated[int, Meta(ge=1 - COUNTABLE, le=COUNTABLE - 1)]


class Scale(msgspec.Struct, frozen=True):
    """One scale, which is shown as an array. The first three items of each tuple are for x, y, z.

    ``key`` is the name of the folder. ``step`` is the chunk size in ``info``; ``chunks`` is the shape of the array's
    chunks, which is smaller if the volume is smaller than a chunk. ``offset`` is the position of the first voxel.
    """

    key: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    step: tuple[int, int, int]
    offset: tuple[int, ...]
    dtype: np.dtype[Any]
    sharding: Sharding | None
    attributes: Mapping[str, Any]
    encoding: str = "raw"
    block: tuple[int, int, int] = (1, 1, 1)

    @property
    def is_gzip(self) -> bool:
        """Whether each chunk is a gzip stream."""
        return self.sharding is not None and self.sharding.data_encoding == "gzip"

    @property
    def codecs(self) -> list[dict[str, Any]]:
        """The codecs with which zarr decodes a chunk; empty if the chunk is raw, or if a recipe decodes it."""
        return [{"id": "gzip", "level": 1}] if self.is_gzip and self.encoding == "raw" else []

    @property
    def description(self) -> ArrayDescription:
        """The description of the array for zarr."""
        parameters = self.key, self.shape, self.chunks, self.dtype, DIMENSIONS, self.attributes, self.codecs
        return ArrayDescription(*parameters, fill_value=0, order="F")

    def find_extents(self, coords: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the stored chunk at ``coords``: chunks end at the volume's edge."""
        return tuple(
            min(chunk, size - coord * chunk) for chunk, size, coord in zip(self.chunks, self.shape, coords, strict=True)
        )


class Volume(NamedTuple):
    """The scales that can be shown, by path; reasons why others cannot be shown; the attributes of the group."""

    scales: dict[str, Scale]
    reports: dict[str, str]
    attributes: dict[str, Any]


class _Scale(msgspec.Struct, frozen=True):
    """One scale as ``info`` describes it."""

    key: str
    size: tuple[_Extent, _Extent, _Extent]
    chunk_sizes: Annotated[list[tuple[_Step, _Step, _Step]], Meta(min_length=1)]
    encoding: str = ""
    voxel_offset: tuple[_Offset, _Offset, _Offset] = (0, 0, 0)
    resolution: Any = None
    sharding: Any = None
    compressed_segmentation_block_size: tuple[_Step, _Step, _Step] = (8, 8, 8)


class _Info(msgspec.Struct, frozen=True):
    data_type: str
    num_channels: Annotated[int, Meta(ge=1, le=COUNTABLE - 1)]
    scales: list[Any]  # each a `_Scale`


def parse_info(data: bytes, label: str) -> Volume:
    """Parse ``info``. Raise ManifestError, which begins with ``label``, if it is invalid or no scale can be shown."""
    doc = object_in(data, label)
    kind = doc.get("@type", "neuroglancer_multiscale_volume")
    if kind != "neuroglancer_multiscale_volume":
        raise ManifestError(f"{label} has the '@type' {shorten(kind)}: expected neuroglancer_multiscale_volume")
    try:
        info = msgspec.convert(doc, _Info)
    except (msgspec.ValidationError, UnicodeEncodeError) as e:  # UnicodeEncodeError: half of a surrogate pair
        raise ManifestError(f"{label} breaks the specification: {e}") from None
    dtype = _TYPES.get(info.data_type.lower())
    if dtype is None:
        raise ManifestError(f"{label}: its 'data_type' is {shorten(info.data_type)}: expected {', '.join(_TYPES)}")
    scales: dict[str, Scale] = {}
    reports: dict[str, str] = {}
    names: set[str] = set()
    for number, document in enumerate(info.scales):
        name = str(number)
        try:
            scale = msgspec.convert(document, _Scale)
            name = _name_array(scale.key, number, names)
            scales[name] = _convert_scale(scale, dtype, info.num_channels, f"{label}, scale {number}")
        except (msgspec.ValidationError, UnicodeEncodeError) as e:  # UnicodeEncodeError: half of a surrogate pair
            reports[name] = f"it breaks the specification: {e}"
        except ManifestError as e:
            reports[name] = str(e)
        names.add(name)
    if not scales and not reports:
        raise ManifestError(f"{label}: expected at least one scale, found none")
    if not scales:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in islice(reports.items(), MOST_LISTED))
        raise ManifestError(f"{label}: expected at least one scale that can be shown, found none ({reasons})")
    attributes: dict[str, Any] = {name: doc[name] for name in ("type", "data_type", "num_channels") if name in doc}
    return Volume(scales, reports, attributes)


def _convert_scale(scale: _Scale, dtype: np.dtype[Any], channels: int, label: str) -> Scale:
    key, size, step = scale.key, scale.size, scale.chunk_sizes[0]
    if "::" in key or "\\" in key or "\0" in key:
        raise ManifestError(f"{label}: its 'key' is {shorten(key)}: expected a path without '::', backslash and NUL")
    if key.startswith("/") or ".." in key.split("/") or "://" in key:
        raise ManifestError(f"its key {key!r} is not in the volume's folder: expected the name of a folder in it")
    encoding, block = scale.encoding.lower(), scale.compressed_segmentation_block_size
    if encoding != "raw" and encoding not in ENCODINGS:
        raise ManifestError(f"its chunks are encoded as {scale.encoding!r}: expected raw, {', '.join(ENCODINGS)}")
    types, counts = ENCODINGS.get(encoding, ({dtype.name}, [channels]))
    if dtype.name not in types or channels not in counts or math.prod(block) > MOST_IN_BLOCK:
        combination = f"{channels} channels of {dtype.name}, and blocks of {list(block)}"
        known = f"{' or '.join(sorted(types))} with {_format_counts(counts)} channels"
        expected = f"expected {known}, and blocks of at most {MOST_IN_BLOCK} voxels"
        raise ManifestError(f"its chunks are encoded as {encoding!r}, with {combination}: {expected}")
    sharding = _parse_sharding(scale.sharding, label)
    if sharding is not None and len(scale.chunk_sizes) > 1:
        found = f"its 'chunk_sizes' have {len(scale.chunk_sizes)} items"
        raise ManifestError(f"{label}: it is sharded, and {found}: expected one")
    chunks = (*(min(chunk_size, max(length, 1)) for chunk_size, length in zip(step, size, strict=True)), channels)
    if math.prod(chunks) * dtype.itemsize > MOST_DECODED:
        found = f"its chunks of {list(chunks)} have {math.prod(chunks) * dtype.itemsize} bytes each"
        raise ManifestError(f"{found}: expected at most {MOST_DECODED}")
    if math.prod(size) * channels * dtype.itemsize >= COUNTABLE:
        raise ManifestError(f"{label}: its 'size' {list(size)} means too many bytes: expected less than 2**63")
    if sharding is not None:
        try:
            MortonCode([-(-length // chunk_size) for length, chunk_size in zip(size, step, strict=True)])
        except ValueError as e:
            raise ManifestError(str(e)) from None
    attributes = {"resolution": scale.resolution, "voxel_offset": list(scale.voxel_offset), "key": key}
    offset, shape = scale.voxel_offset, (*size, channels)
    return Scale(key, shape, chunks, step, offset, dtype, sharding, attributes, encoding, block)


def _format_counts(counts: Sequence[int]) -> str:
    """Return the numbers of channels of an encoding as a text: "1 or 3", or "1 to 4"."""
    return " or ".join(map(str, counts)) if len(counts) < 3 else f"{counts[0]} to {counts[-1]}"


def _parse_sharding(doc: object, label: str) -> Sharding | None:
    if doc is None:
        return None
    if not isinstance(doc, dict) or doc.get("@type") != "neuroglancer_uint64_sharded_v1":
        raise ManifestError(f"its 'sharding' is {shorten(doc)}: expected the '@type' neuroglancer_uint64_sharded_v1")
    try:
        return msgspec.convert(doc, Sharding)
    except (msgspec.ValidationError, UnicodeEncodeError) as e:  # UnicodeEncodeError: half of a surrogate pair
        raise ManifestError(f"{label}: its 'sharding' breaks the specification: {e}") from None


def _name_array(key: str, number: int, names: set[str]) -> str:
    """Return the name of a scale's array: the key, with ``_`` for all but letters, digits, ``.``, ``_`` and ``-``."""
    name = _PLAIN.sub("_", key).strip(".")
    if not name or name in names or name in _RESERVED:
        name = f"{name}_{number}"
    while name in names:
        name += "_"
    return name
