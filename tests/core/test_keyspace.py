"""Listings of chunks agree with their keys, for every grid and encoding."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.core.columns import ChunkTable, Part, Row
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.core.keyspace import has_chunks_below, list_chunks_below, sort_chunk_names

encodings = st.builds(ChunkKeyEncoding, st.sampled_from(["default", "v2"]), st.sampled_from([".", "/"]))
grids = st.builds(ChunkGrid, st.lists(st.integers(0, 13), max_size=4).map(tuple), encodings)


@st.composite
def tables(draw: st.DrawFn) -> ChunkTable:
    grid = draw(grids)
    numbers = draw(st.sets(st.integers(0, grid.size - 1), max_size=40)) if grid.size else set()
    if draw(st.booleans()) and grid.size < 500:
        numbers = set(range(grid.size)) - numbers
    rows = [(n, Row(0, n, None if n % 5 == 0 else n + 1)) for n in numbers]
    return ChunkTable.from_parts(grid, [Part.from_rows(rows)])


def expected(table: ChunkTable, below: str) -> dict[str, int | str | None]:
    out: dict[str, int | str | None] = {}
    for number, row in table.iterate_rows():
        tail = table.grid.tail(number)
        if below and not tail.startswith(below + "/"):
            continue
        rest = tail[len(below) + 1 :] if below else tail
        name, slash, _ = rest.partition("/")
        out[name] = "directory" if slash else row.length
    return out


@given(tables(), st.integers(0, 3))
def test_listings_agree_with_keys(table: ChunkTable, depth: int) -> None:
    directories = {""}
    for number, _ in table.iterate_rows():
        directories.add("/".join(table.grid.tail(number).split("/")[:-1][:depth]))
    for below in [*directories, "c/99", "0/0/0/0/0", "01", "x", "c/-1"]:
        listed = list_chunks_below(table, below)
        found = {child.name: "directory" if child.is_directory else child.size for child in listed}
        assert found == expected(table, below)
        assert [child.name for child in listed] == sorted(found)
        assert has_chunks_below(table, below) == bool(found)


@given(tables())
def test_chunk_names_are_sorted_with_their_numbers(table: ChunkTable) -> None:
    found, numbers = sort_chunk_names(table.grid, table.list_present())
    assert found == sorted(map(table.grid.tail, table.list_present().tolist()))
    assert [table.grid.number(name) for name in found] == numbers.tolist()


def test_few_chunks_of_a_huge_grid_are_listed() -> None:
    grid = ChunkGrid((10**9, 10**9), ChunkKeyEncoding("v2", "."))
    table = ChunkTable.from_parts(grid, [Part.from_rows([(n, Row(0, 0, n)) for n in (10**18 - 1, 5, 10**9)])])
    assert [(child.name, child.size) for child in list_chunks_below(table, "")] == [
        ("0.5", 5),
        ("1.0", 10**9),
        ("999999999.999999999", 10**18 - 1),
    ]
    slashes = ChunkGrid((10**9, 10**9), ChunkKeyEncoding("default", "/"))
    table = ChunkTable(slashes, table.ranges, table.numbers)
    assert [child.name for child in list_chunks_below(table, "c")] == ["0", "1", "999999999"]
    assert [child.name for child in list_chunks_below(table, "c/999999999")] == ["999999999"]


def test_table_lists_the_chunks_in_a_range_of_numbers() -> None:
    grid = ChunkGrid((100,), ChunkKeyEncoding("v2", "."))
    for step in (1, 30):
        table = ChunkTable.from_parts(grid, [Part.from_rows([(n, Row(0, n, 1)) for n in range(0, 100, step)])])
        assert table.list_present(30, 61).tolist() == list(range(30, 61, step))
        assert table.list_present().dtype == np.uint64
