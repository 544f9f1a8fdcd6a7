"""A scene as SVG, as a page of HTML around it, and as PNG. Whatever keys and URLs hold, it is text in the picture.

Nothing is loaded and no script is run; colours follow the viewer's day or night.
"""

from __future__ import annotations

import io
from html import escape
from pathlib import Path
from typing import Any, Final

from refshard_fs.errors import printable
from refshard_fs.tools.map import ChunkMap, SetMap
from refshard_fs.tools.map_layout import Boxes, Label, Scene, scene_of
from refshard_fs.tools.views import ROLES, colours

_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"


class Picture:
    """A picture of an array or of a whole set, which notebooks show; ``map`` has what it says, as data."""

    def __init__(self, shown: ChunkMap | SetMap) -> None:
        self.map = shown
        self.scene = scene_of(shown)

    def save(self, path: str | Path) -> None:
        """Write the picture to ``path``, in the format that its name ends in: .svg, .html or .png (with matplotlib)."""
        path = Path(path)
        path.write_bytes(self.encoded(path.suffix))

    def encoded(self, suffix: str) -> bytes:
        """Return the picture as a file of a name that ends in ``suffix``."""
        match suffix.lower():
            case ".svg":
                return _svg(self.scene).encode()
            case ".html" | ".htm":
                return _html_page(self.scene).encode()
            case ".png":
                return _png(self.scene)
        what = suffix or "a file without a suffix"
        raise ValueError(f"a picture is not written as {what}: use .svg, .html, .png")

    def _repr_svg_(self) -> str:
        return _svg(self.scene)

    def _repr_html_(self) -> str:
        return f'<div style="max-width:640px">{_svg(self.scene)}</div>'

    def __repr__(self) -> str:
        return f"<Picture: {self.scene.title}: {self.scene.text}>"


def _svg(scene: Scene) -> str:
    """Return ``scene`` as one SVG element, which stands by itself or in HTML."""
    fills = "".join(f".rs .f-{role}{{fill:var(--rs-{role})}}.rs .s-{role}{{stroke:var(--rs-{role})}}" for role in ROLES)
    body = "\n".join(_label(shape) if isinstance(shape, Label) else _boxes(shape) for shape in scene.shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rs" viewBox="0 0 {_number(scene.width)} '
        f'{_number(scene.height)}" role="img" font-family="{escape(_FONT)}">\n'
        f"{_titled(scene.title)}\n<desc>{_text(scene.text)}</desc>\n<style>{colours()}{fills}</style>\n{body}\n</svg>\n"
    )


def _html_page(scene: Scene) -> str:
    """Return ``scene`` in a page of its own."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"{_titled(scene.title)}\n"
        "<style>:root{color-scheme:light dark}body{margin:2rem auto;max-width:720px;padding:0 1rem;background:#f6f8fa}"
        ".rs{width:100%;height:auto;display:block}"
        "@media(prefers-color-scheme:dark){body{background:#0d1117}}</style>\n</head>\n<body>\n"
        f"{_svg(scene)}</body>\n</html>\n"
    )


def _boxes(shape: Boxes) -> str:
    paint = _paint(shape.fill, shape.stroke)
    if shape.opacity < 1:
        paint += f' fill-opacity="{_number(shape.opacity)}"'
    if not (shape.radius or shape.stroke or shape.title):
        path = "".join(
            f"M{_number(x)} {_number(y)}h{_number(width)}v{_number(height)}h{_number(-width)}z"
            for x, y, width, height in shape.boxes
        )
        return f'<path d="{path}"{paint}/>'
    if shape.radius:
        paint += f' rx="{_number(shape.radius)}"'
    if shape.stroke:
        paint += f' stroke-width="{_number(shape.line)}"'
    return "\n".join(
        f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"{paint}>'
        f"{_titled(shape.title)}</rect>"
        for x, y, width, height in shape.boxes
    )


def _label(label: Label) -> str:
    attributes = f'x="{_number(label.x)}" y="{_number(label.y)}" font-size="{_number(label.size)}"'
    attributes += _paint(label.fill) + (' text-anchor="end"' if label.anchor == "end" else "")
    attributes += ' font-weight="600"' if label.bold else ""
    return f'<text {attributes} xml:space="preserve">{_titled(label.title)}{_text(label.text)}</text>'


def _titled(title: str) -> str:
    return f"<title>{_text(title)}</title>" if title else ""


def _paint(fill: str, stroke: str = "") -> str:
    """Return the attributes of a fill and a stroke: a role has its colour from the style, and by day without one."""
    roles = [f"{kind}-{name}" for kind, name in (("f", fill), ("s", stroke)) if name in ROLES]
    painted = f' class="{" ".join(roles)}"' if roles else ""
    painted += f' fill="{_by_day(fill)}"'
    return painted + (f' stroke="{_by_day(stroke)}"' if stroke else "")


def _by_day(colour: str) -> str:
    return ROLES[colour][0] if colour in ROLES else escape(colour) or "none"


def _text(text: str) -> str:
    return escape(printable(text))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


# ----------------------------------------------------------------------------------------------------
# PNG, drawn by matplotlib, which is not needed for anything else.


SCALE: Final = 2  # pixels for a unit of the scene


def _png(scene: Scene) -> bytes:
    """Return ``scene`` as a PNG image, by day; ImportError, which says what to do, without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as e:
        raise ImportError(
            'a PNG needs matplotlib: pip install "refshard_fs[png]", or save the picture as .svg or .html'
        ) from e
    figure = Figure(figsize=(scene.width / 72, scene.height / 72), dpi=72 * SCALE, facecolor=ROLES["paper"][0])
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, scene.width)
    axes.set_ylim(scene.height, 0)
    for order, shape in enumerate(scene.shapes):
        draw(axes, shape, order)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Title": scene.title, "Description": scene.text})
    return out.getvalue()


def draw(axes: Any, shape: Boxes | Label, order: int) -> Any:
    """Draw one shape on matplotlib's ``axes``, and return what was drawn."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import FancyBboxPatch

    colour = _by_day(shape.fill)
    if isinstance(shape, Label):
        return axes.text(
            shape.x,
            shape.y,
            shape.text,
            fontsize=shape.size,
            color=colour,
            family="DejaVu Sans",
            weight="bold" if shape.bold else "normal",
            horizontalalignment="right" if shape.anchor == "end" else "left",
            verticalalignment="baseline",
            parse_math=False,
            zorder=order,
        )
    corners = f"round,pad=0,rounding_size={shape.radius}" if shape.radius else "square,pad=0"
    patches = [FancyBboxPatch((x, y), width, height, corners) for x, y, width, height in shape.boxes]
    edge = _by_day(shape.stroke)
    painted = PatchCollection(
        patches, facecolor=colour, edgecolor=edge, linewidth=shape.line, alpha=shape.opacity, zorder=order
    )
    painted.set_snap(False)
    return axes.add_collection(painted, autolim=False)
