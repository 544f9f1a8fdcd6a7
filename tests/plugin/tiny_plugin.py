"""A package that extends refshard_fs by a format, a way of packing chunks into shards, and a sink.

A file of the format has ``TINY``, the number of chunks in four bytes, and the chunks of four bytes each. A shard has up
to two chunks. Its index, before the chunks, has the length of each chunk in one byte, or zero for a missing chunk. The
sink writes sets as lines: the key of a chunk, its URL, its offset and its length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.format import Format, OpenOptions, Probe
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding, join
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Entry, Inline, Listed, Load, Raw, Span, Steps
from refshard_fs.errors import ManifestError
from refshard_fs.references.stream import ReferenceStream
from refshard_fs.sharding.index import Buffer, Table
from refshard_fs.sharding.layout import Equal, Nest, ShardFormat, ShardLayout, Unsharded
from refshard_fs.sinks.sink import Destination, Sink

HEADER, CHUNK = 8, 4  # bytes


class TinyKeySpace(KeySpace):
    """The key space of one file: an array at the root."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._grid = ChunkGrid((count,), ChunkKeyEncoding("v2", "."))
        self.grids = {"": self._grid}
        document = {"zarr_format": 2, "shape": [count * CHUNK], "chunks": [CHUNK], "dtype": "|u1", "order": "C",
                    "fill_value": 0, "filters": None, "compressor": None}  # fmt: skip
        self._documents = {
            ".zarray": json.dumps(document).encode(),
            ".zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["x"]}).encode(),
        }

    def lookup(self, key: str) -> Steps[Entry | None]:
        yield from ()
        if key in self._documents:
            return Inline(self._documents[key])
        number = self._grid.number(key)
        if number is None:
            return None
        start = HEADER + CHUNK * number
        return Span(self._url, start, start + CHUNK)

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        yield from ()
        if prefix:
            return None
        documents = [Listed(name, len(data)) for name, data in self._documents.items()]
        chunks = [Listed(tail, CHUNK) for tail in self._grid.tails()]
        return sorted([*documents, *chunks], key=lambda listed: listed.name)


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    header = yield Load(Span(probe.url, 0, HEADER), Raw())
    return TinyKeySpace(probe.url, int.from_bytes(header[4:], "little"))


def _recognises(probe: Probe) -> bool:
    return probe.head.startswith(b"TINY")


FORMAT = Format("tiny", _recognises, __name__)


class Lengths:
    """The index of one shard: the lengths of its chunks."""

    nbytes = 2

    def __init__(self, lengths: bytes) -> None:
        self._lengths = lengths

    def locate(self, slot: int) -> tuple[int, int] | None:
        length = self._lengths[slot]
        return (2 + sum(self._lengths[:slot]), length) if length else None

    def list_present(self) -> list[int]:
        return [slot for slot, length in enumerate(self._lengths) if length]


class LengthsLevel(msgspec.Struct, frozen=True):
    """The place of the index in a shard, and the ways to read and write it."""

    length = 2
    at_end = False
    trailer = 0

    def table(self, data: bytes, size: int | None) -> Table:
        if size is not None and size != 2 + sum(data):
            raise ValueError(f"expected a shard of {2 + sum(data)} bytes by its index, found {size}")
        return Lengths(data)

    def pack(self, chunks: Sequence[tuple[int, Sequence[Buffer]]]) -> list[Buffer]:
        payloads = {slot: b"".join(parts) for slot, parts in chunks}
        return [
            bytes(len(payloads.get(slot, b"")) for slot in range(2)),
            *(payloads[slot] for slot in sorted(payloads)),
        ]


def unshard(doc: Mapping[str, Any], options: Mapping[str, Any]) -> Unsharded | None:
    """Show an array whose metadata have ``"paired"`` by its chunks; a shard has two of them, along its dimension."""
    if not doc.get("paired"):
        return None
    shown = {name: value for name, value in doc.items() if name != "paired"}
    meta = zarrmeta.array_meta(shown, "its metadata")
    assert meta is not None
    assert meta.grid is not None
    grid = msgspec.structs.replace(meta.grid, shards=(2,))
    return Unsharded(ShardLayout(grid, (Equal(2),), [Nest((1,), (0,), lambda slots: LengthsLevel())]), shown)


SHARD_FORMAT = ShardFormat("paired", (b'"paired"',), unshard)


class LinesSink(Sink):
    """Write a line for each chunk, without metadata."""

    name = "lines"

    def write(self, references: ReferenceStream, destination: Destination) -> None:
        with destination.objects.stream() as file:
            for array, grid in references.grids.items():
                for numbers, chunks in references.partitions(array, 1000):
                    for row in chunks.list_present():
                        found = chunks.ranges.get_row(row)
                        if found is None:
                            raise ManifestError(f"chunk {row!r} of {array!r} is inline: lines hold only ranges")
                        key = join(array, grid.tail(numbers[row]))
                        file.write(f"{key} {chunks.urls[found.target]} {found.offset} {found.length}\n".encode())


LINES = LinesSink()
