"""Pictures have right labels and counts; no text covers another, and no shape leaves the page."""

from __future__ import annotations

from itertools import combinations

import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.tools.scene import Box, Boxes
from tests.support.drawn_sources import draw_source
from tests.support.tool_sources import make_source, make_sources, place_in_files

KINDS = list(make_sources())


def do_overlap(a: Box, b: Box) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


@pytest.mark.parametrize("asked", [False, True], ids=["", "selected"])
@pytest.mark.parametrize("name", KINDS)
def test_no_text_overlaps_or_leaves_the_page(name: str, asked: bool) -> None:
    scene = draw_source(name, asked=asked).scene
    assert len(scene.labels) > 4
    for one, other in combinations(scene.labels, 2):
        assert not do_overlap(one.box, other.box), (one.text, other.text)
    for label in scene.labels:
        assert label.box.x > 0
        assert label.box.x + label.box.width < scene.width, label.text
        assert label.box.y + label.box.height < scene.height


@pytest.mark.parametrize("asked", [False, True], ids=["", "selected"])
@pytest.mark.parametrize("name", KINDS)
def test_no_shape_leaves_the_page_or_covers_a_text(name: str, asked: bool) -> None:
    scene = draw_source(name, asked=asked).scene
    page, *shapes = scene.shapes
    assert isinstance(page, Boxes)
    cells = [box for shape in shapes if isinstance(shape, Boxes) for box in shape.boxes]
    texts = [label.box._replace(y=label.y - 0.7 * label.size, height=0.7 * label.size) for label in scene.labels]
    for cell in cells:
        assert 0 <= cell.x <= cell.x + cell.width <= scene.width
        assert 0 <= cell.y <= cell.y + cell.height <= scene.height
        for text in texts:
            assert not do_overlap(text, cell), (text, cell)


def test_picture_of_a_set_shows_arrays_and_their_bytes() -> None:
    shown = refshard_fs.concat(
        [
            make_source((4, 3), place_in_files(6)),
            make_source((3,), place_in_files(3, stem="s3://bucket/data/s"), path="sea", dims=["x"]),
        ]
    )
    scene = RefShardFileSystem(shown).visualize().scene
    said = [label.text for label in scene.labels]
    assert {"Arrays", "air", "sea", "4 × 3 |u1", "x 3 |u1", "12 of 12 chunks  ·  1.2 KiB"} <= set(said)
    assert scene.text == "2 arrays in 3 files"
    assert {"#0072b2", "#e69f00"} <= {shape.fill for shape in scene.shapes if isinstance(shape, Boxes)}
    for one, other in combinations(scene.labels, 2):
        assert not do_overlap(one.box, other.box), (one.text, other.text)


def test_largest_array_is_shown_by_default() -> None:
    fs = make_source((3,), place_in_files(1))
    assert fs.visualize().map.arrays[0].path == "air"
    with pytest.raises(FileNotFoundError, match="'sea'"):
        fs.visualize("sea")
    with pytest.raises(ValueError, match="names the array 'sea'"):
        fs.visualize("air", "sea[0]")
    with pytest.raises(IndexError):
        fs.visualize("air", "[5]")
