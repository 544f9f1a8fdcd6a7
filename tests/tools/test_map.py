"""Chunks as cells: each chunk is counted in one cell, whatever the grid."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs import RefShardFileSystem
from refshard_fs.core.selection import chunk_numbers
from refshard_fs.tools.map import MOST_COLUMNS, MOST_ROWS, NO_CHUNK, parse_selection, plane_of, spell_selection
from refshard_fs.tools.picture import Picture
from tests.servers.http import RangeServer


@given(st.lists(st.integers(0, 300), max_size=4), st.randoms(use_true_random=False))
def test_every_chunk_is_in_one_cell_that_has_room_for_it(counts: list[int], random: object) -> None:
    size = math.prod(counts)
    if size > 10**6:
        counts, size = counts[:2], math.prod(counts[:2])
    generator = np.random.default_rng(size)
    numbers = np.flatnonzero(generator.random(size) < 0.7).astype(np.uint64)
    asked = np.flatnonzero(generator.random(size) < 0.1)
    plane = plane_of(counts, numbers, asked)
    assert plane.shape[0] <= MOST_ROWS
    assert plane.shape[1] <= MOST_COLUMNS
    assert plane.room.sum() == size
    assert plane.present.sum() == len(numbers)
    assert plane.selected.sum() == len(asked)
    assert (plane.present <= plane.room).all()
    assert (plane.selected <= plane.room).all()
    assert ((plane.first == NO_CHUNK) == (plane.present == 0)).all()


def test_a_cell_knows_the_first_of_its_chunks() -> None:
    counts = (MOST_ROWS * 2, MOST_COLUMNS * 2)
    numbers = np.arange(1, math.prod(counts), dtype=np.uint64)
    plane = plane_of(counts, numbers, None)
    assert plane.step == (2, 2)
    assert plane.first[0, :2].tolist() == [0, 1]  # of chunks 1 and 2, since chunk 0 is missing


def test_leading_dimensions_become_rows() -> None:
    plane = plane_of((10, 2, 6), np.array([0, 12], np.uint64), None)
    assert plane.split == 1
    assert plane.shape == (10, 12)
    assert plane.first[1, 0] == 1


@pytest.mark.parametrize(
    ("text", "name", "selection"),
    [
        ("air[0:10, :, :]", "air", (slice(0, 10), slice(None), slice(None))),
        ("[::-2]", "", (slice(None, None, -2),)),
        (" /g/a[0][ ..., 5] ", "g/a[0]", (..., 5)),
        ("a[-1,]", "a", (-1,)),
    ],
)
def test_it_is_read_as_numpy_would(text: str, name: str, selection: object) -> None:
    assert parse_selection(text) == (name, selection)


@pytest.mark.parametrize(
    "text", ["air", "air[", "air[]", "air[a]", "air[1:2:3:4]", "air[__import__('os')]", "a[1 2]", "a[::0]", "a[1,,2]"]
)
def test_what_is_none_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"selection|index|step of 0"):
        parse_selection(text)


def test_it_is_spelled_as_it_is_written() -> None:
    assert spell_selection((slice(1, 2), ..., 3, slice(None, None, 2))) == "1:2, ..., 3, ::2"


def test_a_selection_in_place_of_an_array_is_told_its_place() -> None:
    fs = RefShardFileSystem({"a/.zarray": '{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1"}'})
    with pytest.raises(FileNotFoundError, match=r"no array 'a\[0\]'.*select='a\[0\]' \(--select\)"):
        fs.visualize("a[0]")


def sent(server: RangeServer) -> list[tuple[str, int, int]]:
    """Return path, start and stop of each request for bytes since the log was cleared."""
    found = [(r.path, r.start, r.stop) for r in server.log.requests() if r.method == "GET"]
    assert all(start is not None for _, start, _ in found)
    return sorted(found)  # type: ignore[arg-type]  # as asserted


def drawn(made: Picture, server: RangeServer) -> list[tuple[str, int, int]]:
    assert made.map.selection is not None
    return sorted((r.url.removeprefix(server.url.rstrip("/")), r.start, r.stop) for r in made.map.selection.requests)  # type: ignore[misc]  # ends are known


@pytest.mark.parametrize("how", ["cat", "prefetch"])
@pytest.mark.parametrize("selection", ["[0:3, 2:9]", "[:, 4]", "[7]", "[...]", "[::3, ::4]"])
def test_a_selection_of_references_is_read_as_drawn(http_server: RangeServer, selection: str, how: str) -> None:
    files = 4
    for i in range(files):
        http_server.put(f"/f{i}", np.random.default_rng(i).bytes(3_000_000))
    meta = {"zarr_format": 2, "shape": [12, 10], "chunks": [1, 1], "dtype": "|u1", "order": "C"}
    refs: dict[str, Any] = {
        "a/.zarray": json.dumps(meta | {"fill_value": 0, "filters": None, "compressor": None}),
        **{
            f"a/{n // 10}.{n % 10}": [f"{http_server.url}/f{n // 30}", (n * 7 % 30) * 90_000, 50_000 + 1000 * (n % 7)]
            for n in range(120)
            if n % 11
        },
    }
    fs = RefShardFileSystem(refs)
    made = fs.visualize("a", selection)
    assert sent(http_server) == []
    chosen = parse_selection(selection)[1]
    if how == "prefetch":
        fs.prefetch("a", chosen)
    else:
        fs.cat([f"a/{n // 10}.{n % 10}" for n in chunk_numbers(chosen, (12, 10), (1, 1)).tolist() if n % 11])
    assert sent(http_server) == drawn(made, http_server)


def test_a_selection_of_inner_chunks_is_read_as_drawn(http_server: RangeServer, shared_data: Path) -> None:
    folder = shared_data / "shards" / "zarrs-rust-8x8"
    refs: dict[str, Any] = {"zarr.json": (folder / "zarr.json").read_text()}
    for file in folder.glob("c/*/*"):
        key = file.relative_to(folder).as_posix()
        refs[key] = [http_server.put(key, file.read_bytes())]
    fs = RefShardFileSystem(refs)
    made = fs.visualize("", "[0:5, 2:7]")
    http_server.log.clear()
    fs.cat(["c/0/0", "c/0/1", "c/1/0", "c/1/1"])
    assert sent(http_server) == drawn(made, http_server)
    assert len(drawn(made, http_server)) == 2
