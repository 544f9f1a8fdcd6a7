"""bloscpack files (``.blp``, version 3) as a group of one array. No I/O here.

The array is the one that the metadata describes, or else the bytes, in one dimension. Where frames are whole rows of
the array, a chunk is a frame as it lies; where they are not, chunks of whole rows are made of them when they are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from refshard_fs.errors import ManifestError
from refshard_fs.formats import OpenOptions, Probe, Raw
from refshard_fs.keyspace import KeySpace
from refshard_fs.model import Entry, Inline, Listed, Load, Span, Steps
from refshard_fs.shards.array_group import ArrayGroup
from refshard_fs.shards.blosc import LARGEST
from refshard_fs.shards.blosc_array import BloscArray, Compressor
from refshard_fs.shards.blosc_recipes import Piece, Refilled, Verified, made
from refshard_fs.shards.bloscpack_header import HEADER, Header, parse_header, parse_metadata_header
from refshard_fs.shards.dtypes import parse_dtype
from refshard_fs.shards.group_documents import documents
from refshard_fs.shards.json_fields import counts, shown
from refshard_fs.shards.superchunk import Superchunk

__all__ = ["open_"]

DATA: Final = "data"  # the one array
BYTES: Final = "u1"  # what a file without metadata holds

_DESCRIBED: Final = frozenset(["dtype", "shape", "order", "container"])


class Described(NamedTuple):
    """The array that the frames hold, by the metadata; ``order`` is that of all its elements."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    attributes: Mapping[str, Any]

    @property
    def axis(self) -> int:
        """The slowest axis, along which the array is cut."""
        return len(self.shape) - 1 if self.order == "F" else 0

    @property
    def row_size(self) -> int:
        """Bytes of one step along the slowest axis."""
        others = math.prod(extent for axis, extent in enumerate(self.shape) if axis != self.axis)
        return others * self.dtype.itemsize

    def chunks(self, rows: int) -> tuple[int, ...]:
        """Return the shape of a chunk of ``rows`` steps along the slowest axis."""
        return tuple(max(rows if axis == self.axis else extent, 1) for axis, extent in enumerate(self.shape))


class SuperchunkChunks:
    """The chunks of an array, ``size`` bytes each before compression, in the frames of a superchunk."""

    def __init__(self, frames: Superchunk, size: int, *, verify: bool) -> None:
        self._frames = frames
        self._size = size
        self._checksum = frames.header.checksum if verify else 0

    def listed(self) -> Steps[list[Listed] | None]:
        yield from ()
        return None

    def entry(self, number: int) -> Steps[Entry | None]:
        header, size = self._frames.header, self._size
        start = number * size
        stop = min(start + size, header.total)
        first, last = start // header.frame_size, -(-stop // header.frame_size)
        found = yield from self._frames.locate(first, last)
        checksum = self._checksum
        tail = header.digest.size if checksum else 0
        if len(found) == 1 and found[0].header.length == size:
            offset, frame = found[0]
            if not checksum:
                return self._frames.part(offset, frame.stored)
            return made(self._frames.part(offset, frame.stored + tail), Verified(checksum, frame.stored))
        begin = min(offset for offset, _ in found)
        end = max(offset + frame.stored for offset, frame in found) + tail
        cuts = tuple((offset - begin, frame.stored + tail) for offset, frame in found)
        joined = accumulate((length for _, length in cuts), initial=0)
        pieces = tuple(Piece(at, frame.stored, frame.length) for at, (_, frame) in zip(joined, found, strict=False))
        recipe = Refilled(pieces, size, found[0].header.typesize, start - first * header.frame_size, checksum)
        return made(self._frames.part(begin, end - begin), recipe, cuts if len(cuts) > 1 else ())


def _part(probe: Probe, size: int, start: int, stop: int, what: str) -> Entry:
    if stop > size:
        raise ManifestError(f"{probe.url}: it is cut short: {what} reaches to byte {stop}, the file to {size}")
    if stop <= len(probe.head):
        return Inline(probe.head[start:stop])
    return Span(probe.url, start, stop)


def _metadata(probe: Probe, size: int) -> Steps[tuple[int, dict[str, Any]]]:
    """Return where the metadata ends, and what it says."""
    where = f"the metadata of {probe.url}"
    data = yield Load(_part(probe, size, HEADER, 2 * HEADER, "its metadata's header"), Raw())
    header = parse_metadata_header(data, where)
    start = 2 * HEADER
    end = start + header.room
    stored, digest = yield (
        Load(_part(probe, size, start, start + header.stored, "its metadata (meta_comp_size)"), Raw()),
        Load(_part(probe, size, end, end + header.digest.size, "its metadata (max_meta_size)"), Raw()),
    )
    return end + header.digest.size, header.decode(stored, digest, where)


def _described(metadata: Mapping[str, Any], header: Header, url: str, zarr_format: int) -> Described:
    where = f"the metadata of {url}"
    match metadata.get("container"):
        case "numpy":
            pass
        case _:
            return Described(np.dtype(BYTES), (header.total,), "C", metadata)
    dtype = parse_dtype(metadata.get("dtype"), where, zarr_format)
    shape = counts(metadata, "shape", where)
    if len(shape) > 32:
        raise ManifestError(f"{where}: its 'shape' has {len(shape)} dimensions")
    size = math.prod(shape) * dtype.itemsize
    if size != header.total:
        reason = f"its 'shape' {shown(list(shape))} of {dtype} takes {size} bytes, but the chunks hold {header.total}"
        raise ManifestError(f"{where} is stale: {reason}")
    attributes = {name: value for name, value in metadata.items() if name not in _DESCRIBED}
    match metadata.get("order"):
        case "C":
            return Described(dtype, shape, "C", attributes)
        case "F":
            return Described(dtype, shape, "F" if len(shape) > 1 else "C", attributes)
    raise ManifestError(f"{where}: its 'order' is {shown(metadata.get('order'))}, neither 'C' nor 'F'")


def _rows(array: Described, header: Header, url: str) -> int:
    """Return how many steps along the slowest axis a chunk takes: those of a frame, or enough to fill one."""
    if not header.total:
        return 1
    if header.frames == 1:
        return array.shape[array.axis] if array.shape else 1
    rows = -(-header.frame_size // array.row_size)
    if rows * array.row_size > LARGEST:
        raise ManifestError(f"{url}: one row of its array has {array.row_size} bytes, too many for a chunk")
    return rows


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a bloscpack file."""
    url, size = probe.url, probe.facts.size if probe.facts is not None else None
    if size is None:
        what = "a directory" if probe.is_directory else "a file whose size is not told"
        raise ManifestError(f"{url} is {what}, and no bloscpack file")
    header = parse_header(probe.head[:HEADER], size, url)
    table = HEADER
    metadata: dict[str, Any] = {}
    if header.has_metadata:
        table, metadata = yield from _metadata(probe, size)
    array = _described(metadata, header, url, options.zarr_format)
    base = Inline(probe.head) if probe.is_held else Span(url, 0, size, apart=True)
    frames = Superchunk(url, base, size, header, table)
    rows = _rows(array, header, url)
    compressor = Compressor("blosclz", 5, 1, max(header.typesize, 1))
    if header.frames:
        ((_, first),) = yield from frames.locate(0, 1)
        compressor = Compressor(first.codec, 5, first.shuffle, first.typesize)
    dimensions = tuple(f"dim_{axis}" for axis in range(len(array.shape)))
    shown_as = BloscArray(
        url, array.shape, array.chunks(rows), array.dtype, array.order, compressor, dimensions, array.attributes
    )
    whole = documents({DATA: shown_as}, {}, options.zarr_format)
    chunks = SuperchunkChunks(frames, rows * array.row_size, verify=options.verify)
    return ArrayGroup(whole, {DATA: shown_as.grid(options.zarr_format)}, {DATA: chunks})
