"""Pack a new shard from changed chunks and the other chunks of the old shard. No I/O here.

Chunks are stored in Morton order, unless the index fixes their places. Unchanged chunks, and unchanged shards within
the shard, are copied as bytes; other bytes, which the index does not refer to, are left out. A shard is returned as a
list of parts, which can be written without joining them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from refshard_fs.core import checksums as crc32c
from refshard_fs.sharding.index import Buffer, Level

Slots: TypeAlias = tuple[int, ...]  # the slot of a chunk in the shard, in the shard within that slot, and so on
Levels: TypeAlias = Sequence[tuple[Level, tuple[int, ...]]]  # outermost first, with the counts of slots by dimension


class MortonCode:
    """Compressed Morton codes: the bits of a cell's coordinates interleaved to one number, without unused bits.

    Neuroglancer numbers the chunks of a volume by these codes, and zarr-python stores the chunks of a shard in this
    order. The grid has ``counts`` cells along each dimension; ValueError if its codes have more than 64 bits.
    """

    __slots__ = ("_sources",)

    def __init__(self, counts: Sequence[int]) -> None:
        bits = max((max(count - 1, 0).bit_length() for count in counts), default=0)
        # For each bit of a code, lowest first: a dimension, and a bit of the coordinate along it.
        self._sources = [(d, bit) for bit in range(bits) for d, count in enumerate(counts) if 1 << bit < count]
        if len(self._sources) > 64:
            raise ValueError(f"expected Morton codes of at most 64 bits: {'×'.join(map(str, counts))} cells need more")

    def encode(self, coords: Any) -> Any:
        """Return the code of the cell at ``coords``, or the codes of many cells if these are arrays."""
        code = 0
        for place, (dimension, bit) in enumerate(self._sources):
            code |= (coords[dimension] >> bit & 1) << place
        return code

    def decode(self, codes: npt.NDArray[np.uint64], dimensions: int) -> npt.NDArray[np.int64]:
        """Return the coordinates of ``codes``, a row for each code; bits that the grid does not need are ignored."""
        coords = np.zeros((len(codes), dimensions), np.int64)
        for place, (dimension, bit) in enumerate(self._sources):
            coords[:, dimension] |= ((codes >> np.uint64(place)) & np.uint64(1)).astype(np.int64) << bit
        return coords


@lru_cache(maxsize=64)
def compute_ranks(counts: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    """Return the place of each cell in Morton order; cells are counted in C order."""
    cells = np.indices(counts).reshape(len(counts), -1) if counts else np.zeros((0, 1), np.int64)
    codes = np.zeros(cells.shape[1], np.int64)
    codes |= MortonCode(counts).encode(cells)
    order = np.argsort(codes, kind="stable")
    return np.argsort(order).astype(np.uint32)


def pack_shard(levels: Levels, old: Buffer | None, changes: Mapping[Slots, Buffer | None]) -> list[Buffer] | None:
    """Apply ``changes`` to the shard ``old`` (None: a new shard); return its parts, or None if no chunk is left."""
    (level, counts), *deeper = levels
    chunks: dict[int, Sequence[Buffer]] = {} if old is None else _read_chunks(level, memoryview(old))
    within: dict[int, dict[Slots, Buffer | None]] = {}
    for (slot, *rest), payload in changes.items():
        within.setdefault(slot, {})[tuple(rest)] = payload
    for slot, changes_within in within.items():
        old_parts = chunks.pop(slot, None)
        if deeper:
            parts = pack_shard(deeper, None if old_parts is None else old_parts[0], changes_within)
        else:
            parts = None if changes_within[()] is None else [changes_within[()]]
        if parts is not None:
            chunks[slot] = parts
    if not chunks:
        return None
    order = compute_ranks(counts)
    body = level.pack(sorted(chunks.items(), key=lambda chunk: int(order[chunk[0]])))
    return [*body, *_compute_checksums(body, level.trailer)]


def _read_chunks(level: Level, shard: memoryview) -> dict[int, Sequence[Buffer]]:
    """Return the bytes of the chunks in ``shard`` by slot; ValueError if the shard is damaged."""
    size, length = len(shard) - level.trailer, level.length
    if size < length:
        expected = length + level.trailer
        raise ValueError(f"expected an index of {expected} bytes, found a shard of only {len(shard)} bytes")
    stored, found = bytes(shard[size:]), b"".join(_compute_checksums([shard[:size]], level.trailer))
    if stored != found:
        raise ValueError(f"expected the checksum {stored.hex()} of its first {size} bytes, found {found.hex()}")
    table = level.table(bytes(shard[size - length : size] if level.at_end else shard[:length]), size)
    places = [(slot, table.locate(slot) or (0, 0)) for slot in table.list_present()]
    return {slot: (shard[offset : offset + length],) for slot, (offset, length) in places}


def _compute_checksums(parts: Sequence[Buffer], trailer: int) -> list[bytes]:
    """Return the ``trailer`` bytes that follow ``parts``: checksums, each of all bytes before it."""
    sums: list[bytes] = []
    found = 0
    for part in parts if trailer else ():
        found = crc32c.crc32c(part, found)
    for _ in range(0, trailer, crc32c.LENGTH):
        sums.append(found.to_bytes(crc32c.LENGTH, "little"))
        found = crc32c.crc32c(sums[-1], found)
    return sums
