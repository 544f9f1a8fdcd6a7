"""Inner chunks in shards, in shards of shards, to any depth: which slot of which index, by arithmetic alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refshard_fs.core import checksums as crc32c
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.sharding.layout import Buffer, Cut, Level, Step

# ----------------------------------------------------------------------------------------------------
# Compressed Morton codes: coordinates in a grid as one number, bits that no cell needs left out. No I/O here.
#
# Neuroglancer's numbering of the chunks of a volume, and the order in which zarr-python lays out the chunks of a shard.


class MortonCode:
    """The codes of the cells of a grid with ``counts`` cells along each dimension; ValueError beyond 64 bits."""

    __slots__ = ("_sources",)

    def __init__(self, counts: Sequence[int]) -> None:
        bits = max((max(count - 1, 0).bit_length() for count in counts), default=0)
        # The dimension and the bit of its coordinate that each bit of a code is, lowest first.
        self._sources = [(d, bit) for bit in range(bits) for d, count in enumerate(counts) if 1 << bit < count]
        if len(self._sources) > 64:
            raise ValueError(f"a grid of {'×'.join(map(str, counts))} cells has codes of more than 64 bits")

    def encode(self, coords: Sequence[int]) -> int:
        """Return the code of the cell at ``coords``."""
        code = 0
        for place, (dimension, bit) in enumerate(self._sources):
            code |= (coords[dimension] >> bit & 1) << place
        return code

    def decode(self, codes: npt.NDArray[np.uint64], dimensions: int) -> npt.NDArray[np.int64]:
        """Return the coordinates of each of ``codes``, a row for each; bits beyond those of the grid are left out."""
        coords = np.zeros((len(codes), dimensions), np.int64)
        for place, (dimension, bit) in enumerate(self._sources):
            coords[:, dimension] |= ((codes >> np.uint64(place)) & np.uint64(1)).astype(np.int64) << bit
        return coords


@lru_cache(maxsize=64)
def ranks(counts: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    """Return, for each cell of a grid counted in C order, its place in the order of their codes."""
    coords = np.indices(counts, dtype=np.uint64).reshape(len(counts), -1) if counts else np.zeros((0, 1), np.uint64)
    code = np.zeros(coords.shape[1], np.uint64)
    for place, (dimension, bit) in enumerate(MortonCode(counts)._sources):
        code |= (coords[dimension] >> np.uint64(bit) & np.uint64(1)) << np.uint64(place)
    out = np.empty(len(code), np.uint32)
    out[np.argsort(code, kind="stable")] = np.arange(len(code), dtype=np.uint32)
    return out


# ----------------------------------------------------------------------------------------------------
# Shards put together: new payloads and those of the shard there was, in Morton order, with their index. No I/O here.
#
# What has not changed is copied as it lies, down to whole shards within the shard; gaps and bytes that no index names
# are left out. Nothing is joined: a shard comes as its parts, for whoever writes them one after the other.


_Slots = tuple[int, ...]
_Levels = Sequence[tuple[Level, npt.NDArray[np.uint32]]]


def packed(levels: _Levels, old: Buffer | None, changes: Mapping[_Slots, Buffer | None]) -> list[Buffer] | None:
    """Return the parts of the shard ``old`` after ``changes``, by slots on the way down; None if no chunk is left.

    ``levels`` are the levels of shards, outermost first, and of each the ranks of its slots: chunks lie in their order.
    """
    (level, ranks), *deeper = levels
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
    deeper: _Levels, chunks: Mapping[int, Sequence[Buffer]], changes: Mapping[_Slots, Buffer | None]
) -> dict[int, Sequence[Buffer] | None]:
    """Return the new payload of each slot that changes, those that are shards put together in their turn."""
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
    for slot in table.present():
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


_PLANS = 1024  # kept of a grid whose shards differ in size


class Nest(NamedTuple):
    """One level of shards: each of its slots holds ``part`` inner chunks along each dimension of the array.

    ``axes`` are the array's dimensions in the order in which slots are counted, slowest first;
    ``level`` gives the index of a shard with a given number of slots.
    """

    part: tuple[int, ...]
    axes: tuple[int, ...]
    level: Callable[[int], Level]


class _LevelPlan(NamedTuple):
    part: tuple[int, ...]
    strides: tuple[int, ...]
    level: Level
    counts: tuple[int, ...]  # of slots, along the dimensions as the shard has them


class NestedLayout:
    """A `ShardLayout` of levels of shards, outermost first; the innermost ``part`` is one chunk."""

    def __init__(self, grid: ChunkGrid, cuts: tuple[Cut, ...], nests: Sequence[Nest]) -> None:
        self.grid = grid
        self.cuts = cuts
        self._nests = tuple(nests)
        self._plans: dict[tuple[int, ...], tuple[_LevelPlan, ...]] = {}

    def steps(self, places: Sequence[int], lengths: Sequence[int]) -> list[Step]:
        plan = self._plan(tuple(lengths))
        out = []
        for part, strides, level, _ in plan[:-1]:
            slot = 0
            rest = []
            for place, length, stride in zip(places, part, strides, strict=True):
                number, place = divmod(place, length)
                slot += number * stride
                rest.append(place)
            out.append(Step(level, slot))
            places = rest
        last = plan[-1]
        out.append(Step(last.level, sum(map(mul, places, last.strides))))
        return out

    def rewrite(
        self, lengths: Sequence[int], old: Buffer | None, changes: Mapping[tuple[int, ...], Buffer | None]
    ) -> list[Buffer] | None:
        plan = self._plan(tuple(lengths))
        by_slots = {tuple(s.slot for s in self.steps(at, lengths)): payload for at, payload in changes.items()}
        return packed([(level_plan.level, ranks(level_plan.counts)) for level_plan in plan], old, by_slots)

    def _plan(self, lengths: tuple[int, ...]) -> tuple[_LevelPlan, ...]:
        plan = self._plans.get(lengths)
        if plan is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            plan = self._plans[lengths] = self._planned(lengths)
        return plan

    def _planned(self, lengths: tuple[int, ...]) -> tuple[_LevelPlan, ...]:
        levels = []
        for part, axes, level in self._nests:
            counts = [length // inner for length, inner in zip(lengths, part, strict=True)]
            strides = [0] * len(counts)
            stride = 1
            for axis in reversed(axes):
                strides[axis] = stride
                stride *= counts[axis]
            turned = tuple(counts[axis] for axis in axes)
            levels.append(_LevelPlan(part, tuple(strides), level(math.prod(counts)), turned))
            lengths = part
        return tuple(levels)
