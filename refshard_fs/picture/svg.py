"""A scene as SVG, and as a page of HTML around it. Whatever keys and URLs hold, it is text in the picture.

Nothing is loaded and no script is run; colours follow the viewer's day or night.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from refshard_fs.amounts import printable
from refshard_fs.picture.palette import DARK, LIGHT
from refshard_fs.picture.scene import Box, Cell, Cells, Label, Scene

__all__ = ["html_page", "svg"]

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
