"""Arrays of a cube have the length of all pieces together."""

from __future__ import annotations

import json
from pathlib import Path

from refshard_fs import RefShardFileSystem, concat
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.cubes.shown_array import ConcatArray
from tests.support.day_sets import make_days, write_refs


def test_metadata_have_the_length_of_all_pieces(tmp_path: Path) -> None:
    files = [
        write_refs(tmp_path, f"{first}.json", make_days(first, count)) for first, count in ((0, 2), (2, 3), (5, 1))
    ]
    fs = RefShardFileSystem(concat(files, "time", lazy=True))
    assert json.loads(fs.cat_file("t/.zarray"))["shape"] == [6]
    assert json.loads(fs.cat_file("time/.zarray"))["chunks"] == [6]  # one chunk, in the document


def test_chunks_are_located_in_the_piece_that_has_them() -> None:
    grid = ChunkGrid((2, 6), ChunkKeyEncoding("v2", "."))
    array = ConcatArray(grid, axis=1, starts=(0, 2, 5, 6))
    assert array.locate([1, 1]) == (0, [1, 1])
    assert array.locate([1, 2]) == (1, [1, 0])
    assert array.locate([0, 5]) == (2, [0, 0])
    assert array.find_grid_of_piece(1, {}).counts == (2, 3)


def test_stacked_arrays_lack_the_first_dimension_in_pieces() -> None:
    array = ConcatArray(ChunkGrid((3, 4), ChunkKeyEncoding("v2", ".")), starts=(0, 1, 2, 3), is_stacked=True)
    assert array.find_stored_coords([2, 1]) == [1]
    assert array.find_grid_of_piece(2, {}).counts == (4,)
    assert array.find_shown_grid_of_piece(2, {}).counts == (1, 4)
