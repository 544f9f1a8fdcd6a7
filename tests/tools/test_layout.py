"""The picture of any array: its labels and counts are right, no text lies over another, nothing leaves the page."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from refshard_fs.core.columns import ChunkTable, Ranges
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.tools.map import chunk_map
from refshard_fs.tools.map_drawing import Picture
from refshard_fs.tools.map_layout import Box, Boxes, Label
from refshard_fs.tools.survey import Chunks, Extents
from tests.tools.sources import in_files, many, source

KINDS = list(many())


def made(name: str, *, asked: bool) -> Picture:
    fs, select = many()[name]
    return fs.visualize(None, select if asked else None)


def overlap(a: Box, b: Box) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


@pytest.mark.parametrize("asked", [False, True], ids=["", "selected"])
@pytest.mark.parametrize("name", KINDS)
def test_no_text_lies_over_another_or_leaves_the_page(name: str, asked: bool) -> None:
    scene = made(name, asked=asked).scene
    assert len(scene.labels) > 4
    for one, other in combinations(scene.labels, 2):
        assert not overlap(one.box, other.box), (one.text, other.text)
    for label in scene.labels:
        assert label.box.x > 0
        assert label.box.x + label.box.width < scene.width, label.text
        assert label.box.y + label.box.height < scene.height


@pytest.mark.parametrize("asked", [False, True], ids=["", "selected"])
@pytest.mark.parametrize("name", KINDS)
def test_no_shape_leaves_the_page_and_no_text_lies_on_one(name: str, asked: bool) -> None:
    scene = made(name, asked=asked).scene
    page, *shapes = scene.shapes
    assert isinstance(page, Boxes)
    cells = [box for shape in shapes if isinstance(shape, Boxes) for box in shape.boxes]
    for cell in cells:
        assert 0 <= cell.x <= cell.x + cell.width <= scene.width
        assert 0 <= cell.y <= cell.y + cell.height <= scene.height
        for label in scene.labels:
            drawn = label.box._replace(y=label.y - 0.7 * label.size, height=0.7 * label.size)
            assert not overlap(drawn, cell), (label.text, cell)


def test_labels_say_what_there_is() -> None:
    said = [label.text for label in made("few files", asked=True).scene.labels]
    assert "4 × 3 × 5 |u1  ·  chunks of 1 × 1 × 1  ·  60 of 60 chunks  ·  5.9 KiB  ·  5 files" in said
    assert "air[1, :, 2]  reads 3 chunks in 2 requests to 2 files: 700 B, of which 300 B wanted" in said
    assert "↓ time (4)   → lat (3) × lon (5)" in said
    assert "below s3://bucket/data/" in said
    assert [text for text in said if text.endswith(".nc")] == [f"f{i}.nc" for i in range(5)]
    assert "12 chunks  ·  1.2 KiB  ·  in order  ·  1 request" in said
    assert {"a colour for each file", "selected, and requested"} <= set(said)


def test_missing_inline_and_hidden_files_are_told() -> None:
    said = [label.text for label in made("some of all", asked=True).scene.labels]
    assert {"missing", "inline (19)", "1 selected chunk missing: for these, nothing is requested"} <= set(said)
    assert "and 30 more files" in [label.text for label in made("many files", asked=False).scene.labels]
    assert "and 30 more files" in [label.text for label in made("many files", asked=True).scene.labels]
    assert "backwards" in " ".join(label.text for label in made("backwards", asked=False).scene.labels)


def test_each_chunk_has_a_cell_with_its_place() -> None:
    shown = made("few files", asked=False)
    titles = [
        shape.title for shape in shown.scene.shapes if isinstance(shape, Boxes) and shape.title.startswith("chunk ")
    ]
    assert len(titles) == 60
    assert "chunk 2, 1, 3: f3.nc" in titles


@pytest.mark.parametrize("count", [3, 101, 251, 256, 397])
def test_the_last_line_of_a_folded_grid_may_be_short(count: int) -> None:
    shapes = source((count, 1), in_files(count)).visualize().scene.shapes
    titles = [shape.title for shape in shapes if isinstance(shape, Boxes) and shape.title.startswith("chunk ")]
    assert titles == [f"chunk {number}, 0" for number in range(count)]


def test_a_million_chunks_become_few_shapes() -> None:
    counts = (1000, 1000)
    grid = ChunkGrid(counts, ChunkKeyEncoding("v2", "."))
    number = np.arange(10**6)
    targets, offsets = (number // 5000).astype(np.uint32), (number % 5000 * 10).astype(np.uint64)
    table = ChunkTable(grid, Ranges(targets, offsets, np.full(10**6, 10, np.uint64)))
    meta = ArrayMeta(2, counts, (1, 1), grid, "|u1", "C", {})
    extents = Extents("v", meta, Chunks.of_table(table, int))
    scene = Picture(chunk_map("big", extents, [f"s3://b/{i}" for i in range(200)])).scene
    cells = sum(1 if isinstance(shape, Label) else len(shape.boxes) for shape in scene.shapes)
    assert cells < 8000
    assert "↓ dim 0 (1,000)   → dim 1 (1,000)  ·  a cell is 18 × 14 chunks" in [label.text for label in scene.labels]


def test_the_largest_array_is_shown_where_none_is_named() -> None:
    fs = source((3,), in_files(1))
    assert fs.visualize().map.path == "air"
    with pytest.raises(FileNotFoundError, match="'sea'"):
        fs.visualize("sea")
    with pytest.raises(ValueError, match="is of 'sea'"):
        fs.visualize("air", "sea[0]")
    with pytest.raises(IndexError):
        fs.visualize("air", "[5]")


@pytest.mark.parametrize(
    ("where", "missing", "meaning"),
    [
        (in_files(6), (), None),
        (lambda n: ["s3://bucket/f", 500 + 100 * n, 100], (), "other bytes of the file"),
        (lambda n: ["s3://bucket/f", 500 + 100 * n, 100], (2,), "missing; in files: other bytes"),
        (lambda n: ["s3://bucket/f", 100 * max(n - 1, 0), 100], (0,), "missing"),
    ],
)
def test_grey_means_what_the_legend_says(where: Any, missing: Any, meaning: str | None) -> None:
    said = [label.text for label in source((6,), where, missing).visualize("air").scene.labels]
    assert [text for text in said if "missing" in text or "other bytes" in text] == (
        [] if meaning is None else [meaning]
    )
