"""Colours of pictures."""

from __future__ import annotations

from refshard_fs.tools.colours import mix_colours, pick_shade, resolve_by_day
from refshard_fs.tools.views import ROLES


def compute_lightness(colour: str) -> float:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_shades_rise_in_lightness() -> None:
    shades = [compute_lightness(pick_shade(step / 50)) for step in range(51)]
    assert shades == sorted(shades)


def test_mixed_colours_lie_between_their_parts() -> None:
    assert mix_colours("#000000", "#ffffff", 0) == "#000000"
    assert mix_colours("#000000", "#ffffff", 1) == "#ffffff"
    assert mix_colours("#00ff00", "#0000ff", 0.2) == "#00cc33"


def test_names_of_roles_become_colours_and_other_texts_stay() -> None:
    assert resolve_by_day("ink") == ROLES["ink"][0]
    assert resolve_by_day('#ff0000"') == "#ff0000&quot;"
    assert resolve_by_day("") == "none"
