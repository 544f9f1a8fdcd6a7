"""A scene as SVG, and as a page of HTML around it. Whatever keys and URLs hold, it is text in the picture.

Nothing is loaded and no script is run; colours follow the viewer's day or night.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

from refshard_fs.core.formatting import printable
from refshard_fs.tools.map_layout import DARK, LIGHT, Box, Cell, Cells, Label, Scene

__all__ = ["html_page", "png", "svg"]

_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"


def svg(scene: Scene) -> str:
    """Return ``scene`` as one SVG element, which stands by itself or in HTML."""
    size = f"{_number(scene.width)} {_number(scene.height)}"
    body = "\n".join(map(_shape, scene.shapes))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rs" viewBox="0 0 {size}" width="{_number(scene.width)}" '
        f'height="{_number(scene.height)}" role="img" font-family="{escape(_FONT)}">\n'
        f"<title>{_text(scene.title)}</title>\n<desc>{_text(scene.text)}</desc>\n<style>{_style()}</style>\n"
        f"{body}\n</svg>\n"
    )


def html_page(scene: Scene) -> str:
    """Return ``scene`` in a page of its own."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_text(scene.title)}</title>\n"
        "<style>:root{color-scheme:light dark}body{margin:2rem auto;max-width:1160px;padding:0 1rem;background:#f6f8fa}"
        ".rs{max-width:100%;height:auto;display:block}"
        "@media(prefers-color-scheme:dark){body{background:#0d1117}}</style>\n</head>\n<body>\n"
        f"{svg(scene)}</body>\n</html>\n"
    )


def _style() -> str:
    def rules(colours: dict[str, str]) -> Iterator[str]:
        for role, colour in colours.items():
            yield f".rs .f-{role}{{fill:{colour}}}.rs .s-{role}{{stroke:{colour}}}"

    return "".join(rules(LIGHT)) + "@media(prefers-color-scheme:dark){" + "".join(rules(DARK)) + "}"


def _shape(shape: Box | Cells | Label) -> str:
    match shape:
        case Box(x, y, width, height):
            attributes = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
            if shape.radius:
                attributes += f' rx="{_number(shape.radius)}"'
            attributes += _paint(shape.fill, shape.stroke, shape.opacity)
            if shape.stroke:
                attributes += f' stroke-width="{_number(shape.line)}"'
            return _closed("rect", attributes, _titled(shape.title))
        case Cells(fill, cells, opacity):
            return f'<path d="{_path(cells)}"{_paint(fill, "", opacity)}/>'
        case Label(x, y, text, size):
            attributes = f'x="{_number(x)}" y="{_number(y)}" font-size="{_number(size)}"' + _paint(shape.fill, "", 1)
            if shape.anchor != "start":
                attributes += f' text-anchor="{shape.anchor}"'
            if shape.bold:
                attributes += ' font-weight="600"'
            return _closed("text", attributes + ' xml:space="preserve"', _titled(shape.title) + _text(text))


def _closed(name: str, attributes: str, content: str) -> str:
    return f"<{name} {attributes}>{content}</{name}>" if content else f"<{name} {attributes}/>"


def _titled(title: str) -> str:
    return f"<title>{_text(title)}</title>" if title else ""


def _paint(fill: str, stroke: str, opacity: float) -> str:
    """Return the attributes of a fill and a stroke: a role is a class, which has its colour from the style."""
    roles = [f"{kind}-{name}" for kind, name in (("f", fill), ("s", stroke)) if name in LIGHT]
    painted = f' class="{" ".join(roles)}"' if roles else ""
    if fill not in LIGHT:
        painted += f' fill="{escape(fill) or "none"}"'
    return painted + (f' fill-opacity="{_number(opacity)}"' if opacity < 1 else "")


def _path(cells: Sequence[Cell]) -> str:
    return "".join(
        f"M{_number(x)} {_number(y)}h{_number(width)}v{_number(height)}h{_number(-width)}z"
        for x, y, width, height in cells
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


# ----------------------------------------------------------------------------------------------------
# A scene as PNG, drawn by matplotlib, which is not needed for anything else.


SCALE: Final = 2  # pixels for a unit of the scene
_DPI: Final = 72 * SCALE


def png(scene: Scene) -> bytes:
    """Return ``scene`` as a PNG image, by day; ImportError, which says what to do, without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as e:
        raise ImportError("a PNG needs matplotlib: pip install matplotlib, or save the picture as .svg or .html") from e
    figure = Figure(figsize=(scene.width / 72, scene.height / 72), dpi=_DPI, facecolor=LIGHT["paper"])
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


def draw(axes: Any, shape: Box | Cells | Label, order: int) -> Any:
    """Draw one shape on matplotlib's ``axes``, and return what was drawn."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import FancyBboxPatch, Rectangle

    match shape:
        case Box(x, y, width, height):
            fill = _colour(shape.fill) or "none"
            style: dict[str, Any] = {
                "facecolor": fill,
                "edgecolor": _colour(shape.stroke) or "none",
                "linewidth": shape.line,
            }
            alpha = shape.opacity if shape.opacity < 1 else None
            patch: Any
            if shape.radius:
                round_style = f"round,pad=0,rounding_size={shape.radius}"
                patch = FancyBboxPatch((x, y), width, height, round_style, alpha=alpha, zorder=order, **style)
            else:
                patch = Rectangle((x, y), width, height, alpha=alpha, zorder=order, **style)
            return axes.add_patch(patch)
        case Cells(fill, cells, opacity):
            corners = list(map(_corners, cells))
            painted = PolyCollection(corners, facecolors=_colour(fill), edgecolors="none", alpha=opacity, zorder=order)
            painted.set_snap(False)
            return axes.add_collection(painted, autolim=False)
        case Label(x, y, text, size):
            return axes.text(
                x,
                y,
                text,
                fontsize=size,
                color=_colour(shape.fill),
                family="DejaVu Sans",
                weight="bold" if shape.bold else "normal",
                horizontalalignment={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                verticalalignment="baseline",
                parse_math=False,
                zorder=order,
            )


def _colour(name: str) -> str:
    return LIGHT.get(name, name)


def _corners(cell: Cell) -> list[tuple[float, float]]:
    x, y, width, height = cell
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
