"""Which requests serve a set of byte ranges: pure, n log n, every range served exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

KIB = 1024
MIB = 1024 * KIB

PARTS = 1 << 14  # that a range is read in, at most: it may be as long as a manifest says


class Limits(msgspec.Struct, frozen=True):
    """How ranges become requests, in bytes.

    They are merged over gaps up to ``gap`` (negative: never), into requests of up to
    ``block``. A longer range becomes several requests of about ``block``, and of a mebibyte
    at least, so that one connection's speed does not bound it. Over gaps up to ``far`` ranges
    are merged where a third of the request is still wanted.
    """

    gap: int = 16 * KIB
    block: int = 1 * MIB
    far: int = -1

    @property
    def dense(self) -> Limits:
        """The limits for ranges that lie together and tend to be read together."""
        return Limits(self.gap, 16 * self.block, 32 * self.gap)

    @property
    def apart(self) -> Limits:
        """The limits for ranges that are merged only where they touch."""
        return Limits(min(self.gap, 0), self.block)


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
    blocks: list[Block] = []
    first = last = -1
    wanted = 0
    members: list[int] = []
    gap, far, most = limits.gap, limits.far, limits.block
    for i in sorted(range(len(ranges)), key=ranges.__getitem__):
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


def parts(start: int, stop: int, limits: Limits) -> list[tuple[int, int]]:
    """Return the requests for one block: itself, or equal parts of about ``limits.block`` where that is shorter."""
    size = stop - start
    count = min(max(round(size / max(limits.block, MIB)), 1), PARTS)
    cuts = [start + size * i // count for i in range(count)] + [stop]
    return list(pairwise(cuts))
