"""Neuroglancer's ``info`` document: the scales of a volume, each an array as zarr's metadata describes it. No I/O here.

Arrays have the dimensions x, y, z and channel, and chunks in Fortran order, as they are stored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refshard_fs.core.array_group import ArrayDescription
from refshard_fs.core.zarrmeta import COUNTABLE, integer, integers, object_in, shown
from refshard_fs.errors import ManifestError
from refshard_fs.formats.neuroglancer.minishards import Sharding
from refshard_fs.sharding.nested import MortonCode

DIMENSIONS = ["x", "y", "z", "channel"]
LARGEST = 1 << 31  # bytes of a chunk, as it is decoded
SHOWN = 10  # scales that an error tells of

_TYPES = {name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "uint32", "uint64", "float32")}
_TYPES |= {name: np.dtype(name).newbyteorder("<") for name in ("int8", "int16", "int32", "int64")}
_RESERVED = frozenset({"info", "zarr.json"})
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")

_Axes = tuple[int, int, int]


class Scale(msgspec.Struct, frozen=True):
    """One scale, as the array it is shown as; the first three of each tuple are x, y, z.

    ``key`` is the folder. ``step`` is the size of chunks, which ``chunks`` are unless the volume is smaller.
    """

    key: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    step: _Axes
    offset: tuple[int, ...]
    dtype: np.dtype[Any]
    sharding: Sharding | None
    attributes: Mapping[str, Any]

    @property
    def is_gzip(self) -> bool:
        """Whether each chunk is a gzip stream."""
        return self.sharding is not None and self.sharding.data_encoding == "gzip"

    @property
    def description(self) -> ArrayDescription:
        """What zarr's metadata says of the array."""
        compressor = {"id": "gzip", "level": 1} if self.is_gzip else None
        return ArrayDescription(
            self.key, self.shape, self.chunks, self.dtype, "F", compressor, DIMENSIONS, self.attributes, fill_value=0
        )

    def extents(self, coords: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the chunk at ``coords``, as it is stored: it ends where the volume does."""
        return tuple(
            min(chunk, size - coord * chunk) for chunk, size, coord in zip(self.chunks, self.shape, coords, strict=True)
        )


class Volume(NamedTuple):
    """All scales that can be shown, by the path of their array; why the others cannot; the group's attributes."""

    scales: dict[str, Scale]
    reports: dict[str, str]
    attributes: dict[str, Any]


class _NotShown(Exception):
    """A scale of a kind that is not read here; the text says which."""


def parse_info(data: bytes, where: str) -> Volume:
    """Return what ``info`` says; ManifestError where it contradicts itself, or nothing in it can be shown."""
    doc = object_in(data, where)
    kind = doc.get("@type", "neuroglancer_multiscale_volume")
    if kind != "neuroglancer_multiscale_volume":
        raise ManifestError(f"{where} describes {shown(kind)}, and no volume")
    match doc.get("scales"):
        case [*scales] if all(isinstance(scale, dict) for scale in scales):
            pass
        case other:
            raise ManifestError(f"{where}: its 'scales' is {shown(other)}, no list of objects")
    dtype = _TYPES.get(str(doc.get("data_type")).lower())
    if dtype is None:
        raise ManifestError(f"{where}: its 'data_type' {shown(doc.get('data_type'))} is not known")
    channels = integer(doc.get("num_channels"), "num_channels", where, 1)
    found: dict[str, Scale] = {}
    reports: dict[str, str] = {}
    names: set[str] = set()
    for number, scale in enumerate(scales):
        name = _name(scale.get("key"), number, names)
        names.add(name)
        try:
            found[name] = _scale(scale, dtype, channels, f"{where}, scale {number}")
        except _NotShown as e:
            reports[name] = str(e)
    if not found:
        why = "; ".join(f"{name}: {reason}" for name, reason in islice(reports.items(), SHOWN)) or "it has none"
        raise ManifestError(f"{where}: none of its scales can be shown ({why})")
    attributes: dict[str, Any] = {n: doc[n] for n in ("type", "data_type", "num_channels") if n in doc}
    return Volume(found, reports, attributes)


def _scale(doc: Mapping[str, Any], dtype: np.dtype[Any], channels: int, where: str) -> Scale:
    key = doc.get("key")
    if not isinstance(key, str) or "::" in key or "\\" in key or "\0" in key:
        raise ManifestError(f"{where}: its 'key' is {shown(key)}, no path")
    if key.startswith("/") or ".." in key.split("/") or "://" in key:
        raise _NotShown(f"its key {key!r} leads out of the volume's folder; open that volume by itself")
    encoding = str(doc.get("encoding")).lower()
    if encoding != "raw":
        raise _NotShown(f"its chunks are encoded as {encoding!r}; only 'raw' ones are plain zarr chunks")
    size = _axes(integers(doc.get("size"), "size", where), where)
    sharding = _sharding(doc.get("sharding"), where)
    match doc.get("chunk_sizes"):
        case [first] if sharding is not None:
            steps = [first]
        case [first, *_] if sharding is None:
            steps = [first]
        case other:
            raise ManifestError(f"{where}: its 'chunk_sizes' is {shown(other)}")
    step = _axes(integers(steps[0], "chunk_sizes", where), where)
    if 0 in step:
        raise ManifestError(f"{where}: its 'chunk_sizes' hold a zero")
    chunks = (*(min(s, max(n, 1)) for s, n in zip(step, size, strict=True)), channels)
    if math.prod(chunks) * dtype.itemsize > LARGEST:
        raise _NotShown(f"its chunks of {list(chunks)} are more than {LARGEST} bytes each")
    if math.prod(size) * channels * dtype.itemsize >= COUNTABLE:
        raise ManifestError(f"{where}: its 'size' {list(size)} is more than 63 bits count in bytes")
    if sharding is not None:
        try:
            MortonCode([-(-n // s) for n, s in zip(size, step, strict=True)])
        except ValueError as e:
            raise _NotShown(str(e)) from None
    offset = doc.get("voxel_offset", [0, 0, 0])
    match offset:
        case [int(x), int(y), int(z)] if max(abs(x), abs(y), abs(z)) < COUNTABLE:
            pass
        case _:
            raise ManifestError(f"{where}: its 'voxel_offset' is {shown(offset)}, not three integers of 64 bits")
    attributes = {"resolution": doc.get("resolution"), "voxel_offset": offset, "key": key}
    return Scale(key, (*size, channels), chunks, step, tuple(offset), dtype, sharding, attributes)


def _sharding(doc: object, where: str) -> Sharding | None:
    match doc:
        case None:
            return None
        case {"@type": "neuroglancer_uint64_sharded_v1"}:
            try:
                found = msgspec.convert(doc, Sharding)
            except (msgspec.ValidationError, UnicodeEncodeError) as e:
                raise ManifestError(f"{where}: its 'sharding' is not as specified: {e}") from None
        case _:
            raise _NotShown(f"its sharding {shown(doc)} is not known")
    bits = (found.preshift_bits, found.minishard_bits, found.shard_bits)
    if min(bits) < 0 or found.preshift_bits > 63 or found.minishard_bits > 32 or sum(bits[1:]) > 64:
        raise ManifestError(f"{where}: its 'sharding' has {bits} bits, more than an id or a table can have")
    return found


def _axes(values: tuple[int, ...], where: str) -> _Axes:
    match values:
        case (x, y, z):
            return x, y, z
    raise ManifestError(f"{where}: {list(values)} is not one number each for x, y and z")


def _name(key: object, number: int, names: set[str]) -> str:
    """Return the name of a scale's array: its key, with ``_`` for all but letters, digits, ``.``, ``_`` and ``-``."""
    name = _PLAIN.sub("_", key).strip(".") if isinstance(key, str) else ""
    if not name or name in names or name in _RESERVED:
        name = f"{name}_{number}"
    while name in names:
        name += "_"
    return name
