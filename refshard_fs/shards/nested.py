"""Inner chunks in shards, in shards of shards, to any depth: which slot of which index, by arithmetic alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import mul
from typing import NamedTuple

from refshard_fs.keys import ChunkGrid
from refshard_fs.shards.layout import Buffer, Cut, Level, Step
from refshard_fs.shards.morton import ranks
from refshard_fs.shards.packing import packed

__all__ = ["Nest", "NestedLayout"]

_PLANS = 1024  # kept of a grid whose shards differ in size


class Nest(NamedTuple):
    """One level of shards: each of its slots holds ``part`` inner chunks along each dimension of the array.

    ``axes`` are the array's dimensions in the order in which slots are counted, slowest first;
    ``level`` gives the index of a shard with a given number of slots.
    """

    part: tuple[int, ...]
    axes: tuple[int, ...]
    level: Callable[[int], Level]


class _Turn(NamedTuple):
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
        self._plans: dict[tuple[int, ...], tuple[_Turn, ...]] = {}

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
        return packed([(turn.level, ranks(turn.counts)) for turn in plan], old, by_slots)

    def _plan(self, lengths: tuple[int, ...]) -> tuple[_Turn, ...]:
        plan = self._plans.get(lengths)
        if plan is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            plan = self._plans[lengths] = self._planned(lengths)
        return plan

    def _planned(self, lengths: tuple[int, ...]) -> tuple[_Turn, ...]:
        turns = []
        for part, axes, level in self._nests:
            counts = [length // inner for length, inner in zip(lengths, part, strict=True)]
            strides = [0] * len(counts)
            stride = 1
            for axis in reversed(axes):
                strides[axis] = stride
                stride *= counts[axis]
            turned = tuple(counts[axis] for axis in axes)
            turns.append(_Turn(part, tuple(strides), level(math.prod(counts)), turned))
            lengths = part
        return tuple(turns)
