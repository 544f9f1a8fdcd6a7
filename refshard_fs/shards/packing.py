"""Shards put together: new payloads and those of the shard there was, in Morton order, with their index. No I/O here.

What has not changed is copied as it lies, down to whole shards within the shard; gaps and bytes that no index names are
left out. Nothing is joined: a shard comes as its parts, for whoever writes them one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from refshard_fs import crc32c
from refshard_fs.shards.layout import Buffer, Level

__all__ = ["packed"]

_Slots = tuple[int, ...]
_Turns = Sequence[tuple[Level, npt.NDArray[np.uint32]]]


def packed(turns: _Turns, old: Buffer | None, changes: Mapping[_Slots, Buffer | None]) -> list[Buffer] | None:
    """Return the parts of the shard ``old`` after ``changes``, by slots on the way down; None if no chunk is left.

    ``turns`` are the levels of shards, outermost first, and of each the ranks of its slots: chunks lie in their order.
    """
    (level, ranks), *deeper = turns
    chunks: dict[int, Sequence[Buffer]] = {}
    if old is not None:
        chunks |= _chunks(level, memoryview(old))
    for slot, payload in _changed(deeper, chunks, changes).items():
        if payload is None:
            chunks.pop(slot, None)
        else:
            chunks[slot] = payload
    if not chunks:
        return None
    parts = level.pack(sorted(chunks.items(), key=lambda chunk: int(ranks[chunk[0]])))
    return [*parts, *_checksums(parts, level.trailer)]


def _changed(
    deeper: _Turns, chunks: Mapping[int, Sequence[Buffer]], changes: Mapping[_Slots, Buffer | None]
) -> dict[int, Sequence[Buffer] | None]:
    """Return the new payload of each slot that changes, of those that are shards too put together in turn."""
    if not deeper:
        return {slot: None if payload is None else (payload,) for (slot,), payload in changes.items()}
    within: dict[int, dict[_Slots, Buffer | None]] = {}
    for (slot, *rest), payload in changes.items():
        within.setdefault(slot, {})[tuple(rest)] = payload
    there = {slot: chunks[slot][0] for slot in within if slot in chunks}
    return {slot: packed(deeper, there.get(slot), some) for slot, some in within.items()}


def _chunks(level: Level, shard: memoryview) -> dict[int, Sequence[Buffer]]:
    """Return the payloads of ``shard`` by their slots; ValueError where it is damaged."""
    size, length = len(shard) - level.trailer, level.length
    if size < length:
        raise ValueError(f"it has {len(shard)} bytes: its index takes more")
    for end in range(size, len(shard), crc32c.LENGTH):
        stored, found = int.from_bytes(shard[end : end + crc32c.LENGTH], "little"), crc32c.crc32c(shard[:end])
        if stored != found:
            raise ValueError(f"the checksum of its first {end} bytes is {found:08x}, where {stored:08x} is stored")
    index = shard[size - length : size] if level.at_end else shard[:length]
    table = level.table(bytes(index), size)
    chunks: dict[int, Sequence[Buffer]] = {}
    for slot in table.taken():
        offset, stored = table.locate(slot) or (0, 0)
        chunks[slot] = (shard[offset : offset + stored],)
    return chunks


def _checksums(parts: Sequence[Buffer], trailer: int) -> list[Buffer]:
    """Return a trailer of so many bytes: checksums, each of all that lies before it."""
    sums: list[Buffer] = []
    if trailer:
        found = 0
        for part in parts:
            found = crc32c.crc32c(part, found)
        for _ in range(0, trailer, crc32c.LENGTH):
            sums.append(found.to_bytes(crc32c.LENGTH, "little"))
            found = crc32c.crc32c(sums[-1], found)
    return sums
