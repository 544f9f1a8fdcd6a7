"""Colours of chunks, and strips of the files in which they lie."""

from __future__ import annotations

import numpy as np
import pytest

from refshard_fs.tools.chunk_files import FINE
from tests.support.drawn_sources import draw_source, find_colours


@pytest.mark.parametrize("name", ["few files", "many files", "plane of one file", "backwards"])
def test_chunk_has_one_colour_in_grid_and_file(name: str) -> None:
    shown = draw_source(name, asked=False)
    cells, strips = find_colours(shown)
    chunks = shown.map.arrays[0].chunks
    fills = [fill for title, fill in cells.items() if not title.endswith("missing")]
    for strip in shown.map.files.strips:
        rows = sorted(np.flatnonzero(shown.map.files.file_of == strip.file), key=lambda row: int(chunks.starts[row]))
        if 0 < len(rows) <= FINE:
            assert [fill for _, fill in strips[strip.url]] == [fills[row] for row in rows]


def test_overview_strip_has_the_colours_of_all_files() -> None:
    cells, strips = find_colours(draw_source("many files", asked=False))
    assert next(iter(strips)) == "all files"
    assert {fill for _, fill in strips["all files"]} == set(cells.values())
