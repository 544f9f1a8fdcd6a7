"""Compute the shard of each inner chunk of an array, and its slot in each index of the shard. No I/O here.

A `ShardFormat` recognises an array's metadata and returns a `ShardLayout`: the grid of inner chunks, its division into
shards, and the indexes within a shard. Other packages register a format by an entry point in ``refshard.shards``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from operator import floordiv, mod, mul
from typing import Any, NamedTuple, TypeAlias

import msgspec

from refshard_fs.core.keys import ChunkGrid, is_number, join, make_relative
from refshard_fs.core.model import Listed
from refshard_fs.sharding.index import Buffer, Level
from refshard_fs.sharding.packing import pack_shard

Coords: TypeAlias = tuple[int, ...]

_PLANS = 1024  # the most sizes of shards whose plans a layout keeps


class Equal(msgspec.Struct, frozen=True):
    """A division of a dimension into shards of ``length`` inner chunks each."""

    length: int

    def find_shard(self, chunk: int) -> tuple[int, int, int]:
        """Return the number of the shard of ``chunk``, the chunk's place in that shard, and the shard's length."""
        number, place = divmod(chunk, self.length)
        return number, place, self.length

    def find_chunks(self, shard: int) -> range:
        """Return the chunks that have a slot in shard number ``shard``."""
        return range(shard * self.length, (shard + 1) * self.length)


class Ragged(msgspec.Struct, frozen=True):
    """A division of a dimension into shards of various lengths.

    ``ends`` has, for each shard, the number of the first chunk after it.
    """

    ends: tuple[int, ...]

    def find_shard(self, chunk: int) -> tuple[int, int, int]:
        """Return the result of `Equal.find_shard`; IndexError beyond the last shard."""
        number = bisect_right(self.ends, chunk)
        first = self.ends[number - 1] if number else 0
        return number, chunk - first, self.ends[number] - first

    def find_chunks(self, shard: int) -> range:
        """Return the chunks that have a slot in shard number ``shard``."""
        if not 0 <= shard < len(self.ends):
            return range(0)
        return range(self.ends[shard - 1] if shard else 0, self.ends[shard])


Cut: TypeAlias = Equal | Ragged


class Nest(NamedTuple):
    """One level of shards: each slot holds ``part`` inner chunks along each dimension of the array.

    Slots are in C order of the dimensions ``axes``. ``level(n)`` is the kind of index of a shard with n slots.
    """

    part: Coords
    axes: Coords
    level: Callable[[int], Level]


class _Plan(NamedTuple):
    """The kinds of index in shards of one size, outermost first, and the strides of slots along each dimension."""

    levels: tuple[Level, ...]
    parts: tuple[Coords, ...]
    strides: tuple[Coords, ...]
    counts: tuple[Coords, ...]  # numbers of slots, along the dimensions in the shard's own order


class ChunkInShard(NamedTuple):
    """The key and coordinates of a chunk's shard, the shard's lengths in chunks, and the chunk's place in the shard."""

    shard: str
    coords: Coords
    lengths: Coords
    place: Coords


class ShardLayout:
    """The places of the inner chunks of one array. Keys of shards have the form of keys of chunks.

    ``grid`` is the grid of inner chunks. It has ``shards`` only if all shards have one size; ``cuts`` divide each
    dimension into shards. ``nests`` are the levels of shards, outermost first. In the innermost level, each slot
    holds one chunk.
    """

    def __init__(self, grid: ChunkGrid, cuts: tuple[Cut, ...], nests: Sequence[Nest]) -> None:
        self.grid = grid
        self.cuts = cuts
        self._nests = tuple(nests)
        self._plan = lru_cache(_PLANS)(self._make_plan)

    def split(self, coords: Sequence[int]) -> tuple[Coords, Coords, Coords]:
        """Return the coordinates and the lengths of the shard of the chunk ``coords``, and the chunk's place in it.

        If shards have various sizes, raises IndexError beyond the last shard.
        """
        lengths = self.grid.shards
        if lengths:  # all shards have one size: this takes half the time of the code below
            return tuple(map(floordiv, coords, lengths)), lengths, tuple(map(mod, coords, lengths))
        parts = [cut.find_shard(coord) for cut, coord in zip(self.cuts, coords, strict=True)]
        return tuple(p[0] for p in parts), tuple(p[2] for p in parts), tuple(p[1] for p in parts)

    def get_levels(self, lengths: Coords) -> tuple[Level, ...]:
        """Return the kinds of index that locate a chunk in a shard of ``lengths`` chunks, outermost first."""
        return self._plan(lengths).levels

    def find_slots(self, place: Sequence[Any], lengths: Coords) -> tuple[Any, ...]:
        """Return the slots of the chunk at ``place``, one in each level; of many chunks if ``place`` has arrays."""
        plan = self._plan(lengths)
        *outer, last = plan.strides
        out = []
        for part, strides in zip(plan.parts, outer):  # noqa: B905  # the innermost part is one chunk
            out.append(sum(map(mul, map(floordiv, place, part), strides)))
            place = tuple(map(mod, place, part))
        return (*out, sum(map(mul, place, last)))

    def rewrite(
        self, lengths: Coords, old: Buffer | None, changes: Mapping[Coords, Buffer | None]
    ) -> list[Buffer] | None:
        """Apply ``changes`` to the shard ``old`` (None: a new shard) of ``lengths`` chunks; return the new parts.

        ``changes`` are the bytes of chunks by place; None removes a chunk. Returns None if no chunk is left. Raises
        ValueError if the old shard is damaged, and its subclass Misfit if a chunk cannot be stored in such a shard.
        """
        plan = self._plan(lengths)
        by_slots = {self.find_slots(place, lengths): payload for place, payload in changes.items()}
        return pack_shard([*zip(plan.levels, plan.counts, strict=True)], old, by_slots)

    def _make_plan(self, lengths: Coords) -> _Plan:
        levels = []
        for part, axes, level in self._nests:
            counts = tuple(map(floordiv, lengths, part))
            strides = [0] * len(counts)
            stride = 1
            for axis in reversed(axes):
                strides[axis] = stride
                stride *= counts[axis]
            levels.append((level(stride), part, tuple(strides), tuple(counts[axis] for axis in axes)))
            lengths = part
        return _Plan(*zip(*levels, strict=True))

    def find_shard(self, path: str, key: str) -> ChunkInShard | None:
        """Return the place of the chunk ``key`` of the array at ``path``; None if ``key`` is not the key of a chunk."""
        coords = self.grid.decode(make_relative(key, path))
        if coords is None:
            return None
        try:
            shard, lengths, place = self.split(coords)
        except IndexError:
            return None
        return ChunkInShard(self.make_key(path, shard), shard, lengths, place)

    def make_key(self, path: str, shard: Coords) -> str:
        """Return the key of ``shard`` of the array at ``path``."""
        return join(path, self.grid.encoding.encode(shard))

    def find_chunks(self, shard: Coords) -> list[range]:
        """Return the chunks of the array in ``shard``, as a range for each dimension."""
        ranges = zip(self.find_slot_ranges(shard), self.grid.counts, strict=True)
        return [range(slots.start, min(slots.stop, count)) for slots, count in ranges]

    def find_slot_ranges(self, shard: Coords) -> list[range]:
        """Return the chunks with a slot in ``shard``, also beyond the array's end, as a range for each dimension."""
        return [cut.find_chunks(number) for cut, number in zip(self.cuts, shard, strict=True)]

    def find_shard_directory(self, leading: Coords) -> str | None:
        """Return the directory of the shards of the chunks at ``leading``; None outside of the grid.

        ``leading`` are the first coordinates of the chunks.
        """
        if not self.grid.contains(leading):
            return None
        return self.grid.directory_of(
            [cut.find_shard(coord)[0] for coord, cut in zip(leading, self.cuts, strict=False)]
        )

    def expand(
        self, leading: Coords, names: Sequence[Listed]
    ) -> tuple[list[str], list[tuple[Coords, Iterator[Coords]]]]:
        """Return the directories, or the shards with their chunks, below the directory of the chunks at ``leading``.

        ``leading`` are the first coordinates of the chunks; ``names`` is the listing of the directory of their shards.
        """
        depth = len(leading)
        if self.grid.is_nested and depth < len(self.cuts) - 1:
            numbers = [int(listed.name) for listed in names if listed.is_directory and is_number(listed.name)]
            chunks = [i for number in numbers for i in self.cuts[depth].find_chunks(number)]
            return [str(i) for i in chunks if i < self.grid.counts[depth]], []
        directory = self.find_shard_directory(leading) or ""
        shards = [self.grid.decode(join(directory, listed.name)) for listed in names if not listed.is_directory]
        first = [range(coord, coord + 1) for coord in leading]
        return [], [(shard, product(*first, *self.find_chunks(shard)[depth:])) for shard in shards if shard is not None]


class Unsharded(NamedTuple):
    """A sharded array as an array of inner chunks. Without a layout, its shards are shown instead, for ``reason``.

    ``document`` is the metadata to show. If there are a layout and a reason, the inner chunks are shards themselves,
    and the reason says why these cannot be opened.
    """

    layout: ShardLayout | None
    document: Mapping[str, Any]
    reason: str | None = None


class ShardFormat(msgspec.Struct, frozen=True):
    """One way to pack chunks into shards.

    ``unshard`` takes an array's metadata and the user's ``shard_options``. It returns None if the array is not of this
    format, and raises ValueError if the metadata is invalid. It is called only for documents that contain one of
    ``marks``. ``options`` has the possible values of each shard option of this format, the default first.
    """

    name: str
    marks: tuple[bytes, ...]
    unshard: Callable[[Mapping[str, Any], Mapping[str, Any]], Unsharded | None]
    options: Mapping[str, tuple[Any, ...]] = {}
