"""Which requests serve a set of byte ranges: pure, n log n, every range served exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import msgspec
import numpy as np

KIB = 1024
MIB = 1024 * KIB

PARTS = 1 << 14  # that a range is read in, at most: it may be as long as a manifest says
MANY = 512  # ranges from which on numpy sorts them faster


class Limits(msgspec.Struct, frozen=True):
    """How ranges become requests, in bytes.

    They are merged over gaps up to ``gap`` (negative: never), into requests of up to
    ``block``. A range longer than ``split`` becomes several requests. Over gaps up to
    ``far`` they are merged where a third of the request is still wanted.
    """

    gap: int = 16 * KIB
    block: int = 1 * MIB
    split: int = 4 * MIB
    far: int = -1

    @property
    def dense(self) -> Limits:
        """The limits for ranges that lie together and tend to be read together."""
        return Limits(self.gap, 16 * self.block, 2 * self.split, 32 * self.gap)

    @property
    def apart(self) -> Limits:
        """The limits for ranges that are merged only where they touch."""
        return Limits(min(self.gap, 0), self.block, self.split)


class Block(NamedTuple):
    """One run of bytes ``[start, stop)``, and the places in the input of the ranges that it serves."""

    start: int
    stop: int
    members: tuple[int, ...]


class Planned(NamedTuple):
    """A request as it would be made, and the keys that it serves; ``stop=None`` is the end of the target."""

    url: str
    start: int
    stop: int | None
    keys: tuple[str, ...]


def coalesce(ranges: Sequence[tuple[int, int]], limits: Limits) -> list[Block]:
    """Return the blocks that serve ``ranges`` of one target, ascending.

    Ranges that overlap share a block whatever the limits, so that no byte is fetched twice.
    """
    if len(ranges) < MANY:
        order = sorted(range(len(ranges)), key=ranges.__getitem__)
        return _merge(ranges, order, limits)
    table = np.fromiter(chain.from_iterable(ranges), np.int64, 2 * len(ranges)).reshape(-1, 2)
    places = np.lexsort((table[:, 1], table[:, 0]))
    starts, reach = table[places, 0], np.maximum.accumulate(table[places, 1])
    # Groups that no limit lets merge are told apart at once; only those too large for a block are walked through.
    apart = (starts[1:] >= reach[:-1]) & (starts[1:] - reach[:-1] > max(limits.gap, limits.far))
    cuts = np.flatnonzero(apart) + 1
    firsts, lasts = np.append(0, cuts), np.append(cuts, len(ranges))
    order = places.tolist()
    blocks: list[Block] = []
    groups = zip(firsts.tolist(), lasts.tolist(), starts[firsts].tolist(), reach[lasts - 1].tolist(), strict=True)
    for a, b, start, stop in groups:
        if b - a == 1 or (stop - start <= limits.block and limits.far <= limits.gap):
            blocks.append(Block(start, stop, tuple(order[a:b])))
        else:
            blocks += _merge(ranges, order[a:b], limits)
    return blocks


def requests_for(url: str, wanted: Sequence[tuple[str, int, int | None]], limits: Limits) -> list[Planned]:
    """Return the requests of one target that serve ``wanted``: keys and their ranges."""
    known = [(key, start, stop) for key, start, stop in wanted if stop is not None]
    out = [Planned(url, start, None, (key,)) for key, start, stop in wanted if stop is None]
    for block in coalesce([(start, stop) for _, start, stop in known], limits):
        for first, last in parts(block.start, block.stop, limits):
            served = (known[i] for i in block.members)
            keys = [key for key, start, stop in served if start < last and (stop > first or start == stop == first)]
            out.append(Planned(url, first, last, tuple(dict.fromkeys(keys))))
    return out


def _merge(ranges: Sequence[tuple[int, int]], order: Sequence[int], limits: Limits) -> list[Block]:
    blocks: list[Block] = []
    first = last = -1
    wanted = 0
    members: list[int] = []
    gap, far, most = limits.gap, limits.far, limits.block
    for i in order:
        start, stop = ranges[i]
        if members and (
            start < last
            or (start - last <= gap and max(stop, last) - first <= most)
            or (start - last <= far and max(stop, last) - first <= min(most, 3 * (wanted + stop - start)))
        ):
            if stop > last:
                wanted += stop - max(start, last)
                last = stop
            members.append(i)
            continue
        if members:
            blocks.append(Block(first, last, tuple(members)))
        first, last, members, wanted = start, stop, [i], stop - start
    if members:
        blocks.append(Block(first, last, tuple(members)))
    return blocks


def parts(start: int, stop: int, limits: Limits) -> list[tuple[int, int]]:
    """Return the requests for one block: itself, or equal parts where it is longer than ``limits.split``."""
    size = stop - start
    if size <= max(limits.split, 1):
        return [(start, stop)]
    count = min(-(-size // max(limits.block, 1)), PARTS)
    cuts = [start + size * i // count for i in range(count)] + [stop]
    return list(pairwise(cuts))
