"""Screenshots to look at, of pictures and views by day and by night, on a desk and on a phone.

``REFSHARD_SHOTS=shots python -m pytest -m slow tests/tools/test_screenshots.py`` writes them where chromium is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.notebook_views import make_views
from tests.support.tool_sources import make_source, make_sources

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --hide-scrollbars"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="screenshots need chromium")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_pictures_and_views_are_drawn_by_a_browser(theme: str, width: int, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    shots = Path(os.environ.get("REFSHARD_SHOTS", tmp_path)).absolute()
    shots.mkdir(exist_ok=True)
    fs, select = make_sources()["many files"]
    shown = {
        "map": fs.visualize(None, select),
        "array": make_source((20, 30), lambda n: [f"s3://b/{n % 9}"]).visualize(),
    }
    for name, each in {**shown, **make_views(tmp_path)}.items():
        page = tmp_path / f"{name}.html"
        ground = "#111" if theme == "dark" else "#fff"
        page.write_text(
            f'<!DOCTYPE html><meta charset="utf-8"><body data-theme="{theme}" style="background:{ground}">'
            f'<div style="width:{width - 16}px">{each._repr_html_()}</div>'
        )
        shot = shots / f"{name}-{theme}-{width}.png"
        where = [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={max(width, 500)},1000"]
        command = [CHROMIUM, *OPTIONS.split(), *where, f"--screenshot={shot}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        assert shot.read_bytes().startswith(b"\x89PNG")
