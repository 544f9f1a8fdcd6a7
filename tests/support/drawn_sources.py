"""Draw pictures of sources, and find the colours in them."""

from __future__ import annotations

from refshard_fs.tools.picture import Picture
from refshard_fs.tools.scene import Label
from tests.support.tool_sources import make_sources


def draw_source(name: str, *, asked: bool) -> Picture:
    fs, select = make_sources()[name]
    return fs.visualize(None, select if asked else None)


def find_colours(shown: Picture) -> tuple[dict[str, str], dict[str, list[tuple[float, str]]]]:
    """Return the colours of cells, by title, and the places and colours of pieces from left to right, by URL."""
    cells: dict[str, str] = {}
    strips: dict[str, list[tuple[float, str]]] = {}
    pieces: list[tuple[float, str]] | None = None
    for shape in shown.scene.shapes:
        if isinstance(shape, Label):
            continue
        if shape.title.startswith("chunk "):
            cells[shape.title] = shape.fill
        elif shape.fill == "faint" and shape.title:
            pieces = strips.setdefault(shape.title, [])
        elif pieces is not None and shape.fill.startswith("#"):
            pieces += [(box.x, shape.fill) for box in shape.boxes]
    return cells, {url: sorted(found) for url, found in strips.items()}
