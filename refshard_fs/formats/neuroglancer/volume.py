"""Neuroglancer's precomputed volumes: one zarr array for each scale. No I/O here.

A chunk is a file, or a range of a shard that two indexes locate. zarr decodes raw chunks, and gzip streams of these. A
chunk at the edge of the volume is stored without the part beyond the edge, and is padded while it is read. A chunk that
is not stored is zero.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote, unquote

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.array_group import ArrayGroup, Chunks
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Facts, Listed, Load, Names, Packed, Pin, Span, Stat, Steps, iterate_batches
from refshard_fs.errors import DamagedIndex, ManifestError, NotListable
from refshard_fs.formats.neuroglancer import INFO
from refshard_fs.formats.neuroglancer.encodings import DecodingRecipe, pad_chunk
from refshard_fs.formats.neuroglancer.info import Scale, parse_info
from refshard_fs.formats.neuroglancer.minishards import Minishard, MinishardIndex, ShardIndex, Sharding, decompress_gzip
from refshard_fs.security.policy import protocol_of, relative_to
from refshard_fs.sharding.index import MAX_INDEX, PAIR
from refshard_fs.sharding.packing import MortonCode

_NUMBER = r"(-?\d{1,20})"
_CHUNK = re.compile("_".join([f"{_NUMBER}-{_NUMBER}"] * 3), re.ASCII)
_BATCH = 64  # minishards whose indexes are read together for a listing


class EdgeRecipe(msgspec.Struct, frozen=True):
    """Pad a chunk with zeros from the stored shape ``extents`` to the shape ``chunks``.

    ``is_gzip``: the chunk is a gzip stream, both in the volume and after padding.
    """

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
        full = pad_chunk(raw, self.extents, self.chunks, self.itemsize)
        return gzip.compress(full, 0, mtime=0) if self.is_gzip else full


class _ScaleChunks(Chunks):
    """The chunks of one scale, which lie in the folder ``url``."""

    def __init__(self, url: str, scale: Scale, grid: ChunkGrid) -> None:
        self.url = url
        self.scale = scale
        self.grid = grid
        self.size = math.prod(scale.chunks) * scale.dtype.itemsize

    def _find_stored_size(self, coords: tuple[int, ...]) -> int | None:
        """Return the stored size of a chunk in bytes; None if it is unknown, because the chunk is compressed."""
        if self.scale.is_gzip or self.scale.encoding != "raw":
            return None
        return math.prod(self.scale.find_extents(coords)) * self.scale.dtype.itemsize

    def _make_entry(self, span: Span, coords: tuple[int, ...]) -> Entry:
        """Return the entry of a chunk whose stored bytes are ``span``: decoded and padded if necessary."""
        scale = self.scale
        extents = scale.find_extents(coords)
        if scale.encoding != "raw":
            shapes = extents, scale.chunks
            return Packed(
                span, DecodingRecipe(*shapes, scale.dtype.str, scale.encoding, scale.block, scale.is_gzip), self.size
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
        siblings: tuple[Listed, ...] | None = yield Names(folder)
        if siblings is None or {name, unquote(name)} & {listed.name for listed in siblings}:
            raise NotListable(f"{self.url} cannot be listed: read its chunks by key")
        return ()  # if all voxels are zero, the folder does not exist


class FileChunks(_ScaleChunks):
    """The chunks of a scale with a file for each chunk, whose name is the chunk's position in the volume."""

    def find_entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        coords = self.grid.coords(number)
        size = self._find_stored_size(coords)
        pin = None if size is None else Pin(size=size)
        entry = self._make_entry(Span(relative_to(self.url, self._name_chunk(coords)), optional=True, pin=pin), coords)
        # The file may not exist. Without a size in the entry, readers must request the file.
        return msgspec.structs.replace(entry, made=None) if isinstance(entry, Packed) else entry

    def list_existing(self) -> Steps[list[Listed] | None]:
        chunks = []
        for listed in (yield from self._list_names()):
            match = _CHUNK.fullmatch(listed.name)
            if match is not None and not listed.is_directory:
                scale = self.scale
                begins = map(int, match.groups()[::2])
                axes = zip(begins, scale.offset, scale.step, strict=True)
                coords = (*((begin - offset) // step for begin, offset, step in axes), 0)
                if self.grid.number_of(coords) is not None and self._name_chunk(coords) == listed.name:
                    chunks.append(Listed(self.grid.encoding.encode(coords), self.size))
        return chunks

    def _name_chunk(self, coords: tuple[int, ...]) -> str:
        extents = self.scale.find_extents(coords)
        begins = (
            offset + coord * step
            for offset, coord, step in zip(self.scale.offset, coords, self.scale.step, strict=False)
        )
        return "_".join(f"{begin}-{begin + extent}" for begin, extent in zip(begins, extents, strict=False))


class ShardChunks(_ScaleChunks):
    """The chunks of a scale in shards. The id of a chunk is the Morton code of its coordinates."""

    def __init__(self, url: str, scale: Scale, grid: ChunkGrid, sharding: Sharding) -> None:
        super().__init__(url, scale, grid)
        self._sharding = sharding
        self._code = MortonCode(grid.counts[:3])
        self._has_current_form = False  # True once a shard is known to be one file: in the obsolete form it is two

    def find_entry(self, number: int) -> Steps[Entry | None]:
        coords = self.grid.coords(number)
        chunk = self._code.encode(coords)
        shard, minishard = self._sharding.find_shard(chunk)
        block = self._sharding.find_block(minishard)
        table = yield self._make_table_load(shard, block)
        if table is None:
            yield from self._check_form(shard)
            return None
        self._has_current_form = True
        index: Minishard | None = None
        load = self._make_index_load(shard, table[minishard - block.start].tolist())
        if load is not None:
            index = yield load
        place = None if index is None else index.locate(chunk)
        if place is None:
            return None
        start, size = place
        expected = self._find_stored_size(coords)
        if expected is not None and size != expected:
            reason = f"the chunk with the id {chunk} has {size} bytes: expected {expected}"
            raise DamagedIndex("", self._make_shard_url(shard), reason)
        start += self._sharding.table_size
        return self._make_entry(Span(self._make_shard_url(shard), start, start + size), coords)

    def list_existing(self) -> Steps[list[Listed] | None]:
        names = yield from self._list_names()
        shards = self._find_shards(names, "shard")
        for shard in self._find_shards(names, "index"):
            if shard not in shards:
                raise self._make_form_error(shard)
        chunks: list[Listed] = []
        for shard in shards:
            number = 0
            while number < 1 << self._sharding.minishard_bits:
                block = self._sharding.find_block(number)
                table = yield self._make_table_load(shard, block)
                present = [] if table is None else np.flatnonzero(table[:, 0] != table[:, 1]).tolist()
                for rows in iterate_batches(present, _BATCH):
                    loads = [self._make_index_load(shard, table[row].tolist()) for row in rows]
                    minishards = yield tuple(load for load in loads if load is not None)
                    for row, minishard in zip(rows, minishards, strict=True):
                        chunks += self._list_chunks(minishard.ids, (shard, number + row))
                number = block.stop
        return chunks

    def _find_shards(self, names: Sequence[Listed], suffix: str) -> dict[int, None]:
        """Return the numbers of the shards that have a file with this suffix, in the order of ``names``."""
        numbers = (self._sharding.parse_shard_name(listed.name, suffix) for listed in names)
        return dict.fromkeys(number for number in numbers if number is not None)

    def _list_chunks(self, ids: npt.NDArray[np.uint64], shard_and_minishard: tuple[int, int]) -> Iterator[Listed]:
        """Yield the chunks ``ids`` of a minishard, without chunks outside the grid or of another minishard."""
        coords = self._code.decode(ids, 3)
        shards, minishards = self._sharding.find_shard(ids)
        is_here = (coords < np.array(self.grid.counts[:3])).all(axis=1)
        is_here &= self._code.encode(coords.T.astype(np.uint64)) == ids
        is_here &= (shards == shard_and_minishard[0]) & (minishards == shard_and_minishard[1])
        size = None if self.scale.codecs else self.size
        for chunk_coords in coords[is_here].tolist():
            yield Listed(self.grid.encoding.encode((*chunk_coords, 0)), size)

    def _make_shard_url(self, shard: int) -> str:
        return relative_to(self.url, f"{self._sharding.name_shard(shard)}.shard")

    def _make_table_load(self, shard: int, block: range) -> Load:
        entry = Span(self._make_shard_url(shard), PAIR * block.start, PAIR * block.stop, optional=True)
        return Load(entry, ShardIndex(self._sharding.table_size))

    def _make_index_load(self, shard: int, index_range: list[int]) -> Load | None:
        start, stop = index_range
        if start == stop:
            return None
        if stop - start > MAX_INDEX:
            raise DamagedIndex(
                "",
                self._make_shard_url(shard),
                f"a minishard's index has {stop - start} bytes: expected at most {MAX_INDEX}",
            )
        table = self._sharding.table_size
        index = MinishardIndex(self._sharding.minishard_index_encoding, self.grid.size, table, start, stop)
        return Load(Span(self._make_shard_url(shard), table + start, table + stop), index)

    def _check_form(self, shard: int) -> Steps[None]:
        """Raise ManifestError if a shard is stored as two files. Without the error, its chunks would look missing."""
        if self._has_current_form:
            return
        facts: Facts | None = yield Stat(relative_to(self.url, f"{self._sharding.name_shard(shard)}.index"))
        if facts is not None:
            raise self._make_form_error(shard)

    def _make_form_error(self, shard: int) -> ManifestError:
        name = self._sharding.name_shard(shard)
        return ManifestError(f"{self.url} has shards in an obsolete form: expected {name}.shard, found {name}.index")


def _make_chunks(url: str, scale: Scale, grid: ChunkGrid) -> Chunks:
    folder = relative_to(url, quote(scale.key) if protocol_of(url) in ("http", "https") else scale.key)
    if scale.sharding is None:
        return FileChunks(folder, scale, grid)
    return ShardChunks(folder, scale, grid, scale.sharding)


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a precomputed volume."""
    yield from ()
    document = probe.documents.get(INFO)
    if document is None:
        raise ManifestError(f"{probe.url}: expected a precomputed volume with a file {INFO!r}, found no such file")
    volume = parse_info(document.data, relative_to(probe.url, INFO))
    arrays = {name: scale.description for name, scale in volume.scales.items()}
    grids = {name: array.grid(options.zarr_format) for name, array in arrays.items()}
    chunks = {name: _make_chunks(probe.url, scale, grids[name]) for name, scale in volume.scales.items()}
    return ArrayGroup(arrays, chunks, options.zarr_format, volume.attributes, volume.reports)
