"""Names of inner chunks and of the directories they lie in, from the names of shards. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from refshard_fs.keys import is_number
from refshard_fs.model import Listed
from refshard_fs.shards.layout import ShardLayout

__all__ = ["below_c", "expand", "is_chunks", "leading", "may_hold_shards", "outer_directory"]

Shard = tuple[tuple[int, ...], Iterator[tuple[str, tuple[int, ...]]]]


def _nested(layout: ShardLayout) -> bool:
    """Whether chunk keys of this array have slashes that depend on their coordinates."""
    encoding, ndim = layout.grid.encoding, len(layout.grid.counts)
    return encoding.separator == "/" and ndim >= (1 if encoding.name == "default" else 2)


def below_c(layout: ShardLayout) -> bool:
    """Whether all chunks of this array lie in its directory ``c``."""
    return layout.grid.encoding.name == "default" and _nested(layout)


def leading(layout: ShardLayout, tail: str) -> tuple[int, ...] | None:
    """Return the leading coordinates that the directory ``tail`` of an array stands for; None if it holds no chunks."""
    parts = tail.split("/")
    if not tail or not _nested(layout) or (below_c(layout) and parts.pop(0) != "c"):
        return None
    if len(parts) >= len(layout.grid.counts) or not all(map(is_number, parts)):
        return None
    return tuple(map(int, parts))


def outer_directory(layout: ShardLayout, fixed: Sequence[int]) -> str | None:
    """Return the directory, relative to the array, of the shards of chunks that begin with ``fixed``; None outside."""
    numbers = []
    for coord, count, cut in zip(fixed, layout.grid.counts, layout.cuts, strict=False):
        if coord >= count:
            return None
        numbers.append(str(cut.shard(coord)[0]))
    return "/".join(["c", *numbers] if below_c(layout) else numbers)


def is_chunks(layout: ShardLayout, listed: Listed) -> bool:
    """Whether what lies directly below an array is a shard, or a directory of shards alone."""
    if listed.is_directory:
        return _nested(layout) and not below_c(layout) and is_number(listed.name)
    return layout.grid.encoding.decode(listed.name, len(layout.grid.counts)) is not None


def may_hold_shards(tail: str) -> bool:
    """Whether the directory ``tail`` of an array may hold shards of it, or directories of them."""
    first, *others = tail.split("/")
    return (first == "c" or is_number(first)) and all(map(is_number, others))


def expand(layout: ShardLayout, fixed: tuple[int, ...], names: Sequence[Listed]) -> tuple[list[str], list[Shard]]:
    """Return the directories of inner chunks, and the shards with the chunks to look for, in a directory of shards.

    ``fixed`` are the coordinates that the directory stands for; ``names``, what lies in that of
    the shards. A chunk comes as its name in the directory and its coordinates.
    """
    grid, cuts = layout.grid, layout.cuts
    depth, ndim = len(fixed), len(grid.counts)
    if not _nested(layout):
        found = (grid.encoding.decode(listed.name, ndim) for listed in names if not listed.is_directory)
        return [], [(shard, _all_chunks(layout, shard)) for shard in found if shard is not None]
    is_last = depth == ndim - 1
    numbers = [int(n.name) for n in names if n.is_directory != is_last and is_number(n.name)]
    inside = {number: [i for i in cuts[depth].chunks(number) if i < grid.counts[depth]] for number in numbers}
    if not is_last:
        return [str(i) for chunks in inside.values() for i in chunks], []
    outer = tuple(cut.shard(coord)[0] for cut, coord in zip(cuts, fixed, strict=False))
    return [], [((*outer, n), ((str(i), (*fixed, i)) for i in chunks)) for n, chunks in inside.items()]


def _all_chunks(layout: ShardLayout, shard: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    cut = zip(layout.cuts, shard, layout.grid.counts, strict=True)
    for coords in product(*(range(r.start, min(r.stop, count)) for c, n, count in cut for r in (c.chunks(n),))):
        yield layout.grid.encoding.encode(coords), coords
