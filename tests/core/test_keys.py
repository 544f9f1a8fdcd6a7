"""Each chunk has one key, for small and large coordinates."""

from __future__ import annotations

import pytest

from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.core.keyspace import Listing, merge_listings

GRID = ChunkGrid((10**19, 3, 5000), ChunkKeyEncoding("default", "/"))


@pytest.mark.parametrize("coords", [(0, 0, 0), (7, 2, 2047), (7, 2, 2048), (10**19 - 1, 1, 4999), (0, 2, 4999)])
def test_keys_parse_to_their_coordinates(coords: tuple[int, ...]) -> None:
    tail = GRID.encoding.encode(coords)
    assert GRID.encoding.decode(tail, 3) == coords
    assert GRID.contains(coords)
    assert GRID.number(tail) == GRID.number_of(coords)


@pytest.mark.parametrize("coords", [(10**19, 0, 0), (0, 3, 0), (0, 0, 5000), (2048, 2048, 2048)])
def test_key_outside_the_grid_has_coordinates_but_no_number(coords: tuple[int, ...]) -> None:
    tail = GRID.encoding.encode(coords)
    assert GRID.encoding.decode(tail, 3) == coords
    assert not GRID.contains(coords)
    assert GRID.number(tail) is None


@pytest.mark.parametrize(
    "tail",
    ["c/0/01/0", "c/-1/0/0", "c/ 1/0/0", "c/+1/0/0", "c/1_0/0/0", "c/\u0663/0/0", "c/02048/0/0", "c/0/0", "0/0/0", "c"],
)
def test_wrong_spellings_of_keys_are_refused(tail: str) -> None:
    assert GRID.encoding.decode(tail, 3) is None
    assert GRID.number(tail) is None


def test_key_of_an_array_without_dimensions_is_decoded() -> None:
    for encoding, tail in (ChunkKeyEncoding("default", "/"), "c"), (ChunkKeyEncoding("v2", "."), "0"):
        assert encoding.decode(tail, 0) == ()
        assert ChunkGrid((), encoding).contains(())


def test_merge_listings_prefers_members_of_the_last_listing() -> None:
    some = Listing("a/", [f"a/{i:03}" for i in range(0, 200, 2)], [1] * 100)
    others = Listing("a/", [f"a/{i:03}" for i in range(0, 300, 3)], [2] * 100)
    found = merge_listings(some, others)
    assert isinstance(found, Listing)
    sizes = {file.name: file.size for file in some} | {file.name: file.size for file in others}
    assert [(file.name, file.size) for file in found] == sorted(sizes.items())
    elsewhere = merge_listings(some, Listing("", others.paths, others.sizes))  # a listing of a view has other paths
    assert {file.name for file in elsewhere} == {f"{i:03}" for i in range(0, 200, 2)} | set(others.paths)
