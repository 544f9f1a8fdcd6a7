"""Which requests serve a set of byte ranges: pure, n log n, every range served exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

__all__ = ["KIB", "MIB", "Block", "Limits", "coalesce"]

KIB = 1024
MIB = 1024 * KIB


class Limits(msgspec.Struct, frozen=True):
    """How far ranges are merged, in bytes: over gaps up to ``gap`` (negative: never), into blocks up to ``block``."""

    gap: int = 16 * KIB
    block: int = 1 * MIB


class Block(NamedTuple):
    """One request for bytes ``[start, stop)``, and the places in the input of the ranges that it serves."""

    start: int
    stop: int
    members: list[int]


def coalesce(ranges: Sequence[tuple[int, int]], limits: Limits) -> list[Block]:
    """Return the blocks that serve ``ranges`` of one target, ascending.

    Ranges that overlap share a block whatever the limits, so that no byte is fetched twice.
    """
    order = sorted(range(len(ranges)), key=ranges.__getitem__)
    blocks: list[Block] = []
    first = last = -1
    members: list[int] = []
    gap, most = limits.gap, limits.block
    for i in order:
        start, stop = ranges[i]
        if members and (start < last or (start - last <= gap and max(stop, last) - first <= most)):
            if stop > last:
                last = stop
            members.append(i)
            continue
        if members:
            blocks.append(Block(first, last, members))
        first, last, members = start, stop, [i]
    if members:
        blocks.append(Block(first, last, members))
    return blocks
