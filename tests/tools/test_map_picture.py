"""The labels and cells of a map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.tools.map import make_array_map
from refshard_fs.tools.map_picture import draw_map
from refshard_fs.tools.scene import Boxes, Label
from refshard_fs.tools.survey import Extents, PlacedChunks
from tests.support.drawn_sources import draw_source, find_colours
from tests.support.tool_sources import make_source, place_in_files


def test_labels_have_counts_and_sizes() -> None:
    said = [label.text for label in draw_source("few files", asked=True).scene.labels]
    assert "time 4 × lat 3 × lon 5 |u1  ·  chunks of 1 × 1 × 1" in said
    assert "60 of 60 chunks  ·  5.9 KiB  ·  5 files" in said
    assert {"air[1, :, 2]", "reads 3 chunks in 2 requests to 2 files", "700 B, of which 300 B wanted"} <= set(said)
    assert "↓ time (4)   → lat (3) × lon (5)" in said
    assert "below s3://bucket/data/" in said
    assert [text for text in said if text.endswith(".nc")] == [f"f{i}.nc" for i in range(5)]
    assert "12 chunks  ·  1.2 KiB  ·  1 request" in said
    assert [text for text in said if text in ("0", "512 B", "1.0 KiB")] == ["0", "512 B", "1.0 KiB"] * 5
    assert {"a colour for each file", "selected, and requested"} <= set(said)


def test_missing_inline_and_hidden_files_are_labelled() -> None:
    said = [label.text for label in draw_source("some of all", asked=True).scene.labels]
    assert {"missing", "inline (19)", "1 selected chunk missing: for these, nothing is requested"} <= set(said)
    assert "and 34 more files" in [label.text for label in draw_source("many files", asked=False).scene.labels]
    said = [label.text for label in draw_source("many files", asked=True).scene.labels]
    assert "and 34 more files, of which 4 are read from" in said


def test_cell_title_has_the_place_of_its_bytes() -> None:
    cells, _ = find_colours(draw_source("few files", asked=False))
    assert "chunk 2, 1, 3: f3.nc, bytes 200 to 300" in cells


def test_shards_are_outlined_in_coarse_grids() -> None:
    counts = (200, 200)
    meta = ArrayMeta(2, counts, (1, 1), ChunkGrid(counts, ChunkKeyEncoding("v2", ".")), "|u1", "C", {})
    shown = make_array_map("big", Extents("v", meta, PlacedChunks.of_places(()), (50, 100)), [])
    assert shown.plane is not None
    assert shown.plane.step != (1, 1)
    assert shown.shard_of is not None
    assert len(np.unique(shown.shard_of)) == 8


def test_root_array_has_the_name_of_its_source(shared_data: Path) -> None:
    shown = RefShardFileSystem(str(shared_data / "shards" / "zarrs-rust-8x8")).visualize()
    assert shown.scene.labels[0].text == "zarrs-rust-8x8"
    assert make_source((2,), place_in_files(1), path="").visualize().scene.labels[0].text == "a source in memory"


def test_each_chunk_has_a_cell_with_its_place() -> None:
    shown = draw_source("few files", asked=False)
    titles = [
        shape.title for shape in shown.scene.shapes if isinstance(shape, Boxes) and shape.title.startswith("chunk ")
    ]
    assert len(titles) == 60
    assert "chunk 2, 1, 3: f3.nc, bytes 200 to 300" in titles


@pytest.mark.parametrize("count", [3, 101, 251, 256, 397])
def test_last_line_of_a_folded_grid_may_be_short(count: int) -> None:
    shapes = make_source((count, 1), place_in_files(count)).visualize().scene.shapes
    titles = [shape.title for shape in shapes if isinstance(shape, Boxes) and shape.title.startswith("chunk ")]
    assert [title.partition(":")[0] for title in titles] == [f"chunk {number}, 0" for number in range(count)]


def test_million_chunks_become_few_shapes() -> None:
    counts = (1000, 1000)
    grid = ChunkGrid(counts, ChunkKeyEncoding("v2", "."))
    number = np.arange(10**6)
    starts, no = (number % 5000 * 10).astype(np.uint64), np.zeros(10**6, bool)
    chunks = PlacedChunks(number.astype(np.uint64), number // 5000, starts, starts + np.uint64(10), no, no)
    meta = ArrayMeta(2, counts, (1, 1), grid, "|u1", "C", {})
    extents = Extents("v", meta, chunks)
    scene = draw_map(make_array_map("big", extents, [f"s3://b/{i}" for i in range(200)])).scene
    cells = sum(1 if isinstance(shape, Label) else len(shape.boxes) for shape in scene.shapes)
    assert cells < 8000
    said = [label.text for label in scene.labels]
    assert {"↓ dim 0 (1,000)   → dim 1 (1,000)", "a cell is 18 × 14 chunks"} <= set(said)


@pytest.mark.parametrize(
    ("where", "missing", "meaning"),
    [
        (place_in_files(6), (), None),
        (lambda n: ["s3://bucket/f", 500 + 100 * n, 100], (), "other bytes of the file"),
        (lambda n: ["s3://bucket/f", 500 + 100 * n, 100], (2,), "missing; in files: other bytes"),
        (lambda n: ["s3://bucket/f", 100 * max(n - 1, 0), 100], (0,), "missing"),
    ],
)
def test_grey_cells_match_the_legend(where: Any, missing: Any, meaning: str | None) -> None:
    said = [label.text for label in make_source((6,), where, missing).visualize("air").scene.labels]
    assert [text for text in said if "missing" in text or "other bytes" in text] == (
        [] if meaning is None else [meaning]
    )
