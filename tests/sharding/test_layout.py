"""The layout computes the place of a chunk from the division of its array into equal or unequal shards."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import msgspec
import pytest

from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.sharding.index import OffsetsLevel
from refshard_fs.sharding.layout import Cut, Equal, Nest, Ragged, ShardLayout

COUNTS = (7, 6)
MAKERS: dict[str, tuple[tuple[Cut, ...], tuple[int, ...]]] = {
    "equal": ((Equal(4), Equal(2)), (4, 2)),
    "equal, without shards in the grid": ((Equal(4), Equal(2)), ()),
    "unequal": ((Ragged((4, 6, 8)), Equal(2)), ()),
}


def layout_of(cuts: tuple[Cut, ...], shards: tuple[int, ...], level: Callable[[int], OffsetsLevel]) -> ShardLayout:
    grid = ChunkGrid.regular(COUNTS, (1, 1), ChunkKeyEncoding("default", "/"))
    nests = [Nest((2, 2), (0, 1), level), Nest((1, 1), (1, 0), level)]
    return ShardLayout(msgspec.structs.replace(grid, shards=shards), cuts, nests)


@pytest.mark.parametrize("kind", MAKERS)
def test_each_chunk_has_its_own_slot(kind: str) -> None:
    cuts, shards = MAKERS[kind]
    layout = layout_of(cuts, shards, OffsetsLevel)
    seen = set()
    for coords in product(*map(range, COUNTS)):
        shard, lengths, places = layout.split(coords)
        assert [(s, p, n) for s, p, n in zip(shard, places, lengths, strict=True)] == [
            cut.find_shard(coord) for cut, coord in zip(cuts, coords, strict=True)
        ]
        seen.add((shard, *layout.find_slots(places, lengths)))
    assert len(seen) == layout.grid.size
