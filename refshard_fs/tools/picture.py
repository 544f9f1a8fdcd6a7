"""A picture of boxes and lines of text, which is written as SVG, as a page of HTML, or as PNG.

The picture is one column, narrow enough for a phone. Texts are cut so that none overlaps another. Keys and URLs are
escaped, so that nothing is loaded and no script runs, whatever they contain. In SVG and HTML, colours follow the
viewer's light or dark mode.
"""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import Any, Final

from refshard_fs.errors import escape_controls
from refshard_fs.stores.drafts import replace_file
from refshard_fs.stores.links import resolve_path_to_write
from refshard_fs.tools.colours import resolve_by_day
from refshard_fs.tools.png import draw_png
from refshard_fs.tools.scene import Boxes, Label, Scene
from refshard_fs.tools.views import ROLES, make_colour_css


class Picture:
    """A picture of an array or of a whole set, which notebooks show; ``map`` is its content as data."""

    def __init__(self, content: Any, scene: Scene) -> None:
        self.map = content
        self.scene = scene

    def save(self, path: str | Path) -> None:
        """Write the picture to ``path``, in the format of its suffix: .svg, .html or .png (with matplotlib)."""
        data = self.encode(Path(path).suffix)
        folder = Path(resolve_path_to_write(os.fspath(path))).parent
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no directory {str(folder)!r} for {os.fspath(path)!r}")
        with replace_file(resolve_path_to_write(os.fspath(path))) as file:
            file.write(data)

    def encode(self, suffix: str) -> bytes:
        """Return the bytes of a file with this ``suffix``; ValueError if it is not .svg, .html, .htm or .png."""
        match suffix.lower():
            case ".svg":
                return _render_svg(self.scene).encode()
            case ".html" | ".htm":
                return _PAGE.format(title=_render_title(self.scene.title), svg=_render_svg(self.scene)).encode()
            case ".png":
                return draw_png(self.scene)
        raise ValueError(f"expected a name with the suffix .svg, .html or .png for a picture, got {suffix or 'none'}")

    def _repr_svg_(self) -> str:
        return _render_svg(self.scene)

    def _repr_html_(self) -> str:
        return f'<div style="max-width:640px">{_render_svg(self.scene)}</div>'

    def __repr__(self) -> str:
        return f"<Picture: {self.scene.title}: {self.scene.text}>"


_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
_PAGE: Final = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
{title}
<style>:root{{color-scheme:light dark}}body{{margin:2rem auto;max-width:720px;padding:0 1rem;background:#f6f8fa}}\
.rs{{width:100%;height:auto;display:block}}@media(prefers-color-scheme:dark){{body{{background:#0d1117}}}}</style>
</head>
<body>
{svg}</body>
</html>
"""


def _render_svg(scene: Scene) -> str:
    """Return ``scene`` as one SVG element, for a file or for a page of HTML."""
    fills = "".join(f".rs .f-{role}{{fill:var(--rs-{role})}}.rs .s-{role}{{stroke:var(--rs-{role})}}" for role in ROLES)
    body = "\n".join(
        _render_label(shape) if isinstance(shape, Label) else _render_boxes(shape) for shape in scene.shapes
    )
    size = f"{_format_number(scene.width)} {_format_number(scene.height)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rs" viewBox="0 0 {size}" role="img" '
        f'font-family="{escape(_FONT)}">\n'
        f"{_render_title(scene.title)}\n<desc>{_escape_text(scene.text)}</desc>\n<style>{make_colour_css()}{fills}</style>\n{body}\n</svg>\n"
    )


def _render_boxes(shape: Boxes) -> str:
    paint = _make_paint_attributes(shape.fill, shape.stroke)
    if shape.opacity < 1:
        paint += f' fill-opacity="{_format_number(shape.opacity)}"'
    boxes = [tuple(map(_format_number, box)) for box in shape.boxes]
    if not (shape.radius or shape.stroke or shape.title):
        path = "".join(f"M{x} {y}h{width}v{height}h-{width}z" for x, y, width, height in boxes)
        return f'<path d="{path}"{paint}/>'
    if shape.radius:
        paint += f' rx="{_format_number(shape.radius)}"'
    if shape.stroke:
        paint += f' stroke-width="{_format_number(shape.line)}"'
    return "\n".join(
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}"{paint}>{_render_title(shape.title)}</rect>'
        for x, y, width, height in boxes
    )


def _render_label(label: Label) -> str:
    attributes = f'x="{_format_number(label.x)}" y="{_format_number(label.y)}" font-size="{_format_number(label.size)}"'
    attributes += _make_paint_attributes(label.fill) + (' text-anchor="end"' if label.ends_there else "")
    attributes += ' font-weight="600"' if label.bold else ""
    return f'<text {attributes} xml:space="preserve">{_render_title(label.title)}{_escape_text(label.text)}</text>'


def _render_title(title: str) -> str:
    return f"<title>{_escape_text(title)}</title>" if title else ""


def _make_paint_attributes(fill: str, stroke: str = "") -> str:
    """Return the SVG attributes of a fill and a stroke: the class of a role, and its colour by day without styles."""
    roles = [f"{kind}-{name}" for kind, name in (("f", fill), ("s", stroke)) if name in ROLES]
    painted = f' class="{" ".join(roles)}"' if roles else ""
    painted += f' fill="{resolve_by_day(fill)}"'
    return painted + (f' stroke="{resolve_by_day(stroke)}"' if stroke else "")


def _escape_text(text: str) -> str:
    return escape(escape_controls(text))


def _format_number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
