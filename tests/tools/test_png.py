"""A PNG has the size of its scene, and no text of it covers another."""

from __future__ import annotations

from itertools import combinations

import pytest

from refshard_fs.tools import png
from tests.support.tool_sources import make_sources


@pytest.mark.parametrize("name", ["few files", "many files", "some of all", "plane of one file"])
def test_texts_stay_within_their_box(name: str) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fs, select = make_sources()[name]
    scene = fs.visualize(None, select).scene
    figure = Figure(figsize=(scene.width / 72, scene.height / 72), dpi=72 * png.SCALE)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, scene.width)
    axes.set_ylim(scene.height, 0)
    drawn = [png.draw(axes, label, 1).get_window_extent(canvas.get_renderer()) for label in scene.labels]
    for label, extent in zip(scene.labels, drawn, strict=True):
        assert extent.width / png.SCALE <= label.box.width + 1, label.text
    assert not any(a.overlaps(b) for a, b in combinations(drawn, 2))


def test_png_has_the_size_of_the_scene() -> None:
    pytest.importorskip("matplotlib")
    fs, select = make_sources()["few files"]
    made = fs.visualize(None, select)
    data = made.encode(".png")
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == round(made.scene.width * png.SCALE)


def test_error_without_matplotlib_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.backends.backend_agg", None)
    fs, _ = make_sources()["one chunk"]
    with pytest.raises(ImportError, match=r"refshard_fs\[png\]"):
        fs.visualize().encode(".png")
