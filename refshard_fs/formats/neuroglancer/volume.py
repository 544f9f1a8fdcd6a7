"""Neuroglancer's precomputed volumes: one zarr array for each scale. No I/O here.

A chunk is a file, or a range of a shard that two indexes locate. zarr reads raw chunks and gzip streams of them. A
chunk at the far edges of the volume is stored without the part beyond the edge, and is padded when it is read. A chunk
that is not stored is zero.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Iterator
from urllib.parse import quote, unquote

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import ArrayGroup, Chunks
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Facts, Listed, Load, Names, Packed, Pin, Span, Stat, Steps, batches
from refshard_fs.errors import DamagedIndex, ManifestError, NotListable
from refshard_fs.formats.neuroglancer import INFO
from refshard_fs.formats.neuroglancer.encodings import EncodedRecipe, pad
from refshard_fs.formats.neuroglancer.info import Scale, parse_info
from refshard_fs.formats.neuroglancer.minishards import Minishard, MinishardIndex, ShardIndex, Sharding, decompress_gzip
from refshard_fs.security.policy import protocol_of, relative_to
from refshard_fs.sharding.index import MAX_INDEX, PAIR
from refshard_fs.sharding.packing import MortonCode

_NUMBER = r"(-?\d{1,20})"
_CHUNK = re.compile("_".join([f"{_NUMBER}-{_NUMBER}"] * 3), re.ASCII)
_BATCH = 64  # minishards whose indexes are read at a time for a listing


class EdgeRecipe(msgspec.Struct, frozen=True):
    """Pads a chunk from the stored ``extents`` to the shape ``chunks`` with zeros; both are gzip streams or plain."""

    extents: tuple[int, ...]
    chunks: tuple[int, ...]
    itemsize: int
    is_gzip: bool

    def make(self, raw: bytes) -> bytes:
        size = math.prod(self.extents) * self.itemsize
        if self.is_gzip:
            raw = decompress_gzip(raw, size, exact=True)
        if len(raw) != size:
            raise ValueError(f"a chunk has {len(raw)} bytes: expected {size} at the volume's edge")
        full = pad(raw, self.extents, self.chunks, self.itemsize)
        return gzip.compress(full, 0, mtime=0) if self.is_gzip else full


class _ScaleChunks(Chunks):
    """The chunks of one scale, in the folder ``url``."""

    def __init__(self, url: str, scale: Scale, grid: ChunkGrid) -> None:
        self.url = url
        self.scale = scale
        self.grid = grid
        self.size = math.prod(scale.chunks) * scale.dtype.itemsize

    def _find_stored_size(self, coords: tuple[int, ...]) -> int | None:
        """Return the stored size of a chunk in bytes; None if only the chunk has it."""
        if self.scale.is_gzip or self.scale.encoding != "raw":
            return None
        return math.prod(self.scale.extents(coords)) * self.scale.dtype.itemsize

    def _make_entry(self, span: Span, coords: tuple[int, ...]) -> Entry:
        """Return the entry of the whole chunk whose stored bytes are ``span``."""
        scale = self.scale
        extents = scale.extents(coords)
        if scale.encoding != "raw":
            shapes = extents, scale.chunks
            return Packed(
                span, EncodedRecipe(*shapes, scale.dtype.str, scale.encoding, scale.block, scale.is_gzip), self.size
            )
        if extents == scale.chunks:
            return span
        recipe = EdgeRecipe(extents, scale.chunks, scale.dtype.itemsize, scale.is_gzip)
        return Packed(span, recipe, None if scale.is_gzip else self.size)

    def _list_names(self) -> Steps[tuple[Listed, ...]]:
        names: tuple[Listed, ...] | None = yield Names(self.url)
        if names is not None:
            return names
        folder, _, name = self.url.rpartition("/")
        beside: tuple[Listed, ...] | None = yield Names(folder)
        if beside is None or {name, unquote(name)} & {listed.name for listed in beside}:
            raise NotListable(f"{self.url} cannot be listed; its chunks can still be read by key")
        return ()  # a scale of zeros has no folder


class FileChunks(_ScaleChunks):
    """Chunks in files of their own, named by their position in the volume."""

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        coords = self.grid.coords(number)
        size = self._find_stored_size(coords)
        pin = None if size is None else Pin(size=size)
        entry = self._make_entry(Span(relative_to(self.url, self._name_array(coords)), optional=True, pin=pin), coords)
        # The file may not exist, so a size is known only after a look.
        return msgspec.structs.replace(entry, made=None) if isinstance(entry, Packed) else entry

    def list_existing(self) -> Steps[list[Listed] | None]:
        found = []
        for listed in (yield from self._list_names()):
            match = _CHUNK.fullmatch(listed.name)
            if match is not None and not listed.is_directory:
                scale = self.scale
                begins = map(int, match.groups()[::2])
                cells = zip(begins, scale.offset, scale.step, strict=True)
                coords = (*((begin - offset) // step for begin, offset, step in cells), 0)
                if self.grid.number_of(coords) is not None and self._name_array(coords) == listed.name:
                    found.append(Listed(self.grid.encoding.encode(coords), self.size))
        return found

    def _name_array(self, coords: tuple[int, ...]) -> str:
        extents = self.scale.extents(coords)
        begins = (o + c * s for o, c, s in zip(self.scale.offset, coords, self.scale.step, strict=False))
        return "_".join(f"{begin}-{begin + extent}" for begin, extent in zip(begins, extents, strict=False))


class ShardChunks(_ScaleChunks):
    """Chunks in shards, by the Morton codes of their coordinates."""

    def __init__(self, url: str, scale: Scale, grid: ChunkGrid, sharding: Sharding) -> None:
        super().__init__(url, scale, grid)
        self._parse_sharding = sharding
        self._code = MortonCode(grid.counts[:3])
        self._is_current = False  # True once it is known that shards are not stored in the obsolete form

    def entry(self, number: int) -> Steps[Entry | None]:
        coords = self.grid.coords(number)
        chunk = self._code.encode(coords)
        shard, minishard = self._parse_sharding.place(chunk)
        block = self._parse_sharding.block(minishard)
        table = yield self._load_table(shard, block)
        if table is None:
            yield from self._check_current(shard)
            return None
        self._is_current = True
        index: Minishard | None = None
        load = self._load_index(shard, table[minishard - block.start].tolist())
        if load is not None:
            index = yield load
        found = None if index is None else index.locate(chunk)
        if found is None:
            return None
        start, size = found
        expected = self._find_stored_size(coords)
        if expected is not None and size != expected:
            reason = f"chunk {chunk} has {size} bytes: expected {expected}"
            raise DamagedIndex("", self._shard_url(shard), reason)
        start += self._parse_sharding.table
        return self._make_entry(Span(self._shard_url(shard), start, start + size), coords)

    def list_existing(self) -> Steps[list[Listed] | None]:
        names = yield from self._list_names()
        shards = [s for s in (self._parse_sharding.shard(listed.name) for listed in names) if s is not None]
        found: list[Listed] = []
        for shard in shards:
            number = 0
            while number < 1 << self._parse_sharding.minishard_bits:
                block = self._parse_sharding.block(number)
                table = yield self._load_table(shard, block)
                present = [] if table is None else np.flatnonzero(table[:, 0] != table[:, 1]).tolist()
                for some in batches(present, _BATCH):
                    loads = [self._load_index(shard, table[i].tolist()) for i in some]
                    minishards = yield tuple(load for load in loads if load is not None)
                    for i, minishard in zip(some, minishards, strict=True):
                        found += self._chunks(minishard.ids, (shard, number + i))
                number = block.stop
        return found

    def _chunks(self, ids: npt.NDArray[np.uint64], place: tuple[int, int]) -> Iterator[Listed]:
        """Yield the chunks in the shard and minishard ``place``, without those that belong to other places."""
        coords = self._code.decode(ids, 3)
        shards, minishards = self._parse_sharding.place(ids)
        found = (coords < np.array(self.grid.counts[:3])).all(axis=1)
        found &= self._code.encode(coords.T.astype(np.uint64)) == ids
        found &= (shards == place[0]) & (minishards == place[1])
        size = None if self.scale.codecs else self.size
        for cell in coords[found].tolist():
            yield Listed(self.grid.encoding.encode((*cell, 0)), size)

    def _shard_url(self, shard: int) -> str:
        return relative_to(self.url, f"{self._parse_sharding.stem(shard)}.shard")

    def _load_table(self, shard: int, block: range) -> Load:
        entry = Span(self._shard_url(shard), PAIR * block.start, PAIR * block.stop, optional=True)
        return Load(entry, ShardIndex(self._parse_sharding.table))

    def _load_index(self, shard: int, place: list[int]) -> Load | None:
        start, stop = place
        if start == stop:
            return None
        if stop - start > MAX_INDEX:
            raise DamagedIndex(
                "", self._shard_url(shard), f"a minishard's index has {stop - start} bytes: at most {MAX_INDEX}"
            )
        table = self._parse_sharding.table
        index = MinishardIndex(self._parse_sharding.minishard_index_encoding, self.grid.size, table, start, stop)
        return Load(Span(self._shard_url(shard), table + start, table + stop), index)

    def _check_current(self, shard: int) -> Steps[None]:
        """Raise ManifestError if each shard is stored as two files: otherwise its chunks would look missing."""
        if self._is_current:
            return
        facts: Facts | None = yield Stat(relative_to(self.url, f"{self._parse_sharding.stem(shard)}.index"))
        if facts is not None:
            raise ManifestError(f"{self.url} has shards in an obsolete form, of two files (.index and .data)")
        self._is_current = True


def _chunks(url: str, scale: Scale, grid: ChunkGrid) -> Chunks:
    folder = relative_to(url, quote(scale.key) if protocol_of(url) in ("http", "https") else scale.key)
    if scale.sharding is None:
        return FileChunks(folder, scale, grid)
    return ShardChunks(folder, scale, grid, scale.sharding)


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a precomputed volume."""
    yield from ()
    document = probe.documents.get(INFO)
    if document is None:
        raise ManifestError(f"{probe.url} is not a precomputed volume: it has no {INFO}")
    volume = parse_info(document.data, relative_to(probe.url, INFO))
    arrays = {name: scale.description for name, scale in volume.scales.items()}
    grids = {name: array.grid(options.zarr_format) for name, array in arrays.items()}
    chunks = {name: _chunks(probe.url, scale, grids[name]) for name, scale in volume.scales.items()}
    return ArrayGroup(arrays, chunks, options.zarr_format, volume.attributes, volume.reports)
